"""Tracking a network while it trains, and the pictures of what was found."""

import pickle
import random

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import collapsemetrics as metrics
from collapsemetrics import Tracker, measure
from lib.training.sgd import SGD, train
from small_network import network, noisy_network, samples


@pytest.fixture
def tracker():
    """Of two epochs of the training loop of the book."""
    model, (x, y) = noisy_network(), samples()
    tracker = Tracker(model, [(x, y)], ["0", "penultimate"], nc4=True, test_loader=[samples(seed=1)])
    history = train(model, x, y, nn.functional.cross_entropy, SGD(2, 0.1), callback=tracker)
    assert [row["nc1/penultimate"] for row in history] == tracker.curve("nc1")[1]
    assert "nc3/penultimate" in history[0] and "nc3/0" not in history[0]
    return tracker


def loader_of(kind):
    """Shuffled by the global generator, one of its own, with persistent workers, in batches; and in fixed order."""
    data, generator = TensorDataset(*samples()), torch.Generator().manual_seed(3)
    workers = {"num_workers": 1, "persistent_workers": True}
    if kind == "batches":  # the generator lies deeper than in the loader
        sampler = BatchSampler(RandomSampler(data, generator=generator), 6, False)
        return DataLoader(data, batch_sampler=sampler, **workers)
    options = {"global": {}, "own": {"generator": generator}, "workers": {"generator": generator, **workers}}
    return DataLoader(data, batch_size=6, shuffle=True, **options[kind])


def trained(kind, tracked):
    model, loader, steps = noisy_network(), loader_of(kind), 0
    tracker = Tracker(model, loader, ["0", "penultimate"], nc4=True, test_loader=[samples(seed=1)])
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(2)
    for _ in range(2):
        for x, y in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
            steps += 1
            if tracked and steps in (4, 10, 17, 20):  # in the middle of an epoch and at its end
                tracker(steps)
                assert model.training and model[1].training
    assert steps == 20 and len(tracker.rows) == (8 if tracked else 0)
    return model.state_dict()


@pytest.mark.parametrize("kind", ["global", "own", "workers", "batches"])
def test_training_is_the_same_to_the_last_bit_whether_it_is_tracked_or_not(kind):
    tracked, alone = trained(kind, True), trained(kind, False)
    assert all(torch.equal(tracked[name], alone[name]) for name in alone)


def accumulated(tracked):
    """Weights that were trained on gradients of five batches, and at the end of an epoch of what there is."""
    accelerate = pytest.importorskip("accelerate")
    accelerator, model = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=5), noisy_network()
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(*samples()), batch_size=8, shuffle=True)
    model, optimiser, loader = accelerator.prepare(model, optimiser, loader)
    tracker, steps = Tracker(model, loader, test_loader=loader), 0
    torch.manual_seed(2)
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimiser.step()
                optimiser.zero_grad()
            steps += 1
            if tracked and steps in (2, 8, 11):
                tracker(steps)
    assert len(tracker.rows) == (3 if tracked else 0)
    return model.state_dict()


def test_training_with_a_loader_of_accelerate_is_the_same_whether_it_is_tracked_or_not():
    tracked, alone = accumulated(True), accumulated(False)
    assert all(torch.equal(tracked[name], alone[name]) for name in alone)


def test_measuring_leaves_the_generators_of_random_numbers_where_they_were():
    loader = DataLoader(TensorDataset(*samples()), batch_size=16, shuffle=True)
    model, used = noisy_network(), []

    def noisy():
        for x, y in loader:
            used.append(y)
            yield x + random.random() + np.random.rand() + torch.randn(1), y

    def states():
        return pickle.dumps([random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()])

    before = states()
    measure(model, noisy, nc4=True, test_loader=noisy)
    with pytest.raises(ValueError, match="no batch"):
        measure(model, lambda: [None for _ in range(int(random.random()))])
    assert len(used) == 8 and states() == before


