import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib.models.losses import squared_error
from lib.models.networks import resnet18
from lib.training.sgd import SGD, evaluate, train
from without_gpu import Waits


def blobs(N=60, d=4, dtype=torch.float32):
    """Three well separated classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 3
    centres = 3 * torch.randn(3, d, generator=generator, dtype=dtype)
    return centres[y] + 0.3 * torch.randn(N, d, generator=generator, dtype=dtype), y


def linear(dtype=torch.float32):
    model = nn.Linear(4, 3).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-0.3, 0.4, parameter.numel()).view_as(parameter))
    return model


def images():
    x, y = blobs(24, d=64)
    return x.view(24, 1, 8, 8), y


def same_state(first, second):
    first, second = first.state_dict(), second.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def plain(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_steps_are_those_of_sgd_with_momentum_and_weight_decay_written_out(nesterov):
    """With one batch per epoch the order of the samples does not matter.

    Nesterov's momentum is Sutskever's: a gradient at the point to which the velocity alone would lead. As long as the
    learning rate does not change, PyTorch's other form of momentum comes to the same, and it stores that point.
    """
    x, y = blobs(dtype=torch.float64)
    model, epochs, lr, momentum, decay = linear(dtype=torch.float64), 7, 0.03, 0.8, 0.02
    milestones = () if nesterov else (3, 5)
    W, b = (p.detach().clone() for p in (model.weight, model.bias))
    sgd = SGD(epochs, lr, milestones, 0.5, decay, momentum, nesterov, batch_size=len(y))
    history = train(model, x, y, squared_error, sgd)
    V, v, Y = torch.zeros_like(W), torch.zeros_like(b), torch.eye(3, dtype=torch.float64)[y]
    position = W, b
    for row in history:
        scores = x @ W.T + b
        residual = scores - Y
        assert row["accuracy"] == pytest.approx((scores.argmax(1) == y).double().mean().item())
        assert row["loss"] == pytest.approx(residual.square().sum().item() / (2 * len(y)), rel=1e-12)
        V = momentum * V + residual.T @ x / len(y) + decay * W
        v = momentum * v + residual.mean(0) + decay * b
        rate = lr * 0.5 ** sum(row["epoch"] > milestone for milestone in milestones)
        position = position[0] - rate * V, position[1] - rate * v
        W, b = (position[0] - momentum * rate * V, position[1] - momentum * rate * v) if nesterov else position
        objective = row["loss"] + decay / 2 * (W.square().sum() + b.square().sum()).item()
        assert row["objective"] == pytest.approx(objective, rel=1e-12)
    torch.testing.assert_close(model.weight.detach(), W, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(model.bias.detach(), b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("before", [False, True])
def test_an_epoch_visits_every_sample_once_in_batches_of_nearly_one_size(monkeypatch, before):
    """And cuDNN looks for the fastest convolutions meanwhile, for nobody else."""
    x, y = torch.arange(22.0)[:, None], torch.arange(22) % 2
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    seen = []

    class Recorder(nn.Linear):
        def forward(self, batch):
            if self.training:
                assert torch.backends.cudnn.benchmark
                seen.append(batch[:, 0].tolist())
            return super().forward(batch)

    train(Recorder(1, 2), x, y, F.cross_entropy, SGD(2, 1e-4, batch_size=8))
    assert [len(batch) for batch in seen] == [8, 7, 7] * 2
    for epoch in (seen[:3], seen[3:]):
        assert sorted(sum(epoch, [])) == x[:, 0].tolist()
    assert seen[:3] != seen[3:]
    assert torch.backends.cudnn.benchmark is before


def test_a_seed_is_one_result_whatever_the_global_generator_does():
    x, y = images()
    models, histories = [], []
    for seed in (1, 1, 2):
        torch.rand(seed)
        models.append(resnet18(3, 1, 1 / 16))
        histories.append(plain(train(models[-1], x, y, F.cross_entropy, SGD(2, 0.05, batch_size=8), seed)))
    assert same_state(models[0], models[1]) and histories[0] == histories[1]
    assert histories[0] != histories[2]


def test_the_memory_order_of_images_changes_nothing_but_rounding():
    x, y = images()
    losses = []
    for channels_last in (False, True):
        model = resnet18(3, 1, 1 / 16).double()
        history = train(model, x.double(), y, squared_error, SGD(2, 0.01, batch_size=8), channels_last=channels_last)
        losses.append(history[-1]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_mixed_precision_keeps_the_weights_and_the_loss_in_single_precision():
    x, y = images()
    seen = []

    def loss(scores, labels):
        seen.append(scores.dtype)
        return F.cross_entropy(scores, labels)

    model = resnet18(3, 1, 1 / 16)
    train(model, x, y, loss, SGD(1, 0.01, batch_size=8), mixed_precision=True)
    assert set(seen) == {torch.float32} and model.fc.weight.dtype == torch.float32


def test_the_callback_sees_the_start_and_every_epoch_and_fills_the_rows():
    x, y = blobs()
    history = train(linear(), x, y, F.cross_entropy, SGD(3, 0.1), callback=lambda epoch: {"square": epoch**2})
    assert [(row["epoch"], row["square"]) for row in history] == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert "loss" not in history[0] and "loss" in history[1]


@pytest.mark.parametrize("batch_size", [5, 23, 100])
def test_evaluate_averages_over_samples_whatever_the_batches(batch_size):
    (x, y), model = blobs(23), linear()
    scores = model(x)
    whole = {"loss": F.cross_entropy(scores, y).item(), "accuracy": (scores.argmax(1) == y).float().mean().item()}
    assert evaluate(model, x, y, F.cross_entropy, batch_size) == pytest.approx(whole, rel=1e-6) and model.training


@pytest.mark.parametrize("mixed_precision", [False, True])
def test_no_step_waits_for_the_device(mixed_precision):
    """The waits of an epoch are the same for three batches and for twelve, and grow with the epochs alone."""
    (x, y), found = images(), {}
    for epochs, batch_size in ((1, 8), (1, 2), (3, 8)):
        model, sgd = resnet18(3, 1, 1 / 16), SGD(epochs, 0.05, batch_size=batch_size)
        with Waits() as waits:
            train(model, x, y, F.cross_entropy, sgd, mixed_precision=mixed_precision)
        found[epochs, batch_size] = len(waits.found)
    assert found[1, 8] == found[1, 2] < found[3, 8]


WRONG = {"epochs": 2.5, "learning_rate": math.nan, "batch_size": 0, "milestones": (4, 2), "weight_decay": -1.0}
WRONG |= {"momentum": 1.0, "gamma": 0.0, "nesterov": True}


@pytest.mark.parametrize("name, wrong", [*WRONG.items(), ("milestones", (0, 2))])
def test_a_setting_that_is_out_of_its_range_is_refused_by_name(name, wrong):
    momentum = 0.0 if name == "nesterov" else 0.9
    with pytest.raises(ValueError, match=name):
        SGD(2, 0.1, momentum=momentum)._replace(**{name: wrong}).check()


@pytest.mark.parametrize("label", [-1, 3, 0.5])
def test_a_label_without_an_output_is_refused(label):
    x, y = blobs()
    y = y + 0.0 if label == 0.5 else y
    y[7] = label
    with pytest.raises(ValueError, match="y "):
        train(linear(), x, y, F.cross_entropy, SGD(2, 0.1))


def test_weights_that_the_last_step_blows_up_do_not_pass_silently():
    x, y = blobs()
    with pytest.raises(FloatingPointError, match="epoch 1: the loss is .*the objective (nan|inf)"):
        train(linear(), 1e30 * x, y, lambda scores, y: scores.mean(), SGD(1, 1e30, batch_size=len(y)))


def test_a_loss_that_stops_being_finite_is_reported_with_its_epoch_and_learning_rate():
    x, y = blobs()
    factor = [1.0]

    def callback(epoch):
        if epoch == 1:
            factor[0] = math.nan

    with pytest.raises(FloatingPointError, match="epoch 2: the loss is nan.*learning_rate = 0.1"):
        train(linear(), x, y, lambda s, y: factor[0] * F.cross_entropy(s, y), SGD(3, 0.1), callback=callback)
