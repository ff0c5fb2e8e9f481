"""Batched gradient descent against autograd on every sample."""

import math

import pytest
import torch

from lib.models.unconstrained import labels, objective
from lib.training import unconstrained
from lib.training.unconstrained import Descent, Runs, gradient_descent, random_runs, select, together
from without_gpu import recording

K, N_SPL, D = 3, 12, 5
ORDERED = labels(K, N_SPL)
FIRST = ORDERED * N_SPL  # the first sample of the class of each
UNEQUAL = torch.tensor([0] * 20 + [2] * 9 + [1] * 7)  # classes of different sizes, not in order

#         layers, bias, lam_b, relu
MODELS = {
    "one layer": (1, False, 0.0, False),
    "one layer, relu asked for": (1, False, 0.0, True),
    "free bias": (1, True, 0.0, False),
    "regularised bias": (1, True, 0.03, False),
    "two linear layers": (2, False, 0.0, False),
    "two linear layers, bias": (2, True, 0.01, False),
    "ReLU": (2, False, 0.0, True),
    "ReLU, bias": (2, True, 0.02, True),
    "three layers": (3, False, 0.0, False),
    "three layers, ReLU": (3, False, 0.0, True),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
every_relu = pytest.mark.parametrize("name", ["ReLU", "ReLU, bias", "three layers, ReLU"])
both_orders = pytest.mark.parametrize("y", [ORDERED, UNEQUAL], ids=["equal classes", "unequal classes"])


def start_of(model, seeds=(0, 1, 2), scale=0.5):
    layers, bias, *_ = model
    return random_runs(K, N_SPL, D, layers, seeds, scale, bias)


def parts_of(runs):
    return [runs.H, *runs.Ws, *([] if runs.b is None else [runs.b])]


def decays_of(model):
    return [0.01 * (i + 1) for i in range(model[0])]


def descend(start, model, steps, y=ORDERED, lam_h=0.02, learning_rate=0.1, watch=None, diverged=None, **options):
    _, _, lam_b, relu = model
    descent = Descent(learning_rate, steps, decays_of(model), lam_h, lam_b, relu, **options)
    return gradient_descent(start, y, descent, watch, diverged)


def trajectory(start, model, steps, every, **options):
    seen = {}
    descend(start, model, steps, every=every, watch=seen.__setitem__, **options)
    return seen


def by_autograd(start, model, steps, y=ORDERED, lam_h=0.02, learning_rate=0.1):
    """The definition: parameters minus the learning rate times the gradient of the objective, a sum over runs."""
    layers, bias, lam_b, relu = model
    parts = parts_of(start)
    for _ in range(steps):
        parts = [part.detach().requires_grad_() for part in parts]
        H, Ws, b = parts[0], parts[1 : layers + 1], parts[-1] if bias else None
        value = objective(H, Ws, y, decays_of(model), lam_h, b, lam_b, relu).sum()
        parts = [p - learning_rate * g for p, g in zip(parts, torch.autograd.grad(value, parts), strict=True)]
    parts = [part.detach() for part in parts]
    return Runs(parts[0], parts[1 : layers + 1], parts[-1] if bias else None)


def assert_same(found, expected, atol):
    for ours, theirs in zip(parts_of(found), parts_of(expected), strict=True):
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=0, equal_nan=True)


def collapsed(H):
    """In which runs the samples of each class are equal."""
    return (H[..., FIRST] == H).flatten(1).all(1).tolist()


# Steps ----------------------------------------------------------------------------------------------------------------


@every_model
@both_orders
def test_every_look_shows_runs_that_went_against_the_gradient_of_the_objective(model, y):
    """What was seen may be kept, and the start stays as it is."""
    start = start_of(model)
    before = Runs(start.H.clone(), [W.clone() for W in start.Ws], None if start.b is None else start.b.clone())
    seen = trajectory(start, model, 150, 70, y=y)
    assert_same(seen.pop(0), start, atol=1e-15)
    expected, done = start, 0
    for step, runs in seen.items():
        expected, done = by_autograd(expected, model, step - done, y), step
        assert_same(runs, expected, atol=1e-12)
    assert_same(descend(start, model, 2, y), by_autograd(start, model, 2, y), atol=1e-14)
    assert_same(start, before, atol=0.0)


