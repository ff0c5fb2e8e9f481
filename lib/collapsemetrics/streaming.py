r"""The same measures batch by batch, in bounded memory: :class:`ClassStatistics`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import nan, sqrt

import torch
from torch import Tensor, backends, distributed

from . import _checks as checks
from . import formulas

FEWEST, ROWS = 128, 1024  # features that are multiplied at a time
BLOCKS = 8  # of columns of the scatter matrix, which is computed only on and below the diagonal
NARROWEST = 128  # columns of a block
#: Sums of squares in float32 are useful between these bounds; elsewhere the slower product in float64 is worth it.
SMALLEST, LARGEST = 1e-24, 1e38
ADDED = ("counts", "sums", "squares", "products", "drawn_counts", "drawn_sums")  # what two sets of samples add up
STATE = (*ADDED, "centres", "eps")
FAR = 7 / 8  # largest share of a sum of squares that may be due to the centre not being the mean
SEVERAL = 8  # samples of a class that suffice to show it
LONE = 64  # times the median square: features beyond it are multiplied in float64
SEED = 7_310_579_021  # for labels drawn at random; nobody else is likely to use it


@contextmanager
def unrounded(backend) -> Iterator[None]:
    """Its products do not round float32 factors to TF32 or bfloat16; afterwards they may again if they might before.

    Before torch 2.9 there is less to set, and nothing for processors.
    """
    matmul = getattr(backend, "matmul", None)
    name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    with ExitStack() as afterwards:
        if hasattr(matmul, name):
            afterwards.callback(setattr, matmul, name, getattr(matmul, name))
            setattr(matmul, name, exact)
        yield


class ClassStatistics:
    r"""Class means and the scatter within classes of features that come in batches.

    Each class has a centre :math:`c_k`, the mean of its first samples in the dtype of the features. What is collected
    are counts :math:`n_k` and, of the deviations :math:`x_i = h_i - c_{y_i}`, a sum for each class and one matrix of
    products for all, multiplied in the dtype of the features and added in float64. With :math:`\bar x_k` the mean
    deviation of a class, means and scatter within classes are

    .. math:: \mu_k = c_k + \bar x_k, \qquad S = \sum_i x_i x_i^\top - \sum_k n_k \bar x_k \bar x_k^\top .

    A class whose mean has moved so far from its centre that the difference would lose more than three bits is given a
    new centre, and single samples that are far from theirs are multiplied in float64. So a spread far below the
    distance from the origin is not lost, nor does the order of the batches matter beyond rounding. What float32
    features do lose are variances less than about :math:`10^{-7}` of the largest one. Features wait in a buffer until
    there are 1024 of them, down to 128 for many classes of few dimensions, because a matrix product handles many as
    fast as few. It is not rounded to TF32 or bfloat16, whatever PyTorch is set to.

    Memory: little more than half of `d*d` float64 numbers (all of it up to d = 128), another 1.5 `K*d`, or 2.5 with
    `chance`, and the buffer.

    Parameters
    ----------
    K, d
        Number of classes and width of the features.
    device
        Where the statistics are kept and batches are moved; by default the CPU. It must support float64.
    chance
        Whether also to collect the means of classes with labels drawn at random, which :meth:`chance_nc1` needs.

    Raises
    ------
    ValueError
        If `K` or `d` is not a positive integer.

    Examples
    --------
    >>> from collapsemetrics import nc1
    >>> generator = torch.Generator().manual_seed(0)
    >>> H = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    >>> y = torch.arange(60) % 3
    >>> first, second = ClassStatistics(K=3, d=4), ClassStatistics(K=3, d=4)
    >>> first.update(H[:25], y[:25])
    >>> second.update(H[25:], y[25:])
    >>> both = first + second  # of two processes, say
    >>> both.samples, abs(both.nc1() - nc1(H, y).item()) < 1e-10
    (60, True)
    """

    @torch.inference_mode(False)  # so that what is kept can be changed in either mode
    def __init__(self, K: int, d: int, device: torch.device | str | None = None, chance: bool = False):
        checks.integers(1, K=K, d=d)
        self.K, self.d, self.chance = K, d, chance
        self._capacity = min(max(FEWEST, 25_600 // K, d // 5), ROWS)  # many classes take memory for their sums
        double = {"dtype": torch.float64, "device": device}
        self._counts = torch.zeros(K, dtype=torch.int64, device=device)
        self._centres = torch.zeros(K, d, device=device)
        self._sums = torch.zeros(K, d, **double)
        self._squares = torch.zeros(K, **double)  # of the lengths of deviations, summed
        self._width = max(NARROWEST, -(-d // BLOCKS))
        sizes = (min(self._width, d - start) * (d - start) for start in range(0, d, self._width))
        self._products = torch.zeros(sum(sizes), **double)
        self._drawn_counts = torch.zeros(K if chance else 0, dtype=torch.int64, device=device)
        self._drawn_sums = torch.zeros(K if chance else 0, d, **double)
        self._eps = torch.tensor(torch.finfo(torch.float64).eps, **double)
        self._rows, self._labels, self._waiting = torch.zeros(0, d, device=device), self._counts[:0], 0

    @torch.inference_mode(False)
    def update(self, H: Tensor, y: Tensor) -> None:
        """Take in features `(n_samples, d)` with their labels `(n_samples,)`; ValueError for anything else."""
        if H.ndim != 2 or H.shape[1] != self.d:
            raise ValueError(f"H has shape {tuple(H.shape)}; (n_samples, {self.d}) needed")
        y = checks.labels(y, len(H), self.K).to(self._counts.device)
        H = checks.finite("H", H.detach().to(self._counts.device))
        if self._rows.dtype != H.dtype or not len(self._rows):
            self._flush()
            self._eps.clamp_(min=torch.finfo(H.dtype).eps)
            self._rows, self._labels = H.new_empty(self._capacity, self.d), y.new_empty(self._capacity)
        while len(H):
            n = min(len(self._rows) - self._waiting, len(H))
            there = slice(self._waiting, self._waiting + n)
            self._rows[there], self._labels[there] = H[:n], y[:n]
            self._waiting += n
            H, y = H[n:], y[n:]
            if self._waiting == len(self._rows):
                self._flush()

    def _flush(self) -> None:
        """Take in what waits in the buffer."""
        H, y = self._rows[: self._waiting], self._labels[: self._waiting]
        self._waiting = 0
        if not len(H):
            return
        classes, place, new = y.unique(return_inverse=True, return_counts=True)
        with torch.autocast(H.device.type, enabled=False), unrounded(backends.cuda), unrounded(backends.mkldnn):
            self._draw(H)
            X, lone, squares, sums = self._deviations(H, classes, place, new)
            self._sums.index_add_(0, classes, sums.double())
            self._squares.index_add_(0, y, squares)
            if lone.any():  # in float32 their products would swamp those of the others
                alone, X[lone] = X[lone].double(), 0
                self._sums.index_add_(0, y[lone], alone)
                self._add_outer(alone, alone.new_ones(len(alone), 1))
            for columns, block in self._blocks():
                block += X[:, columns.start :].T @ X[:, columns]
            self._counts[classes] += new
            lengths = self._sums[classes].norm(dim=1).square()
            far = classes[lengths > FAR * self._counts[classes] * self._squares[classes]]
            if len(far):
                self._move(far, self._means(far))

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Slices of columns, each with its part, from the diagonal down, of the symmetric matrix of products."""
        at = 0
        for start in range(0, self.d, self._width):
            columns = slice(start, min(start + self._width, self.d))
            shape = self.d - start, columns.stop - start
            yield columns, self._products[at : at + shape[0] * shape[1]].view(shape)
            at += shape[0] * shape[1]

    def _deviations(self, H: Tensor, classes: Tensor, place: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        """Deviations of features from the centres of their classes, a mask of those far longer than the others, the
        squares of their lengths, and the sums of the others for each class that occurs.

        A class that occurs for the first time gets the mean of its samples as its centre; so does one of which several
        samples show that its centre was an outlier, or that the class has moved.
        """
        self._centres = self._centres.to(torch.promote_types(self._centres.dtype, H.dtype))
        first = self._counts[classes] == 0
        if first.any():
            shares = H / new[place, None]  # whose sums do not overflow
            means = formulas.class_sums(shares, place, len(classes)).to(self._centres.dtype)
            self._centres[classes[first]] = means[first]
        for again in (True, False):
            X = self._centres.index_select(0, classes[place])
            X = torch.sub(H, X, out=X)
            squares = X.norm(dim=1).double().square()
            if X.dtype == torch.float32 and not SMALLEST < squares.sum() < LARGEST and X.any():
                X = X.double()
                squares = X.norm(dim=1).square()
            lone = squares > LONE * squares[squares > 0].median()
            where = place.masked_fill(lone, len(classes))
            sums = formulas.class_sums(X, where, len(classes) + 1)[:-1]
            lengths = squares.new_zeros(len(classes) + 1).index_add_(0, where, squares)[:-1]
            off = (new >= SEVERAL) & (sums.norm(dim=1).double().square() > FAR * new * lengths)
            if not again or not off.any():
                return X, lone, squares, sums
            moved = classes[off]
            self._move(moved, self._centres[moved] + sums[off] / new[off, None])

    def _move(self, classes: Tensor, centres: Tensor) -> None:
        """Re-express what was collected of some classes as deviations from other centres."""
        n = self._counts[classes, None]
        before = self._sums[classes] / n.clamp(min=1)
        centres = centres.to(self._centres.dtype)
        after = before + (self._centres[classes].double() - centres.double())
        self._centres[classes], self._sums[classes] = centres, n * after
        self._squares[classes] += n[:, 0] * (after.square().sum(1) - before.square().sum(1))
        self._add_outer(after, n)
        self._add_outer(before, -n)

    def _add_outer(self, vectors: Tensor, weights: Tensor) -> None:
        for columns, block in self._blocks():
            block.addmm_((vectors[:, columns.start :] * weights).T, vectors[:, columns])

    def _draw(self, H: Tensor) -> None:
        if self.chance:
            seeded = torch.Generator().manual_seed(SEED + int(self._counts.sum()))
            y = torch.randint(self.K, (len(H),), generator=seeded).to(H.device)
            self._drawn_counts += torch.bincount(y, minlength=self.K)
            self._drawn_sums.index_add_(0, y, H.double())

    def _means(self, classes: Tensor | slice = slice(None)) -> Tensor:
        self._flush()
        return self._centres[classes] + self._sums[classes] / self._counts[classes].clamp(min=1)[:, None]

    # Several processes ------------------------------------------------------------------------------------------------

    def merge(self, other: ClassStatistics) -> None:
        """Take in the samples of other statistics, which stay as they are; ValueError if K, d or `chance` differ."""
        if (self.K, self.d, self.chance) != (other.K, other.d, other.chance):
            raise ValueError(f"K, d, chance are {self.K, self.d, self.chance} and {other.K, other.d, other.chance}")
        self._flush()
        other = copy.deepcopy(other)
        other.load_state_dict(other.state_dict(), self._counts.device)
        dtype = torch.promote_types(self._centres.dtype, other._centres.dtype)
        self._centres, other._centres = self._centres.to(dtype), other._centres.to(dtype)
        known = (self._counts > 0) & (other._counts > 0)
        other._move(known, self._centres[known])
        self._centres = torch.where(self._counts[:, None] > 0, self._centres, other._centres)
        for name in ADDED:
            getattr(self, f"_{name}").add_(getattr(other, f"_{name}"))
        self._eps = torch.maximum(self._eps, other._eps)

    def __add__(self, other: ClassStatistics) -> ClassStatistics:
        both = copy.deepcopy(self)
        both.merge(other)
        return both

    def state_dict(self) -> dict[str, Tensor]:
        """All that was collected, as tensors by name, which later batches change in place."""
        self._flush()
        return {name: getattr(self, f"_{name}") for name in STATE}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device | str | None = None) -> None:
        """Continue from a :meth:`state_dict` of statistics with the same K, d and `chance`."""
        self._waiting, device = 0, self._counts.device if device is None else device
        self._rows, self._labels = (part[:0].to(device) for part in (self._rows, self._labels))
        for name in STATE:
            setattr(self, f"_{name}", state[name].to(device))

    def without_empty(self) -> ClassStatistics:
        """The same statistics for only the classes that have samples, which become `0..k-1` in their order."""
        state, classes = self.state_dict(), self._counts.nonzero()[:, 0]
        part = ClassStatistics(len(classes), self.d, self._counts.device, self.chance)
        state |= {name: state[name][classes] for name in ("counts", "centres", "sums", "squares")}
        if self.chance:  # surplus drawn classes are added to the first ones in turn
            place = torch.arange(self.K, device=classes.device) % len(classes)
            for name in ("drawn_counts", "drawn_sums"):
                state[name] = getattr(part, f"_{name}").index_add_(0, place, state[name])
        part.load_state_dict(state)
        return part

    def reduce(self, group=None) -> None:
        """Give each process of a `torch.distributed` group (by default all processes) the samples of all of them.

        Every process of the group has to call it, with the same K, d and `chance`.
        """
        sums, counts = self._means() * self._counts[:, None], self._counts.clone()
        for total in (sums, counts):
            distributed.all_reduce(total, group=group)
        centres, there = sums / counts.clamp(min=1)[:, None], self._counts > 0
        self._centres = self._centres.double()
        self._move(there, centres[there])
        self._centres = centres
        for name in ADDED:
            distributed.all_reduce(getattr(self, f"_{name}"), group=group)
        distributed.all_reduce(self._eps, distributed.ReduceOp.MAX, group)

    # What the statistics say ------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Tensor:
        """Samples of each class so far `(K,)`, int64."""
        self._flush()
        return self._counts.clone()

    @property
    def samples(self) -> int:
        """Number of samples so far."""
        return int(self.counts.sum())

    @property
    def means(self) -> Tensor:
        """Class means `(K, d)`, float64; ValueError if a class has no sample."""
        self._check_classes()
        return self._means()

    @property
    def variances(self) -> Tensor:
        """Mean squared distance from the class mean for each class `(K,)`, float64; ValueError if one has no sample."""
        return self._scatters() / self._counts

    @property
    def within_class_covariance(self) -> Tensor:
        r""":math:`\Sigma_W` of :func:`nc1`, `(d, d)`, float64; ValueError if a class has no sample."""
        self._check_classes()
        full = self._products.new_empty(self.d, self.d)
        for columns, block in self._blocks():
            full[columns.start :, columns], full[columns, columns.start :] = block, block.T
        return (full - (self._sums / self._counts[:, None]).T @ self._sums) / self.samples

    def spectrum(self, about: Tensor | float = 0.0) -> Tensor:
        """Eigenvalues `(d,)` of the mean of :math:`(h - a)(h - a)^T` over all samples, float64, largest first.

        `about`: the point :math:`a`, `(d,)`, by default the origin. Values that may be rounding are 0. ValueError as
        :attr:`means`.
        """
        means, within = self.means - about, self.within_class_covariance
        values = torch.linalg.eigvalsh(within + (means.T * self._counts / self.samples) @ means).flip(0)
        rounding = self._eps * within.norm() + self.d * torch.finfo(values.dtype).eps * values[0]
        return torch.where(values > rounding, values, 0)

    def centre(self, of: str = "samples") -> Tensor:
        """Mean of all samples, or of the class means (`"classes"`): `(d,)`, float64; ValueError as :attr:`means`."""
        return formulas.centre_of(self.means, self._counts, of)

    def nc1(self, centre: str = "samples") -> float:
        r"""As :func:`nc1` of all features at once; or with :math:`\Sigma_B` about the mean of the class means."""
        return self._nc1(self.means, self._counts, self._seen, centre)[0]

    def left_out(self, centre: str = "samples") -> int:
        """How many of the `min(K - 1, d)` directions of class means :meth:`nc1` takes for rounding, and leaves out."""
        return self._nc1(self.means, self._counts, self._seen, centre)[1]

    def chance_nc1(self, centre: str = "samples") -> float:
        """:func:`nc1` of the same features with labels drawn at random: its value for features without classes.

        ValueError unless `chance` was asked for.
        """
        if not self.chance:
            raise ValueError("labels were not drawn at random: ClassStatistics(K, d, chance=True) does so")
        means = self._means()  # takes in what waits, and draws for it
        there = self._drawn_counts > 0
        if there.sum() < 2:
            return nan
        counts = self._drawn_counts[there]
        drawn = self._drawn_sums[there] / counts[:, None]
        middle = formulas.centre_of(means, self._counts)

        def seen(directions: Tensor) -> Tensor:  # all scatter, less that of the means of the drawn classes
            true, random = ((part - middle) @ directions.T for part in (means, drawn))
            return self._seen(directions) + self._counts.double() @ true.square() - counts.double() @ random.square()

        return self._nc1(drawn, counts, seen, centre)[0]

    def trace_ratio(self, centre: str = "samples", debiased: bool = False) -> float:
        """As :func:`trace_ratio` of all features at once."""
        return formulas.ratio_of_traces(self.means, self._counts, self._scatters(), centre, debiased).item()

    def is_noise(self, centre: str = "samples") -> bool:
        """Whether scatter within classes alone may well move class means as far apart as they are.

        True if the variance between classes is less than three standard deviations above what this scatter alone would
        make it. The standard deviation is that of normal noise, and follows from how much the scatter along random
        directions varies. False for classes of one sample, which do not show their scatter.
        """
        directions = torch.randn(64, self.d, generator=torch.Generator().manual_seed(SEED))
        scatter, free = self._seen(directions.to(self._sums)), self.samples - self.K
        error = scatter.std() / scatter.mean() * sqrt(1 / (self.K - 1) + 1 / max(free, 1))
        plain, debiased = (self.trace_ratio(centre, way) for way in (False, True))
        return bool(1 / (1 + 3 * error) < 1 - plain * self.samples / (torch.tensor(debiased) * free))

    def cdnv(self) -> float:
        """As :func:`cdnv` of all features at once."""
        return formulas.over_distances(self.means, self.variances).item()

    def relative_spread(self) -> float:
        """As :func:`relative_spread` of all features at once."""
        size = (self.means.square().sum(1) * self._counts).sum()
        return (self._scatters().sum() / size).sqrt().item()

    def measures(self, centre: str = "classes", details: bool = False) -> dict[str, float]:
        """What :func:`measure` gives for any layer from one pass, by name, with `centre` and `details` as there.

        Errors as :attr:`means`.
        """
        means, centred = self.means, self.means - self.centre(centre)
        return {
            "nc1": self.nc1(centre),
            **({"nc1_chance": self.chance_nc1(centre)} if self.chance else {}),
            "trace_ratio": self.trace_ratio(centre),
            "trace_ratio_debiased": self.trace_ratio(centre, debiased=True),
            "cdnv": self.cdnv(),
            "relative_spread": self.relative_spread(),
            "nc2_etf": formulas.nc2_etf(centred).item(),
            "nc2_of": formulas.nc2_of(means).item(),
            "nc2_norms": formulas.nc2_norms(centred).item(),
            "nc2_angles": formulas.nc2_angles(centred).item(),
            "uniformity": formulas.uniformity(centred).item(),
            "numerical_rank": int(formulas.numerical_rank(centred)),
            "condition_number": formulas.condition_number(centred, min(self.K - 1, self.d)).item(),
            **({"effective_rank": formulas.effective_rank(self.spectrum().sqrt()).item()} if details else {}),
            **({"alpha_req": formulas.alpha_req(self.spectrum(self.centre())).item()} if details else {}),
        }

    def _nc1(self, means: Tensor, counts: Tensor, seen, centre: str) -> tuple[float, int]:
        # sums are in float64: their rounding, not that of the features, decides whether means coincide
        near = means - formulas.centre_of(means, counts, centre)
        near *= near.norm() > 4 * torch.finfo(near.dtype).eps * means.norm()
        inverse, directions = formulas.between_classes(near, counts, float(self._eps), centre)
        value = (seen(directions) * inverse.square()).sum() / self.samples
        return value.clamp(min=0).item() if inverse.any() else nan, int((inverse == 0).sum())

    def _seen(self, directions: Tensor) -> Tensor:
        """The scatter within classes along unit vectors, the rows of `directions: (r, d)`."""
        found = -self._counts.double() @ (self._sums / self._counts.clamp(min=1)[:, None] @ directions.T).square()
        for columns, block in self._blocks():
            rows = directions[:, columns.start :].clone()
            rows[:, block.shape[1] :] *= 2  # what is below the diagonal is above it too
            found += (rows @ block * directions[:, columns]).sum(1)
        return found

    def _scatters(self) -> Tensor:
        """Sums of squared distances from the class mean, of each class."""
        self._check_classes()
        return (self._squares - self._sums.norm(dim=1).square() / self._counts).clamp(min=0)

    def _check_classes(self) -> None:
        if not self.counts.all():
            raise ValueError(f"class {int((self.counts == 0).nonzero()[0])} has no sample")
