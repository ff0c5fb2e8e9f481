"""Batched gradient descent against autograd, and its reduced runs against those that carry every sample."""

import math

import pytest
import torch
from paper_card import recording

from lib.models.unconstrained import activations, labels, objective
from lib.training import unconstrained
from lib.training.unconstrained import Descent, Runs, gradient_descent, random_runs, select, together

K, N_SPL, D = 3, 12, 5
ORDERED = labels(K, N_SPL)
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
LINEAR = {name: model for name, model in MODELS.items() if not model[3]}
every_linear_model = pytest.mark.parametrize("model", LINEAR.values(), ids=LINEAR)


def start_of(model, seeds=(0, 1, 2), scale=0.5):
    layers, bias, *_ = model
    return random_runs(K, N_SPL, D, layers, seeds, scale, bias)


def descend(start, model, steps, y=ORDERED, lam_h=0.02, learning_rate=0.1, watch=None, diverged=None, **options):
    layers, _, lam_b, relu = model
    lam_w = [0.01 * (i + 1) for i in range(layers)]
    descent = Descent(learning_rate, steps, lam_w, lam_h, lam_b, relu, **options)
    return gradient_descent(start, y, descent, watch, diverged)


def by_autograd(start, model, steps, y=ORDERED, lam_h=0.02, learning_rate=0.1):
    """The definition: parameters minus the learning rate times the objective's gradient, one run at a time."""
    layers, bias, lam_b, relu = model
    lam_w = [0.01 * (i + 1) for i in range(layers)]
    ends = []
    for r in range(len(start.H)):
        parts = [part[r].clone() for part in (start.H, *start.Ws, *([start.b] if bias else []))]
        for _ in range(steps):
            parts = [part.detach().requires_grad_() for part in parts]
            H, Ws, b = parts[0], parts[1 : layers + 1], parts[-1] if bias else None
            value = objective(H, Ws, y, lam_w, lam_h, b, lam_b, relu)
            parts = [p - learning_rate * g for p, g in zip(parts, torch.autograd.grad(value, parts), strict=True)]
        ends.append([part.detach() for part in parts])
    H, *rest = (torch.stack(part) for part in zip(*ends, strict=True))
    return Runs(H, rest[:layers], rest[-1] if bias else None)


def assert_same(found, expected, atol):
    flat = [(found.H, expected.H), *zip(found.Ws, expected.Ws, strict=True)]
    if expected.b is not None:
        flat.append((found.b, expected.b))
    for ours, theirs in flat:
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)
    assert (found.b is None) == (expected.b is None)


def trajectory(start, model, steps, every, **options):
    seen = {}
    descend(start, model, steps, every=every, watch=seen.__setitem__, **options)
    return seen


# Steps ----------------------------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("y", [ORDERED, UNEQUAL], ids=["equal classes", "unequal classes"])
def test_each_step_goes_against_the_gradient_of_the_objective(model, reduce, y):
    start = start_of(model)
    for steps in (1, 2, 7):
        assert_same(descend(start, model, steps, y, reduce=reduce), by_autograd(start, model, steps, y), atol=1e-13)


@every_model
@pytest.mark.parametrize("apart", [True, False], ids=["samples apart", "samples together"])
def test_the_steps_of_a_gpu_are_those_of_a_processor(model, apart, monkeypatch):
    start = start_of(model)
    start = start if apart else start._replace(H=start.H[..., ORDERED * N_SPL])
    rates = torch.tensor([0.1, 0.2, 0.05], dtype=torch.float64)
    ends = [descend(start, model, 40, learning_rate=rate) for rate in (0.1, rates)]
    monkeypatch.setattr(unconstrained, "_step_on_processor", unconstrained._step_on_device)
    for end, rate in zip(ends, (0.1, rates), strict=True):
        assert_same(end, descend(start, model, 40, learning_rate=rate), atol=1e-13)


def test_the_dtype_is_that_of_the_start():
    start = start_of(MODELS["ReLU, bias"])
    single = Runs(start.H.float(), [W.float() for W in start.Ws], start.b.float())
    end = descend(single, MODELS["ReLU, bias"], 5)
    assert {part.dtype for part in (end.H, *end.Ws, end.b)} == {torch.float32}
    assert_same(Runs(end.H.double(), [W.double() for W in end.Ws], end.b.double()),
                descend(start, MODELS["ReLU, bias"], 5), atol=1e-5)  # fmt: skip


