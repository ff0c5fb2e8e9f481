r"""Plain gradient descent on many unconstrained features models at once: runs are the first dimension of every tensor.

Three things make it fast. The gradient is written out, so that a step is a handful of batched products without
autograd; on a CPU numpy computes them, which is faster for small matrices, and a GPU replays recorded steps
(:mod:`lib.training.cuda_graphs`). Runs advance together. And the samples of a class are not carried one by one where
nothing is lost by merging them:

- Without a ReLU the squared loss is unchanged by a rotation of the samples, :math:`\|WH - Y\| = \|WHQ - YQ\|` for
  orthogonal :math:`Q`. A rotation that turns the samples of a class into their mean, scaled by :math:`\sqrt{n_k}`, and
  deviations with target 0 leaves K columns of means and d columns of deviations, exactly and from the first step on.
- With a ReLU, once the samples of a class coincide up to a stated tolerance and have the same active units, they move
  together, and one column of length :math:`\sqrt{n_k}` times the feature follows their trajectory. While the active
  units stay the same, a class goes through the same linear map, and the rotation applies to it: deviations have target
  0 and enter the gradient of the weights through products of two of them. Deviations of relative size
  :math:`\delta` therefore change weights and means by :math:`\delta^2` only, and :math:`\delta = 10^{-8}` is as good
  as rounding. When a unit switches later, it does so for all samples of a class at the same step, unless they happen
  to straddle the kink then; the chance of that is of the order :math:`\delta` per switch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib import checks
from lib.models.unconstrained import activations, checked_decays, one_hot
from lib.training.cuda_graphs import recorded


class Runs(NamedTuple):
    """Weights of R runs: features `H: (R, d, N)`, `Ws` with `(R, d_out, d_in)` each, bias `b: (R, K)` or `None`."""

    H: Tensor
    Ws: list[Tensor]
    b: Tensor | None


class Descent(NamedTuple):
    r"""The settings of :func:`gradient_descent`: the size and number of steps, and the objective."""

    learning_rate: float  #: the step size :math:`\eta`
    steps: int
    #: of the weights, the features and the bias, as :func:`lib.models.unconstrained.objective` has `lam_w`, `lam_h`
    #: and `lam_b`; a tensor `(R,)` has one for each run
    weight_decay: float | Tensor | Sequence[float | Tensor]
    feature_decay: float | Tensor | None = None
    bias_decay: float = 0.0
    relu: bool = False
    every: int = 0  #: steps between two looks, 0 for one at each end
    tolerance: float = 1e-13  #: deviation of samples from their class mean below which they go on as one


def random_runs(
    K: int, n: int, d: int, layers: int, seeds: Sequence[int], scales: float | Sequence[float], bias: bool = False
) -> Runs:
    r"""Independent normal starts in float64, one run per seed: `scales` times :math:`N(0, 1)`.

    `scales` is one number, or one per factor in the order :math:`W_L, \dots, W_1, H` of the paper's figures; the bias
    has that of :math:`W_L`. Drawn on the CPU from a generator per run, so that a seed means the same everywhere.
    Raises ValueError for a wrong number of scales, or without a layer.

    >>> runs = random_runs(K=3, n=2, d=4, layers=2, seeds=range(5), scales=0.1)
    >>> tuple(runs.H.shape), [tuple(W.shape) for W in runs.Ws]
    ((5, 4, 6), [(5, 4, 4), (5, 3, 4)])
    """
    checks.integers(1, layers=layers)
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


def _by_part(function: Callable[..., Tensor], *runs: Runs) -> Runs:
    """Apply a function to the tensors of one or several ensembles, factor by factor."""
    Ws = [function(*level) for level in zip(*(part.Ws for part in runs), strict=True)]
    b = None if runs[0].b is None else function(*(part.b for part in runs))
    return Runs(function(*(part.H for part in runs)), Ws, b)


def together(parts: Sequence[Runs]) -> Runs:
    """Runs of several ensembles of one shape as one ensemble.

    >>> one, two = (random_runs(3, 2, 4, layers=1, seeds=[seed], scales=0.1) for seed in (0, 1))
    >>> tuple(together([one, two]).H.shape)
    (2, 4, 6)
    """
    return _by_part(lambda *tensors: torch.cat(tensors), *parts)


def select(runs: Runs, chosen: Tensor | Sequence[int] | slice) -> Runs:
    """Some of the runs, in the order of `chosen` (their numbers `(m,)` or a slice); copies, except for a slice.

    >>> runs = random_runs(K=3, n=2, d=4, layers=1, seeds=range(5), scales=0.1)
    >>> torch.equal(select(runs, [4, 0]).H[0], runs.H[4])
    True
    """
    return _by_part(lambda tensor: tensor[chosen], runs)


@torch.no_grad()
def gradient_descent(
    start: Runs,
    y: Tensor,
    descent: Descent,
    watch: Callable[[int, Runs], None] | None = None,
    diverged: dict[int, int] | None = None,
) -> Runs:
    r"""`steps` steps of plain gradient descent on :func:`lib.models.unconstrained.objective` with the squared loss.

    .. math:: \theta \leftarrow \theta - \eta\,\nabla f(\theta), \qquad \theta = (W_L, \dots, W_1, H, b)

    A unit that is exactly 0 counts as inactive, as in PyTorch's own derivative of the ReLU. Where torch uses one
    thread, numbers below the smallest normal one count as 0. On a GPU nothing is read back between two calls of
    `watch`.

    Parameters
    ----------
    start
        Where the runs start; left as it is.
    y
        Classes `(N,)`, the same for all runs.
    descent
        The settings. With `relu`, each look checks every run: if at every level the largest deviation of a feature from
        its class mean is at most `tolerance` times the largest feature entry, and the samples of a class have the same
        active units, the run goes on with one column for each class. The deviations are 0 from then on. What is
        neglected is of the order `tolerance` squared.
    watch
        `watch(step, runs)` is called with the full features before the first step, after each `every` steps, and at
        the end. It may keep what it is given; at the end this is what is returned.
    diverged
        A dictionary that receives each run found not to be finite and the step at which it was found; other runs go
        on, such a run is nan from there on and belongs in no average. Earlier contents are removed. Without the
        dictionary a diverged run is an error.

    Returns
    -------
    Runs
        Where the runs end.

    Raises
    ------
    ValueError
        As for the objective, for weights that are not those of R runs, and for a setting out of its range.
    FloatingPointError
        If a run diverges, or starts from numbers that are not finite, and `diverged` is not given; found at the next
        call of `watch` or at the end. It names the runs, the step and the learning rate.

    Examples
    --------
    >>> from lib.models.unconstrained import objective
    >>> start = random_runs(K=2, n=1, d=3, layers=1, seeds=[0, 1], scales=0.1)
    >>> y = torch.tensor([0, 1])
    >>> end = gradient_descent(start, y, Descent(learning_rate=0.5, steps=500, weight_decay=0.1))
    >>> objective(end.H, end.Ws, y, 0.1).round(decimals=6).tolist()  # the minimum
    [0.18, 0.18]
    """
    keep = _checked(start, y, descent)
    device, R, K = start.H.device, len(start.H), start.Ws[-1].shape[-2]
    y, everyone = y.to(device), torch.arange(R, device=device)
    hidden = descent.relu and len(start.Ws) > 1

    def group(index: Tensor, runs: Runs, carried: Callable[[Tensor, Tensor, int], _Samples]) -> _Group:
        H, Ws, b = select(runs, index)
        own = [factor[index] if isinstance(factor, Tensor) else factor for factor in keep]
        b = None if b is None else b[..., None]
        return _Group(index, carried(H, y, K), Ws, b, own, descent.learning_rate / len(y), descent.relu)

    kind = _rotated if not hidden else _every_sample if len(y) > K else _means
    groups, settled = [group(everyone, start, kind)], torch.full((R,), kind is _means, device=device)
    if diverged is not None:
        diverged.clear()
    done = 0
    for stop in [*range(0, descent.steps, descent.every or descent.steps), descent.steps]:
        for one in groups:
            one.advance(stop - done)
        done, runs = stop, _by_part(torch.empty_like, start)
        for one in groups:
            _by_part(lambda whole, part, index=one.index: whole.index_copy_(0, index, part), runs, one.runs())
        finite = torch.stack([torch.isfinite(part).flatten(1).all(1) for part in (runs.H, *runs.Ws)]).all(0)
        if not finite.all():
            lost = everyone[~finite]
            if diverged is None:
                when = f"after {done} steps with learning rate {descent.learning_rate}"
                raise FloatingPointError(f"runs {lost.tolist()} have diverged {when}")
            diverged |= {run: done for run in lost.tolist() if run not in diverged}
            _by_part(lambda part, lost=lost: part.index_fill_(0, lost, torch.nan), runs)
        if hidden and not settled.all():
            before, settled = settled, settled | ~finite | _settled(runs, y, descent.tolerance)
            if not torch.equal(before, settled):
                kinds = (everyone[~settled], _every_sample), (everyone[settled], _means)
                groups = [group(index, runs, kind) for index, kind in kinds if len(index)]
        if watch is not None:
            watch(done, runs)
    return runs


def _checked(start: Runs, y: Tensor, descent: Descent) -> list[float | Tensor]:
    r"""What a step leaves of b, H, W_1 ... W_L, once all arguments of :func:`gradient_descent` are checked.

    That is :math:`1 - \eta\lambda`: a number, or one for each run, `(R, 1, 1)`.
    """
    R, L, (rate, steps, weight_decay, feature_decay, bias_decay) = len(start.H), len(start.Ws), descent[:5]
    if isinstance(weight_decay, Sequence | np.ndarray):
        decays = list(weight_decay)
    else:
        decays = [weight_decay] * (L + (feature_decay is None))
    decays = decays if feature_decay is None else [feature_decay, *decays]
    first = checks.each(R, **{f"decays[{i}]": lam for i, lam in enumerate(decays)})
    checked_decays(start.H, start.Ws, y, [numbers[0] for numbers in first], b=start.b, lam_b=bias_decay)
    parts = {"H": start.H, "b": start.b} | {f"W_{i}": W for i, W in enumerate(start.Ws, 1)}
    for name, part in parts.items():
        if part is not None and (part.ndim != 3 - (name == "b") or len(part) != R):
            raise ValueError(f"{name} has shape {tuple(part.shape)}; its first dimension has to be that of {R} runs")
    checks.positive(learning_rate=rate)
    checks.integers(1, steps=steps)
    checks.integers(0, every=descent.every)
    of_runs = [lam.to(start.H).expand(R).reshape(-1, 1, 1) if isinstance(lam, Tensor) else lam for lam in decays]
    return [1 - rate * lam for lam in (bias_decay, *of_runs)]


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
    columns = (means * roots).mT.contiguous().mT  # rows are faster where there are few
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


def _settled(runs: Runs, y: Tensor, tolerance: float) -> Tensor:
    """In which runs the samples of each class coincide up to the tolerance and have the same active units."""
    found, K = torch.ones(len(runs.H), dtype=torch.bool, device=y.device), runs.Ws[-1].shape[-2]
    for level, H in enumerate(activations(runs.H, runs.Ws, relu=True)):
        deviations = (H - _class_means(H, y, K)[0][..., y]).abs().amax((-2, -1))
        found &= deviations <= tolerance * H.abs().amax((-2, -1))
        if level:
            shares, _ = _class_means((H > 0).to(H), y, K)  # shares of the samples of a class for which a unit is active
            found &= ((shares == 0) | (shares == 1)).flatten(1).all(1)
    return found


@dataclass(frozen=True, eq=False)
class _Group:
    """Runs that advance together: which ones, their columns, weights, bias `(R, K, 1)`; and what a step is."""

    index: Tensor
    samples: _Samples
    Ws: list[Tensor]
    b: Tensor | None
    keep: list[float | Tensor]  # what a step leaves of b, H, W_1 ... W_L
    step_size: float  # learning rate over number of samples
    relu: bool

    def runs(self) -> Runs:
        """A copy of where they are, with the full features."""
        b = None if self.b is None else self.b[..., 0].clone()
        return Runs(self.samples.features(), [W.clone() for W in self.Ws], b)

    @cached_property
    def steps(self) -> Callable[[int], None]:
        """A function that makes so many steps in place; on a GPU by a graph that lasts as long as the group."""
        device = self.index.device
        make = _step_on_processor if device.type == "cpu" else _step_on_device
        return recorded(make(self, *_memory(self.samples.columns, self.Ws)), device, unroll=20)

    def advance(self, steps: int) -> None:
        if steps:
            # decay takes weights of inactive units to denormals, and the CPU is slow at these; other threads would
            # keep the setting, and a setting made already is left alone
            flush = torch.get_num_threads() == 1 and bool(torch.tensor([5e-324], dtype=torch.float64) * 1.0 != 0)
            if flush:
                torch.set_flush_denormal(True)
            try:
                with np.errstate(all="ignore"):  # a run that diverges is found by its numbers
                    self.steps(steps)
            finally:
                if flush:
                    torch.set_flush_denormal(False)


def _memory(columns: Tensor, Ws: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The columns, then memory for each level above them, scores included; and memory for the gradients of all.

    They lie in memory as the columns do: as rows, which is faster where there are few of them, or as columns.
    """
    R, _, N = columns.shape
    rows = not columns.is_contiguous()
    sizes = [W.shape[-2] for W in Ws]
    levels = [columns] + [columns.new_empty(R, N, d).mT if rows else columns.new_empty(R, d, N) for d in sizes]
    return levels, [torch.empty_like(level) for level in levels]


