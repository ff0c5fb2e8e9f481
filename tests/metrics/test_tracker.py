"""Dilation, tracking, pictures and odd batches: what `measure` does for a network that a reader brings."""

import random

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lib import metrics
from lib.metrics import Tracker, measure
from lib.training.sgd import SGD, train


def numbers(row):
    return {column: value for column, value in row.items() if column != "layer" and value is not None}


def samples(seed, n=60, K=3, d=6):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    return torch.randn(n, d, generator=generator) + 2 * torch.eye(K, d)[y], y


def network(seed=0):
    """Everything that depends on the mode or draws random numbers, and names to hook."""
    torch.manual_seed(seed)
    parts = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)]
    return nn.Sequential(*parts)


def run(tracked, epochs=4, own_generator=False):
    model = network()
    generator = torch.Generator().manual_seed(1) if own_generator else None
    loader = DataLoader(TensorDataset(*samples(0)), batch_size=16, shuffle=True, generator=generator)
    tracker = Tracker(model, loader, ["0", "penultimate"], nc4=True, test_loader=[samples(1)])
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(2)
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        if tracked:
            tracker(epoch)
            assert model.training and model[1].training
    return model.state_dict(), tracker


# Dilation -------------------------------------------------------------------------------------------------------------


def test_dilation_is_nc1_of_the_test_features_of_every_layer():
    model, (x, y) = network().eval(), samples(1)
    found = measure(model, [samples(0)], ["0", "2", "penultimate"], test_loader=[(x[:25], y[:25]), (x[25:], y[25:])])
    with torch.no_grad():
        hidden = model[0](x)
        features = [hidden, model[2](model[1](hidden)), model[2](model[1](hidden))]
    for row, H in zip(found, features, strict=True):
        assert row["dilation"] == pytest.approx(metrics.dilation(H.double(), y).item(), rel=1e-5)
        assert row["dilation"] != pytest.approx(row["nc1"], rel=1e-3)


def test_dilation_is_a_column_where_it_was_asked_for_and_nowhere_else():
    model, loader = network(), [samples(0)]
    without, with_it = measure(model, loader), measure(model, loader, test_loader=loader)
    assert "dilation" not in str(without) and "\ndilation  " in str(with_it)
    assert without[0] | {"dilation": with_it[0]["nc1"]} == with_it[0]  # the same samples


def test_an_error_in_the_test_samples_says_so():
    x, y = samples(1)
    with pytest.raises(ValueError, match="test_loader: class 2 has no sample"):
        measure(network(), [samples(0)], test_loader=[(x[y < 2], y[y < 2])])
    with pytest.raises(ValueError, match="test_loader: the loader has no batch"):
        measure(network(), [samples(0)], test_loader=[])


# Batches and features of other shapes ---------------------------------------------------------------------------------


