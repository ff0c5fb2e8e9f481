"""The memorization-dilation model against its definition, in the feature space."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lib.theory import memorization_dilation as md

quick = settings(max_examples=40, deadline=None)
slow = settings(max_examples=10, deadline=None)


@st.composite
def problems(draw):
    """A problem with a margin of at least 0.2; the weight decays and their ratio are drawn."""
    theta = 1 / (1 + math.exp(draw(st.floats(0.2, 12.0))))
    share = draw(st.floats(0.0, 0.95))  # of theta that is due to label smoothing
    root = theta * (1 - share) / math.sqrt(2)  # sqrt(lam_w lam_h)
    ratio = math.exp(draw(st.floats(-2.0, 2.0)))
    eta = draw(st.floats(0.01, 1.0))
    return md.model(root * ratio, root / ratio, 2 * theta * share, eta, math.exp(draw(st.floats(-3.0, 3.0))))


laws = st.one_of(
    st.builds(md.sphere, st.integers(2, 20)),
    st.builds(md.ball, st.integers(2, 20)),
    st.builds(md.two_point, st.floats(-1.0, 1.0)),
    st.builds(md.three_point, st.floats(1.0, 12.0), st.floats(-1.0, 1.0)),
    st.builds(md.skewed, st.floats(1.0, 12.0)),
)


def loss(problem, W, features, label):
    """The label-smoothing loss (1) of features (n, M), and what their size costs, through torch."""
    y, alpha = torch.full((len(features),), label), float(problem.alpha)
    features = torch.as_tensor(features)
    scores = features @ torch.from_numpy(W).T
    smoothed = torch.nn.functional.cross_entropy(scores, y, label_smoothing=alpha, reduction="none")
    return smoothed + float(problem.lam_h) * features.square().sum(1)


# --- the configuration ---


@slow
@given(problems(), st.integers(2, 5), st.integers(0, 99))
def test_the_configuration_solves_the_layer_peeled_problem_of_assumption_4_2(problem, M, seed):
    alpha, lam_w, lam_h = float(problem.alpha), float(problem.lam_w), float(problem.lam_h)

    def risk(z):
        W = torch.tensor(z[: 2 * M].reshape(2, M), requires_grad=True)
        H = torch.tensor(z[2 * M :].reshape(2, M), requires_grad=True)
        cross = torch.nn.functional.cross_entropy(H @ W.T, torch.arange(2), label_smoothing=alpha, reduction="sum")
        value = cross + lam_w * W.square().sum() + lam_h * H.square().sum()
        value.backward()
        return value.item(), torch.cat([W.grad.flatten(), H.grad.flatten()]).numpy()

    W, H = md.embed(problem, M, seed)
    minimum = risk(np.concatenate([W.ravel(), H.ravel()]))[0]
    rng, bounds = np.random.default_rng(seed), [(None, None)] * 2 * M + [(0, None)] * 2 * M
    size = float(problem.rho) * np.r_[np.full(2 * M, float(problem.alignment)), np.ones(2 * M)]
    starts = [size * rng.uniform(0, 1, 4 * M) for _ in range(6)]
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 20000}
    ends = [minimize(risk, z, jac=True, bounds=bounds, method="L-BFGS-B", options=options).fun for z in starts]
    assert min(ends) == pytest.approx(minimum, abs=1e-7)
    assert min(ends) > minimum - 1e-12


@quick
@given(problems(), st.integers(2, 6), st.integers(0, 99))
def test_the_embedded_configuration_has_the_margin_and_the_lengths_that_it_says(problem, M, seed):
    W, H = md.embed(problem, M, seed)
    assert (H >= 0).all() and abs(H[0] @ H[1]) < 1e-14 * problem.rho**2
    assert np.linalg.norm(H[0] - H[1]) == pytest.approx(float(problem.distance), rel=1e-12)
    assert (W[0] - W[1]) @ H[0] == pytest.approx(float(problem.s), rel=1e-12)
    assert np.allclose(W.sum(0), 0, atol=1e-12 * np.abs(W).max())
    _, unsmoothed = md.embed(md.model(problem.lam_w, problem.lam_h, 0.0, 0.1, 1.0), M, seed)
    gamma = md.norm_ratio(problem.lam_w, problem.lam_h, problem.alpha)
    assert gamma == pytest.approx(np.linalg.norm(unsmoothed) / np.linalg.norm(H), rel=1e-10)


# --- u_1(r), F and r_* ---


@quick
@given(problems(), st.floats(0.0, 1.2), st.integers(2, 5), st.integers(0, 99))
def test_the_corrupted_feature_solves_its_constrained_problem_in_the_whole_space(problem, y, M, seed):
    """The problem is convex: its first-order conditions, in all of R^M_+ and the ball around h_2, are enough."""
    W, H = md.embed(problem, M, seed)
    r = y * problem.r_max
    a, b = md.corrupted_features(problem, r)
    u = torch.from_numpy(a * H[0] + b * H[1]).requires_grad_()
    risk = loss(problem, W, u[None], 0).sum()
    assert md.corrupted_risk(problem, r) == pytest.approx(2 * risk.item(), rel=1e-9, abs=1e-12)
    slope, away = torch.autograd.grad(risk, u)[0].numpy(), a * H[0] + (b - 1) * H[1]
    allowed, length = problem.C_MD * r / (problem.eta * problem.distance), np.linalg.norm(away)
    assert length == pytest.approx(min(allowed, problem.distance), rel=1e-8, abs=1e-12 * problem.rho)
    if y > 0.01:
        assert length <= allowed * (1 + 1e-12)
        free = u.detach().numpy() > 0
        # of the ball, until h_1 is in it
        pull = -slope[free] @ away[free] / (away[free] @ away[free]) if y < 1 else 0.0
        rest, size = slope + pull * away, np.linalg.norm(slope) + 2 * problem.lam_h * problem.rho
        assert pull > -1e-7 * size / length
        assert (rest > -1e-7 * size).all() and np.abs(rest[free]).max() < 1e-7 * size


def test_without_dilation_the_corrupted_feature_is_the_other_mean_and_from_r_max_on_the_clean_one():
    problem = md.model(1e-3, 2e-3, 0.1, 0.2, 1.5)
    a, b = md.corrupted_features(problem, np.array([0.0, 1.0, 1.5, 40.0]) * problem.r_max)
    assert (a.tolist(), b.tolist()) == ([0, 1, 1, 1], [1, 0, 0, 0])


@slow
@given(problems(), st.floats(0.0, 3.0), st.integers(2, 6), st.integers(0, 99), st.booleans())
def test_the_clean_risk_is_the_average_loss_over_the_distribution(problem, size, M, seed, solid):
    W, H = md.embed(problem, M, seed)
    r, rng = size * problem.rho, np.random.default_rng(seed)
    v = rng.standard_normal((100_000, M))
    v *= r / np.linalg.norm(v, axis=1, keepdims=True)
    if solid:
        v *= math.sqrt((M + 2) / M) * rng.uniform(0, 1, (len(v), 1)) ** (1 / M)
    risks = [loss(problem, W, H[n] + v, n).numpy() for n in (0, 1)]
    sampled, spread = sum(x.mean() for x in risks), math.hypot(*(x.std() for x in risks)) / math.sqrt(len(v))
    exact = md.clean_risk(problem, (md.ball if solid else md.sphere)(M), r)
    assert abs(sampled - exact) < 6 * spread + 1e-9


@quick
@given(problems(), st.floats(0.0, 3.0), st.floats(1.0, 6.0), st.floats(-1.0, 1.0))
def test_the_clean_risk_of_finitely_many_points_is_their_average_loss(problem, size, A, cosine):
    W, H = md.embed(problem, 3, 1)
    r = size * problem.rho
    direction = (cosine * (H[1] - H[0]) + math.sqrt(1 - cosine**2) * (H[0] + H[1])) / problem.distance
    points, masses = A * r * np.outer([-1, 0, 1], direction), np.array([0.5, A**2 - 1, 0.5]) / A**2
    exact = sum(masses @ loss(problem, W, H[n] + points, n).numpy() for n in (0, 1))
    assert md.clean_risk(problem, md.three_point(A, cosine), r) == pytest.approx(exact, rel=1e-10)


@quick
@given(laws)
def test_every_law_has_mean_zero_and_no_more_variance_than_its_length_allows(law):
    assert law.weights.sum() == pytest.approx(1, abs=1e-12)
    assert law.nodes @ law.weights == pytest.approx(0, abs=1e-12)
    assert law.nodes**2 @ law.weights <= 1 + 1e-12
    assert np.abs(law.nodes).max() <= law.A + 1e-12


@settings(max_examples=25, deadline=None)
@given(problems(), laws)
def test_no_other_dilation_has_a_lower_risk(problem, law):
    best = md.optimal_dilation(problem, law)

    def risk(r):
        return md.clean_risk(problem, law, r) + problem.eta * md.corrupted_risk(problem, r)

    others = np.concatenate([np.linspace(0, 1.5, 31) * problem.r_max, best * (1 + np.array([-1e-3, 1e-3]))])
    assert 0 < best <= problem.r_max
    assert risk(best) <= risk(others).min() + 1e-10 * problem.s


def test_arrays_of_problems_give_what_one_problem_at_a_time_gives():
    lam, alpha = np.array([1e-4, 1e-3, 1e-2]), np.array([[0.0], [0.3]])
    together = md.model(lam, 2 * lam, alpha, 0.3, 1.1)
    laws = md.three_point(np.array([1.0, 2.0, 3.0]))
    r = md.optimal_dilation(together, laws)
    assert r.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        alone = md.model(lam[j], 2 * lam[j], alpha[i, 0], 0.3, 1.1)
        assert r[i, j] == pytest.approx(float(md.optimal_dilation(alone, md.three_point(j + 1.0))), rel=1e-12)
        np.testing.assert_allclose(md.corrupted_risk(together, r)[i, j], md.corrupted_risk(alone, r[i, j]), rtol=1e-12)


# --- the bounds ---


@quick
@given(problems(), laws)
def test_the_optimal_dilation_obeys_both_lower_bounds(problem, law):
    share = md.optimal_dilation(problem, law) / problem.r_max
    p, reach = float(problem.p), law.A * math.sqrt(problem.eta)
    first, second = p / math.sqrt(2) * max(1, reach), p * max(2 * p, math.sqrt(2) * reach)
    printed = 1 - md.constants(problem, law.A).C_prime * np.sqrt(problem.eta)
    assert share >= 1 - min(first, second) - 1e-12 >= printed - 2e-12
    assert printed == pytest.approx(1 - law.A * float(problem.p), rel=1e-10)


@quick
@given(problems(), laws, st.floats(1e-3, 10.0))
def test_the_corrected_constant_bounds_the_clean_risk_at_every_dilation(problem, law, size):
    r = size * problem.rho
    growth = md.clean_risk(problem, law, r) - md.clean_risk(problem, law, 0.0)
    assert growth <= md.constants(problem, law.A).C2_corrected * r**2 * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize(
    "law, size, constant, attained, rel",
    [(md.two_point(), 1e-3, "C2", 2.0, 1e-4), (md.skewed(1e3), math.sqrt(2) / 1e3, "C2_corrected", 1.0, 1e-3)],
)
def test_the_printed_constant_of_lemma_c5_is_half_of_what_two_points_need_the_corrected_nearly_attained(
    law, size, constant, attained, rel
):
    problem = md.model(1e-3, 1e-3, 0.1, 0.1, 1.0)
    r = size * problem.rho
    growth = md.clean_risk(problem, law, r) - md.clean_risk(problem, law, 0.0)
    assert growth / r**2 == pytest.approx(attained * getattr(md.constants(problem, law.A), constant), rel=rel)


@quick
@given(problems(), st.floats(0.0, 0.9999))
def test_the_corrupted_feature_and_one_half_of_its_risk_obey_the_constants_of_lemmas_c3_and_c4(problem, y):
    r, constants = y * problem.r_max, md.constants(problem, 1.0)
    gap = (problem.r_max - r) / problem.eta
    growth = md.corrupted_risk(problem, r) - md.corrupted_risk(problem, problem.r_max)
    assert growth / 2 >= constants.C1 * gap**2 * (1 - 1e-9) - 1e-11
    a, b = md.corrupted_features(problem, r)
    per_noise = problem.rho * math.hypot(1 - a, b) / gap
    if y >= math.sqrt(0.5):
        assert constants.c * (1 - 1e-8) <= per_noise <= constants.C * (1 + 1e-8)


@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_parameters_for_which_the_features_are_zero_are_refused(alpha):
    edge = (1 - alpha) / (2 * math.sqrt(2))
    assert md.margin(edge * 0.999, edge * 0.999, alpha) > 0
    with pytest.raises(ValueError, match="alpha"):
        md.margin(edge * 1.001, edge * 1.001, alpha)
