r"""SGD on many multilayer perceptrons at once: runs are the first dimension of every tensor.

The networks are those of :func:`lib.models.networks.mlp`, of one shape. Each run has its own weights, observed labels,
loss and order of the samples, and ends where it would have ended alone, up to rounding. Four things make it fast:

- A linear map of all runs is one batched product, and so are the two products of its gradient.
- The gradient is written out. Batch normalisation, the activation and their derivatives work in place, on batches
  `(R, B, width)` whose rows are contiguous.
- The product that gives the gradient of a matrix adds it to the momentum at once, and is never stored by itself.
- The bias in front of batch normalisation has no effect on a batch and no gradient. It is added to the running means,
  and shrinks by weight decay, which is all that happens to it in PyTorch as well, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib.checks import positive_integers
from lib.models.networks import mlp
from lib.training.cuda_graphs import rounding_to_tf32
from lib.training.sgd import check_sgd

_EPS, _FORGET = 1e-5, 0.1  # of nn.BatchNorm1d
_LOSSES = {"ce": "0", "ls": "a number in [0, 1)", "lr": "a number strictly between 0 and 1", "mse": "0"}


class Weights(NamedTuple):
    r"""Parameters and running statistics of R networks with L hidden layers and the last linear map.

    Attributes
    ----------
    matrices
        :math:`A_1, \dots, A_L, W`, each `(R, out, in)`.
    biases
        :math:`a_1, \dots, a_L, b`, each `(R, out)`; the last is `None` in networks without it.
    scales
        Of the batch normalisations, `(R, out)` each.
    shifts
        Of the batch normalisations, `(R, out)` each.
    means
        Their running means, `(R, out)` each.
    variances
        Their running variances, `(R, out)` each.
    batches
        Number of batches that these have seen `(R,)`.
    activation
        "relu" or "sigmoid".
    """

    matrices: list[Tensor]
    biases: list[Tensor | None]
    scales: list[Tensor]
    shifts: list[Tensor]
    means: list[Tensor]
    variances: list[Tensor]
    batches: Tensor
    activation: str

    @property
    def runs(self) -> int:
        """Number of networks, R."""
        return len(self.matrices[0])

    @property
    def inputs(self) -> int:
        """Numbers in one input."""
        return self.matrices[0].shape[-1]

    @property
    def classes(self) -> int:
        """Number of classes, K."""
        return self.matrices[-1].shape[-2]

    def map(self, function: Callable[[Tensor], Tensor]) -> Weights:
        """The same with `function` applied to every tensor."""
        parts = [[None if part is None else function(part) for part in parts] for parts in self[:-2]]
        return Weights(*parts, function(self.batches), self.activation)

    def to(self, *args, **kwargs) -> Weights:
        """Another device or dtype, as :meth:`torch.Tensor.to`; the counts of batches keep their dtype."""
        moved = self.map(lambda part: part.to(*args, **kwargs))
        return moved._replace(batches=moved.batches.to(self.batches.dtype))

    def clone(self) -> Weights:
        """A copy of every tensor."""
        return self.map(torch.clone)

    def part(self, runs: slice) -> Weights:
        """Some of the runs, as views."""
        return self.map(lambda part: part[runs])


def stack(models: Sequence[nn.Module]) -> Weights:
    """Copy R networks made by :func:`lib.models.networks.mlp` into one set of tensors, run by run.

    ValueError without a network, for a network of another kind, or if their shapes, activations, devices or dtypes
    differ.

    >>> models = [mlp(4, M=3, K=2, width=8, depth=2, seed=seed) for seed in (0, 1)]
    >>> stack(models).runs
    2
    """
    if len(models) == 0:
        raise ValueError("models is empty: at least one network is needed")
    return _stacked(models, len(models))


def start(
    seeds: Sequence[int],
    inputs: int,
    M: int,
    K: int,
    width: int = 2048,
    depth: int = 9,
    activation: str = "relu",
    bias: bool = True,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """:func:`stack` of :func:`lib.models.networks.mlp` for each seed, without holding the R modules at once.

    The other arguments are those of :func:`lib.models.networks.mlp`. ValueError as there, and without a seed.

    >>> weights = start(seeds=[0, 1], inputs=4, M=3, K=2, width=8, depth=2)
    >>> weights.runs, weights.inputs, weights.classes
    (2, 4, 2)
    >>> [tuple(A.shape) for A in weights.matrices]
    [(2, 8, 4), (2, 3, 8), (2, 2, 3)]
    """
    if len(seeds) == 0:
        raise ValueError("seeds is empty: one for each run is needed")
    models = (mlp(inputs, M, K, width, depth, activation, bias, seed).to(device, dtype) for seed in seeds)
    return _stacked(models, len(seeds))


@torch.no_grad()
def unstack(weights: Weights, models: Sequence[nn.Module]) -> None:
    """Write weights and running statistics of the runs into `models`; ValueError as :func:`stack`, or for another R."""
    if len(models) != weights.runs:
        raise ValueError(f"{len(models)} models for {weights.runs} runs: one for each is needed")
    found = [_parts(model) for model in models]
    for run, parts in enumerate(found):
        _check_like(parts, weights, run)
    for run, (parts, model) in enumerate(zip(found, models, strict=True)):
        _each(lambda mine, theirs, run=run: theirs.copy_(mine[run]), weights, parts)
        for layer in model.hidden:
            layer[1].num_batches_tracked.copy_(weights.batches[run])


class History(NamedTuple):
    """Loss, objective and accuracy of R runs after each epoch, `(R, epochs)` each in float64 on the CPU."""

    objective: Tensor
    loss: Tensor
    accuracy: Tensor


@torch.no_grad()
def train(
    models: Weights,
    x: Tensor,
    y: Tensor,
    losses: Sequence[tuple[str, float]],
    epochs: int,
    learning_rate: float = 0.1,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
    weight_decay: float = 1e-3,
    momentum: float = 0.9,
    nesterov: bool = True,
    batch_size: int = 512,
    seeds: Sequence[int] | None = None,
    callback: Callable[[int, range, Weights], None] | None = None,
    at_once: int | None = None,
    tf32: bool = True,
) -> History:
    r"""Train R networks in place by SGD on the regularised risk of each, as R calls of :func:`lib.training.sgd.train` would.

    .. math::

       \frac1N \sum_{i=1}^N \ell_r(f_{\theta_r}(x_i), y_{ri}) + \frac{\lambda}{2} \|\theta_r\|^2, \quad r = 1, \dots, R.

    An epoch is a random order of the samples, cut into batches whose sizes differ by at most one; the orders are those
    of :func:`lib.training.sgd.train` with the same seeds. A step is that of :class:`torch.optim.SGD`. Nothing is copied to the
    device, or read from it, within an epoch.

    Parameters
    ----------
    models
        As :func:`stack` and :func:`start` give them. Computed with on the device of `x`, wherever they are.
    x
        Inputs `(N, inputs)`, or images `(N, C, H, W)`, for all runs; or `(R, N, inputs)`, own ones for each run.
    y
        Observed labels `(R, N)`, or `(N,)` for all runs.
    losses
        For each run one of `("ce", 0)`, cross-entropy; `("ls", alpha)`, :func:`lib.models.losses.label_smoothing`;
        `("lr", alpha)`, :func:`lib.models.losses.label_relaxation`; `("mse", 0)`, :func:`lib.models.losses.one_hot_error`.
    epochs, learning_rate, milestones, gamma
        The learning rate is multiplied by `gamma` after each of the epochs in `milestones`.
    weight_decay, momentum, nesterov
        As in :class:`torch.optim.SGD`, for all parameters.
    batch_size
        The largest size of a batch.
    seeds
        Of the order of the samples in each run; 0 to R-1 if left out.
    callback
        `callback(epoch, runs, models)` is called before the first epoch (epoch 0) and after each, with the numbers of
        the runs that are being trained and their weights, which it must leave as they are.
    at_once
        How many runs are trained together; all by default. The rest follows when they are finished. Beside the weights
        of these runs their momentum has to fit on the device, and twice their activations on one batch.
    tf32
        Let a GPU round the factors of float32 products to TF32.

    Returns
    -------
    History
        `loss` and `accuracy`, means over the batches as they were trained on, and `objective`, that loss plus
        :math:`\frac\lambda2\|\theta\|^2` at the end of the epoch.

    Raises
    ------
    ValueError
        For a number out of its range, an unknown loss, inputs that are not finite, labels or shapes that do not fit,
        and where a batch would have one sample only, which cannot be normalised.
    FloatingPointError
        If the objective of a run is not finite at the end of an epoch; it names the epoch and the first such run. The
        weights are left as they are then, of no use, as after an error in `callback` or an interruption.

    Examples
    --------
    >>> models = start(seeds=[0, 1], inputs=2, M=4, K=2, width=8, depth=2)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> history = train(models, x, y, losses=[("ce", 0), ("ls", 0.1)], epochs=20)
    >>> tuple(history.loss.shape), bool((history.loss[:, -1] < history.loss[:, 0]).all())
    ((2, 20), True)
    """
    x = _inputs(models, x)
    y = _labels(models, x, y)
    seeds = range(models.runs) if seeds is None else seeds
    check_sgd(epochs, learning_rate, milestones, gamma, weight_decay, momentum, nesterov, batch_size)
    if at_once is not None:
        positive_integers(at_once=at_once)
    _check_runs(models, x, losses, seeds, batch_size)
    at_once = at_once or models.runs
    found = []
    for first in range(0, models.runs, at_once):
        runs = range(first, min(first + at_once, models.runs))
        these = slice(runs.start, runs.stop)
        original, samples = models.part(these), x[these] if x.ndim == 3 else x
        sgd = _SGD(
            original.to(x.device), samples, y[these], losses[these], weight_decay, momentum, nesterov, batch_size
        )
        part = sgd.models
        orders = [torch.Generator().manual_seed(seed) for seed in seeds[these]]
        history, rate = [], learning_rate
        if callback is not None:
            callback(0, runs, part)
        for epoch in range(1, epochs + 1):
            with rounding_to_tf32(tf32):
                means = sgd.epoch(torch.stack([torch.randperm(sgd.N, generator=order) for order in orders]), rate)
            means = torch.cat([means[:1] + weight_decay / 2 * _squares(part), means]).cpu()
            if not means.isfinite().all():
                run = int((~means.isfinite()).any(0).nonzero()[0])
                what = f"the loss is {means[1, run]:.6g}, the objective {means[0, run]:.6g}"
                raise FloatingPointError(
                    f"epoch {epoch}, run {runs[run]}: {what}; learning_rate = {rate} may be too large"
                )
            history.append(means)
            rate = rate * gamma if epoch in milestones else rate
            if callback is not None:
                callback(epoch, runs, part)
        _each(lambda mine, theirs: theirs.copy_(mine), part, original)
        found.append(torch.stack(history, -1))
    return History(*torch.cat(found, 1))


@torch.no_grad()
def features(models: Weights, x: Tensor, batch_size: int = 1000, at_once: int | None = None) -> Tensor:
    """Features `(R, N, M)` in evaluation mode, of inputs `(N, ...)` for all runs or `(R, N, inputs)`; on x's device.

    `at_once` is how many runs are moved to that device together; all by default. ValueError for inputs of another
    shape.

    >>> weights = start(seeds=[0, 1], inputs=4, M=3, K=2, width=8, depth=2)
    >>> tuple(features(weights, torch.zeros(5, 4)).shape)
    (2, 5, 3)
    """
    x = _inputs(models, x)
    if at_once is not None and at_once < models.runs:
        parts = [slice(first, first + at_once) for first in range(0, models.runs, at_once)]
        return torch.cat([features(models.part(p), x[p] if x.ndim == 3 else x, batch_size) for p in parts])
    models = models.to(x.device)
    act = {"relu": torch.Tensor.relu_, "sigmoid": torch.Tensor.sigmoid_}[models.activation]
    maps = []
    for A, a, scale, shift, mean, variance in zip(*models[:-2], strict=False):
        factor = scale * (variance + _EPS).rsqrt()
        maps.append((A.mT, factor[:, None], (shift + (a - mean) * factor)[:, None]))
    found = []
    for batch in x.split(batch_size, dim=-2):
        H = batch if batch.ndim == 3 else batch.expand(models.runs, -1, -1)
        for A, factor, offset in maps:
            Z = torch.bmm(H, A)
            H = act(torch.addcmul(offset, Z, factor, out=Z))
        found.append(H)
    return torch.cat(found, 1)


@torch.no_grad()
def scores(models: Weights, x: Tensor, batch_size: int = 1000) -> Tensor:
    """Scores `(R, N, K)` in evaluation mode; `x` as in :func:`features`.

    >>> weights = start(seeds=[0, 1], inputs=4, M=3, K=2, width=8, depth=2)
    >>> tuple(scores(weights, torch.zeros(5, 4)).shape)
    (2, 5, 2)
    """
    return classify(models, features(models, x, batch_size))


@torch.no_grad()
def classify(models: Weights, H: Tensor) -> Tensor:
    """Scores `(R, N, K)` of features `H: (R, N, M)`, what the last layer of each run makes of them."""
    W, b = models.matrices[-1].to(H.device), models.biases[-1]
    return torch.bmm(H, W.mT) if b is None else torch.baddbmm(b.to(H.device)[:, None], H, W.mT)


def accuracy(models: Weights, x: Tensor, y: Tensor, batch_size: int = 1000) -> Tensor:
    """Share `(R,)`, in float64, of inputs to which a run gives the label; `y` is `(N,)` for all runs, or `(R, N)`.

    ValueError for inputs or labels of another shape.
    """
    x = _inputs(models, x)
    y = _labels(models, x, y)
    return (scores(models, x, batch_size).argmax(-1) == y).double().mean(-1)


# ------------------------------------------------------------------------------------------------------------- a step


class _SGD:
    """What the steps of one group of runs need: momenta, targets, and memory for a batch.

    Biases, scales and shifts are kept side by side in one tensor, and so are running statistics, so that a step moves
    all of them at once.
    """

    def __init__(self, models, x, y, losses, weight_decay, momentum, nesterov, batch_size):
        R, like = models.runs, models.matrices[0]
        layers, bias = len(models.scales), models.biases[-1] is not None
        self.weight_decay, self.momentum, self.nesterov = weight_decay, momentum, nesterov
        vectors = [*models.biases[: layers + bias], *models.scales, *models.shifts]
        self.vectors, views = _joined(vectors)
        biases, scales, shifts = views[: layers + bias], views[-2 * layers : -layers], views[-layers:]
        self.means, means = _joined(models.means)
        self.variances, variances = _joined(models.variances)
        biases += [] if bias else [None]
        self.models = Weights(models.matrices, biases, scales, shifts, means, variances, *models[-2:])
        self.hidden_biases = self.vectors[:, : self.means.shape[1]]

        self.matrix_momenta = [torch.zeros_like(A) for A in models.matrices]
        self.vector_momenta = torch.zeros_like(self.vectors)
        self.vector_gradient, views = _joined([torch.zeros_like(part) for part in vectors])
        self.bias_gradient = views[layers] if bias else None
        self.scale_gradients, self.shift_gradients = views[-2 * layers : -layers], views[-layers:]
        self.batch_means, self.mean_views = _joined(means)
        self.batch_variances, self.variance_views = _joined(variances)

        self.x, self.y = x.flatten(0, -2), y.flatten()
        self.own, self.N = x.ndim == 3, x.shape[-2]
        self.offsets = torch.arange(R, device=x.device)[:, None] * self.N  # of a run in one list of all samples
        self.batches = math.ceil(self.N / batch_size)
        self.losses = _grouped(losses, like)
        largest, sizes = math.ceil(self.N / self.batches), [A.shape[-2] for A in models.matrices[:-1]]
        self.images = like.new_empty(R * largest, models.inputs)
        self.centred, self.active = ([like.new_empty(R, largest, size) for size in sizes] for _ in range(2))
        self.gradients, self.spare = ({s: like.new_empty(R, largest, s) for s in set(sizes)} for _ in range(2))

    def epoch(self, orders: Tensor, rate: float) -> Tensor:
        """A step for each batch; mean loss and accuracy `(2, R)` as they were trained on, in float64."""
        orders = orders.to(self.x.device)
        total = torch.zeros(2, len(orders), dtype=torch.float64, device=self.x.device)
        for batch in orders.tensor_split(self.batches, 1):
            R, B = batch.shape
            samples = batch + self.offsets
            images = self.images[: R * B]
            torch.index_select(self.x, 0, (samples if self.own else batch).flatten(), out=images)
            total += self.step(images.view(R, B, -1), self.y[samples], rate)
        self.models.batches.add_(self.batches)
        return total / self.N

    def step(self, images: Tensor, labels: Tensor, rate: float) -> Tensor:
        """Move all weights; sums `(2, R)` over the batch of losses and correct answers before that."""
        models, B, layers = self.models, images.shape[1], len(self.centred)
        As, relu = models.matrices, models.activation == "relu"
        centred = [part[:, :B] for part in self.centred]
        active = [images, *(part[:, :B] for part in self.active)]
        spares, gradients = ({size: part[:, :B] for size, part in d.items()} for d in (self.spare, self.gradients))
        factors = []  # of each batch normalisation: one over the standard deviation, and that times its scale
        for i in range(layers):
            Z, H, mean, variance = centred[i], active[i + 1], self.mean_views[i], self.variance_views[i]
            torch.bmm(active[i], As[i].mT, out=Z)
            torch.mean(Z, 1, out=mean)
            Z.sub_(mean[:, None])
            torch.mean(torch.mul(Z, Z, out=spares[Z.shape[-1]]), 1, out=variance)
            inverse = (variance + _EPS).rsqrt_()
            factors.append((inverse, models.scales[i] * inverse))
            torch.addcmul(models.shifts[i][:, None], Z, factors[i][1][:, None], out=H)
            H.relu_() if relu else H.sigmoid_()
        self.means.lerp_(self.batch_means.add_(self.hidden_biases), _FORGET)
        self.variances.lerp_(self.batch_variances.mul_(B / (B - 1)), _FORGET)

        found, G = self._loss(classify(models, active[-1]), labels)
        D = torch.bmm(G, As[-1], out=gradients[As[-1].shape[-1]])
        self._move_matrix(-1, G, active[-1], rate)
        if self.bias_gradient is not None:
            torch.sum(G, 1, out=self.bias_gradient)
        for i in reversed(range(layers)):
            Z, H, spare, (inverse, factor) = centred[i], active[i + 1], spares[As[i].shape[-2]], factors[i]
            if relu:
                torch.ops.aten.threshold_backward.grad_input(D, H, 0, grad_input=D)
            else:
                torch.ops.aten.sigmoid_backward.grad_input(D, H, grad_input=D)
            shift = torch.sum(D, 1, out=self.shift_gradients[i])
            scale = torch.sum(torch.mul(D, Z, out=spare), 1, out=self.scale_gradients[i]).mul_(inverse)
            # factor * (D - mean of D - Z / std * mean of D * Z / std), means over the batch
            offset, slope = (factor * shift).div_(-B), (factor * inverse).mul_(scale).div_(-B)
            G = torch.addcmul(offset[:, None], Z, slope[:, None], out=spare).addcmul_(D, factor[:, None])
            if i:
                D = torch.bmm(G, As[i], out=gradients[As[i].shape[-1]])
            self._move_matrix(i, G, active[i], rate)
        self._move(self.vectors, self.vector_momenta, rate, lambda v, keep: v.mul_(keep).add_(self.vector_gradient))
        return found

    def _move_matrix(self, i: int, G: Tensor, H: Tensor, rate: float) -> None:
        self._move(
            self.models.matrices[i], self.matrix_momenta[i], rate, lambda v, keep: v.baddbmm_(G.mT, H, beta=keep)
        )

    def _move(self, part: Tensor, v: Tensor, rate: float, add: Callable[[Tensor, float], Tensor]) -> None:
        r"""The step of SGD on one tensor; `add(v, keep)` multiplies `v` by `keep` and adds the gradient of the risk.

        With :math:`g` the gradient of the objective it is :math:`v \leftarrow \mu v + g` and then
        :math:`\theta \leftarrow \theta - \eta (g + \mu v)`. As :math:`g = v - \mu v_{old}`, the latter is
        :math:`\theta + \eta\mu v_{old} - \eta(1 + \mu) v`: the gradient is needed for :math:`v` only.
        """
        ahead = rate * self.momentum if self.nesterov else 0.0
        if ahead:
            part.add_(v, alpha=ahead)
        add(v, self.momentum - self.weight_decay * ahead)  # the decay is that of the weights before they went ahead
        if self.weight_decay:
            v.add_(part, alpha=self.weight_decay)
        part.add_(v, alpha=-rate - ahead)

    def _loss(self, S: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Sums `(2, R)` of losses and correct answers, and the gradient `(R, B, K)` of the mean loss."""
        values, G = S.new_empty(len(S)), torch.empty_like(S)
        for function, runs, alpha in self.losses:
            values[runs], G[runs] = function(S[runs], y[runs], alpha)
        return torch.stack([values, (S.argmax(-1) == y).sum(1)]), G.div_(y.shape[1])


