"""The sentence task: its density, its sampler, and the symmetry of its latent variables."""

from itertools import combinations, product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lib.data import sentences
from lib.data.sentences import SentenceTask, all_latents, random_latents, sentence_task

few = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**32)
small_sizes = st.sampled_from([(n_c, L) for n_c in (2, 3, 4, 5) for L in (1, 2, 3, 4) if n_c**L <= 256])
frequencies = st.lists(st.integers(1, 20), min_size=1, max_size=4).map(
    lambda weights: torch.tensor(weights, dtype=torch.float64) / sum(weights)
)


@st.composite
def small_tasks(draw):
    n_c, L = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    K = draw(st.integers(1, n_c**L))
    return SentenceTask(random_latents(n_c, L, K, draw(seeds)), draw(frequencies), n_c)


# The density ------------------------------------------------------------------------------------------------------


@given(small_tasks())
@few
def test_enumeration_lists_the_sentences_of_each_class_once_and_no_other_class_has_them(task):
    x, y, p = task.enumerate()
    listed = {(k, *words): value for k, words, value in zip(y.tolist(), x.tolist(), p.tolist(), strict=True)}
    assert len(listed) == len(x)
    mu = task.frequencies.tolist()
    expected = {}
    for k, z in enumerate(task.latents.tolist()):
        for words in product(range(task.n_w), repeat=task.L):
            if all(word // task.s_c == concept for word, concept in zip(words, z, strict=True)):
                expected[(k, *words)] = prod(mu[word % task.s_c] for word in words)
    assert listed == pytest.approx(expected, abs=1e-14)
    density = task.density(x)
    torch.testing.assert_close(density[torch.arange(len(x)), y], p, atol=1e-14, rtol=0)
    assert (density > 0).sum() == len(x)


# The sampler ------------------------------------------------------------------------------------------------------


@given(small_tasks(), st.integers(1, 20), seeds)
@few
def test_words_have_the_concepts_of_the_latent_variable(task, n_spl, seed):
    x, y = task.sample(n_spl, seed)
    assert x.shape == (task.K * n_spl, task.L) and x.dtype == y.dtype == torch.int64
    assert torch.equal(torch.bincount(y, minlength=task.K), torch.full((task.K,), n_spl))
    P = sentences.partition_matrix(task.n_c, task.s_c)
    Z = sentences.concept_matrices(task.latents.int(), task.n_c)
    assert torch.equal(P @ sentences.zeta(x, task.n_w), Z[y])


def test_global_random_state_is_neither_used_nor_touched():
    torch.manual_seed(0), np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = sentence_task(3, 12, 5, K=3, seed=1).sample(4, seed=2)[0]
    assert torch.equal(before[0], torch.get_rng_state()) and np.array_equal(before[1], np.random.get_state()[1])
    torch.manual_seed(1), np.random.seed(1)
    assert torch.equal(first, sentence_task(3, 12, 5, K=3, seed=1).sample(4, seed=2)[0])
    assert not torch.equal(first, sentence_task(3, 12, 5, K=3, seed=1).sample(4, seed=3)[0])


def test_the_sentences_of_a_seed_stay_what_they_are():
    """Published figures depend on the stream; whoever changes it has to know."""
    x, _ = sentence_task(3, 1200, 15, K=1000, frequencies="zipf", seed=0).sample(5, seed=0)
    assert x[0].tolist() == [47, 402, 830, 408, 925, 888, 421, 47, 409, 281, 138, 32, 401, 95, 0]
    assert int(x.sum()) == 34_472_097


def test_latents_and_words_of_one_seed_are_independent():
    agreement = []
    for seed in range(100):
        z = random_latents(2, 60, 1, seed)
        words, _ = SentenceTask(torch.zeros_like(z), sentences.uniform_frequencies(2), 2).sample(1, seed)
        agreement.append(float((words == z).double().mean()))
    assert abs(np.mean(agreement) - 0.5) < 0.05


def test_every_sentence_is_drawn_as_often_as_its_density_says_and_a_wrong_density_is_noticed():
    task, every = sentence_task(3, 9, 3, K=4, frequencies="zipf", seed=0), torch.tensor([*product(range(9), repeat=3)])
    x, classes = task.sample(20_000, seed=0)
    counts = np.zeros((4, 9**3))
    np.add.at(counts, (classes.numpy(), x.numpy() @ [81, 9, 1]), 1)

    def p_value(mu):
        expected = 20_000 * SentenceTask(task.latents, mu, 3).density(every).T.numpy()
        possible = expected > 0
        return stats.chisquare(counts[possible], expected[possible], ddof=3).pvalue

    assert counts.sum() == counts[task.density(every).T.numpy() > 0].sum() and p_value(task.frequencies) > 1e-3
    for wrong in (task.frequencies + torch.tensor([-0.02, 0.02, 0.0]), task.frequencies.flip(0)):
        assert p_value(wrong) < 1e-6


# Frequencies and matrices -------------------------------------------------------------------------------------------


@given(st.integers(1, 1000))
def test_named_frequencies_are_distributions(s_c):
    for mu in (sentences.uniform_frequencies(s_c), sentences.zipf_frequencies(s_c)):
        assert mu.shape == (s_c,) and (mu > 0).all() and abs(float(mu.sum()) - 1) < 1e-12
    assert mu.tolist() == pytest.approx([float(mu[0]) / rank for rank in range(1, s_c + 1)])  # Zipf's law
    assert len(set(sentences.uniform_frequencies(s_c).tolist())) == 1


def test_partition_and_frequency_matrices_are_those_of_the_paper():
    mu = sentences.zipf_frequencies(4)
    rows = [[1] * 4 + [0] * 8, [0] * 4 + [1] * 4 + [0] * 4, [0] * 8 + [1] * 4]
    assert sentences.partition_matrix(3, 4).tolist() == rows
    Q = sentences.frequency_matrix(3, mu)
    assert torch.equal(Q, torch.tensor(rows, dtype=torch.float64) * mu.repeat(3))


# Latent variables -----------------------------------------------------------------------------------------------------


@given(small_sizes)
def test_all_latents_are_all_and_in_order(size):
    n_c, L = size
    assert all_latents(n_c, L).tolist() == [list(z) for z in product(range(n_c), repeat=L)]


@given(small_sizes, seeds, st.data())
@few
def test_random_latents_are_distinct(size, seed, data):
    n_c, L = size
    K = data.draw(st.integers(1, n_c**L))
    latents = random_latents(n_c, L, K, seed)
    assert latents.shape == (K, L) and len({tuple(z) for z in latents.tolist()}) == K
    assert latents.min() >= 0 and latents.max() < n_c


def test_random_latents_are_uniform():
    codes = torch.cat([random_latents(3, 2, 4, s) @ torch.tensor([3, 1]) for s in range(3000)])
    counts = np.bincount(codes, minlength=9)
    assert stats.chisquare(counts).pvalue > 1e-3


# Assumption A -------------------------------------------------------------------------------------------------------


@given(small_sizes, seeds, st.data())
@few
def test_distances_and_symmetry_counts_are_counts(size, seed, data):
    n_c, L = size
    z = random_latents(n_c, L, data.draw(st.integers(1, min(12, n_c**L))), seed)
    distances = [[sum(a != b for a, b in zip(u, v, strict=True)) for v in z.tolist()] for u in z.tolist()]
    assert sentences.latent_distances(z).tolist() == distances
    expected = torch.zeros(len(z), L, L, n_c, dtype=torch.int64)
    for k, row in enumerate(distances):
        for other, r in zip(z.tolist(), row, strict=True):
            for position, alpha in enumerate(other):
                if r:
                    expected[k, r - 1, position, alpha] += 1
    assert torch.equal(sentences.symmetry_counts(z, n_c, chunk=5), expected)


@given(small_sizes, st.sampled_from([1, 2]))
@few
def test_assumption_a_is_exact_when_all_latent_variables_are_classes_equally_often(size, times):
    n_c, L = size
    assert sentences.symmetry_deviation(all_latents(n_c, L).repeat(times, 1).int(), n_c) == 0


@pytest.mark.parametrize(("n_c", "L"), [(2, 4), (3, 3), (4, 3), (5, 2), (6, 3)])  # prime or not
def test_zero_sum_codes_have_the_properties_of_lemma_b_but_not_assumption_a(n_c, L):
    code = sentences.zero_sum_code(n_c, L)
    every = [z for z in product(range(n_c), repeat=L) if sum(z) % n_c == 0]
    assert code.tolist() == [list(z) for z in every]
    counts = sentences.symmetry_counts(code, n_c).numpy()  # class, radius, position, concept
    spheres = counts.sum(3)[:, :, :1]
    assert (counts.sum(3) == spheres[0]).all()  # (i): one size for all classes
    assert (np.bincount(code.flatten(), minlength=n_c) == L * n_c ** (L - 2)).all()  # (ii)
    own = torch.nn.functional.one_hot(code, n_c).bool().numpy()[:, None]
    for r in range(1, L + 1):  # (iii): at each radius one count for the class's own concept, one for all others
        at_r = counts[:, r - 1 : r]
        assert len(set(at_r[own])) == len(set(at_r[~own])) == 1
    assert sentences.symmetry_deviation(code, n_c) > 0


# Assumption B -------------------------------------------------------------------------------------------------------


def dimension_by_svd(z, n_c):
    """Every equation of (44) for the n_c^2 entries of A, with A symmetric as further equations; float rank."""
    Z = torch.nn.functional.one_hot(z, n_c).double().mT.numpy()
    gammas = {}
    for j, k in product(range(len(z)), repeat=2):
        gammas.setdefault(int((z[j] != z[k]).sum()), []).append(Z[j] @ (Z[j] - Z[k]).T)
    rows = [(a - b).ravel() for same in gammas.values() for a, b in combinations(same, 2)]
    for a, b in combinations(range(n_c), 2):
        antisymmetric = np.zeros((n_c, n_c))
        antisymmetric[a, b], antisymmetric[b, a] = 1, -1
        rows.append(antisymmetric.ravel())
    return n_c**2 - (np.linalg.matrix_rank(np.array(rows)) if rows else 0)


@given(small_sizes, seeds, st.data())
@few
def test_dimension_is_that_of_the_whole_system(size, seed, data):
    n_c, L = size
    z = random_latents(n_c, L, data.draw(st.integers(1, min(8, n_c**L))), seed)
    assert sentences.assumption_b_dimension(z.int(), n_c, chunk=3) == dimension_by_svd(z, n_c)


# Bad input ----------------------------------------------------------------------------------------------------------

SENTENCES = sentence_task(3, 1200, 15, K=10)
REFUSED = [
    (lambda: sentence_task(2, 5, 3), "n_w = 5.*n_c = 2"),
    (lambda: sentence_task(2, 4, 3, K=9), "K = 9.* = 8"),
    (lambda: sentence_task(3, 6, 15), r"n_c\*\*L"),
    (lambda: sentence_task(2, 4, 3, frequencies="zipff"), "frequencies = 'zipff'"),
    (lambda: sentence_task(2, 6, 3, frequencies=torch.tensor([0.5, 0.5])), "frequencies has 2"),
    (lambda: sentence_task(2, 4, 3, frequencies=torch.tensor([1.5, -0.5])), "frequencies"),
    (lambda: SentenceTask(torch.tensor([[0, 3]]), torch.tensor([0.5, 0.5]), 3), "latents from 0 to 3"),
    (lambda: sentences.symmetry_counts(torch.tensor([0, 1]), 3), "latents are"),
    (SENTENCES.enumerate, "400"),
]


@pytest.mark.parametrize(("call", "named"), REFUSED)
def test_a_task_latent_variables_or_a_sample_that_cannot_be_are_refused(call, named):
    with pytest.raises(ValueError, match=named):
        call()
