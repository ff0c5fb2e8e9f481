"""Minimisers of the sentence risk, searched in networks that are narrower than those they are for."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.search.sentence_minimisers import Fit, fit_sentences

_MANY = 20_000  # sentences, of which a part is fitted first


def widen(W: Tensor, U: Tensor, d: int, normalize: bool = False) -> tuple[Tensor, Tensor]:
    r"""The same scores from a network of width d: `W: (n_w, d)` and `U: (K, L, d)` from widths n up to d.

    `h` gets zeros. For `h*`, where LayerNorm takes lengths to :math:`\sqrt n`, the centred vectors are turned into d
    dimensions and U becomes shorter:

    .. math:: W' = W B_n B_d^T, \qquad U' = \sqrt{n/d}\; U B_n B_d^T,

    where :math:`B_m`, `(m, n - 1)`, has orthonormal columns whose entries add up to zero. So narrow networks
    with weight decay :math:`\lambda n/d` have the risk of wide ones with :math:`\lambda`, once the rows of U are
    centred, which the decay sees to.

    Raises ValueError if the network is wider than d.

    >>> W, U = widen(torch.tensor([[1.0, 3.0, 5.0]]), torch.ones(1, 1, 3), d=5)
    >>> W.tolist()
    [[1.0, 3.0, 5.0, 0.0, 0.0]]
    """
    n = W.shape[1]
    if n > d:
        raise ValueError(f"d = {d}: the network has width {n}, which is more")
    if n == d:
        return W, U
    if normalize:
        turn = (_centred(n, n - 1) @ _centred(d, n - 1).T).to(W)
        return W @ turn, (n / d) ** 0.5 * U @ turn
    return torch.nn.functional.pad(W, (0, d - n)), torch.nn.functional.pad(U, (0, d - n))


def _centred(m: int, columns: int) -> Tensor:
    centring = torch.eye(m, dtype=torch.float64) - 1 / m
    return torch.linalg.qr(centring[:, :columns])[0]


def fit_narrow(
    x: Tensor, y: Tensor, n_w: int, d: int, lam: float, normalize: bool, seed: int, tolerance: float, narrow: int
) -> Fit:
    r"""The minimiser of the empirical risk at width d, searched at the width `narrow`.

    Risk and arguments are those of :func:`~lib.search.sentence_minimisers.fit_sentences`.

    More than 20,000 sentences are first fitted roughly by every fifth of them. `h` is returned as narrow as it was
    found: the risk depends on :math:`W U_\ell^T` alone, so a minimiser over all widths of rank up to `narrow` is found
    in networks of this width, and :func:`lib.theory.certificates.optimality_gap` tells how close the result is. `h*` is
    searched with weight decay in proportion to the width and returned wide (:func:`widen`), which makes it a critical
    point of the wide network, not surely a minimiser.

    >>> x, y = torch.tensor([[0, 2], [1, 3]]), torch.tensor([0, 1])
    >>> fit = fit_narrow(x, y, n_w=4, d=8, lam=0.01, normalize=True, seed=0, tolerance=1e-3, narrow=3)
    >>> tuple(fit.W.shape), tuple(fit.U.shape)
    ((4, 8), (2, 2, 8))
    """
    network, start = (n_w, narrow, lam * narrow / d if normalize else lam, normalize, seed), None
    if len(x) > _MANY:
        part = fit_sentences(x[::5], y[::5], *network, 4 * tolerance)
        start = part.W, part.U
    fit = fit_sentences(x, y, *network, tolerance, start=start)
    return Fit(*widen(fit.W, fit.U, d, normalize), normalize, fit.record) if normalize else fit
