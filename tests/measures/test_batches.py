"""Batches and labels of many kinds, what dimensions are taken for, and what is noted or refused about them."""

from dataclasses import dataclass
from itertools import cycle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import collapsemetrics as metrics
from collapsemetrics import measure
from small_network import network, numbers, samples

x, y = samples()
pairs = list(zip(x.split(20), y.split(20), strict=True))


def check(found, expected, rel=1e-5):
    """Rows of the same numbers, whatever the layers are called."""
    for row, other in zip(found, expected, strict=True):
        assert numbers(row) == pytest.approx(numbers(other), rel=rel)


def plain(H, y, head=None):
    """What is found of a matrix of features, which a head may read."""
    if head is None:
        return measure(nn.Sequential(nn.Identity()), [(H.detach(), y)], "0", K=int(y.max()) + 1)
    return measure(head, [(H.detach(), y)])


# Loaders --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loader", "test_loader"])
def test_a_batch_that_is_none_is_named(name):
    with pytest.raises(ValueError, match="batch 1, .*: it has type NoneType"):
        measure(network(), **{"loader": pairs, name: [pairs[0], None, *pairs[1:]]})


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(x, y, strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_stream_that_each_worker_may_read_whole_is_noted():
    note = "each of 2 workers reads all of an IterableDataset"
    found = measure(network(), DataLoader(Stream(), batch_size=20, num_workers=2))
    assert found[0]["samples"] == 120 and note in str(found)
    for loader in (DataLoader(Stream(), 20, num_workers=1), DataLoader(TensorDataset(x, y), 20, num_workers=2)):
        assert "workers" not in str(measure(network(), loader))


def test_of_a_loader_without_an_end_a_number_of_batches_is_read():
    drawn = []

    def endless():
        for batch in cycle(pairs):
            drawn.append(1)
            yield batch

    expected = measure(network(), pairs, test_loader=pairs, outside_loader=pairs)
    loaders = {"test_loader": endless, "outside_loader": endless}
    assert measure(network(), endless, batches=3, **loaders) == expected and len(drawn) == 9
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match=f"batches = {wrong}: a positive integer"):
            measure(network(), endless, batches=wrong)


@pytest.mark.parametrize("loaders", [{"a": pairs, "b": pairs}, [DataLoader(TensorDataset(x, y))]])
def test_several_loaders_are_refused(loaders):
    with pytest.raises(ValueError, match="it has type .*; if these are several loaders, measure each"):
        measure(network(), loaders)


def test_samples_of_no_class_need_no_labels():
    def nc5(outside):
        return measure(network(), pairs, outside_loader=outside)[0]["nc5"]

    expected = metrics.nc5(metrics.class_means(network()[:2](x), y)[0], network()[:2](-x).mean(0)).item()
    alone = [-x[:20], -x[20:]]
    for outside in (alone, [(part,) for part in alone], [(part, None) for part in alone]):
        assert nc5(outside) == pytest.approx(expected, rel=1e-5)


# Batches --------------------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    inputs: torch.Tensor
    y: torch.Tensor


class Takes(nn.Module):
    """A model that takes a list or a dictionary as one argument."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, given):
        assert isinstance(given, list | dict)
        parts = list(given.values()) if isinstance(given, dict) else given
        return self.net(parts[0] + parts[1])


def test_a_function_makes_inputs_and_labels_of_a_batch_and_another_runs_the_model():
    expected = measure(network(), pairs)
    batches = [Batch(*pair) for pair in pairs]
    assert measure(network(), batches, split=lambda batch: (batch.inputs, batch.y)) == expected
    with pytest.raises(ValueError, match="batch 0, .* unless split= is given: it has type Batch"):
        measure(network(), batches)
    triples = [(part, 0 * part, labels) for part, labels in pairs]
    for inputs in (list, lambda parts: {"a": parts[0], "b": parts[1]}):
        options = {"split": lambda batch, inputs=inputs: (inputs(batch[:2]), batch[2]), "forward": lambda m, x: m(x)}
        check(measure(Takes(), triples, **options), expected)
    with pytest.raises(ValueError, match="batch 0, .* unless split= is given: y is torch.float32"):
        measure(network(), triples)


def test_inputs_may_be_arrays_also_within_others():
    check(measure(network(), [(x.numpy(), y.numpy())]), measure(network(), [(x, y)]))
    nested = [({"given": [x.numpy(), 0 * x.numpy()]}, y)]
    check(measure(Takes(), nested), measure(network(), [(x, y)]))


class Image(torch.Tensor):
    """Tensors that refuse to be computed with together with labels of their kind, as fastai's."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if Image in types and Category in types:
            return NotImplemented
        return super().__torch_function__(function, types, arguments, named)


