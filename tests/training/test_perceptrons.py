import math

import pytest
import torch
from paper_card import Waits

from lib.models.losses import label_relaxation, label_smoothing, one_hot_error
from lib.models.networks import mlp
from lib.training import sgd as book
from lib.training.perceptrons import (
    History,
    accuracy,
    classify,
    features,
    rounding_to_tf32,
    scores,
    stack,
    start,
    train,
    unstack,
)

INPUTS, M, K, WIDTH, DEPTH, N = 12, 5, 4, 7, 4, 53
LOSSES = [("ce", 0.0), ("lr", 0.1), ("ls", 0.2), ("mse", 0.0), ("lr", 0.7)]  # at 0.7 some samples cost nothing
SEEDS = [3, 1, 4, 1, 5]
R = len(LOSSES)


def loss(name, alpha):
    if name == "mse":
        return one_hot_error
    function = label_relaxation if name == "lr" else label_smoothing
    return lambda s, y: function(s, y, alpha)


def data(shared=False, dtype=torch.float64, N=N, runs=R):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(runs, N, INPUTS, generator=generator, dtype=torch.float64).to(dtype)
    return x[0] if shared else x, torch.randint(K, (runs, N), generator=generator)


def networks(activation="relu", bias=True, dtype=torch.float64, runs=R, depth=DEPTH):
    return [mlp(INPUTS, M, K, WIDTH, depth, activation, bias, seed).to(dtype) for seed in range(runs)]


def alone(model, x, y, loss, epochs, lr, milestones, gamma, weight_decay, momentum, nesterov, batch_size, seed):
    """One network, with modules, autograd and torch.optim."""
    optimiser = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay, nesterov=nesterov)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma)
    order, history = torch.Generator().manual_seed(seed), []
    for _ in range(epochs):
        total = correct = 0.0
        model.train()
        for batch in torch.randperm(len(y), generator=order).tensor_split(math.ceil(len(y) / batch_size)):
            s = model(x[batch])
            value = loss(s, y[batch])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            total += value.item() * len(batch)
            correct += (s.argmax(1) == y[batch]).sum().item()
        schedule.step()
        history.append((total / len(y) + book.penalty(model, weight_decay), total / len(y), correct / len(y)))
    return torch.tensor(history, dtype=torch.float64).T


def largest_difference(models, others):
    states = zip(models, others, strict=True)
    return max((a.double() - b.double()).abs().max().item()
               for first, second in states
               for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))  # fmt: skip


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("shared, bias", [(False, True), (True, False)])
def test_runs_trained_together_end_where_each_ends_alone(activation, nesterov, shared, bias):
    """Weights, running statistics and history; 53 samples make batches of 14, 13, 13 and 13."""
    x, y = data(shared)
    together, separate = networks(activation, bias), networks(activation, bias)
    setting = (6, 0.1, (3,), 0.5, 1e-2, 0.8, nesterov, 16)
    weights = stack(together)
    history = train(weights, x, y, LOSSES, *setting, seeds=SEEDS)
    unstack(weights, together)
    for run, model in enumerate(separate):
        own = x if shared else x[run]
        expected = alone(model, own, y[run], loss(*LOSSES[run]), *setting, SEEDS[run])
        found = torch.stack([part[run] for part in history])
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    assert largest_difference(together, separate) < 1e-11


def test_in_single_precision_a_few_steps_agree_to_its_rounding():
    x, y = data(dtype=torch.float32)
    together, separate = networks(dtype=torch.float32), networks(dtype=torch.float32)
    weights = stack(together)
    train(weights, x, y, LOSSES, 1, batch_size=20, seeds=SEEDS)
    unstack(weights, together)
    for run, model in enumerate(separate):
        alone(model, x[run], y[run], loss(*LOSSES[run]), 1, 0.1, (), 0.1, 1e-3, 0.9, True, 20, SEEDS[run])
    assert largest_difference(together, separate) < 2e-5


