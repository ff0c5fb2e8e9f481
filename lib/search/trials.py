"""Trials of closed forms by searches: random problems, minima that are sharp enough to compare, relative errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lib import checks
from lib.search.many_starts import Minima
from lib.search.rows import join, split


def random_problem(
    rng: np.random.Generator, c: float, factors: int, most: int = 5
) -> tuple[int, int, int, list[float]]:
    r"""Sizes and weight decays of an unconstrained features model whose decays have a given joint strength.

    The strength of `factors` decays is :math:`c = K (n \lambda_1 \cdots \lambda_L)^{1/L}`, which decides where the
    minimum of the squared loss lies; it is shared out at random. ValueError unless it is positive.

    Returns
    -------
    K, n, d, decays
        2 to `most` classes, 1 to 4 samples of each, d from K to K + 2, and the decays from the scores to the features.

    Examples
    --------
    >>> import numpy as np
    >>> K, n, d, decays = random_problem(np.random.default_rng(0), c=0.3, factors=3)
    >>> round(float(K * (n * np.prod(decays)) ** (1 / 3)), 6)
    0.3
    """
    checks.positive(c=c)
    checks.integers(2, most=most)
    K, n, extra = (int(rng.integers(*ends)) for ends in ((2, most + 1), (1, 5), (0, 3)))
    shares = np.exp(rng.uniform(-1, 1, factors))
    lams = c / K * n ** (-1 / factors) * shares / shares.prod() ** (1 / factors)
    return K, n, K + extra, lams.tolist()


def sharpened(risk: Callable[..., Tensor], found: Minima, steps: int = 4) -> tuple[list[Tensor], float]:
    """The parameters of the lowest end of a search and their risk, after Newton steps.

    L-BFGS ends with the value of the minimum to rounding, but its position only to about the square root of that. The
    pseudo-inverse of the Hessian ignores moves of the parameters that cost nothing, like a rotation of the features.

    `risk(*parameters)` is what :func:`lib.search.many_starts.multistart` has minimised.

    >>> from lib.search.many_starts import multistart
    >>> risk = lambda x, y: ((x * y).sum() - 2).square()  # x and y turn, and share their lengths, for free
    >>> found = multistart(risk, [(3,), (3,)], starts=2, seed=0, max_iter=6)
    >>> (x, y), value = sharpened(risk, found)
    >>> bool(found.values.min() > 1e-20), value < 1e-30
    (True, True)
    """
    best = found.values.argmin()
    parts = [parameter[best : best + 1] for parameter in found.parameters]
    shapes = [part.shape[1:] for part in parts]
    z = join(parts)[0]

    def f(z: Tensor) -> Tensor:
        return risk(*(part[0] for part in split(z[None], shapes)))

    for _ in range(steps):
        hessian, gradient = torch.func.hessian(f)(z), torch.func.grad(f)(z)
        z = z - torch.linalg.pinv(hessian, rtol=1e-8, hermitian=True) @ gradient
    return [part[0] for part in split(z[None], shapes)], f(z).item()


def relative_error(measured: Tensor, expected: Tensor) -> float:
    """The largest entry of the difference, relative to the largest entry of what is expected.

    >>> relative_error(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    return ((measured - expected).abs().max() / expected.abs().max()).item()
