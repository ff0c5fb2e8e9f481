"""The SGD of *Feature Collapse*."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.checks import positive_integers
from lib.models.sentences import word_features
from lib.training.cuda_graphs import recorded

_DRAWN = 2**20  # how many entries of orders are drawn, and go to the device, at a time


class SentenceSGD(NamedTuple):
    """Settings of :func:`sentence_sgd`; the paper's first three are 0.001, 0.1 and 100. `normalize` is for `h*`."""

    weight_decay: float
    learning_rate: float
    batch_size: int
    steps: int
    normalize: bool = False


@torch.no_grad()
def sentence_sgd(
    W: Tensor,
    U: Tensor,
    x: Tensor,
    y: Tensor,
    settings: SentenceSGD,
    generator: torch.Generator,
    callback: Callable[[int], None] | None = None,
    every: int = 1,
) -> None:
    r"""The SGD of *Feature Collapse*: constant learning rate, weight decay, every sentence once per epoch.

    Changes `W: (n_w, d)` and `U: (K, L, d)` in place by steps on :func:`lib.models.sentences.empirical_risk` of
    batches of `x: (N, L)`, `y: (N,)`. The linear layer's gradient, decay and update are one fused matrix product.
    Orders are drawn on the CPU, so that a seed gives the same ones on every device; where the batch size does not
    divide N, the last batch of an epoch is smaller.

    A GPU replays recorded steps (:mod:`lib.training.cuda_graphs`) and reads nothing back between two calls of
    `callback`, so `every` should be large. A GPU adds up the gradient of a word in no fixed order, so that two runs
    differ by rounding. Source: section 2.

    Parameters
    ----------
    W, U, x, y
        All on the device to compute on.
    generator
        Draws the orders, on the CPU.
    callback, every
        `callback(step)` is called after each `every` steps.

    Raises
    ------
    ValueError
        If the batch size or `every` is no positive integer.

    Examples
    --------
    >>> x, y = torch.tensor([[0, 2], [1, 3]]), torch.tensor([0, 1])
    >>> from lib.models.sentences import SentenceSet, full_batch_risk, initial_weights
    >>> W, U = initial_weights(n_w=4, K=2, L=2, d=3, seed=0, scale=0.1)
    >>> settings = SentenceSGD(weight_decay=1e-3, learning_rate=0.5, batch_size=2, steps=300)
    >>> sentence_sgd(W, U, x, y, settings, torch.Generator().manual_seed(0))
    >>> full_batch_risk(SentenceSet(x, 4), y, lam=1e-3)(W, U).item() < 0.1  # from log 2
    True
    """
    size, steps = settings.batch_size, settings.steps
    positive_integers(batch_size=size, every=every)
    N, device = len(x), x.device
    full, per_epoch = N // size, -(-N // size)
    every = steps if callback is None else every  # nobody looks in between
    sentences, classes = torch.empty_like(x), torch.empty_like(y)  # in the order of this epoch
    batch = torch.arange(size, device=device)  # positions of the next batch in them

    def step():
        _step(W, U, sentences.index_select(0, batch), classes.index_select(0, batch), settings)
        batch.add_(size)

    advance, orders, done = recorded(step, device), [], 0
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
            torch.arange(size, out=batch)
        if position == full:  # the rest of the epoch does not fill a batch
            _step(W, U, sentences[full * size :], classes[full * size :], settings)
            made = 1
        else:
            made = min(steps - done, full - position, every - done % every)
            advance(made)
        done += made
        if callback is not None and done % every == 0:
            callback(done)


def _step(W: Tensor, U: Tensor, words: Tensor, labels: Tensor, settings: SentenceSGD) -> None:
    """One step on sentences `words: (B, L)`, `labels: (B,)`.

    No shape depends on which words occur: a GPU that records the step could not know it. LayerNorm therefore takes the
    whole vocabulary, which costs little compared with the products of the linear layer.
    """
    flat, decay = U.view(len(U), -1), 1 - settings.learning_rate * settings.weight_decay
    with torch.enable_grad():
        rows = W.detach().requires_grad_()
        features = word_features(rows, settings.normalize)
    E = F.embedding(words, features.detach()).flatten(1)
    D = torch.softmax(E @ flat.T, 1)  # minus the labels, over B: the slope of the mean cross-entropy in the scores
    D.scatter_(1, labels[:, None], -1.0, reduce="add").div_(len(words))
    slope = torch.zeros_like(W).index_add_(0, words.flatten(), (D @ flat).view(-1, W.shape[1]))
    torch.addmm(flat, D.T, E, beta=decay, alpha=-settings.learning_rate, out=flat)
    if settings.normalize:
        (slope,) = torch.autograd.grad(features, rows, slope)
    else:
        W.mul_(decay)
    W.add_(slope, alpha=-settings.learning_rate)
