"""The formulas of `lib.cost` against what PyTorch counts in real steps, and the tables of the page on cost."""

import ast
import contextlib
import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from lib import cost
from lib.book.chapters import Page
from lib.data import image_sets
from lib.models import networks
from lib.models.sentences import SentenceSet, initial_weights
from lib.models.unconstrained import activations, labels
from lib.training import perceptrons, resnets
from lib.training.sentences import SentenceSGD, sentence_sgd
from lib.training.sgd import SGD, train
from lib.training.unconstrained import Descent, gradient_descent, random_runs

few = settings(max_examples=8, deadline=None)


def counted(function, *arguments, **options) -> int:
    """Operations of the products and convolutions that a call executes."""

    def batched(into, left, right, **_):
        return 2 * left[0] * left[1] * left[2] * right[2]

    def plain(into, left, right, **_):
        return 2 * left[0] * left[1] * right[1]

    in_place = {torch.ops.aten.baddbmm_: batched, torch.ops.aten.addmm_: plain}  # PyTorch's counter passes over them
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        function(*arguments, **options)
    return counter.get_total_flops()


def bytes_of(*tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# ---------------------------------------------------------------------------------------------------- the sentence task


def sentences_of(n_w, L, K, N):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(n_w, (N, L), generator=generator), torch.randint(K, (N,), generator=generator)


@few
@given(st.integers(2, 40), st.integers(1, 5), st.integers(3, 9), st.integers(2, 7), st.integers(1, 13), st.booleans())
def test_a_step_of_sgd_on_sentences_has_the_products_that_the_formula_counts(n_w, L, K, d, batch, normalize):
    x, y = sentences_of(n_w, L, K, 3 * batch)
    W, U = initial_weights(n_w, K, L, d, seed=0, scale=0.1)
    order = torch.Generator().manual_seed(0)
    found = counted(sentence_sgd, W, U, x, y, SentenceSGD(1e-3, 0.1, batch, 2, normalize), order)
    assert found == 2 * cost.sentence_step(n_w, L, K, d, batch).operations


def test_a_step_on_sentences_touches_weights_batch_word_vectors_and_softmax_outputs():
    n_w, L, K, d, batch = 31, 4, 5, 3, 7
    x, y = sentences_of(n_w, L, K, batch)
    W, U = initial_weights(n_w, K, L, d, seed=0, scale=0.1)
    E = F.embedding(x, W)
    D = torch.softmax(E.flatten(1) @ U.flatten(1).T, 1)
    expected = bytes_of(x, y) + 2 * bytes_of(W, U, E, D)
    assert cost.sentence_step(n_w, L, K, d, batch).bytes == expected


@few
@given(st.integers(2, 30), st.integers(1, 5), st.integers(3, 9), st.integers(2, 40), st.integers(1, 90))
def test_the_full_batch_risk_has_the_products_that_the_formula_counts_both_ways(n_w, L, K, d, N):
    x, y = sentences_of(n_w, L, K, N)
    W, U = (part.requires_grad_() for part in initial_weights(n_w, K, L, d, seed=0, scale=0.1))
    sentences = SentenceSet(x, n_w)
    found = counted(lambda: sentences.cross_entropy(W, U, y).backward())
    assert found == cost.risk_gradient(n_w, L, K, d, N).operations


@pytest.mark.parametrize(("d", "N", "direct"), [(3, 40, True), (20, 100, False)])
def test_the_full_batch_risk_touches_what_the_formula_counts(d, N, direct):
    n_w, L, K = 11, 4, 5
    x, y = sentences_of(n_w, L, K, N)
    W, U = (part.requires_grad_() for part in initial_weights(n_w, K, L, d, seed=0, scale=0.1))
    sentences = SentenceSet(x, n_w)
    sentences.cross_entropy(W, U, y).backward()
    touched = bytes_of(W, U, W.grad, U.grad, x, y)
    assert direct == ("products" not in sentences._kept)
    if not direct:
        touched += 2 * bytes_of(*sentences._kept.values()) + bytes_of(sentences.sentences, sentences.offsets)
    assert cost.risk_gradient(n_w, L, K, d, N).bytes == touched


# --------------------------------------------------------------------------------------------- unconstrained features


@few
@given(st.integers(1, 4), st.integers(3, 6), st.integers(1, 3), st.integers(2, 7), st.integers(1, 4), st.booleans())
def test_gradient_descent_has_the_products_that_the_formula_counts(runs, K, n, d, layers, bias):
    # in bfloat16 a processor takes the step of a GPU, whose products PyTorch sees
    start = random_runs(K, n, d, layers, range(runs), 0.1, bias)
    start = start._replace(H=start.H.bfloat16(), Ws=[W.bfloat16() for W in start.Ws])
    start = start._replace(b=start.b.bfloat16() if bias else None)

    def steps(count):
        gradient_descent(start, labels(K, n), Descent(0.1, count, 0.01, relu=True, reduce=False))

    expected = cost.descent_step(runs, [d] * layers, K, K * n, itemsize=2, bias=bias).operations
    assert counted(steps, 6) - counted(steps, 2) == 4 * expected


def test_with_one_sample_for_each_class_gradient_descent_has_as_many_columns_as_classes():
    start = random_runs(5, 1, 4, 3, range(2), 0.1)
    start = start._replace(H=start.H.bfloat16(), Ws=[W.bfloat16() for W in start.Ws])

    def steps(count):
        gradient_descent(start, labels(5, 1), Descent(0.1, count, 0.01, relu=True))

    assert counted(steps, 6) - counted(steps, 2) == 4 * cost.descent_step(2, [4, 4, 4], 5, columns=5).operations


@pytest.mark.parametrize("bias", [False, True])
def test_a_step_of_gradient_descent_touches_parameters_levels_and_targets(bias):
    K, n, d, layers, runs = 5, 3, 4, 3, 2
    start = random_runs(K, n, d, layers, range(runs), 0.1, bias)
    above = activations(start.H, start.Ws, relu=True)[1:] + [start.Ws[-1] @ start.H]  # the last: as the residual
    targets = F.one_hot(labels(K, n), K).double()
    parameters = [start.H, *start.Ws, *([start.b] if bias else [])]
    expected = 2 * bytes_of(*parameters, *above) + bytes_of(targets)
    assert len(above) == layers
    assert cost.descent_step(runs, [d] * layers, K, K * n, itemsize=8, bias=bias).bytes == expected


# ------------------------------------------------------------------------------------------------------------- networks


def saved_by_autograd(model, x, y) -> list:
    """What the backward pass keeps: floating-point tensors of a number for each sample, each storage once."""
    kept = {}

    def keep(tensor):
        if tensor.is_floating_point() and tensor.ndim > 1 and not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.cross_entropy(model(x), y).backward()
    del kept[x.untyped_storage()._cdata]
    return [tensor for storage, tensor in kept.items() if storage not in weights]


@few
@given(
    st.integers(1, 3), st.integers(3, 9), st.integers(2, 4), st.integers(3, 5), st.integers(2, 9), st.integers(1, 4),
    st.integers(2, 7), st.booleans(),
)  # fmt: skip
def test_a_step_of_the_mlp_ensemble_has_the_products_that_the_formula_counts(
    runs, inputs, M, K, width, depth, batch, bias
):
    models = perceptrons.initialise(range(runs), inputs, M, K, width, depth, bias=bias)
    x, y = torch.randn(3 * batch, inputs), torch.arange(3 * batch) % K
    losses = [("ce", 0)] * runs
    sgd = SGD(2, 0.01, weight_decay=1e-3, nesterov=True, batch_size=batch)
    found = counted(perceptrons.train_together, models, x, y, losses, sgd)
    assert found == 6 * cost.mlp_step(runs, inputs, M, K, width, depth, batch).operations


@pytest.mark.parametrize("bias", [False, True])
def test_a_step_of_the_mlp_ensemble_touches_what_autograd_keeps_for_each_network(bias):
    runs, inputs, M, K, width, depth, batch = 3, 7, 2, 4, 5, 3, 6
    model = networks.mlp(inputs, M, K, width, depth, bias=bias)
    x, y = torch.randn(batch, inputs), torch.arange(batch) % K
    expected = 4 * bytes_of(*model.parameters()) + 2 * bytes_of(*saved_by_autograd(model, x, y)) + bytes_of(x, y)
    assert cost.mlp_step(runs, inputs, M, K, width, depth, batch, bias=bias).bytes == runs * expected


NETWORKS = {
    "ResNet18": lambda: networks.resnet18(K=5, channels=1, width=1 / 16),
    "ResNet18, odd width": lambda: networks.resnet18(K=3, width=3 / 64, bias=False),
    "VGG13": lambda: networks.vgg13(K=4, width=1 / 32),
    "ResNet20": lambda: networks.resnet20(K=6, width=1 / 8, head_layers=3, head_width=7),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("batch", "side"), [(3, 9), (4, 16)])
def test_a_step_of_a_network_has_the_products_and_the_traffic_that_the_formula_counts(name, batch, side):
    model = NETWORKS[name]()
    K, channels = list(model.parameters())[-1].shape[0], next(model.parameters()).shape[1]
    x, y = torch.randn(2 * batch, channels, side, side), torch.arange(2 * batch) % K
    work = cost.network_step(model, (batch, channels, side, side))

    def epochs(count):
        train(copy.deepcopy(model), x, y, F.cross_entropy, SGD(count, 0.01, batch_size=batch))

    assert counted(epochs, 2) - counted(epochs, 1) == 2 * work.operations  # without the look at the first sample
    x, y = x[:batch], y[:batch]
    kept = saved_by_autograd(model, x, y)
    assert work.bytes == 4 * bytes_of(*model.parameters()) + 2 * bytes_of(*kept) + bytes_of(x, y)


def test_kept_numbers_of_half_the_size_halve_that_part_of_the_traffic_only():
    model = networks.resnet18(K=3, width=1 / 16)
    x, y = torch.randn(4, 3, 8, 8), torch.arange(4) % 3
    full, half = (cost.network_step(model, x.shape, kept_itemsize=size) for size in (4, 2))
    assert full.bytes - half.bytes == bytes_of(*saved_by_autograd(model, x, y))
    assert full.operations == half.operations


def test_networks_side_by_side_have_the_products_of_each():
    # PyTorch counts a gradient of a grouped convolution as if it had no groups: one run shows the truth
    model, steps = networks.resnet20(K=3, width=1 / 8, head_layers=2, head_width=5), 3
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 3
    found = counted(
        resnets.train, resnets.Ensemble([model]), x, y, steps, 0.01, 1e-3, batch_size=4
    )  # fmt: skip
    assert found == steps * cost.network_step(model, (4, 3, 8, 8)).operations


# ----------------------------------------------------------------------------------------------------- rates and floors


def test_a_floor_is_the_larger_of_two_times():
    machine = cost.Rates("a machine", {"float64": 10.0, "float32": 40.0}, bandwidth=5.0)
    assert cost.floor(cost.Work(100, 10), machine, "float64") == (10.0, "operations")
    assert cost.floor(cost.Work(100, 20), machine, "float32") == (4.0, "bytes")
    with pytest.raises(ValueError, match="float64, float32"):
        cost.floor(cost.Work(1, 1), machine, "bfloat16")


def test_work_adds_up():
    step = cost.Work(3, 5)
    assert sum([step, 2 * step, step * 4], cost.Work(0, 0)) == cost.Work(21, 35)


def test_rates_are_operations_and_bytes_over_the_time_of_a_call(monkeypatch):
    def two_seconds(function, device):
        function()
        return 2.0

    monkeypatch.setattr(cost, "seconds", two_seconds)
    found, copied = [], []
    monkeypatch.setattr(torch.Tensor, "copy_", lambda into, source: copied.append(source.nbytes + into.nbytes))
    operations = counted(lambda: found.append(cost.rates("cpu")))
    (machine,), calls = found, len(copied)
    assert set(machine.matrix) == {"float64", "float32"}
    assert sum(2.0 * rate * calls for rate in machine.matrix.values()) == operations
    assert 2.0 * machine.bandwidth * calls == sum(copied)


def test_a_step_is_timed_without_the_call_that_warms_up(monkeypatch):
    now, calls = [0.0], []

    def section(steps):
        calls.append(steps)
        now[0] += 1.0 if len(calls) == 1 else steps / 1024

    monkeypatch.setattr(cost.time, "perf_counter", lambda: now[0])
    assert cost.seconds_per_step(section, "cpu", least=0.1) == 1 / 1024
    assert calls[0] == 1 and calls[-3:] == [calls[-1]] * 3 and calls[-1] / 1024 >= 0.1


def test_the_time_of_products_is_told_apart_from_that_of_other_operations():
    A, B, filters = torch.randn(40, 40), torch.randn(3, 4, 4), torch.randn(3, 8, 3, 3)
    norm, maps = torch.nn.BatchNorm2d(8), torch.randn(2, 8, 9, 9, requires_grad=True)

    def kinds(function):
        found = cost.parts(function)
        assert found.pop("between") > 0
        return {kind for kind, spent in found.items() if spent > 0}

    assert kinds(lambda: A @ A) == kinds(lambda: torch.baddbmm(B, B, B)) == {"products"}
    assert kinds(lambda: B.baddbmm_(B, B)) == kinds(lambda: torch.conv2d(maps, filters)) == {"products"}
    assert kinds(lambda: A.sin()) == {"passes"}
    assert kinds(lambda: norm(maps).backward(maps.detach())) >= {"normalisation"}
    assert "products" not in kinds(lambda: norm(maps).backward(maps.detach()))


# ------------------------------------------------------------------------------------------------- the page on cost


def constants(chapter: str) -> dict:
    """The tables of a chapter: what it assigns to names in capitals, as far as that takes no import, and literals."""
    found = {"__builtins__": {"tuple": tuple}, "math": math}
    for cell in Page(f"chapters/{chapter}").code:
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.Assign | ast.AugAssign):
                target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
                literal = not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node.value))
                if literal or target.split("[")[0].isupper():
                    with contextlib.suppress(NameError):
                        exec(compile(ast.Module([node], []), chapter, "exec"), found)
    return found


