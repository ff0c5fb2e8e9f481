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
@settings(deadline=None, max_examples=30)
def test_probabilities_of_every_class_sum_to_one(task):
    _, y, p = task.enumerate()
    totals = torch.zeros(task.K, dtype=torch.float64).index_add(0, y, p)
    torch.testing.assert_close(totals, torch.ones(task.K, dtype=torch.float64), atol=1e-12, rtol=0)


@given(small_tasks())
@settings(deadline=None, max_examples=30)
def test_enumeration_lists_the_sentences_of_positive_density_once(task):
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


@given(small_tasks())
@settings(deadline=None, max_examples=30)
def test_a_sentence_has_positive_density_under_its_own_latent_variable_only(task):
    x, y, p = task.enumerate()
    density = task.density(x)
    torch.testing.assert_close(density[torch.arange(len(x)), y], p, atol=1e-14, rtol=0)
    assert (density > 0).sum() == len(x)


# The sampler ------------------------------------------------------------------------------------------------------


@given(small_tasks(), st.integers(1, 20), seeds)
@settings(deadline=None, max_examples=30)
def test_words_have_the_concepts_of_the_latent_variable(task, n_spl, seed):
    x, y = task.sample(n_spl, seed)
    assert x.shape == (task.K * n_spl, task.L) and x.dtype == y.dtype == torch.int64
    assert torch.equal(torch.bincount(y, minlength=task.K), torch.full((task.K,), n_spl))
    P = sentences.partition_matrix(task.n_c, task.s_c)
    Z = sentences.concept_matrices(task.latents, task.n_c)
    assert torch.equal(P @ sentences.zeta(x, task.n_w), Z[y])


def test_the_same_seed_gives_the_same_sentences_and_another_seed_others():
    task = sentence_task(3, 1200, 15, K=50, frequencies="zipf", seed=4)
    again = sentence_task(3, 1200, 15, K=50, frequencies="zipf", seed=4)
    assert torch.equal(task.latents, again.latents)
    assert torch.equal(task.sample(5, seed=7)[0], again.sample(5, seed=7)[0])
    assert not torch.equal(task.sample(5, seed=7)[0], task.sample(5, seed=8)[0])


def test_global_random_state_is_neither_used_nor_touched():
    torch.manual_seed(0), np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = sentence_task(3, 12, 5, K=3, seed=1).sample(4, seed=2)[0]
    assert torch.equal(before[0], torch.get_rng_state()) and np.array_equal(before[1], np.random.get_state()[1])
    torch.manual_seed(1), np.random.seed(1)
    assert torch.equal(first, sentence_task(3, 12, 5, K=3, seed=1).sample(4, seed=2)[0])


def test_the_sentences_of_a_seed_stay_what_they_are():
    """Published figures depend on the stream; whoever changes it has to know."""
    x, _ = sentence_task(3, 1200, 15, K=1000, frequencies="zipf", seed=0).sample(5, seed=0)
    assert x[0].tolist() == [47, 402, 830, 408, 925, 888, 421, 47, 409, 281, 138, 32, 401, 95, 0]
    assert int(x.sum()) == 34_472_097


def test_latents_and_words_of_one_seed_are_independent():
    agreement = []
    for seed in range(30):
        z = random_latents(2, 200, 1, seed)
        words, _ = SentenceTask(torch.zeros_like(z), sentences.uniform_frequencies(2), 2).sample(1, seed)
        agreement.append(float((words == z).double().mean()))
    assert abs(np.mean(agreement) - 0.5) < 0.05


@pytest.mark.parametrize("law", ["uniform", "zipf"])
def test_p_values_of_word_counts_are_uniform(law):
    task = sentence_task(3, 36, 4, K=20, frequencies=law, seed=1)
    p_values = []
    for seed in range(60):
        counts = np.bincount(task.sample(100, seed)[0].flatten() % task.s_c, minlength=task.s_c)
        p_values.append(stats.chisquare(counts, counts.sum() * task.frequencies.numpy()).pvalue)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_wrong_frequencies_are_told_apart():
    task = sentence_task(3, 36, 4, K=20, frequencies="zipf", seed=1)
    counts = np.bincount(task.sample(500, 0)[0].flatten() % task.s_c, minlength=task.s_c)
    steeper = np.arange(1, 13) ** -1.1
    assert stats.chisquare(counts, counts.sum() * steeper / steeper.sum()).pvalue < 1e-6


def test_seven_million_words_take_seconds():
    x, _ = sentence_task(3, 1200, 15, K=1000, frequencies="zipf").sample(500, seed=0)
    assert x.shape == (500_000, 15) and x.min() >= 0 and x.max() < 1200


# Frequencies and matrices -------------------------------------------------------------------------------------------