def _step_on_processor(group: _Group, levels: list[Tensor], gradients: list[Tensor]) -> Callable[[], None]:
    """A function that makes one step in place by numpy: its products of small matrices take about half of torch's time.

    Products take matrices of columns; elementwise operations take a matrix as it lies in memory, which is faster.
    Every gradient contains the step size.
    """
    relu, step_size, last, rows = group.relu, group.step_size, len(group.Ws) - 1, not levels[0].is_contiguous()

    def as_it_lies(part):
        return part.mT.numpy() if rows else part.numpy()

    H, D, Ws = ([part.numpy() for part in parts] for parts in (levels, gradients, group.Ws))
    H_lying, D_lying = ([as_it_lies(part) for part in parts] for parts in (levels, gradients))
    H_t, Ws_t = ([part.swapaxes(1, 2) for part in parts] for parts in (H, Ws))
    Y, ones = as_it_lies(group.samples.targets), group.samples.ones.numpy()[:, None]
    ones_lying = ones if rows else ones.T
    b, b_lying = (None, None) if group.b is None else (group.b.numpy(), as_it_lies(group.b))
    keep_b, keep_h, *keep = (factor.numpy() if isinstance(factor, Tensor) else factor for factor in group.keep)
    spare = {W.shape: np.empty_like(W) for W in Ws}
    active = [np.empty_like(level, dtype=bool) for level in H_lying]

    def step():
        for i in range(last):
            np.matmul(Ws[i], H[i], out=H[i + 1])
            if relu:
                np.maximum(H_lying[i + 1], 0, out=H_lying[i + 1])
        G, G_lying = np.matmul(Ws[last], H[last], out=H[-1]), H_lying[-1]
        if b is not None:
            np.add(G_lying, b_lying * ones_lying, out=G_lying)
        np.subtract(G_lying, Y, out=G_lying)
        np.multiply(G_lying, step_size, out=G_lying)
        if b is not None:
            np.subtract(keep_b * b, G @ ones, out=b)
        for i in range(last, -1, -1):
            slope = np.matmul(G, H_t[i], out=spare[Ws[i].shape])
            G = np.matmul(Ws_t[i], G, out=D[i])
            np.multiply(Ws[i], keep[i], out=Ws[i])
            np.subtract(Ws[i], slope, out=Ws[i])
            if relu and i:
                np.greater(H_lying[i], 0, out=active[i])
                np.multiply(D_lying[i], active[i], out=D_lying[i])
        np.multiply(H_lying[0], keep_h, out=H_lying[0])
        np.subtract(H_lying[0], D_lying[0], out=H_lying[0])

    return step