# What is left out changes nothing -------------------------------------------------------------------------------------


@every_linear_model
@pytest.mark.parametrize("y", [ORDERED, UNEQUAL], ids=["equal classes", "unequal classes"])
def test_without_a_relu_rotated_samples_have_the_trajectory_of_all_samples(model, y):
    reduced = trajectory(start_of(model), model, 400, 50, y=y)
    full = trajectory(start_of(model), model, 400, 50, y=y, reduce=False)
    for step in full:
        assert_same(reduced[step], full[step], atol=1e-12)


@pytest.mark.parametrize("name", ["free bias", "two linear layers, bias"])
def test_so_they_have_when_deviations_do_not_span_the_space(name):
    start = start_of(MODELS[name])
    start.H[0] = start.H[0, :, :1]  # no deviation at all in the first run, one direction in the second
    start.H[1, :-1] = start.H[1, :-1, ORDERED * N_SPL]
    assert_same(descend(start, MODELS[name], 200), descend(start, MODELS[name], 200, reduce=False), atol=1e-12)


def nearly_collapsed(model, deviation):
    """Runs in which every unit is active for some class, and a random deviation of the given relative size."""
    start = start_of(model, scale=0.4)
    H = start.H[..., ORDERED * N_SPL] + deviation * start.H
    return Runs(H.abs(), [W.abs() for W in start.Ws[:-1]] + [start.Ws[-1]], start.b)


@pytest.mark.parametrize("name", ["ReLU", "ReLU, bias", "three layers, ReLU"])
@pytest.mark.parametrize("y", [ORDERED, UNEQUAL], ids=["equal classes", "unequal classes"])
def test_with_a_relu_collapsed_classes_have_the_trajectory_of_all_samples(name, y):
    model = MODELS[name]
    start = start_of(model)
    start = start._replace(H=start.H[..., y])  # the first K columns, repeated
    reduced, full = (trajectory(start, model, 300, 100, y=y, reduce=reduce) for reduce in (True, False))
    for step in full:
        assert_same(reduced[step], full[step], atol=1e-12)


@pytest.mark.parametrize("name", ["ReLU", "ReLU, bias", "three layers, ReLU"])
def test_with_a_relu_the_trajectory_goes_on_through_the_change_to_collapsed_classes(name):
    model, options = MODELS[name], {"lam_h": 0.05, "learning_rate": 0.4}
    start = nearly_collapsed(model, 1e-9)
    reduced, full = (trajectory(start, model, 1200, 100, reduce=reduce, **options) for reduce in (True, False))
    exact = [step for step, runs in reduced.items() if torch.equal(runs.H, runs.H[..., ORDERED * N_SPL])]
    assert 0 < min(exact) < 1000  # the change happened on the way
    for step in full:
        assert_same(reduced[step], full[step], atol=1e-12)


def test_one_run_that_has_not_collapsed_keeps_all_samples():
    model = MODELS["ReLU"]
    collapsed, spread = nearly_collapsed(model, 0.0), start_of(model)
    mixed = Runs(collapsed.H.clone(), [W.clone() for W in collapsed.Ws], None)
    for ours, theirs in zip((mixed.H, *mixed.Ws), (spread.H, *spread.Ws), strict=True):
        ours[1] = theirs[1]
    assert_same(descend(mixed, model, 20, every=5), descend(mixed, model, 20, reduce=False), atol=1e-13)


def deviation_after(delta, steps, tolerance, learning_rate=0.4):
    """Largest difference of the weights between runs on class means and on all samples, relative deviation delta."""
    model, start = MODELS["three layers, ReLU"], nearly_collapsed(MODELS["three layers, ReLU"], delta)
    options = {"lam_h": 0.05, "learning_rate": learning_rate}
    short = descend(start, model, steps, tolerance=tolerance, **options)
    full = descend(start, model, steps, reduce=False, **options)
    return max((a - b).abs().max().item() for a, b in zip(short.Ws, full.Ws, strict=True))


def test_what_is_neglected_on_class_means_is_of_second_order_in_the_deviations():
    coarse, fine = (deviation_after(delta, 20, 1.0, 0.01) for delta in (1e-3, 1e-4))
    assert 1e-9 < coarse < 1e-4
    assert 95 < coarse / fine < 105  # a hundred times less for deviations ten times as small; no unit is switched


