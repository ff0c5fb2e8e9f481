"""Class statistics batch by batch against float64 on all features at once, where rounding is dangerous."""

import copy
import pickle
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import collapsemetrics as metrics
from collapsemetrics import ClassStatistics, streaming

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10**6)


def collected(H, y, size, K, **options):
    statistics = ClassStatistics(K, H.shape[1], **options)
    for part, labels in zip(H.split(size), y.split(size), strict=True):
        statistics.update(part, labels)
    return statistics


def covariance(H, y):
    means = metrics.class_means(H.double(), y)[0]
    return (H.double() - means[y]).T @ (H.double() - means[y]) / len(H)


def check(statistics, H, y, rel):
    """Every number against the formulas in float64, on the features as they are."""
    H = H.double()
    assert statistics.samples == len(H) and statistics.counts.tolist() == torch.bincount(y).tolist()
    scale = covariance(H, y).diagonal().max().item()
    np.testing.assert_allclose(statistics.within_class_covariance, covariance(H, y), rtol=rel, atol=rel * scale)
    for found, expected in zip((statistics.means, statistics.centre()), metrics.class_means(H, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=rel * scale**0.5)
    assert statistics.nc1() == pytest.approx(metrics.nc1(H, y).item(), rel=rel)
    assert statistics.trace_ratio() == pytest.approx(metrics.trace_ratio(H, y).item(), rel=rel)
    # the variance between classes, debiased, is a difference: small against what it is the difference of
    debiased, between = (1 / metrics.trace_ratio(H, y, debiased=way).item() for way in (True, False))
    assert 1 / statistics.trace_ratio(debiased=True) == pytest.approx(debiased, rel=rel, abs=rel * between)
    assert statistics.cdnv() == pytest.approx(metrics.cdnv(H, y).item(), rel=rel)
    assert statistics.relative_spread() == pytest.approx(metrics.relative_spread(H, y), rel=rel)


def features(
    seed, n, d, K, dtype=torch.float32, offset=0.0, spread=1.0, apart=None, order="mixed", drift=0.0, outlier=0.0,
    scale=1.0,
):  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=generator)
    y[:K] = torch.arange(K)
    if order == "classes":
        y = y.sort().values
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    means = offset + torch.randn(K, d, generator=generator, dtype=torch.float64) * (apart or max(spread, 1e-3))
    H = means[y] + spread * (noise + drift * torch.linspace(0, 1, n)[:, None])
    H[0] += outlier
    return (scale * H).to(dtype), y


@pytest.mark.parametrize("size", [1, 100, 4096])
@pytest.mark.parametrize(
    "given, rel",
    [
        ({}, 1e-5),
        ({"dtype": torch.float64}, 1e-10),
        ({"dtype": torch.float64, "offset": 1e6, "spread": 1e-2}, 1e-6),
        ({"offset": 1e3, "spread": 1e-1}, 1e-5),
        ({"order": "classes"}, 1e-5),
        ({"drift": 100.0}, 1e-5),
        ({"drift": 100.0, "order": "classes", "dtype": torch.float64}, 1e-10),
        ({"outlier": 1e6}, 1e-5),
        ({"dtype": torch.bfloat16}, 1e-5),
        ({"offset": 1e3, "spread": 1e-4, "apart": 1.0, "order": "classes"}, 1e-4),  # a few steps of float32
        ({"scale": 1e-30}, 1e-5),  # squares that float32 cannot hold
        ({"scale": 1e30}, 1e-5),
    ],
    ids=str,
)
def test_statistics_are_those_of_float64(given, rel, size):
    H, y = features(0, n=5000, d=12, K=4, **given)
    check(collected(H, y, size, 4), H, y, rel)


