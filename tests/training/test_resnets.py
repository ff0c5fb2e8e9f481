import pytest
import torch
from torch.nn import functional as F

from lib.models.networks import resnet20
from lib.training.resnets import Ensemble, Schedule, train_resnets
from without_gpu import Waits

K, N = 4, 24


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def x():
    return torch.randn(N, 3, 7, 7, generator=torch.Generator().manual_seed(0))


y = torch.arange(N) % K


def networks(runs=3):
    return [resnet20(K, 3, 1 / 8, head_layers=3, head_width=6, seed=seed) for seed in range(runs)]


def own(ensemble, run):
    """The parameters of one run, as those of a network alone."""
    found = {}
    for name, part in ensemble.parameters.items():
        found[name] = part[run] if name.startswith("head") else part.unflatten(0, (ensemble.runs, -1))[run]
    return found


def trained_alone(
    model, x, steps, rate, decay, feature_decay, seed, batch_size, warmup, slow_start, feature_slow_start, drop
):
    """PyTorch's SGD on the printed objective; only the head is decayed if there is a feature decay."""
    parts = model.parameters() if feature_decay is None else model.head.parameters()
    groups = [{"params": list(parts), "decay": decay}]
    backbone = [p for name, p in model.named_parameters() if not name.startswith("head")]
    groups += [] if feature_decay is None else [{"params": backbone, "decay": 0.0}]
    optimiser = torch.optim.SGD(groups, rate, momentum=0.8)
    generator = torch.Generator().manual_seed(seed)
    batches = [part for _ in range(steps) for part in torch.randperm(N, generator=generator).split(batch_size)]
    model.train()
    for step, batch in enumerate(batches[:steps]):
        grown, features_grown = (1000 ** (min(1, (step + 1) / (s or 1)) - 1) for s in (slow_start, feature_slow_start))
        layers = model.layers(x[batch])
        loss = F.mse_loss(layers[-1], torch.eye(K)[y[batch]], reduction="sum") / (2 * batch_size)
        if feature_decay is not None:
            loss = loss + features_grown * feature_decay / 2 * N / batch_size * layers[0].square().sum()
        optimiser.zero_grad()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (step + 1) / warmup) * (0.1 if step >= drop else 1)
            group["weight_decay"] = group["decay"] * grown
        optimiser.step()
    return model


@pytest.mark.parametrize("feature_decay", [None, [1e-3, 2e-3, 0.0]])
def test_every_run_takes_the_steps_that_it_would_take_alone(x, feature_decay):
    rates, decays = [0.02, 0.05, 0.01], [0.03, 0.0, 0.2]
    ensemble = Ensemble(networks())
    slow_starts = [4, 9, 0]  # the second is longer than the run
    schedule = {"warmup": 3, "slow_start": slow_starts, "feature_slow_start": 5, "drop": 6}
    settings = Schedule(7, rates, decays, feature_decay, momentum=0.8, batch_size=8, **schedule)
    train_resnets(ensemble, x, y, settings, seeds=range(5, 8))
    for run, model in enumerate(networks()):
        schedule["slow_start"] = slow_starts[run]
        lam_h = None if feature_decay is None else feature_decay[run]
        trained_alone(model, x, 7, rates[run], decays[run], lam_h, 5 + run, 8, **schedule)
        found = own(ensemble, run)
        for name, expected in model.named_parameters():
            torch.testing.assert_close(found[name], expected, rtol=1e-7, atol=1e-9)


def test_a_look_is_what_the_network_shows_with_the_statistics_of_these_images(x):
    models = networks()
    look = Ensemble(models).look(x)
    for run, model in enumerate(models):
        for found, expected in zip(look.layers, model.train().layers(x), strict=True):
            torch.testing.assert_close(found[run], expected, rtol=0, atol=1e-10)
        for W, layer in zip(look.weights, model.head, strict=True):
            assert torch.equal(W[run], layer.weight)


def test_the_models_and_what_was_looked_at_stay_as_they_were_when_training_goes_on(x):
    models = networks()
    ensemble = Ensemble(models)
    seen = ensemble.look(x).weights
    train_resnets(ensemble, x, y, Schedule(2, 0.1, 0.1, batch_size=8))
    for run, (model, fresh) in enumerate(zip(models, networks(), strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
        assert all(torch.equal(W[run], layer.weight) for W, layer in zip(seen, fresh.head, strict=True))


def test_a_diverged_run_is_reported_and_the_others_go_on(x):
    seen, ensemble = [], Ensemble(networks(2))
    schedule = Schedule(40, [1e-3, 1e6], 1e-3, batch_size=8)
    diverged = train_resnets(ensemble, x, y, schedule, looks=[0, 20], callback=seen.append)
    assert seen == [0, 20]
    assert diverged[0] is None and diverged[1] in (20, 40)
    assert torch.isfinite(ensemble.look(x).layers[-1][0]).all()


def test_many_images_are_looked_at_in_batches(x):
    ensemble = Ensemble(networks())
    found = ensemble.look(x, batch_size=16).layers
    for layer, first, second in zip(found, ensemble.look(x[:16]).layers, ensemble.look(x[16:]).layers, strict=True):
        assert torch.equal(layer, torch.cat([first, second], 1))


SIZES = {"steps": 0, "batch_size": N + 1, "warmup": -1, "feature_slow_start": -1, "drop": -1, "looks": [2]}
NUMBERS = {"learning_rate": [0.1, 0.1, 0.1], "weight_decay": -1.0, "feature_decay": float("nan"), "momentum": 1.0}


@pytest.mark.parametrize("name, value", [*(SIZES | NUMBERS).items(), ("learning_rate", 0.0), ("y", y + 1)])
def test_impossible_settings_are_refused(x, name, value):
    wrong = {name: value}
    data = {"x": x, "y": y, "looks": []} | (wrong if name in ("looks", "y") else {})
    schedule = Schedule(1, 0.1, 0.1, batch_size=8)
    with pytest.raises(ValueError, match=name):
        schedule = schedule._replace(**({} if name in data else wrong))
        train_resnets(Ensemble(networks(2)), schedule=schedule, **data)


def test_in_mixed_precision_features_agree_to_that_of_bfloat16_and_the_head_is_not_rounded(x):
    """Eight bits of the mantissa are 0.4% for one rounding; through some twenty layers, 5% of the norm at most."""
    ensemble, images = Ensemble([network.float() for network in networks(2)]), x.float().expand(2, *x.shape)
    exact, rounded = ensemble.forward(images), ensemble.forward(images, mixed_precision=True)
    for ours, theirs in zip(exact, rounded, strict=True):
        error = (ours - theirs).norm(dim=(1, 2)) / ours.norm(dim=(1, 2))
        assert theirs.dtype == torch.float32 and (error > 0).all() and (error < 0.05).all()
    H = rounded[0]
    for layer, found in enumerate(rounded[1:]):
        H = (H.relu() if layer else H) @ ensemble.parameters[f"head.{layer}.weight"].mT
        assert torch.equal(found, H)


def test_no_step_waits_for_the_device(x):
    """Within an epoch, whatever the schedule; waits for the checks and the looks do not grow with the steps."""
    schedule = {"warmup": 3, "slow_start": [4, 60, 3], "feature_slow_start": 5, "drop": 6}
    found = []
    for steps in (3, 24):
        ensemble = Ensemble(networks())
        with Waits() as waits:
            train_resnets(ensemble, x, y, Schedule(steps, 0.02, [0.03, 0.0, 0.2], 1e-3, batch_size=1, **schedule))
        found.append(waits.found)
    assert found[0] == found[1]
