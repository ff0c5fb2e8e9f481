r"""Plain gradient descent on many unconstrained features models at once: runs are the first dimension of every tensor.

Three things make it fast. The gradient is written out, so that a step is a handful of batched products without
autograd; on a processor numpy does them, which is faster for small matrices, and a GPU replays recorded steps
(:mod:`lib.training.cuda_graphs`). Runs advance together. And the samples of a class are not carried one by one where nothing is lost
by it:

- Without a ReLU the squared loss does not notice a rotation of the samples, :math:`\|WH - Y\| = \|WHQ - YQ\|` for
  orthogonal :math:`Q`. One that turns the samples of a class into their mean, scaled by :math:`\sqrt{n_k}`, and
  deviations with target 0 leaves K columns of means and d columns of deviations, exactly and from the first step on.
- With a ReLU, once the samples of a class coincide up to a stated tolerance and have the same active units, they move
  together, and one column of length :math:`\sqrt{n_k}` times the feature has their trajectory. While the units that are
  active are the same, a class goes through the same linear map, and the rotation applies to it: deviations have target
  0 and enter the gradient of the weights through products of two of them. Deviations of relative size
  :math:`\delta` therefore change weights and means by :math:`\delta^2` only, and :math:`\delta = 10^{-8}` is as good
  as rounding. When a unit is switched later, the samples of a class do it at the same step, unless they happen to
  straddle the kink then; per switch the chance of that is of the order :math:`\delta`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.models.unconstrained import activations, check, one_hot
from lib.training.cuda_graphs import recorded


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

    >>> runs = random_start(K=3, n=2, d=4, layers=2, seeds=range(5), scales=0.1)
    >>> tuple(runs.H.shape), [tuple(W.shape) for W in runs.Ws]
    ((5, 4, 6), [(5, 4, 4), (5, 3, 4)])
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


def pad(start: Runs, widths: Sequence[int]) -> Runs:
    r"""The same runs in wider layers: features of `widths[0]` units, hidden levels of `widths[1:]`, the rest zeros.

    A unit whose incoming and outgoing weights are zero has no gradient and stays exactly zero: runs of different widths
    can be rows of one tensor and move as they do alone. ValueError for another number of widths, or for one
    that is too small.

    >>> runs = random_start(K=3, n=2, d=4, layers=2, seeds=[0], scales=0.1)
    >>> wide = pad(runs, widths=[6, 5])
    >>> tuple(wide.H.shape), [tuple(W.shape) for W in wide.Ws]
    ((1, 6, 6), [(1, 5, 6), (1, 3, 5)])
    """
    levels = [start.H.shape[-2], *(W.shape[-2] for W in start.Ws[:-1])]
    if len(widths) != len(levels) or any(new < old for new, old in zip(widths, levels, strict=True)):
        raise ValueError(f"widths={list(widths)}: one for each of {levels} is needed, and none smaller")
    outs = [*widths[1:], start.Ws[-1].shape[-2]]
    Ws = [
        torch.nn.functional.pad(W, (0, columns - W.shape[-1], 0, rows - W.shape[-2]))
        for W, rows, columns in zip(start.Ws, outs, widths, strict=True)
    ]
    return Runs(torch.nn.functional.pad(start.H, (0, 0, 0, widths[0] - levels[0])), Ws, start.b)


def together(parts: Sequence[Runs]) -> Runs:
    """Runs of several ensembles as one ensemble. ValueError without one, or if their shapes or biases differ.

    >>> one, two = (random_start(3, 2, 4, layers=1, seeds=[seed], scales=0.1) for seed in (0, 1))
    >>> tuple(together([one, two]).H.shape)
    (2, 4, 6)
    """
    if not parts:
        raise ValueError("no runs were given: at least one ensemble is needed")
    shapes = {(p.H.shape[1:], *(W.shape[1:] for W in p.Ws), p.b is None) for p in parts}
    if len(shapes) != 1:
        raise ValueError(f"{len(shapes)} different shapes of runs: one is needed (see pad)")
    Ws = [torch.cat(level) for level in zip(*(p.Ws for p in parts), strict=True)]
    return Runs(torch.cat([p.H for p in parts]), Ws, None if parts[0].b is None else torch.cat([p.b for p in parts]))


def select(runs: Runs, chosen: Tensor | Sequence[int] | slice) -> Runs:
    """Some of the runs, in the order of `chosen`, their numbers `(m,)` or a slice; copies, but for a slice.

    >>> runs = random_start(K=3, n=2, d=4, layers=1, seeds=range(5), scales=0.1)
    >>> torch.equal(select(runs, [4, 0]).H[0], runs.H[4])
    True
    """
    return Runs(runs.H[chosen], [W[chosen] for W in runs.Ws], None if runs.b is None else runs.b[chosen])


@torch.no_grad()
def gradient_descent(
    start: Runs,
    y: Tensor,
    lam_w: float | Tensor | Sequence[float | Tensor],
    lam_h: float | Tensor,
    learning_rate: float | Tensor,
    steps: int,
    lam_b: float = 0.0,
    relu: bool = False,
    every: int = 0,
    watch: Callable[[int, Runs], None] | None = None,
    tolerance: float = 1e-13,
    reduce: bool = True,
    singly: bool = False,
    diverged: dict[int, int] | None = None,
) -> Runs:
    r"""`steps` steps of plain gradient descent on :func:`lib.models.unconstrained.objective` with the squared loss.

    .. math:: \theta \leftarrow \theta - \eta\,\nabla f(\theta), \qquad \theta = (W_L, \dots, W_1, H, b)

    A unit that is exactly 0 counts as inactive, as in PyTorch's own derivative of the ReLU. Where torch uses
    one thread, numbers below the smallest normal one count as 0. On a GPU nothing is read back between two calls of
    `watch`.

    Parameters
    ----------
    start
        Where the runs start; left as it is.
    y, lam_w, lam_h, lam_b, relu
        As in the objective; the same for all runs. Decays of weights and features may also be tensors `(R,)` with one
        for each run.
    learning_rate
        The step size :math:`\eta`, or a tensor `(R,)` of them.
    every, watch
        `watch(step, runs)` is called with the full features before the first step, after each `every` steps, and at
        the end; `every` = 0: at both ends only. What it is given is its own to keep; at the end it is what is returned.
    tolerance
        With `relu`: at these steps, if in every run and at every level the largest deviation of a feature from its
        class mean is below `tolerance` times the largest feature entry, and the samples of a class have the same
        active units, classes are continued as one column each. The deviations are 0 from then on. What is neglected
        is of the order `tolerance` squared.
    reduce
        `False` carries every sample through every step.
    singly
        Whether a run's classes may be continued as columns while other runs still need all samples.
    diverged
        A dictionary that receives the run and the step at which it was found not to be finite; other runs go on, this
        one is nan from there on and belongs in no average. What it held before is removed. Without it a diverged run
        is an error.

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
        If a run diverges and `diverged` is not given, found at the next call of `watch` or at the end; it names the
        runs, the step and the learning rate.

    Examples
    --------
    >>> from lib.models.unconstrained import objective
    >>> start = random_start(K=2, n=1, d=3, layers=1, seeds=[0, 1], scales=0.1)
    >>> y = torch.tensor([0, 1])
    >>> end = gradient_descent(start, y, 0.1, 0.1, learning_rate=0.5, steps=500)
    >>> objective(end.H, end.Ws, y, 0.1, 0.1).round(decimals=6).tolist()  # the minimum
    [0.18, 0.18]
    """
    R = len(start.H)
    layers = list(lam_w) if isinstance(lam_w, Sequence | np.ndarray) else [lam_w] * len(start.Ws)
    named = {f"lam_w[{i}]": lam for i, lam in enumerate(layers)} | {"lam_h": lam_h, "learning_rate": learning_rate}
    for name, value in named.items():
        if isinstance(value, Tensor):
            _check_per_run(name, value, R)
    *first_w, first_h = (lam[0].item() if isinstance(lam, Tensor) else lam for lam in (*layers, lam_h))
    check(start.H, start.Ws, y, first_w, first_h, start.b, lam_b)
    K = start.Ws[-1].shape[-2]
    parts = {"H": start.H} | {f"W_{i}": W for i, W in enumerate(start.Ws, 1)}
    for name, part in parts.items():
        if part.ndim != 3 or len(part) != R:
            raise ValueError(f"{name} has shape {tuple(part.shape)}; three dimensions are needed, the first for runs")
    if start.b is not None and start.b.shape != (R, K):
        raise ValueError(f"b has shape {tuple(start.b.shape)}; {(R, K)} is needed")
    for name, part in (parts if start.b is None else parts | {"b": start.b}).items():
        if not torch.isfinite(part).all():
            raise ValueError(f"{name} has {int((~torch.isfinite(part)).sum())} entries that are not finite")
    if not isinstance(learning_rate, Tensor) and not learning_rate > 0:
        raise ValueError(f"learning_rate={learning_rate}: a positive number is needed")
    if steps < 1:
        raise ValueError(f"steps={steps}: at least one step is needed")
    if every < 0 or tolerance < 0:
        raise ValueError(f"every={every}, tolerance={tolerance}: neither can be negative")
    if diverged is not None:
        diverged.clear()
    y = y.to(start.H.device)
    pace = _Pace(learning_rate, layers, lam_h, lam_b, len(y)).of_runs(start.H)
    hidden = relu and len(start.Ws) > 1
    every_run = torch.arange(R, device=start.H.device)
    kind = _every_sample if not reduce else _rotated if not hidden else _every_sample if len(y) > K else _means
    groups = [_Group.of(every_run, start, kind, y, pace, relu)]
    done = 0
    for stop in [*range(0, steps, every or steps), steps]:
        for group in groups:
            group.advance(stop - done)
        done = stop
        runs = _collect(groups, start)
        finite = torch.stack([torch.isfinite(part).flatten(1).all(1) for part in (runs.H, *runs.Ws)]).all(0)
        if not finite.all():
            lost = (~finite).nonzero()[:, 0].tolist()
            if diverged is None:
                rates = learning_rate[lost].tolist() if isinstance(learning_rate, Tensor) else [learning_rate]
                raise FloatingPointError(
                    f"a run has diverged after {done} steps with learning rate {', '.join(map(str, rates))}"
                    f" (of {R} runs: {', '.join(map(str, lost))})"
                )
            diverged |= {run: done for run in lost if run not in diverged}
            groups = [part for group in groups for part in group.part(finite[group.index])]
        if hidden and reduce:
            settled = [group.settled(tolerance) for group in groups]
            if singly or all(found.all() for found in settled):
                pairs = list(zip(groups, settled, strict=True))
                groups = [part for group, found in pairs for part in (*group.part(found, _means), *group.part(~found))]
                groups = _joined(groups) if start.H.device.type == "cuda" else groups
        if watch is not None:
            watch(done, runs)
    return runs


def _check_per_run(name: str, value: Tensor, R: int) -> None:
    if value.shape != (R,):
        raise ValueError(f"{name} has shape {tuple(value.shape)}: one number, or one for each of {R} runs is needed")
    if not bool((torch.isfinite(value) & (value > 0)).all()):
        raise ValueError(f"{name} has entries that are not positive numbers")


class _Pace(NamedTuple):
    """Learning rate, decays of W_1 ... W_L, of H and of b, and the number of samples."""

    rate: float | Tensor
    decays: list[float | Tensor]
    lam_h: float | Tensor
    lam_b: float
    N: int

    def of_runs(self, like: Tensor) -> _Pace:
        """As it is if all of them are numbers; where one differs between runs, all of them `(R, 1, 1)`."""
        if not any(isinstance(value, Tensor) for value in (self.rate, *self.decays, self.lam_h)):
            return self

        def spread(value):
            return (
                torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(len(like)).reshape(-1, 1, 1).clone()
            )

        return _Pace(spread(self.rate), [spread(lam) for lam in self.decays], spread(self.lam_h), self.lam_b, self.N)

    def chosen(self, runs: Tensor) -> _Pace:
        if not isinstance(self.rate, Tensor):
            return self
        return _Pace(self.rate[runs], [lam[runs] for lam in self.decays], self.lam_h[runs], self.lam_b, self.N)


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


@dataclass(frozen=True, eq=False)
class _Group:
    """Runs that advance together: which ones, their columns, weights, bias `(R, K, 1)` and pace."""

    index: Tensor
    samples: _Samples
    kind: Callable[[Tensor, Tensor, int], _Samples]
    y: Tensor
    Ws: list[Tensor]
    b: Tensor | None
    pace: _Pace
    relu: bool

    @classmethod
    def of(cls, index, runs: Runs, kind, y, pace, relu) -> _Group:
        Ws, b = [W.clone() for W in runs.Ws], None if runs.b is None else runs.b.clone()[..., None]
        return cls(index, kind(runs.H, y, Ws[-1].shape[-2]), kind, y, Ws, b, pace, relu)

    def runs(self) -> Runs:
        """A copy of where they are, with the full features."""
        b = None if self.b is None else self.b[..., 0].clone()
        return Runs(self.samples.features(), [W.clone() for W in self.Ws], b)

    def part(self, mask: Tensor, kind=None) -> list[_Group]:
        """The runs of a mask as a group of their own, if there are any; the same group if it is all of them."""
        kind = kind or self.kind
        if not mask.any():
            return []
        if mask.all() and kind is self.kind:
            return [self]
        pace = self.pace.chosen(mask)
        return [_Group.of(self.index[mask], select(self.runs(), mask), kind, self.y, pace, self.relu)]

    def settled(self, tolerance: float) -> Tensor:
        """In which runs the samples of each class coincide up to the tolerance and have the same active units."""
        found = torch.ones(len(self.index), dtype=torch.bool, device=self.index.device)
        if self.kind is _means:
            return found
        features, K = self.samples.features(), self.Ws[-1].shape[-2]
        first = torch.stack([(self.y == k).nonzero()[0, 0] for k in range(K)])[self.y]
        for level, H in enumerate(activations(features, self.Ws, relu=True)):
            deviations = (H - _class_means(H, self.y, K)[0][..., self.y]).abs().amax((-2, -1))
            found &= deviations <= tolerance * H.abs().amax((-2, -1))
            if level:
                active = H > 0
                found &= (active == active[..., first]).all(-1).all(-1)
        return found

    @cached_property
    def steps(self) -> Callable[[int], None]:
        """Make so many steps, in place; on a GPU a graph that lasts as long as the group."""
        columns = self.samples.columns
        on_processor = columns.device.type == "cpu" and columns.dtype != torch.bfloat16  # numpy has no such type
        on_rows = self.kind is _means
        make = _step_on_processor if on_processor else _step_on_rows if on_rows else _step_on_columns
        return recorded(make(self.samples, self.Ws, self.b, self.pace, self.relu), columns.device, unroll=20)

    def advance(self, steps: int) -> None:
        if steps:
            # decays take weights of silent units to denormals, and the processor is slow at these; other threads would
            # keep the setting, and one that is set already is left alone
            flush = torch.get_num_threads() == 1 and bool(torch.tensor([5e-324], dtype=torch.float64) * 1.0 != 0)
            if flush:
                torch.set_flush_denormal(True)
            try:
                with np.errstate(all="ignore"):  # a run that diverges is found by its numbers
                    self.steps(steps)
            finally:
                if flush:
                    torch.set_flush_denormal(False)


def _collect(groups: list[_Group], start: Runs) -> Runs:
    """All runs in their order; nan where a run is in no group."""
    if len(groups) == 1 and len(groups[0].index) == len(start.H):
        return groups[0].runs()
    found = Runs(
        torch.full_like(start.H, torch.nan),
        [torch.full_like(W, torch.nan) for W in start.Ws],
        None if start.b is None else torch.full_like(start.b, torch.nan),
    )
    for group in groups:
        runs = group.runs()
        for whole, part in zip(_flat(found), _flat(runs), strict=True):
            whole[group.index] = part
    return found


def _joined(groups: list[_Group]) -> list[_Group]:
    """Class means of all groups as one group, its runs in their order: on a GPU groups wait for one another."""
    means = [group for group in groups if group.kind is _means]
    if len(means) < 2:
        return groups
    index, runs = torch.cat([group.index for group in means]), together([group.runs() for group in means])
    pace = means[0].pace
    if isinstance(pace.rate, Tensor):
        rate, lam_h = (torch.cat([getattr(group.pace, name) for group in means]) for name in ("rate", "lam_h"))
        decays = [torch.cat(layer) for layer in zip(*(group.pace.decays for group in means), strict=True)]
        pace = pace._replace(rate=rate, decays=decays, lam_h=lam_h)
    order = index.argsort()
    whole = _Group.of(index[order], select(runs, order), _means, means[0].y, pace.chosen(order), means[0].relu)
    return [whole, *(group for group in groups if group.kind is not _means)]


def _flat(runs: Runs) -> list[Tensor]:
    return [runs.H, *runs.Ws, *([] if runs.b is None else [runs.b])]


def _step_on_processor(samples, Ws, b, pace, relu):
    """One step, in place, as a function, by numpy: its products of small matrices take about half of torch's time.

    The samples stay as they lie in memory, as rows or as columns. Every gradient contains the step size.
    """
    columns, last, R = samples.columns, len(Ws) - 1, len(samples.columns)
    rows = not columns.is_contiguous()
    turned = lambda array: array.swapaxes(1, 2)  # noqa: E731
    X, Y = (part.mT.numpy() if rows else part.numpy() for part in (columns, samples.targets))
    ones = samples.ones.numpy()[:, None]
    keep, keep_h, keep_b, step_size, scale = _factors(pace)
    factor = step_size if scale is None else scale.numpy()
    *keep, keep_h, keep_b = (x.numpy() if isinstance(x, Tensor) else x for x in (*keep, keep_h, keep_b))
    Ws, b = [W.numpy() for W in Ws], None if b is None else b.numpy()
    spare = {W.shape: np.empty(W.shape, W.dtype) for W in Ws}
    shapes = [(R, X.shape[1], W.shape[1]) if rows else (R, W.shape[1], X.shape[2]) for W in Ws]
    levels = [X, *(np.empty(shape, X.dtype) for shape in shapes[:-1])]
    gradients = [np.empty(shape, X.dtype) for shape in (X.shape, *shapes)]  # the last one begins as the scores
    active = [None, *(np.empty(shape, bool) for shape in shapes[:-1])]
    forward, backward, outer = [], [], []
    for i, W in enumerate(Ws):
        H, up, down = levels[i], gradients[i + 1] if i == last else levels[i + 1], gradients[i + 1]
        forward.append((H, turned(W), up) if rows else (W, H, up))
        backward.append((down, W, gradients[i]) if rows else (turned(W), down, gradients[i]))
        outer.append((turned(down), H, spare[W.shape]) if rows else (down, turned(H), spare[W.shape]))

    def step():
        for i in range(last):
            np.matmul(*forward[i])
            if relu:
                np.maximum(levels[i + 1], 0, out=levels[i + 1])
        np.matmul(*forward[last])
        G = gradients[-1]
        if b is not None:
            np.add(G, turned(b) * ones if rows else b * ones.T, out=G)
        np.subtract(G, Y, out=G)
        np.multiply(G, factor, out=G)
        if b is not None:
            np.subtract(keep_b * b, (turned(G) if rows else G) @ ones, out=b)
        for i in range(last, -1, -1):
            np.matmul(*outer[i])
            np.matmul(*backward[i])
            np.multiply(Ws[i], keep[i], out=Ws[i])
            np.subtract(Ws[i], spare[Ws[i].shape], out=Ws[i])
            if relu and i:
                np.greater(levels[i], 0, out=active[i])
                np.multiply(gradients[i], active[i], out=gradients[i])
        np.multiply(X, keep_h, out=X)
        np.subtract(X, gradients[0], out=X)

    return step


def _step_on_columns(samples, Ws, b, pace, relu):
    """The same on a GPU, where the overhead of a call is what it costs, so there are as few as possible."""
    H, R, last = samples.columns, len(samples.columns), len(Ws) - 1
    Y, ones = samples.targets.expand(R, -1, -1), samples.ones.expand(R, 1, -1)
    levels = [H] + [H.new_empty(R, W.shape[-2], H.shape[-1]) for W in Ws]
    gradients = [torch.empty_like(level) for level in levels]
    before = torch.empty_like(Ws[0])
    keep, keep_h, keep_b, step_size, scale = _factors(pace)

    def step():
        for i in range(last):
            torch.bmm(Ws[i], levels[i], out=levels[i + 1])
            if relu:
                levels[i + 1].relu_()
        G = torch.baddbmm(Y, Ws[last], levels[last], beta=-1, out=levels[-1])
        if b is not None:
            G.baddbmm_(b, ones)
        if scale is not None:
            G.mul_(scale)
        if b is not None:
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


def _step_on_rows(samples, Ws, b, pace, relu):
    """The same for samples that lie as rows in memory, which is faster where there are few of them."""
    H, R, last = samples.columns.mT, len(samples.columns), len(Ws) - 1
    Y, ones = samples.targets.mT.expand(R, -1, -1).contiguous(), samples.ones[:, None].expand(R, -1, 1)
    levels = [H] + [H.new_empty(R, H.shape[1], W.shape[-2]) for W in Ws]
    gradients = [torch.empty_like(level) for level in levels]
    before = torch.empty_like(Ws[0])
    keep, keep_h, keep_b, step_size, scale = _factors(pace)

    def step():
        for i in range(last):
            torch.bmm(levels[i], Ws[i].mT, out=levels[i + 1])
            if relu:
                levels[i + 1].relu_()
        G = torch.baddbmm(Y, levels[last], Ws[last].mT, beta=-1, out=levels[-1])
        if b is not None:
            G.baddbmm_(ones, b.mT)
        if scale is not None:
            G.mul_(scale)
        if b is not None:
            _update(b, G.mT, ones, keep_b, step_size)
        for i in range(last, 0, -1):
            torch.bmm(G, Ws[i], out=gradients[i])
            _update(Ws[i], G.mT, levels[i], keep[i], step_size)
            G = gradients[i]
            if relu:
                torch.ops.aten.threshold_backward.grad_input(G, levels[i], 0, grad_input=G)
        before.copy_(Ws[0])
        _update(Ws[0], G.mT, H, keep[0], step_size)
        _update(H, G, before, keep_h, step_size)

    return step


def _factors(pace: _Pace):
    """What a step leaves of W_1 ... W_L, H and b; the step size over N; and a factor of the gradient, runs apart."""
    rate, per_run = pace.rate, isinstance(pace.rate, Tensor)
    keep = [1 - rate * lam for lam in pace.decays]
    keep_h, keep_b = 1 - rate * pace.lam_h, 1 - rate * pace.lam_b
    return keep, keep_h, keep_b, 1 if per_run else rate / pace.N, rate / pace.N if per_run else None


def _update(weight: Tensor, left: Tensor, right: Tensor, keep: float | Tensor, step_size: float) -> None:
    """weight <- keep * weight - step_size * left @ right."""
    if isinstance(keep, Tensor):
        weight.mul_(keep).baddbmm_(left, right, alpha=-step_size)
    else:
        weight.baddbmm_(left, right, beta=keep, alpha=-step_size)
