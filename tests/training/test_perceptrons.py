import math

import pytest
import torch
from torch.nn import functional as F

from lib.models.losses import label_smoothing
from lib.models.networks import mlp
from lib.training.perceptrons import classify, features, initialise, stack, train_perceptrons
from lib.training.sgd import SGD, train
from without_gpu import Waits

INPUTS, M, K, WIDTH, DEPTH, N = 12, 5, 4, 7, 4, 53
LOSSES = [("ce", 0.0), ("lr", 0.1), ("ls", 0.2), ("mse", 0.0), ("lr", 0.7)]  # at 0.7 some samples cost nothing
SEEDS = [3, 1, 4, 1, 5]
R = len(LOSSES)
SETTINGS = SGD(3, 0.1, weight_decay=1e-3, nesterov=True, batch_size=16)


def nearest(p, label, alpha):
    """The distribution with at least 1 - alpha on the label that is nearest to p, from its description."""
    if p[label] >= 1 - alpha:
        return p
    q = alpha * p / (1 - p[label])
    q[label] = 1 - alpha
    return q


def relaxation(scores, y, alpha):
    """The mean divergence from the nearest distributions, which move with the scores."""
    p = scores.softmax(1)
    targets = torch.stack([nearest(row, label, alpha) for row, label in zip(p, y.tolist(), strict=True)])
    return F.kl_div(p.log(), targets, reduction="batchmean")


def loss(name, alpha):
    if name == "mse":
        return lambda s, y: F.mse_loss(s, F.one_hot(y, K).to(s))
    function = relaxation if name == "lr" else label_smoothing
    return lambda s, y: function(s, y, alpha)


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, INPUTS, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(K, (R, N), generator=generator)


def networks(dtype=torch.float64, runs=R, depth=DEPTH):
    return [mlp(INPUTS, M, K, WIDTH, depth, seed=seed).to(dtype) for seed in range(runs)]


def largest_difference(weights, models):
    pairs = zip(sum(weights, []), sum(stack(models, len(models)), []), strict=True)
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize(
    "dtype, depth, sgd, tolerance",
    [
        (torch.float64, DEPTH, SGD(6, 0.1, (3,), 0.5, 1e-2, 0.8, True, 16), 1e-11),  # batches of 14, 13, 13 and 13
        (torch.float64, DEPTH, SGD(6, 0.1, (3,), 0.5, 1e-2, 0.8, False, 16), 1e-11),
        (torch.float64, 1, SGD(2, 0.1, momentum=0.0, batch_size=27), 1e-12),
        (torch.float32, DEPTH, SGD(1, 0.1, weight_decay=1e-3, nesterov=True, batch_size=20), 2e-5),
    ],
    ids=["nesterov", "momentum", "one layer, neither momentum nor decay", "single precision"],
)
def test_runs_trained_together_end_where_each_ends_alone(dtype, depth, sgd, tolerance):
    """In the book's loop for one network: weights and running statistics."""
    x, y = data(dtype)
    weights, separate = stack(networks(dtype, depth=depth), R), networks(dtype, depth=depth)
    train_perceptrons(weights, x, y, LOSSES, sgd, SEEDS)
    for run, model in enumerate(separate):
        train(model, x, y[run], loss(*LOSSES[run]), sgd, SEEDS[run])
    assert largest_difference(weights, separate) < tolerance


def test_an_order_is_left_out_as_the_number_of_the_run_and_labels_of_all_runs_may_be_the_same():
    x, y = data()
    first, second = stack(networks(), R), stack(networks(), R)
    train_perceptrons(first, x, y[0], LOSSES, SETTINGS)
    train_perceptrons(second, x, y[:1].expand(R, N), LOSSES, SETTINGS, range(R))
    assert torch.equal(first.matrices[0], second.matrices[0])


def test_features_and_scores_are_those_of_the_modules_in_evaluation_mode():
    (x, y), models = data(), networks()
    weights = stack(networks(), R)
    sgd = SETTINGS._replace(epochs=2)
    train_perceptrons(weights, x, y, LOSSES, sgd)  # running statistics that are not 0 and 1
    for run, model in enumerate(models):
        train(model, x, y[run], loss(*LOSSES[run]), sgd, run)
    with torch.no_grad():
        H = torch.stack([model.eval().features(x) for model in models])
        S = torch.stack([model(x) for model in models])
    torch.testing.assert_close(features(weights, x, batch_size=10), H, rtol=0, atol=1e-10)
    torch.testing.assert_close(classify(weights, H), S, rtol=0, atol=1e-10)


def test_stacking_copies_and_initialising_is_a_stack_of_networks_with_these_seeds():
    weights = initialise([7, 2], INPUTS, M, K, WIDTH, DEPTH, dtype=torch.float64)
    models = [mlp(INPUTS, M, K, WIDTH, DEPTH, seed=seed).double() for seed in (7, 2)]
    assert largest_difference(weights, models) == 0
    copies = stack(models, 2)
    for part in sum(copies, []):
        part.add_(1)
    assert largest_difference(weights, models) == 0


@pytest.mark.parametrize("name, alpha", LOSSES)
def test_a_run_that_stops_being_numbers_is_named_with_its_epoch_whatever_the_loss(name, alpha):
    x, y = data()
    weights = stack(networks(runs=3), 3)
    weights.biases[-1][1, 0] = math.inf
    with pytest.raises(FloatingPointError, match=r"epoch 1, run 1: learning_rate = 0.1"):
        train_perceptrons(weights, x, y[:3], [(name, alpha)] * 3, SETTINGS)


IMPOSSIBLE = [
    ({"losses": [("ls", 1.0)] * R}, r"losses\[0\]"),
    ({"losses": [("ce", 0.0)] * (R - 1) + [("lr", 0.0)]}, rf"losses\[{R - 1}\]"),
    ({"losses": [("huber", 0.1)] * R}, r"losses\[0\]"),
    ({"losses": LOSSES[1:]}, "losses"),
    ({"seeds": [0]}, "seeds"),
    ({"sgd": SETTINGS._replace(batch_size=1)}, "batch_size"),
    ({"x": torch.zeros(N, INPUTS + 1, dtype=torch.float64)}, "x "),
    ({"y": torch.full((R, N), K)}, "y "),
    ({"y": torch.zeros(R + 1, N, dtype=torch.long)}, "y "),
]


@pytest.mark.parametrize("changes, name", IMPOSSIBLE)
def test_impossible_training_is_refused(changes, name):
    x, y = data()
    arguments = {"x": x, "y": y, "losses": LOSSES, "sgd": SETTINGS}
    with pytest.raises(ValueError, match=name):
        train_perceptrons(stack(networks(), R), **(arguments | changes))


def test_no_step_waits_for_the_device():
    """The waits of an epoch are the same for two batches and for twenty-six, and grow with the epochs alone."""
    (x, y), found = data(), {}
    for epochs, batch_size in ((1, 30), (1, 2), (3, 30)):
        sgd, weights = SETTINGS._replace(epochs=epochs, batch_size=batch_size), stack(networks(), R)
        with Waits() as waits:
            train_perceptrons(weights, x[:52], y[:, :52], LOSSES, sgd, SEEDS)
        found[epochs, batch_size] = len(waits.found)
    assert found[1, 30] == found[1, 2] < found[3, 30]
