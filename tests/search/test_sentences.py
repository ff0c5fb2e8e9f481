"""The optimisers against what they are to find, and their steps against plain ones."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_card import Waits, recording
from scipy import stats

from lib.data.sentences import sentence_task
from lib.models import sentences as models_sentences
from lib.models.sentences import empirical_risk
from lib.search import sentences as search_sentences
from lib.theory.certificates import optimality_gap
from lib.training import sentences as descent_sentences

quick = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def quadratic(seed, n=6):
    """A strictly convex quadratic of a vector and a matrix that depend on each other, and its minimiser."""
    root, b = normal(seed, n, n), normal(seed + 1, n)
    A = root @ root.T / n + torch.eye(n, dtype=torch.float64)

    def loss(v, M):
        z = torch.cat([v, M.flatten()])
        return 0.5 * z @ A @ z - b @ z

    return loss, A, b, [normal(seed + 2, 2), normal(seed + 3, 2, (n - 2) // 2)]


def flat(parameters):
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


# L-BFGS ---------------------------------------------------------------------------------------------------------------


@quick
@given(seeds)
def test_lbfgs_finds_the_minimiser_of_a_quadratic(seed):
    loss, A, b, parameters = quadratic(seed)
    record = search_sentences.lbfgs(loss, parameters, tolerance=1e-6)
    expected = torch.linalg.solve(A, b)
    assert record.converged
    torch.testing.assert_close(flat(parameters), expected, atol=1e-6, rtol=0)
    assert record.value == pytest.approx(-0.5 * (b @ expected).item(), rel=1e-9)


@quick
@given(seeds, st.floats(-6, 0))
def test_lbfgs_stops_where_the_gradient_is_below_the_tolerance(seed, exponent):
    loss, A, b, parameters = quadratic(seed)
    record = search_sentences.lbfgs(loss, parameters, tolerance=10**exponent)
    gradient = (A @ flat(parameters) - b).norm().item()
    assert record.converged and record.gradient_norm < 10**exponent
    assert record.gradient_norm == pytest.approx(gradient, rel=1e-6, abs=1e-13)


def rosenbrock(z):
    return (100 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2).sum()


@quick
@given(seeds, st.integers(1, 120))
def test_value_and_gradient_norm_are_those_of_the_weights_it_ends_with(seed, budget):
    """A line search may end at an earlier point than the last it looked at."""
    z = 2 * normal(seed, 6)
    record = search_sentences.lbfgs(rosenbrock, [z], tolerance=1e-8, max_evaluations=budget)
    here = z.clone().requires_grad_()
    value = rosenbrock(here)
    (gradient,) = torch.autograd.grad(value, here)
    assert record.gradient_norm == pytest.approx(gradient.norm().item(), rel=1e-9, abs=1e-15)
    assert record.converged == (gradient.norm().item() < 1e-8)
    assert record.value == pytest.approx(value.item(), rel=1e-12, abs=1e-20)


@quick
@given(seeds, st.integers(1, 200))
def test_lbfgs_counts_every_evaluation_and_keeps_to_its_budget(seed, budget):
    values, calls = [], []

    def loss(z):
        value = rosenbrock(z)
        values.append(value.item())
        return value

    record = search_sentences.lbfgs(loss, [2 * normal(seed, 6)], 1e-14, budget, callback=calls.append)
    assert record.values == values
    assert calls == list(range(1, len(values) + 1))
    assert len(record.seconds) == len(values) and record.seconds == sorted(record.seconds)
    assert len(values) < budget + 30  # the round of 25 under way is finished
    assert record.converged or len(values) >= budget or record.gradient_norm < 1e-6  # or rounding is reached


@quick
@given(seeds)
def test_lbfgs_asked_for_more_than_rounding_allows_stops_long_before_its_budget(seed):
    loss, A, b, parameters = quadratic(seed)
    record = search_sentences.lbfgs(loss, parameters, tolerance=1e-30, max_evaluations=10_000)
    assert len(record.values) < 300 and not record.converged
    torch.testing.assert_close(flat(parameters), torch.linalg.solve(A, b), atol=1e-6, rtol=0)


def test_lbfgs_works_in_place_and_leaves_plain_tensors():
    loss, _, _, parameters = quadratic(0)
    before, addresses = flat(parameters), [parameter.data_ptr() for parameter in parameters]
    search_sentences.lbfgs(loss, parameters)
    assert addresses == [parameter.data_ptr() for parameter in parameters]
    assert not torch.equal(before, flat(parameters))
    assert not any(parameter.requires_grad for parameter in parameters)


def test_lbfgs_at_the_minimum_evaluates_and_stays():
    z = torch.zeros(3, dtype=torch.float64)
    record = search_sentences.lbfgs(lambda z: z.square().sum(), [z])
    assert record.converged and record.gradient_norm == 0 and not z.any() and len(record.values) <= 2


@pytest.mark.parametrize("tolerance", [0.0, -1e-5, float("nan")])
def test_lbfgs_asks_for_a_positive_tolerance(tolerance):
    with pytest.raises(ValueError, match=f"tolerance is {tolerance}"):
        search_sentences.lbfgs(lambda z: z.square().sum(), [torch.ones(2)], tolerance=tolerance)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_lbfgs_does_not_go_on_with_a_loss_that_is_not_finite(value):
    with pytest.raises(FloatingPointError, match=f"{value} after 1 evaluation"):
        search_sentences.lbfgs(lambda z: (z * value).sum(), [torch.ones(2)])


# Rows of which only the direction counts ------------------------------------------------------------------------------


def energy_of_directions(A):
    """A loss of the directions of rows, minimal where each is an eigenvector of the smallest eigenvalue of A."""

    def loss(V):
        directions = V / V.norm(dim=1, keepdim=True)
        return ((directions @ A) * directions).sum()

    return loss


@quick
@given(seeds, st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_the_criterion_is_the_gradient_in_the_direction_of_the_row(seed, exponents):
    A = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    V = normal(seed, 3, 4) * 10 ** torch.tensor(exponents, dtype=torch.float64)[:, None]
    record = search_sentences.lbfgs(energy_of_directions(A), [V], 1e-3, max_evaluations=20, scale_invariant=[0])
    squares = 0.0
    for row in V.numpy():
        v = row / np.linalg.norm(row)
        gradient = 2 * A.numpy() @ v
        squares += ((gradient - (gradient @ v) * v) ** 2).sum()  # on the sphere
    assert record.gradient_norm == pytest.approx(sqrt(squares), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("length", [1e-2, 1.0, 1e2])
def test_rows_of_any_length_are_taken_to_their_minimum(length):
    A = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    V = length * normal(0, 3, 4)
    record = search_sentences.lbfgs(energy_of_directions(A), [V], tolerance=1e-5, max_evaluations=1000, scale_invariant=[0])
    assert record.converged and record.value == pytest.approx(3.0, abs=1e-9)


def test_without_the_criterion_long_rows_pass_for_critical():
    A = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    start = 1e9 * normal(0, 3, 4)
    naive, careful = (
        search_sentences.lbfgs(energy_of_directions(A), [start.clone()], 1e-5, 1, scale_invariant=invariant)
        for invariant in ([], [0])
    )
    assert naive.converged and naive.value > 3.1
    assert not careful.converged or careful.value == pytest.approx(3.0, abs=1e-9)


# Gradient descent -----------------------------------------------------------------------------------------------------


@quick
@given(seeds, st.floats(1e-4, 0.05))
def test_gradient_descent_takes_the_steps_of_the_formula(seed, learning_rate):
    loss, A, b, parameters = quadratic(seed)
    z, A, b, path, steps = flat(parameters).numpy(), A.numpy(), b.numpy(), [], []
    addresses = [parameter.data_ptr() for parameter in parameters]

    def callback(step):
        steps.append(step)
        path.append(flat(parameters).numpy())

    descent_sentences.gradient_descent(loss, parameters, learning_rate, 5, callback)
    assert steps == [1, 2, 3, 4, 5] and addresses == [parameter.data_ptr() for parameter in parameters]
    for found in path:
        z = z - learning_rate * (A @ z - b)
        np.testing.assert_allclose(found, z, atol=1e-10 * max(1, np.abs(z).max()))


def test_gradient_descent_moves_all_parameters_from_the_same_point():
    p, q = torch.tensor([2.0]), torch.tensor([3.0])
    descent_sentences.gradient_descent(lambda p, q: (p * q).sum(), [p, q], 0.5, 1)
    assert p.item() == 2 - 0.5 * 3 and q.item() == 3 - 0.5 * 2


# SGD ------------------------------------------------------------------------------------------------------------------


def plain_sgd(W, U, x, y, lam, learning_rate, batch_size, steps, generator, normalize):
    """Weights after each step of `torch.optim.SGD`, with its weight decay, on autograd's gradients of the data term."""
    W, U = W.clone().requires_grad_(), U.clone().requires_grad_()
    groups = [{"params": [U], "weight_decay": lam}, {"params": [W], "weight_decay": 0.0 if normalize else lam}]
    optimiser, path = torch.optim.SGD(groups, lr=learning_rate), []
    while True:
        for batch in torch.randperm(len(x), generator=generator).split(batch_size):
            optimiser.zero_grad()
            empirical_risk(W, U, x[batch], y[batch], 0.0, normalize).backward()
            optimiser.step()
            path.append((W.detach().clone(), U.detach().clone()))
            if len(path) == steps:
                return path


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("lam", [0.0, 0.05])
@pytest.mark.parametrize("n_spl, batch_size", [(3, 4), (2, 7), (3, 100)])
def test_sgd_is_plain_sgd(normalize, lam, n_spl, batch_size):
    """Three epochs; 15 or 10 sentences, so that the last batch of an epoch is incomplete; words repeat in a batch."""
    task = sentence_task(2, 6, 3, K=5, frequencies="zipf", seed=1)
    x, y = task.sample(n_spl, seed=2)
    W, U = normal(3, 6, 4), normal(4, 5, 3, 4)
    steps = 3 * -(-len(x) // batch_size)
    path = plain_sgd(W, U, x, y, lam, 0.3, batch_size, steps, torch.Generator().manual_seed(5), normalize)
    found, numbers = [], []

    def callback(step):
        numbers.append(step)
        found.append((W.clone(), U.clone()))

    arguments = (lam, 0.3, batch_size, steps, torch.Generator().manual_seed(5), normalize, callback)
    assert descent_sentences.sentence_sgd(W, U, x, y, *arguments) is None
    assert numbers == list(range(1, steps + 1))
    for after, expected in zip(found, path, strict=True):
        torch.testing.assert_close(after, expected, atol=1e-10, rtol=0)


@quick
@given(seeds, st.integers(1, 9), st.booleans())
def test_sgd_with_any_batch_size_is_plain_sgd(seed, batch_size, normalize):
    x, y = sentence_task(3, 6, 2, K=4, seed=seed).sample(2, seed)
    W, U = normal(seed, 6, 3), normal(seed + 1, 4, 2, 3)
    path = plain_sgd(W, U, x, y, 0.1, 0.1, batch_size, 12, torch.Generator().manual_seed(seed), normalize)
    descent_sentences.sentence_sgd(W, U, x, y, 0.1, 0.1, batch_size, 12, torch.Generator().manual_seed(seed), normalize)
    torch.testing.assert_close((W, U), path[-1], atol=1e-10, rtol=0)


def sgd_of_a_gpu(W, U, x, y, lam, learning_rate, batch_size, steps, generator, normalize, callback=None, every=1):
    """What :func:`sentence_sgd` does on a GPU, here on a processor."""
    with torch.no_grad():
        descent_sentences._sgd_in_place(
            W, U, x, y, lam, learning_rate, batch_size, steps, generator, normalize, callback, every, unroll=4
        )


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("lam", [0.0, 0.05])
@pytest.mark.parametrize("n_spl, batch_size", [(3, 4), (2, 7), (3, 1), (2, 5), (3, 100)])
def test_sgd_of_a_gpu_is_plain_sgd(normalize, lam, n_spl, batch_size, monkeypatch):
    """Five epochs, orders drawn for two at a time; words repeat in a batch, and the last batch may be incomplete."""
    monkeypatch.setattr(descent_sentences, "_DRAWN", 2 * 5 * n_spl)
    x, y = sentence_task(2, 6, 3, K=5, frequencies="zipf", seed=1).sample(n_spl, seed=2)
    assert max(len(row) - len(row.unique()) for row in x) > 0
    W, U = normal(3, 6, 4), normal(4, 5, 3, 4)
    steps, found = 5 * -(-len(x) // batch_size) - 1, []
    orders = [torch.Generator().manual_seed(5) for _ in range(2)]
    path = plain_sgd(W, U, x, y, lam, 0.3, batch_size, steps, orders[0], normalize)
    sgd_of_a_gpu(
        W, U, x, y, lam, 0.3, batch_size, steps, orders[1], normalize, lambda step: found.append((W.clone(), U.clone()))
    )
    for after, expected in zip(found, path, strict=True):
        torch.testing.assert_close(after, expected, atol=1e-10, rtol=0)
    assert torch.equal(*(order.get_state() for order in orders)), "as many numbers are drawn as orders are used"


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 15])
@pytest.mark.parametrize("every", [1, 5, 8, 40])
def test_recorded_sgd_takes_the_same_steps(normalize, batch_size, every):
    """To the last bit, with no wait in a step; what happens between recordings, too, is where it belongs."""
    x, y = sentence_task(2, 6, 3, K=5, frequencies="zipf", seed=1).sample(3, seed=2)
    ends, seen = [], []

    def run():
        W, U, numbers = normal(3, 6, 4), normal(4, 5, 3, 4), []
        order = torch.Generator().manual_seed(5)
        sgd_of_a_gpu(W, U, x, y, 0.05, 0.3, batch_size, 77, order, normalize, numbers.append, every)
        ends.append((W, U)), seen.append(numbers)

    run()
    with recording(descent_sentences) as card:
        run()
    assert torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])
    assert seen[0] == seen[1] == list(range(every, 78, every))
    assert card.recordings == (every >= 6 and 15 // batch_size >= 6)


def test_sgd_that_nobody_looks_at_is_recorded():
    x, y = sentence_task(2, 6, 3, K=5, frequencies="zipf", seed=1).sample(3, seed=2)
    W, U = normal(3, 6, 4), normal(4, 5, 3, 4)
    with recording(descent_sentences) as card:
        sgd_of_a_gpu(W, U, x, y, 0.05, 0.3, 1, 30, torch.Generator().manual_seed(5), False)
    assert card.recordings == 1


@pytest.mark.parametrize("normalize", [False, True])
def test_sgd_of_a_gpu_waits_for_orders_only(normalize):
    x, y = sentence_task(2, 6, 3, K=5, seed=1).sample(3, seed=2)
    waits = []
    for steps in (20, 200):
        W, U = normal(3, 6, 4), normal(4, 5, 3, 4)
        with Waits() as noted:
            sgd_of_a_gpu(W, U, x, y, 0.05, 0.3, 4, steps, torch.Generator().manual_seed(5), normalize)
        waits.append(noted.found)
    assert waits[0] == waits[1] == []


def test_in_single_precision_sgd_of_a_gpu_stays_close():
    x, y = sentence_task(3, 12, 3, K=7, frequencies="zipf", seed=3).sample(4, seed=0)
    ends = []
    for sgd in (descent_sentences.sentence_sgd, sgd_of_a_gpu):
        W, U = models_sentences.initial_weights(12, 7, 3, 5, seed=0, scale=1.0)
        sgd(W, U, x, y, 1e-3, 0.1, 5, 200, torch.Generator().manual_seed(1), True)
        ends.append((W, U))
    torch.testing.assert_close(*ends, atol=2e-5, rtol=0)


@pytest.mark.parametrize("every", [1, 3, 7, 50])
def test_the_callback_comes_after_each_so_many_steps(every):
    x, y = sentence_task(2, 4, 2, K=3, seed=0).sample(3, 0)
    W, U, seen = normal(0, 4, 3), normal(1, 3, 2, 3), []
    order = torch.Generator().manual_seed(3)
    descent_sentences.sentence_sgd(W, U, x, y, 0.1, 0.1, 2, 21, order, callback=seen.append, every=every)
    assert seen == list(range(every, 22, every))


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"every": 0}])
def test_batches_and_looks_have_a_size(wrong):
    x, y = sentence_task(2, 4, 2, K=3, seed=0).sample(3, 0)
    arguments = {"lam": 0.1, "learning_rate": 0.1, "batch_size": 2, "steps": 3, "generator": torch.Generator()}
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} = 0"):
        descent_sentences.sentence_sgd(normal(0, 4, 3), normal(1, 3, 2, 3), x, y, **(arguments | wrong))


