"""What `measure` finds of a model, the heads, batches and labels that it takes, and what it refuses in one sentence."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn

import collapsemetrics as metrics
from collapsemetrics import measure
from small_network import in_two_processes, network, noisy_network, numbers, samples


def doubles(n=60, seed=0):
    x, y = samples(n, seed)
    return x.double(), y


def batches(x, y, size=7):
    return list(zip(x.split(size), y.split(size), strict=True))


def of_features(H, y, centre="samples"):
    """What a row of any layer says, from all features at once."""
    means, of_samples = metrics.class_means(H, y)
    centred = means - (of_samples if centre == "samples" else means.mean(0))
    return {
        "d": H.shape[1],
        "samples": len(H),
        "nc1": (metrics.nc1 if centre == "samples" else metrics.dilation)(H, y).item(),
        "cdnv": metrics.cdnv(H, y).item(),
        "relative_spread": metrics.relative_spread(H, y),
        "nc2_etf": metrics.nc2_etf(centred).item(),
        "nc2_of": metrics.nc2_of(means).item(),
        "uniformity": metrics.uniformity(centred).item(),
        "numerical_rank": metrics.numerical_rank(centred).item(),
        "condition_number": metrics.condition_number(centred, min(len(means) - 1, H.shape[1])).item(),
    }


def of_head(H, y, head, centre="samples"):
    """What a row says of the features that a head reads."""
    (means, _), W = metrics.class_means(H, y), head.weight.detach().flatten(1)
    nc4 = metrics.nc4(H, W, None if head.bias is None else head.bias.detach(), means).item()
    return of_features(H, y, centre) | {"nc3": metrics.nc3(W, means).item(), "nc4": nc4}


def check(row, expected, rel=1e-8):
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=rel)


class Network(nn.Module):
    """Layers of every kind: positions, a tuple, one that works in place, one that does not run."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 2)
        self.norm = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6, 5)
        self.act = nn.ReLU(inplace=True)
        self.unused = nn.Identity()
        self.pair = Pair()
        self.fc = nn.Linear(5, 3)
        self.norm.eval()  # one part of a model that trains may be frozen

    def forward(self, x):
        x = self.norm(self.conv(x.reshape(-1, 1, 2, 3))).relu().mean((2, 3))
        return self.fc(self.act(self.hidden(self.pair(x)[0])))


class Pair(nn.Module):
    def forward(self, x):
        return x, None


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Network().double()


@torch.no_grad()
def layers_of(model, x):
    model.eval()
    conv = model.conv(x.reshape(-1, 1, 2, 3))
    pair = model.norm(conv).relu().mean((2, 3))
    hidden = model.hidden(pair)
    return {
        "conv": conv.mean((2, 3)),
        "pair": pair,
        "hidden": hidden,
        "act": hidden.relu(),
        "penultimate": hidden.relu(),
    }


# Of a model -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("centre", ["samples", "classes"])
def test_measures_of_a_model_are_those_of_its_whole_feature_matrix(model, centre):
    (x, y), (test, labels), outside = doubles(50), doubles(40, seed=1), -doubles(30)[0]
    features, of_test, of_outside = (layers_of(model, given) for given in (x, test, outside))
    loaders = {
        "test_loader": batches(test, labels),
        "outside_loader": [(part, torch.full((10,), -100)) for part in outside.split(10)],
    }
    found = measure(model, batches(x, y), features, nc4=True, centre=centre, **loaders)
    assert [row["layer"] for row in found] == list(features)
    for row, (name, H) in zip(found, features.items(), strict=True):
        expected = of_head(H, y, model.fc, centre) if name == "penultimate" else of_features(H, y, centre)
        expected["dilation"] = of_features(of_test[name], labels, centre)["nc1"]
        expected["nc5"] = metrics.nc5(metrics.class_means(H, y)[0], of_outside[name].mean(0)).item()
        check(row, expected)
    assert all(row["nc3"] is row["nc4"] is None for row in found[:-1])
    (alone,) = measure(model, iter(batches(x, y)), centre=centre)
    assert numbers(alone) == {name: found[-1][name] for name in numbers(alone)} and "dilation" not in alone
    (flat,) = measure(model, lambda: iter(batches(x, y)), "conv", reduce="flatten", centre=centre)
    check(flat, of_features(model.conv(x.reshape(-1, 1, 2, 3)).detach().flatten(1), y, centre))