HERE = constants("back/cost")


@pytest.mark.parametrize("chapter", HERE["SIZES"])
def test_the_page_on_cost_has_the_sizes_of_the_chapters(chapter):
    settings_there = constants(chapter)["SETTINGS"]
    assert HERE["SIZES"][chapter] == {name: settings_there[name] for name in HERE["SIZES"][chapter]}


def test_the_page_on_cost_has_the_models_of_the_chapters():
    there = constants("extended-ufm/gradient-descent")
    figures = {
        name: (K, n, len(decays), bias, relu) for name, (K, n, decays, _, bias, relu, _) in there["FIGURES"].items()
    }
    assert HERE["FIGURES"] == figures and there["d"] == 20
    there = constants("low-rank-bias/gradient-descent")
    problems = {name: problem[:3] for name, problem in there["PROBLEMS"].items()}
    assert HERE["PROBLEMS"] == {
        name: problems[name] for name in problems.keys() - {"2 samples", "square"}
    }  # again 2, 5
    assert there["n"] == 50 and HERE["DECAYS"] == there["DECAYS"]
    assert {f"{name} samples" for name in there["SAMPLES"]} <= there["SETTINGS"].keys()


def test_the_page_on_cost_counts_the_panels_and_points_of_the_chapters():
    there = constants("memorization-dilation/experiments")
    cells = [ast.parse(cell.source) for cell in Page("chapters/memorization-dilation/experiments").code]
    calls = [node for cell in cells for node in ast.walk(cell) if isinstance(node, ast.Call)]
    panels = [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "settings_of"]
    assert [HERE["FIGURE_2"], HERE["FIGURES_5_TO_8"]] == [panels[0], panels[1] + panels[2]]
    assert len(there["LOSSES"]) == 4 and len(constants("memorization-dilation/at-scale")["LOSSES"]) == 2
    there = constants("low-rank-bias/networks")
    assert [len(there[name]) for name in ("DECAY_FACTORS", "RATE_FACTORS", "OTHER_DECAYS")] == [3, 3, 4]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_page_on_cost_has_the_numbers_of_images(name):
    if image_sets.resolve("auto", name) != name:
        pytest.skip(f"{image_sets.TITLES[name]} is not in the data folder")
    data = image_sets.load(name)
    so_far = data.y.bincount().cumsum(0).tolist()
    assert HERE["COUNTS"][name] == {N: so_far[N - 1] for N in HERE["COUNTS"][name]}
    assert HERE["SIDES"][name] == (data.x.shape[1], data.x.shape[-1])