def test_sgd_of_h_star_turns_embeddings_without_shortening_them():
    """Gradients are orthogonal to embeddings whose length does not count, so that steps can only lengthen them."""
    x, y = sentence_task(3, 12, 3, K=6, seed=0).sample(2, 0)
    W, U = normal(0, 12, 5), normal(1, 6, 3, 5)
    unseen = ~torch.isin(torch.arange(12), x)
    before = W.clone()
    descent_sentences.sentence_sgd(W, U, x, y, 0.5, 0.1, 4, 9, torch.Generator().manual_seed(0), normalize=True)
    assert (W.norm(dim=1) >= before.norm(dim=1) - 1e-12).all() and not torch.equal(W, before)
    assert torch.equal(W[unseen], before[unseen])


def test_sgd_reads_its_generator_only():
    x, y = sentence_task(2, 4, 2, K=3, seed=0).sample(3, 0)
    ends = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        W, U = normal(0, 4, 3), normal(1, 3, 2, 3)
        descent_sentences.sentence_sgd(W, U, x, y, 0.1, 0.1, 2, 7, torch.Generator().manual_seed(3))
        assert torch.equal(before, torch.get_rng_state())
        ends.append(W)
    assert torch.equal(*ends)


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
    fit = search_sentences.fit_sentences(x, y, 12, 10, lam)
    value, in_W, in_U = gradients(fit, x, y, lam)
    assert fit.record.converged and fit.record.value == pytest.approx(value, rel=1e-5)
    assert sqrt(in_W.square().sum() + in_U.square().sum()) < 5e-5
    assert 0 <= optimality_gap(fit.W.double(), fit.U.double(), x, y, lam) < 1e-3 * value


