"""Loaders, heads and labels as people have them: what `measure` takes, and what it refuses in one sentence."""

import numpy as np
import pytest
import torch
from torch import nn

import collapsemetrics as metrics
from collapsemetrics import measure
from small_network import in_two_processes, network, noisy_network, numbers, samples


def check(row, H, y, head, rel=1e-4):
    """A row of `measure` against the formulas on the features that go into the head."""
    H, (means, _), W = H.detach(), metrics.class_means(H.detach(), y), head.weight.detach().flatten(1)
    assert row["d"] == H.shape[1] and row["nc1"] == pytest.approx(metrics.nc1(H.double(), y).item(), rel=rel)
    assert row["nc3"] == pytest.approx(metrics.nc3(W, means).item(), rel=1e-4)
    assert row["nc4"] == pytest.approx(metrics.nc4(H, W, head.bias, means).item(), abs=0.04)


# Loaders --------------------------------------------------------------------------------------------------------------


def test_everything_comes_from_one_pass_unless_features_are_too_many(monkeypatch):
    """So that a loader which augments shows one set of samples."""
    passed = []

    def augmented():
        for x, y in zip(samples()[0], samples()[1], strict=True):
            passed.append(y)
            yield x[None] + torch.randn(6), y[None]

    found = measure(network(), augmented, nc4=True)
    assert len(passed) == 60 and found[0]["nc4"] is not None
    again = measure(network(), [samples()], nc4=True)[0]["nc4"]
    monkeypatch.setattr("collapsemetrics.network.KEPT", 100)
    measure(network(), augmented, nc4=True)
    assert len(passed) == 60 + 120
    assert measure(network(), [samples()], nc4=True)[0]["nc4"] == again
    with pytest.raises(ValueError, match="nc4 of so many features needs a second pass"):
        measure(network(), iter([samples()]), nc4=True)


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


@pytest.mark.parametrize("K", [None, 3])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: (s, None), lambda s: {"loss": None, "logits": s}])
def test_the_head_is_the_module_whose_output_is_the_models(wrap, K):
    torch.manual_seed(0)
    model, (x, y) = HeadFirst(wrap), samples()
    found = measure(model, [(x, y)], nc4=True, K=K, centre="samples")
    assert found.head == "head" and "the head is 'head'" in str(found)
    check(found[0], model.backbone(x), y, model.head)
    assert measure(model, [(x, y)], head=model.head)[0] == measure(model, [(x, y)], head="head")[0]


def test_a_model_whose_output_is_no_modules_needs_the_name():
    with pytest.raises(ValueError, match="that of no linear layer: name the head"):
        measure(HeadFirst(lambda scores: scores.softmax(1)), [samples()])
    assert measure(HeadFirst(lambda scores: scores.softmax(1)), [samples()], head="head").head == "head"


@pytest.mark.parametrize("pool_first", [False, True])
def test_a_convolution_over_single_positions_is_a_head(pool_first):
    torch.manual_seed(0)
    pool, head = nn.AdaptiveAvgPool2d(1), nn.Conv2d(5, 3, 1)
    last = [pool, head, nn.Flatten()] if pool_first else [head, pool, nn.Flatten()]
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), *last)
    x, y = torch.randn(30, 1, 6, 6), torch.arange(30) % 3
    (row,) = found = measure(model, [(x, y)], nc4=True, centre="samples")
    assert found.head == ("3" if pool_first else "2")
    check(row, model[:2](x).mean((2, 3)), y, head, rel=1e-3)


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
    torch.manual_seed(0)
    model, y = LastToken(), torch.arange(60) % 3
    tokens, lengths = torch.randn(60, 5, 6) + 2 * torch.eye(3, 6)[y][:, None], torch.randint(1, 6, (60,))
    mask = (torch.arange(5) < lengths[:, None]).long()
    batch = {"tokens": tokens, "attention_mask": mask, "labels": y}
    H = model.embed(tokens).cumsum(1).detach()
    pooled = H[torch.arange(60), lengths - 1]
    embedded = model.embed(tokens).detach()
    found = measure(model, [batch], ["penultimate", model.embed], centre="samples")
    assert found.head == "score" and found[1]["layer"] == "embed"
    assert found[0]["nc1"] == pytest.approx(metrics.nc1(pooled.double(), y).item(), rel=1e-3)
    masked = (embedded * mask[..., None]).sum(1) / lengths[:, None]
    assert found[1]["nc1"] == pytest.approx(metrics.nc1(masked.double(), y).item(), rel=1e-3)

    def shown(h, inputs):
        return (h * inputs["attention_mask"][..., None]).sum(1) / inputs["attention_mask"].sum(1, keepdim=True)

    (row,) = measure(model, [batch], "embed", reduce=shown, centre="samples")
    assert row["nc1"] == pytest.approx(found[1]["nc1"], rel=1e-4)


class Overwriting(nn.Sequential):
    """Changes the features in place after its head has read them."""

    def forward(self, x):
        scores = self[1](h := self[0](x))
        h.relu_()
        return scores