def _joined(parts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """`(R, n_i)` side by side, and the views of them."""
    joined = torch.cat(parts, 1)
    return joined, list(joined.split([part.shape[1] for part in parts], 1))


def _cross_entropy(S, y, alpha):
    log_p = S.log_softmax(-1)
    targets = (alpha / S.shape[-1]).expand_as(S).scatter_add(-1, y[..., None], (1 - alpha).expand(*y.shape, 1))
    return -(targets * log_p).sum((1, 2)), log_p.exp_().sub_(targets)


def _relaxation(S, y, alpha):
    y = y[..., None]
    log_p, total = S.log_softmax(-1), S.logsumexp(-1, keepdim=True)
    others = S.scatter(-1, y, -math.inf)
    label, rest = log_p.gather(-1, y), others.logsumexp(-1, keepdim=True) - total
    kept = torch.log1p(-alpha)
    right = label >= kept  # asked so that a score that is not a number shows
    value = torch.where(right, 0.0, (1 - alpha) * (kept - label) + alpha * (alpha.log() - rest))
    targets = (alpha * others.softmax(-1)).scatter(-1, y, (1 - alpha).expand_as(y))
    return value.sum((1, 2)), torch.where(right, 0.0, log_p.exp_().sub_(targets))


def _squared(S, y, alpha):
    error = S.scatter_add(-1, y[..., None], torch.full_like(S[..., :1], -1.0))
    return error.square().sum((1, 2)) / S.shape[-1], error * (2 / S.shape[-1])


_FUNCTIONS = {"ce": _cross_entropy, "ls": _cross_entropy, "lr": _relaxation, "mse": _squared}


def _grouped(losses, like: Tensor) -> list:
    """Runs with one formula together: the formula, which runs (a slice where that does), and alpha `(r, 1, 1)`."""
    groups = []
    for function in dict.fromkeys(_FUNCTIONS.values()):
        runs = [run for run, (name, _) in enumerate(losses) if _FUNCTIONS[name] is function]
        if runs:
            alpha = like.new_tensor([losses[run][1] for run in runs])[:, None, None]
            consecutive = runs[-1] - runs[0] == len(runs) - 1
            chosen = slice(runs[0], runs[-1] + 1) if consecutive else torch.tensor(runs, device=like.device)
            groups.append((function, chosen, alpha))
    return groups


# ------------------------------------------------------------------------------------------------ in and out of modules


def _stacked(models: Iterable[nn.Module], R: int) -> Weights:
    stacked = None
    for run, model in enumerate(models):
        parts = _parts(model)
        if stacked is None:
            stacked = parts.map(lambda part: part.new_empty(R, *part.shape))
        _check_like(parts, stacked, run)
        _each(lambda mine, theirs, run=run: mine[run].copy_(theirs), stacked, parts)
    return stacked


def _parts(model: nn.Module) -> Weights:
    """The tensors of one network, without a dimension for runs."""
    try:
        layers = [tuple(layer) for layer in model.hidden] + [(model.fc, None, None)]
        linear, norms, activations = (list(parts) for parts in zip(*layers, strict=True))
        kind = {nn.ReLU: "relu", nn.Sigmoid: "sigmoid"}[type(activations[0])]
        norms = norms[:-1]
        if any(type(norm) is not nn.BatchNorm1d or (norm.eps, norm.momentum) != (_EPS, _FORGET) for norm in norms):
            raise TypeError
        parts = [
            [layer.weight for layer in linear],
            [layer.bias for layer in linear],
            *([getattr(norm, name) for norm in norms] for name in ("weight", "bias", "running_mean", "running_var")),
        ]
        return Weights(*parts, norms[0].num_batches_tracked, kind).map(torch.Tensor.detach)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"a network of type {type(model).__name__}: one made by lib.models.networks.mlp is needed"
        ) from None


