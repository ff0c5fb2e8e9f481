"""Optimisers: full-batch L-BFGS for questions about minimisers, the papers' SGD for questions about SGD."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import positive_integers
from .graphs import recorded, rounding_to_tf32
from .models.sentences import SentenceSet, full_batch_risk, layer_norm, word_features


@dataclass
class Minimisation:
    """What :func:`lbfgs` did: the risk after each evaluation, the seconds it took, and why it stopped."""

    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    gradient_norm: float = float("nan")
    converged: bool = False

    @property
    def value(self) -> float:
        """The risk at the weights with which the search ended, which are evaluated last."""
        return self.values[-1]


def lbfgs(
    loss: Callable[..., Tensor],
    parameters: Sequence[Tensor],
    tolerance: float = 1e-5,
    max_evaluations: int = 500,
    history: int = 20,
    scale_invariant: Sequence[int] = (),
    callback: Callable[[int], None] | None = None,
) -> Minimisation:
    r"""Minimise `loss(*parameters)` in place by L-BFGS with a strong-Wolfe line search (PyTorch's).

    Stops when the gradient norm is below `tolerance`, or when the line search finds nothing lower because differences
    of the loss drown in rounding; `converged` tells which. Where the loss does not depend on the length of the rows of
    a parameter (embeddings before a LayerNorm), the gradient with respect to a row scales as 1/length, so that it says
    nothing by itself: rows of the parameters listed in `scale_invariant` enter the norm multiplied by their lengths,
    which is the gradient with respect to their directions.

    Source: Liu & Nocedal (1989).

    Parameters
    ----------
    loss
        A differentiable function of the parameters that returns a scalar.
    parameters
        Tensors of any shapes, changed in place.
    tolerance
        On the gradient norm.
    max_evaluations
        Of loss and gradient; the round of at most 25 under way is finished, and the end point evaluated.
    history
        Pairs kept for the inverse Hessian.
    scale_invariant
        Positions in `parameters`.
    callback
        Called with the number of evaluations after each.

    Returns
    -------
    Minimisation

    Raises
    ------
    ValueError
        If the tolerance is not positive.
    FloatingPointError
        If the loss is not finite.

    Examples
    --------
    >>> x = torch.tensor([3.0, -1.0], dtype=torch.float64)
    >>> found = lbfgs(lambda x: (x - torch.tensor([1.0, 2.0])).square().sum(), [x])
    >>> found.converged, x.round(decimals=6).tolist()
    (True, [1.0, 2.0])
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}, it must be positive")
    parameters = [parameter.detach().requires_grad_() for parameter in parameters]
    record, start = Minimisation(), time.perf_counter()
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=20, max_eval=25, history_size=history, line_search_fn="strong_wolfe",
        tolerance_grad=0, tolerance_change=0,
    )  # fmt: skip

    def gradient_norm() -> float:
        squares = 0.0
        for i, parameter in enumerate(parameters):
            length = parameter.detach().norm(dim=-1, keepdim=True) if i in scale_invariant else 1.0
            squares += (parameter.grad * length).square().sum().item()
        return squares**0.5

    @torch.enable_grad()
    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(*parameters)
        value.backward()
        record.values.append(value.item())
        record.seconds.append(time.perf_counter() - start)
        if not torch.isfinite(value):
            raise FloatingPointError(f"the loss is {value.item()} after {len(record.values)} evaluations")
        if callback is not None:
            callback(len(record.values))
        return value.detach()

    while len(record.values) < max_evaluations and not record.converged:
        before = [parameter.detach().clone() for parameter in parameters]
        optimiser.step(closure)  # up to 20 iterations; the optimiser keeps its history between calls
        stuck = all(map(torch.equal, before, parameters))  # rounding is reached: the next round would be the same
        if stuck or gradient_norm() < tolerance or len(record.values) >= max_evaluations:
            closure()  # the line search need not end at the point that it looked at last
            record.gradient_norm = gradient_norm()
            record.converged = record.gradient_norm < tolerance
        if stuck:
            break
    for parameter in parameters:
        parameter.requires_grad_(False)
    return record