@every_model
@pytest.mark.parametrize("apart", [True, False], ids=["samples apart", "samples together"])
@pytest.mark.parametrize("per_run", [False, True], ids=["one decay", "a decay for each run"])
def test_the_steps_of_a_gpu_are_those_of_a_processor_recorded_or_not(model, apart, per_run, monkeypatch):
    """Replayed in the same memory, without a wait for the device, to the last bit; between looks that are kept."""
    options = {"lam_h": torch.tensor([0.01, 0.02, 0.05], dtype=torch.float64)} if per_run else {}
    start = start_of(model)
    start = start if apart else start._replace(H=start.H[..., FIRST])
    expected = trajectory(start, model, 107, 45, **options)
    monkeypatch.setattr(unconstrained, "_step_on_processor", unconstrained._step_on_device)
    plain = trajectory(start, model, 107, 45, **options)
    with recording(unconstrained) as card:
        found = trajectory(start, model, 107, 45, **options)
    assert card.recordings == 1 and card.replays == 43 // 20 + 45 // 20
    for step in expected:
        assert_same(plain[step], expected[step], atol=1e-13)
        assert_same(found[step], plain[step], atol=0.0)


def test_the_dtype_is_that_of_the_start():
    model, start = MODELS["ReLU, bias"], start_of(MODELS["ReLU, bias"])
    single = Runs(start.H.float(), [W.float() for W in start.Ws], start.b.float())
    end = descend(single, model, 5)
    assert {part.dtype for part in parts_of(end)} == {torch.float32}
    double = Runs(end.H.double(), [W.double() for W in end.Ws], end.b.double())
    assert_same(double, descend(start, model, 5), atol=1e-5)


# What is left out changes nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["free bias", "two linear layers, bias"])
def test_rotated_samples_have_the_same_trajectory_when_deviations_do_not_span_the_space(name):
    start = start_of(MODELS[name])
    start.H[0] = start.H[0, :, :1]  # no deviation at all in the first run, one direction in the second
    start.H[1, :-1] = start.H[1, :-1, FIRST]
    assert_same(descend(start, MODELS[name], 200), by_autograd(start, MODELS[name], 200), atol=1e-12)


def nearly_collapsed(model, deviation):
    """Runs in which every unit is active for some class, and a random deviation of the given relative size."""
    start = start_of(model, scale=0.4)
    H = start.H[..., FIRST] + deviation * start.H
    return Runs(H.abs(), [W.abs() for W in start.Ws[:-1]] + [start.Ws[-1]], start.b)


@every_relu
@both_orders
def test_with_a_relu_collapsed_classes_have_the_trajectory_of_all_samples(name, y):
    start = start_of(MODELS[name])
    start = start._replace(H=start.H[..., y])  # the first K columns, repeated
    assert_same(descend(start, MODELS[name], 300, y), by_autograd(start, MODELS[name], 300, y), atol=1e-12)


@every_relu
def test_with_a_relu_the_trajectory_goes_on_through_the_change_to_collapsed_classes(name):
    options = {"lam_h": 0.05, "learning_rate": 0.4}
    start = nearly_collapsed(MODELS[name], 1e-9)
    seen = trajectory(start, MODELS[name], 1200, 100, **options)
    assert 0 < min(step for step, runs in seen.items() if all(collapsed(runs.H))) < 1000  # the change is on the way
    assert_same(seen[1200], by_autograd(start, MODELS[name], 1200, **options), atol=1e-12)


def test_runs_go_on_as_class_means_one_by_one():
    model = MODELS["ReLU"]
    mixed = together([start_of(model, [0]), nearly_collapsed(model, 0.0), start_of(model, [4])])
    seen = trajectory(mixed, model, 40, 10)
    assert_same(seen[40], by_autograd(mixed, model, 40), atol=1e-13)
    assert collapsed(seen[40].H) == [False, True, True, True, False]


