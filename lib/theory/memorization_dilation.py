r"""The memorization-dilation model of Nguyen et al. for two classes, as a problem that one can solve.

Everything happens in the plane of the class means. With :math:`\lambda = \lambda_H`,
:math:`\kappa = \sqrt{\lambda_W\lambda_H/2}` and :math:`f(t) = \log(1 + e^t) - \frac\alpha2 t`, the configuration that
solves Assumption 4.2 (1) has

.. math::
    \langle w_1 - w_2, h_1\rangle = s = \log\frac{1 - \alpha/2 - 2\kappa}{\alpha/2 + 2\kappa}, \qquad
    \|h_n\|^2 = \rho^2 = s\sqrt{\lambda_W/(2\lambda_H)},

orthogonal means at the distance :math:`D = \sqrt2\rho`, and
:math:`w_2 - w_1 = \sqrt{2\lambda_H/\lambda_W}\,(h_2 - h_1)`. Only :math:`s, \kappa, \alpha`, the noise level,
:math:`y = r/r_{\max}`, :math:`r_{\max}/\rho` and the law of one coordinate of :math:`\mu_r` then matter. All functions
take arrays of parameters that broadcast against each other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, roots_jacobi

from lib.checks import integers

#: Arrays of float64, of any shape.
Array = NDArray[np.float64]


class Model(NamedTuple):
    r"""A problem :math:`\mathcal{MD}` (Definition 4.1), all fields of one shape `(...)`; see :func:`model`.

    lam_w, lam_h, alpha, eta, C_MD
        The parameters; the paper's :math:`\lambda` is `lam_h`.
    s
        The margin :math:`\langle w_1 - w_2, h_1\rangle > 0` of a clean sample.
    rho, distance
        :math:`\|h_1\| = \|h_2\|` and :math:`D = \|h_1 - h_2\| = \sqrt2\rho`.
    alignment
        The factor in :math:`w_2 - w_1 = \text{alignment}\cdot(h_2 - h_1)`.
    r_max
        :math:`\eta D^2/C_{MD}`, the dilation from which on :math:`u_1 = h_1` is feasible.
    p
        :math:`\sqrt{2\eta}\,D/C_{MD}`. For cross-entropy, Assumption 4.2 (3) reads :math:`p < 1 - 1/\gamma`.
    """

    lam_w: Array
    lam_h: Array
    alpha: Array
    eta: Array
    C_MD: Array
    s: Array
    rho: Array
    distance: Array
    alignment: Array
    r_max: Array
    p: Array


def model(lam_w: ArrayLike, lam_h: ArrayLike, alpha: ArrayLike, eta: ArrayLike, C_MD: ArrayLike) -> Model:
    r"""The problem of Definition 4.1 around the configuration of Assumption 4.2 (1).

    Arguments broadcast. A share of noisy labels is at most 1, but the definition admits every eta > 0. ValueError when
    alpha is outside [0, 1), eta, a weight decay or `C_MD` is not positive (without noise there is nothing to memorise),
    or :math:`\alpha + 2\sqrt{2\lambda_W\lambda_H} \ge 1`, where the features are zero.

    >>> problem = model(lam_w=0.01, lam_h=0.01, alpha=0.0, eta=0.1, C_MD=1.0)
    >>> round(float(problem.s), 4), round(float(problem.rho), 4)
    (4.2444, 1.7324)
    >>> round(float(problem.distance), 4), round(float(problem.r_max), 4)
    (2.45, 0.6002)
    """
    given = (np.asarray(value, dtype=float) for value in (lam_w, lam_h, alpha, eta, C_MD))
    lam_w, lam_h, alpha, eta, C_MD = np.broadcast_arrays(*given)
    for name, value in (("eta", eta), ("C_MD", C_MD)):
        _require(name, value, (value > 0) & np.isfinite(value), "a positive number is needed")
    s = margin(lam_w, lam_h, alpha)
    alignment = np.sqrt(2 * lam_h / lam_w)
    rho = np.sqrt(s / alignment)
    distance = math.sqrt(2) * rho
    r_max, p = eta * distance**2 / C_MD, np.sqrt(2 * eta) * distance / C_MD
    return Model(lam_w, lam_h, alpha, eta, C_MD, s, rho, distance, alignment, r_max, p)


def margin(lam_w: ArrayLike, lam_h: ArrayLike, alpha: ArrayLike = 0.0) -> Array:
    r""":math:`s = \log\frac{1 - \theta}{\theta}` with :math:`\theta = \frac\alpha2 + \sqrt{2\lambda_W\lambda_H}`.

    The margin of the two-class minimiser of Assumption 4.2 (1), `(...)` for arguments that broadcast. ValueError as for
    :func:`model`.

    >>> theta = math.sqrt(2 * 0.01 * 0.01)
    >>> bool(np.isclose(margin(0.01, 0.01), math.log(1 / theta - 1)))
    True
    >>> bool(margin(0.01, 0.01, alpha=0.1) < margin(0.01, 0.01))  # smoothing shrinks it
    True
    """
    lam_w, lam_h, alpha = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (lam_w, lam_h, alpha)))
    for name, value in (("lam_w", lam_w), ("lam_h", lam_h)):
        _require(name, value, (value > 0) & np.isfinite(value), "a positive number is needed")
    _require("alpha", alpha, (alpha >= 0) & (alpha < 1), "label smoothing in [0, 1) is needed")
    theta = alpha / 2 + math.sqrt(2) * np.sqrt(lam_w) * np.sqrt(lam_h)
    if np.any(theta >= 0.5):
        worst = np.unravel_index(np.argmax(theta), theta.shape)
        raise ValueError(
            f"lam_w={lam_w[worst]:g}, lam_h={lam_h[worst]:g}, alpha={alpha[worst]:g}: the optimal features are zero, "
            f"because alpha + 2 sqrt(2 lam_w lam_h) = {2 * theta[worst]:g} is not below 1"
        )
    return np.log1p(-theta) - np.log(theta)


def norm_ratio(lam_w: ArrayLike, lam_h: ArrayLike, alpha: ArrayLike) -> Array:
    r""":math:`\gamma = \|H^{CE}\|/\|H^{LS}\| = \sqrt{s(0)/s(\alpha)}` (equation 6). ValueError as :func:`model`.

    >>> [round(float(norm_ratio(0.01, 0.01, alpha)), 4) for alpha in (0.0, 0.1)]
    [1.0, 1.2584]
    """
    return np.sqrt(margin(lam_w, lam_h, 0.0) / margin(lam_w, lam_h, alpha))


def embed(problem: Model, M: int, seed: int = 0) -> tuple[Array, Array]:
    """The configuration in R^M: (W, H) with rows `w_n` and `h_n`, both of shape (2, M), for a problem of shape ().

    The means are non-negative with random disjoint supports that fill all coordinates. ValueError when M < 2 or the
    problem is an array of problems.

    >>> problem = model(0.01, 0.01, 0.0, 0.1, 1.0)
    >>> W, H = embed(problem, M=4)
    >>> bool(np.isclose(np.linalg.norm(H[0]), problem.rho))
    True
    >>> bool(np.isclose((W[0] - W[1]) @ H[0], problem.s))
    True
    """
    integers(2, M=M)
    if np.ndim(problem.s):
        raise ValueError(f"a problem of shape {np.shape(problem.s)}: one problem, of shape (), is needed")
    rng = np.random.default_rng(seed)
    first = rng.permutation(M) < rng.integers(1, M)
    H = np.stack([first, ~first]) * rng.uniform(0.1, 1.0, M)
    H *= problem.rho / np.linalg.norm(H, axis=1, keepdims=True)
    return problem.alignment * (H - H.mean(axis=0)), H


# --- the distributions mu_r ---


class Law(NamedTuple):
    r"""The law of :math:`z` in :math:`\mu_r = \mathrm{law}(rz)`: mean 0, :math:`E\|z\|^2 = 1`, :math:`\|z\| \le A`.

    nodes, weights
        Quadrature, along the last axis, of the law of :math:`\xi = \langle z, h_2 - h_1\rangle/D`; the risk depends on
        the law only through this and :math:`E\|z\|^2`. `weights` sum to 1.
    A
        The constant of Assumption 4.2 (2). An array gives one law for each problem.
    """

    nodes: Array
    weights: Array
    A: ArrayLike


def sphere(M: int, points: int = 64) -> Law:
    r"""The uniform law on the unit sphere of R^M, A = 1; :math:`\xi` has density :math:`\propto (1 - x^2)^{(M-3)/2}`.

    It is given by a quadrature with `points` nodes. ValueError for M < 2.

    >>> law = sphere(M=5)
    >>> # the variance of a coordinate, 1/M
    >>> round(float((law.weights * law.nodes**2).sum()), 6)
    0.2
    """
    integers(2, M=M)
    return _round((M - 3) / 2, 1.0, points)


def ball(M: int, points: int = 64) -> Law:
    r"""The uniform law on a ball of R^M with :math:`E\|z\|^2 = 1`, so that :math:`A = \sqrt{(M+2)/M}` is its radius.

    It is given by a quadrature with `points` nodes. ValueError for M < 2.

    >>> law = ball(M=5)
    >>> round(float((law.weights * law.nodes**2).sum()), 6), round(law.A**2, 6)
    (0.2, 1.4)
    """
    integers(2, M=M)
    return _round((M - 1) / 2, math.sqrt((M + 2) / M), points)


def _round(power: float, radius: float, points: int) -> Law:
    nodes, weights = roots_jacobi(points, power, power)
    return Law(radius * nodes, weights / weights.sum(), radius)


def two_point(cosine: float = 1.0) -> Law:
    r"""Two points :math:`\pm z` with :math:`\|z\| = 1` at an angle with the given cosine to :math:`h_2 - h_1`; A = 1.

    >>> law = two_point()
    >>> law.nodes.tolist(), law.weights.tolist()
    ([-1.0, 0.0, 1.0], [0.5, 0.0, 0.5])
    """
    return three_point(1.0, cosine)


def three_point(A: ArrayLike, cosine: float = 1.0) -> Law:
    r"""Points :math:`\pm Az` of mass :math:`1/(2A^2)` each, :math:`\|z\| = 1`, and 0 with the rest of the mass; A >= 1.

    ValueError when A < 1, which no law with :math:`E\|z\|^2 = 1` allows, or the cosine is outside [-1, 1]. An array
    `A: (...)` gives nodes and weights `(..., 3)`.

    >>> law = three_point(A=2.0)
    >>> law.nodes.tolist(), law.weights.tolist()
    ([-2.0, 0.0, 2.0], [0.125, 0.75, 0.125])
    """
    A = _reach(A)
    if not -1 <= cosine <= 1:
        raise ValueError(f"cosine = {cosine!r}: a number in [-1, 1] is needed")
    mass = 1 / (2 * A**2)
    return Law(_wide(A * cosine) * np.array([-1.0, 0.0, 1.0]), np.stack([mass, 1 - 2 * mass, mass], -1), A)


def skewed(A: ArrayLike) -> Law:
    r"""The point A with mass :math:`1/(1 + A^2)`, towards the other class, and :math:`-1/A` with the rest; A >= 1.

    ValueError as :func:`three_point`; `A: (...)` gives nodes and weights `(..., 2)`.

    >>> law = skewed(A=2.0)
    >>> law.nodes.tolist(), law.weights.tolist()
    ([2.0, -0.5], [0.2, 0.8])
    >>> bool(np.isclose(law.nodes**2 @ law.weights, 1))  # the variance
    True
    """
    A = _reach(A)
    mass = 1 / (1 + A**2)
    return Law(np.stack([A, -1 / A], -1), np.stack([mass, 1 - mass], -1), A)


def _reach(A: ArrayLike) -> Array:
    A = np.asarray(A, dtype=float)
    _require("A", A, (A >= 1) & np.isfinite(A), "a finite number of at least 1 is needed, as E|z|^2 = 1 and |z| <= A")
    return A


# --- the two parts of the risk ---


def clean_risk(problem: Model, law: Law, r: ArrayLike) -> Array:
    r""":math:`F_{\lambda,\alpha}(W, H, r)`, the risk of the clean samples of both classes at dilation `r`.

    :math:`2\,E f(-s + \text{alignment}\,D\,r\,\xi) + 2\lambda(\rho^2 + r^2)`; `r` broadcasts against the problem.
    ValueError when `r` is negative.

    >>> problem = model(0.01, 0.01, 0.0, 0.1, 1.0)
    >>> risks = clean_risk(problem, sphere(4), [0.0, 0.5, 1.0])
    >>> bool((np.diff(risks) > 0).all())  # dilation costs
    True
    """
    r = _dilation(r)
    scale = problem.alignment * problem.distance * r
    t = _wide(-problem.s) + _wide(scale) * law.nodes
    loss = ((np.logaddexp(0, t) - _wide(problem.alpha) / 2 * t) * law.weights).sum(-1)
    return 2 * (loss + problem.lam_h * (problem.rho**2 + r**2))


def corrupted_features(problem: Model, r: ArrayLike) -> tuple[Array, Array]:
    r"""Coordinates (a, b) of the minimiser :math:`u_1(r) = a h_1 + b h_2` of :math:`(\mathcal P_{u_1})`.

    The problem is convex. Given the multiplier of the constraint, stationarity in :math:`a, b \ge 0` leaves one scalar
    equation; the multiplier is found by bisection on the distance to :math:`h_2`. :math:`u_2(r)` is the mirror image.
    `r` broadcasts against the problem. ValueError when `r` is negative.

    >>> problem = model(0.01, 0.01, 0.0, 0.1, 1.0)
    >>> a, b = corrupted_features(problem, [0.0, float(problem.r_max)])
    >>> a.round(4).tolist(), b.round(4).tolist()  # at h_2 first, at h_1 in the end
    ([0.0, 1.0], [1.0, 0.0])
    """
    r = _dilation(r)
    s, alpha, y = np.broadcast_arrays(problem.s, problem.alpha, r / problem.r_max)
    kappa = np.sqrt(problem.lam_w / 2) * np.sqrt(problem.lam_h)
    low, high = np.log(kappa * s) - 45.0, np.full_like(s, 45.0)
    for _ in range(64):
        middle = (low + high) / 2
        a, b = _pulled(s, alpha, kappa, np.exp(middle))
        far = a**2 + (1 - b) ** 2 > 2 * y**2
        low, high = np.where(far, middle, low), np.where(far, high, middle)
    a, b = _pulled(s, alpha, kappa, np.exp(high))
    ends = [y <= 0, y >= 1]  # where the multiplier is infinite or zero
    return np.select(ends, [0.0, 1.0], a), np.select(ends, [1.0, 0.0], b)


def corrupted_risk(problem: Model, r: ArrayLike) -> Array:
    r""":math:`G_{\lambda,\alpha}(W, U(r), r)` at the best noisy embedding. Arguments as :func:`corrupted_features`.

    >>> problem = model(0.01, 0.01, 0.0, 0.1, 1.0)
    >>> bool(corrupted_risk(problem, 0.0) > corrupted_risk(problem, problem.r_max))
    True
    """
    a, b = corrupted_features(problem, r)
    t = problem.s * (b - a)
    size = problem.lam_h * problem.rho**2 * (a**2 + b**2)
    return 2 * (np.logaddexp(0, t) - problem.alpha / 2 * t + size)


def optimal_dilation(problem: Model, law: Law) -> Array:
    r""":math:`r_*`, the minimiser over r of :math:`F(r) + \eta G(U(r), r)`, in the shape of the problem.

    For a scaled law the problem is jointly convex in (U, r), and strictly in r, so :math:`r_*` is where the derivative
    changes sign. That is where the multiplier that would balance :math:`F'(r)` pulls :math:`u_1` to exactly the
    distance from :math:`h_2` that is allowed at r; one bisection finds this r to 2^-52 of `r_max`. The multiplier loses
    digits as the margin `s` grows: the error is 1e-13 of `r_max` at s = 45, and from 70 on the result is useless.

    >>> smooth = [model(0.01, 0.01, alpha, 0.1, 1.0) for alpha in (0.0, 0.1)]
    >>> r = [float(optimal_dilation(problem, sphere(4))) for problem in smooth]
    >>> r[0] > r[1]  # label smoothing dilates less here
    True
    """
    s, alpha, eta, q = problem.s, problem.alpha, problem.eta, problem.r_max / problem.rho
    kappa = np.sqrt(problem.lam_w / 2) * np.sqrt(problem.lam_h)
    base = expit(-s)
    low, high = np.zeros_like(s), np.ones_like(s)
    for _ in range(52):
        y = (low + high) / 2
        x = _wide(math.sqrt(2) * q * y) * law.nodes
        # F' is 2 s slope / y + 4 kappa s q^2 y
        slope = (x * (expit(_wide(s) * (x - 1)) - _wide(base)) * law.weights).sum(-1)
        multiplier = s * (slope + 2 * kappa * (q * y) ** 2) / (2 * eta * y**2)
        a, b = _pulled(s, alpha, kappa, multiplier)
        beyond = a**2 + (1 - b) ** 2 < 2 * y**2
        low, high = np.where(beyond, low, y), np.where(beyond, y, high)
    return (low + high) / 2 * problem.r_max


def _pulled(s: Array, alpha: Array, kappa: Array, mu: Array) -> tuple[Array, Array]:
    """argmin over a, b >= 0 of f(s (b - a)) + kappa s (a^2 + b^2) + mu/2 (a^2 + (b - 1)^2), by safeguarded Newton."""
    stiffness = 2 * kappa * s + mu
    low, high = -s, s.copy()
    t = np.zeros_like(s)
    for _ in range(80):
        sigma = expit(t)
        pull = s * np.maximum(sigma - alpha / 2, 0)
        free = mu > pull
        excess = t - s * (np.where(free, mu - pull, 0) - pull) / stiffness
        low, high = np.where(excess > 0, low, t), np.where(excess > 0, t, high)
        rate = 1 + s**2 * sigma * (1 - sigma) * (1 + free) / stiffness
        new = t - excess / rate
        new = np.where((new > low) & (new < high), new, (low + high) / 2)
        if np.all(np.abs(new - t) <= 4e-16 * (1 + np.abs(new))):
            break
        t = new
    pull = s * np.maximum(expit(t) - alpha / 2, 0)
    return pull / stiffness, np.maximum(mu - pull, 0) / stiffness


# --- what the appendix bounds ---


class Constants(NamedTuple):
    r"""The constants of Appendix C as printed, and ours where they need a correction; see :func:`constants`."""

    c: Array
    C: Array
    C1: Array
    C2: Array
    C_prime: Array
    C2_corrected: Array


def constants(problem: Model, A: ArrayLike) -> Constants:
    r"""The constants of Lemmas C.3 to C.6.

    :math:`c = C_{MD}/D`, :math:`C = 2\sqrt2\,C_{MD}/D`, :math:`C_1 = (\frac12\sigma'(s)\|w_2 - w_1\|^2 + 2\lambda)c^2`,
    :math:`C_2 = A^2(\frac12\sigma'(s)\|w_2 - w_1\|^2 + \lambda)` and :math:`C' = \sqrt2 AD/C_{MD}` are as printed.
    `C2_corrected` is ours: :math:`F(r) - F(0) \le (\text{alignment}\cdot\tanh\frac s2 + 2\lambda)\,r^2` for all r and
    every centred law with :math:`E\|v\|^2 = r^2`.

    >>> found = constants(model(0.01, 0.01, 0.0, 0.1, 1.0), A=1.0)
    >>> bool(found.C2_corrected > found.C2)
    True
    """
    sigma = expit(problem.s)
    curvature = sigma * (1 - sigma) * (problem.alignment * problem.distance) ** 2 / 2
    c = problem.C_MD / problem.distance
    return Constants(
        c=c,
        C=2 * math.sqrt(2) * c,
        C1=(curvature + 2 * problem.lam_h) * c**2,
        C2=np.square(A) * (curvature + problem.lam_h),
        C_prime=A * math.sqrt(2) * problem.distance / problem.C_MD,
        C2_corrected=problem.alignment * np.tanh(problem.s / 2) + 2 * problem.lam_h,
    )


def _wide(values: ArrayLike) -> Array:
    return np.asarray(values)[..., None]


def _dilation(r: ArrayLike) -> Array:
    r = np.asarray(r, dtype=float)
    _require("r", r, r >= 0, "a dilation is not negative")
    return r


def _require(name: str, values: Array, fine: Array, needed: str) -> None:
    if not np.all(fine):
        raise ValueError(f"{name} = {values[~fine].flat[0]:g}: {needed}")