def test_a_run_is_the_books_training_loop_with_the_same_seed():
    x, y = data(shared=True)
    models, separate = networks(), networks()
    weights = stack(models)
    history = train(weights, x, y, LOSSES, 3, 0.05, (2,), weight_decay=1e-3, nesterov=False, batch_size=10, seeds=SEEDS)
    unstack(weights, models)
    for run, model in enumerate(separate):
        rows = book.train(
            model, x, y[run], loss(*LOSSES[run]), 3, 0.05, (2,), weight_decay=1e-3, batch_size=10, seed=SEEDS[run]
        )
        for name in ("objective", "loss", "accuracy"):
            assert getattr(history, name)[run].tolist() == pytest.approx([row[name] for row in rows], rel=1e-11)
    assert largest_difference(models, separate) < 1e-11


def test_one_hidden_layer_without_momentum_and_decay():
    x, y = data()
    models, separate = networks(depth=1), networks(depth=1)
    weights = stack(models)
    train(weights, x, y, LOSSES, 2, weight_decay=0.0, momentum=0.0, nesterov=False, batch_size=27, seeds=SEEDS)
    unstack(weights, models)
    for run, model in enumerate(separate):
        alone(model, x[run], y[run], loss(*LOSSES[run]), 2, 0.1, (), 0.1, 0.0, 0.0, False, 27, SEEDS[run])
    assert largest_difference(models, separate) < 1e-12