def test_everything_comes_from_one_pass_unless_features_are_too_many(monkeypatch):
    """So that a loader which augments shows one set of samples."""
    passed = []

    def augmented():
        for x, y in batches(*samples(), 1):
            passed.append(y)
            yield x + torch.randn(6), y

    found = measure(network(), augmented, nc4=True)
    assert len(passed) == 60 and found[0]["nc4"] is not None
    nc4 = measure(network(), [samples()], nc4=True)[0]["nc4"]
    monkeypatch.setattr("collapsemetrics.network.KEPT", 100)
    measure(network(), augmented, nc4=True)
    assert len(passed) == 60 + 120
    assert measure(network(), [samples()], nc4=True)[0]["nc4"] == nc4
    with pytest.raises(ValueError, match="nc4 of so many features needs a second pass"):
        measure(network(), iter([samples()]), nc4=True)


def test_no_batch_and_no_feature_is_kept(model):
    """Of whatever a layer has returned, and of every batch, no more than the last is alive when the next is made."""
    made, alive = [], []
    for layer in (model.conv, model.hidden, model.act):
        layer.register_forward_hook(lambda module, inputs, output: made.append(weakref.ref(output)))

    def generate():
        for x, y in batches(*doubles(40), 4):
            alive.append(sum(reference() is not None for reference in made))
            batch = x.clone()
            made.append(weakref.ref(batch))
            yield batch, y
            del batch

    measure(model, generate, ["conv", "hidden", "act", "penultimate"], nc4=True)
    assert max(alive) <= 1 and len(made) == 43  # of ten batches, and of the first once more, which shows the head


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")


@pytest.mark.parametrize("breaks", [False, True])
def test_a_model_is_left_as_it_was_found_even_if_it_breaks(model, breaks):
    model.train()
    model.norm.eval()
    if breaks:
        model.act = Broken()
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if breaks:
        with pytest.raises(RuntimeError, match="broken"):
            measure(model, [doubles()], ["conv", "penultimate"])
    else:
        measure(model, [doubles()], ["conv", "penultimate"], nc4=True)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


class Caching(nn.Linear):
    """Keeps a tensor for later at its first pass, as models with position tables do."""

    table = None

    def forward(self, x):
        self.table = torch.ones_like(x[:1]) if self.table is None else self.table
        return super().forward(x * self.table)


def test_a_model_can_be_trained_on_with_what_it_kept_from_the_measurement():
    (x, y), model = samples(), Caching(6, 3)
    measure(model, [(x, y)])
    model(x.requires_grad_()).sum().backward()
    assert model.weight.grad is not None


def test_the_layers_of_a_model_are_listed_with_their_shapes_and_can_be_measured(model):
    before = torch.get_rng_state()
    found = metrics.layers(model, doubles())
    conv, linear = dict.fromkeys(("conv", "norm"), (60, 6, 1, 2)), {"pair": (60, 6), "hidden": (60, 5), "act": (60, 5)}
    assert list(found.items()) == [*(conv | linear).items(), ("fc", (60, 3))]  # in the order in which they run
    lines = [line.split(maxsplit=1) for line in str(found).splitlines()]
    assert lines == [["layer", "output"], *([name, str(shape)] for name, shape in found.items())]
    assert [row["layer"] for row in measure(model, [doubles()], found)] == list(found)
    assert not any(module._forward_hooks for module in model.modules()) and torch.equal(before, torch.get_rng_state())
    assert metrics.layers(model, doubles()[0]) == found
    with pytest.raises(ValueError, match="batch 0, .* split="):
        metrics.layers(model, None)


def test_a_scripted_part_of_a_model_which_takes_no_hooks_is_left_out_of_the_list_of_layers():
    (x, y), part = samples(), torch.jit.script(nn.Linear(6, 8))
    model = nn.Sequential(part, nn.Linear(8, 3))
    assert dict(metrics.layers(model, (x, y))) == {"1": (60, 3)} and measure(model, [(x, y)]).head == "1"


