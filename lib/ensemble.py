r"""Plain gradient descent on many unconstrained features models at once: runs are the first dimension of every tensor.

Three things make it fast. The gradient is written out, so that a step is a handful of batched products with no graph.
Runs advance together. And the samples of a class are not carried one by one where nothing is lost by it:

- Without a ReLU the squared loss does not notice a rotation of the samples, :math:`\|WH - Y\| = \|WHQ - YQ\|` for
  orthogonal :math:`Q`. One that turns the samples of a class into their mean, scaled by :math:`\sqrt{n_k}`, and
  deviations with target 0 leaves K columns of means and d columns of deviations, exactly and from the first step on.
- With a ReLU, once the samples of a class coincide up to a stated tolerance they move together, and one column of
  length :math:`\sqrt{n_k}` times the feature has their trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lib.models.unconstrained import check, one_hot


class Runs(NamedTuple):
    """Weights of R runs: features `H: (R, d, N)`, `Ws` with `(R, d_out, d_in)` each, bias `b: (R, K)` or `None`."""

    H: Tensor
    Ws: list[Tensor]
    b: Tensor | None


def random_start(
    K: int, n: int, d: int, layers: int, seeds: Sequence[int], scales: float | Sequence[float], bias: bool = False
) -> Runs:
    r"""Independent normal starts in float64, one run per seed: `scales` times :math:`N(0, 1)`.

    `scales` is one number, or one per factor in the order :math:`W_L, \dots, W_1, H` of the paper's figures; the bias
    has that of :math:`W_L`. Drawn on the CPU from a generator per run, so that a seed means the same everywhere.
    ValueError for another number of scales, or without a layer or a seed.
    """
    if layers < 1:
        raise ValueError(f"layers={layers}: at least the classifier is needed")
    if len(seeds) == 0:
        raise ValueError("seeds is empty: one for each run is needed")
    scales = [float(scales)] * (layers + 1) if isinstance(scales, (int, float)) else list(scales)
    if len(scales) != layers + 1:
        raise ValueError(f"scales has {len(scales)} entries; {layers} layers and the features need {layers + 1}")
    *weight_scales, feature_scale = scales
    Hs, weights, biases = [], [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        sizes = [(d, K * n), *[(d, d)] * (layers - 1), (K, d), (K,)]
        normal = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
        Hs.append(feature_scale * normal[0])
        weights.append([scale * W for scale, W in zip(reversed(weight_scales), normal[1:-1], strict=True)])
        biases.append(weight_scales[0] * normal[-1])
    Ws = [torch.stack(level) for level in zip(*weights, strict=True)]
    return Runs(torch.stack(Hs), Ws, torch.stack(biases) if bias else None)


@torch.no_grad()
def gradient_descent(
    start: Runs,
    y: Tensor,
    lam_w: float | Sequence[float],
    lam_h: float,
    learning_rate: float,
    steps: int,
    lam_b: float = 0.0,
    relu: bool = False,
    every: int = 0,
    watch: Callable[[int, Runs], None] | None = None,
    tolerance: float = 1e-13,
    reduce: bool = True,
) -> Runs:
    r"""`steps` steps of plain gradient descent on :func:`lib.models.unconstrained.objective` with the squared loss.

    .. math:: \theta \leftarrow \theta - \text{learning\_rate}\,\nabla f(\theta), \; \theta = (W_L, \dots, W_1, H, b)

    A unit that is exactly 0 counts as inactive, as in PyTorch's own derivative of the ReLU.

    Parameters
    ----------
    start
        Where the runs start; left as it is.
    y, lam_w, lam_h, lam_b, relu
        As in the objective; the same for all runs.
    every, watch
        `watch(step, runs)` is called with the full features before the first step, after each `every` steps, and at
        the end; `every` = 0: at both ends only. What it is given is its own to keep.
    tolerance
        With `relu`: at these steps, if the largest deviation of a feature from its class mean is below `tolerance`
        times the largest feature entry in every run, classes are continued as one column each. The deviations are 0
        from then on.
    reduce
        `False` carries every sample through every step.

    Returns
    -------
    Runs
        Where the runs end.

    Raises
    ------
    ValueError
        As the objective, for weights that are not those of R runs or not finite, for a learning rate or a number of
        steps that is not positive, and for a negative `every` or `tolerance`.
    FloatingPointError
        If a run diverges, found at the next call of `watch` or at the end.
    """
    decays = check(start.H, start.Ws, y, lam_w, lam_h, start.b, lam_b)
    R, K = len(start.H), start.Ws[-1].shape[-2]
    parts = {"H": start.H} | {f"W_{i}": W for i, W in enumerate(start.Ws, 1)}
    for name, part in parts.items():
        if part.ndim != 3 or len(part) != R:
            raise ValueError(f"{name} has shape {tuple(part.shape)}; three dimensions are needed, the first for runs")
    if start.b is not None and start.b.shape != (R, K):
        raise ValueError(f"b has shape {tuple(start.b.shape)}; {(R, K)} is needed")
    for name, part in (parts if start.b is None else parts | {"b": start.b}).items():
        if not torch.isfinite(part).all():
            raise ValueError(f"{name} has {int((~torch.isfinite(part)).sum())} entries that are not finite")
    if not learning_rate > 0:
        raise ValueError(f"learning_rate={learning_rate}: a positive number is needed")
    if steps < 1:
        raise ValueError(f"steps={steps}: at least one step is needed")
    if every < 0 or tolerance < 0:
        raise ValueError(f"every={every}, tolerance={tolerance}: neither can be negative")
    y = y.to(start.H.device)
    Ws = [W.clone() for W in start.Ws]
    b = None if start.b is None else start.b.clone()[..., None]
    linear = not relu or len(Ws) == 1
    samples = _rotated(start.H, y, K) if reduce and linear else _every_sample(start.H, y, K)
    done = 0
    for stop in [*range(0, steps, every or steps), steps]:
        _advance(samples, Ws, b, decays, lam_h, lam_b, learning_rate, stop - done, relu, len(y))
        done = stop
        runs = Runs(samples.features(), [W.clone() for W in Ws], None if b is None else b[..., 0].clone())
        if not all(torch.isfinite(part).all() for part in (runs.H, *runs.Ws)):
            raise FloatingPointError(f"a run has diverged after {done} steps with learning rate {learning_rate}")
        if reduce and not linear and samples.columns.shape[-1] > K and _collapsed(runs.H, y, K, tolerance):
            samples = _means(runs.H, y, K)
        if watch is not None:
            watch(done, runs)
    return runs


class _Samples(NamedTuple):
    """Columns that stand for the samples, their targets, how often the bias acts on each, and the way back."""

    columns: Tensor
    targets: Tensor
    ones: Tensor
    features: Callable[[], Tensor]


def _every_sample(H: Tensor, y: Tensor, K: int) -> _Samples:
    columns = H.clone(memory_format=torch.contiguous_format)
    return _Samples(columns, one_hot(y, K, H.dtype), torch.ones_like(H[0, 0]), columns.clone)


def _class_means(H: Tensor, y: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Class means `(R, d, K)` and the roots of the class sizes `(K,)`."""
    indicator = one_hot(y, K, H.dtype)
    sizes = indicator.sum(1)
    return H @ indicator.T / sizes, sizes.sqrt()