def gradient_descent(
    loss: Callable[..., Tensor],
    parameters: Sequence[Tensor],
    learning_rate: float,
    steps: int,
    callback: Callable[[int], None] | None = None,
) -> None:
    r"""Plain gradient descent on `loss(*parameters)`, in place; `callback(step)` is called after each step.

    .. math:: \theta \leftarrow \theta - \eta\,\nabla\,\text{loss}(\theta)

    :math:`\eta` is the learning rate; `loss` returns a scalar tensor, and the parameters may have any shapes.

    >>> x = torch.tensor([1.0])
    >>> gradient_descent(lambda x: x.square().sum() / 2, [x], learning_rate=0.5, steps=2)
    >>> x  # (1 - 0.5)^2
    tensor([0.2500])
    """
    for step in range(1, steps + 1):
        active = [parameter.detach().requires_grad_() for parameter in parameters]
        gradients = torch.autograd.grad(loss(*active), active)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=learning_rate)
        if callback is not None:
            callback(step)


@dataclass
class Fit:
    """A trained sentence network: weights `W: (n_w, d)`, `U: (K, L, d)`, and how they were found."""

    W: Tensor
    U: Tensor
    normalize: bool
    record: Minimisation

    @property
    def features(self) -> Tensor:
        r"""What the linear layer sees of each word, `W` for `h` and :math:`\varphi(W)` for `h*`, `(n_w, d)`."""
        return word_features(self.W, self.normalize)


def fit_sentences(
    x: Tensor,
    y: Tensor,
    n_w: int,
    d: int,
    lam: float,
    normalize: bool = False,
    seed: int = 0,
    tolerance: float = 3e-5,
    max_evaluations: int = 500,
    callback: Callable[[int, Tensor, Tensor], None] | None = None,
    start: tuple[Tensor, Tensor] | None = None,
) -> Fit:
    r"""The minimiser of the empirical risk (equation 2; 3 with `normalize`) by full-batch L-BFGS from a random start.

    For `h*` only the directions of the embeddings matter, but their lengths set how fast the directions turn. The
    curvature of the risk along a word's direction grows with how often the word occurs and falls with the square of
    its length, so lengths start proportional to the root of the counts: rare words then turn as fast as frequent ones.
    They start small, for embeddings that turn before the linear layer has fitted them as they are end at lower risk.

    Parameters
    ----------
    x, y
        Sentences `(N, L)` and classes `(N,)`, on the device to compute on.
    n_w, d, lam
        Words, width, weight decay.
    tolerance, max_evaluations
        As in :func:`lbfgs`.
    callback
        Called as `callback(evaluation, W, U)`.
    start
        Weights `(W, U)` to start from in place of random ones: with many sentences, those of a fit to a part of them.

    Returns
    -------
    Fit
        Weights in float32.

    Raises
    ------
    ValueError
        If `lam` is not positive: without weight decay the risk has no minimiser. If `start` has other shapes.

    Examples
    --------
    >>> x, y = torch.tensor([[0, 2], [1, 3]]), torch.tensor([0, 1])
    >>> fit = fit_sentences(x, y, n_w=4, d=3, lam=0.01)
    >>> fit.record.value < 0.6931  # log 2, the risk of zero weights
    True
    >>> tuple(fit.features.shape), tuple(fit.U.shape)
    ((4, 3), (2, 2, 3))
    """
    if not lam > 0:
        raise ValueError(f"lam is {lam}: without weight decay the risk of separable data has no minimiser")
    sentences = SentenceSet(x, n_w)
    W, U = initial_weights(n_w, int(y.max()) + 1, x.shape[1], d, seed, scale=1.0)
    W, U = 0.1 * W.to(x.device), U.to(x.device)
    if start is not None:
        if start[0].shape != W.shape or start[1].shape != U.shape:
            found = f"{tuple(start[0].shape)} and {tuple(start[1].shape)}"
            raise ValueError(f"start has shapes {found}; it must have {tuple(W.shape)} and {tuple(U.shape)}")
        W, U = (part.to(W, copy=True) for part in start)
    elif normalize:
        counts = torch.bincount(x.flatten(), minlength=n_w).clamp(min=1).to(W)
        W = 0.03 * F.normalize(W, dim=1) * (counts / counts.mean()).sqrt()[:, None]
    record = lbfgs(
        full_batch_risk(sentences, y, lam, normalize),
        [W, U],
        tolerance=tolerance,
        max_evaluations=max_evaluations,
        scale_invariant=[0] if normalize else [],
        callback=None if callback is None else lambda n: callback(n, W, U),
    )
    return Fit(W, U, normalize, record)