def _step_on_device(group: _Group, levels: list[Tensor], gradients: list[Tensor]) -> Callable[[], None]:
    """The same on a GPU, where the overhead of calls dominates, so there are as few as possible."""
    Ws, b, step_size, relu, last = group.Ws, group.b, group.step_size, group.relu, len(group.Ws) - 1
    H, R = levels[0], len(levels[0])
    Y, ones = group.samples.targets.expand(R, -1, -1), group.samples.ones.expand(R, 1, -1)
    before = torch.empty_like(Ws[0])
    keep_b, keep_h, *keep = group.keep

    def step():
        for i in range(last):
            torch.bmm(Ws[i], levels[i], out=levels[i + 1])
            if relu:
                levels[i + 1].relu_()
        G = torch.baddbmm(Y, Ws[last], levels[last], beta=-1, out=levels[-1])
        if b is not None:
            G.baddbmm_(b, ones)
            _update(b, G, ones.mT, keep_b, step_size)
        for i in range(last, 0, -1):
            torch.bmm(Ws[i].mT, G, out=gradients[i])
            _update(Ws[i], G, levels[i].mT, keep[i], step_size)
            G = gradients[i]
            if relu:  # in place: G where the unit is active, 0 elsewhere
                torch.ops.aten.threshold_backward.grad_input(G, levels[i], 0, grad_input=G)
        before.copy_(Ws[0])  # H and W_1 each need the other's old value
        _update(Ws[0], G, H.mT, keep[0], step_size)
        _update(H, before.mT, G, keep_h, step_size)

    return step


def _update(weight: Tensor, left: Tensor, right: Tensor, keep: float | Tensor, step_size: float) -> None:
    """weight <- keep * weight - step_size * left @ right."""
    if isinstance(keep, Tensor):
        weight.mul_(keep).baddbmm_(left, right, alpha=-step_size)
    else:
        weight.baddbmm_(left, right, beta=keep, alpha=-step_size)
