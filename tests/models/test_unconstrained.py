"""The unconstrained features models against the paper's sums, entry by entry in float64."""

from math import exp, inf, log, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models import unconstrained
from lib.models.unconstrained import labels, layer_peeled, objective

quick = settings(max_examples=25, deadline=None)
sizes = st.integers(1, 4)
seeds = st.integers(0, 10**6)
losses = st.sampled_from(unconstrained.LOSSES)


@st.composite
def models(draw, layers=None, runs=(), samples=0):
    """Features, weights, bias and decays of any small size; class sizes differ unless given, samples in no order."""
    layers = draw(st.integers(1, 3)) if layers is None else layers
    K, extra, *widths = draw(st.integers(2, 4)), draw(st.integers(0, 5)), *(draw(sizes) for _ in range(layers))
    rng = np.random.default_rng(draw(seeds))
    y = np.arange(K).repeat(samples) if samples else np.r_[np.arange(K), rng.integers(K, size=extra)]
    y = rng.permutation(y)
    H = rng.standard_normal((*runs, widths[0], len(y)))
    Ws = [rng.standard_normal((*runs, out, width)) for width, out in zip(widths, [*widths[1:], K], strict=True)]
    lam_w, lam_h, lam_b = rng.uniform(0.01, 2, layers).tolist(), *rng.uniform(0.01, 2, 2).tolist()
    H, y, b = torch.from_numpy(H), torch.from_numpy(y), torch.from_numpy(rng.standard_normal((*runs, K)))
    decays = {"lam_w": lam_w, "lam_h": lam_h, "lam_b": lam_b}
    return {"H": H, "Ws": [torch.from_numpy(W) for W in Ws], "y": y, "b": b} | decays


def squares(tensor):
    return sum(entry**2 for entry in tensor.flatten().tolist())


def scores_by_hand(h, Ws, b, relu):
    for i, W in enumerate(Ws, 1):
        h = W.numpy() @ h
        h = np.maximum(h, 0) if relu and i < len(Ws) else h
    return h if b is None else h + b.numpy()


def by_hand(H, Ws, y, lam_w, lam_h, b=None, lam_b=0.0, relu=False, loss="mse"):
    """(3), its decay of the bias included, with the scores of (23) and (24) in place of W h for several layers."""
    K, total = len(Ws[-1]), 0.0
    for h, label in zip(H.T.tolist(), y.tolist(), strict=True):
        z = scores_by_hand(h, Ws, b, relu)
        if loss == "mse":
            total += sum((z[k] - (k == label)) ** 2 for k in range(K)) / 2
        else:
            total -= log(exp(z[label]) / sum(exp(entry) for entry in z))
    decay = sum(lam / 2 * squares(W) for lam, W in zip(lam_w, Ws, strict=True)) + lam_h / 2 * squares(H)
    return total / len(y) + decay + (0 if b is None else lam_b / 2 * squares(b))


# Against the sums -----------------------------------------------------------------------------------------------------


@quick
@given(models(), st.booleans(), st.booleans(), losses)
def test_the_objective_is_the_papers_sum(model, relu, bias, loss):
    model |= {} if bias else {"b": None}
    value = objective(**model, relu=relu, loss=loss)
    assert value.shape == () and value.dtype == torch.float64
    assert value.item() == pytest.approx(by_hand(**model, relu=relu, loss=loss), rel=1e-12)


def test_cross_entropy_of_huge_scores_neither_overflows_nor_rounds_to_nan():
    W = torch.eye(2, dtype=torch.float64)
    H = 1e4 * torch.eye(2, dtype=torch.float64)
    tiny = 1e-300  # weight decay that the sum does not notice
    assert objective(H, [W], torch.tensor([0, 1]), tiny, tiny, loss="ce").item() == pytest.approx(0, abs=1e-12)
    assert objective(H, [W], torch.tensor([1, 0]), tiny, tiny, loss="ce").item() == pytest.approx(1e4, rel=1e-12)


@quick
@given(models(layers=2), st.floats(0.01, 2), st.booleans())
def test_one_decay_stands_for_all_layers_or_for_all_factors(model, lam, relu):
    each = [objective(**model | {"lam_w": value}, relu=relu) for value in (lam, (lam, lam), np.array([lam, lam]))]
    each.append(objective(**model | {"lam_w": torch.tensor([lam, lam], dtype=torch.float64)}, relu=relu))
    assert len(set(map(float, each))) == 1
    lam_h, *lam_w = decays = (lam, 2 * lam, np.float32(0.5))
    together = objective(**model | {"lam_w": decays, "lam_h": None}, relu=relu)
    assert together == objective(**model | {"lam_w": lam_w, "lam_h": lam_h}, relu=relu)
    assert objective(**model | {"lam_w": lam, "lam_h": None}) == objective(**model | {"lam_w": lam, "lam_h": lam})


# Batches, types -------------------------------------------------------------------------------------------------------