def _means(H: Tensor, y: Tensor, K: int) -> _Samples:
    means, roots = _class_means(H, y, K)
    columns = means * roots
    return _Samples(columns, torch.diag(roots), roots, lambda: (columns / roots)[..., y])


def _rotated(H: Tensor, y: Tensor, K: int) -> _Samples:
    d, N = H.shape[-2:]
    if K + d >= N:
        return _every_sample(H, y, K)
    means, roots = _class_means(H, y, K)
    # deviations = factor @ basis: the rows of the basis are orthonormal, the columns of the factor move like samples
    basis, factor = (part.mT for part in torch.linalg.qr((H - means[..., y]).mT))
    columns = torch.cat([means * roots, factor], -1)
    zeros = roots.new_zeros(K, d)
    return _Samples(
        columns,
        torch.cat([torch.diag(roots), zeros], -1),
        torch.cat([roots, zeros[0]]),
        lambda: (columns[..., :K] / roots)[..., y] + columns[..., K:] @ basis,
    )


def _collapsed(H: Tensor, y: Tensor, K: int, tolerance: float) -> bool:
    deviations = H - _class_means(H, y, K)[0][..., y]
    return bool((deviations.abs().amax((-2, -1)) <= tolerance * H.abs().amax((-2, -1))).all())


def _advance(samples, Ws, b, decays, lam_h, lam_b, rate, steps, relu, N):
    """The steps themselves, in place; the overhead of a call is what they cost, so there are as few as possible."""
    H, R, last = samples.columns, len(samples.columns), len(Ws) - 1
    Y, ones = samples.targets.expand(R, -1, -1), samples.ones.expand(R, 1, -1)
    levels = [H] + [H.new_empty(R, W.shape[-2], H.shape[-1]) for W in Ws]
    gradients = [torch.empty_like(level) for level in levels]
    spare = torch.empty_like(Ws[0])
    for _ in range(steps):
        for i in range(last):
            torch.bmm(Ws[i], levels[i], out=levels[i + 1])
            if relu:
                levels[i + 1].relu_()
        G = torch.baddbmm(Y, Ws[last], levels[last], beta=-1, out=levels[-1])
        if b is not None:
            G.baddbmm_(b, ones)
            b.baddbmm_(G, ones.mT, beta=1 - rate * lam_b, alpha=-rate / N)
        for i in range(last, 0, -1):
            torch.bmm(Ws[i].mT, G, out=gradients[i])
            Ws[i].baddbmm_(G, levels[i].mT, beta=1 - rate * decays[i], alpha=-rate / N)
            G = gradients[i]
            if relu:  # in place: G where the unit is active, 0 elsewhere
                torch.ops.aten.threshold_backward.grad_input(G, levels[i], 0, grad_input=G)
        # H and W_1 each need the other's old value
        torch.baddbmm(Ws[0], G, H.mT, beta=1 - rate * decays[0], alpha=-rate / N, out=spare)
        H.baddbmm_(Ws[0].mT, G, beta=1 - rate * lam_h, alpha=-rate / N)
        Ws[0], spare = spare, Ws[0]
