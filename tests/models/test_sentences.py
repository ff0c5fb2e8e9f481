"""The two sentence networks and their risks against the paper's formulas, summed entry by entry in float64."""

from itertools import product
from math import exp, log, prod, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.data.sentences import sentence_task
from lib.models import sentences
from lib.models.sentences import SentenceSet, empirical_risk, layer_norm, scores

quick = settings(max_examples=25, deadline=None)
networks = st.sampled_from([False, True])


@st.composite
def problems(draw):
    """Weights and sentences of any small size: K and L down to 1, words that repeat, words that never occur."""
    n_w, d, K, L, N = (draw(st.integers(*bounds)) for bounds in [(1, 6), (3, 6), (1, 4), (1, 4), (1, 7)])
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    W, U = torch.from_numpy(rng.standard_normal((n_w, d))), torch.from_numpy(rng.standard_normal((K, L, d)))
    return W, U, torch.from_numpy(rng.integers(n_w, size=(N, L))), torch.from_numpy(rng.integers(K, size=N))


def features_by_hand(W, normalize):
    if not normalize:
        return W.tolist()
    rows = []
    for v in W.tolist():
        mean = sum(v) / len(v)
        sigma = sqrt(sum((entry - mean) ** 2 for entry in v) / len(v))
        rows.append([(entry - mean) / sigma for entry in v])
    return rows


def scores_by_hand(W, U, x, normalize):
    """Equations (17) and (18): the product of U, (16), with the stacked columns of (14) or (15)."""
    words, N, (K, L, d) = features_by_hand(W, normalize), len(x), U.shape
    h = np.zeros((N, K))
    for i, k, position, j in product(range(N), range(K), range(L), range(d)):
        h[i, k] += U[k, position, j].item() * words[x[i, position]][j]
    return h


def loss_by_hand(h, k):
    return log(sum(exp(score) for score in h)) - h[k]


def squares(tensor):
    return sum(entry**2 for entry in tensor.flatten().tolist())


# LayerNorm ------------------------------------------------------------------------------------------------------------

vectors = st.lists(st.floats(-100, 100), min_size=2, max_size=8).filter(lambda v: max(v) - min(v) > 1e-3)


@quick
@given(vectors)
def test_normalised_vectors_have_mean_zero_and_norm_root_d(v):
    phi = layer_norm(torch.tensor(v, dtype=torch.float64))
    assert abs(phi.mean()) < 1e-9 and phi.norm().item() == pytest.approx(sqrt(len(v)), rel=1e-12)


@quick
@given(vectors, st.floats(-8, 8), st.floats(-100, 100))
def test_layer_norm_forgets_scale_and_shift(v, exponent, shift):
    v = torch.tensor(v, dtype=torch.float64)
    torch.testing.assert_close(layer_norm(10**exponent * v), layer_norm(v), atol=1e-9, rtol=0)
    torch.testing.assert_close(layer_norm(v + shift), layer_norm(v), atol=1e-8, rtol=0)
    torch.testing.assert_close(layer_norm(-v), -layer_norm(v))


def test_layer_norm_acts_on_every_row_alone():
    V = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for i, j in product(range(2), range(3)):
        torch.testing.assert_close(layer_norm(V)[i, j], layer_norm(V[i, j]))


# Scores ---------------------------------------------------------------------------------------------------------------


@quick
@given(problems(), networks)
def test_scores_are_those_of_the_paper(problem, normalize):
    W, U, x, _ = problem
    expected = scores_by_hand(W, U, x, normalize)
    np.testing.assert_allclose(scores(W, U, x, normalize).numpy(), expected, atol=1e-11)


@quick
@given(problems(), st.floats(0.01, 100))
def test_h_star_does_not_see_the_length_of_embeddings_and_h_is_linear_in_it(problem, factor):
    W, U, x, _ = problem
    torch.testing.assert_close(scores(factor * W, U, x, True), scores(W, U, x, True), atol=1e-9, rtol=0)
    torch.testing.assert_close(scores(factor * W, U, x), factor * scores(W, U, x))