def test_features_are_those_that_the_head_has_read():
    (x, y), model = samples(), Overwriting(nn.Linear(6, 8), nn.Linear(8, 3))
    check(measure(model, [(x, y)], nc4=True)[0], model[0](x), y, model[1])


class Cosine(nn.Linear):
    """Scores that are cosines."""

    def forward(self, h):
        return super().forward(nn.functional.normalize(h))


def test_of_a_one_dimensional_convolution_the_channels_are_features_and_what_a_weight_alone_does_not_say_is_noted():
    torch.manual_seed(0)
    x, y = samples()
    body, head = nn.Conv1d(1, 8, 3, padding=1), nn.Conv1d(8, 3, 1)
    wrapped = nn.Sequential(body, nn.ReLU(), head, nn.AdaptiveAvgPool1d(1), nn.Flatten())
    found = measure(wrapped, [(x[:, None], y)], head="2", nc4=True)
    check(found[0], body(x[:, None]).relu().mean(2), y, head)
    assert "plain" not in str(found)
    plain, cosine = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), Cosine(8, 3)
    assert "'1' is no plain linear layer" in str(measure(nn.Sequential(plain, cosine), [(x, y)]))


def test_too_few_samples_are_noted_with_more_classes_than_dimensions_too_and_in_the_test_set():
    y = torch.arange(600) % 30
    x = torch.randn(600, 10, generator=torch.Generator().manual_seed(0))
    few = "too few samples of a class for their NC1"
    apart = x + 50 * torch.randn(30, 10, generator=torch.Generator().manual_seed(1))[y]
    assert few in str(measure(nn.Linear(10, 30), [(x, y)])) and few not in str(measure(nn.Linear(10, 30), [(apart, y)]))
    (x, y), test = samples(), "too few test samples of a class for dilation"
    assert test in str(measure(network(), [(x, y)], test_loader=[(x[:3], y[:3])]))


# Dilation -------------------------------------------------------------------------------------------------------------


def test_dilation_is_nc1_of_the_test_features_of_every_layer_and_a_column_where_it_was_asked_for():
    model, (x, y), layers = noisy_network().eval(), samples(seed=1), ["0", "1", "penultimate"]
    found = measure(model, [samples()], layers, test_loader=[(x[:25], y[:25]), (x[25:], y[25:])])
    with torch.no_grad():
        hidden = model[0](x)
        features = [hidden, model[1](hidden), model[1](hidden).relu()]
    for row, H in zip(found, features, strict=True):
        assert row["dilation"] == pytest.approx(metrics.dilation(H.double(), y).item(), rel=1e-5)
    without = measure(model, [samples()], layers)
    assert "dilation" not in str(without) and "\ndilation  " in str(found)
    assert [row | {"dilation": None} for row in found] == [row | {"dilation": None} for row in without]


# Batches and features of other shapes ---------------------------------------------------------------------------------


