r"""The theory of *Feature Collapse*: the three collapse types, their constants, and a certificate of global optimality.

Symbols as in the paper: `n_c` concepts of `s_c` words each, `n_w = n_c s_c`, sentences of length `L`, `K` classes,
embedding width `d`, weight decay `lam`. Word :math:`(\alpha, \beta)` is row `alpha * s_c + beta` of `W`. All
results are float64.

Source: Laurent, von Brecht & Bresson (2023), section 3 and appendices C to G.
"""

from __future__ import annotations

from math import exp, log, log1p, sqrt

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import brentq, minimize, root
from torch import Tensor

from lib.checks import integers, positive
from lib.data.sentences import checked_frequencies

_RTOL = 4 * np.finfo(float).eps  # the tightest relative tolerance brentq accepts


# --- constants --------------------------------------------------------------------------------------------------------


def type1(n_c: int, n_w: int, L: int, K: int, lam: float) -> tuple[float, float, float]:
    r"""Constants of the type-I collapse of `h` for uniform words, which minimises the risk if :math:`K = n_c^L`.

    .. math::
        \tau = \arg\min_{t \ge 0} H(t), \qquad c = \sqrt{\tau/n_w}, \qquad c' = \sqrt{\tau/(KL)}

    with :math:`H` as in :func:`type1_risk`.

    Source: Theorem 1.

    Returns
    -------
    (tau, c, c_prime)
        :math:`\|\mathbf w\| = c` and :math:`\|\mathbf u_{k,\ell}\| = c'`; all 0 once the weight decay is too strong.

    Raises
    ------
    ValueError
        If `lam` is not positive, `K` exceeds `n_c**L`, or a size is too small or does not fit.

    Examples
    --------
    >>> tau, c, c_prime = type1(n_c=3, n_w=12, L=4, K=5, lam=0.01)
    >>> round(tau, 4), round(12 * c**2, 4), round(5 * 4 * c_prime**2, 4)
    (21.9607, 21.9607, 21.9607)
    >>> type1(n_c=3, n_w=12, L=4, K=5, lam=1.0)  # too strong a decay
    (0.0, 0.0, 0.0)
    """
    _check_task(n_c, L, K, lam, n_w=n_w)
    eta = n_c / (n_c - 1) / sqrt(n_w * K * L)
    tau = _increasing_root(lambda x: lam - eta * _pull(x, n_c, L, K)) / eta
    return tau, sqrt(tau / n_w), sqrt(tau / (K * L))


def type2(n_c: int, L: int, K: int, d: int, lam: float) -> tuple[float, float]:
    r"""Constants of the type-II collapse of `h*` for any frequencies, which minimises the risk if :math:`K = n_c^L`.

    .. math:: \tau = \arg\min_{t \ge 0} H^*(t), \qquad c = \tau/\sqrt{KL}

    with :math:`H^*` as in :func:`type2_risk`. Unlike type-I collapse, it is never trivial: :math:`\tau > 0` for every
    weight decay.

    Source: Theorem 3.

    Returns
    -------
    (tau, c)
        :math:`\|\mathbf u_{k,\ell}\| = c`.

    Raises
    ------
    ValueError
        As for :func:`type1`, and if `d < n_c`, where no mean-zero equiangular frame exists.

    Examples
    --------
    >>> tau, c = type2(n_c=3, L=4, K=5, d=10, lam=0.01)
    >>> round(tau, 4), round(c * (5 * 4) ** 0.5, 4)
    (2.9347, 2.9347)
    """
    _check_task(n_c, L, K, lam)
    integers(n_c, d=d)
    eta = n_c / (n_c - 1) * sqrt(d / (K * L))
    tau = _increasing_root(lambda x: lam * x / eta - eta * _pull(x, n_c, L, K)) / eta
    return tau, tau / sqrt(K * L)