def test_a_fit_of_h_star_ends_where_no_direction_and_no_linear_weight_wants_to_move():
    x, y = small_problem()
    tolerance = 1e-4  # what float32 resolves of this risk is half of that
    fit = search_sentences.fit_sentences(x, y, 12, 10, 0.01, normalize=True, tolerance=tolerance)
    value, in_W, in_U = gradients(fit, x, y, 0.01)
    in_directions = in_W * fit.W.double().norm(dim=1, keepdim=True)
    assert fit.record.converged and fit.record.value == pytest.approx(value, rel=1e-5)
    assert sqrt(in_directions.square().sum() + in_U.square().sum()) < tolerance


def test_words_that_never_occur_decay_to_nothing_in_h():
    x, y = small_problem()
    fit = search_sentences.fit_sentences(x, y, 14, 10, 0.01)
    assert fit.W[12:].norm() < 5e-3 * fit.W.norm()


@pytest.mark.parametrize("normalize", [False, True])
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(normalize):
    x, y = small_problem()
    first, again, other = (
        search_sentences.fit_sentences(x, y, 12, 5, 0.01, normalize, seed=seed, max_evaluations=60) for seed in (1, 1, 2)
    )
    assert torch.equal(first.W, again.W) and torch.equal(first.U, again.U)
    assert first.record.values == again.record.values
    assert not torch.equal(first.W, other.W)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_fit_started_with_that_of_a_part_of_the_sentences_ends_where_one_from_a_random_start_does(normalize):
    x, y = small_problem()
    settings = {"n_w": 12, "d": 6, "lam": 0.01, "normalize": normalize, "tolerance": 1e-5}
    part = search_sentences.fit_sentences(x[::2], y[::2], **settings)
    before = part.W.clone(), part.U.clone()
    warm = search_sentences.fit_sentences(x, y, **settings, start=(part.W, part.U))
    cold = search_sentences.fit_sentences(x, y, **settings)
    assert torch.equal(part.W, before[0]) and torch.equal(part.U, before[1])
    assert not torch.equal(warm.W, part.W)
    assert warm.record.value == pytest.approx(cold.record.value, abs=1e-6)


