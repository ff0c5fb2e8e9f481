r"""SGD on many multilayer perceptrons at once: runs are the first dimension of every tensor.

The networks are those of :func:`lib.models.networks.mlp` with ReLU, all of one shape. Each run has its own weights,
observed labels, loss and order of the samples, and ends where it would have ended alone, up to rounding. Four things
make it fast:

- A linear map of all runs is one batched product, and so is each of the two products in its gradient.
- The gradient is written out. Batch normalisation, the activation and their derivatives work in place, on batches
  `(R, B, width)` whose rows are contiguous.
- The product that gives the gradient of a matrix adds it directly to the momentum; it is never stored by itself.
- The bias in front of batch normalisation has no effect on a batch and no gradient. It is added to the running means,
  and shrinks by weight decay, which is all that happens to it in PyTorch as well, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib import checks
from lib.models.networks import mlp
from lib.training.cuda_graphs import rounding_to_tf32
from lib.training.sgd import SGD

_EPS, _FORGET = 1e-5, 0.1  # of nn.BatchNorm1d


class Weights(NamedTuple):
    r"""Parameters and running statistics of R networks with L hidden layers and a last linear map.

    Attributes
    ----------
    matrices
        :math:`A_1, \dots, A_L, W`, each `(R, out, in)`.
    biases
        :math:`a_1, \dots, a_L, b`, each `(R, out)`.
    scales
        Scales of the batch normalisations, `(R, out)` each.
    shifts
        Shifts of the batch normalisations, `(R, out)` each.
    means
        Their running means, `(R, out)` each.
    variances
        Their running variances, `(R, out)` each.
    """

    matrices: list[Tensor]
    biases: list[Tensor]
    scales: list[Tensor]
    shifts: list[Tensor]
    means: list[Tensor]
    variances: list[Tensor]


@torch.no_grad()
def stack(models: Iterable[nn.Module], runs: int) -> Weights:
    """Copy R = `runs` networks made by :func:`lib.models.networks.mlp`, of one shape, into one set of tensors.

    >>> weights = stack([mlp(4, M=3, K=2, width=8, depth=2, seed=seed) for seed in (0, 1)], runs=2)
    >>> [tuple(A.shape) for A in weights.matrices]
    [(2, 8, 4), (2, 3, 8), (2, 2, 3)]
    """
    stacked = None
    for run, model in enumerate(models):
        linear, norms = [layer[0] for layer in model.hidden] + [model.fc], [layer[1] for layer in model.hidden]
        parts = [[layer.weight for layer in linear], [layer.bias for layer in linear]]
        parts += [[getattr(norm, name) for norm in norms] for name in ("weight", "bias", "running_mean", "running_var")]
        stacked = stacked or Weights(*([part.new_empty(runs, *part.shape) for part in kind] for kind in parts))
        for all_runs, own in zip(stacked, parts, strict=True):
            for into, part in zip(all_runs, own, strict=True):
                into[run] = part
    return stacked


def initialise(
    seeds: Sequence[int],
    inputs: int,
    M: int,
    K: int,
    width: int = 2048,
    depth: int = 9,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """:func:`stack` of :func:`lib.models.networks.mlp` for each seed, without holding the R modules at once.

    The other arguments, and the ValueError, are those of :func:`lib.models.networks.mlp`.

    >>> weights = initialise(seeds=[0, 1], inputs=4, M=3, K=2, width=8, depth=2)
    >>> [tuple(A.shape) for A in weights.matrices]
    [(2, 8, 4), (2, 3, 8), (2, 2, 3)]
    """
    models = (mlp(inputs, M, K, width, depth, seed=seed).to(device, dtype) for seed in seeds)
    return stack(models, len(seeds))


@torch.no_grad()
def train_perceptrons(
    models: Weights,
    x: Tensor,
    y: Tensor,
    losses: Sequence[tuple[str, float]],
    sgd: SGD,
    seeds: Sequence[int] | None = None,
) -> None:
    r"""Train R networks in place by SGD on the regularised risk of each, as R calls of :func:`lib.training.sgd.train`.

    .. math::

       \frac1N \sum_{i=1}^N \ell_r(f_{\theta_r}(x_i), y_{ri}) + \frac{\lambda}{2} \|\theta_r\|^2, \quad r = 1, \dots, R.

    An epoch is a random order of the samples, cut into batches whose sizes differ by at most one; the orders are those
    of :func:`lib.training.sgd.train` with the same seeds. A step is that of :class:`torch.optim.SGD`. Nothing is copied
    to the device, or read from it, within an epoch. A GPU may round the factors of float32 products to TF32.

    Parameters
    ----------
    models
        As :func:`stack` and :func:`initialise` give them, on the device of `x`. Their momentum and twice their
        activations on one batch have to fit there as well.
    x
        Inputs `(N, inputs)` for all runs.
    y
        Observed labels `(R, N)`, or `(N,)` for all runs.
    losses
        For each run one of `("ce", 0)`, cross-entropy; `("ls", alpha)`, :func:`lib.models.losses.label_smoothing`;
        `("lr", alpha)`, label relaxation; `("mse", 0)`, :func:`lib.models.losses.squared_error` times :math:`2/K`,
        which averages over the outputs as well. With :math:`p_i` the softmax of the scores, label relaxation is 0 where
        :math:`p_{i y_i} \ge 1 - \alpha`, and otherwise

        .. math::

           \begin{aligned}
           D_{KL}(p_i^r \,\|\, p_i) &= (1 - \alpha) \log \tfrac{1 - \alpha}{p_{i y_i}} \\
           &\quad + \alpha \log \tfrac{\alpha}{1 - p_{i y_i}},
           \end{aligned}

        where :math:`p_i^r` gives :math:`1 - \alpha` to the label and divides :math:`\alpha` among the other classes as
        :math:`p_i` does: no other distribution that is as sure of the label is nearer. In the second case the gradient
        with respect to the scores is :math:`p_i - p_i^r`, whether or not :math:`p_i^r` is held fixed. Source: Lienen &
        Hüllermeier (2021), From label smoothing to label relaxation.
    sgd
        The settings, the same for all runs.
    seeds
        Seeds of the order of the samples in each run; 0 to R-1 if left out.

    Raises
    ------
    ValueError
        For a number out of its range, an unknown loss, labels or shapes that do not fit, and where a batch would have
        one sample only, which cannot be normalised.
    FloatingPointError
        If the weights of a run are not finite at the end of an epoch; it names the epoch and the first such run. The
        weights of all runs are then useless.

    Examples
    --------
    >>> models = initialise(seeds=[0, 1], inputs=2, M=4, K=2, width=8, depth=2)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> train_perceptrons(models, x, y, [("ce", 0), ("ls", 0.1)], SGD(epochs=50, learning_rate=0.1))
    >>> classify(models, features(models, x)).argmax(-1).tolist()
    [[0, 1], [0, 1]]
    """
    R, N = len(models.matrices[0]), len(x)
    seeds = range(R) if seeds is None else seeds
    sgd.check()
    _check(models, x, y, losses, seeds, sgd.batch_size)
    ensemble = _Ensemble(models, x, y.expand(R, N), losses, sgd)
    orders = [torch.Generator().manual_seed(seed) for seed in seeds]
    rate = sgd.learning_rate
    for epoch in range(1, sgd.epochs + 1):
        order = torch.stack([torch.randperm(N, generator=generator) for generator in orders])
        with rounding_to_tf32():
            ensemble.epoch(order.to(x.device), rate)
        parts = [*ensemble.models.matrices, ensemble.vectors]
        finite = torch.stack([part.flatten(1).sum(1) for part in parts]).isfinite().all(0)  # one pass over the weights
        if not finite.all():
            run = int((~finite).nonzero()[0])
            raise FloatingPointError(f"epoch {epoch}, run {run}: learning_rate = {rate} may be too large")
        rate = rate * sgd.gamma if epoch in sgd.milestones else rate
    for mine, theirs in zip(ensemble.models[1:], models[1:], strict=True):  # the matrices were updated in place
        torch._foreach_copy_(theirs, mine)


@torch.no_grad()
def features(models: Weights, x: Tensor, batch_size: int = 1000) -> Tensor:
    """Features `(R, N, M)` of inputs `(N, inputs)` in evaluation mode, on their common device.

    >>> weights = initialise(seeds=[0, 1], inputs=4, M=3, K=2, width=8, depth=2)
    >>> tuple(features(weights, torch.zeros(5, 4)).shape)
    (2, 5, 3)
    """
    maps = []  # with the running statistics a batch normalisation is one affine map of each unit
    for A, a, scale, shift, mean, variance in zip(*models, strict=False):
        factor = scale * (variance + _EPS).rsqrt()
        maps.append((A.mT, factor[:, None], (shift + (a - mean) * factor)[:, None]))
    found = []
    for batch in x.split(batch_size):
        H = batch.expand(len(models.matrices[0]), -1, -1)
        for A, factor, offset in maps:
            Z = torch.bmm(H, A)
            H = torch.addcmul(offset, Z, factor, out=Z).relu_()
        found.append(H)
    return torch.cat(found, 1)


@torch.no_grad()
def classify(models: Weights, H: Tensor) -> Tensor:
    """Scores `(R, N, K)` of features `H: (R, N, M)`, as the last layer of each run gives them."""
    return torch.baddbmm(models.biases[-1][:, None], H, models.matrices[-1].mT)


# ------------------------------------------------------------------------------------------------------------- a step


class _Ensemble:
    """R networks while they are trained, with momenta and memory for a batch.

    Biases, scales and shifts are kept side by side in one tensor, and so are running statistics: a layer has six small
    vectors, and updating each by itself would cost more calls than all of its products.
    """

    def __init__(self, models: Weights, x: Tensor, y: Tensor, losses, sgd: SGD):
        R, like, L = len(y), models.matrices[0], len(models.scales)
        self.sgd, self.x, self.y = sgd, x, y
        vectors = [*models.biases, *models.scales, *models.shifts]
        self.vectors, views = _joined(vectors)
        self.means, means = _joined(models.means)
        self.variances, variances = _joined(models.variances)
        self.models = Weights(models.matrices, views[: L + 1], views[L + 1 : -L], views[-L:], means, variances)
        self.hidden_biases = self.vectors[:, : self.means.shape[1]]

        self.matrix_momenta = [torch.zeros_like(A) for A in models.matrices]
        self.vector_momenta = torch.zeros_like(self.vectors)
        # gradients of the hidden biases stay zero: subtracting the batch mean removes these biases
        self.vector_gradient, views = _joined([torch.zeros_like(part) for part in vectors])
        self.bias_gradient, self.scale_gradients, self.shift_gradients = views[L], views[L + 1 : -L], views[-L:]
        self.batch_means, self.mean_views = _joined(means)
        self.batch_variances, self.variance_views = _joined(variances)

        # Memory for a batch is allocated once: fresh memory of this size goes back to the system after every step, and
        # asking for it again costs more than the passes over it. A layer no longer needs its gradient and scratch
        # memory when the next layer of that width uses them.
        self.batches = math.ceil(len(x) / sgd.batch_size)
        largest, sizes = math.ceil(len(x) / self.batches), [A.shape[-2] for A in models.matrices[:-1]]
        self.images = like.new_empty(R * largest, x.shape[1])

        def rows(width: int) -> Tensor:
            return like.new_empty(R, largest, width)

        self.centred, self.active = [rows(size) for size in sizes], [rows(size) for size in sizes]
        self.gradients = {size: rows(size) for size in set(sizes)}
        self.spare = {size: rows(size) for size in set(sizes)}

        self.losses = []  # runs grouped by formula: the formula, which runs, and their alphas (r, 1, 1)
        for function in dict.fromkeys(_LOSSES.values()):
            runs = [run for run, (name, _) in enumerate(losses) if _LOSSES[name] is function]
            if runs:
                alpha = like.new_tensor([losses[run][1] for run in runs])[:, None, None]
                self.losses.append((function, torch.tensor(runs, device=like.device), alpha))

    def epoch(self, orders: Tensor, rate: float) -> None:
        """A step for each batch."""
        for batch in orders.tensor_split(self.batches, 1):
            images = self.images[: batch.numel()]
            torch.index_select(self.x, 0, batch.flatten(), out=images)
            self.step(images.view(*batch.shape, -1), self.y.gather(1, batch), rate)

    def step(self, images: Tensor, labels: Tensor, rate: float) -> None:
        """Move all weights against the gradient on a batch."""
        models, As, B, L = self.models, self.models.matrices, images.shape[1], len(self.centred)
        centred = [part[:, :B] for part in self.centred]
        active = [images, *(part[:, :B] for part in self.active)]
        gradients = {size: part[:, :B] for size, part in self.gradients.items()}
        spares = {size: part[:, :B] for size, part in self.spare.items()}
        factors = []  # of each batch normalisation: one over the standard deviation, and that times its scale
        for i in range(L):
            Z, H, mean, variance = centred[i], active[i + 1], self.mean_views[i], self.variance_views[i]
            torch.bmm(active[i], As[i].mT, out=Z)
            torch.mean(Z, 1, out=mean)
            Z.sub_(mean[:, None])
            torch.mean(torch.mul(Z, Z, out=spares[Z.shape[-1]]), 1, out=variance)
            inverse = (variance + _EPS).rsqrt_()
            factors.append((inverse, models.scales[i] * inverse))
            torch.addcmul(models.shifts[i][:, None], Z, factors[i][1][:, None], out=H)
            H.relu_()
        self.means.lerp_(self.batch_means.add_(self.hidden_biases), _FORGET)
        self.variances.lerp_(self.batch_variances.mul_(B / (B - 1)), _FORGET)  # PyTorch keeps the unbiased ones

        G = self._slope(classify(models, active[-1]), labels)
        D = torch.bmm(G, As[-1], out=gradients[As[-1].shape[-1]])
        self._move_matrix(-1, G, active[-1], rate)
        torch.sum(G, 1, out=self.bias_gradient)
        for i in reversed(range(L)):
            Z, H, spare, (inverse, factor) = centred[i], active[i + 1], spares[As[i].shape[-2]], factors[i]
            torch.ops.aten.threshold_backward.grad_input(D, H, 0, grad_input=D)
            shift = torch.sum(D, 1, out=self.shift_gradients[i])
            scale = torch.sum(torch.mul(D, Z, out=spare), 1, out=self.scale_gradients[i]).mul_(inverse)
            # factor * (D - mean of D - Z / std * mean of D * Z / std), means over the batch
            offset, slope = (factor * shift).div_(-B), (factor * inverse).mul_(scale).div_(-B)
            G = torch.addcmul(offset[:, None], Z, slope[:, None], out=spare).addcmul_(D, factor[:, None])
            if i:  # before the matrix is updated: the layer below needs the gradient through the old one
                D = torch.bmm(G, As[i], out=gradients[As[i].shape[-1]])
            self._move_matrix(i, G, active[i], rate)
        self._move(self.vectors, self.vector_momenta, rate, lambda v, keep: v.mul_(keep).add_(self.vector_gradient))

    def _move_matrix(self, i: int, G: Tensor, H: Tensor, rate: float) -> None:
        self._move(
            self.models.matrices[i], self.matrix_momenta[i], rate, lambda v, keep: v.baddbmm_(G.mT, H, beta=keep)
        )

    def _move(self, part: Tensor, v: Tensor, rate: float, add: Callable[[Tensor, float], Tensor]) -> None:
        r"""The step of SGD on one tensor; `add(v, keep)` multiplies `v` by `keep` and adds the gradient of the risk.

        With :math:`g` the gradient of the objective, the step is :math:`v \leftarrow \mu v + g` and then
        :math:`\theta \leftarrow \theta - \eta (g + \mu v)`. As :math:`g = v - \mu v_{old}`, the latter is
        :math:`\theta + \eta\mu v_{old} - \eta(1 + \mu) v`: the gradient is needed for :math:`v` only.
        """
        decay, momentum = self.sgd.weight_decay, self.sgd.momentum
        ahead = rate * momentum if self.sgd.nesterov else 0.0
        if ahead:
            part.add_(v, alpha=ahead)
        add(v, momentum - decay * ahead)  # the decay is that of the weights before they went ahead
        if decay:
            v.add_(part, alpha=decay)
        part.add_(v, alpha=-rate - ahead)

    def _slope(self, S: Tensor, y: Tensor) -> Tensor:
        """The gradient `(R, B, K)` of the mean loss of each run with respect to its scores."""
        G = torch.empty_like(S)
        for function, runs, alpha in self.losses:
            G[runs] = function(S[runs], y[runs], alpha)
        return G.div_(y.shape[1])


def _joined(parts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Tensors `(R, n_i)` side by side, and views of each."""
    joined = torch.cat(parts, 1)
    return joined, list(joined.split([part.shape[1] for part in parts], 1))


