r"""The same measures batch by batch: class statistics in bounded memory, and :func:`measure` for any PyTorch model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from html import escape
from math import inf, nan

import numpy as np
import torch
from torch import Tensor, nn

from lib import checks
from lib.metrics import formulas

#: What :func:`measure` calls the input of the head.
PENULTIMATE = "penultimate"
LARGEST_WIDTH = 8192  # a scatter matrix of this width takes 512 MiB
SMALLEST = 1e-28  # largest variance below which float32 has lost much of the others
ROWS = 2048  # features centred at a time: what is read again then still lies in the processor's cache


class ClassStatistics:
    r"""Class means and the scatter within classes of features that come in batches, in memory `d*d + K*d`.

    Each batch is centred on its own class means and only then multiplied, in its own dtype; batches are merged in
    float64 by the update of Chan, Golub & LeVeque (1983), with one mean for each class and one scatter matrix for all,

    .. math:: S \leftarrow S + S_{\text{batch}} + \sum_k \frac{n_k m_k}{n_k + m_k} \delta_k \delta_k^\top,

    :math:`\delta_k` the difference of the two means of class `k`, :math:`n_k` and :math:`m_k` their numbers of samples.
    So a spread far below the distance from the origin is not lost, nor does the order of the batches matter beyond
    rounding. What float32 features do lose: variances less than about :math:`10^{-7}` of the largest one.

    Parameters
    ----------
    K, d
        Number of classes and width of the features.
    device
        Where the statistics are kept, and batches are brought; the CPU unless given. It must know float64.

    Raises
    ------
    ValueError
        If `K` or `d` is not a positive integer.

    Examples
    --------
    >>> from lib.metrics import nc1
    >>> generator = torch.Generator().manual_seed(0)
    >>> H = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    >>> y = torch.arange(60) % 3
    >>> statistics = ClassStatistics(K=3, d=4)
    >>> for part in torch.arange(60).split(25):
    ...     statistics.update(H[part], y[part])
    >>> statistics.samples, abs(statistics.nc1() - nc1(H, y).item()) < 1e-10
    (60, True)
    """

    def __init__(self, K: int, d: int, device: torch.device | str | None = None):
        checks.positive_integers(K=K, d=d)
        self.K, self.d = K, d
        self.counts = torch.zeros(K, dtype=torch.int64, device=device)  #: samples of each class so far
        self._means = torch.zeros(K, d, dtype=torch.float64, device=device)
        self._scatter = torch.zeros(d, d, dtype=torch.float64, device=device)
        self._eps = torch.finfo(torch.float64).eps

    def update(self, H: Tensor, y: Tensor) -> None:
        """Take in features `(n_samples, d)` with their labels; ValueError for what is no such thing.

        A feature that is not finite may be found only after others of its batch have been taken in.
        """
        if H.ndim != 2 or H.shape[1] != self.d or not H.is_floating_point():
            raise ValueError(f"H has shape {tuple(H.shape)} and {H.dtype}; floating point (n_samples, {self.d}) needed")
        checks.labels(y, len(H), self.K, every=False)
        y = y.to(self.counts.device, torch.int64)
        H = formulas.computed(H.detach().to(self.counts.device))
        self._eps = max(self._eps, torch.finfo(H.dtype).eps)
        with torch.autocast(H.device.type, enabled=False):
            for rows, labels in zip(H.split(ROWS), y.split(ROWS), strict=True):
                self._merge(rows, labels)

    def _merge(self, H: Tensor, y: Tensor) -> None:
        new = torch.bincount(y, minlength=self.K)
        means = formulas.class_sums(H.double(), y, self.K) / new.clamp(min=1)[:, None]
        if not torch.isfinite(means).all():  # as one feature is that is not
            checks.finite(H=H)
        # centred first, in the dtype of the features: the product is fast, and what cancels are features, not squares
        centre = means.to(H.dtype)
        deviations = H - centre[y]
        scatter = deviations.T @ deviations
        # squares end at 1e-38 and 1e38 in float32; only then is it worth the slower product in float64
        if not SMALLEST < scatter.diagonal().max() < inf and deviations.any():
            scatter = deviations.double().T @ deviations.double()
        self._scatter += scatter
        # the centres are the means rounded to the dtype of the features, about which the scatter is too large
        self._add_outer(means - centre, -new)
        # the update of Chan, Golub & LeVeque, all classes at once; a class without samples here has share 0
        share = new.double() / (self.counts + new).clamp(min=1)
        delta = means - self._means
        self._add_outer(delta, self.counts * share)
        self._means += delta * share[:, None]
        self.counts += new

    def _add_outer(self, vectors: Tensor, weights: Tensor) -> None:
        self._scatter.addmm_((vectors * weights[:, None]).T, vectors)

    @property
    def samples(self) -> int:
        """Number of samples so far."""
        return int(self.counts.sum())

    @property
    def means(self) -> Tensor:
        """Class means `(K, d)`, float64; ValueError if a class has no sample."""
        self._check_classes()
        return self._means.clone()  # later batches change it in place

    @property
    def global_mean(self) -> Tensor:
        """Mean of all samples `(d,)`, float64; ValueError if a class has no sample."""
        return formulas.global_mean_of(self.means, self.counts)

    @property
    def within_class_covariance(self) -> Tensor:
        r""":math:`\Sigma_W` of :func:`nc1`, `(d, d)`, float64; ValueError if a class has no sample."""
        self._check_classes()
        return self._scatter / self.samples

    def _check_classes(self) -> None:
        if not self.counts.all():
            raise ValueError(f"class {int((self.counts == 0).nonzero()[0])} has no sample")

    def nc1(self) -> float:
        """As :func:`nc1` of all features at once."""
        checks.integers(2, K=self.K)
        inverse, directions = formulas.between_classes(self.means, self.counts, self._eps)
        scaled = directions * inverse[:, None]
        seen = ((scaled @ self._scatter) * scaled).sum() / self.samples
        return seen.clamp(min=0).item() if inverse.any() else nan

    def relative_spread(self) -> float:
        """As :func:`relative_spread` of all features at once."""
        size = (self.means.square().sum(1) * self.counts).sum()
        return (self._scatter.trace().clamp(min=0) / size).sqrt().item()


class Measures(list):
    """What :func:`measure` found: one dictionary for each layer. Prints as a table, and shows as one in a notebook.

    `K` is the number of classes. Where a test loader was given the rows have an entry `dilation` as well.
    """

    def __init__(self, rows: Iterable[dict] = (), K: int | None = None):
        super().__init__(rows)
        self.K = K

    def plot(self):
        """A matplotlib figure over the layers: NC1 (and dilation), relative spread, NC2 to NC4, rank of the means."""
        from lib.metrics.pictures import over_layers  # matplotlib is imported by who wants a picture

        return over_layers(self)

    def __str__(self) -> str:
        rows = self._cells()
        width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join("  ".join([row[0].ljust(width), *map(str.rjust, row[1:], widths)]) for row in rows)

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
        body = (
            f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
            for row in body
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"

    def _cells(self) -> list[list[str]]:
        columns = [column for column in COLUMNS if column != "dilation" or any(column in row for row in self)]
        return [columns, *([_cell(row.get(column)) for column in columns] for row in self)]


#: The numbers in a row of :class:`Measures`, in their order; `dilation` only where test samples were given.
COLUMNS = (
    *("layer", "d", "samples", "nc1", "dilation", "relative_spread", "nc2_etf", "nc2_of", "nc3", "nc4"),
    *("numerical_rank", "condition_number"),
)


def measure(
    model: nn.Module,
    loader: Iterable | Callable[[], Iterable],
    layers: str | Iterable[str] | None = None,
    device: torch.device | str | None = None,
    *,
    head: str | None = None,
    K: int | None = None,
    nc4: bool = False,
    reduce: str | Callable[[Tensor], Tensor] = "mean",
    test_loader: Iterable | Callable[[], Iterable] | None = None,
) -> Measures:
    r"""Every measure of collapse of a model's features, from one pass over the data and in bounded memory.

    Of each layer only the class means and one scatter matrix are kept (:class:`ClassStatistics`), never the features of
    more than one batch. The model is in evaluation mode meanwhile, without gradients, and is left as it was found. So
    are the generators of random numbers: PyTorch's, Python's and NumPy's global ones, and those of the loaders.

    Parameters
    ----------
    model
        Any PyTorch model that takes a batch `x`; as `model(*x)` where x is a tuple or list, and as `model(**x)` where
        it is a mapping.
    loader
        Batches `(x, y, ...)` with labels `y: (n_samples,)` in `0..K-1`: a DataLoader, a list, or a function without
        arguments that returns an iterable, such as a generator function. Of a batch that is a mapping the entry
        `labels` or `label` is y, and the others are x.
    layers
        Names of submodules as in `model.named_modules()`, whose outputs are the features, or `"penultimate"`, the input
        of the head, which is the default. Of a module that runs several times in a pass, the last output counts, and of
        an output that is a tuple the first entry.
    device
        Where batches are brought; by default where the model's first parameter lies. The model is not moved.
    head
        Name of the classifier, a module with a `weight: (K, d)` and perhaps a `bias: (K,)`; by default the last
        `torch.nn.Linear` in the order of `model.named_modules()`.
    K
        Number of classes; by default the number of rows of the head's weight. Where it is another number, there is no
        `nc3`.
    nc4
        Whether to measure :func:`nc4`, which compares each feature with the final class means and so takes a second
        pass over the data.
    reduce
        What becomes of positions: `"mean"` averages features `(N, C, H, W)` over `H, W` (or any number of such
        dimensions but one) and tokens `(N, T, d)` over `T`; `"flatten"` makes one long vector of each sample. Or a
        function of what the layer gives that returns features `(N, d)`: `lambda h: h[:, 0]` takes the first token.
    test_loader
        Samples that the model was not trained on, in batches like those of `loader`. With them each row has
        `dilation`: :func:`dilation`, NC1 of these, from another pass.

    Returns
    -------
    Measures
        One dictionary for each layer: `layer`, `d`, `samples`; `nc1`, `relative_spread`; `nc2_etf` of the class means
        centred with the global mean, `nc2_of` of the class means as they are; `nc3` and `nc4` for `"penultimate"`, None
        for other layers; `numerical_rank` of the centred means and `condition_number`, over the `min(K - 1, d)`
        directions that they can span. With a `test_loader` also `dilation`.

    Raises
    ------
    ValueError
        For a name that no module has, a layer that does not run or whose output is no such features, features wider
        than 8192, labels outside `0..K-1`, an empty class or loader, `K < 2`, features that are not finite, and `nc4`
        without `"penultimate"` or with a loader that can be read once only.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> batch = torch.eye(4)[:3], torch.tensor([0, 1, 2])  # one point for each class
    >>> (row,) = measure(model, [batch, batch])
    >>> row["layer"], row["d"], row["samples"], row["nc1"]
    ('penultimate', 4, 6, 0.0)
    >>> row["numerical_rank"], round(row["nc2_etf"], 4)
    (2, 0.0)
    """
    if not callable(reduce):
        checks.one_of(("mean", "flatten"), reduce=reduce)
    modules = dict(model.named_modules())
    if head is None:
        head = next((name for name, module in reversed(modules.items()) if isinstance(module, nn.Linear)), None)
    elif getattr(getattr(_module(modules, head), "weight", None), "ndim", None) != 2:
        raise ValueError(f"the head {head!r} has no weight (K, d)")
    layers = list(dict.fromkeys([layers] if isinstance(layers, str) else layers or [PENULTIMATE]))
    if head is None and (K is None or nc4 or PENULTIMATE in layers):
        raise ValueError("the model has no torch.nn.Linear: give layers and K, or name the head")
    classifier = modules[head] if head is not None else None
    K = len(classifier.weight) if K is None else K
    checks.integers(2, K=K)
    fits = classifier is not None and len(classifier.weight) == K
    if nc4 and not fits:
        raise ValueError(f"the head has {len(classifier.weight)} rows and K is {K}: nc4 needs one for each class")
    if nc4 and PENULTIMATE not in layers:
        raise ValueError(f"nc4 is measured of {PENULTIMATE!r}, which is not among layers = {layers}")
    if nc4 and isinstance(loader, Iterator):
        raise ValueError("nc4 needs a second pass, and the loader can be read once: give a list or a function")
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    device = torch.device(device)
    hooked = {name: classifier if name == PENULTIMATE else _module(modules, name) for name in layers}

    with _randomness_kept(device, loader, test_loader):
        statistics = _collected(model, loader, hooked, K, device, reduce)
        rows = Measures((_row(name, statistics[name]) for name in layers), K)
        if PENULTIMATE in layers and fits:
            row, means = rows[layers.index(PENULTIMATE)], statistics[PENULTIMATE].means
            W, b = (None if p is None else p.detach() for p in (classifier.weight, getattr(classifier, "bias", None)))
            row["nc3"] = formulas.nc3(W.to(means), means).item()
            if nc4:
                again = _passes(model, loader, {PENULTIMATE: classifier}, device, reduce)
                row["nc4"] = _disagreement(again, W, b, means)
        del statistics  # before those of the test samples are made
        if test_loader is not None:
            try:
                statistics = _collected(model, test_loader, hooked, K, device, reduce)
                tested = [row | {"dilation": statistics[row["layer"]].nc1()} for row in rows]
                rows[:] = [{column: row[column] for column in COLUMNS} for row in tested]
            except ValueError as error:
                raise ValueError(f"test_loader: {error}") from error
    return rows


def _collected(model, loader, hooked, K, device, reduce) -> dict[str, ClassStatistics]:
    """The class statistics of every hooked module, by name; on the CPU for a device that knows no float64, MPS."""
    statistics: dict[str, ClassStatistics] = {}
    with closing(_passes(model, loader, hooked, device, reduce)) as passes:
        for features, y in passes:
            for name in features:  # and no variable for the features, which would keep them while the next are made
                if name not in statistics:
                    d = features[name].shape[1]
                    if d > LARGEST_WIDTH:
                        advice = 'use reduce="mean" or a layer of fewer dimensions'
                        raise ValueError(f"the layer {name!r} has {d} dimensions, more than {LARGEST_WIDTH}: {advice}")
                    statistics[name] = ClassStatistics(K, d, "cpu" if device.type == "mps" else device)
                statistics[name].update(features[name], y)
    if not statistics:
        raise ValueError("the loader has no batch")
    return statistics


@contextmanager
def _randomness_kept(device: torch.device, *loaders):
    """Afterwards every generator that a loader or a layer may draw from is where it was.

    A DataLoader draws from PyTorch's global generator whenever it is iterated over, even in fixed order.
    """
    places = [place for loader in loaders for place in (loader, getattr(loader, "sampler", None))]
    found = (getattr(place, "generator", None) for place in places)
    generators = [generator for generator in found if isinstance(generator, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _passes(model, loader, hooked, device, reduce) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """For each batch the features of the hooked modules, by name, and the labels. To be closed."""
    features: dict[str, Tensor] = {}

    def of_output(name):
        # a copy: what comes next may work in place
        return lambda module, inputs, output: features.update({name: _as_rows(name, output, reduce, copy=True)})

    def of_input(name):
        return lambda module, inputs: features.update({name: _as_rows(name, inputs, reduce)})

    training = {module: module.training for module in model.modules()}
    handles, fused = [], torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)  # a fused transformer layer does not run its parts
        for name, module in hooked.items():
            if name == PENULTIMATE:
                handles.append(module.register_forward_pre_hook(of_input(name)))
            else:
                handles.append(module.register_forward_hook(of_output(name)))
        for batch in loader() if callable(loader) else loader:
            x, y = _split(batch)
            with torch.no_grad():  # in inference mode, what a model keeps for later could not be trained with
                if isinstance(x, Mapping):
                    model(**{name: _moved(value, device) for name, value in x.items()})
                elif isinstance(x, tuple | list) and not hasattr(x, "to"):  # a packed sequence is a tuple too
                    model(*(_moved(value, device) for value in x))
                else:
                    model(_moved(x, device))
            del batch, x  # before the loader makes the next one
            if missing := hooked.keys() - features.keys():
                raise ValueError(f"the layer {min(missing)!r} does not run when the model does")
            yield features, y
            features.clear()
    finally:
        for handle in handles:
            handle.remove()
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, mode in training.items():
            module.training = mode


def _split(batch) -> tuple:
    """Inputs and labels of a batch."""
    if not isinstance(batch, Mapping):
        return batch[0], batch[1]
    label = next((name for name in ("labels", "label") if name in batch), None)
    if label is None:
        raise ValueError(f"a batch has the entries {', '.join(map(str, batch))}; 'labels' or 'label' needed")
    return {name: value for name, value in batch.items() if name != label}, batch[label]


def _moved(value, device: torch.device):
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    return value.to(device) if hasattr(value, "to") else value


def _as_rows(name: str, output, reduce: str | Callable, copy: bool = False) -> Tensor:
    """Features `(n_samples, d)` made of what a module returned or was given."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.ndim < 2:
        raise ValueError(f"the layer {name!r} gives {_kind(output)}; a tensor (n_samples, ...) needed")
    if callable(reduce):
        output = reduce(output)
        if not isinstance(output, Tensor) or output.ndim != 2:
            raise ValueError(f"reduce makes {_kind(output)} of the layer {name!r}; a tensor (n_samples, d) needed")
    if output.ndim == 2 or reduce == "flatten":
        rows = output.flatten(1)
        return rows.clone() if copy else rows
    positions = (1,) if output.ndim == 3 else tuple(range(2, output.ndim))
    return output.mean(positions, dtype=torch.promote_types(output.dtype, torch.float32))