class Sum(nn.Module):
    """A model of two inputs."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, left, right=0):
        return self.head(left + right)


def test_batches_may_be_dictionaries_and_inputs_may_be_several():
    (x, y), model = samples(0), Sum()
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


def test_a_function_makes_features_of_what_a_layer_gives():
    x, y = samples(0)
    tokens = torch.stack([torch.randn(60, 6), x], 1)
    identity = nn.Sequential(nn.Identity())
    (last,) = measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: h[:, -1])
    (expected,) = measure(identity, [(x, y)], "0", K=3)
    assert last == expected
    with pytest.raises(ValueError, match=r"reduce makes shape \(60, 2, 6\) of the layer '0'"):
        measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: h)
    with pytest.raises(ValueError, match="reduce makes type tuple of the layer '0'"):
        measure(identity, [(tokens, y)], "0", K=3, reduce=lambda h: (h,))


def test_a_transformer_is_hooked_by_name_with_and_without_compilation():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(12, 3))
    (x, y), names = samples(0), ["0.layers.0", "0.layers.1.linear1", "penultimate"]
    loader = [(torch.stack([x, x + 1], 1), y)]
    found = measure(model, loader, names)
    with torch.no_grad():
        H = model.eval()[0].layers[0](loader[0][0]).mean(1)
    assert found[0]["nc1"] == pytest.approx(metrics.nc1(H.double(), y).item(), rel=1e-4)
    compiled = measure(torch.compile(model, backend="eager"), loader, [f"_orig_mod.{n}" for n in names[:2]])
    assert [row["nc1"] for row in compiled] == pytest.approx([row["nc1"] for row in found[:2]], rel=1e-5)


# Tracking -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_generator", [False, True])
def test_training_is_the_same_to_the_last_bit_whether_it_is_tracked_or_not(own_generator):
    tracked, _ = run(tracked=True, own_generator=own_generator)
    alone, _ = run(tracked=False, own_generator=own_generator)
    assert all(torch.equal(tracked[name], alone[name]) for name in alone)


def test_measuring_leaves_the_generators_of_random_numbers_where_they_were():
    loader = DataLoader(TensorDataset(*samples(0)), batch_size=16, shuffle=True)
    model, used = network(), 0

    def noisy():
        nonlocal used
        for x, y in loader:
            used += 1
            yield x + random.random() + np.random.rand() + torch.randn(1), y

    def drawn():
        return random.random(), np.random.rand(), torch.rand(1).item()

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    expected = drawn()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    measure(model, noisy, nc4=True, test_loader=noisy)
    with pytest.raises(ValueError, match="no batch"):
        measure(model, lambda: [None for _ in range(int(random.random()))])
    assert used == 8 and drawn() == expected


def test_a_tracker_keeps_a_row_for_each_epoch_and_layer():
    _, tracker = run(tracked=True, epochs=3)
    expected = [(epoch, layer) for epoch in range(3) for layer in ("0", "penultimate")]
    assert [(row["epoch"], row["layer"]) for row in tracker.rows] == expected
    assert tracker.rows[-1] == {"epoch": 2} | tracker.last[-1]
    epochs, values = tracker.curve("nc1")
    assert epochs == [0, 1, 2] and values == [row["nc1"] for row in tracker.rows[1::2]]
    assert tracker.curve("dilation", "0")[1] == [row["dilation"] for row in tracker.rows[::2]]
    with pytest.raises(ValueError, match="layer = '9'.*'0', 'penultimate'"):
        tracker.curve("nc1", "9")
    with pytest.raises(ValueError, match="column = 'nc3'"):
        tracker.curve("nc3", "0")


@pytest.mark.parametrize(
    "every, epochs", [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), ((1, 4), [1, 4]), (range(3), [0, 1, 2])]
)
def test_a_tracker_measures_the_epochs_that_are_due(every, epochs):
    tracker = Tracker(network(), [samples(0)], every=every)
    found = [epoch for epoch in range(5) if tracker(epoch)]
    assert found == epochs == tracker.curve("nc1")[0]


def test_a_tracker_is_a_callback_of_the_training_loop_of_the_book():
    (x, y), model = samples(0), network()
    tracker = Tracker(model, [(x, y)], ["0", "penultimate"])
    history = train(model, x, y, nn.functional.cross_entropy, SGD(2, 0.1), callback=tracker)
    assert [row["nc1/penultimate"] for row in history] == tracker.curve("nc1")[1]
    assert "nc3/penultimate" in history[0] and "nc3/0" not in history[0]


def test_a_tracker_refuses_what_it_cannot_read_twice_and_an_every_that_is_no_number():
    for name, wrong in (("loader", iter([])), ("test_loader", iter([])), ("every", 0), ("every", 0.5)):
        with pytest.raises(ValueError, match=f"^{name} "):
            Tracker(network(), **{"loader": [samples(0)], name: wrong})
    tracker = Tracker(network(), [samples(0)])
    for look in (tracker.plot, lambda: tracker.curve("nc1")):
        with pytest.raises(ValueError, match="nothing was measured"):
            look()


# Pictures -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed():
    yield
    plt.close("all")


def drawn(ax):
    return {line.get_label(): list(line.get_ydata()) for line in ax.get_lines() if not line.get_label().startswith("_")}


def test_the_picture_over_layers_shows_the_numbers_of_the_table(closed):
    style = dict(plt.rcParams)
    found = measure(network(), [samples(0)], ["0", "2", "penultimate"], nc4=True, test_loader=[samples(1)])
    nc1, spread, geometry, rank = found.plot().axes
    assert dict(plt.rcParams) == style
    names = {"NC1, random labels": "nc1_chance", "NC1": "nc1", "dilation": "dilation"}
    assert drawn(nc1) == {name: [row[column] for row in found] for name, column in names.items()}
    assert drawn(spread)["relative spread"] == [row["relative_spread"] for row in found]
    lines = drawn(geometry)
    assert lines["NC2, simplex"] == [row["nc2_etf"] for row in found]
    assert lines["NC3"] == [found[-1]["nc3"]] and lines["NC4"] == [found[-1]["nc4"]]
    assert list(rank.get_lines()[0].get_ydata()) == [row["numerical_rank"] for row in found]
    assert list(rank.get_lines()[1].get_ydata()) == [2, 2]  # K - 1
    assert [text.get_text() for text in rank.get_xticklabels()] == ["0", "2", "penultimate"]


def test_collapsed_features_and_a_single_layer_have_a_picture_too(closed):
    x, y = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    found = measure(nn.Linear(3, 3, bias=False), [(x, y)])
    assert found[0]["nc1"] == 0
    found.plot().canvas.draw()
    with pytest.raises(ValueError, match="no row"):
        metrics.Measures().plot()


def test_the_picture_over_epochs_has_a_panel_for_each_column_and_a_line_for_each_layer(closed):
    _, tracker = run(tracked=True, epochs=3)
    nc1, rank, nc3 = tracker.plot(["nc1", "numerical_rank", "nc3"]).axes
    assert drawn(nc1) == {layer: tracker.curve("nc1", layer)[1] for layer in ("0", "penultimate")}
    assert list(drawn(nc3)) == ["penultimate"] and list(drawn(rank)) == ["0", "penultimate"]
    assert len(tracker.plot().axes) == 8
    assert len(tracker.plot("nc1").axes) == 1
    with pytest.raises(ValueError, match="column = 'nc5'.*'nc1', 'nc1_chance'"):
        tracker.plot(["nc5"])