class Category(Image):
    pass


def test_images_and_labels_may_be_of_two_tensor_subclasses():
    found = measure(network(), [(x.as_subclass(Image), y.as_subclass(Category))], nc4=True)
    assert found == measure(network(), [(x, y)], nc4=True) and type(found[0]["nc1"]) is float


# Labels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [y.float(), y.double()[:, None], y[:, None], y.numpy().astype(np.uint16)], ids=str)
def test_labels_are_integers_of_any_type(form):
    assert measure(network(), [(x, form)]) == measure(network(), [(x, y)])
    assert metrics.nc1(x, form) == metrics.nc1(x, y)


@pytest.mark.parametrize("form", [lambda y: y.bool(), lambda y: y.float()[:, None]])
@pytest.mark.parametrize("squeeze", [False, True])
def test_one_logit_is_a_head_of_two_opposite_rows(form, squeeze):
    torch.manual_seed(0)
    body, head, two = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 2)
    w, b = head.weight.data, head.bias.data
    two.weight.data, two.bias.data = torch.cat([-w, w]), torch.cat([-b, b])
    last = [nn.Flatten(0)] if squeeze else []
    found = measure(nn.Sequential(body, nn.ReLU(), head, *last), [(x, form(y % 2))], nc4=True)
    expected = measure(nn.Sequential(body, nn.ReLU(), two), [(x, y % 2)], nc4=True)
    assert found == expected and found.K == 2 and 0 < found[0]["nc4"] < 1


@pytest.mark.parametrize(
    "labels, named",
    [
        (y + 1, "labels 1 to 3; they are 0..2; subtract 1$"),
        (y.masked_fill(y == 1, 255), "labels 0 to 255; they are 0..2; ignore_index=255"),
        (y - 1, "labels -1 to 1; they are 0..2$"),
        (torch.eye(3)[y], r"y.argmax\(1\) of one-hot"),
        (torch.eye(3)[y].long(), r"y.argmax\(1\) of one-hot"),
        (0.9 * torch.eye(3)[y] + 0.1 / 3, r"y.argmax\(1\) of one-hot or soft"),
        (x[:, 0], "labels are integers"),
    ],
)
def test_labels_that_are_none_are_refused_with_what_makes_labels_of_them(labels, named):
    with pytest.raises(ValueError, match=named):
        measure(network(), [(x, labels)])


# Labels of positions --------------------------------------------------------------------------------------------------


def maps(n=6, height=5, width=4):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (n, height, width), generator=generator)
    return torch.randn(n, 2, height, width, generator=generator) + labels[:, None], labels


@pytest.mark.parametrize("shape", [(6, 5, 4), (4, 8, 8)])  # the second has as many channels as rows and columns
def test_with_labels_of_pixels_each_pixel_is_a_sample(shape):
    images, labels = maps(*shape)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    H = model[:2](images).permute(0, 2, 3, 1).reshape(-1, 8)
    head = nn.Linear(8, 3)
    head.weight.data, head.bias.data = model[2].weight.data[:, :, 0, 0], model[2].bias.data
    found = measure(model, [(images, labels)], ["1", "penultimate"])
    expected = plain(H, labels.flatten(), head)
    check(found[1:], expected)
    assert found[0]["nc1"] == found[1]["nc1"] and "each labelled position is a sample" in found.notes
    ignored = labels.masked_fill(images[:, 0] > 1, 255)
    kept = ignored.flatten() != 255
    check(measure(model, [(images, ignored[:, None].float())], ignore_index=255),
          plain(H[kept], labels.flatten()[kept], head))  # fmt: skip
    check(measure(model, [(images, labels)], reduce=lambda h: h.movedim(1, 3).flatten(0, 2)), expected)
    with pytest.raises(ValueError, match="one label for each"):
        measure(model, [(images, labels)], reduce="flatten")