@given(st.integers(1, 1000))
def test_named_frequencies_are_distributions(s_c):
    for mu in (sentences.uniform_frequencies(s_c), sentences.zipf_frequencies(s_c)):
        assert mu.shape == (s_c,) and (mu > 0).all() and abs(float(mu.sum()) - 1) < 1e-12


@given(st.integers(2, 500))
def test_zipf_the_second_word_is_half_as_frequent_as_the_first_and_the_last_s_c_times_less(s_c):
    mu = sentences.zipf_frequencies(s_c)
    assert float(mu[0] / mu[1]) == pytest.approx(2) and float(mu[0] / mu[-1]) == pytest.approx(s_c)


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
@settings(deadline=None)
def test_random_latents_are_distinct(size, seed, data):
    n_c, L = size
    K = data.draw(st.integers(1, n_c**L))
    latents = random_latents(n_c, L, K, seed)
    assert latents.shape == (K, L) and len({tuple(z) for z in latents.tolist()}) == K
    assert latents.min() >= 0 and latents.max() < n_c


@pytest.mark.parametrize("distinct", [True, False])
def test_random_latents_are_uniform(distinct):
    codes = torch.cat([random_latents(3, 2, 4, s, distinct) @ torch.tensor([3, 1]) for s in range(3000)])
    counts = np.bincount(codes, minlength=9)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_more_possibilities_than_an_integer_holds():
    latents = random_latents(3, 100, 50, seed=0)
    assert latents.shape == (50, 100) and len(latents.unique(dim=0)) == 50


@given(small_sizes, seeds)
@settings(deadline=None)
def test_distances_count_differing_positions(size, seed):
    n_c, L = size
    z = random_latents(n_c, L, min(6, n_c**L), seed)
    expected = [[sum(a != b for a, b in zip(u, v, strict=True)) for v in z.tolist()] for u in z.tolist()]
    assert sentences.latent_distances(z).tolist() == expected


# Assumption A -------------------------------------------------------------------------------------------------------


@given(small_sizes, seeds, st.data())
@settings(deadline=None, max_examples=25)
def test_symmetry_counts_are_counts(size, seed, data):
    n_c, L = size
    z = random_latents(n_c, L, data.draw(st.integers(1, min(12, n_c**L))), seed)
    expected = torch.zeros(len(z), L, L, n_c, dtype=torch.int64)
    for k, own in enumerate(z.tolist()):
        for other in z.tolist():
            r = sum(a != b for a, b in zip(own, other, strict=True))
            for position, alpha in enumerate(other):
                if r:
                    expected[k, r - 1, position, alpha] += 1
    assert torch.equal(sentences.symmetry_counts(z, n_c, chunk=5), expected)
    assert torch.equal(sentences.sphere_sizes(z), expected[:, :, 0].sum(dim=-1))


@given(small_sizes)
@settings(deadline=None)
def test_assumption_a_is_exact_when_every_latent_variable_is_a_class(size):
    n_c, L = size
    assert sentences.symmetry_deviation(all_latents(n_c, L), n_c) == 0


@given(small_sizes)
@settings(deadline=None)
def test_repeating_every_latent_variable_equally_often_keeps_assumption_a(size):
    n_c, L = size
    assert sentences.symmetry_deviation(all_latents(n_c, L).repeat(2, 1), n_c) == 0


@pytest.mark.parametrize("n_c, L", [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])
def test_no_smaller_set_of_distinct_latent_variables_satisfies_assumption_a(n_c, L):
    z = all_latents(n_c, L)
    symmetric = [
        K for K in range(1, n_c**L + 1) for chosen in combinations(range(n_c**L), K)
        if sentences.symmetry_deviation(z[list(chosen)], n_c) == 0
    ]  # fmt: skip
    assert symmetric == [n_c**L]


@given(small_sizes)
@settings(deadline=None)
def test_lemma_b(size):
    n_c, L = size
    z = all_latents(n_c, L)
    Z, distances = sentences.concept_matrices(z, n_c), sentences.latent_distances(z)
    flat = torch.cat(list(Z), dim=1)
    ones = torch.ones(n_c, L, dtype=torch.float64)
    torch.testing.assert_close(Z.sum(dim=0), len(z) / n_c * ones)
    torch.testing.assert_close(flat @ flat.T, len(z) * L / n_c * torch.eye(n_c, dtype=torch.float64))
    for k, r in product(range(min(5, len(z))), range(1, L + 1)):
        mean = Z[distances[k] == r].mean(dim=0)
        right = n_c / (n_c - 1) * r / L * Z[k] - r / L / (n_c - 1) * ones
        torch.testing.assert_close(Z[k] - mean, right, atol=1e-12, rtol=0)