def test_runs_do_not_depend_on_how_many_are_trained_at_once():
    x, y = data()
    first, second = stack(networks()), stack(networks())
    seen = []
    one = train(first, x, y, LOSSES, 3, batch_size=16, seeds=SEEDS)
    two = train(second, x, y, LOSSES, 3, batch_size=16, seeds=SEEDS, at_once=2,
                callback=lambda epoch, runs, part: seen.append((epoch, list(runs), part.runs)))  # fmt: skip
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    for a, b in zip(first.matrices + first.means, second.matrices + second.means, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    expected = [(epoch, runs, len(runs)) for runs in ([0, 1], [2, 3], [4]) for epoch in range(4)]
    assert seen == expected


def test_the_callback_sees_the_weights_of_its_epoch():
    x, y = data(shared=True)
    kept = {}
    weights = stack(networks())
    train(weights, x, y, LOSSES, 3, batch_size=16, callback=lambda e, runs, part: kept.update({e: scores(part, x)}))
    assert torch.equal(kept[0], scores(stack(networks()), x))
    again = stack(networks())
    train(again, x, y, LOSSES, 2, batch_size=16)
    assert torch.equal(kept[2], scores(again, x))
    assert torch.equal(kept[3], scores(weights, x))


def test_an_order_is_left_out_as_the_number_of_the_run():
    x, y = data()
    first, second = stack(networks()), stack(networks())
    train(first, x, y, LOSSES, 1, batch_size=16)
    train(second, x, y, LOSSES, 1, batch_size=16, seeds=range(R))
    assert torch.equal(first.matrices[0], second.matrices[0])


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_features_and_scores_are_those_of_the_modules_in_evaluation_mode(activation, bias, shared):
    x, y = data(shared)
    models = networks(activation, bias)
    weights = stack(models)
    train(weights, x, y, LOSSES, 2, batch_size=16)  # running statistics that are not 0 and 1
    unstack(weights, models)
    with torch.no_grad():
        pairs = [(model.eval(), x if shared else x[run]) for run, model in enumerate(models)]
        H = torch.stack([model.features(own) for model, own in pairs])
        S = torch.stack([model(own) for model, own in pairs])
    torch.testing.assert_close(features(weights, x, batch_size=10), H, rtol=0, atol=1e-12)
    torch.testing.assert_close(scores(weights, x, batch_size=10), S, rtol=0, atol=1e-12)
    torch.testing.assert_close(classify(weights, H), S, rtol=0, atol=1e-12)
    expected = torch.stack([(S[run].argmax(1) == y[run]).double().mean() for run in range(R)])
    assert torch.equal(accuracy(weights, x, y), expected)
    assert torch.equal(accuracy(weights, x, y[0])[0], expected[0])


def test_images_are_flattened_as_by_the_module():
    x, y = data(shared=True)
    weights = stack(networks())
    images = x.view(N, 1, 3, 4)
    assert torch.equal(scores(weights, images), scores(weights, x))
    other = stack(networks())
    train(weights, images, y, LOSSES, 1, batch_size=16)
    train(other, x, y, LOSSES, 1, batch_size=16)
    assert torch.equal(weights.matrices[0], other.matrices[0])


def test_stacking_copies_and_unstacking_brings_everything_back():
    models, others = networks(), networks()
    weights = stack(models)
    for part in (*weights.matrices, *weights.means):
        part.add_(1)
    assert largest_difference(models, others) == 0
    unstack(weights, models)
    for name, part in models[2].state_dict().items():
        change = name.endswith("running_mean") or part.ndim == 2
        assert torch.equal(part, others[2].state_dict()[name] + change)


def test_start_is_a_stack_of_networks_with_these_seeds():
    weights = start([7, 2], INPUTS, M, K, WIDTH, DEPTH, "sigmoid", False, dtype=torch.float64)
    expected = stack([mlp(INPUTS, M, K, WIDTH, DEPTH, "sigmoid", False, seed).double() for seed in (7, 2)])
    for a, b in zip(weights.matrices + weights.scales, expected.matrices + expected.scales, strict=True):
        assert torch.equal(a, b)
    assert weights.biases[-1] is None and weights.activation == "sigmoid"


def test_weights_follow_a_dtype_and_parts_are_views():
    weights = start([0, 1, 2], INPUTS, M, K, WIDTH, DEPTH)
    assert weights.to(torch.float64).matrices[0].dtype == torch.float64
    assert weights.to(torch.float64).batches.dtype == torch.int64
    weights.part(slice(1, 2)).matrices[0].zero_()
    assert [bool(A.any()) for A in weights.matrices[0]] == [True, False, True]
    copy = weights.clone()
    copy.matrices[0].zero_()
    assert weights.matrices[0][0].any()


def test_what_training_returns_has_a_row_per_run_and_a_column_per_epoch():
    x, y = data()
    history = train(stack(networks()), x, y, LOSSES, 3, batch_size=16)
    assert isinstance(history, History)
    assert all(part.shape == (R, 3) and part.dtype == torch.float64 for part in history)
    assert (history.objective > history.loss).all()


def test_a_run_that_diverges_is_named_with_its_epoch():
    x, y = data()
    weights = stack(networks(runs=3))
    weights.matrices[-1][1] *= 1e200
    with pytest.raises(FloatingPointError, match=r"epoch 1, run 1: .*learning_rate = 0.1"):
        train(weights, x[:3], y[:3], [("mse", 0.0)] * 3, 2, batch_size=16)
    with pytest.raises(FloatingPointError, match=r"epoch 1, run 1"):  # counted over all runs
        train(weights, x[:3], y[:3], [("mse", 0.0)] * 3, 2, batch_size=16, at_once=1)


@pytest.mark.parametrize("name, alpha", LOSSES)
def test_weights_that_are_not_numbers_are_found_with_every_loss(name, alpha):
    x, y = data(runs=1)
    weights = stack(networks(runs=1))
    weights.biases[-1][0, 0] = math.nan
    with pytest.raises(FloatingPointError, match="epoch 1, run 0: the loss is nan"):
        train(weights, x, y, [(name, alpha)], 1, batch_size=16)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"losses": [("ls", 1.0)] * R}, r"losses\[0\] is 'ls' with alpha = 1.0"),
        ({"losses": [("ls", -0.1)] * R}, "alpha = -0.1"),
        ({"losses": [("ce", 0.0)] * (R - 1) + [("lr", 0.0)]}, rf"losses\[{R - 1}\] is 'lr' with alpha = 0.0"),
        ({"losses": [("ce", 0.1)] * R}, "'ce' with alpha = 0.1: 0 is needed"),
        ({"losses": [("huber", 0.1)] * R}, "'huber': one of 'ce', 'ls', 'lr', 'mse'"),
        ({"losses": LOSSES[1:]}, f"losses has {R - 1} entries"),
        ({"seeds": [0]}, "seeds has 1 entries"),
        ({"epochs": 0}, "epochs = 0"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"batch_size": 1}, "single sample"),
        ({"batch_size": 27, "x": torch.zeros(R, 28, INPUTS, dtype=torch.float64)}, "y has shape"),
        ({"at_once": 0}, "at_once = 0"),
        ({"learning_rate": -1.0}, "learning_rate = -1.0"),
        ({"gamma": math.nan}, "gamma = nan"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"momentum": 0.0}, "nesterov = True: momentum = 0"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0"),
        ({"milestones": (3, 2)}, r"milestones = \[3, 2\]"),
        ({"x": torch.zeros(R, N, INPUTS + 1, dtype=torch.float64)}, "x has shape"),
        ({"x": torch.zeros(R + 1, N, INPUTS, dtype=torch.float64)}, "x has shape"),
        ({"x": torch.zeros(R, N, INPUTS)}, "one dtype is needed"),
        ({"x": torch.full((R, N, INPUTS), math.nan, dtype=torch.float64)}, "not finite"),
        ({"y": torch.full((R, N), K)}, f"from {K} to {K}"),
        ({"y": torch.zeros(R, N)}, "labels are int64"),
        ({"y": torch.zeros(R + 1, N, dtype=torch.long)}, "y has shape"),
    ],
)
def test_impossible_training_is_refused(changes, message):
    x, y = data()
    arguments = {"x": x, "y": y, "losses": LOSSES, "epochs": 1, "batch_size": 16}
    with pytest.raises(ValueError, match=message):
        train(stack(networks()), **(arguments | changes))