def type3(mu: ArrayLike, n_c: int, L: int, lam: float) -> tuple[float, Tensor]:
    r"""Constants of the type-III collapse that minimises the risk of `h` when all :math:`K = n_c^L` latents are used.

    .. math::
        \frac{\lambda}{L} \frac{r_\beta}{c} \Big(n_c - 1 + e^{\frac{n_c}{n_c-1} c r_\beta}\Big) = \mu_\beta, \qquad
        \sum_\beta \Big(\frac{r_\beta}{c}\Big)^2 = L n_c^{L-1}

    For given :math:`c` the first equation has one root :math:`\rho_\beta = r_\beta/c` for each word. It decreases in
    :math:`c`, so the second equation is monotone in :math:`c`. Both are solved in logarithms, so :math:`n_c^L` far
    beyond 1e300 does no harm.

    Source: Theorem 2, equations (7) to (9); Proposition D.

    Parameters
    ----------
    mu
        Word frequencies `(s_c,)`, positive, summing to 1.

    Returns
    -------
    (c, r)
        :math:`\|\mathbf u_{k,\ell}\| = c` and :math:`\|\mathbf w_{(\alpha,\beta)}\| = r_\beta`, `(s_c,)`.

    Raises
    ------
    ValueError
        For bad frequencies or sizes, and if `lam` is not below :func:`type3_threshold` by more than rounding: from
        there on only the zero solution is left. Close to the threshold c loses digits.

    Examples
    --------
    >>> c, r = type3([0.6, 0.3, 0.1], n_c=3, L=2, lam=0.01)
    >>> round(c, 4), r.round(decimals=4).tolist()  # frequent words are longer
    (1.3076, [2.1686, 1.8779, 1.4248])
    """
    mu = checked_frequencies(mu).numpy()
    positive(lam=lam)
    threshold = type3_threshold(mu, n_c, L)
    if not lam < threshold:
        raise ValueError(f"lam = {lam:g} is outside condition (9): from {threshold:.6g} on zero is the only minimiser")
    slope = n_c / (n_c - 1)
    log_target = log(L) + (L - 1) * log(n_c)
    # with x = log rho: the first equation, in logarithms, is an increasing convex function of x
    log_scale = np.log(mu) + log(L) - log(lam)

    def log_rho(log_y: float) -> np.ndarray:
        """Newton's method from the right, monotone for an increasing convex function; y = c**2."""
        x = log_scale - log(n_c)
        offset = log(slope) + log_y
        for _ in range(500):
            e = np.exp(x + offset)
            total = np.logaddexp(log(n_c - 1), e)
            step = (x + total - log_scale) / (1 + e * np.exp(e - total))
            x = x - step
            if np.abs(step).max() < 1e-15 * max(1.0, np.abs(x).max()):
                break
        return x

    def excess(log_y: float) -> float:
        return log_target - float(np.logaddexp.reduce(2 * log_rho(log_y)))

    if excess(-np.inf) >= 0:
        raise ValueError(f"lam = {lam:g} is within rounding of {threshold:.6g}, where zero becomes the minimiser")
    low, high = -1.0, 1.0
    while excess(low) >= 0:
        low *= 2
    while excess(high) <= 0:
        high *= 2
    log_y = brentq(excess, low, high, xtol=1e-15, rtol=_RTOL)
    r = np.exp(log_rho(log_y) + log_y / 2)
    return exp(log_y / 2), torch.from_numpy(r)


def type3_threshold(mu: ArrayLike, n_c: int, L: int) -> float:
    r"""The weight decay below which (7)-(8) has a solution, :math:`\sqrt{L \sum_\beta \mu_\beta^2 / n_c^{L+1}}`.

    It is also the operator norm of the gradient at zero. `mu`: `(s_c,)`, positive, summing to 1; ValueError otherwise,
    and for `n_c < 2` or `L < 1`. Source: condition (9).

    >>> threshold = type3_threshold([0.5, 0.5], n_c=2, L=2)
    >>> round(threshold**2, 6)  # 2 * 0.5 / 2^3
    0.125
    >>> type3([0.5, 0.5], 2, 2, lam=1.01 * threshold)
    Traceback (most recent call last):
    ValueError: lam = 0.357089 is outside condition (9): from 0.353553 on zero is the only minimiser
    """
    mu = checked_frequencies(mu).numpy()
    integers(2, n_c=n_c)
    integers(1, L=L)
    return exp(0.5 * (log(L) + log(float(mu @ mu)) - (L + 1) * log(n_c)))