class Sum(nn.Module):
    """A model of two inputs."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, left, right=0):
        return self.head(left + right)


def test_batches_may_be_dictionaries_and_inputs_may_be_several():
    (x, y), model = samples(), Sum()
    (expected,) = measure(model, [(3 * x, y)])
    for batch in (
        {"left": x, "right": 2 * x, "labels": y},
        {"right": x, "label": y, "left": 2 * x},
        ((x, 2 * x), y),
        ([2 * x, x], y),
        ({"left": x, "right": 2 * x}, y),
    ):
        (row,) = measure(model, [batch])
        assert numbers(row) == pytest.approx(numbers(expected), rel=1e-5)


class Named(nn.Module):
    """Gives features a name, or takes it from them."""

    def forward(self, given):
        return given["last"] if isinstance(given, dict) else {"last": given}


def test_a_function_makes_features_of_what_a_layer_gives():
    x, y = samples()
    tokens = torch.stack([torch.randn(60, 6), x], 1)
    identity = nn.Sequential(nn.Identity())
    (last,) = measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: h[:, -1])
    (expected,) = measure(identity, [(x, y)], "0", K=3)
    assert last == expected
    wrapped = nn.Sequential(Named(), Named())
    assert measure(wrapped, [(x, y)], "0", K=3, reduce=lambda given: given["last"]) == [expected]
    with pytest.raises(ValueError, match=r"reduce makes shape \(60, 2, 6\) of the layer '0'"):
        measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: h)
    with pytest.raises(ValueError, match="reduce makes type tuple of the layer '0'"):
        measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: (h,))


def test_a_transformer_is_hooked_by_name_with_and_without_compilation():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(12, 3))
    (x, y), names = samples(), ["0.layers.0", "0.layers.1.linear1", "penultimate"]
    loader = [(torch.stack([x, x + 1], 1), y)]
    found = measure(model, loader, names)
    with torch.no_grad():
        H = model.eval()[0].layers[0](loader[0][0]).mean(1)
    assert found[0]["nc1"] == pytest.approx(metrics.nc1(H.double(), y).item(), rel=1e-4)
    compiled = measure(torch.compile(model, backend="eager"), loader, [f"_orig_mod.{n}" for n in names[:2]])
    assert [row["nc1"] for row in compiled] == pytest.approx([row["nc1"] for row in found[:2]], rel=1e-5)


# Labels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", [lambda y: y.tolist(), lambda y: y.numpy(), lambda y: y.int(), lambda y: y.numpy().astype(np.uint8)]
)
def test_labels_may_be_lists_and_arrays(form):
    x, y = samples()
    assert measure(network(), [(x, form(y))])[0] == measure(network(), [(x, y)])[0]


@pytest.mark.parametrize("key", ["labels", "label", "label_ids", "target", "targets", "y", "klass"])
def test_labels_may_have_several_keys_in_a_batch(key):
    (x, y), model = samples(), Sum()
    given = {"label_key": "klass"} if key == "klass" else {}
    assert measure(model, [{"left": x, key: y}], **given)[0] == measure(model, [(x, y)])[0]
    with pytest.raises(ValueError, match="entries left, kind; say which are the labels: label_key"):
        measure(model, [{"left": x, "kind": y}])


def test_samples_with_the_label_that_losses_ignore_are_left_out():
    x, y = samples()
    ignored = torch.where((torch.arange(60) % 5 == 0) | (torch.arange(60) < 7), -100, y)  # the first batch is empty
    batches = list(zip(x.split(7), ignored.split(7), strict=True))
    found = measure(network(), batches, nc4=True)[0]
    expected = measure(network(), [(x[ignored >= 0], y[ignored >= 0])], nc4=True)[0]
    assert found["samples"] == 43 and numbers(found) == pytest.approx(numbers(expected), rel=1e-5)


def test_a_class_that_does_not_occur_is_named_or_skipped():
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1000)), samples()
    y = torch.tensor([3, 5, 998])[y]
    message = r"class 0 has no sample: the head '2' has 1000 rows, K is 1000, and labels seen are 3, 5, 998; give K, or"
    with pytest.raises(ValueError, match=message):
        measure(model, [(x, y)])
    found = measure(model, [(x, y)], missing="skip", nc4=True, test_loader=[(x, y)])
    small = nn.Sequential(model[0], model[1], nn.Linear(8, 3))
    small[2].weight.data, small[2].bias.data = (part.data[[3, 5, 998]] for part in (model[2].weight, model[2].bias))
    expected = numbers(measure(small, [samples()], nc4=True, test_loader=[samples()])[0])
    assert found.K == 3 and "3 classes of 20 samples" in str(found) and found[0]["nc1_chance"] > 0
    assert "997 of 1000 classes have no sample and are left out" in found.notes
    others = measure(model, [(x, y)], missing="skip", test_loader=[(x[y > 3], y[y > 3])])
    assert "the test samples are of 2 classes, and not of the same" in others.notes
    assert {name: found[0][name] for name in expected} == pytest.approx(expected, rel=1e-5)


# Outside samples and centres ------------------------------------------------------------------------------------------


def test_nc5_is_the_cosine_of_the_class_means_to_the_mean_of_outside_samples():
    model, (x, y) = network(), samples()
    outside = torch.randn(50, 6)
    (row,) = measure(model, [(x, y)], outside_loader=[(part, torch.full((10,), -100)) for part in outside.split(10)])
    H, out = model[:2](x).detach().double(), model[:2](outside).detach().double().mean(0)
    means = metrics.class_means(H, y)[0]
    expected = np.mean([abs(mean @ out) / mean.norm() / out.norm() for mean in means])
    assert row["nc5"] == pytest.approx(expected, rel=1e-5)


def test_class_means_are_centred_where_one_says():
    """Collapsed features, a simplex, with one large class: a simplex about the mean of the means only."""
    corners = torch.eye(4) - 1 / 4
    y = torch.arange(4).repeat_interleave(torch.tensor([60, 6, 6, 6]))
    loader, model = [(corners[y], y)], nn.Linear(4, 4)
    classes, by_samples = measure(model, loader), measure(model, loader, centre="samples")
    assert classes[0]["nc2_etf"] < 1e-6 < 0.5 < by_samples[0]["nc2_etf"]
    assert "mean of the class means" in str(classes) and "mean of all samples" in str(by_samples)
    assert "unequal classes" in str(classes) and "unequal" not in str(measure(model, [(corners, torch.arange(4))]))


# Several processes ----------------------------------------------------------------------------------------------------


def all_of(x, y, **options):
    loaders = {"test_loader": [(x + 1, y)], "outside_loader": [(-x, y)]}
    return [*measure(network(), [(x, y)], ["0", "penultimate"], nc4=True, **loaders, **options)]


def test_two_processes_measure_what_one_does(tmp_path):
    x, y = samples()
    y[:11] = y[:11].clamp(max=1)  # the first process has no sample of one class
    shares = [(x[part], y[part]) for part in (slice(0, 11), slice(11, 60))]
    for rows in in_two_processes(lambda rank: all_of(*shares[rank], group=torch.distributed.group.WORLD), tmp_path):
        for row, alone in zip(rows, all_of(x, y), strict=True):
            assert row["layer"] == alone["layer"] and row["nc1_chance"] > 1
            assert numbers(row) == pytest.approx(numbers(alone), rel=1e-6)