class Cosine(nn.Conv2d):
    """A head that is not linear."""

    def forward(self, h):
        return super().forward(nn.functional.normalize(h))


@pytest.mark.parametrize("kind", [nn.Conv2d, Cosine])
def test_accuracy_and_nc4_of_pixels_come_from_the_scores_of_pixels(kind):
    torch.manual_seed(0)
    images, labels = maps(4, 8, 8)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Conv2d(3, 8, 1), kind(8, 3, 1))
    labels = labels[:, :4, :4].masked_fill(images[:, 0, :4, :4] > 1, -100)
    found = measure(model, [(images, labels)], ["1", "penultimate"], nc4=True)
    kept, H = labels >= 0, model[:2](images).movedim(1, 3)
    scores = model(images).movedim(1, 3)[kept]
    assert found[1]["accuracy"] == (scores.argmax(1) == labels[kept]).double().mean().item()
    means, _ = metrics.class_means(H[kept].detach(), labels[kept])
    nearest = torch.cdist(H[kept], means).argmin(1)
    assert found[1]["nc4"] == (scores.argmax(1) != nearest).double().mean().item()
    assert found[0]["ncm_accuracy"] == (nearest == labels[kept]).double().mean().item()
    assert ("no plain linear layer" in str(found)) == (kind is Cosine)


def test_maps_of_another_size_take_the_labels_of_the_nearest_pixels():
    images, labels = maps(6, 6, 4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 2, stride=2), nn.Conv2d(8, 3, 1), nn.Upsample(scale_factor=2))
    coarse = torch.randint(3, (6, 3, 2), generator=torch.Generator().manual_seed(1))
    labels = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)
    found = measure(model, [(images, labels)], ["0"], K=3)
    assert "labels are resized to the maps of '0', by nearest neighbours" in found.notes
    H = model[0](images).permute(0, 2, 3, 1).reshape(-1, 8)
    check(found, plain(H, coarse.flatten()))


class Tagger(nn.Module):
    """Scores of each token, from token numbers."""

    def __init__(self, words=5, classes=3):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(words, 8), nn.Linear(8, 8), nn.Linear(8, classes)

    def forward(self, input_ids):
        return {"logits": self.head(self.mix(self.embed(input_ids)).cumsum(1).tanh())}


def test_with_labels_of_tokens_each_token_is_a_sample():
    torch.manual_seed(0)
    model, ids, labels = Tagger(), torch.randint(5, (12, 7)), torch.randint(3, (12, 7))
    H = model.mix(model.embed(ids)).cumsum(1).tanh().flatten(0, 1)
    check(measure(model, [(ids, labels)]), plain(H, labels.flatten(), model.head))
    convolution = nn.Sequential(nn.Conv1d(2, 8, 1), nn.Conv1d(8, 3, 1))  # (N, d, T)
    signals = torch.randn(12, 2, 7)
    H = convolution[0](signals).mT.flatten(0, 1)
    check(measure(convolution, [(signals, labels)], "0", K=3), plain(H, labels.flatten()))


def test_if_labels_are_the_inputs_each_token_has_the_label_of_the_next():
    torch.manual_seed(0)
    model, ids = Tagger(classes=5), torch.randint(5, (30, 7))
    labels = ids.masked_fill(torch.arange(7) >= 5, -100)
    found = measure(model, [{"input_ids": ids, "labels": labels}])
    H = model.mix(model.embed(ids)).cumsum(1).tanh()
    check(found, plain(H[:, :4].flatten(0, 1), ids[:, 1:5].flatten(), model.head))
    assert "labels are the input_ids: each token has the label of the next one, as in causal models" in found.notes
    shuffled = measure(model, [{"input_ids": ids, "labels": ids.flip(0)}])
    check(shuffled, plain(H.flatten(0, 1), ids.flip(0).flatten(), model.head))


# Masks and orders of dimensions ---------------------------------------------------------------------------------------