def mean_field_type3(mu: ArrayLike, n_c: int, L: int, K: int, lam: float) -> tuple[float, Tensor]:
    r"""Type-III constants for K random latent variables and any word frequencies: an approximation, not the paper's.

    With :math:`\kappa = K/n_c^L`, words :math:`\beta_1, \dots, \beta_L` drawn from `mu`, and the sum over the other
    classes replaced by its mean over random latent variables ("annealed"), the risk of a type-III configuration is

    .. math::
        R(c, r) = \mathbb E_\beta \log\Big(1 - \kappa + \kappa \prod_\ell
        \big(1 + (n_c-1) e^{-\frac{n_c}{n_c-1} c r_{\beta_\ell}}\big)\Big) + \frac\lambda2 \Big(n_c \sum_\beta
        r_\beta^2 + K L c^2\Big).

    It is exact at :math:`K = n_c^L` and equals the :math:`H` of Theorem 1 at equal frequencies. The expectation is a
    sum over characteristic functions (see `_expected_log`), so the result is deterministic and exact to rounding;
    L-BFGS and Newton steps minimise the risk.

    Returns
    -------
    (c, r)
        As :func:`type3`; zeros when nothing beats the zero solution by more than 1e-12.

    Raises
    ------
    ValueError
        For bad frequencies or sizes, `K > n_c**L`, `lam <= 0`.

    Examples
    --------
    >>> mu = [0.6, 0.3, 0.1]
    >>> c, r = mean_field_type3(mu, n_c=3, L=2, K=9, lam=0.01)  # exact, as K = n_c^L
    >>> exact_c, exact_r = type3(mu, n_c=3, L=2, lam=0.01)
    >>> abs(c - exact_c) < 1e-6, bool((r - exact_r).abs().max() < 1e-6)
    (True, True)
    """
    mu = checked_frequencies(mu).numpy()
    _check_task(n_c, L, K, lam)
    slope, balance = n_c / (n_c - 1), sqrt(n_c / (K * L))

    def objective(r: np.ndarray) -> tuple[float, np.ndarray]:
        """R at the best split between W and U, K L c^2 = n_c |r|^2, and its gradient in r."""
        norm = np.linalg.norm(r)
        c = balance * norm
        bump = np.exp(log(n_c - 1) - slope * c * r)
        value, grad_s = _expected_log(np.log1p(bump), mu, n_c, L, K)
        grad_cr = -slope * grad_s * bump / (1 + bump)
        gradient = grad_cr * c + (grad_cr @ r) * balance * r / norm + 2 * lam * n_c * r
        return value + lam * n_c * norm**2, gradient

    at_zero = _log_mixture(L * log(n_c), n_c, L, K)
    uniform = type1(n_c, n_c * len(mu), L, K, lam)[1]
    options = {"maxiter": 3000, "ftol": 0, "gtol": 1e-12, "maxcor": 40}
    starts = [scale * max(uniform, 0.1) * np.sqrt(mu * len(mu)) for scale in (1, 3)]
    ends = [minimize(objective, start, jac=True, method="L-BFGS-B", options=options) for start in starts]
    best = min(ends, key=lambda end: end.fun)
    if best.fun >= at_zero - 1e-12:
        return 0.0, torch.zeros(len(mu), dtype=torch.float64)
    r = root(lambda r: objective(r)[1], best.x, tol=1e-15).x  # values alone give half the digits
    return balance * float(np.linalg.norm(r)), torch.from_numpy(r)


# --- risks along the collapse configurations --------------------------------------------------------------------------


def type1_risk(t: float, n_c: int, n_w: int, L: int, K: int, lam: float) -> float:
    r"""The paper's `H`: for :math:`K = n_c^L` the risk of type-I configurations with :math:`n_w c^2 = KL c'^2 = t`.

    .. math::
        H(t) = \log\Big(1 - \frac{K}{n_c^L} + \frac{K}{n_c^L}\big(1 + (n_c-1)e^{-\eta t}\big)^L\Big) + \lambda t,
        \qquad \eta = \frac{n_c}{n_c-1}\frac{1}{\sqrt{n_w K L}}

    Raises ValueError as :func:`type1`. Source: Theorem 1, Lemma K.

    >>> tau = type1(n_c=3, n_w=12, L=4, K=5, lam=0.01)[0]
    >>> risk = lambda t: type1_risk(t, n_c=3, n_w=12, L=4, K=5, lam=0.01)
    >>> [round(risk(t), 4) for t in (0, tau / 2, tau, 2 * tau)]  # least at tau
    [1.7814, 0.4763, 0.2998, 0.4465]
    """
    _check_task(n_c, L, K, lam, n_w=n_w)
    eta = n_c / (n_c - 1) / sqrt(n_w * K * L)
    return _log_mixture(L * log1p((n_c - 1) * exp(-eta * t)), n_c, L, K) + lam * t


