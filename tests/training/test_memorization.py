"""Readings of memorization, configurations in the plane, and the pairs of runs that a comparison counts."""

import numpy as np
import pytest
import torch

from lib.data.label_noise import corrupt, latent_classes
from lib.training.memorization import SUMS, configuration, memorization_sums, pairs_that_count


def sample(seed, noise=corrupt, N=60, K=3, d=4, eta=0.5):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % K
    H, test_means = torch.randn(N, d, generator=generator).double(), torch.randn(K, d, generator=generator).double()
    return H, noise(y, K, eta, seed), test_means


@pytest.mark.parametrize("noise", [corrupt, latent_classes])
def test_every_reading_of_memorization_is_the_sum_of_its_distances(noise):
    H, noise, test_means = sample(1, noise)
    expected = dict.fromkeys(SUMS, 0.0)
    for i, k in enumerate(noise.y_true.tolist()):
        kept = [H[j] for j in range(len(H)) if noise.y_true[j] == k == noise.y_observed[j]]
        to_test, to_training = (np.linalg.norm(H[i] - m) for m in (test_means[k], torch.stack(kept).mean(0)))
        if noise.corrupted[i]:
            expected["mem"] += to_test
            expected["mem, training means"] += to_training
        if noise.y_observed[i] != k:
            expected["mem, changed"] += to_test
            expected["mem, changed, training means"] += to_training
    assert memorization_sums(H, noise, test_means) == pytest.approx(expected)


def test_without_noise_nothing_is_memorised_and_a_class_that_lost_all_its_labels_has_its_mean_at_zero():
    H, noise, test_means = sample(2, eta=0.0)
    assert set(memorization_sums(H, noise, test_means).values()) == {0.0}
    lost = noise._replace(y_observed=torch.where(noise.y_true == 0, 1, noise.y_true), corrupted=noise.y_true == 0)
    found = memorization_sums(H, lost, test_means)
    assert found["mem, changed, training means"] == pytest.approx(H[noise.y_true == 0].norm(dim=1).sum().item())


@pytest.mark.parametrize(
    ("angle", "length", "word"),
    [
        (90, 1, "axes"),
        (75, 0.6, "axes"),
        (70, 1, "other"),
        (90, 0.4, "other"),
        (90, 0.1, "origin"),
        (20, 0.1, "origin"),
    ],
)
def test_a_configuration_is_named_by_the_angle_and_the_lengths_of_the_means(angle, length, word):
    other = length * torch.tensor([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
    means = torch.stack([torch.tensor([1.0, 0.0]).double(), other])
    y = torch.tensor([0, 1]).repeat(10)
    scatter = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).double().repeat_interleave(2, 0)
    H = means[y] + torch.cat([scatter, -scatter])  # which leaves the means where they are
    turn = torch.linalg.qr(torch.randn(2, 2, generator=torch.Generator().manual_seed(1)).double())[0]
    assert configuration(H, y) == configuration(7 * H @ turn, y) == word


def test_a_pair_counts_if_each_of_its_runs_does():
    rng = np.random.default_rng(0)
    shape = 4, 5
    runs = {
        loss: {
            "root": np.where(rng.random(shape) < 0.2, np.nan, 1.0),
            "mem, changed": np.where(rng.random(shape) < 0.2, 0.0, 1.0),
            "shape": rng.choice(["axes", "origin"], shape),
        }
        for loss in ("CE", "LS", "MSE")
    }
    for losses in (("CE", "LS"), ("CE", "MSE"), ("CE", "LS", "MSE")):
        for wanted in (None, "axes"):
            found = pairs_that_count(runs, losses, wanted)
            for place in np.ndindex(shape):
                own = [{name: values[place] for name, values in runs[loss].items()} for loss in losses]
                sound = all(run["root"] == 1 and run["mem, changed"] == 1 for run in own)
                along = [run["shape"] == "axes" for run, loss in zip(own, losses, strict=True) if loss != "MSE"]
                assert found[place] == (sound and (wanted is None or all(along)))