def test_so_a_tolerance_of_1e_8_is_as_good_as_rounding():
    assert deviation_after(3e-9, 1200, tolerance=1e-8) < 1e-14


def test_samples_of_a_class_with_different_active_units_are_all_kept():
    model, start = MODELS["ReLU"], nearly_collapsed(MODELS["ReLU"], 0.0)
    start.Ws[0][0, 0] = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0])  # a unit at its kink for the first class
    start.H[0, :2, :N_SPL] = 0.3
    start.H[0, 0, 0] += 1e-9
    start.H[0, 0, 1] -= 1e-9
    reduced, full = (descend(start, model, 3, tolerance=1e-8, reduce=reduce) for reduce in (True, False))
    assert torch.equal(reduced.H, full.H)


def test_units_that_are_exactly_zero_for_a_class_are_no_obstacle():
    model, start = MODELS["ReLU"], nearly_collapsed(MODELS["ReLU"], 1e-10)
    start.Ws[0][:, 1] = 0.0
    end = descend(start, model, 5, every=1, tolerance=1e-8)
    assert torch.equal(end.H, end.H[..., ORDERED * N_SPL])
    assert_same(end, descend(start, model, 5, reduce=False), atol=1e-8)


def test_runs_may_go_on_as_class_means_one_by_one():
    model = MODELS["ReLU"]
    mixed = together([start_of(model, [0]), nearly_collapsed(model, 0.0), start_of(model, [4])])
    seen = trajectory(mixed, model, 40, 10, singly=True)
    for step, runs in trajectory(mixed, model, 40, 10, reduce=False).items():
        assert_same(seen[step], runs, atol=1e-13)
    same = (seen[40].H[..., ORDERED * N_SPL] == seen[40].H).flatten(1).all(1)
    assert same.tolist() == [False, True, True, True, False]


# Figure 2 of Sukenik et al. (2024), top ---------------------------------------------------------------------------


def test_the_model_with_four_layers_and_500_samples_goes_on_as_class_means():
    K, n, d, steps = 10, 50, 30, 200
    start, y = random_runs(K, n, d, 4, [0, 1], [d**-0.5] * 4 + [0.3]), labels(K, n)
    start = start._replace(H=start.H[..., y * n])
    reduced, full = (gradient_descent(start, y, Descent(0.5, steps, 0.004, relu=True, reduce=r)) for r in (True, False))
    assert_same(reduced, full, atol=1e-11)


# Each run its own parameters --------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("reduce", [True, False])
def test_decays_and_learning_rates_may_differ_between_runs(model, reduce):
    layers, _, lam_b, relu = model
    start, generator = start_of(model), torch.Generator().manual_seed(1)
    lam_w = [0.001 + 0.03 * torch.rand(3, generator=generator, dtype=torch.float64) for _ in range(layers)]
    lam_h, rate = torch.tensor([0.01, 0.02, 0.05]).double(), torch.tensor([0.05, 0.2, 0.1]).double()
    found = gradient_descent(start, ORDERED, Descent(rate, 60, lam_w, lam_h, lam_b, relu, reduce=reduce))
    for r in range(3):
        own = Descent(rate[r].item(), 60, [lam[r].item() for lam in lam_w], lam_h[r].item(), lam_b, relu, reduce=reduce)
        assert_same(select(found, [r]), gradient_descent(select(start, [r]), ORDERED, own), atol=1e-13)


def test_numbers_beside_tensors_keep_their_precision():
    start, descent = start_of(MODELS["ReLU"]), Descent(0.1, 100, [0.013, 0.017], 0.019, relu=True)
    per_run = descent._replace(learning_rate=torch.full((3,), 0.1, dtype=torch.float64))
    assert_same(gradient_descent(start, ORDERED, per_run), gradient_descent(start, ORDERED, descent), atol=1e-14)


def test_one_tensor_of_decays_is_for_all_factors():
    start, lam = start_of(MODELS["ReLU"]), torch.tensor([0.01, 0.02, 0.03]).double()
    shared, apart = Descent(0.1, 5, lam, relu=True), Descent(0.1, 5, [lam, lam], lam, relu=True)
    assert_same(gradient_descent(start, ORDERED, shared), gradient_descent(start, ORDERED, apart), atol=0.0)