def type2_risk(t: float, n_c: int, L: int, K: int, d: int, lam: float) -> float:
    r"""The paper's `H*`: for :math:`K = n_c^L` the risk of type-II configurations with :math:`KL c^2 = t^2`.

    .. math::
        H^*(t) = \log\Big(1 - \frac{K}{n_c^L} + \frac{K}{n_c^L}\big(1 + (n_c-1)e^{-\eta^* t}\big)^L\Big)
        + \frac\lambda2 t^2, \qquad \eta^* = \frac{n_c}{n_c-1}\sqrt{\frac{d}{KL}}

    Raises ValueError as :func:`type2`. Source: Theorem 3, Lemma R.

    >>> tau = type2(n_c=3, L=4, K=5, d=10, lam=0.01)[0]
    >>> risk = lambda t: type2_risk(t, n_c=3, L=4, K=5, d=10, lam=0.01)
    >>> [round(risk(t), 4) for t in (0, tau / 2, tau, 2 * tau)]  # least at tau
    [1.7814, 0.1852, 0.0678, 0.1732]
    """
    _check_task(n_c, L, K, lam)
    integers(n_c, d=d)
    eta = n_c / (n_c - 1) * sqrt(d / (K * L))
    return _log_mixture(L * log1p((n_c - 1) * exp(-eta * t)), n_c, L, K) + lam * t**2 / 2


# --- the configurations -----------------------------------------------------------------------------------------------


def equiangular(n_c: int, d: int, mean_zero: bool = False, seed: int = 0) -> Tensor:
    r"""A randomly oriented equiangular frame :math:`\mathbf f_1, \dots, \mathbf f_{n_c}`, as rows `(n_c, d)`.

    .. math:: \sum_\alpha \mathbf f_\alpha = 0, \qquad \|\mathbf f_\alpha\| = 1,
        \qquad \langle \mathbf f_\alpha, \mathbf f_{\alpha'} \rangle = -1/(n_c-1) \;\; (\alpha \ne \alpha')

    With `mean_zero` also :math:`\langle \mathbf f_\alpha, \mathbf 1_d \rangle = 0`, as LayerNorm requires.

    Raises ValueError if `d < n_c - 1`, or `d < n_c` with `mean_zero`: no such frame exists. Source: equation (4).

    >>> frame = equiangular(n_c=3, d=5)
    >>> (frame @ frame.T).round(decimals=6).tolist()
    [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
    """
    integers(2, n_c=n_c)
    integers(n_c if mean_zero else n_c - 1, d=d)
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((d, n_c - 1))
    if mean_zero:
        basis -= basis.mean(0)
    basis = np.linalg.qr(basis)[0]  # (d, n_c - 1), orthonormal columns
    if mean_zero:  # made orthogonal to 1 again: nearly dependent columns lose digits
        basis = np.linalg.qr(basis - basis.mean(0))[0]
    corners = np.c_[np.ones(n_c), rng.standard_normal((n_c, n_c - 1))]
    simplex = np.linalg.qr(corners)[0][:, 1:]  # rows: a regular simplex
    return torch.from_numpy(sqrt(n_c / (n_c - 1)) * simplex @ basis.T)


