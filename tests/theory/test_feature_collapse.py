"""The theory of feature collapse against what it is about: the true risk, summed over every sentence, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lib.data.sentences import all_latents, sentence_task, uniform_frequencies, zipf_frequencies
from lib.models.sentences import layer_norm, true_risk
from lib.search.many_starts import multistart
from lib.theory import certificates
from lib.theory import feature_collapse as theory

quick = settings(max_examples=25, deadline=None)


@st.composite
def tasks(draw, frequencies="any", largest=1300):
    """A fully sampled task: n_c from 2 to 4, s_c and L from 1 to 4, as far as its sentences can be listed quickly."""
    sizes = st.tuples(st.integers(2, 4), st.integers(1, 4), st.integers(1, 4))
    sizes = sizes.filter(lambda t: (t[0] * t[1]) ** t[2] <= largest)
    n_c, s_c, L = draw(sizes)
    raw = draw(st.lists(st.floats(0.05, 1.0), min_size=s_c, max_size=s_c))
    mu = torch.tensor(raw, dtype=torch.float64) if frequencies == "any" else torch.ones(s_c, dtype=torch.float64)
    return sentence_task(n_c, n_c * s_c, L, frequencies=mu / mu.sum())


def gradient(risk, W, U):
    W, U = W.clone().requires_grad_(), U.clone().requires_grad_()
    return torch.cat([g.flatten() for g in torch.autograd.grad(risk(W, U), (W, U))])


def slopes_by_hand(D, x, y, p, K):
    """The gradient of f(D) of appendix G, written out: a row for each word, a column for each class and position."""

    def f(D):
        of = D.unflatten(1, (K, -1))
        logits = sum(of[words, :, position] for position, words in enumerate(x.T))
        return torch.nn.functional.cross_entropy(logits, y, reduction="none") @ p / p.sum()

    return torch.func.grad(f)(D)


def threshold_by_hand(task):
    """Condition (9) by brute force: operator norm of the gradient at zero."""
    D = torch.zeros(task.n_w, task.K * task.L, dtype=torch.float64)
    return torch.linalg.matrix_norm(slopes_by_hand(D, *task.enumerate(), task.K), ord=2).item()


# --- frames and configurations ---


@quick
@given(st.integers(2, 6), st.integers(0, 3), st.booleans(), st.integers(0, 10**6))
@example(6, 0, True, 548558)  # whose first draw is nearly dependent once it has mean zero
def test_frames_are_equiangular(n_c, extra, mean_zero, seed):
    frame = theory.equiangular(n_c, n_c - 1 + mean_zero + extra, mean_zero, seed)
    gram = frame @ frame.T
    assert frame.sum(0).abs().max() < 1e-13
    assert (gram.diagonal() - 1).abs().max() < 1e-13
    assert (gram[~torch.eye(n_c, dtype=torch.bool)] + 1 / (n_c - 1)).abs().max() < 1e-13
    if mean_zero:
        assert frame.sum(1).abs().max() < 1e-13


def test_configurations_satisfy_their_definitions():
    latents, s_c = all_latents(3, 2), 3
    frame = theory.equiangular(3, 5, mean_zero=True, seed=2)
    r = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    W1, U1 = theory.type1_weights(latents, s_c, frame, 0.7, 0.4)
    W2, U2 = theory.type2_weights(latents, s_c, frame, 0.3)
    W3, U3 = theory.type3_weights(latents, frame, 0.5, r)
    of_words = frame.repeat_interleave(s_c, 0)
    torch.testing.assert_close(W1, 0.7 * of_words)
    torch.testing.assert_close(layer_norm(W2), 5**0.5 * of_words)
    torch.testing.assert_close(W3, r.repeat(3)[:, None] * of_words)
    for U, c in ((U1, 0.4), (U2, 0.3), (U3, 0.5)):
        torch.testing.assert_close(U, c * frame[latents])


# --- Theorems 1 and 3 ---


def test_the_two_printed_constants():
    assert theory.type1(3, 1200, 15, 1000, 0.001)[1] == pytest.approx(1.42214, abs=5e-6)
    assert theory.type1(3, 1200, 15, 50, 0.001)[1] == pytest.approx(0.61602, abs=5e-6)


@quick
@given(tasks("uniform"), st.floats(0.0, 60.0), st.floats(1e-4, 1.0))
def test_risk_of_type_I_is_H(task, t, lam):
    frame = theory.equiangular(task.n_c, task.n_c)
    W, U = theory.type1_weights(task.latents, task.s_c, frame, (t / task.n_w) ** 0.5, (t / task.K / task.L) ** 0.5)
    expected = true_risk(task, lam)(W, U).item()
    H = theory.type1_risk(t, task.n_c, task.n_w, task.L, task.K, lam)
    assert pytest.approx(expected, rel=1e-12, abs=1e-13) == H


@quick
@given(tasks("any"), st.floats(0.0, 20.0), st.floats(1e-4, 1.0), st.integers(0, 2))
def test_risk_of_type_II_is_H_star_whatever_the_frequencies(task, t, lam, extra):
    d = task.n_c + extra
    frame = theory.equiangular(task.n_c, d, mean_zero=True)
    W, U = theory.type2_weights(task.latents, task.s_c, frame, t / (task.K * task.L) ** 0.5)
    expected = true_risk(task, lam, normalize=True)(W, U).item()
    assert theory.type2_risk(t, task.n_c, task.L, task.K, d, lam) == pytest.approx(expected, rel=1e-12, abs=1e-13)


@quick
@given(tasks("uniform"), st.floats(0.01, 3.0))
def test_type_I_is_critical_and_certified_on_both_sides_of_the_threshold(task, factor):
    bound = threshold_by_hand(task)
    lam = factor * bound
    tau, c, c_prime = theory.type1(task.n_c, task.n_w, task.L, task.K, lam)
    assert (tau == 0) == (lam >= bound) or abs(factor - 1) < 1e-9
    W, U = theory.type1_weights(task.latents, task.s_c, theory.equiangular(task.n_c, task.n_c - 1), c, c_prime)
    assert gradient(true_risk(task, lam), W, U).abs().max() < 1e-11
    x, y, p = task.enumerate()
    assert certificates.dual_certificate(W, U, x, y, p) <= lam * (1 + 1e-9)


@quick
@given(tasks("any"), st.floats(0.01, 1.0), st.integers(1, 2))
def test_type_II_is_critical(task, lam, extra):
    d = task.n_c + extra
    _, c = theory.type2(task.n_c, task.L, task.K, d, lam)
    W, U = theory.type2_weights(task.latents, task.s_c, theory.equiangular(task.n_c, d, mean_zero=True), c)
    assert c > 0
    assert gradient(true_risk(task, lam, normalize=True), W, U).abs().max() < 1e-11


def searched(task, d, lam, normalize=False):
    return multistart(true_risk(task, lam, normalize), [(task.n_w, d), (task.K, task.L, d)], starts=20, seed=1)


@pytest.mark.parametrize("frequencies", ["uniform", "zipf"])
def test_no_start_ends_below_type_II_and_minimisers_are_type_II(frequencies):
    task, d, lam = sentence_task(3, 6, 2, frequencies=frequencies), 5, 0.02
    tau, c = theory.type2(3, 2, 9, d, lam)
    lowest, found = theory.type2_risk(tau, 3, 2, 9, d, lam), searched(task, d, lam, normalize=True)
    reached = found.values < lowest + 1e-9
    assert found.values.min() > lowest - 1e-10 and reached.sum() >= 5
    for W, U in zip(*(part[reached] for part in found.parameters), strict=True):
        assert theory.collapse_deviation(layer_norm(W), U, task.latents, c, torch.full((2,), d**0.5)) < 1e-5


def test_constants_survive_a_number_of_latent_variables_beyond_floating_point():
    tau, c, c_prime = theory.type1(3, 1200, 2000, 1000, 1e-5)
    assert 0 < tau < np.inf and c > 0 and c_prime > 0
    assert theory.type2(3, 2000, 1000, 100, 1e-5)[0] > 0


# --- Theorem 2 ---


@quick
@given(tasks("any"), st.floats(1e-4, 0.999), st.integers(0, 2))
def test_type_III_solves_the_system_is_critical_ordered_and_certified(task, factor, extra):
    mu, n_c, L = task.frequencies, task.n_c, task.L
    lam = factor * threshold_by_hand(task)
    c, r = theory.type3(mu, n_c, L, lam)
    left = lam / L * r / c * (n_c - 1 + torch.exp(n_c / (n_c - 1) * c * r))
    assert (left / mu - 1).abs().max() < 1e-11
    assert abs((r / c).square().sum().item() / (L * n_c ** (L - 1)) - 1) < 1e-11
    assert (r[mu.argsort()].diff() >= -1e-12).all()
    W, U = theory.type3_weights(task.latents, theory.equiangular(n_c, n_c - 1 + extra), c, r)
    size = lam * torch.cat([W.flatten(), U.flatten()]).norm()
    assert gradient(true_risk(task, lam), W, U).norm() < 1e-9 * size
    x, y, p = task.enumerate()
    assert certificates.dual_certificate(W, U, x, y, p) == pytest.approx(lam, rel=1e-9)
    assert abs(certificates.optimality_gap(W, U, x, y, lam, p)) < 1e-10


@quick
@given(tasks("any"), st.floats(1.0001, 10.0))
def test_zero_is_optimal_from_the_operator_norm_of_its_gradient_on_where_the_system_is_refused(task, factor):
    lam = factor * threshold_by_hand(task)
    with pytest.raises(ValueError, match=r"lam = .* condition \(9\)"):
        theory.type3(task.frequencies, task.n_c, task.L, lam)
    threshold = theory.type3_threshold(task.frequencies, task.n_c, task.L)
    assert factor * threshold == pytest.approx(lam, rel=1e-11)
    W, U = torch.zeros(task.n_w, 2, dtype=torch.float64), torch.zeros(task.K, task.L, 2, dtype=torch.float64)
    x, y, p = task.enumerate()
    assert abs(certificates.optimality_gap(W, U, x, y, lam, p)) < 1e-12


@pytest.mark.parametrize("share, factor", [(0.8, 0.1), (0.8, 0.7), (0.8, 1.5), (0.5, 0.1)])
def test_no_start_ends_below_type_III_which_is_type_I_at_equal_frequencies(share, factor):
    task = sentence_task(3, 6, 2, frequencies=torch.tensor([share, 1 - share], dtype=torch.float64))
    lam = factor * threshold_by_hand(task)
    c, r = theory.type3(task.frequencies, 3, 2, lam) if factor < 1 else (0.0, torch.zeros(2, dtype=torch.float64))
    lowest = true_risk(task, lam)(*theory.type3_weights(task.latents, theory.equiangular(3, 2), c, r))
    found = searched(task, 2, lam)
    assert (found.values - lowest).abs().max() < 1e-10
    for W, U in zip(*found.parameters, strict=True):
        assert theory.collapse_deviation(W, U, task.latents, c, r) < 1e-5
    assert np.isnan(theory.collapse_deviation(W, U * torch.nan, task.latents, c, r))


def test_type_III_at_400_words_per_concept_and_sentences_of_15():
    mu = zipf_frequencies(400)
    for lam in (1e-9, 5e-5, 1.15e-4):
        c, r = theory.type3(mu, 3, 15, lam)
        assert (lam / 15 * r / c * (2 + torch.exp(1.5 * c * r)) / mu - 1).abs().max() < 1e-10
        assert abs((r / c).square().sum().item() / (15 * 3**14) - 1) < 1e-10
    with pytest.raises(ValueError, match="lam"):  # within rounding of the threshold
        theory.type3(mu, 3, 15, np.nextafter(theory.type3_threshold(mu, 3, 15), 0))


# --- certificates ---


@quick
@given(tasks("any"), st.integers(0, 10**6), st.floats(0.005, 0.3))
def test_the_gap_bounds_the_distance_to_the_minimum_from_any_weights(task, seed, lam):
    rng = np.random.default_rng(seed)
    W, U = (torch.from_numpy(rng.standard_normal(s)) for s in [(task.n_w, 3), (task.K, task.L, 3)])
    x, y, p = task.enumerate()
    here = true_risk(task, lam)(W, U).item()
    best = here - certificates.optimality_gap(W, U, x, y, lam, p)
    if lam < threshold_by_hand(task) * (1 - 1e-12):  # at the threshold itself, rounding decides on which side it is
        c, r = theory.type3(task.frequencies, task.n_c, task.L, lam)
        W, U = theory.type3_weights(task.latents, theory.equiangular(task.n_c, task.n_c), c, r)
        assert best <= true_risk(task, lam)(W, U).item() + 1e-12
    assert best <= here and best <= np.log(task.K) + 1e-12


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("N", [7, 9000])
def test_the_spectrum_is_that_of_the_slopes_of_f(weighted, N):
    """For few sentences, and for more than are scored at a time."""
    rng = np.random.default_rng(4)
    n_w, K, L = 5, 3, 2  # word 4 never occurs, words repeat within a sentence
    W, U = (torch.from_numpy(rng.standard_normal(size)) for size in [(n_w, 4), (K, L, 4)])
    x, y = torch.from_numpy(rng.integers(4, size=(N, L))), torch.from_numpy(rng.integers(K, size=N))
    x[0] = 2
    p = torch.from_numpy(rng.uniform(0.1, 3, N)) if weighted else None
    slopes = slopes_by_hand(W @ U.flatten(0, 1).T, x, y, torch.ones(N).double() if p is None else p, K)
    found = certificates.risk_gradient_spectrum(W, U, x, y, p)
    torch.testing.assert_close(found, torch.linalg.svdvals(slopes), rtol=0, atol=1e-12)
    assert certificates.dual_certificate(W, U, x, y, p) == pytest.approx(found.max().item(), abs=1e-12)


# --- the mean field ---


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(1, 5), st.integers(2, 8), st.floats(0.05, 0.95), st.floats(1e-3, 3e-2))
def test_mean_field_is_type_I_at_equal_frequencies(n_c, s_c, L, fraction, lam):
    K = max(2, int(fraction * n_c**L))
    _, c, c_prime = theory.type1(n_c, n_c * s_c, L, K, lam)
    c_mean, r_mean = theory.mean_field_type3(uniform_frequencies(s_c), n_c, L, K, lam)
    assert c_mean == pytest.approx(c_prime, rel=1e-7, abs=1e-4)
    assert (r_mean - c).abs().max() < 1e-4 or (r_mean / c - 1).abs().max() < 1e-7


@quick
@given(tasks("any", largest=100), st.one_of(st.floats(0.1, 0.9), st.just(1.0)), st.floats(1e-3, 1e-2))
def test_the_mean_field_is_where_its_risk_summed_over_all_words_is_stationary(task, used, lam):
    """`used`: the share of the latent variables that are a class."""
    mu, n_c, s_c, L = task.frequencies, task.n_c, task.s_c, task.L
    kappa = max(2, int(used * n_c**L)) / n_c**L
    words = torch.cartesian_prod(*[torch.arange(s_c)] * L).view(-1, L)

    def risk(c, r):
        factors = (1 + (n_c - 1) * torch.exp(-n_c / (n_c - 1) * c * r))[words].prod(1)
        data = mu[words].prod(1) @ torch.log(1 - kappa + kappa * factors)
        return data + lam / 2 * (n_c * r.square().sum() + kappa * n_c**L * L * c**2)

    c, r = theory.mean_field_type3(mu, n_c, L, round(kappa * n_c**L), lam)
    slopes = torch.func.grad(risk, (0, 1))(torch.tensor(c, dtype=torch.float64), r)
    assert c > 0 and max(part.abs().max() for part in slopes) < 1e-9


def test_mean_field_of_a_hundred_words_per_concept_at_the_papers_other_sizes():
    c, r = theory.mean_field_type3(zipf_frequencies(100), 3, 15, 1000, 0.001)
    # W and U are balanced at any critical point
    assert 3 * (r @ r).item() == pytest.approx(1000 * 15 * c**2, rel=1e-9)
    assert (r.diff() < 0).all() and r[-1] > 0