def test_what_is_neglected_on_class_means_is_of_second_order_in_the_deviations():
    """A hundred times less for deviations ten times as small; so a tolerance of 1e-8 is as good as rounding."""
    model, changes = MODELS["three layers, ReLU"], []
    for delta, steps, rate in ((1e-3, 20, 0.01), (1e-4, 20, 0.01), (3e-9, 1200, 0.4)):  # no unit is switched
        start, options = nearly_collapsed(model, delta), {"lam_h": 0.05, "learning_rate": rate}
        short = descend(start, model, steps, tolerance=max(1e-8, 100 * delta), **options)
        full = by_autograd(start, model, steps, **options)
        changes.append(max((a - b).abs().max().item() for a, b in zip(short.Ws, full.Ws, strict=True)))
    coarse, fine, rounding = changes
    assert 1e-9 < coarse < 1e-4 and 95 < coarse / fine < 105 and rounding < 1e-13


def test_samples_of_a_class_with_different_active_units_are_all_kept():
    model, start = MODELS["ReLU"], nearly_collapsed(MODELS["ReLU"], 0.0)
    start.Ws[0][0, 0] = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0])  # a unit at its kink for the first class
    start.H[0, :2, :N_SPL] = 0.3
    start.H[0, 0, 0] += 1e-9
    start.H[0, 0, 1] -= 1e-9
    end = descend(start, model, 3, tolerance=1e-8)
    assert collapsed(end.H) == [False, True, True]
    assert torch.equal(end.H[0], descend(start, model, 3, tolerance=0.0).H[0])


def test_units_that_are_exactly_zero_for_a_class_are_no_obstacle():
    model, start = MODELS["ReLU"], nearly_collapsed(MODELS["ReLU"], 1e-10)
    start.Ws[0][:, 1] = 0.0
    end = descend(start, model, 5, every=1, tolerance=1e-8)
    apart = descend(start, model, 5, every=1, tolerance=0.0)
    assert all(collapsed(end.H)) and not any(collapsed(apart.H))
    assert_same(end, apart, atol=1e-8)


# Each run its own parameters ------------------------------------------------------------------------------------------


@every_model
def test_decays_may_differ_between_runs(model):
    layers, _, lam_b, relu = model
    start, generator = start_of(model), torch.Generator().manual_seed(1)
    lam_w = [0.001 + 0.03 * torch.rand(3, generator=generator, dtype=torch.float64) for _ in range(layers)]
    lam_h = torch.tensor([0.01, 0.02, 0.05]).double()
    found = gradient_descent(start, ORDERED, Descent(0.1, 60, lam_w, lam_h, lam_b, relu))
    for r in range(3):
        own = Descent(0.1, 60, [lam[r].item() for lam in lam_w], lam_h[r].item(), lam_b, relu)
        assert_same(select(found, [r]), gradient_descent(select(start, [r]), ORDERED, own), atol=1e-13)


def test_one_tensor_of_decays_is_for_all_factors():
    start, lam = start_of(MODELS["ReLU"]), torch.tensor([0.01, 0.02, 0.03]).double()
    shared, apart = Descent(0.1, 5, lam, relu=True), Descent(0.1, 5, [lam, lam], lam, relu=True)
    assert_same(gradient_descent(start, ORDERED, shared), gradient_descent(start, ORDERED, apart), atol=0.0)


# What one sees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps, every, expected",
    [(10, 0, [0, 10]), (10, 5, [0, 5, 10]), (10, 4, [0, 4, 8, 10]), (3, 7, [0, 3]), (1, 1, [0, 1])],
)
def test_watch_is_called_at_the_start_after_each_every_steps_and_at_the_end(steps, every, expected):
    assert list(trajectory(start_of(MODELS["ReLU"]), MODELS["ReLU"], steps, every)) == expected


