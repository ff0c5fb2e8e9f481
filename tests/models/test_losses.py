import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models.losses import label_smoothing, squared_error

quick = settings(deadline=None)


def random_scores(N, K, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(N, K, dtype=torch.float64, generator=generator)
    return scores, torch.randint(K, (N,), generator=generator)


@quick
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**31))
def test_the_squared_error_is_half_the_mean_squared_distance_to_the_one_hot_target(N, K, seed):
    scores, y = random_scores(N, K, seed)
    total = sum((scores[i, k].item() - (k == y[i].item())) ** 2 for i in range(N) for k in range(K))
    assert squared_error(scores, y).item() == pytest.approx(total / (2 * N), rel=1e-12)


@quick
@given(st.integers(1, 9), st.integers(2, 6), st.floats(0, 0.999), st.integers(0, 2**31))
def test_label_smoothing_is_the_cross_entropy_against_mixed_targets(N, K, alpha, seed):
    scores, y = random_scores(N, K, seed)
    total = 0.0
    for row, label in zip(scores.tolist(), y.tolist(), strict=True):
        log_total = math.log(sum(map(math.exp, row)))
        for k in range(K):
            total -= ((1 - alpha) * (k == label) + alpha / K) * (row[k] - log_total)
    assert label_smoothing(scores, y, alpha).item() == pytest.approx(total / N, rel=1e-10, abs=1e-12)


def test_an_alpha_out_of_its_range_is_refused():
    with pytest.raises(ValueError, match="alpha"):
        label_smoothing(torch.zeros(2, 3), torch.tensor([0, 1]), alpha=1.0)


@pytest.mark.parametrize("loss", [squared_error, label_smoothing])
@pytest.mark.parametrize("shape, y", [((2, 3), [0, 3]), ((2, 3), [0, -1]), ((2, 3), [0.0, 1.0]), ((2,), [0, 1])])
def test_labels_and_shapes_that_do_not_fit_are_refused(loss, shape, y):
    with pytest.raises(ValueError, match=r"\by\b"):
        loss(torch.zeros(shape), torch.tensor(y))
