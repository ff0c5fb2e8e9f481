"""The same results on both devices: samples, starts and noise to the last bit, short runs of each kernel to rounding.

All of it needs a GPU.
"""

import pytest
import torch

from lib.data import label_noise
from lib.data.sentences import sentence_task
from lib.models import sentences as models_sentences
from lib.models.losses import squared_error
from lib.models.networks import resnet18, resnet20
from lib.models.unconstrained import labels
from lib.training import perceptrons, resnets, sentence_descent
from lib.training.sgd import SGD, train
from lib.training.unconstrained import Descent, Runs, gradient_descent, random_runs

CUDA = torch.device("cuda", 0)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def agree(function, **tolerance):
    """Are all tensors that `function(device)` gives, on the processor, the same on both devices, up to this?"""
    here, there = function(torch.device("cpu")), function(CUDA)
    torch.testing.assert_close(here, there, **{"rtol": 0, "atol": 0, **tolerance})


def on_its_device(device, parts):
    """The parts, which are on this device, on the processor."""
    assert all(part.device == device for part in parts)
    return [part.cpu() for part in parts]


# Random numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [label_noise.corrupt, label_noise.latent_classes])
def test_label_noise_is_the_same(noise):
    agree(lambda device: on_its_device(device, noise((torch.arange(200) % 4).to(device), 4, 0.3, seed=5)))


def test_the_global_generators_are_left_alone():
    """So that nothing depends on what ran before, on either device; a run of every kernel."""
    before = torch.get_rng_state()
    for kernel in (sentences(True, 4), descent(True, True, 10), some_perceptrons()):
        kernel(CUDA)
    assert torch.equal(before, torch.get_rng_state())


# Kernels --------------------------------------------------------------------------------------------------------------


def sentences(normalize, batch_size, dtype=torch.float64, steps=60, every=30):
    x, y = sentence_task(2, 6, 3, K=5, frequencies="zipf", seed=1).sample(12, seed=2)

    def run(device):
        W, U = (part.to(device, dtype) for part in models_sentences.initial_weights(6, 5, 3, 4, seed=3, scale=1.0))
        order, seen = torch.Generator().manual_seed(5), []
        settings = sentence_descent.SentenceSGD(1e-2, 0.2, batch_size, steps, normalize)

        def look(step):
            seen.append((step, W.cpu().clone()))

        sentence_descent.sentence_sgd(W, U, x.to(device), y.to(device), settings, order, look, every)
        assert [step for step, _ in seen] == list(range(every, steps + 1, every))
        return [W.cpu(), U.cpu(), *(part for _, part in seen)]

    return run


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("batch_size", [4, 7, 60, 100])
def test_sgd_on_sentences_agrees_to_rounding(normalize, batch_size):
    """Sixty sentences; in double precision, and in single precision while it has not grown apart."""
    agree(sentences(normalize, batch_size), atol=1e-11)
    agree(sentences(normalize, batch_size, torch.float32, 40, 10), atol=1e-5)


def descent(relu, bias, steps, per_run=False):
    start = random_runs(3, 12, 5, 3, range(4), 0.5, bias)
    lam = torch.tensor([0.01, 0.02, 0.005, 0.01], dtype=torch.float64) if per_run else 0.01

    def run(device):
        there = Runs(start.H.to(device), [W.to(device) for W in start.Ws], start.b.to(device) if bias else None)
        settings, seen = Descent(0.1, steps, lam, 0.02, relu=relu, every=50), []
        gradient_descent(there, labels(3, 12, device), settings, watch=lambda step, runs: seen.append(runs))
        return [part.cpu() for runs in seen for part in (runs.H, *runs.Ws, *([runs.b] if bias else []))]

    return run


@pytest.mark.parametrize("relu, bias", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("per_run", [False, True])
def test_gradient_descent_agrees_to_rounding(relu, bias, per_run):
    agree(descent(relu, bias, 130, per_run), atol=1e-12)


@pytest.mark.parametrize("per_run", [False, True])
def test_runs_that_settle_one_after_the_other_agree(per_run):
    start, y = random_runs(3, 4, 5, 3, range(6), 0.5), labels(3, 4)
    means = start.H.unflatten(-1, (3, 4)).mean(-1).repeat_interleave(4, -1)
    start = start._replace(H=means + (start.H - means) * 0.1 ** torch.arange(2.0, 5.0, 0.5)[:, None, None])
    lam = torch.tensor([0.01, 0.02, 0.005, 0.01, 0.03, 0.015], dtype=torch.float64) if per_run else 0.01

    def run(device):
        there = Runs(start.H.to(device), [W.to(device) for W in start.Ws], None)
        descent = Descent(0.2, 600, lam, 0.02, relu=True, every=30, tolerance=1e-3)
        end = gradient_descent(there, y.to(device), descent)
        return [part.cpu() for part in (end.H, *end.Ws)]

    agree(run, atol=1e-9)


def some_perceptrons(batch_size=16):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(53, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (5, 53), generator=generator)
    losses = [("ce", 0.0), ("lr", 0.1), ("ls", 0.2), ("mse", 0.0), ("lr", 0.7)]

    def run(device):
        models = perceptrons.initialise(range(5), 12, 5, 4, 7, 3, device, torch.float64)
        sgd = SGD(2, 0.1, (1,), weight_decay=1e-3, nesterov=True, batch_size=batch_size)
        perceptrons.train_perceptrons(models, x.to(device), y.to(device), losses, sgd)
        found = [*models.matrices, *models.means, *models.variances, perceptrons.features(models, x.to(device))]
        return [part.cpu() for part in found]

    return run


@pytest.mark.parametrize("batch_size", [16, 53])
def test_perceptrons_agree_to_rounding(batch_size):
    agree(some_perceptrons(batch_size), atol=1e-10)


@pytest.fixture
def float32_as_it_is():
    """A GPU's convolutions round the factors of float32 to TF32 unless they are told not to."""
    convolutions = torch.backends.cudnn.conv
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    yield
    convolutions.fp32_precision = before


@pytest.mark.parametrize("mixed_precision, rtol", [(False, 1e-3), (True, 5e-2)])
def test_resnets_side_by_side_agree(float32_as_it_is, mixed_precision, rtol):
    """Losses after a few steps."""
    x, y = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4

    def run(device):
        models = [resnet20(4, 3, 1 / 8, head_layers=3, head_width=6, seed=seed) for seed in range(3)]
        ensemble, there = resnets.Ensemble(models, device), (x.to(device), y.to(device))
        schedule = resnets.Schedule(5, 0.02, 1e-2, 1e-3, batch_size=8)
        resnets.train_resnets(ensemble, *there, schedule, mixed_precision=mixed_precision)
        scores = ensemble.look(there[0]).layers[-1].cpu()
        return (scores - torch.nn.functional.one_hot(y, 4)).square().sum((1, 2))

    agree(run, rtol=rtol)


@pytest.mark.parametrize("mixed_precision, rtol", [(False, 1e-3), (True, 5e-2)])
def test_a_resnet18_agrees(float32_as_it_is, mixed_precision, rtol):
    x, y = torch.randn(48, 1, 14, 14, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 4

    def run(device):
        model = resnet18(4, 1, 1 / 8, bias=False)
        there, sgd = (x.to(device), y.to(device)), SGD(2, 0.01, batch_size=16)
        history = train(model, *there, squared_error, sgd, mixed_precision=mixed_precision)
        return torch.tensor([row["loss"] for row in history])

    agree(run, rtol=rtol)