def initial_weights(n_w: int, K: int, L: int, d: int, seed: int, scale: float) -> tuple[Tensor, Tensor]:
    r"""PyTorch's default start of an embedding and of a linear layer, both times `scale`.

    :math:`W \sim N(0, 1)`, `(n_w, d)`, and :math:`U \sim` uniform on :math:`\pm 1/\sqrt{Ld}`, `(K, L, d)`, drawn on the
    CPU, so that a seed gives the same start on every device. The paper does not say how its runs start; its authors'
    published notebooks use `scale` = 1/1000.

    >>> W, U = initial_weights(n_w=6, K=2, L=3, d=4, seed=0, scale=1e-3)
    >>> tuple(W.shape), tuple(U.shape)
    ((6, 4), (2, 3, 4))
    >>> torch.equal(W, initial_weights(6, 2, 3, 4, seed=0, scale=1e-3)[0])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(n_w, d, generator=generator)
    U = (2 * torch.rand(K, L, d, generator=generator) - 1) / (L * d) ** 0.5
    return scale * W, scale * U


@torch.no_grad()
def sentence_sgd(
    W: Tensor,
    U: Tensor,
    x: Tensor,
    y: Tensor,
    lam: float,
    learning_rate: float,
    batch_size: int,
    steps: int,
    generator: torch.Generator,
    normalize: bool = False,
    callback: Callable[[int], None] | None = None,
    every: int = 1,
    tf32: bool = False,
) -> None:
    r"""The SGD of *Feature Collapse*: constant learning rate, weight decay, every sentence once per epoch.

    Changes `W: (n_w, d)` and `U: (K, L, d)` in place by `steps` steps on :func:`lib.models.sentences.empirical_risk`
    of batches of `x: (N, L)`, `y: (N,)`. The linear layer's gradient, decay and update are one fused matrix product.
    Orders are drawn on the CPU, so that a seed gives the same ones on every device; where `batch_size` does not divide
    N, the last batch of an epoch is smaller.

    A GPU replays recorded steps (:mod:`lib.graphs`) and reads nothing back between two calls of `callback`, which
    therefore wants a large `every`. It adds up the gradient of a word in no fixed order, so that two runs differ by
    rounding. Source: section 2 (learning rate 0.1, batches of 100).

    Parameters
    ----------
    W, U, x, y
        All on the device to compute on.
    generator
        Of the orders, on the CPU.
    normalize
        For `h*`, whose embeddings go through LayerNorm and do not decay.
    callback, every
        `callback(step)` is called after each `every` steps.
    tf32
        Let a GPU round the factors of its products to TF32, ten bits of the mantissa. Without it they keep float32, as
        on a processor: that is what a curve is to be compared with.

    Raises
    ------
    ValueError
        If `batch_size` or `every` is no positive integer.

    Examples
    --------
    >>> x, y = torch.tensor([[0, 2], [1, 3]]), torch.tensor([0, 1])
    >>> W, U = initial_weights(n_w=4, K=2, L=2, d=3, seed=0, scale=0.1)
    >>> order = torch.Generator().manual_seed(0)
    >>> sentence_sgd(W, U, x, y, 1e-3, 0.5, batch_size=2, steps=300, generator=order)
    >>> full_batch_risk(SentenceSet(x, 4), y, lam=1e-3)(W, U).item() < 0.1  # from log 2
    True
    """
    positive_integers(batch_size=batch_size, every=every)
    if x.device.type == "cuda":
        with rounding_to_tf32(tf32):
            _sgd_in_place(W, U, x, y, lam, learning_rate, batch_size, steps, generator, normalize, callback, every)
        return
    N, flat = x.shape[0], U.view(U.shape[0], -1)
    order, position = torch.randperm(N, generator=generator), 0
    decay = 1 - learning_rate * lam
    for step in range(1, steps + 1):
        if position >= N:
            order, position = torch.randperm(N, generator=generator), 0
        batch = order[position : position + batch_size].to(x.device)
        position += batch_size
        words, inverse = x[batch].unique(return_inverse=True)
        with torch.enable_grad():
            rows = W[words].requires_grad_()
            features = layer_norm(rows) if normalize else rows
        E = F.embedding(inverse, features.detach()).flatten(1)
        D = torch.softmax(E @ flat.T, 1)
        D[torch.arange(len(batch), device=D.device), y[batch]] -= 1
        D /= len(batch)
        dE = (D @ flat).view(-1, W.shape[1])
        d_features = torch.zeros_like(rows).index_add_(0, inverse.flatten(), dE)
        d_rows = torch.autograd.grad(features, rows, d_features)[0] if normalize else d_features
        torch.addmm(flat, D.T, E, beta=decay, alpha=-learning_rate, out=flat)
        if not normalize:
            W.mul_(decay)
        W.index_add_(0, words, d_rows, alpha=-learning_rate)
        if callback is not None and step % every == 0:
            callback(step)


_DRAWN = 2**20  # how many places of orders go to a GPU at a time


def _sgd_in_place(
    W, U, x, y, lam, learning_rate, batch_size, steps, generator, normalize, callback, every, unroll=10
) -> None:
    """:func:`sentence_sgd` by steps that can be recorded; between callbacks nothing waits for the device."""
    N, device, flat = len(x), x.device, U.view(len(U), -1)
    full, per_epoch = N // batch_size, -(-N // batch_size)
    every = steps if callback is None else every  # nobody looks in between
    sentences, classes = torch.empty_like(x), torch.empty_like(y)  # in the order of this epoch
    batch = torch.arange(batch_size, device=device)  # their places that come next

    def descend(words, labels):
        _descend(W, flat, words, labels, 1 - learning_rate * lam, learning_rate / len(words), normalize)

    def step():
        descend(sentences.index_select(0, batch), classes.index_select(0, batch))
        batch.add_(batch_size)

    advance, orders, done = recorded(step, device, unroll), [], 0
    while done < steps:
        position = done % per_epoch
        if position == 0:
            if not orders:
                epochs = min(-(-(steps - done) // per_epoch), max(1, _DRAWN // N))
                drawn = torch.stack([torch.randperm(N, generator=generator) for _ in range(epochs)])
                drawn = drawn.pin_memory() if device.type == "cuda" else drawn  # to be copied while the device works
                orders = list(drawn.to(device, non_blocking=True))
            order = orders.pop(0)
            torch.index_select(x, 0, order, out=sentences)
            torch.index_select(y, 0, order, out=classes)
            torch.arange(batch_size, out=batch)
        if position == full:  # the rest of the epoch fills no batch
            descend(sentences[full * batch_size :], classes[full * batch_size :])
            made = 1
        else:
            made = min(steps - done, full - position, every - done % every)
            advance(made)
        done += made
        if callback is not None and done % every == 0:
            callback(done)


def _descend(W, flat, words, labels, decay, rate, normalize) -> None:
    """One step on sentences `words: (B, L)`, `labels: (B,)`, no shape in which depends on their values; `rate` is /B.

    The gradient of each word in each place goes to the word's row of `W` by itself.
    """
    (B, _), d = words.shape, W.shape[1]
    rows = W.index_select(0, words.flatten())
    if normalize:
        E, mean, inverse_deviation = torch.native_layer_norm(rows, (d,), None, None, 0.0)
    E = (E if normalize else rows).view(B, -1)
    D = torch.softmax(E @ flat.T, 1).scatter_(1, labels[:, None], -1.0, reduce="add")
    slope = (D @ flat).view(-1, d)
    if normalize:
        slope, _, _ = torch.ops.aten.native_layer_norm_backward(
            slope, rows, (d,), mean, inverse_deviation, None, None, (True, False, False)
        )
    else:
        W.mul_(decay)
    flat.addmm_(D.T, E, beta=decay, alpha=-rate)
    W.index_add_(0, words.flatten(), slope, alpha=-rate)