# The head -------------------------------------------------------------------------------------------------------------


class HeadFirst(nn.Module):
    """Declares its head before its backbone, and linear layers that are no head."""

    def __init__(self, wrap=lambda scores: scores):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.auxiliary = nn.Linear(8, 3)
        self.wrap = wrap

    def forward(self, x):
        h = self.backbone(x)
        scores = self.head(input=h)
        self.auxiliary(h)
        return self.wrap(scores)


class Overwriting(nn.Sequential):
    """Changes the features in place after its head has read them."""

    def forward(self, x):
        scores = self[1](h := self[0](x))
        h.relu_()
        return scores


class Twice(nn.Sequential):
    """Runs its head on other features too, after those that its output comes from."""

    def forward(self, x):
        scores = self[1](h := self[0](x))
        self[1](1 - h)
        return scores


class InParts(nn.Sequential):
    """Runs on a part of the batch after the other."""

    def forward(self, x):
        return torch.cat([super(InParts, self).forward(part) for part in x.split(25)])


def convolutional(*last):
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 5, 2), nn.ReLU(), *last, nn.Flatten())


POOL = nn.AdaptiveAvgPool2d(1)


@pytest.mark.parametrize(
    "model, features, head",
    [
        (nn.Linear(6, 3), lambda model, x: x, ""),
        (HeadFirst(), lambda model, x: model.backbone(x), "head"),
        (HeadFirst(lambda scores: (scores, None)), lambda model, x: model.backbone(x), "head"),
        (HeadFirst(lambda scores: {"loss": None, "logits": scores}), lambda model, x: model.backbone(x), "head"),
        (Overwriting(nn.Linear(6, 8), nn.Linear(8, 3)), lambda model, x: model[0](x), "1"),
        (Twice(nn.Linear(6, 8), nn.Linear(8, 3)), lambda model, x: model[0](x), "1"),
        (InParts(nn.Linear(6, 8), nn.Linear(8, 3)), lambda model, x: model[0](x), "1"),
        (nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(3)), lambda model, x: model[0](x), "1"),
        (convolutional(POOL, nn.Conv2d(5, 3, 1)), lambda model, x: model[:3](x).mean((2, 3)), "4"),
        (convolutional(nn.Conv2d(5, 3, 1), POOL), lambda model, x: model[:3](x).mean((2, 3)), "3"),
    ],
)
def test_the_head_is_the_module_whose_output_is_the_models_and_the_features_are_what_it_reads(model, features, head):
    (x, y), model = doubles(), model.double()
    module = model.get_submodule(head)
    found = measure(model, [(x, y)], nc4=True, centre="samples")
    assert found.head == head and f"the head is {repr(head) if head else 'the model itself'};" in str(found)
    assert not any(word in str(found) for word in ("plain", "several", "''"))
    check(found[0], of_head(features(model, x).detach(), y, module))
    for named in ({"head": head}, {"head": module}, {"K": 3}):
        assert measure(model, [(x, y)], nc4=True, centre="samples", **named) == found


def test_a_model_whose_output_is_no_modules_needs_the_name_and_a_head_that_is_not_plain_is_noted():
    model = HeadFirst(lambda scores: scores.softmax(1))
    with pytest.raises(ValueError, match="that of no linear layer .*: name the head"):
        measure(model, [samples()])
    assert measure(model, [samples()], head="head").head == "head"
    cosine = type("Cosine", (nn.Linear,), {"forward": lambda self, h: nn.functional.normalize(h) @ self.weight.T})
    assert "'1' is no plain linear layer" in str(measure(nn.Sequential(nn.ReLU(), cosine(6, 3)), [samples()]))


def test_where_no_module_gives_the_output_of_the_model_those_are_named_that_have_as_many_classes():
    class Averaged(HeadFirst):
        def forward(self, x):
            return self.head(self.backbone(x)) / 2 + self.auxiliary(self.backbone(x)) / 2

    for model, seen in (Averaged(), "'head', 'auxiliary'"), (nn.Sequential(network(), nn.Softmax(1)), "'0.2'"):
        with pytest.raises(ValueError, match=rf"those of {seen} have as many classes\): name the head.*head=\(W, b\)"):
            measure(model, [samples()])