a_sentence = torch.tensor([[0, 3]])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: scores(torch.ones(4, 3), torch.ones(2, 5, 7), torch.zeros(1, 5).long()), "d=3.*d=7"),
        (lambda: scores(torch.ones(4, 3), torch.ones(2, 5, 3), torch.zeros(1, 6).long()), "L=6.*L=5"),
        (lambda: SentenceSet(torch.tensor([[0, 4]]), 4), r"words 0 to 4.*n_w - 1 = 3"),
        (lambda: SentenceSet(torch.tensor([[0, -1]]), 4), r"words -1 to 0.*n_w - 1 = 3"),
        (lambda: SentenceSet(a_sentence, 4)(torch.ones(4, 3), torch.ones(2, 2, 5)), "d=3.*d=5"),
        (lambda: SentenceSet(a_sentence, 4)(torch.ones(4, 3), torch.ones(2, 3, 3)), r"\(3, 4, 2\).*L=2"),
        (lambda: SentenceSet(a_sentence, 4)(torch.ones(5, 3), torch.ones(2, 2, 3)), r"\(2, 5, 2\).*n_w=4"),
    ],
)
def test_sizes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_word_outside_the_vocabulary_is_refused():
    with pytest.raises(IndexError):
        scores(torch.ones(4, 3), torch.ones(2, 2, 3), torch.tensor([[0, 4]]))


# Prepared sentences ---------------------------------------------------------------------------------------------------