def test_deviation_of_random_latent_variables_shrinks_with_their_number():
    draws = {K: [random_latents(3, 15, K, s) for s in range(3)] for K in (50, 200, 800)}
    mean = [np.mean([sentences.symmetry_deviation(z, 3) for z in latents]) for latents in draws.values()]
    assert mean[1] == pytest.approx(mean[0] / 2, rel=0.1) and mean[2] == pytest.approx(mean[1] / 2, rel=0.1)


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
@settings(deadline=None, max_examples=40)
def test_dimension_is_that_of_the_whole_system(size, seed, data):
    n_c, L = size
    z = random_latents(n_c, L, data.draw(st.integers(1, min(8, n_c**L))), seed)
    assert sentences.assumption_b_dimension(z, n_c, chunk=3) == dimension_by_svd(z, n_c)


@given(small_sizes)
@settings(deadline=None)
def test_assumption_b_holds_when_every_latent_variable_is_a_class(size):
    n_c, L = size
    assert sentences.assumption_b_dimension(all_latents(n_c, L), n_c) == 2


@given(small_sizes, seeds)
@settings(deadline=None, max_examples=25)
def test_more_classes_never_raise_the_dimension(size, seed):
    n_c, L = size
    z = random_latents(n_c, L, min(8, n_c**L), seed)
    dimensions = [sentences.assumption_b_dimension(z[:K], n_c) for K in range(1, len(z) + 1)]
    assert dimensions[0] == n_c * (n_c + 1) // 2 and dimensions[-1] >= 2
    assert dimensions == sorted(dimensions, reverse=True)


def test_assumption_b_holds_in_the_setting_of_the_experiments():
    for K in (50, 1000):
        assert sentences.assumption_b_dimension(random_latents(3, 15, K, seed=0), 3) == 2


# Bad input ----------------------------------------------------------------------------------------------------------

half = torch.tensor([0.5, 0.5])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: sentence_task(3, 1201, 15, K=10), "n_w = 1201 is not a multiple of n_c = 3"),
        (lambda: sentence_task(3, 12, 2, K=10), r"K = 10 .* n_c\*\*L = 3\*\*2 = 9"),
        (lambda: random_latents(2, 3, 9, seed=0), r"K = 9 .* 8"),
        (lambda: sentence_task(2, 4, 3, frequencies=torch.tensor([1.5, -0.5])), r"frequencies\[1\] = -0.5.*positive"),
        (lambda: sentence_task(2, 4, 3, frequencies=torch.tensor([1.0, 0.0])), r"frequencies\[1\] = 0;.*positive"),
        (lambda: sentence_task(2, 4, 3, frequencies=torch.tensor([float("nan"), 1.0])), r"frequencies\[0\] = nan"),
        (lambda: sentence_task(2, 4, 3, frequencies=torch.tensor([0.5, 0.4])), "frequencies sum to 0.9"),
        (lambda: sentence_task(2, 6, 3, frequencies=half), "frequencies has 2 entries; n_w / n_c = 3"),
        (lambda: sentence_task(2, 4, 3, frequencies="zipff"), "'zipff'.*uniform.*zipf"),
        (lambda: sentence_task(0, 4, 3), "n_c = 0"),
        (lambda: sentence_task(2, -4, 3), "n_w = -4"),
        (lambda: sentence_task(2, 4, 0), "L = 0"),
        (lambda: sentence_task(2, 4, 3, K=0), "K = 0"),
        (lambda: sentence_task(2, 4, 2.5), "L = 2.5"),
        (lambda: sentence_task(3, 12, 15), r"3\*\*15 = 14348907 .*give K"),
        (lambda: sentence_task(2, 4, 3).sample(0, seed=0), "n_spl = 0"),
        (lambda: sentence_task(2, 4, 3).sample(5, seed=-1), "seed = -1"),
        (lambda: sentence_task(2, 4, 3, K=2, seed="0"), "seed = '0'"),
        (lambda: sentence_task(3, 1200, 15, K=10).enumerate(), r"10 \* 400\*\*15 = \d+ sentences; at most 4000000"),
        (lambda: SentenceTask(torch.tensor([[0, 3]]), half, 3), "values from 0 to 3"),
        (lambda: SentenceTask(torch.tensor([0, 1]), half, 3), r"latents has shape \(2,\)"),
        (lambda: SentenceTask(torch.zeros(2, 2), half, 3), "float32"),
        (lambda: SentenceTask(torch.tensor([[0, 1]]), half[:0], 3), r"frequencies has shape \(0,\)"),
        (lambda: sentences.symmetry_counts(torch.tensor([[0, 3]]), 3), "values from 0 to 3"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