def test_the_head_of_a_model_that_enlarges_its_scores_is_among_those_named_and_measured_once_it_is_given():
    class Enlarged(nn.Sequential):
        def forward(self, x):
            return {"out": nn.functional.interpolate(super().forward(x), scale_factor=2, mode="bilinear")}

    (x, y), model = samples(), Enlarged(nn.Conv2d(6, 5, 1), nn.Conv2d(5, 3, 1))
    maps, labels = x.view(2, 3, -1, 6).permute(0, 3, 1, 2), y.view(2, 3, -1)
    enlarged = labels.repeat_interleave(2, 1).repeat_interleave(2, 2)
    with pytest.raises(ValueError, match=r"\(those of '1' have as many classes\): name the head"):
        measure(model, [(maps, enlarged)])
    (row,) = measure(model, [(maps, enlarged)], head="1", centre="samples")
    with torch.no_grad():
        H = model[0](maps)
        right = model[1](H).argmax(1) == labels
    assert row["nc1"] == pytest.approx(metrics.nc1(H.movedim(1, -1).flatten(0, 2), y).item(), rel=1e-4)
    assert row["accuracy"] == pytest.approx(right.double().mean().item())


class Angular(nn.Module):
    """A network with the weight of its head beside its layers."""

    def __init__(self):
        super().__init__()
        self.body, self.weight = nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return nn.functional.normalize(self.body(x)) @ nn.functional.normalize(self.weight).T


def test_a_network_with_a_weight_of_its_own_is_no_head_that_reads_the_inputs():
    """Although its weight has the width of its inputs, and its output is the model's."""
    for model in (Angular(), nn.Sequential(Angular()), nn.DataParallel(Angular())):
        with pytest.raises(ValueError, match="no linear layer: name the head"):
            measure(model, [samples()])


@pytest.mark.parametrize("width, K", [(3, None), (8, 3)])
def test_of_several_tensors_that_may_be_the_scores_none_is_chosen(width, K):
    model, (x, y) = nn.ModuleList([nn.Linear(6, width), nn.Linear(width, 3)]).double(), doubles()
    model.forward = lambda x: ((h := model[0](x)), model[1](h))
    with pytest.raises(ValueError, match="several tensors that may be these: name the head"):
        measure(model, [(x, y)], K=K)
    check(measure(model, [(x, y)], head="1", K=K, centre="samples")[0], of_features(model[0](x).detach(), y))


def test_a_head_of_which_no_run_gives_the_output_of_the_model_is_noted():
    model, (x, y) = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)]).double(), doubles()
    model.forward = lambda x: model[1](model[0](x)) + model[1](model[0](-x))
    found = measure(model, batches(x, y), head="1", centre="samples")
    check(found[0], of_features(model[0](-x).detach(), y))
    assert [note for note in found.notes if "several" in note] == [
        "the head '1' runs several times in a pass: its last run counts"
    ]