@quick
@given(problems(), networks)
def test_prepared_sentences_have_the_same_scores_and_gradients(problem, normalize):
    W, U, x, _ = problem
    weight = torch.cos(torch.arange(len(x) * len(U), dtype=torch.float64)).reshape(len(x), len(U))

    def value_and_gradients(function):
        variables = [W.clone().requires_grad_(), U.clone().requires_grad_()]
        value = function(*variables)
        return value, *torch.autograd.grad((value * weight).sum(), variables)

    direct = value_and_gradients(lambda W, U: scores(W, U, x, normalize))
    prepared = value_and_gradients(lambda W, U: SentenceSet(x, len(W))(W, U, normalize))
    for expected, found in zip(direct, prepared, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "x, n_w, K",
    [
        ([[0, 1], [2, 0], [1, 2]], 3, 2),
        ([[0, 0], [3, 3], [0, 0]], 5, 2),  # words repeated within a sentence, words 1, 2 and 4 never seen
        ([[1, 0, 1]], 3, 1),  # one sentence, one class, a word never seen
    ],
)
def test_gradients_of_prepared_sentences_are_slopes(x, n_w, K, normalize):
    x, generator = torch.tensor(x), torch.Generator().manual_seed(1)
    W = torch.randn(n_w, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    U = torch.randn(K, x.shape[1], 3, dtype=torch.float64, generator=generator, requires_grad=True)
    prepared = SentenceSet(x, n_w)
    assert torch.autograd.gradcheck(lambda W, U: prepared(W, U, normalize), (W, U))


def test_scores_from_products_need_no_factors():
    x = torch.tensor([[2, 0], [1, 1]])
    V = torch.arange(12, dtype=torch.float64).reshape(2, 3, 2) ** 2
    expected = [[(V[0, i, k] + V[1, j, k]).item() for k in range(2)] for i, j in x.tolist()]
    assert SentenceSet(x, 3).scores_from_products(V).tolist() == expected


@quick
@given(problems(), networks, st.floats(0, 2))
def test_full_batch_risk_is_the_empirical_risk(problem, normalize, lam):
    W, U, x, y = problem
    risk = sentences.full_batch_risk(SentenceSet(x, len(W)), y, lam, normalize)
    torch.testing.assert_close(risk(W, U), empirical_risk(W, U, x, y, lam, normalize))


# Risks ----------------------------------------------------------------------------------------------------------------


@quick
@given(problems(), networks, st.floats(0, 2))
def test_empirical_risk_is_equation_2_and_equation_3(problem, normalize, lam):
    W, U, x, y = problem
    h = scores_by_hand(W, U, x, normalize).tolist()
    expected = sum(loss_by_hand(h[i], k) for i, k in enumerate(y.tolist())) / len(x) + lam / 2 * squares(U)
    if not normalize:
        expected += lam / 2 * squares(W)
    assert empirical_risk(W, U, x, y, lam, normalize).item() == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("K", [1, 3, None])
def test_weighted_risk_of_all_sentences_is_the_true_risk(normalize, K):
    """Equations (5) and (10): the expectation runs over every sequence of words, most of which have density 0."""
    task, lam = sentence_task(2, 4, 2, K=K, frequencies="zipf", seed=5), 0.3
    generator = torch.Generator().manual_seed(2)
    W = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    U = torch.randn(task.K, 2, 3, dtype=torch.float64, generator=generator)
    mu, expected = [2 / 3, 1 / 3], lam / 2 * (squares(U) + (0 if normalize else squares(W)))
    for words in product(range(4), repeat=2):
        h = scores_by_hand(W, U, torch.tensor([words]), normalize)[0].tolist()
        for k, z in enumerate(task.latents.tolist()):
            if [word // 2 for word in words] == z:
                expected += prod(mu[word % 2] for word in words) * loss_by_hand(h, k) / task.K
    x, y, p = task.enumerate()
    risk = empirical_risk(W, U, x, y, lam, normalize, weights=p / task.K)
    assert risk.item() == pytest.approx(expected, abs=1e-12)


@quick
@given(problems(), networks, st.floats(0.1, 2))
def test_equal_weights_are_the_mean_and_repeating_a_sentence_is_weighting_it(problem, normalize, lam):
    W, U, x, y = problem
    times = torch.arange(1, len(x) + 1)
    repeated = empirical_risk(W, U, x.repeat_interleave(times, 0), y.repeat_interleave(times), lam, normalize)
    weighted = empirical_risk(W, U, x, y, lam, normalize, weights=times / times.sum(dtype=torch.float64))
    torch.testing.assert_close(weighted, repeated)
    even = torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    plain = empirical_risk(W, U, x, y, lam, normalize)
    torch.testing.assert_close(empirical_risk(W, U, x, y, lam, normalize, weights=even), plain)


@quick
@given(problems(), st.floats(0.1, 2))
def test_the_risk_of_h_star_penalises_the_linear_layer_only(problem, lam):
    W, U, x, y = problem
    W, U = W.clone().requires_grad_(), U.clone().requires_grad_()
    slopes = {}
    for normalize, strength in product([False, True], [0.0, lam]):
        slopes[normalize, strength] = torch.autograd.grad(empirical_risk(W, U, x, y, strength, normalize), (W, U))
    for normalize in (False, True):
        in_W, in_U = (a - b for a, b in zip(slopes[normalize, lam], slopes[normalize, 0.0], strict=True))
        torch.testing.assert_close(in_U, lam * U.detach(), atol=1e-11, rtol=0)
        torch.testing.assert_close(in_W, (0 if normalize else lam) * W.detach(), atol=1e-11, rtol=0)
    radial = (slopes[True, lam][0] * W).sum(1)
    assert radial.abs().max() < 1e-10


@quick
@given(st.integers(1, 5), st.integers(1, 4), networks)
def test_zero_weights_of_the_linear_layer_cost_the_logarithm_of_the_number_of_classes(K, L, normalize):
    W = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, y = torch.zeros(K, L, dtype=torch.int64), torch.arange(K)
    risk = empirical_risk(W, torch.zeros(K, L, 3, dtype=torch.float64), x, y, 1.0, normalize)
    assert risk.item() == pytest.approx(log(K) + (0 if normalize else squares(W) / 2), abs=1e-12)


# Predictions ----------------------------------------------------------------------------------------------------------


@quick
@given(problems(), networks, st.integers(1, 3))
def test_accuracy_counts_sentences_whose_own_score_is_highest(problem, normalize, chunk):
    W, U, x, y = problem
    guesses = scores_by_hand(W, U, x, normalize).argmax(1).tolist()
    assert sentences.predictions(W, U, x, normalize, chunk).tolist() == guesses
    hits = sum(guess == k for guess, k in zip(guesses, y.tolist(), strict=True))
    assert sentences.accuracy(W, U, x, y, normalize) == pytest.approx(hits / len(x))