def type1_weights(latents: Tensor, s_c: int, frame: Tensor, c: float, c_prime: float) -> tuple[Tensor, Tensor]:
    r"""Weights of type-I collapse.

    .. math:: \mathbf w_{(\alpha,\beta)} = c\,\mathbf f_\alpha, \qquad \mathbf u_{k,\ell} = c'\,\mathbf f_{z_{k,\ell}}

    `latents`: `(K, L)`, `frame`: `(n_c, d)`. Returns `W: (n_c s_c, d)`, `U: (K, L, d)`. Source: Definition 1.

    >>> latents, frame = torch.tensor([[0, 1], [1, 1]]), equiangular(n_c=2, d=4)
    >>> W, U = type1_weights(latents, s_c=3, frame=frame, c=2.0, c_prime=0.5)
    >>> tuple(W.shape), tuple(U.shape)
    ((6, 4), (2, 2, 4))
    >>> bool((W[0] == W[2]).all())  # words of one concept coincide
    True
    """
    return type3_weights(latents, frame, c_prime, torch.full((s_c,), float(c), dtype=torch.float64))


def type2_weights(latents: Tensor, s_c: int, frame: Tensor, c: float) -> tuple[Tensor, Tensor]:
    r"""Weights of type-II collapse.

    .. math:: \varphi(\mathbf w_{(\alpha,\beta)}) = \sqrt d\,\mathbf f_\alpha,
        \qquad \mathbf u_{k,\ell} = c\,\mathbf f_{z_{k,\ell}}

    `frame` is mean-zero. Among all embeddings with these features, those with :math:`\varphi(\mathbf w) = \mathbf w`
    are returned. Shapes as :func:`type1_weights`. Source: Definition 2.

    >>> latents, frame = torch.tensor([[0, 1], [2, 1]]), equiangular(n_c=3, d=4, mean_zero=True)
    >>> W, U = type2_weights(latents, s_c=3, frame=frame, c=0.5)
    >>> W.norm(dim=1).round(decimals=6).unique().tolist()  # the square root of d
    [2.0]
    """
    return type1_weights(latents, s_c, frame, sqrt(frame.shape[1]), c)