def test_a_layer_that_runs_on_parts_of_a_batch_gives_the_features_of_all_of_it():
    (x, y), model = doubles(), InParts(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    (row,) = measure(model, [(x, y)], "1", K=3, centre="samples")
    check(row, of_features(model[0](x).relu().detach(), y))


def test_a_head_that_is_no_module_is_given_as_its_weight_and_bias_and_reads_the_last_of_the_layers():
    model, (x, y) = network().double(), doubles()
    W, b = model[2].weight, model[2].bias
    expected = measure(model, [(x, y)], ["0", "penultimate"], nc4=True)
    body = model[:2]  # whose output no module scores
    found = measure(nn.Sequential(body), [(x, y)], ["0.0", "0.1"], head=(W, b), nc4=True)
    assert [numbers(row) for row in found] == [pytest.approx(numbers(row)) for row in expected]
    assert found.K == 3 and "the head is '(W, b)';" in str(found)
    (row,) = measure(nn.Sequential(body), [(x, y)], "0", head=(W, None))
    assert row["nc3"] == pytest.approx(expected[1]["nc3"])
    with pytest.raises(ValueError, match=r"head = \(W, b\): give as layers= the layer that it reads"):
        measure(nn.Sequential(body), [(x, y)], head=(W, b), nc4=True)


def test_a_head_that_is_named_may_have_other_classes_and_may_be_a_convolution_over_words():
    model, (x, y) = network().double(), doubles()
    (row,) = measure(model, [(x, y)], head="0", K=3, centre="samples")
    check(row, of_features(x, y))
    assert row["nc3"] is row["duality"] is None
    body, head = nn.Conv1d(1, 8, 3).double(), nn.Conv1d(8, 3, 1).double()
    words = nn.Sequential(nn.Unflatten(1, (1, 6)), body, head, nn.AdaptiveAvgPool1d(1), nn.Flatten())
    (row,) = measure(words, [(x, y)], head="2", nc4=True, centre="samples")
    check(row, of_head(body(x[:, None]).detach().mean(2), y, head))


class LastToken(nn.Module):
    """A classifier of sequences: scores of every token, of which that of the last token that is no padding counts."""

    def __init__(self):
        super().__init__()
        self.embed, self.score = nn.Linear(6, 8), nn.Linear(8, 3, bias=False)

    def forward(self, tokens, attention_mask):
        scores = self.score(self.embed(tokens).cumsum(1))
        last = attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(1)
        return {"logits": scores[torch.arange(len(tokens)), last]}


def test_of_a_sequence_classifier_the_token_that_it_takes_is_the_sample():
    model, (x, y) = LastToken().double(), doubles()
    tokens, lengths = torch.randn(60, 5, 6).double() + x[:, None], torch.randint(1, 6, (60,))
    mask = (torch.arange(5) < lengths[:, None]).long()
    batch = {"tokens": tokens, "attention_mask": mask, "labels": y}
    embedded = model.embed(tokens).detach()
    found = measure(model, [batch], ["penultimate", model.embed], centre="samples")
    assert found.head == "score" and found[1]["layer"] == "embed"
    check(found[0], of_features(embedded.cumsum(1)[torch.arange(60), lengths - 1], y))
    check(found[1], of_features((embedded * mask[..., None]).sum(1) / lengths[:, None], y))

    def first(h, inputs):
        return h[:, 0] * inputs["attention_mask"][:, :1]

    check(measure(model, [batch], "embed", reduce=first, centre="samples")[0], of_features(embedded[:, 0], y))


def test_a_transformer_is_hooked_by_name_with_and_without_compilation():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(12, 3))
    (x, y), names, model = doubles(), ["0.layers.0", "0.layers.1.linear1", "penultimate"], model.double()
    loader = [(torch.stack([x, x + 1], 1), y)]
    found = measure(model, loader, names, centre="samples")
    with torch.no_grad():
        check(found[0], of_features(model.eval()[0].layers[0](loader[0][0]).mean(1), y))
    compiled = measure(torch.compile(model, backend="eager"), loader, [f"_orig_mod.{n}" for n in names[:2]])
    plain = measure(model, loader, names[:2])
    assert [numbers(row) for row in compiled] == [pytest.approx(numbers(row), rel=1e-8) for row in plain]


def test_a_compiled_model_is_measured_after_a_validation_pass_and_trains_on():
    torch.manual_seed(0)
    model, (x, y) = network(), samples()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        compiled.train()
        nn.functional.cross_entropy(compiled(x), y).backward()
        with torch.no_grad():
            compiled.eval()(x)
        found, plain = (measure(given, [(x, y)], nc4=True) for given in (compiled, model))
        assert list(found) == list(plain) and found.head == "_orig_mod.2"
        rows = measure(compiled, [(x, y)], "_orig_mod.0", K=3) + measure(model, [(x, y)], "0", K=3)
        assert numbers(rows[0]) == numbers(rows[1])
        assert len(graphs) == 2  # one compilation each for training and validation
        model[0].weight.data -= 0.1 * model[0].weight.grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.double], ids=str)