# The gradients of the losses of single samples in the scores `S: (r, B, K)`; `y: (r, B)`, `alpha: (r, 1, 1)`.


def _cross_entropy(S, y, alpha):
    targets = (alpha / S.shape[-1]).expand_as(S).scatter_add(-1, y[..., None], (1 - alpha).expand(*y.shape, 1))
    return S.log_softmax(-1).exp_().sub_(targets)


def _relaxation(S, y, alpha):
    y = y[..., None]
    log_p = S.log_softmax(-1)
    right = log_p.gather(-1, y) >= torch.log1p(-alpha)  # asked this way so that a nan score shows
    others = S.scatter(-1, y, -math.inf)
    targets = (alpha * others.softmax(-1)).scatter(-1, y, (1 - alpha).expand_as(y))
    return torch.where(right, 0.0, log_p.exp_().sub_(targets))


def _squared(S, y, alpha):
    return S.scatter_add(-1, y[..., None], torch.full_like(S[..., :1], -1.0)) * (2 / S.shape[-1])


_LOSSES = {"ce": _cross_entropy, "ls": _cross_entropy, "lr": _relaxation, "mse": _squared}


def _check(models: Weights, x: Tensor, y: Tensor, losses, seeds, batch_size: int) -> None:
    R, _, inputs = models.matrices[0].shape
    K, N = models.matrices[-1].shape[-2], len(x)
    if x.shape != (N, inputs) or N == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: (N, {inputs}) is needed")
    if y.shape not in ((N,), (R, N)):
        raise ValueError(f"y has shape {tuple(y.shape)}: ({R}, {N}), or ({N},) for all runs, is needed")
    checks.labels(y.flatten(), y.numel(), K, every=False)
    for name, value in (("losses", losses), ("seeds", seeds)):
        if len(value) != R:
            raise ValueError(f"{name} has {len(value)} entries for {R} runs: one for each is needed")
    checks.one_of(_LOSSES, **{f"losses[{run}]": name for run, (name, _) in enumerate(losses)})
    for run, (name, alpha) in enumerate(losses):
        if not {"ls": 0 <= alpha < 1, "lr": 0 < alpha < 1}.get(name, alpha == 0):
            raise ValueError(f"losses[{run}] is {name!r} with alpha = {alpha!r}, which is out of its range")
    if N // math.ceil(N / batch_size) < 2:
        raise ValueError(f"batch_size = {batch_size} leaves one of {N} samples alone: batch normalisation needs 2")