def test_silent_units_may_decay_below_the_smallest_normal_number():
    start = start_of(MODELS["ReLU"])
    start = Runs(start.H.abs()[..., ORDERED * N_SPL], [-start.Ws[0].abs(), start.Ws[1]], None)
    end = descend(start, MODELS["ReLU"], 6000, lam_h=2.0, learning_rate=0.1)
    assert end.H.abs().max() == 0  # 0.8 to the power of 6000


# What one sees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps, every, expected",
    [(10, 0, [0, 10]), (10, 5, [0, 5, 10]), (10, 4, [0, 4, 8, 10]), (3, 7, [0, 3]), (1, 1, [0, 1])],
)
def test_watch_is_called_at_the_start_after_each_every_steps_and_at_the_end(steps, every, expected):
    seen = []
    descend(start_of(MODELS["ReLU"]), MODELS["ReLU"], steps, every=every, watch=lambda step, runs: seen.append(step))
    assert seen == expected


@every_model
@pytest.mark.parametrize("reduce", [True, False])
def test_watch_sees_where_a_run_of_that_many_steps_ends_and_may_keep_it(model, reduce):
    start = start_of(model)
    seen = trajectory(start, model, 11, 4, reduce=reduce)
    assert_same(seen.pop(0), start, atol=1e-15)
    for step, runs in seen.items():
        assert_same(runs, descend(start, model, step, reduce=reduce), atol=1e-14)


def test_what_watch_does_to_its_runs_changes_nothing():
    start, model = start_of(MODELS["ReLU, bias"]), MODELS["ReLU, bias"]

    def spoil(step, runs):
        if step < 6:
            for part in (runs.H, *runs.Ws, runs.b):
                part.zero_()
            runs.Ws.clear()

    assert_same(descend(start, model, 6, every=2, watch=spoil), descend(start, model, 6), atol=1e-14)


@every_model
@pytest.mark.parametrize("reduce", [True, False])
def test_the_start_stays_as_it_is(model, reduce):
    start = start_of(model)
    kept = Runs(start.H.clone(), [W.clone() for W in start.Ws], None if start.b is None else start.b.clone())
    descend(start, model, 4, every=2, reduce=reduce)
    assert_same(start, kept, atol=0.0)


def test_a_sample_whose_units_are_all_silent_shrinks_by_weight_decay_alone():
    start = start_of(MODELS["ReLU"])
    start = Runs(start.H.abs(), [-start.Ws[0].abs(), start.Ws[1]], None)
    end = descend(start, MODELS["ReLU"], 50, lam_h=0.02, learning_rate=0.1)
    assert activations(end.H, end.Ws, relu=True)[1].max() == 0
    torch.testing.assert_close(end.H, start.H * (1 - 0.1 * 0.02) ** 50, atol=1e-14, rtol=0)


# Starts ---------------------------------------------------------------------------------------------------------------


def test_a_seed_means_the_same_start_whatever_the_others_are():
    one, many = random_runs(4, 5, 6, 2, [3], 0.1, bias=True), random_runs(4, 5, 6, 2, [8, 3], 0.1, bias=True)
    assert_same(Runs(many.H[1:], [W[1:] for W in many.Ws], many.b[1:]), one, atol=0.0)
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


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("name", ["one layer", "free bias", "ReLU"])
def test_a_run_that_diverges_is_an_error_that_says_when(name, reduce):
    with pytest.raises(FloatingPointError, match="diverged after 40 steps with learning rate 50"):
        descend(start_of(MODELS[name], scale=2.0), MODELS[name], 200, learning_rate=50.0, every=40, reduce=reduce)


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("name", ["one layer", "free bias", "ReLU", "ReLU, bias"])
def test_a_run_that_diverges_can_be_marked_while_the_others_go_on(name, reduce):
    model = MODELS[name]
    good, bad = start_of(model, [0, 1, 2, 3]), start_of(model, [9], scale=1e5)
    start, marked = together([select(good, [0, 1]), bad, select(good, [2, 3])]), {}
    seen = trajectory(start, model, 60, 20, reduce=reduce, diverged=marked)
    assert marked == {2: 20}
    assert all(torch.isnan(part[2]).all() for part in (seen[40].H, *seen[40].Ws, seen[60].H, *seen[60].Ws))
    assert_same(select(seen[60], [0, 1, 3, 4]), descend(good, model, 60, every=20, reduce=reduce), atol=1e-12)