class Masked(nn.Module):
    """A layer of tokens, with a mask under a name of one's choice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 8)


class Shown(Masked):
    def forward(self, tokens, mask):
        return self.layer(tokens)


class Padded(Masked):
    def forward(self, tokens, src_key_padding_mask):
        return self.layer(tokens)


def test_padding_does_not_count_whatever_the_mask_is_called():
    torch.manual_seed(0)
    tokens, shown = torch.randn(60, 5, 6) + x[:, None], torch.arange(5) < torch.randint(1, 6, (60, 1))
    for model in (Shown(), Padded()):
        h, none = model.layer(tokens), {"layers": "layer", "K": 3}
        H = (h * shown[..., None]).sum(1) / shown.sum(1, keepdim=True)
        expected = plain(H, y)
        note = "an input looks like a mask of tokens"
        if isinstance(model, Shown):
            batches = [((tokens, shown.long()), y)]
            check(measure(model, batches, mask="mask", **none), expected)
            check(measure(model, batches, mask=lambda x: x[1], **none), expected)
            unused = measure(model, batches, **none)
            assert note in str(unused) and unused[0]["nc1"] != pytest.approx(expected[0]["nc1"], rel=1e-2)
            with pytest.raises(ValueError, match="mask = 'msk': .*; did you mean 'mask'"):
                measure(model, batches, mask="msk", **none)
        else:
            named = {"tokens": tokens, "src_key_padding_mask": ~shown, "y": y}
            for batch in (((tokens, ~shown), y), named):
                found = measure(model, [batch], **none)
                check(found, expected)
                assert note not in str(found)


class Recurrent(nn.Module):
    """Reads tokens (T, N, d), or (N, T, d)."""

    def __init__(self, batch_first):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=batch_first)

    def forward(self, tokens):
        return self.lstm(tokens)[0]


def test_an_order_of_dimensions_that_is_ambiguous_is_noted():
    note = "may not be (N, T, d) or (N, d, H, W)"
    tokens = torch.randn(20, 20, 6)
    options = {"layers": "lstm", "K": 3}
    assert note in str(measure(Recurrent(False), [(tokens, y[:20]), (tokens, y[1:21])], **options))
    shorter = [(tokens, y[:20]), (tokens[:7], y[:7])]  # only samples come in a number that varies
    assert note not in str(measure(Recurrent(True), shorter, **options))
    images = torch.randn(60, 3, 5, 6)
    norm, convolution = nn.Sequential(nn.LayerNorm(6)), nn.Sequential(nn.Conv2d(3, 6, 1))
    assert f"'0' {note}" in str(measure(norm, [(images, y)], "0", K=3))
    assert note not in str(measure(norm, [(images, y)], "0", K=3, reduce=lambda h: h.mean((1, 2))))
    assert note not in str(measure(convolution, [(images, y)], "0", K=3))
    pooled = nn.Sequential(nn.Linear(6, 3), nn.Flatten(1, 2))
    assert f"'penultimate' {note}" in str(measure(pooled, [(images, y)], head="0"))


# Notes ----------------------------------------------------------------------------------------------------------------


def test_the_bias_of_too_few_samples_is_said_in_per_cent():
    """Isotropic noise about a few means: NC1 of many samples against that of few, averaged."""
    generator = torch.Generator().manual_seed(0)
    K, d, identity = 4, 40, nn.Sequential(nn.Identity())
    means = 0.6 * torch.randn(K, d, generator=generator)

    def drawn(n):
        y = torch.arange(K).repeat(n)
        return measure(identity, [(means[y] + torch.randn(K * n, d, generator=generator), y)], "0", K=K)

    true = drawn(20_000)[0]["nc1"]
    few = [drawn(8) for _ in range(50)]
    said = [int(str(found).split("off by: 0 ")[1].split("%")[0]) / 100 for found in few]
    assert np.mean(said) == pytest.approx(1 - np.mean([found[0]["nc1"] for found in few]) / true, abs=0.05)
    assert "off by" not in str(drawn(200))
    assert "off by: 0 100%" in str(measure(identity, [(torch.randn(4, d), torch.arange(4))], "0", K=K))