@pytest.mark.parametrize("name", ["one layer", "free bias", "ReLU", "ReLU, bias"])
def test_a_run_that_diverges_is_an_error_that_says_when_or_marked_while_the_others_go_on(name):
    model = MODELS[name]
    good, bad = start_of(model, [0, 1, 2, 3]), start_of(model, [9], scale=1e5)
    start, marked = together([select(good, [0, 1]), bad, select(good, [2, 3])]), {7: 7}
    with pytest.raises(FloatingPointError, match=r"runs \[2\] have diverged after 20 steps with learning rate 0.1"):
        descend(start, model, 60, every=20)
    seen = trajectory(start, model, 60, 20, diverged=marked)
    assert marked == {2: 20}
    assert all(torch.isnan(part[2]).all() for step in (20, 40, 60) for part in parts_of(seen[step]))
    assert_same(select(seen[60], [0, 1, 3, 4]), descend(good, model, 60, every=20), atol=1e-12)


def test_runs_that_go_apart_are_recorded_anew(monkeypatch):
    """Runs collapse one by one and one diverges; what was recorded with them is not used again."""
    monkeypatch.setattr(unconstrained, "_step_on_processor", unconstrained._step_on_device)
    model, lost, marked = MODELS["ReLU"], {}, {}
    start = together([nearly_collapsed(model, 1e-14), start_of(model, seeds=[3]), start_of(model, [4], scale=1e5)])
    options = {"every": 30, "tolerance": 1e-8}
    expected = descend(start, model, 120, diverged=lost, **options)
    with recording(unconstrained) as card:
        found = descend(start, model, 120, diverged=marked, **options)
    assert marked == lost and len(marked) == 1 and card.recordings > 2
    assert_same(found, expected, atol=0.0)


# Starts ---------------------------------------------------------------------------------------------------------------


def test_a_seed_means_the_same_start_whatever_the_others_are():
    one, many = random_runs(4, 5, 6, 2, [3], 0.1, bias=True), random_runs(4, 5, 6, 2, [8, 3], 0.1, bias=True)
    assert_same(select(many, [1]), one, atol=0.0)
    assert not torch.equal(many.H[0], many.H[1])


def test_each_factor_has_its_scale_and_shape():
    start = random_runs(40, 50, 60, 3, [0], [1.0, 0.1, 0.01, 0.001], bias=True)  # of W_3, W_2, W_1, H
    assert [tuple(W.shape) for W in start.Ws] == [(1, 60, 60), (1, 60, 60), (1, 40, 60)]
    assert start.H.shape == (1, 60, 2000) and start.b.shape == (1, 40)
    for part, scale in zip((*start.Ws, start.H), (0.01, 0.1, 1.0, 0.001), strict=True):
        assert part.dtype == torch.float64
        assert math.isclose(part.std().item(), scale, rel_tol=0.05)  # 2400 numbers or more: five standard errors
        assert part.mean().abs().item() < 5 * scale / math.sqrt(part.numel())
    assert 0.5 < start.b.std() < 1.5


# Bad input ------------------------------------------------------------------------------------------------------------


def of(start, **changes):
    """Five steps of one model, with these changes."""
    return descend(start, MODELS["ReLU, bias"], **{"steps": 5, **changes})


START = start_of(MODELS["ReLU, bias"])


OUT_OF_RANGE = [
    (r"decays\[0\]", lambda: of(START, lam_h=torch.ones(2))),
    (r"decays\[0\]", lambda: of(START, lam_h=torch.tensor([1.0, 0.0, 1.0]))),
    ("y", lambda: of(START, y=ORDERED.clamp(max=1))),
    ("H", lambda: of(START._replace(H=START.H[0]))),
    ("W_1", lambda: of(START._replace(Ws=[START.Ws[0][:1], START.Ws[1]]))),
    ("b", lambda: of(START._replace(b=START.b[:1]))),
    ("scales", lambda: random_runs(3, 4, 5, 2, [0], [0.1, 0.1])),
    ("layers", lambda: random_runs(3, 4, 5, 0, [0], 0.1)),
]


@pytest.mark.parametrize("name, call", OUT_OF_RANGE)
def test_what_is_out_of_its_range_is_named(name, call):
    with pytest.raises(ValueError, match=f"^{name}[ :]"):
        call()


def test_a_start_that_is_not_finite_has_diverged_at_once():
    with pytest.raises(FloatingPointError, match=r"runs \[1\] have diverged after 0 steps"):
        of(START._replace(Ws=[START.Ws[0], START.Ws[1] / torch.tensor([1.0, 0, 1])[:, None, None]]))
