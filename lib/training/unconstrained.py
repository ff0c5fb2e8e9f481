r"""Plain gradient descent on many unconstrained features models at once: runs are the first dimension of every tensor.

Three things make it fast. The gradient is written out, so that a step is a handful of batched products without
autograd; on a processor numpy does them, which is faster for small matrices, and a GPU replays recorded steps
(:mod:`lib.training.cuda_graphs`). Runs advance together. And the samples of a class are not carried one by one where
nothing is lost by it:

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

from lib import checks
from lib.models.unconstrained import activations, check, one_hot
from lib.training.cuda_graphs import recorded


class Runs(NamedTuple):
    """Weights of R runs: features `H: (R, d, N)`, `Ws` with `(R, d_out, d_in)` each, bias `b: (R, K)` or `None`."""

    H: Tensor
    Ws: list[Tensor]
    b: Tensor | None


class Descent(NamedTuple):
    r"""The settings of :func:`gradient_descent`: steps of a size, and what they descend.

    Tensors `(R,)` of learning rates and of decays have one for each run.
    """

    learning_rate: float | Tensor  #: the step size :math:`\eta`
    steps: int
    lam_w: float | Tensor | Sequence[float | Tensor]  #: decays as :func:`lib.models.unconstrained.objective` has them
    lam_h: float | Tensor | None = None
    lam_b: float = 0.0
    relu: bool = False
    every: int = 0  #: steps between two looks; 0: at both ends only
    tolerance: float = 1e-13  #: deviation of samples from their class mean below which they go on as one
    reduce: bool = True  #: `False` carries every sample through every step
    singly: bool = False  #: whether a run's classes may go on as one column while other runs still need all samples


def random_runs(
    K: int, n: int, d: int, layers: int, seeds: Sequence[int], scales: float | Sequence[float], bias: bool = False
) -> Runs:
    r"""Independent normal starts in float64, one run per seed: `scales` times :math:`N(0, 1)`.

    `scales` is one number, or one per factor in the order :math:`W_L, \dots, W_1, H` of the paper's figures; the bias
    has that of :math:`W_L`. Drawn on the CPU from a generator per run, so that a seed means the same everywhere.
    ValueError for another number of scales, or without a layer or a seed.

    >>> runs = random_runs(K=3, n=2, d=4, layers=2, seeds=range(5), scales=0.1)
    >>> tuple(runs.H.shape), [tuple(W.shape) for W in runs.Ws]
    ((5, 4, 6), [(5, 4, 4), (5, 3, 4)])
    """
    checks.integers(1, layers=layers)
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


def _by_part(function: Callable[..., Tensor], *runs: Runs) -> Runs:
    """A function of tensors of one or several ensembles, factor by factor."""
    Ws = [function(*level) for level in zip(*(part.Ws for part in runs), strict=True)]
    b = None if runs[0].b is None else function(*(part.b for part in runs))
    return Runs(function(*(part.H for part in runs)), Ws, b)


def together(parts: Sequence[Runs]) -> Runs:
    """Runs of several ensembles of one shape as one ensemble. ValueError without one.

    >>> one, two = (random_runs(3, 2, 4, layers=1, seeds=[seed], scales=0.1) for seed in (0, 1))
    >>> tuple(together([one, two]).H.shape)
    (2, 4, 6)
    """
    if not parts:
        raise ValueError("parts is empty: at least one ensemble is needed")
    return _by_part(lambda *tensors: torch.cat(tensors), *parts)


def select(runs: Runs, chosen: Tensor | Sequence[int] | slice) -> Runs:
    """Some of the runs, in the order of `chosen`, their numbers `(m,)` or a slice; copies, but for a slice.

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

    A unit that is exactly 0 counts as inactive, as in PyTorch's own derivative of the ReLU. Where torch uses
    one thread, numbers below the smallest normal one count as 0. On a GPU nothing is read back between two calls of
    `watch`.

    Parameters
    ----------
    start
        Where the runs start; left as it is.
    y
        Classes `(N,)`, the same for all runs.
    descent
        The settings. With `relu`, at each look: if in every run and at every level the largest deviation of a feature
        from its class mean is below `tolerance` times the largest feature entry, and the samples of a class have the
        same active units, classes are continued as one column each. The deviations are 0 from then on. What is
        neglected is of the order `tolerance` squared.
    watch
        `watch(step, runs)` is called with the full features before the first step, after each `every` steps, and at
        the end. What it is given is its own to keep; at the end it is what is returned.
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
        As the objective, for weights that are not those of R runs or not finite, and for a setting out of its range.
    FloatingPointError
        If a run diverges and `diverged` is not given, found at the next call of `watch` or at the end; it names the
        runs, the step and the learning rate.

    Examples
    --------
    >>> from lib.models.unconstrained import objective
    >>> start = random_runs(K=2, n=1, d=3, layers=1, seeds=[0, 1], scales=0.1)
    >>> y = torch.tensor([0, 1])
    >>> end = gradient_descent(start, y, Descent(learning_rate=0.5, steps=500, lam_w=0.1))
    >>> objective(end.H, end.Ws, y, 0.1).round(decimals=6).tolist()  # the minimum
    [0.18, 0.18]
    """
    pace, relu = _checked(start, y, descent), descent.relu
    rate, steps = descent.learning_rate, descent.steps
    y, R = y.to(start.H.device), len(start.H)
    hidden = relu and len(start.Ws) > 1
    every_run = torch.arange(R, device=start.H.device)
    kind = _rotated if not hidden else _every_sample if len(y) > start.Ws[-1].shape[-2] else _means
    groups = [_Group.of(every_run, start, kind if descent.reduce else _every_sample, y, pace, relu)]
    if diverged is not None:
        diverged.clear()
    done = 0
    for stop in [*range(0, steps, descent.every or steps), steps]:
        for group in groups:
            group.advance(stop - done)
        done = stop
        runs = _collect(groups, start)
        finite = torch.stack([torch.isfinite(part).flatten(1).all(1) for part in (runs.H, *runs.Ws)]).all(0)
        if not finite.all():
            lost = (~finite).nonzero()[:, 0].tolist()
            if diverged is None:
                rates = rate[lost].tolist() if isinstance(rate, Tensor) else rate
                raise FloatingPointError(f"runs {lost} have diverged after {done} steps with learning rate {rates}")
            diverged |= {run: done for run in lost if run not in diverged}
            groups = [part for group in groups for part in group.part(finite[group.index])]
        if hidden and descent.reduce:
            settled = [group.settled(descent.tolerance) for group in groups]
            if descent.singly or all(found.all() for found in settled):
                pairs = list(zip(groups, settled, strict=True))
                groups = [part for group, found in pairs for part in (*group.part(found, _means), *group.part(~found))]
                groups = _joined(groups) if start.H.device.type == "cuda" else groups
        if watch is not None:
            watch(done, runs)
    return runs


def _checked(start: Runs, y: Tensor, descent: Descent) -> _Pace:
    """The pace of the runs, once everything is found to be what :func:`gradient_descent` asks for."""
    R, L, (rate, steps, lam_w, lam_h, lam_b) = len(start.H), len(start.Ws), descent[:5]
    decays = list(lam_w) if isinstance(lam_w, Sequence | np.ndarray) else [lam_w] * (L + (lam_h is None))
    decays = decays if lam_h is None else [lam_h, *decays]
    _, *first = checks.each(R, learning_rate=rate, **{f"decays[{i}]": lam for i, lam in enumerate(decays)})
    check(start.H, start.Ws, y, [numbers[0] for numbers in first], b=start.b, lam_b=lam_b)
    parts = {"H": start.H} | {f"W_{i}": W for i, W in enumerate(start.Ws, 1)}
    parts |= {} if start.b is None else {"b": start.b}
    for name, part in parts.items():
        if part.ndim != 3 - (name == "b") or len(part) != R:
            raise ValueError(f"{name} has shape {tuple(part.shape)}; its first dimension has to be that of {R} runs")
    checks.finite(**parts)
    checks.integers(1, steps=steps)
    checks.not_negative(every=descent.every, tolerance=descent.tolerance)
    return _Pace(rate, decays, lam_b, len(y)).of_runs(start.H)


class _Pace(NamedTuple):
    """Learning rate, decays of H and W_1 ... W_L, of b, and the number of samples."""

    rate: float | Tensor
    decays: list[float | Tensor]
    lam_b: float
    N: int

    def of_runs(self, like: Tensor) -> _Pace:
        """As it is if all of them are numbers; where one differs between runs, all of them `(R, 1, 1)`."""
        if not any(isinstance(value, Tensor) for value in (self.rate, *self.decays)):
            return self
        spread = lambda value: (  # noqa: E731
            torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(len(like)).reshape(-1, 1, 1).clone()
        )
        return self._replace(rate=spread(self.rate), decays=[spread(lam) for lam in self.decays])

    def chosen(self, runs: Tensor) -> _Pace:
        if not isinstance(self.rate, Tensor):
            return self
        return self._replace(rate=self.rate[runs], decays=[lam[runs] for lam in self.decays])

    def factors(self):
        """What a step leaves of b, H, W_1 ... W_L; the step size over N; and a factor of the gradient, runs apart."""
        keep = [1 - self.rate * lam for lam in (self.lam_b, *self.decays)]
        per_run = isinstance(self.rate, Tensor)
        return *keep, 1 if per_run else self.rate / self.N, self.rate / self.N if per_run else None


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
        samples = kind(runs.H, y, runs.Ws[-1].shape[-2])
        b = None if runs.b is None else runs.b.clone()[..., None]
        return cls(index, samples, kind, y, [W.clone() for W in runs.Ws], b, pace, relu)

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
        make = _step_on_processor if on_processor else _step_on_device
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
    found = _by_part(lambda part: torch.full_like(part, torch.nan), start)
    for group in groups:
        _by_part(lambda whole, part, index=group.index: whole.index_copy_(0, index, part), found, group.runs())
    return found


def _joined(groups: list[_Group]) -> list[_Group]:
    """Class means of all groups as one group, its runs in their order: on a GPU groups wait for one another."""
    means = [group for group in groups if group.kind is _means]
    if len(means) < 2:
        return groups
    index, runs = torch.cat([group.index for group in means]), together([group.runs() for group in means])
    pace = means[0].pace
    if isinstance(pace.rate, Tensor):
        decays = [torch.cat(factor) for factor in zip(*(group.pace.decays for group in means), strict=True)]
        pace = pace._replace(rate=torch.cat([group.pace.rate for group in means]), decays=decays)
    order = index.argsort()
    whole = _Group.of(index[order], select(runs, order), _means, means[0].y, pace.chosen(order), means[0].relu)
    return [whole, *(group for group in groups if group.kind is not _means)]


def _step_on_processor(samples, Ws, b, pace, relu):
    """One step, in place, as a function, by numpy: its products of small matrices take about half of torch's time.

    The samples stay as they lie in memory, as rows or as columns. Every gradient contains the step size.
    """
    columns, last, R = samples.columns, len(Ws) - 1, len(samples.columns)
    rows = not columns.is_contiguous()
    turned = lambda array: array.swapaxes(1, 2)  # noqa: E731
    X, Y = (part.mT.numpy() if rows else part.numpy() for part in (columns, samples.targets))
    ones = samples.ones.numpy()[:, None]
    keep_b, keep_h, *keep, step_size, scale = pace.factors()
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


def _step_on_device(samples, Ws, b, pace, relu):
    """The same on a GPU, where the overhead of a call is what it costs, so there are as few as possible.

    All levels lie in memory as the samples do: as rows, which is faster where there are few of them, or as columns.
    """
    H, R, last = samples.columns, len(samples.columns), len(Ws) - 1
    Y, ones = samples.targets.expand(R, -1, -1), samples.ones.expand(R, 1, -1)
    rows = not H.is_contiguous()
    shapes = [(R, W.shape[-2], H.shape[-1]) for W in Ws]
    levels = [H] + [H.new_empty(R, N, d).mT if rows else H.new_empty(R, d, N) for R, d, N in shapes]
    gradients = [torch.empty_like(level) for level in levels]
    before = torch.empty_like(Ws[0])
    keep_b, keep_h, *keep, step_size, scale = pace.factors()

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


def _update(weight: Tensor, left: Tensor, right: Tensor, keep: float | Tensor, step_size: float) -> None:
    """weight <- keep * weight - step_size * left @ right."""
    if isinstance(keep, Tensor):
        weight.mul_(keep).baddbmm_(left, right, alpha=-step_size)
    else:
        weight.baddbmm_(left, right, beta=keep, alpha=-step_size)