def test_inputs_get_the_precision_of_the_model(dtype):
    model, (x, y) = network().to(dtype), samples()
    found = measure(model, [((x,), y)], nc4=True)
    assert found == measure(model, [({"input": x.to(dtype)} | {"y": y})], nc4=True)
    check(found[0], of_features(model[:2](x.to(dtype)).detach(), y, "classes"), rel=1e-3)


# Batches and labels ---------------------------------------------------------------------------------------------------


class Sum(nn.Module):
    """A model of two inputs."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, left, right=0):
        return self.head(left + right)


x, y = samples()


@pytest.mark.parametrize(
    "batch",
    [
        ((x, 2 * x), y),
        ([2 * x, x], y),
        ({"left": x, "right": 2 * x}, y),
        *({"left": x, key: y, "right": 2 * x} for key in ("labels", "label", "label_ids", "target", "targets", "y")),
        *((3 * x, form) for form in (y.tolist(), y.numpy(), y.int(), y.numpy().astype(np.uint8))),
    ],
    ids=str,
)
def test_a_batch_has_one_input_or_several_and_its_labels_in_one_of_many_forms(batch):
    model = Sum()
    (expected,) = measure(model, [(3 * x, y)])
    assert numbers(measure(model, [batch])[0]) == pytest.approx(numbers(expected), rel=1e-5)


def test_labels_under_a_key_of_ones_own_need_its_name():
    model, batch = Sum(), {"left": x, "kind": y}
    assert measure(model, [batch], label_key="kind")[0] == measure(model, [(x, y)])[0]
    with pytest.raises(ValueError, match="entries left, kind; say which are the labels: label_key"):
        measure(model, [batch])


def test_a_function_makes_features_of_what_a_layer_gives():
    tokens, identity = torch.stack([torch.randn(60, 6), x], 1), nn.Sequential(nn.Identity())
    expected = measure(identity, [(x, y)], "0", K=3)
    assert measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: h[:, -1]) == expected
    averaged = torch.stack([x - 1, x + 1], 1)  # what no function reduces is averaged over its positions
    assert numbers(measure(identity, [(averaged, y)], "0", K=3)[0]) == pytest.approx(numbers(expected[0]), rel=1e-4)
    with pytest.raises(ValueError, match=r"reduce makes shape \(60, 2, 6\) of the layer '0'"):
        measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: h)


def test_samples_with_the_label_that_losses_ignore_are_left_out():
    ignored = torch.where((torch.arange(60) % 5 == 0) | (torch.arange(60) < 7), -100, y)  # the first batch is empty
    found = measure(network(), batches(x, ignored), nc4=True)[0]
    expected = measure(network(), [(x[ignored >= 0], y[ignored >= 0])], nc4=True)[0]
    assert found["samples"] == 43 and numbers(found) == pytest.approx(numbers(expected), rel=1e-5)


def test_a_class_that_does_not_occur_is_named_or_skipped():
    model, seen = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1000)), torch.tensor([3, 5, 998])
    y = seen[samples()[1]]
    with pytest.raises(ValueError, match="class 0 has no sample: K is 1000 .*, and labels seen are 3, 5, 998; give K"):
        measure(model, [(x, y)])
    found = measure(model, [(x, y)], missing="skip", nc4=True, test_loader=[(x[y > 3], y[y > 3])])
    small = nn.Sequential(model[0], model[1], nn.Linear(8, 3))
    small[2].weight.data, small[2].bias.data = model[2].weight.data[seen], model[2].bias.data[seen]
    (expected,) = measure(small, [samples()], nc4=True)
    assert found.K == 3 and "3 classes of 20 samples" in str(found) and found[0]["nc1_chance"] > 0
    decided = small(x).argmax(1) == samples()[1]  # the accuracy counts all thousand classes, nc4 these three
    assert found[0]["accuracy"] < decided.double().mean() == pytest.approx(expected.pop("accuracy"))
    check(found[0], numbers(expected), rel=1e-5)
    assert "997 of 1000 classes have no sample and are left out" in found.notes
    assert "the test samples are of 2 classes, and not of the same" in found.notes


# Notes and centres ----------------------------------------------------------------------------------------------------


def test_too_few_samples_are_noted_with_more_classes_than_dimensions_too_and_in_the_test_set():
    y = torch.arange(900) % 30
    x = torch.randn(900, 10, generator=torch.Generator().manual_seed(0))
    few = "too few samples of a class for their NC1"
    apart = x + 50 * torch.randn(30, 10, generator=torch.Generator().manual_seed(1))[y]
    assert few in str(measure(nn.Linear(10, 30), [(x, y)])) and few not in str(measure(nn.Linear(10, 30), [(apart, y)]))
    (x, y), test = samples(), "too few test samples of a class for dilation"
    assert test in str(measure(network(), [(x, y)], test_loader=[(x[:3], y[:3])]))


def test_class_means_are_centred_where_one_says():
    """Collapsed features, a simplex, with one large class: a simplex about the mean of the means only."""
    corners = torch.eye(4) - 1 / 4
    y = torch.arange(4).repeat_interleave(torch.tensor([60, 6, 6, 6]))
    loader, model = [(corners[y], y)], nn.Linear(4, 4)
    classes, by_samples = measure(model, loader), measure(model, loader, centre="samples")
    assert classes[0]["nc2_etf"] < 1e-6 < 0.5 < by_samples[0]["nc2_etf"]
    assert "mean of the class means" in str(classes) and "mean of all samples" in str(by_samples)
    assert "unequal classes" in str(classes) and "unequal" not in str(measure(model, [(corners, torch.arange(4))]))


def test_measures_print_as_a_table_to_three_digits_and_show_as_one(model):
    found = measure(model, [doubles(40)], ["conv", "penultimate"])
    found[0]["layer"] = "a<b"
    *lines, note = (line for line in str(found).splitlines() if not line.startswith(("(too few", "(noise")))
    assert lines[0].split() == ["layer", "a<b", "penultimate"] and len({len(line) for line in lines}) == 1
    rows = {name: values[-2:] for name, *values in map(str.split, lines) if name != "how"}
    assert list(rows) == [name for name in found[1] if found[1][name] is not None]
    assert rows["samples"] == ["40", "40"] and rows["nc3"][0] == "-"
    assert float(rows["nc1"][1]) == pytest.approx(found[1]["nc1"], rel=6e-3)
    assert note == "(3 classes of 13 to 14 samples; the head is 'fc'; centred at the mean of the class means)"
    assert "a&lt;b" in found._repr_html_() and found._repr_html_().count("<tr>") == len(lines)


# Several processes ----------------------------------------------------------------------------------------------------


def all_of(x, y, **options):
    loaders = {"test_loader": [(x + 1, y)], "outside_loader": [(-x, y)]}
    return [*measure(network(), [(x, y)], ["0", "penultimate"], nc4=True, **loaders, **options)]


def test_two_processes_measure_what_one_does(tmp_path):
    y = torch.cat([samples()[1][:11].clamp(max=1), samples()[1][11:]])  # the first has no sample of one class
    shares = [(x[:11], y[:11]), (x[11:], y[11:])]
    for rows in in_two_processes(lambda rank: all_of(*shares[rank], group=torch.distributed.group.WORLD), tmp_path):
        for row, alone in zip(rows, all_of(x, y), strict=True):
            assert row["layer"] == alone["layer"] and row["nc1_chance"] > 1
            assert numbers(row) == pytest.approx(numbers(alone), rel=1e-6)


def normalised(rank):
    """A network whose running statistics are those of one half of the samples, and that half."""
    model, half = noisy_network(), slice(30 * rank, 30 * rank + 30)
    model.train()(10 * rank + x[half])
    return model, [(x[half], y[half])]


def of_first(rank):
    model, share = normalised(rank)
    before, buffers = {name: value.clone() for name, value in model.state_dict().items()}, list(model.buffers())
    row = measure(model, share, group=torch.distributed.group.WORLD)[0]
    same = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return row, same and all(one is other for one, other in zip(buffers, model.buffers(), strict=True))


def test_several_processes_measure_the_model_of_the_first(tmp_path):
    (expected,) = measure(normalised(0)[0], [(x, y)])
    other = measure(normalised(1)[0], [(x, y)])[0]
    assert abs(other["nc1"] / expected["nc1"] - 1) > 0.01
    for row, same in in_two_processes(of_first, tmp_path):
        assert numbers(row) == pytest.approx(numbers(expected), rel=1e-5) and same


def error_of(rank):
    wrong = y.clone()
    wrong[45] = 7  # in the second process, and in its second batch
    batches = list(zip(x.split(10), wrong.split(10), strict=True))[3 * rank : 3 * rank + 3]
    with pytest.raises(ValueError, match="labels") as error:
        measure(noisy_network(), batches, group=torch.distributed.group.WORLD)
    return str(error.value)


def test_a_bad_label_in_one_process_stops_all_with_the_same_sentence(tmp_path):
    first, second = in_two_processes(error_of, tmp_path)
    assert "batch 1" in second and first == f"process 1 of the group: {second}"


def alone(rank):
    """Of the first process alone, while the second does something else; training with both goes on."""
    model, batches = nn.parallel.DistributedDataParallel(noisy_network()), [(x[:30], y[:30]), (x[30:], y[30:])]
    row = measure(model, batches)[0] if rank == 0 else None
    model(x).sum().backward()
    return row, model.broadcast_buffers


def test_one_process_can_measure_alone_a_model_that_is_wrapped_for_several(tmp_path):
    (row, synchronised), (_, too) = in_two_processes(alone, tmp_path)
    assert row["nc1"] == pytest.approx(measure(noisy_network(), [(x, y)])[0]["nc1"], rel=1e-5) and synchronised and too


# Bad input ------------------------------------------------------------------------------------------------------------

identity, wide = nn.Sequential(nn.Identity()), torch.ones(3, 9000)
few, labels = doubles(3)


@pytest.mark.parametrize(
    "options, named",
    [
        ({"layers": "hiden"}, "module = 'hiden': one of 'penultimate', 'conv', .*; did you mean 'hidden'"),
        ({"layers": "unused"}, "'unused' does not run"),
        ({"head": "act"}, r"head 'act' has no weight \(K, d\)"),
        ({"head": "act", "model": nn.ModuleDict({"act": nn.LazyLinear(3)})}, "run a lazy layer once before"),
        ({"head": "act", "model": nn.ModuleDict({"act": nn.Linear(6, 3, device="meta")})}, "meta device"),
        ({"head": "act", "model": nn.ModuleDict({"act": nn.Linear(6, 3, device="meta")}), "device": "cpu"}, "be read"),
        ({"model": lambda x: x}, "model is a function; an nn.Module"),
        ({"model": torch.jit.ScriptModule()}, "no ScriptModule is needed"),
        ({"model": identity, "layers": "", "K": 3, "reduce": len}, "reduce makes type int of the model itself"),
        ({"centre": "class"}, "centre = 'class'"),
        ({"K": 4}, "class 3 has no sample"),
        ({"K": 4, "nc4": True}, "nc4"),
        ({"loader": []}, "^the loader has no batch"),
        ({"test_loader": []}, "test_loader: the loader has no batch"),
        ({"loader": [few]}, "batch 0, .*: it has shape"),
        ({"loader": [(few, labels), None, (few, labels)]}, "batch 1, .*: it has type NoneType"),
        ({"loader": [(few, labels), (few * float("nan"), labels)]}, "'penultimate', batch 1: H has 15 entries"),
        ({"loader": [(few, ["cat"] * 3)]}, r"words: give their numbers 0..K-1, as \[names.index"),
        ({"loader": [(few, torch.zeros(3, 2).long())]}, r"shape \(3, 2\); one label for each of 3 samples"),
        ({"loader": [(few, labels + 1)]}, "labels 1 to 3; they are 0..2"),
        ({"test_loader": [(few[:2], labels[:2])]}, "test_loader: class 2 has no sample"),
        ({"model": nn.Linear(6, 1).double()}, "labels 0 to 2; they are 0..1"),
        ({"model": identity}, "name the head"),
        ({"model": identity, "loader": [(wide, labels)], "layers": "0", "K": 3}, "'0'.* reduce"),
    ],
)
def test_what_cannot_be_measured_of_a_model_is_said(model, options, named):
    with pytest.raises(ValueError, match=named):
        measure(**{"model": model, "loader": [(few, labels)], **options})
