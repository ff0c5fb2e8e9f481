from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.data.label_noise import corrupt, latent_classes

quick = settings(deadline=None)
BOTH = pytest.mark.parametrize("noise", [corrupt, latent_classes])


def labels(N, K):
    return torch.arange(N) % K


def test_the_redrawn_share_is_eta_and_the_new_labels_are_uniform_over_all_classes():
    """The old one among them, so that a corrupted sample may be unchanged."""
    N, K, eta = 40_000, 5, 0.3
    noise = corrupt(labels(N, K), K, eta, seed=0)
    assert noise.corrupted.double().mean().item() == pytest.approx(eta, abs=5 * (eta * (1 - eta) / N) ** 0.5)
    assert torch.equal(noise.changed, noise.y_observed != labels(N, K)) and (noise.changed <= noise.corrupted).all()
    for k in range(K):  # among the redrawn of each true class, each label
        counts = noise.y_observed[noise.corrupted & (noise.y_true == k)].bincount(minlength=K)
        n = counts.sum().item()
        assert (counts / n - 1 / K).abs().max().item() < 5 * (1 / K * (1 - 1 / K) / n) ** 0.5


@BOTH
@quick
@given(st.integers(1, 60), st.integers(2, 7), st.floats(0, 1), st.integers(0, 2**31))
def test_only_picked_samples_get_another_label(noise, N, K, eta, seed):
    y = labels(N, K)
    found = noise(y, K, eta, seed)
    assert torch.equal(found.y_true, y) and torch.equal(y, labels(N, K))
    assert torch.equal(found.y_observed[~found.corrupted], y[~found.corrupted])
    assert found.corrupted.dtype == torch.bool and found.y_observed.dtype == torch.int64


@quick
@given(st.integers(1, 60), st.integers(2, 7), st.floats(0, 1), st.integers(0, 2**31))
def test_latent_classes_take_the_same_share_of_every_class(N, K, eta, seed):
    noise = latent_classes(labels(N, K), K, eta, seed)
    for k in range(K):
        n = (noise.y_true == k).sum().item()
        moved = (noise.y_observed == K + k).sum().item()
        assert abs(moved - eta * n) <= 0.5
        assert moved + (noise.y_observed == k).sum().item() == n
    assert torch.equal(noise.corrupted, noise.changed)


@BOTH
def test_more_noise_with_the_same_seed_adds_to_what_there_was(noise):
    found = [noise(labels(200, 4), 4, eta, seed=2) for eta in (0.0, 0.1, 0.35, 0.7, 1.0)]
    for less, more in pairwise(found):
        assert more.corrupted[less.corrupted].all()
        assert torch.equal(more.y_observed[less.corrupted], less.y_observed[less.corrupted])
    assert found[-1].corrupted.all() and not found[0].corrupted.any()


@BOTH
def test_a_seed_is_one_draw_and_the_global_generator_stays_as_it_was(noise):
    y, state = labels(100, 3), torch.get_rng_state()
    first, second, other = (noise(y, 3, 0.5, seed) for seed in (4, 4, 5))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.y_observed, second.y_observed)
    assert not torch.equal(first.corrupted, other.corrupted)


@BOTH
@pytest.mark.parametrize(
    ("K", "eta", "name"), [(3, -0.1, "eta"), (3, float("nan"), "eta"), (1, 0.1, "K"), (2, 0.1, "y")]
)
def test_impossible_noise_is_refused(noise, K, eta, name):
    with pytest.raises(ValueError, match=rf"^{name} "):
        noise(labels(6, 3), K, eta, 0)
