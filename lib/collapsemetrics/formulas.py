r"""The measures themselves, for features that are all in memory: shapes and conventions are those of the package."""

from __future__ import annotations

from collections.abc import Callable
from math import nan, sqrt

import torch
from torch import Tensor, nn

from . import _checks as checks

TILE = 2**22  # distances that are in memory at a time


def class_means(H: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    r"""Class means :math:`\mu_k = \frac1{n_k}\sum_{y_i = k} h_i` and the global mean :math:`\frac1n\sum_i h_i`.

    Parameters
    ----------
    H
        Features `(..., n_samples, d)`.
    y
        Labels `(n_samples,)`, `0..K-1` with `K` one more than the largest label.

    Returns
    -------
    (means, global_mean)
        `(..., K, d)` and `(..., d)`.

    Raises
    ------
    ValueError
        If a feature is not finite, the lengths differ, a label is negative or not an integer, there is no sample, or a
        class has none.

    Examples
    --------
    >>> H, y = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]]), torch.tensor([0, 0, 1])
    >>> means, global_mean = class_means(H, y)
    >>> means.tolist(), global_mean.tolist()
    ([[1.0, 0.0], [1.0, 3.0]], [1.0, 1.0])
    """
    H, y, counts = _checked(H, y)
    return class_sums(H, y, len(counts)) / counts[:, None].to(H), H.mean(-2)


def relative_spread(H: Tensor, y: Tensor) -> float | Tensor:
    r"""Root-mean-square distance to the class mean over the root-mean-square norm of the class mean.

    .. math:: \Big( \sum_i \|h_i - \mu_{y_i}\|^2 \Big/ \sum_i \|\mu_{y_i}\|^2 \Big)^{1/2}

    Both means are over samples, so that a class counts by its size. Zero exactly when each class sits in one point and
    not all of them at the origin: collapse in direction and in norm.
    If all features are zero it is nan; if only the means are, infinite. A number for one run, a tensor `...` for
    several. Arguments and errors as :func:`class_means`. Source: this book.

    >>> H, y = torch.tensor([[3.0, 1.0], [3.0, -1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1])
    >>> round(relative_spread(H, y), 4)  # the square root of 2 / 27
    0.2722
    >>> relative_spread(torch.tensor([[1.0], [1.0], [2.0]]), y)
    0.0
    """
    means, counts, scatters = _scatters(H, y)
    size = (means.square().sum(-1) * counts.to(means)).sum(-1)
    return _result((scatters.sum(-1) / size).sqrt())


def directional_spread(H: Tensor, y: Tensor) -> float | Tensor:
    r"""Root-mean-square angle, in radians, between a feature and the mean direction of its class.

    The mean direction of a class is that of :math:`\sum_{y_i=k} h_i/\|h_i\|`. Zero exactly when the features of a
    class are positive multiples of one vector: directional collapse. Where the directions of a class cancel, it has no
    mean direction, and each of its features counts as 60 degrees. A number for one run, a tensor `...` for several.
    Arguments and errors as :func:`class_means`, and ValueError if a feature is zero. Source: this book.

    >>> H, y = torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    >>> directional_spread(H, y), relative_spread(H, y) > 0  # one direction, two lengths
    (0.0, True)
    """
    H, y, counts = _checked(H, y)
    norms = H.norm(dim=-1, keepdim=True)
    if (norms == 0).any():
        raise ValueError(f"{int((norms == 0).sum())} features are zero and have no direction")
    directions = H / norms
    means = nn.functional.normalize(class_sums(directions, y, len(counts)), dim=-1)[..., y, :]
    # the chord is exact at small angles, where the cosine is rounded to 1
    angles = 2 * torch.asin(((directions - means).norm(dim=-1) / 2).clamp(max=1))
    return _result(angles.square().mean(-1).sqrt())


def equiangularity(means: Tensor) -> float:
    r"""Largest deviation of the means' cosines from those of equiangular vectors.

    .. math:: \max_{a \ne b} \Big| \frac{\langle \mu_a, \mu_b\rangle}{\|\mu_a\|\|\mu_b\|} + \frac1{K-1} \Big|

    `means`: `(K, d)`. ValueError for fewer than two. Source: Laurent et al., equation (4), whose vectors have norm 1.

    >>> means = torch.eye(3) - 1 / 3
    >>> equiangularity(means) < 1e-6
    True
    >>> equiangularity(torch.eye(3))  # cosines are 0, not -1/2
    0.5
    """
    K = len(means)
    checks.integers(2, K=K)
    directions = nn.functional.normalize(means, dim=1)
    cosines = directions @ directions.T
    off_diagonal = ~torch.eye(K, dtype=torch.bool, device=means.device)
    return (cosines[off_diagonal] + 1 / (K - 1)).abs().max().item()


def principal_singular_values(H: Tensor) -> Tensor:
    """Singular values `(min(n, d),)` of the centred cloud `H: (n, d)`, largest first, as a PCA reports them.

    In the unit of the features.

    >>> H = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]]) + 7
    >>> principal_singular_values(H).square().round(decimals=4).tolist()
    [2.0, 0.5]
    """
    return torch.linalg.svdvals(H - H.mean(0))


# The measures of neural collapse --------------------------------------------------------------------------------------


def nc1(H: Tensor, y: Tensor) -> Tensor:
    r"""Variability within classes as seen through the differences between classes.

    .. math::
        \mathrm{NC}_1 = \frac1K \operatorname{Tr}\big(\Sigma_W \Sigma_B^\dagger\big), \qquad
        \Sigma_W = \frac1N \sum_i (h_i - \mu_{y_i})(h_i - \mu_{y_i})^\top, \qquad
        \Sigma_B = \frac1K \sum_k (\mu_k - \mu_G)(\mu_k - \mu_G)^\top

    Three properties of the definition to know:

    - It sees deviations only inside the span of the centred means, at most `K - 1` directions: NC1 = 0 does not say
      that the features have collapsed. :func:`relative_spread` sees every direction.
    - The global mean :math:`\mu_G` is that of the samples, but :math:`\Sigma_B` counts every class once. With classes
      of unequal size :math:`\Sigma_B` is therefore taken about a point that is not the mean of the class means. Its
      rank is still at most `K - 1`, because :math:`\sum_k n_k (\mu_k - \mu_G) = 0`.
    - Where all class means coincide, :math:`\Sigma_B^\dagger = 0` and the printed formula gives 0, as if the features
      had collapsed. Here the result is nan.

    :math:`\Sigma_B` is not formed: its pseudo-inverse comes from the singular values :math:`s` of the centred means.
    Those below :math:`s_{\max} \sqrt{d \epsilon}` count as zero. This is the convention of PyTorch's `pinv` and NumPy's
    `matrix_rank`, :math:`d\epsilon` of the largest, for :math:`\Sigma_B` in float64; for float32 features the bound is
    :math:`s_{\max} d \epsilon_{32}`. Those below the rounding of the means, :math:`4\epsilon\|\mu\|_F`, count as zero
    too.

    Source: Tirer & Bruna, equation (26).

    Parameters
    ----------
    H
        Features `(..., n_samples, d)`.
    y
        Labels `(n_samples,)`, `0..K-1` with `K` one more than the largest label.

    Returns
    -------
    Tensor
        `...`, no unit; unchanged when the features are rotated, moved or scaled.

    Raises
    ------
    ValueError
        As :func:`class_means`, and if there is only one class.

    Examples
    --------
    >>> H, y = torch.tensor([[1.0], [3.0], [-1.0], [-3.0]]), torch.tensor([0, 0, 1, 1])
    >>> round(nc1(H, y).item(), 4)  # 1 within, 4 between, K = 2
    0.125
    >>> nc1(torch.tensor([[2.0], [2.0], [-2.0], [-2.0]]), y).item()
    0.0
    >>> nc1(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]), y).item()  # the means coincide
    nan
    """
    return _nc1(H, y, "samples")


def trace_ratio(H: Tensor, y: Tensor, debiased: bool = False) -> Tensor:
    r"""Variance within classes over that between them, in all directions: :math:`\operatorname{Tr}\Sigma_W /
    \operatorname{Tr}\Sigma_B`, with the matrices of :func:`nc1`.

    It needs no pseudo-inverse, and so falls smoothly where class means have low rank. With few samples it is too small,
    because their scatter moves the means apart. With `debiased` both traces are replaced by estimates: that of
    :math:`\operatorname{Tr}\Sigma_B` is unbiased, that of :math:`\operatorname{Tr}\Sigma_W` (the pooled variance) is so
    where classes have equal sizes or equal variances. With :math:`v_k` the unbiased variance of class `k` (its trace)
    and shares :math:`p_k = n_k/N` they are

    .. math::
        \operatorname{Tr}\Sigma_W \to \frac1{N-K}\sum_i \|h_i - \mu_{y_i}\|^2, \qquad
        \operatorname{Tr}\Sigma_B \to \operatorname{Tr}\Sigma_B
        - \frac1K\sum_k \big(1 - 2p_k + K p_k^2\big)\frac{v_k}{n_k} .

    The plain ratio is infinite where all means coincide, nan if there is no scatter either. The debiased one is nan if
    a class has one sample, and negative or arbitrarily large where nothing but the scatter moves the means apart.

    Arguments and errors as :func:`nc1`. Source: Tirer, Huang & Niles-Weed (2023), where it is another NC1; for the
    debiased one, this book.

    >>> H, y = torch.tensor([[1.0], [3.0], [-1.0], [-3.0]]), torch.tensor([0, 0, 1, 1])
    >>> trace_ratio(H, y).item()  # 1 within, 4 between
    0.25
    >>> round(trace_ratio(H, y, debiased=True).item(), 4)  # 2 within, 3.5 between
    0.5714
    """
    means, counts, scatters = _scatters(H, y)
    return ratio_of_traces(means, counts, scatters, debiased=debiased)


def cdnv(H: Tensor, y: Tensor) -> Tensor:
    r"""Class-distance normalised variance: variance of two classes over their squared distance, averaged over pairs.

    .. math::
        \frac2{K(K-1)} \sum_{k<l} \frac{v_k + v_l}{2\,\|\mu_k - \mu_l\|^2}, \qquad
        v_k = \frac1{n_k}\sum_{y_i=k} \|h_i - \mu_k\|^2

    Infinite where two means coincide, nan if those two classes have no variance either. Arguments and errors as
    :func:`nc1`. Source: Galanti, Gyorgy & Hutter (2022).

    >>> H, y = torch.tensor([[1.0], [3.0], [-1.0], [-3.0]]), torch.tensor([0, 0, 1, 1])
    >>> cdnv(H, y).item()  # variances of 1, a distance of 4
    0.0625
    """
    means, counts, scatters = _scatters(H, y)
    return over_distances(means, scatters / counts)


def nc2_etf(means: Tensor) -> Tensor:
    r"""Distance of the means' Gram matrix from that of a simplex equiangular tight frame, both of norm 1.

    .. math:: \Big\| \frac{M M^\top}{\|M M^\top\|_F} - \frac1{\sqrt{K-1}} \Big(I_K - \frac1K 1_K 1_K^\top\Big) \Big\|_F

    `means`: `(..., K, d)`, the rows of :math:`M`, which are used as given: centre them first to ask about the centred
    means. Between 0 and :math:`\sqrt2`; nan if all are zero. ValueError for one class or a mean that is not finite.
    Source: Tirer & Bruna, equation (27).

    >>> simplex = torch.eye(4) - 1 / 4
    >>> round(nc2_etf(simplex).item(), 6), round(nc2_etf(torch.eye(4)).item(), 4)
    (0.0, 0.5176)
    """
    means = _checked_rows("means", means)
    K = means.shape[-2]
    checks.integers(2, K=K)
    return _from_frame(means, 1 / K, K - 1)


def nc2_of(means: Tensor) -> Tensor:
    r"""Distance of the means' Gram matrix from that of an orthogonal frame, both of norm 1.

    .. math:: \Big\| \frac{M M^\top}{\|M M^\top\|_F} - \frac1{\sqrt K} I_K \Big\|_F

    `means`: `(..., K, d)`, the rows of :math:`M`, used as given. Between 0 and :math:`\sqrt2`; nan if all are zero.
    ValueError for a mean that is not finite. Source: Tirer & Bruna, equation (27).

    >>> nc2_of(5 * torch.eye(4)).item(), round(nc2_of(torch.eye(4) - 1 / 4).item(), 4)
    (0.0, 0.5176)
    """
    means = _checked_rows("means", means)
    return _from_frame(means, 0, means.shape[-2])


def uniformity(means: Tensor) -> Tensor:
    r"""How evenly directions are spread over the sphere: the mean of :math:`\log(1 / \|u_k - u_l\|)` over all pairs.

    :math:`u_k` are the `means: (..., K, d)`, used as given, scaled to norm 1; centre them first. The measure also makes
    sense for K > d + 1, where there is no simplex. Its smallest possible value,
    :math:`-\frac12\log\frac{2K}{K-1}`, is that of a simplex; it is infinite where two directions coincide. ValueError
    for one class or a mean that is not finite. Source: Liu et al. (2023); generalised NC2 of Wu & Papyan (2024).

    >>> simplex = torch.eye(4) - 1 / 4
    >>> round(uniformity(simplex).item(), 4), round(-0.5 * torch.tensor(8 / 3).log().item(), 4)
    (-0.4904, -0.4904)
    """
    means = _checked_rows("means", means)
    checks.integers(2, K=means.shape[-2])
    return -_over_pairs(_directions(means), lambda distances, k, other: distances.log())


def nc2_norms(means: Tensor) -> Tensor:
    r"""How unequal the lengths of the means are: their standard deviation over their mean.

    .. math:: \frac{\operatorname{std}_k \|\mu_k\|}{\operatorname{mean}_k \|\mu_k\|}

    where the standard deviation divides by K. Zero where all are equally long. `means`: `(..., K, d)`, used as given:
    centre class means first, and give the rows of a classifier as they are. ValueError for an entry that is not finite.
    Source: Papyan, Han & Donoho (2020), equinorm, whose global mean is that of all samples.

    >>> round(nc2_norms(torch.tensor([[3.0, 0.0], [0.0, 1.0]])).item(), 4)  # 1 over 2
    0.5
    """
    lengths = _checked_rows("means", means).norm(dim=-1)
    return lengths.std(-1, correction=0) / lengths.mean(-1)


def nc2_angles(means: Tensor) -> Tensor:
    r"""Mean deviation of the means' cosines from those of a simplex, over all pairs.

    .. math:: \frac1{K(K-1)} \sum_{k \ne l} \Big| \frac{\langle \mu_k, \mu_l\rangle}{\|\mu_k\|\|\mu_l\|} +
        \frac1{K-1} \Big|

    Zero exactly where all pairs have the largest angle that K vectors can have at once. `means`: `(..., K, d)`, used as
    given: centre class means first, and give the rows of a classifier as they are. Of the paper's two curves about
    angles this is the one of the largest angles; the other is the standard deviation of the cosines, which is also zero
    for an orthogonal frame. :func:`equiangularity` is the largest deviation. ValueError for one class and an entry that
    is not finite. Source: Papyan, Han & Donoho (2020), maximal-angle equiangularity.

    >>> round(nc2_angles(torch.eye(3) - 1 / 3).item(), 6), round(nc2_angles(torch.eye(3)).item(), 6)
    (0.0, 0.5)
    """
    directions, K = _directions(_checked_rows("means", means)), means.shape[-2]
    checks.integers(2, K=K)

    def deviation(distances: Tensor, k: slice, other: slice) -> Tensor:
        return (1 - distances.square() / 2 + 1 / (K - 1)).abs()

    return _over_pairs(directions, deviation, "use_mm_for_euclid_dist")  # products are much faster


def nc0(W: Tensor) -> Tensor:
    r"""Norm of the sum of the classifier's rows, :math:`\|\sum_k w_k\| / \|W\|_F`.

    Zero is necessary for the classifier to be a simplex about the origin, about 1 are unrelated rows, and
    :math:`\sqrt K` are equal ones; nan for W = 0. `W: (..., K, d)`. Source: Zhao, Cheng, Masarczyk & Lucchi (2026), who
    study the sum; dividing by the norm of W is the convention here.

    >>> nc0(torch.eye(4)).item(), nc0(torch.ones(4, 2)).item()
    (1.0, 2.0)
    """
    return W.sum(-2).norm(dim=-1) / W.norm(dim=(-2, -1))


def nc3(W: Tensor, means: Tensor) -> Tensor:
    r"""Distance of the classifier from the class means, both of norm 1: zero where they are aligned.

    .. math:: \mathrm{NC}_3 = \Big\| \frac{W}{\|W\|_F} - \frac{M}{\|M\|_F} \Big\|_F

    `W` and `means`, the rows of :math:`M`: `(..., K, d)`. Between 0 and 2; undefined, and nan, where either is zero.
    ValueError if the shapes differ or an entry is not finite. Source: Tirer & Bruna, equation (28).

    >>> means = torch.eye(3)
    >>> nc3(2 * means, means).item(), round(nc3(-means, means).item(), 4)
    (0.0, 2.0)
    """
    W, means = _pair(W, means)
    return (_normalized(W) - _normalized(means)).norm(dim=(-2, -1))


def duality(W: Tensor, means: Tensor) -> Tensor:
    r"""How unequally the classes are aligned with the classifier: the coefficient of variation of their cosines.

    .. math:: \frac{\operatorname{std}_k c_k}{\operatorname{mean}_k c_k}, \qquad
        c_k = \frac{\langle w_k, \mu_k\rangle}{\|w_k\|\|\mu_k\|}

    where the standard deviation divides by K. Zero where all classes are equally aligned, weakly or strongly: uniform
    duality. `W` and `means`: `(..., K, d)`, used as given; centre the means first. ValueError if the shapes differ or
    an entry is not finite. Source: Wu & Papyan (2024), uniform NC3.

    >>> W = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    >>> round(duality(W, torch.eye(2)).item(), 4)  # cosines 1 and 0.8
    0.1111
    """
    W, means = _pair(W, means)
    cosines = (_directions(W.to(means)) * _directions(means)).sum(-1)
    return cosines.std(-1, correction=0) / cosines.mean(-1)


def nc4(H: Tensor, W: Tensor, b: Tensor | None, means: Tensor) -> Tensor:
    r"""Fraction of samples that the classifier assigns to a class other than that of the nearest mean.

    .. math:: \frac1n \#\Big\{ i : \arg\max_k\, (W h_i + b)_k \ne \arg\min_k \|h_i - \mu_k\| \Big\}

    If several scores are largest, or several means nearest, the first of these classes counts.

    Source: Papyan, Han & Donoho (2020), NC4.

    Parameters
    ----------
    H
        Features `(..., n_samples, d)`.
    W, b
        Classifier `(..., K, d)` and its bias `(..., K)`, or None if it has none.
    means
        Class means `(..., K, d)`.

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite, or there is no sample.

    Examples
    --------
    >>> H, means = torch.tensor([[1.0, 0.2], [0.2, 1.0]]), torch.eye(2)
    >>> nc4(H, torch.eye(2), None, means).item()
    0.0
    >>> nc4(H, torch.eye(2), torch.tensor([1.0, 0.0]), means).item()  # the bias takes one
    0.5
    """
    H, W, means = _checked_rows("H", H), _checked_rows("W", W), _checked_rows("means", means)
    if W.shape[-2:] != means.shape[-2:] or H.shape[-1] != W.shape[-1]:
        shapes = f"H has shape {tuple(H.shape)}, W {tuple(W.shape)}, means {tuple(means.shape)}"
        raise ValueError(f"{shapes}; (..., n_samples, d) and twice (..., K, d) needed")
    if b is not None and (b.ndim == 0 or b.shape[-1] != W.shape[-2]):
        raise ValueError(f"b has shape {tuple(b.shape)}; (..., {W.shape[-2]}) needed, one entry for each class")
    scores = H @ W.mT if b is None else H @ W.mT + checks.finite("b", b)[..., None, :].to(H)
    return (scores.argmax(-1) != nearest(H, means)).to(H).mean(-1)


def nc5(means: Tensor, outside_mean: Tensor) -> Tensor:
    r"""How close samples from outside lie to the directions of the classes: mean absolute cosine to the class means.

    .. math:: \frac1K \sum_k \frac{|\langle \mu_k, \mu_{\text{out}}\rangle|}{\|\mu_k\|\|\mu_{\text{out}}\|}

    Zero where the mean of the samples that belong to no class is orthogonal to all class means. `means: (..., K, d)`
    and `outside_mean: (..., d)`, used as given. ValueError if an entry is not finite. Source: Ammar et al. (2024), NC5.

    >>> round(nc5(torch.eye(3), torch.tensor([0.0, 0.0, 2.0])).item(), 4)
    0.3333
    """
    means, outside = _checked_rows("means", means), checks.finite("outside_mean", outside_mean)
    return (_directions(means) * _directions(outside[..., None, :].to(means))).sum(-1).abs().mean(-1)


def dilation(H_test: Tensor, y_test: Tensor) -> Tensor:
    r"""NC1 of the test features: how much classes that training collapses are spread on data it has not seen.

    :func:`nc1` with :math:`\mu_G = \frac1K\sum_k \mu_k`, the paper's global mean, which is the mean of all samples if
    classes have equal sizes. Arguments, result and errors as there. Source: Nguyen et al., section 4.1, equation (2).

    >>> H, y = torch.tensor([[1.0], [3.0], [-1.0], [-3.0]]), torch.tensor([0, 0, 1, 1])
    >>> round(dilation(H, y).item(), 4)
    0.125
    >>> round(dilation(H[:3], y[:3]).item(), 4), round(nc1(H[:3], y[:3]).item(), 4)  # classes of two and of one
    (0.1481, 0.1333)
    """
    return _nc1(H_test, y_test, "classes")


def memorization(H_corrupted: Tensor, y_true: Tensor, test_means: Tensor) -> Tensor:
    r"""How far training has carried samples with a corrupted label away from the test mean of their true class.

    .. math:: \mathrm{mem} = \sum_{i\ \text{corrupted}} \| h_i - \mu^{\text{test}}_{y^*_i} \|_2

    A sum, as in the paper: it grows with the number of corrupted samples, and is 0 where there are none.

    Source: Nguyen et al., section 4.1, equation (3).

    Parameters
    ----------
    H_corrupted
        Training features of the corrupted samples `(..., n_corrupted, d)`.
    y_true
        Their labels before corruption `(n_corrupted,)`.
    test_means
        Class means of the test features `(..., K, d)`.

    Returns
    -------
    Tensor
        `...`, in the unit of the features.

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite, or a label lies outside `0..K-1`.

    Examples
    --------
    >>> test_means = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> H, y_true = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> memorization(H, y_true, test_means).item()  # the second is where its like are
    2.0
    """
    test_means = _checked_rows("test_means", test_means)
    if H_corrupted.ndim < 2 or H_corrupted.shape[-1] != test_means.shape[-1]:
        shapes = f"H_corrupted has shape {tuple(H_corrupted.shape)}, test_means {tuple(test_means.shape)}"
        raise ValueError(f"{shapes}; (..., n_corrupted, d) and (..., K, d) needed")
    y_true = checks.labels(y_true, H_corrupted.shape[-2], test_means.shape[-2]).to(H_corrupted.device)
    H_corrupted = checks.finite("H_corrupted", H_corrupted)
    return (H_corrupted - test_means[..., y_true, :]).norm(dim=-1).sum(-1)


def numerical_rank(M: Tensor, rtol: float = 1e-3) -> Tensor:
    """Number of singular values of `M: (..., m, n)` larger than `rtol` times the largest, int64; 0 for M = 0.

    ValueError if an entry is not finite or `rtol` is not in `[0, 1)`.

    >>> numerical_rank(torch.diag(torch.tensor([1.0, 0.1, 1e-5]))).item()
    2
    """
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol = {rtol!r}: a number in [0, 1) is needed")
    values = torch.linalg.svdvals(_checked_rows("M", M))
    return (values > rtol * values[..., :1]).sum(-1)


def condition_number(M: Tensor, rank: int | None = None) -> Tensor:
    r"""Largest over smallest singular value of `M: (..., m, n)`, or over the `rank`-th largest.

    `K` centred class means span at most `K - 1` directions, so that their smallest singular value is rounding error:
    `rank=K - 1` leaves it out. Infinite where the divisor is zero; nan for M = 0. ValueError if an entry is not finite
    or `rank` is not in `1..min(m, n)`.

    >>> centred = torch.eye(3) - 1 / 3
    >>> round(condition_number(centred, rank=2).item(), 4)
    1.0
    >>> condition_number(torch.zeros(2, 2), rank=3)
    Traceback (most recent call last):
    ValueError: rank is 3; it must lie in 1..2 for M of shape (2, 2)
    """
    values = torch.linalg.svdvals(_checked_rows("M", M))
    rank = values.shape[-1] if rank is None else rank
    if not 1 <= rank <= values.shape[-1]:
        raise ValueError(f"rank is {rank}; it must lie in 1..{values.shape[-1]} for M of shape {tuple(M.shape)}")
    return values[..., 0] / values[..., rank - 1]


# Spectra --------------------------------------------------------------------------------------------------------------


def effective_rank(values: Tensor) -> Tensor:
    r"""Effective rank `...` of a matrix with the given singular values `(..., m)`, its RankMe.

    .. math:: \exp\Big(-\sum_i p_i \log p_i\Big), \qquad p_i = \sigma_i \Big/ \sum_j \sigma_j

    Between 1 and the number of singular values that are not zero; nan if all are zero. RankMe takes the singular values
    (not the eigenvalues of the covariance) of the features as they are, not centred:
    `effective_rank(torch.linalg.svdvals(H))`. The paper adds a small constant to the :math:`p_i`; here
    :math:`0 \log 0 = 0`. Sources: Roy & Vetterli (2007); Garrido et al. (2023), RankMe.

    >>> round(effective_rank(torch.tensor([2.0, 2.0, 0.0])).item(), 4)
    2.0
    """
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def alpha_req(eigenvalues: Tensor) -> Tensor:
    r"""Exponent :math:`\alpha` of a power law :math:`\lambda_i \propto i^{-\alpha}` fitted to eigenvalues `(m,)`.

    The slope of :math:`\log\lambda_i` over :math:`\log i` by least squares with weights :math:`1/i`, over the ranks 4
    to 100 of the eigenvalues that are not zero; nan where there are fewer than two. The eigenvalues are those of the
    covariance of the features, centred. Source: Agrawal et al. (2022), alpha-ReQ, who find values near 1 best. The
    paper does not fix ranks and weights: compare only numbers that were fitted in the same way.

    >>> round(alpha_req(7 / torch.arange(1, 51) ** 1.5).item(), 4)
    1.5
    """
    values = eigenvalues[eigenvalues > 0].sort(descending=True).values[3:100]
    ranks = torch.arange(4, 4 + len(values)).to(values)
    x = ranks.log() - (ranks.log() / ranks).sum() / (1 / ranks).sum()
    return -(x / ranks) @ values.log() / ((x / ranks) @ x)


# What the measures share ----------------------------------------------------------------------------------------------


def class_sums(H: Tensor, y: Tensor, K: int) -> Tensor:
    """Sums `(..., K, d)` of the features `(..., n_samples, d)` of each class, 0 for a class without samples."""
    return H.new_zeros(*H.shape[:-2], K, H.shape[-1]).index_add_(-2, y, H)


def _deviations(H: Tensor, y: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Class means and the deviations from them, both corrected by the mean deviations, whose sums round less."""
    weights = 1 / counts[:, None].to(H)
    means = class_sums(H, y, len(counts)) * weights
    deviations = H - means[..., y, :]
    correction = class_sums(deviations, y, len(counts)) * weights
    return means + correction, deviations - correction[..., y, :]


def _nc1(H: Tensor, y: Tensor, centre: str) -> Tensor:
    H, y, counts = _checked(H, y)
    means, deviations = _deviations(H, y, counts)
    inverse, directions = between_classes(means, counts, torch.finfo(H.dtype).eps, centre)
    seen = (deviations @ directions.mT * inverse[..., None, :]).square().sum((-2, -1)) / len(y)
    return torch.where(inverse.any(-1), seen, nan)


def _scatters(H: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Class means, samples of each class, and the sums of their squared distances from the mean `(..., K)`."""
    H, y, counts = _checked(H, y)
    means, deviations = _deviations(H, y, counts)
    return means, counts, class_sums(deviations.square().sum(-1, keepdim=True), y, len(counts))[..., 0]


def centre_of(means: Tensor, counts: Tensor, centre: str = "samples") -> Tensor:
    """Mean `(..., d)` of all samples, or of the class means (`"classes"`); exact where the class means coincide."""
    checks.one_of(("samples", "classes"), centre=centre)
    first = means[..., :1, :]
    shares = counts.to(means) / counts.sum() if centre == "samples" else means.new_full((len(counts),), 1 / len(counts))
    return first[..., 0, :] + shares @ (means - first)


def between_classes(means: Tensor, counts: Tensor, eps: float, centre: str = "samples") -> tuple[Tensor, Tensor]:
    """Inverse singular values of the centred means, 0 for those that count as zero, and their directions as rows."""
    K, d = means.shape[-2:]
    checks.integers(2, K=K)
    centred = means - centre_of(means, counts, centre)[..., None, :]
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    possible = min(K - 1, d)  # the centred means are dependent: a weighted sum of them is zero
    values, directions = values[..., :possible], directions[..., :possible, :]
    rtol = max(sqrt(d * torch.finfo(torch.float64).eps), d * eps)
    rounding = 4 * eps * means.norm(dim=(-2, -1))[..., None]
    kept = values > torch.maximum(rtol * values[..., :1], rounding)
    return torch.where(kept, 1 / values, 0), directions


def ratio_of_traces(
    means: Tensor, counts: Tensor, scatter: Tensor, centre: str = "samples", debiased: bool = False
) -> Tensor:
    """:func:`trace_ratio` of means `(..., K, d)` and the sums `scatter: (..., K)` of squared deviations from them."""
    K, n, N = len(counts), counts.to(means), counts.sum()
    checks.integers(2, K=K)
    between = (means - centre_of(means, counts, centre)[..., None, :]).square().sum((-2, -1)) / K
    if not debiased:
        return scatter.sum(-1) / N / between
    share = n / N if centre == "samples" else torch.full_like(n, 1 / K)
    noise = (1 - 2 * share + K * share.square()) * scatter / (n - 1) / n  # 0/0 for a class of one sample
    return scatter.sum(-1) / (N - K) / (between - noise.sum(-1) / K)


def over_distances(means: Tensor, variances: Tensor) -> Tensor:
    """:func:`cdnv` of means `(..., K, d)` and variances `(..., K)`."""
    checks.integers(2, K=means.shape[-2])

    def ratio(distances: Tensor, k: slice, other: slice) -> Tensor:
        return (variances[..., k, None] + variances[..., None, other]) / (2 * distances.square())

    return _over_pairs(means, ratio)


def _over_pairs(
    points: Tensor, value: Callable[[Tensor, slice, slice], Tensor], mode: str = "donot_use_mm_for_euclid_dist"
) -> Tensor:
    """Mean of `value(distances, k, other)` over all pairs of the rows of `points: (..., K, d)`.

    The distances are those of the rows k from other rows, a tile of them at a time. One stands for those of pairs that
    do not count. The other mode of `torch.cdist` subtracts squared norms: it is faster, and loses distances that are
    small beside those from the origin.
    """
    K = points.shape[-2]
    total, height = 0, max(1, TILE // K)
    for start in range(0, K, height):
        k, other = slice(start, start + height), slice(start, None)
        tile = torch.cdist(points[..., k, :], points[..., other, :], compute_mode=mode)
        counts = torch.ones_like(tile, dtype=torch.bool).triu(1)
        total = total + value(tile.where(counts, 1), k, other).triu(1).sum((-2, -1))
    return total / (K * (K - 1) / 2)


def nearest(H: Tensor, means: Tensor) -> Tensor:
    """The nearest of the means `(..., K, d)` for each feature `(..., n, d)`; the first of several.

    Found by a product of centred features and means, or by distances where the product decides by less than its
    possible rounding.
    """
    middle = means.mean(-2, keepdim=True)
    near, centred = H - middle, means - middle
    scores = near @ centred.mT - centred.square().sum(-1)[..., None, :] / 2
    if scores.shape[-1] == 1:
        return scores.argmax(-1)
    best, second = scores.topk(2).values.unbind(-1)
    size = centred.norm(dim=-1).amax(-1, keepdim=True)
    rounded = H.shape[-1] * (near.norm(dim=-1) + size) + H.norm(dim=-1) + middle.norm(dim=-1)
    unsure = ~(best - second > 4 * torch.finfo(H.dtype).eps * size * rounded)
    found = scores.argmax(-1)
    if unsure.any():
        rows = unsure if H.ndim == means.ndim == 2 else ...
        exact = torch.cdist(H[rows], means, compute_mode="donot_use_mm_for_euclid_dist")
        found[rows] = exact.argmin(-1)
    return found


def auroc(inside: Tensor, outside: Tensor) -> Tensor:
    """Area under the ROC curve: the share of pairs of values, `(n,)` and `(m,)`, whose inner one is the larger.

    Pairs of equal values count half.

    >>> auroc(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0])).item()  # equal, smaller, larger, larger
    0.625
    """
    smaller = (torch.searchsorted(outside.sort().values, inside, right=equal) for equal in (False, True))
    return sum(smaller).double().mean() / (2 * len(outside))


def _pair(W: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    W, means = _checked_rows("W", W), _checked_rows("means", means)
    if W.shape[-2:] != means.shape[-2:]:
        raise ValueError(f"W has shape {tuple(W.shape)}, means {tuple(means.shape)}; both must be (..., K, d)")
    return W, means


def _normalized(M: Tensor) -> Tensor:
    return M / M.norm(dim=(-2, -1), keepdim=True)


def _directions(M: Tensor) -> Tensor:
    """The rows, of any length, scaled to norm 1; zero rows stay zero."""
    largest = M.abs().amax(-1, keepdim=True)
    M = M / torch.where(largest > 0, largest, 1)
    return M / M.norm(dim=-1, keepdim=True).clamp(min=1)  # the largest entry is 1 now


def _from_frame(M: Tensor, shift: float, rank: int) -> Tensor:
    """Distance of the Gram matrix of the rows `(..., K, d)` from :math:`I - shift 1 1^T`, both scaled to norm 1."""
    K, d = M.shape[-2:]
    M = _normalized(M)
    if rank <= d:
        frame = torch.eye(K, device=M.device, dtype=M.dtype) - shift
        return (_normalized(M @ M.mT) - frame / sqrt(rank)).norm(dim=(-2, -1))
    # the d x d matrix has the norm of the K x K one; no such frame fits, so that the difference loses no digits
    cosine = (1 - shift * M.sum(-2).square().sum(-1)) / (M.mT @ M).norm(dim=(-2, -1)) / sqrt(rank)
    return (2 - 2 * cosine).sqrt()


def _result(value: Tensor) -> float | Tensor:
    return value if value.ndim else value.item()


# Checks of arguments --------------------------------------------------------------------------------------------------


def _checked(H: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and the number of samples in each class, if they are what :func:`class_means` asks for."""
    if H.ndim < 2 or H.shape[-2] == 0:
        raise ValueError(f"H has shape {tuple(H.shape)}; (..., n_samples, d) with a sample needed")
    y = checks.labels(y, H.shape[-2]).to(H.device)
    present = y.unique()  # without a count for each class: a wrong label may make very many classes
    if len(present) <= present[-1]:
        absent = next(k for k, label in enumerate(present.tolist()) if k != label)
        raise ValueError(f"y: class {absent} has no sample")
    return checks.finite("H", H), y, torch.bincount(y)


def _checked_rows(name: str, M: Tensor) -> Tensor:
    if M.ndim < 2 or M.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(M.shape)}; at least two dimensions, none of them empty, needed")
    return checks.finite(name, M)