def test_a_tracker_keeps_a_row_for_each_epoch_and_layer(tracker):
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
    "every, epochs", [(1, [0, 0.5, 1, 2, 3, 4]), (2, [0, 2, 4]), ((1, 4), [1, 4]), (range(3), [0, 1, 2])]
)
def test_a_tracker_measures_the_epochs_that_are_due(every, epochs):
    tracker = Tracker(network(), [samples()], every=every)
    found = [epoch for epoch in (0, 0.5, 1, 2, 3, 4) if tracker(epoch)]
    assert found == epochs == tracker.curve("nc1")[0]


def test_a_tracker_refuses_what_it_cannot_read_twice_and_an_every_that_is_no_number():
    once = [(name, iter([])) for name in ("loader", "test_loader", "outside_loader")]
    for name, wrong in (*once, ("every", 0), ("every", 0.5)):
        with pytest.raises(ValueError, match=f"^{name} "):
            Tracker(network(), **{"loader": [samples()], name: wrong})
    tracker = Tracker(network(), [samples()])
    for look in (tracker.plot, lambda: tracker.curve("nc1")):
        with pytest.raises(ValueError, match="nothing was measured"):
            look()


def test_the_rows_of_a_tracker_are_saved_with_a_column_of_ones_own(tracker, tmp_path):
    own = {"seed": 7, "smoothed": True, "loss": "CE", "note": None}
    rows = metrics.Measures([row | own for row in tracker.rows])
    rows.save(tmp_path / "rows.json")
    assert metrics.Measures.load(tmp_path / "rows.json") == rows
    for refused in (rows.save, metrics.Measures.load):
        with pytest.raises(ValueError, match="suffix = '.csv': one of '.json' is needed"):
            refused(tmp_path / "rows.csv")
    assert not (tmp_path / "rows.csv").exists()


def test_a_tracker_goes_on_with_the_rows_of_a_checkpoint(tracker, tmp_path):
    torch.save(tracker.state_dict(), tmp_path / "state.pt")
    again = Tracker(tracker.model, [samples()], ["0", "penultimate"])
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.rows == tracker.rows and again.numbers() == tracker.numbers()
    assert again.numbers()["nc1/penultimate"] == tracker.last[-1]["nc1"]
    again(9)
    assert again.curve("nc1")[0] == [0, 1, 2, 9] and tracker.curve("nc1")[0] == [0, 1, 2]


def test_a_tracker_is_pickled_without_its_model(tracker):
    again = pickle.loads(pickle.dumps(tracker))
    assert again.rows == tracker.rows and again.curve("nc1") == tracker.curve("nc1")
    assert again.model is None and again.loader is None and again.plot() is not None
    with pytest.raises(ValueError, match="pickled, without its model"):
        again(6)


# Pictures -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed():
    yield
    plt.close("all")


def drawn(ax):
    return {line.get_label(): list(line.get_ydata()) for line in ax.get_lines() if not line.get_label().startswith("_")}


def test_the_picture_over_layers_shows_the_numbers_of_the_table(closed):
    style = dict(plt.rcParams)
    found = measure(network(), [samples()], ["0", "1", "penultimate"], nc4=True, test_loader=[samples(seed=1)])
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
    assert [text.get_text() for text in rank.get_xticklabels()] == ["0", "1", "penultimate"]


def test_collapsed_features_and_a_single_layer_have_a_picture_too(closed):
    x, y = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    found = measure(nn.Linear(3, 3, bias=False), [(x, y)])
    assert found[0]["nc1"] == 0
    found.plot().canvas.draw()
    with pytest.raises(ValueError, match="no row"):
        metrics.Measures().plot()


def test_the_picture_over_epochs_has_a_panel_for_each_column_and_a_line_for_each_layer(closed, tracker):
    nc1, rank, nc3 = tracker.plot(["nc1", "numerical_rank", "nc3"]).axes
    assert drawn(nc1) == {layer: tracker.curve("nc1", layer)[1] for layer in ("0", "penultimate")}
    assert list(drawn(nc3)) == ["penultimate"] and list(drawn(rank)) == ["0", "penultimate"]
    assert len(tracker.plot().axes) == 8
    assert len(tracker.plot("nc1").axes) == 1
    with pytest.raises(ValueError, match="column = 'nc5'.*'nc1', 'nc1_chance'"):
        tracker.plot(["nc5"])