def test_networks_that_cannot_be_stacked_are_refused():
    with pytest.raises(ValueError, match="models is empty"):
        stack([])
    with pytest.raises(ValueError, match="seeds is empty"):
        start([], INPUTS, M, K)
    with pytest.raises(ValueError, match="of type Linear"):
        stack([torch.nn.Linear(2, 2)])
    for other in ({"width": 8}, {"activation": "sigmoid"}, {"bias": False}, {"depth": 5}):
        with pytest.raises(ValueError, match="network 1 differs"):
            stack([mlp(12, 5, 4, **({"width": 7, "depth": 4} | part)) for part in ({}, other)])
    model = mlp(12, 5, 4, 7, 4)
    model.hidden[0][1].momentum = 0.5
    with pytest.raises(ValueError, match=r"lib\.models\.networks\.mlp"):
        stack([model])
    with pytest.raises(ValueError, match="2 models for 1 runs"):
        unstack(stack(networks(runs=1)), networks(runs=2))
    with pytest.raises(ValueError, match="network 0 differs"):
        unstack(stack(networks(runs=1)), networks("sigmoid", runs=1))


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_no_step_waits_for_the_device(activation):
    """The waits of an epoch are the same for two batches and for twenty-six, and grow with the epochs alone."""
    x, y = data()
    found = {}
    for epochs, batch_size in ((1, 30), (1, 2), (3, 30)):
        weights = stack(networks(activation))
        with Waits() as waits:
            train(weights, x[:, :52], y[:, :52], LOSSES, epochs, batch_size=batch_size, seeds=SEEDS)
        found[epochs, batch_size] = len(waits.found)
    assert found[1, 30] == found[1, 2] < found[3, 30]


@pytest.mark.parametrize("before", ["none", "tf32", "ieee"])
def test_whether_a_gpu_may_round_is_afterwards_what_it_was_before(before):
    matmul = torch.backends.cuda.matmul
    at_first, matmul.fp32_precision = matmul.fp32_precision, before
    try:
        for allowed, within in ((True, "tf32"), (False, "ieee")):
            with pytest.raises(KeyError), rounding_to_tf32(allowed):
                assert matmul.fp32_precision == within
                raise KeyError
            assert matmul.fp32_precision == before
    finally:
        matmul.fp32_precision = at_first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("weights_on", ["cpu", "cuda"])
def test_on_a_gpu_it_is_the_same_computation(weights_on):
    x, y = data()
    first, second = stack(networks()), stack(networks()).to(weights_on)
    train(first, x, y, LOSSES, 3, batch_size=16)
    train(second, x.cuda(), y.cuda(), LOSSES, 3, batch_size=16, at_once=2)
    for a, b in zip(first.matrices + first.means, second.matrices + second.means, strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-9, atol=1e-11)
