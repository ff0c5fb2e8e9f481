"""L-BFGS and fits of sentences against what they are to find."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.data.sentences import sentence_task
from lib.models.sentences import empirical_risk, true_risk
from lib.search.sentence_minimisers import fit_sentences, lbfgs, minimise_true_risk
from lib.theory.certificates import optimality_gap

quick = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def quadratic(seed):
    """A strictly convex quadratic of a vector and a matrix that depend on each other, its matrices, and a start."""
    root, b = normal(seed, 6, 6), normal(seed + 1, 6)
    A = root @ root.T / 6 + torch.eye(6, dtype=torch.float64)

    def loss(v, M):
        z = torch.cat([v, M.flatten()])
        return 0.5 * z @ A @ z - b @ z

    return loss, A, b, [normal(seed + 2, 2), normal(seed + 3, 2, 2)]


# L-BFGS ---------------------------------------------------------------------------------------------------------------


def rosenbrock(z):
    return (100 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2).sum()


@quick
@given(seeds, st.integers(1, 200), st.floats(-10, 0))
def test_lbfgs_keeps_to_its_budget_and_tells_of_every_evaluation_and_of_the_point_it_ends_at(seed, budget, exponent):
    """A line search may end at an earlier point than the last it looked at."""
    z, values, tolerance = 2 * normal(seed, 6), [], 10**exponent

    def loss(z):
        value = rosenbrock(z)
        values.append(value.item())
        return value

    record = lbfgs(loss, [z], tolerance, budget)
    assert record.values == values
    assert len(record.seconds) == len(values) and record.seconds == sorted(record.seconds)
    assert len(values) < budget + 30  # the round of 25 under way is finished
    here = z.clone().requires_grad_()
    value = rosenbrock(here)
    gradient = torch.autograd.grad(value, here)[0].norm().item()
    assert record.gradient_norm == pytest.approx(gradient, rel=1e-9, abs=1e-15)
    assert record.value == pytest.approx(value.item(), rel=1e-12, abs=1e-20)
    assert record.converged == (gradient < tolerance)
    assert record.converged or len(values) >= budget or gradient < 1e-6  # or rounding is reached


@quick
@given(seeds)
def test_lbfgs_asked_for_more_than_rounding_allows_stops_long_before_its_budget(seed):
    loss, A, b, parameters = quadratic(seed)
    record = lbfgs(loss, parameters, tolerance=1e-30, max_evaluations=10_000)
    assert len(record.values) < 300 and not record.converged
    found = torch.cat([parameter.flatten() for parameter in parameters])
    torch.testing.assert_close(found, torch.linalg.solve(A, b), atol=1e-6, rtol=0)
    assert not any(parameter.requires_grad for parameter in parameters)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_lbfgs_does_not_go_on_with_a_loss_that_is_not_finite(value):
    with pytest.raises(FloatingPointError, match=f"{value} after 1 evaluation"):
        lbfgs(lambda z: (z * value).sum(), [torch.ones(2)])


@pytest.mark.parametrize("wrong", [0.0, -1e-5, float("nan")])
def test_tolerance_and_weight_decay_are_positive(wrong):
    with pytest.raises(ValueError, match="tolerance"):
        lbfgs(lambda z: z.square().sum(), [torch.ones(2)], tolerance=wrong)
    with pytest.raises(ValueError, match="lam"):
        fit_sentences(*small_problem(), 12, 5, lam=wrong)


# Rows of which only the direction counts ------------------------------------------------------------------------------


@quick
@given(seeds, st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_the_criterion_is_the_gradient_in_the_direction_of_the_row(seed, exponents):
    A = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    V = normal(seed, 3, 4) * 10 ** torch.tensor(exponents, dtype=torch.float64)[:, None]

    def energy(V):
        directions = V / V.norm(dim=1, keepdim=True)
        return ((directions @ A) * directions).sum()

    record = lbfgs(energy, [V], 1e-3, max_evaluations=20, scale_invariant=[0])
    directions = V / V.norm(dim=1, keepdim=True)
    gradient = 2 * directions @ A
    on_the_sphere = gradient - (gradient * directions).sum(1, keepdim=True) * directions
    assert record.gradient_norm == pytest.approx(on_the_sphere.norm().item(), rel=1e-6, abs=1e-12)


# Whole fits -----------------------------------------------------------------------------------------------------------


def small_problem():
    task = sentence_task(3, 12, 3, K=7, frequencies="zipf", seed=3)
    return task.sample(4, seed=0)


def gradients(fit, x, y, lam):
    W, U = fit.W.double().requires_grad_(), fit.U.double().requires_grad_()
    risk = empirical_risk(W, U, x, y, lam, fit.normalize)
    return risk.item(), *torch.autograd.grad(risk, (W, U))


@pytest.mark.parametrize("lam", [0.003, 0.02])
def test_a_fit_of_h_is_certified_as_a_global_minimiser(lam):
    x, y = small_problem()
    fit = fit_sentences(x, y, 12, 10, lam)
    value, in_W, in_U = gradients(fit, x, y, lam)
    assert fit.record.converged and fit.record.value == pytest.approx(value, rel=1e-5)
    assert sqrt(in_W.square().sum() + in_U.square().sum()) < 5e-5
    assert 0 <= optimality_gap(fit.W.double(), fit.U.double(), x, y, lam) < 1e-3 * value


def test_a_fit_of_h_star_ends_where_no_direction_and_no_linear_weight_wants_to_move():
    x, y = small_problem()
    tolerance = 1e-4  # what float32 resolves of this risk is half of that
    fit = fit_sentences(x, y, 12, 10, 0.01, normalize=True, tolerance=tolerance)
    value, in_W, in_U = gradients(fit, x, y, 0.01)
    in_directions = in_W * fit.W.double().norm(dim=1, keepdim=True)
    assert fit.record.converged and fit.record.value == pytest.approx(value, rel=1e-5)
    assert sqrt(in_directions.square().sum() + in_U.square().sum()) < tolerance


@pytest.mark.parametrize("normalize", [False, True])
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(normalize):
    x, y = small_problem()
    first, again, other = (fit_sentences(x, y, 12, 5, 0.01, normalize, seed=seed, tolerance=1e-3) for seed in (1, 1, 2))
    assert torch.equal(first.W, again.W) and first.record.values == again.record.values
    assert not torch.equal(first.W, other.W)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_fit_started_with_that_of_a_part_of_the_sentences_ends_where_one_from_a_random_start_does(normalize):
    x, y = small_problem()
    settings = {"n_w": 12, "d": 6, "lam": 0.01, "normalize": normalize, "tolerance": 1e-5}
    part = fit_sentences(x[::2], y[::2], **settings)
    before = part.W.clone()
    warm = fit_sentences(x, y, **settings, start=(part.W, part.U))
    cold = fit_sentences(x, y, **settings)
    assert torch.equal(part.W, before) and not torch.equal(warm.W, before)
    assert warm.record.value == pytest.approx(cold.record.value, abs=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_ends_of_a_search_have_the_true_risk_that_is_stated_and_no_slope(normalize):
    task = sentence_task(n_c=3, n_w=6, L=1, frequencies=torch.tensor([0.75, 0.25]))
    found = minimise_true_risk(task, 3, 0.01, starts=3, seed=0, normalize=normalize)
    risk = true_risk(task, 0.01, normalize)
    for value, W, U in zip(found.values, *found.parameters, strict=True):
        assert risk(W, U).item() == pytest.approx(value.item())
        for slope in torch.func.grad(risk, (0, 1))(W, U):
            assert slope.abs().max() < 1e-6
