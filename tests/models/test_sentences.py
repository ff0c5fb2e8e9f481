"""The two sentence networks and their risks against the paper's formulas, summed entry by entry in float64."""

from itertools import product
from math import exp, log, prod, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lib.data.sentences import sentence_task
from lib.models import sentences
from lib.models.sentences import SentenceSet, empirical_risk, scores, true_risk

quick = settings(max_examples=25, deadline=None)
networks = st.sampled_from([False, True])


@st.composite
def problems(draw):
    """Weights and sentences of any small size: K and L down to 1, words that repeat, words that never occur."""
    n_w, d, K, L, N = (draw(st.integers(*bounds)) for bounds in [(1, 6), (3, 6), (1, 4), (1, 4), (1, 7)])
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    W, U = torch.from_numpy(rng.standard_normal((n_w, d))), torch.from_numpy(rng.standard_normal((K, L, d)))
    return W, U, torch.from_numpy(rng.integers(n_w, size=(N, L))), torch.from_numpy(rng.integers(K, size=N))


def scores_by_hand(W, U, x, normalize):
    """Equations (17) and (18): the product of U, (16), with the stacked columns of (14) or (15)."""
    words = [(v - v.mean()) / v.std() if normalize else v for v in W.numpy()]
    N, (K, L, d) = len(x), U.shape
    h = np.zeros((N, K))
    for i, k, position, j in product(range(N), range(K), range(L), range(d)):
        h[i, k] += U[k, position, j].item() * words[x[i, position]][j]
    return h


def loss_by_hand(h, k):
    return log(sum(exp(score) for score in h)) - h[k]


def squares(tensor):
    return sum(entry**2 for entry in tensor.flatten().tolist())


# Bad input ------------------------------------------------------------------------------------------------------------


def test_sizes_that_do_not_fit_are_refused():
    W, U, x, y = torch.ones(4, 3), torch.ones(2, 5, 3), torch.zeros(7, 5).long(), torch.zeros(7).long()
    wrong = [(W[:, :2], U, y), (W, U[:, 1:], y), (W[1:], U, y), (W, U, y[1:])]
    for weights in wrong[:2]:
        with pytest.raises(ValueError, match="U"):
            scores(*weights[:2], x)
    for weights in wrong:
        with pytest.raises(ValueError, match="W .*U .*y "):
            SentenceSet(x, 4).cross_entropy(*weights)


@pytest.mark.parametrize("word", [4, -1])
def test_a_word_outside_the_vocabulary_is_refused(word):
    with pytest.raises(ValueError, match="x has words"):
        SentenceSet(torch.tensor([[0, word]]), 4)


# Prepared sentences ---------------------------------------------------------------------------------------------------


#: Sizes for which the scores are computed directly, and for which they are read off the products.
@pytest.mark.parametrize(
    "N, n_w, L, K, d",
    [(7, 9, 3, 4, 5), (3, 4, 2, 1, 1), (2500, 6, 2, 3, 4), (40, 3, 2, 5, 30), (2500, 4, 3, 2, 12), (30, 2, 1, 3, 25)],
)
def test_prepared_sentences_have_the_cross_entropy_of_the_scores_and_its_gradients(N, n_w, L, K, d):
    generator = torch.Generator().manual_seed(N + d)
    W = torch.randn(n_w, d, dtype=torch.float64, generator=generator).requires_grad_()
    U = torch.randn(K, L, d, dtype=torch.float64, generator=generator).requires_grad_()
    x = torch.randint(max(n_w - 1, 1), (N, L), generator=generator)  # the last word is never seen
    y = torch.randint(K, (N,), generator=generator)
    expected = torch.nn.functional.cross_entropy(scores(W, U, x), y)
    prepared = SentenceSet(x, n_w)
    found = prepared.cross_entropy(W, U, y)
    prepared.cross_entropy(2 * W, -U, y)  # keeps its memory from call to call
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    slopes = [torch.autograd.grad(3 * value, (W, U)) for value in (expected, found)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(other, one, atol=1e-12, rtol=1e-10)


def test_a_sentence_far_on_the_wrong_side_has_a_finite_loss():
    W, U = torch.tensor([[1.0]]), torch.tensor([[[0.0]], [[2000.0]]])
    loss = SentenceSet(torch.tensor([[0]]), 1).cross_entropy(W, U, torch.tensor([0]))
    assert loss.item() == 2000.0


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
    risk = sentences.full_batch_risk(SentenceSet(x, len(W)), y, lam, normalize)
    torch.testing.assert_close(risk(W, U), empirical_risk(W, U, x, y, lam, normalize))


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
    assert [risk.item(), true_risk(task, lam, normalize)(W, U).item()] == pytest.approx([expected] * 2, abs=1e-12)


# Predictions ----------------------------------------------------------------------------------------------------------


@quick
@given(problems(), networks, st.integers(1, 3))
def test_accuracy_counts_sentences_whose_own_score_is_highest(problem, normalize, chunk):
    W, U, x, y = problem
    guesses = scores_by_hand(W, U, x, normalize).argmax(1).tolist()
    hits = sum(guess == k for guess, k in zip(guesses, y.tolist(), strict=True))
    assert sentences.accuracy(W, U, x, y, normalize, chunk) == pytest.approx(hits / len(x))


# Starts ---------------------------------------------------------------------------------------------------------------


def test_starts_are_normal_embeddings_and_uniform_linear_weights_times_the_scale():
    W, U = sentences.initial_weights(200, 20, 5, 50, seed=0, scale=1.0)
    assert W.shape == (200, 50) and U.shape == (20, 5, 50) and W.dtype == U.dtype == torch.float32
    assert stats.kstest(U.flatten() * sqrt(5 * 50), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert stats.kstest(W.flatten(), "norm").pvalue > 1e-3
    W_scaled, U_scaled = sentences.initial_weights(200, 20, 5, 50, seed=0, scale=1e-3)
    assert torch.equal(W_scaled, 1e-3 * W) and torch.equal(U_scaled, 1e-3 * U)


def test_starts_depend_on_the_seed_alone():
    first, again, other = (sentences.initial_weights(4, 3, 2, 5, seed, 1.0) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) and not torch.equal(a, c) for a, b, c in zip(first, again, other, strict=True))
