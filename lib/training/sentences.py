"""The SGD of *Feature Collapse*, and plain gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.checks import positive_integers
from lib.models.sentences import layer_norm
from lib.training.cuda_graphs import recorded, rounding_to_tf32


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

    A GPU replays recorded steps (:mod:`lib.training.cuda_graphs`) and reads nothing back between two calls of `callback`, which
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
    >>> from lib.models.sentences import SentenceSet, full_batch_risk, initial_weights
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
