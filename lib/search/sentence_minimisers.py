"""Minimisers of the sentence risk: full-batch L-BFGS."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.checks import positive
from lib.data.sentences import SentenceTask
from lib.models.sentences import SentenceSet, full_batch_risk, initial_weights, true_risk, word_features
from lib.search.many_starts import Minima, multistart


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
    scale_invariant: Sequence[int] = (),
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
        Bound on the gradient norm.
    max_evaluations
        Limit on evaluations of loss and gradient; the current round of at most 25 is finished, and the end point
        evaluated.
    scale_invariant
        Positions in `parameters`.

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
    positive(tolerance=tolerance)
    parameters = [parameter.detach().requires_grad_() for parameter in parameters]
    record, start = Minimisation(), time.perf_counter()
    rounds = {"max_iter": 20, "max_eval": 25, "tolerance_grad": 0, "tolerance_change": 0}  # the loop below decides
    optimiser = torch.optim.LBFGS(parameters, **rounds, history_size=20, line_search_fn="strong_wolfe")

    def gradient_norm() -> float:
        squares = 0.0
        for i, parameter in enumerate(parameters):
            length = parameter.detach().norm(dim=-1, keepdim=True) if i in scale_invariant else 1.0
            squares += (parameter.grad * length).square().sum().item()
        return squares**0.5

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(*parameters)
        value.backward()
        record.values.append(value.item())
        record.seconds.append(time.perf_counter() - start)
        if not torch.isfinite(value):
            raise FloatingPointError(f"the loss is {value.item()} after {len(record.values)} evaluations")
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
    return record


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
    start: tuple[Tensor, Tensor] | None = None,
) -> Fit:
    r"""The minimiser of the empirical risk (equation 2; 3 with `normalize`) by full-batch L-BFGS from a random start.

    For `h*` only the directions of the embeddings matter, but their lengths set how fast the directions turn. The
    curvature of the risk along a word's direction grows with how often the word occurs and falls with the square of its
    length, so lengths start proportional to the root of the counts: rare words then turn as fast as frequent ones. They
    start small, because embeddings that turn before the linear layer has fitted them as they are end at lower risk.

    Parameters
    ----------
    x, y
        Sentences `(N, L)` and classes `(N,)`, on the device to compute on.
    n_w, d, lam
        Words, width, weight decay.
    tolerance
        As in :func:`lbfgs`.
    start
        Weights `(W, U)` to start from in place of random ones: with many sentences, those of a fit to a part of them.

    Returns
    -------
    Fit
        Weights in float32.

    Raises
    ------
    ValueError
        If `lam` is not positive: without weight decay the risk of separable data has no minimiser.

    Examples
    --------
    >>> x, y = torch.tensor([[0, 2], [1, 3]]), torch.tensor([0, 1])
    >>> fit = fit_sentences(x, y, n_w=4, d=3, lam=0.01)
    >>> fit.record.value < 0.6931  # log 2, the risk of zero weights
    True
    >>> tuple(fit.features.shape), tuple(fit.U.shape)
    ((4, 3), (2, 2, 3))
    """
    positive(lam=lam)
    W, U = start or initial_weights(n_w, int(y.max()) + 1, x.shape[1], d, seed, scale=1.0)
    W, U = (part.to(x.device, torch.float32, copy=True) for part in (W, U))
    if start is None:
        W *= 0.1
        if normalize:
            counts = torch.bincount(x.flatten(), minlength=n_w).clamp(min=1).to(W)
            W = 0.03 * F.normalize(W, dim=1) * (counts / counts.mean()).sqrt()[:, None]
    risk = full_batch_risk(SentenceSet(x, n_w), y, lam, normalize)
    record = lbfgs(risk, [W, U], tolerance, scale_invariant=[0] if normalize else [])
    return Fit(W, U, normalize, record)


def minimise_true_risk(
    task: SentenceTask, d: int, lam: float, starts: int, seed: int, normalize: bool = False
) -> Minima:
    """Where :func:`lib.search.many_starts.multistart` ends on the true risk of a small task, with weights of width d.

    The parameters of the result are W `(starts, n_w, d)` and U `(starts, K, L, d)`; errors as for the parts.

    >>> from lib.data.sentences import sentence_task
    >>> found = minimise_true_risk(sentence_task(n_c=2, n_w=4, L=1), d=1, lam=0.1, starts=4, seed=0)
    >>> bool(found.values.min() < 0.693)  # log 2, the risk of zero weights
    True
    """
    shapes = [(task.n_w, d), (task.K, task.L, d)]
    return multistart(true_risk(task, lam, normalize), shapes, starts, seed)