def _each(function: Callable[[Tensor, Tensor], object], first: Weights, second: Weights) -> None:
    for mine, theirs in zip(_tensors(first), _tensors(second), strict=True):
        function(mine, theirs)


def _tensors(weights: Weights) -> list[Tensor]:
    return [part for parts in weights[:-2] for part in parts if part is not None] + [weights.batches]


def _check_like(parts: Weights, stacked: Weights, run: int) -> None:
    def description(weights, skip):
        return [weights.activation] + [(tuple(t.shape[skip:]), t.dtype, t.device) for t in _tensors(weights)]

    if description(parts, 0) != description(stacked, 1):
        raise ValueError(
            f"network {run} differs from the first in shape, activation, dtype or device: all have to be alike"
        )


# -------------------------------------------------------------------------------------------------------------- checks


def _inputs(models: Weights, x: Tensor) -> Tensor:
    """`x` as `(N, inputs)` or `(R, N, inputs)`."""
    R, inputs = models.runs, models.inputs
    given = tuple(x.shape)
    x = x.flatten(1) if x.ndim == 4 else x
    if not (x.ndim in (2, 3) and x.shape[-1] == inputs and (x.ndim == 2 or len(x) == R) and x.shape[-2]):
        needed = f"(N, {inputs}), images (N, C, H, W) of {inputs} numbers, or ({R}, N, {inputs})"
        raise ValueError(f"x has shape {given}: {needed} is needed")
    if x.dtype != models.matrices[0].dtype:
        raise ValueError(f"x is {x.dtype} and the weights are {models.matrices[0].dtype}: one dtype is needed")
    return x