def _kind(output) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"


def _row(name: str, statistics: ClassStatistics) -> dict:
    means = statistics.means
    centred = means - statistics.global_mean
    return {
        "layer": name,
        "d": statistics.d,
        "samples": statistics.samples,
        "nc1": statistics.nc1(),
        "relative_spread": statistics.relative_spread(),
        "nc2_etf": formulas.nc2_etf(centred).item(),
        "nc2_of": formulas.nc2_of(means).item(),
        "nc3": None,
        "nc4": None,
        "numerical_rank": int(formulas.numerical_rank(centred)),
        "condition_number": formulas.condition_number(centred, min(statistics.K - 1, statistics.d)).item(),
    }


def _disagreement(passes, W: Tensor, b: Tensor | None, means: Tensor) -> float:
    """:func:`nc4` of features that come in batches."""
    samples = wrong = 0.0
    with closing(passes):
        for features, _ in passes:
            H = formulas.computed(features[PENULTIMATE])
            wrong += formulas.nc4(H, W.to(H), b, means.to(H)).item() * len(H)
            samples += len(H)
            del H  # before the next are made
    return wrong / samples


def _module(modules: dict[str, nn.Module], name: str) -> nn.Module:
    if name not in modules:
        names = [known for known in modules if known]
        near = checks.nearest(name, names)
        raise ValueError(f"the model has no layer {name!r}{near}; it has {', '.join(names)}, and {PENULTIMATE}")
    return modules[name]


def _cell(value) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