@quick
@given(seeds, st.integers(2, 9), st.integers(1, 20), st.integers(1, 700), st.integers(1, 9), st.booleans())
def test_statistics_of_any_size_in_batches_of_any_size(seed, K, d, n, size, ordered):
    H, y = features(seed, K + n, d, K, torch.float64, order="classes" if ordered else "mixed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "ROWS", 37)
        patch.setattr(streaming, "NARROWEST", 7)  # several blocks, the last one narrower
        statistics = collected(H, y, size, K)
        np.testing.assert_allclose(statistics.within_class_covariance, covariance(H, y), rtol=0, atol=1e-12)
        expected = metrics.nc1(H, y).item()
        assert statistics.nc1() == pytest.approx(expected, rel=1e-8, nan_ok=True)
        assert statistics.nc1("classes") == pytest.approx(nc1_about_the_mean_of_means(H, y), rel=1e-6, nan_ok=True)


def nc1_about_the_mean_of_means(H, y):
    means = metrics.class_means(H, y)[0].numpy()
    between = np.cov(means.T, bias=True).reshape(H.shape[1], H.shape[1])
    return np.trace(covariance(H, y).numpy() @ np.linalg.pinv(between, rcond=1e-12, hermitian=True)) / len(means)


# Several processes ----------------------------------------------------------------------------------------------------


@quick
@given(seeds, st.lists(st.integers(0, 300), min_size=1, max_size=4), st.sampled_from([torch.float32, torch.float64]))
def test_merged_statistics_are_those_of_all_samples(seed, cuts, dtype):
    H, y = features(seed, 300, 5, 3, dtype, drift=10.0)
    edges = [0, *sorted(cuts), 300]
    parts = [collected(H[a:b], y[a:b], 50, 3, chance=True) for a, b in zip(edges, edges[1:], strict=False) if b > a]
    before = [part.counts.tolist() for part in parts]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    check(total, H, y, 1e-4 if dtype == torch.float32 else 1e-10)
    assert total.chance_nc1() > 0 and [part.counts.tolist() for part in parts] == before
    both, counts = total + total, total.counts
    total.update(H, y)  # leaves alone the sum, and what was read
    assert both.samples == total.samples == 600 and counts.sum() == 300


def test_statistics_are_saved_copied_and_gone_on_with():
    H, y = features(0, 1000, 5, 3)
    half, other = collected(H[:500], y[:500], 60, 3), ClassStatistics(3, 5)
    other.load_state_dict({name: value.clone() for name, value in half.state_dict().items()})
    for part in (other, copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        part.update(H[500:], y[500:])
        check(part, H, y, 1e-5)
    assert half.samples == 500
    with pytest.raises(ValueError, match="K, d, chance are"):
        half.merge(ClassStatistics(3, 4))


# Chance and few samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["mixed", "classes"])
def test_chance_is_nc1_with_labels_that_were_shuffled(order):
    H, y = features(0, 4000, 6, 4, order=order, spread=0.2)
    chance = collected(H, y, 128, 4, chance=True).chance_nc1()
    generator = torch.Generator().manual_seed(1)
    shuffled = [metrics.nc1(H.double(), y[torch.randperm(4000, generator=generator)]).item() for _ in range(40)]
    assert metrics.nc1(H.double(), y).item() < min(shuffled) / 100
    assert min(shuffled) < chance < max(shuffled)
    drawn = torch.randint(20, (30,), generator=torch.Generator().manual_seed(streaming.SEED)).unique(
        return_inverse=True
    )
    few = collected(H[:30].double(), torch.arange(30) % 20, 30, 20, chance=True)
    assert len(drawn[0]) < 20 and few.chance_nc1() == pytest.approx(metrics.nc1(H[:30].double(), drawn[1]).item())
    with pytest.raises(ValueError, match="chance=True"):
        collected(H, y, 128, 4).chance_nc1()


@torch.inference_mode()
def test_nc1_of_float32_features_far_from_the_origin_is_that_of_their_values():
    generator = torch.Generator().manual_seed(0)
    y, noise = torch.arange(4000) % 10, torch.randn(4000, 64, generator=generator).double()
    H = (1e4 + 2e-3 * torch.randn(10, 64, generator=generator).double()[y] + 1e-3 * noise).float()
    statistics = collected(H, y, 512, 10)
    assert statistics.nc1() == pytest.approx(metrics.nc1(H.double() - 1e4, y).item(), rel=1e-5)
    head, means = nn.Linear(64, 10), metrics.class_means(H.double(), y)[0]
    (row,) = metrics.measure(head, [(H, y)], nc4=True)
    W, b = head.weight.double(), head.bias.double()
    assert row["nc4"] == metrics.nc4(H.double(), W, b, means).item()


@pytest.mark.parametrize("centre", ["samples", "classes"])
def test_the_debiased_ratio_of_traces_does_not_depend_on_the_number_of_samples(centre):
    """Classes of unequal sizes and spreads, with directions of unequal variance: on average the true ratio."""
    generator = torch.Generator().manual_seed(0)
    K, d, counts = 4, 30, torch.tensor([5, 8, 11, 40])
    means, widths = torch.randn(K, d, generator=generator).double(), torch.tensor([0.5, 1.0, 2.0, 1.5])
    scales = torch.linspace(0.1, 2, d).double()
    y = torch.arange(K).repeat_interleave(counts)
    shares = counts / counts.sum() if centre == "samples" else torch.full((K,), 1 / K)
    between = (means - shares.double() @ means).square().sum().item() / K
    within = ((counts - 1) * widths**2).sum().item() / (counts.sum().item() - K) * scales.square().sum().item()
    found = []
    for _ in range(400):
        noise = torch.randn(len(y), d, generator=generator).double() * scales * widths[y, None]
        statistics = collected(means[y] + noise, y, 64, K)
        debiased, raw = (statistics.trace_ratio(centre, debiased=way) for way in (True, False))
        # numerator and denominator are unbiased, their ratio is not: compared as 1 / (1 + between / within)
        found.append((1 / (1 + 1 / debiased), 1 / (1 + 1 / raw)))
    debiased, raw = np.mean(found, axis=0)
    true = 1 / (1 + between / within)
    error = np.std([pair[0] for pair in found]) / 20
    assert abs(debiased - true) < 4 * error < abs(raw - true)


@pytest.mark.parametrize("classes, apart", [(2, 0.0), (4, 0.0), (10, 0.0), (4, 3.0), (10, 1.0)])
def test_a_note_says_where_class_means_differ_no_more_than_noise_makes_them_differ(classes, apart):
    """Six samples of a class in twenty dimensions of unequal variance; of ten seeds one may err."""
    said, scales = 0, torch.linspace(0.1, 2, 20)
    for seed in range(10):
        generator, y = torch.Generator().manual_seed(seed), torch.arange(6 * classes) % classes
        means = apart * torch.randn(classes, 20, generator=generator)
        H = (means[y] + torch.randn(len(y), 20, generator=generator)) * scales
        notes = metrics.measure(nn.Linear(20, classes), [(H, y)]).notes
        said += any("noise may be all" in note and "penultimate" in note for note in notes)
    assert said <= 1 if apart else said >= 9


def test_a_note_counts_the_directions_that_nc1_leaves_out():
    generator, y = torch.Generator().manual_seed(0), torch.arange(60) % 12
    H = torch.randn(60, 8, generator=generator, dtype=torch.float64)
    H[:, 5:] *= 1e-12
    for means_span, said in ((H, ["NC1 leaves out 3 of 8 directions, as rounding: penultimate"]), (H[:, :5], [])):
        model = nn.Linear(means_span.shape[1], 12).double()
        notes = metrics.measure(model, [(means_span, y)]).notes
        assert [note for note in notes if "leaves out" in note] == said


# Many classes, and products -------------------------------------------------------------------------------------------


class Watched(TorchDispatchMode):
    """Largest number of entries of any tensor that is made, and of each product its dtype and permitted roundings."""

    def __init__(self):
        super().__init__()
        self.largest, self.products = 0, set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        self.largest = max(
            [self.largest, *(part.numel() for part in pytree.tree_leaves(made) if torch.is_tensor(part))]
        )
        if "mm" in function.__name__:
            kinds = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
            self.products.add((made.dtype, *(kind.fp32_precision for kind in kinds)))
        return made


def test_no_array_has_a_number_for_each_pair_of_classes():
    K = 3000
    H, y = features(0, n=2 * K, d=3, K=K)
    with Watched() as watched:
        collected(H, y, 1000, K, chance=True).measures()
    assert K * 3 <= watched.largest < K * K / 2


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_products_of_float32_features_are_not_rounded_whatever_pytorch_is_set_to(precision):
    H, y = features(0, n=100, d=5, K=3)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        kinds = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
        given = [kind.fp32_precision for kind in kinds]
        with Watched() as watched:
            assert collected(H, y, 50, 3).samples == 100
        assert watched.products == {(torch.float32, "ieee", "ieee")}
        assert [kind.fp32_precision for kind in kinds] == given and torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("inside", [False, ValueError], ids=["ends well", "fails"])
def test_where_pytorch_has_one_switch_or_none_for_rounding_it_is_set_and_put_back(inside):
    """As before torch 2.9."""
    older = SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True))
    with suppress(ValueError), streaming.unrounded(older), streaming.unrounded(SimpleNamespace()):
        assert older.matmul.allow_tf32 is False
        if inside:
            raise inside
    assert older.matmul.allow_tf32 is True
