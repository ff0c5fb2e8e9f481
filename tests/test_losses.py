import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.losses import squared_error


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**31))
def test_the_squared_error_is_half_the_squared_distance_to_the_one_hot_target_averaged_over_samples(N, K, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(N, K, dtype=torch.float64, generator=generator)
    y = torch.randint(K, (N,), generator=generator)
    total = 0.0
    for i in range(N):
        for k in range(K):
            total += (scores[i, k].item() - (1.0 if k == y[i] else 0.0)) ** 2 / 2
    assert abs(squared_error(scores, y).item() - total / N) < 1e-12 * (1 + total)


def test_it_is_the_data_term_of_the_unconstrained_features_model():
    K, n, d = 3, 4, 5
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(K, d, dtype=torch.float64, generator=generator)
    H = torch.randn(d, K * n, dtype=torch.float64, generator=generator)
    Y = torch.kron(torch.eye(K, dtype=torch.float64), torch.ones(1, n, dtype=torch.float64))
    expected = torch.linalg.matrix_norm(W @ H - Y) ** 2 / (2 * K * n)
    torch.testing.assert_close(squared_error((W @ H).mT, torch.arange(K).repeat_interleave(n)), expected)


def test_it_is_zero_at_the_targets_and_one_half_at_the_origin():
    y = torch.tensor([2, 0, 1])
    assert squared_error(torch.eye(3, dtype=torch.float64)[y], y) == 0
    assert squared_error(torch.zeros(3, 3, dtype=torch.float64), y) == 0.5


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(label):
    with pytest.raises(ValueError, match=r"0\.\.2"):
        squared_error(torch.zeros(2, 3), torch.tensor([0, label]))


@pytest.mark.parametrize("scores, y", [((2, 3), (3,)), ((2,), (2,)), ((2, 3), (2, 1))])
def test_shapes_that_do_not_fit_are_refused(scores, y):
    with pytest.raises(ValueError, match="are needed"):
        squared_error(torch.zeros(scores), torch.zeros(y, dtype=torch.long))