@quick
@given(models(runs=(2, 3)), st.booleans(), losses)
def test_leading_dimensions_are_a_loop_over_runs_and_vmap_is_another(model, relu, loss):
    def one(H, b, *Ws):
        return objective(**model | {"H": H, "Ws": Ws, "b": b}, relu=relu, loss=loss)

    parts = model["H"], model["b"], *model["Ws"]
    alone = [[one(*(part[r, s] for part in parts)) for s in range(3)] for r in range(2)]
    values = one(*parts)
    torch.testing.assert_close(values, torch.tensor(alone, dtype=torch.float64), rtol=1e-12, atol=0)
    mapped = torch.func.vmap(torch.func.vmap(one))(*parts)
    torch.testing.assert_close(mapped, values, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", unconstrained.LOSSES)
def test_the_dtype_is_that_of_the_features_and_labels_of_any_integer_type_mean_the_same(loss):
    W, H = torch.eye(3), torch.arange(18.0).reshape(3, 6) / 9
    expected = objective(H, [W], labels(3, 2), 0.1, 0.1, loss=loss)
    assert expected.dtype == torch.float32
    assert objective(H, [W], labels(3, 2).to(torch.uint8), 0.1, 0.1, loss=loss) == expected


@pytest.mark.parametrize("loss", unconstrained.LOSSES)
def test_a_nan_feature_makes_its_own_run_nan_and_no_other(loss):
    H = torch.ones(3, 2, 4)
    H[1, 0, 0] = nan
    values = objective(H, [torch.eye(2), torch.eye(2)], labels(2, 2), 0.1, 0.1, relu=True, loss=loss)
    assert values.isnan().tolist() == [False, True, False]


# The layer-peeled model with non-negative features --------------------------------------------------------------------


@st.composite
def peeled(draw):
    """A model of one layer with as many samples of each class and features that are not negative."""
    model = draw(models(layers=1, samples=draw(st.integers(1, 3))))
    (W,), (lam_w,) = model.pop("Ws"), model["lam_w"]
    alpha = draw(st.sampled_from([0.0, 0.1, 0.9]))
    return model | {"W": W, "H": model["H"].abs(), "lam_w": lam_w, "alpha": alpha}


@quick
@given(peeled(), st.booleans())
def test_the_layer_peeled_objective_is_the_papers_sum_for_each_of_several_runs(model, bias):
    model |= {} if bias else {"b": None, "lam_b": 0.0}
    W, H, y, alpha, N = model["W"], model["H"], model["y"], model["alpha"], len(model["W"])
    total, samples = 0.0, len(y) // N
    for h, n in zip(H.T.tolist(), y.tolist(), strict=True):
        z = scores_by_hand(h, [W], model["b"], relu=False)
        p = [exp(entry) / sum(exp(other) for other in z) for entry in z]
        smoothed = [(1 - alpha) * (m == n) + alpha / N for m in range(N)]
        total -= sum(weight * log(probability) for weight, probability in zip(smoothed, p, strict=True))
    expected = total / len(y) + model["lam_w"] * squares(W) + model["lam_h"] / samples * squares(H)
    expected += model["lam_b"] * squares(model["b"]) if bias else 0
    runs = {name: torch.stack([torch.zeros_like(model[name]), model[name]]) for name in ("W", "H")}
    at_zero, value = layer_peeled(**model | runs)
    assert value.dtype == torch.float64 and value.item() == pytest.approx(expected, rel=1e-12)
    assert bias or at_zero.item() == pytest.approx(log(N), rel=1e-12)


# Bad input ------------------------------------------------------------------------------------------------------------

K, n, d = 3, 2, 4
GOOD = {"H": torch.ones(d, K * n), "Ws": [torch.ones(d, d), torch.ones(K, d)], "y": labels(K, n)}
GOOD |= {"lam_w": 0.1, "lam_h": 0.1}
PEELED = {"W": torch.ones(K, d)} | {name: part for name, part in GOOD.items() if name != "Ws"}


@pytest.mark.parametrize(
    "changes, name",
    [
        ([{"y": labels(K, n) + 1}, {"y": labels(K, n).float()}, {"y": torch.tensor([0, 0, 0, 2, 2, 2])}], "y"),
        ([{"H": torch.ones(d)}], "H"),
        ([{"H": torch.ones(d + 1, K * n)}], "W_1"),
        ([{"Ws": [torch.ones(5, d), torch.ones(K, d)]}, {"Ws": [torch.ones(d, d), torch.ones(d)]}], "W_2"),
        ([{"Ws": []}, {"Ws": torch.ones(K, d)}], "Ws"),
        ([{"Ws": [torch.ones(1, d)], "y": labels(1, 6)}], "K"),
        ([{"b": torch.ones(K + 1)}], "b"),
        ([{"lam_w": 0.0}, {"lam_w": [0.1, inf]}, {"lam_w": [0.1]}, {"lam_w": [0.1, 0.1], "lam_h": None}], "lam_w"),
        ([{"lam_h": nan}, PEELED | {"lam_h": 0.0}], "lam_h"),
        ([{"lam_b": -0.5}], "lam_b"),
        ([{"loss": "hinge"}], "loss"),
        ([PEELED | {"alpha": 1.0}], "alpha"),
        ([PEELED | {"y": torch.tensor([0, 0, 0, 1, 1, 2])}], "y"),
    ],
)
def test_what_does_not_fit_is_named(changes, name):
    for change in changes:
        model, arguments = (layer_peeled, change) if "W" in change else (objective, GOOD | change)
        with pytest.raises(ValueError, match=rf"^{name}\b"):
            model(**arguments)