def test_the_error_names_the_learning_rates_of_the_runs_that_diverged():
    start, rates = start_of(MODELS["ReLU"], scale=2.0), torch.tensor([0.01, 70.0, 0.02]).double()
    with pytest.raises(FloatingPointError, match=r"runs \[1\] .* after 50 steps with learning rate \[70.0\]"):
        gradient_descent(start, ORDERED, Descent(rates, 100, 0.01, relu=True, every=50))


@every_model
@pytest.mark.parametrize("apart", [True, False], ids=["samples apart", "samples together"])
@pytest.mark.parametrize("per_run", [False, True], ids=["one rate", "a rate for each run"])
def test_recorded_steps_are_the_same_steps(model, apart, per_run, monkeypatch):
    """Replayed in the same memory, and without a wait for the device, to the last bit; between looks that are kept."""
    monkeypatch.setattr(unconstrained, "_step_on_processor", unconstrained._step_on_device)
    rate = torch.tensor([0.1, 0.2, 0.05], dtype=torch.float64) if per_run else 0.1
    start = start_of(model)
    start = start if apart else start._replace(H=start.H[..., ORDERED * N_SPL])
    expected = trajectory(start, model, 107, every=45, learning_rate=rate)
    with recording(unconstrained) as card:
        found = trajectory(start, model, 107, every=45, learning_rate=rate)
    assert card.recordings == 1 and card.replays == 43 // 20 + 45 // 20
    for step, runs in expected.items():
        assert_same(found[step], runs, atol=0.0)


def test_runs_that_go_apart_are_recorded_anew(monkeypatch):
    """A run that collapses and one that diverges leave the group; what was recorded with them is not used again."""
    monkeypatch.setattr(unconstrained, "_step_on_processor", unconstrained._step_on_device)
    model, lost, marked = MODELS["ReLU"], {}, {}
    start = together([nearly_collapsed(model, 1e-14), start_of(model, seeds=[3]), start_of(model, [4], scale=1e5)])
    options = {"every": 30, "singly": True, "tolerance": 1e-8}
    expected = descend(start, model, 120, diverged=lost, **options)
    with recording(unconstrained) as card:
        found = descend(start, model, 120, diverged=marked, **options)
    assert marked == lost and len(marked) == 1 and card.recordings > 2
    for part, other in zip((found.H, *found.Ws), (expected.H, *expected.Ws), strict=True):
        torch.testing.assert_close(part, other, atol=0.0, rtol=0.0, equal_nan=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lam_h": torch.ones(2)},
        {"lam_h": torch.tensor([1.0, 0.0, 1.0])},
        {"learning_rate": torch.tensor([1.0, math.nan, 1.0])},
        {"learning_rate": 0.0},
        {"steps": 0},
        {"every": -1},
        {"tolerance": -1e-9},
        {"y": ORDERED.clamp(max=1)},
    ],
)
def test_wrong_settings_are_named(wrong):
    name = next(iter(wrong)).replace("lam_h", r"decays\[0\]")
    with pytest.raises(ValueError, match=name):
        descend(start_of(MODELS["ReLU"]), MODELS["ReLU"], **{"steps": 5, **wrong})


@pytest.mark.parametrize(
    "spoil, name",
    [
        (lambda s: s._replace(H=s.H[0]), "H"),
        (lambda s: s._replace(Ws=[s.Ws[0][:1], s.Ws[1]]), "W_1"),
        (lambda s: s._replace(b=s.b[:1]), "b"),
        (lambda s: s._replace(Ws=[s.Ws[0], s.Ws[1] * math.nan]), "W_2"),
        (lambda s: s._replace(b=s.b * math.inf), "b"),
    ],
)
def test_weights_that_are_not_those_of_runs_are_named(spoil, name):
    with pytest.raises(ValueError, match=f"^{name} has"):
        descend(spoil(start_of(MODELS["ReLU, bias"])), MODELS["ReLU, bias"], 5)


@pytest.mark.parametrize(
    "name, arguments", [("scales", (2, [0], [0.1, 0.1])), ("layers", (0, [0], 0.1)), ("seeds", (1, [], 0.1))]
)
def test_starts_that_cannot_be_drawn_are_errors(name, arguments):
    with pytest.raises(ValueError, match=name):
        random_runs(3, 4, 5, *arguments)