def test_a_start_of_another_shape_is_refused():
    x, y = small_problem()
    with pytest.raises(ValueError, match="start has shapes"):
        search_sentences.fit_sentences(x, y, 12, 6, 0.01, start=(torch.ones(12, 5), torch.ones(7, 3, 6)))


def test_the_callback_of_a_fit_sees_the_weights_move():
    x, y = small_problem()
    seen = []
    fit = search_sentences.fit_sentences(x, y, 12, 5, 0.01, callback=lambda n, W, U: seen.append((n, W.clone())))
    assert [n for n, _ in seen] == list(range(1, len(fit.record.values) + 1))
    assert not torch.equal(seen[0][1], seen[-1][1])


@quick
@given(seeds)
def test_features_of_h_star_are_normalised_embeddings_and_those_of_h_are_the_embeddings(seed):
    W, U = normal(seed, 5, 4), normal(seed + 1, 3, 2, 4)
    record = search_sentences.Minimisation()
    assert torch.equal(search_sentences.Fit(W, U, False, record).features, W)
    features = search_sentences.Fit(W, U, True, record).features
    torch.testing.assert_close(features.norm(dim=1), torch.full((5,), 2.0, dtype=torch.float64))
    assert features.sum(1).abs().max() < 1e-12


@pytest.mark.parametrize("lam", [0.0, -0.1, float("nan")])
def test_a_fit_asks_for_weight_decay(lam):
    x, y = small_problem()
    with pytest.raises(ValueError, match=f"lam is {lam}"):
        search_sentences.fit_sentences(x, y, 12, 5, lam)


# Starts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_starts_are_normal_embeddings_and_uniform_linear_weights(scale):
    W, U = models_sentences.initial_weights(200, 20, 5, 50, seed=0, scale=scale)
    assert W.shape == (200, 50) and U.shape == (20, 5, 50) and W.dtype == U.dtype == torch.float32
    width = scale / sqrt(5 * 50)
    assert U.abs().max() <= width and U.max() > 0.99 * width and U.min() < -0.99 * width
    assert stats.kstest(U.flatten() / width, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert stats.kstest(W.flatten() / scale, "norm").pvalue > 1e-3


@quick
@given(st.integers(0, 2**31), st.floats(1e-4, 10))
def test_starts_depend_on_the_seed_and_scale_with_the_scale(seed, scale):
    before = torch.get_rng_state()
    W, U = models_sentences.initial_weights(4, 3, 2, 5, seed, 1.0)
    W_scaled, U_scaled = models_sentences.initial_weights(4, 3, 2, 5, seed, scale)
    assert torch.equal(W_scaled, scale * W) and torch.equal(U_scaled, scale * U)
    assert not torch.equal(W, models_sentences.initial_weights(4, 3, 2, 5, seed + 1, 1.0)[0])
    assert torch.equal(before, torch.get_rng_state())