def _labels(models: Weights, x: Tensor, y: Tensor) -> Tensor:
    """`y` as `(R, N)`."""
    R, N, K = models.runs, x.shape[-2], models.classes
    if y.shape not in ((N,), (R, N)):
        raise ValueError(f"y has shape {tuple(y.shape)}: ({R}, {N}), or ({N},) for all runs, is needed")
    if y.device != x.device:
        raise ValueError(f"x is on {x.device} and y on {y.device}: one device is needed")
    if y.dtype != torch.int64:
        raise ValueError(f"y is {y.dtype}: labels are int64")
    if y.min() < 0 or y.max() >= K:
        low, high = int(y.min()), int(y.max())
        raise ValueError(f"y has labels from {low} to {high}: the networks have {K} outputs, so 0..{K - 1} are allowed")
    return y.expand(R, N)


def _check_runs(models, x, losses, seeds, batch_size):
    R, N = models.runs, x.shape[-2]
    for name, value in (("losses", losses), ("seeds", seeds)):
        if len(value) != R:
            raise ValueError(f"{name} has {len(value)} entries for {R} runs: one for each is needed")
    for run, (name, alpha) in enumerate(losses):
        if name not in _LOSSES:
            raise ValueError(f"losses[{run}] is {name!r}: one of {', '.join(map(repr, _LOSSES))} is needed")
        if not {"ls": 0 <= alpha < 1, "lr": 0 < alpha < 1}.get(name, alpha == 0):
            raise ValueError(f"losses[{run}] is {name!r} with alpha = {alpha!r}: {_LOSSES[name]} is needed")
        if name == "lr" and models.classes < 2:
            raise ValueError(f"losses[{run}] is 'lr': it needs at least 2 classes")
    if N // math.ceil(N / batch_size) < 2:
        raise ValueError(
            f"batch_size = {batch_size} cuts {N} samples into batches of which one has a single sample: "
            "batch normalisation needs 2"
        )
    if not torch.isfinite(x).all():
        raise ValueError(f"x has {int((~torch.isfinite(x)).sum())} entries that are not finite")


def _squares(models: Weights) -> Tensor:
    r""":math:`\|\theta_r\|^2` of all parameters of each run, `(R,)` in float64."""
    total = torch.zeros(models.runs, dtype=torch.float64, device=models.batches.device)
    for part in (part.flatten(1) for parts in models[:4] for part in parts if part is not None):
        some = max(1, 2**24 // part.shape[1])  # a few runs after the other: the squares are in double precision
        total += torch.cat([rows.double().square().sum(1) for rows in part.split(some)])
    return total