def type3_weights(latents: Tensor, frame: Tensor, c: float, r: Tensor) -> tuple[Tensor, Tensor]:
    r"""Weights of type-III collapse.

    .. math:: \mathbf w_{(\alpha,\beta)} = r_\beta\,\mathbf f_\alpha,
        \qquad \mathbf u_{k,\ell} = c\,\mathbf f_{z_{k,\ell}}

    `r`: `(s_c,)`. Shapes as :func:`type1_weights`. Source: Definition 3.

    >>> latents, r = torch.tensor([[0, 1], [1, 1]]), torch.tensor([2.0, 1.0])
    >>> W, U = type3_weights(latents, equiangular(n_c=2, d=4), c=0.5, r=r)
    >>> W.norm(dim=1).round(decimals=6).tolist()
    [2.0, 1.0, 2.0, 1.0]
    >>> U.norm(dim=2).round(decimals=6).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    W = frame[:, None, :] * torch.as_tensor(r, dtype=frame.dtype, device=frame.device)[None, :, None]
    return W.flatten(0, 1), c * frame[latents]


def collapse_deviation(V: Tensor, U: Tensor, latents: Tensor, c: float, r: Tensor) -> float:
    r"""How far word features and linear weights are from a type-III configuration with the constants `c` and `r`.

    It is the largest entry, in absolute value, of :math:`\mathbf v_{(\alpha,\beta)}/r_\beta - \mathbf f_\alpha`, of
    :math:`\mathbf u_{k,\ell}/c - \mathbf f_{z_{k,\ell}}`, and of the difference between the Gram matrix of the
    :math:`\mathbf f_\alpha` and that of an equiangular frame, where :math:`\mathbf f_\alpha = \sum_\beta r_\beta
    \mathbf v_{(\alpha,\beta)} / \sum_\beta r_\beta^2`. For `c = 0` it is the largest absolute entry of the weights.

    Type I is the case of equal `r`; for type II pass :math:`\varphi(W)` and :math:`r_\beta = \sqrt d`. Shapes as
    :func:`type3_weights`.

    >>> latents, r = torch.tensor([[0, 1], [2, 1]]), torch.tensor([2.0, 1.0])
    >>> W, U = type3_weights(latents, equiangular(n_c=3, d=4), c=0.5, r=r)
    >>> collapse_deviation(W, U, latents, c=0.5, r=r) < 1e-12
    True
    >>> collapse_deviation(W, U, latents, c=0.5, r=r.flip(0)) > 0.1
    True
    """
    if c == 0:
        return float(torch.cat([V.flatten(), U.flatten()]).abs().max())
    r = torch.as_tensor(r, dtype=V.dtype, device=V.device)
    words = V.unflatten(0, (-1, len(r)))  # (n_c, s_c, d)
    n_c = len(words)
    frame = torch.einsum("b,abd->ad", r, words) / (r @ r)
    gram = (n_c * torch.eye(n_c, dtype=V.dtype, device=V.device) - 1) / (n_c - 1)
    parts = (words / r[:, None] - frame[:, None, :], U / c - frame[latents], frame @ frame.T - gram)
    return float(torch.cat([part.flatten() for part in parts]).abs().max())  # nan if one entry is


# --- numerical helpers ------------------------------------------------------------------------------------------------


def _pull(x: float, n_c: int, L: int, K: int) -> float:
    r"""Minus the derivative of :math:`\log(1 - \kappa + \kappa(1 + (n_c-1)e^{-x})^L)` in x, without overflow."""
    bump = (n_c - 1) * exp(-x)
    log_base = log1p(bump)
    return L * bump * exp(log(K) - L * log(n_c) + (L - 1) * log_base - _log_mixture(L * log_base, n_c, L, K))


def _log_mixture(s: float, n_c: int, L: int, K: int) -> float:
    r""":math:`\log(1 - \kappa + \kappa e^s)` with :math:`\kappa = K/n_c^L`."""
    log_kappa = log(K) - L * log(n_c)
    if n_c**L == K:
        return s
    return float(np.logaddexp(log1p(-exp(log_kappa)), log_kappa + s))


def _increasing_root(function) -> float:
    """The root on [0, oo) of an increasing function that is eventually positive; 0 if it is not negative at 0."""
    if function(0.0) >= 0:
        return 0.0
    high = 1.0
    while function(high) <= 0:
        high *= 2
    return brentq(function, 0.0, high, xtol=1e-300, rtol=_RTOL, maxiter=1000)


def _expected_log(s: np.ndarray, mu: np.ndarray, n_c: int, L: int, K: int) -> tuple[float, np.ndarray]:
    r""":math:`\mathbb E\log(1 - \kappa + \kappa e^{S})` and its gradient in s.

    :math:`S = s_{\beta_1} + \dots + s_{\beta_L}` with independent words of frequencies `mu`.

    The logarithm is :math:`\log(1-\kappa) + u/2 + \log 2\cosh(u/2)` at :math:`u = S - S_0`. The second derivative of
    the last term is :math:`\frac14\operatorname{sech}^2(u/2)`, whose Fourier transform :math:`\pi\omega/\sinh\pi\omega`
    decays so fast that a few hundred frequencies of a periodic continuation (period far beyond the range of S) are
    exact to rounding.
    """
    if n_c**L == K:
        return L * float(mu @ s), L * mu
    log_kappa = log(K) - L * log(n_c)
    log_rest = log1p(-exp(log_kappa))
    centre = log_rest - log_kappa
    period = 2 * (max(abs(centre), abs(L * log(n_c) - centre)) + 40)
    omega = 2 * np.pi / period * np.arange(1, 13 * period / (2 * np.pi), 2)
    weight = 4 * np.pi / (period * omega * np.sinh(np.pi * omega))
    waves = np.exp(1j * np.outer(omega, s))
    one_word = waves @ mu
    tail = weight * np.exp(-1j * omega * centre) * one_word ** (L - 1)
    value = log_rest + (L * (mu @ s) - centre) / 2 + period / 8 - float((tail * one_word).real.sum())
    gradient = L * mu * (0.5 + ((tail * omega) @ waves).imag)
    return value, gradient


# --- argument checks --------------------------------------------------------------------------------------------------


def _check_task(n_c: int, L: int, K: int, lam: float, n_w: int | None = None) -> None:
    integers(2, n_c=n_c)
    integers(1, L=L, K=K)
    positive(lam=lam)
    if n_c**L < K:
        raise ValueError(f"K = {K}: there are only n_c**L = {n_c}**{L} = {n_c**L} distinct latent variables")
    if n_w is not None and (n_w < n_c or n_w % n_c):
        raise ValueError(f"n_w = {n_w}: must be a positive multiple of n_c = {n_c}")
