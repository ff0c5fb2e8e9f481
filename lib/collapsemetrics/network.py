r"""Every measure of collapse of the layers of a PyTorch model: :func:`measure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from . import _checks as checks
from . import formulas
from .columns import COLUMNS, called, named
from .passes import PENULTIMATE, Classifier, Layer, Layers, Loader, Reader, as_head, own, randomness_kept
from .streaming import ClassStatistics
from .table import ClassMeans, LayerShapes, Measures

LARGEST_WIDTH = 8192  # half a scatter matrix of this width takes 256 MiB
KEPT = 2**29  # bytes of features that are kept for NC4, which needs the final class means

TOLERATED = 0.05  # share of NC1 that few samples may take away before a note says so


def measure(
    model: nn.Module,
    loader: Loader,
    layers: Layers = None,
    device: torch.device | str | None = None,
    *,
    head: Classifier | None = None,
    K: int | None = None,
    nc4: bool = False,
    details: bool = False,
    reduce: str | Callable[..., Tensor] = "mean",
    test_loader: Loader | None = None,
    outside_loader: Loader | None = None,
    centre: str = "classes",
    missing: str = "refuse",
    label_key: str | None = None,
    ignore_index: int = -100,
    mask: str | Callable[..., Tensor] | None = None,
    split: Callable[..., tuple] | None = None,
    forward: Callable | None = None,
    batches: int | None = None,
    group=None,
) -> Measures:
    r"""Every measure of collapse of a model's features, from one pass over the data and in bounded memory.

    For each layer only the class means and one scatter matrix are kept (:class:`ClassStatistics`), and unless `nc4`
    asks for them never the features of more than one batch. The model runs in evaluation mode, without gradients, and
    is left as it was found. So are the random number generators: the global ones of PyTorch, Python and NumPy, and
    those of the loaders. A DataLoader whose workers persist is not itself iterated, as that would reset the training
    loop's iterator: a copy with the same data set, batches and collation is read instead.

    Parameters
    ----------
    model
        Any PyTorch model that takes a batch `x`: as `model(*x)` where x is a tuple or list, as `model(**x)` where it is
        a mapping, and as `model(x)` otherwise, unless `forward` says how. NumPy arrays become tensors.
    loader
        A DataLoader, a list, or a function without arguments that returns an iterable, such as a generator function.
        Batches are `(x, y, ...)`, with labels `y: (n_samples,)` or `(n_samples, 1)` in `0..K-1` as a tensor, an array
        or a list of integers, integral floats or bools. In a batch that is a mapping, the entry `labels` (or `label`,
        `label_ids`, `targets`, `target`, `y`) is y, and the other entries are x. Measure without augmentation: samples
        drawn anew in each pass are neither what the model was trained on nor what the next measurement sees.

        With labels of positions, `(N, H, W)` or `(N, T)`, each position is a sample of the layers that give
        `(N, d, H, W)` or `(N, T, d)`; maps of another size take the labels of the nearest positions. Labels that equal
        the entry `input_ids` are those of a causal language model: each token has the label of the next one.
    layers
        Submodules whose outputs are the features, or their names as in `model.named_modules()`; or `"penultimate"`, the
        default, which is the input of the head. If a module runs several times in a pass, its last output counts, or
        all of them, joined, where each is of a part of the batch; if an output is a tuple, its first entry.
    device
        Where batches are moved; by default to the device of the model's first parameter. The model is not moved.
        Inputs in a precision that none of its weights has are given that of the first.
    head
        The classifier, a module (or its name) with a `weight: (K, d)` and perhaps a `bias: (K,)`, or a convolution over
        single positions. By default the module whose output is the model's: as it is, averaged over positions, or at
        one of the tokens, as in sequence classifiers; that token then stands for the sample. It is found by running the
        first batch once more. Of several runs of the head the one counts whose output is the model's. A weight of one
        row, whose score is the logit of class 1, stands for the two rows `[-w, w]`. Where no module is the classifier,
        give `(W, b)`, of shapes `(K, d)` and `(K,)` or None, and as the last of the `layers` the one that it reads.
    K
        Number of classes; by default the number of rows of the head's weight. If it differs from that, there is no
        `nc3`.
    nc4
        Whether to measure :func:`nc4` and `ncm_accuracy`, which compare each feature with the final class means. Up to
        half a GiB of features is kept for that; more needs a second pass.
    details
        Whether to measure also what fewer people look for: :func:`effective_rank` and :func:`alpha_req`, which take the
        eigenvalues of a `d * d` matrix for each layer, and :func:`nc0`, :func:`nc2_norms` and :func:`nc2_angles` of the
        head's weight.
    reduce
        How positions are reduced: `"mean"` averages features `(N, C, H, W)` over `H, W` (or any number of such
        dimensions but one) and tokens `(N, T, d)` over `T`, or over the tokens that a `mask` shows; `"flatten"` makes
        one long vector of each sample. Or a function of the layer's output, and perhaps of the inputs x, that returns
        features `(N, d)`: `lambda h: h[:, 0]` takes the first token. Other orders of dimensions, `(N, H, W, C)` or
        `(T, N, d)`, are not recognised, but noted where they are likely: a function handles them, such as
        `lambda h: h.mean((1, 2)) if h.ndim == 4 else h`, which is called for each of the layers.
    test_loader
        Samples that the model was not trained on, in batches like those of `loader`. With them each row has
        `dilation`: :func:`dilation`, the NC1 of these samples, from another pass; and `test_ncm_accuracy`, and for
        `"penultimate"` `test_accuracy` and `test_nc4`, with the class means of the training samples.
    outside_loader
        Samples that belong to none of the classes, in batches of the same kind or of x alone; their labels do not
        count. With them each row has :func:`nc5`, from another pass. If there is a `test_loader` too, what the head
        reads gets `auroc_neco` and `auroc_nci`: how well two scores tell the test samples from these, as areas under
        the ROC curve. With the mean :math:`c` of the training samples, NECO is :math:`\|V(h-c)\| / \|h-c\|`, where the
        rows of :math:`V` are the first `min(K, d) - 1` principal directions of these samples, and NCI is
        :math:`\langle w,h-c\rangle / \|h-c\|`, where :math:`w` is the weight of the largest score. Sources: Ammar et
        al. (2024), who take :math:`h`, standardised for some networks, in place of :math:`h-c` and leave the number of
        directions open, and Liu & Qin (2023), here without their multiple of :math:`\|h\|_1`, whose factor is to be
        tuned. Not measured with labels of positions.
    centre
        What class means are centred with: the mean of the class means (`"classes"`), or that of all samples
        (`"samples"`, as in :func:`nc1`). The two differ where classes have unequal sizes.
    missing
        What to do if a class has no samples: `"refuse"` raises an error, `"skip"` measures the others.
    label_key
        The key of the labels in batches that are mappings, if it is none of the usual ones.
    ignore_index
        Samples with this label are left out.
    mask
        Which tokens count in averages over `(N, T, d)`: the name of an input `(N, T)` of the model that is zero at
        padding, or zero everywhere else if the name ends in `padding_mask`. Or a function of the inputs x that returns
        a tensor `(N, T)`, one or True at tokens that count: `lambda x: x != 0`. By default an input with a usual name:
        `attention_mask`, `padding_mask`, `key_padding_mask` or `src_key_padding_mask`.
    split
        A function that makes `(x, y)` of a batch of another kind, such as `lambda batch: (batch[:2], batch[2])`,
        `lambda data: (data, data.y)`, or `lambda batch: (batch, batch["labels"])` for a model that reads the labels.
    forward
        A function of the model and x that runs it, by default as above: `lambda model, x: model(x)` for a model that
        takes a list or a dictionary.
    batches
        How many batches to read of each loader, by default all: for streams without an end.
    group
        A `torch.distributed` group in which every process calls this with its share of the samples: each gets the
        measures of all samples, for the model with the buffers of the first process (batch normalisation collects other
        running statistics in each). Without a group a process measures its own share, with its own buffers.

    Returns
    -------
    Measures
        One dictionary for each layer: `layer`, `d`, `samples`; `nc1`, and `nc1_chance`, the same with labels drawn at
        random; `trace_ratio` and its debiased value; `cdnv`; `relative_spread`; `nc2_etf`, `nc2_norms`, `nc2_angles`
        and `uniformity` of the centred class means, `nc2_of` of the class means as they are; `numerical_rank` of the
        centred means and `condition_number`, over the `min(K - 1, d)` directions that they can span; for
        what the head reads `nc3`, `duality`, `accuracy` and `nc4`, None for other layers.

        `accuracy` is the share of samples whose largest score is that of their class, `ncm_accuracy` that of samples
        whose nearest class mean is. Scores are those that the head itself gives. If classes are left out
        (`missing="skip"`), `nc4` asks for the largest score among the others. Options add rows, as said there.

    Raises
    ------
    ValueError
        For a model that is no `torch.nn.Module` or has no values, a name that no module has, a layer that does not run
        or does not give such features, features wider than 8192, a model whose output is that of no linear layer or
        that returns several two-dimensional tensors, without `head`; labels outside `0..K-1`, an empty class or loader,
        `K < 2`, features that are not finite, and `nc4` without `"penultimate"`, or with many samples from a loader
        that can be read once only.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> batch = torch.eye(4)[:3], torch.tensor([0, 1, 2])  # one point for each class
    >>> found = measure(model, [batch, batch])
    >>> found.head, found[0]["d"], found[0]["samples"], found[0]["nc1"]
    ('1', 4, 6, 0.0)
    >>> found[0]["numerical_rank"], round(found[0]["nc2_etf"], 4)
    (2, 0.0)
    """
    checks.one_of(("classes", "samples"), centre=centre)
    checks.one_of(("refuse", "skip"), missing=missing)
    checks.integers(1, batches=1 if batches is None else batches)
    reader = Reader(model, layers, device, reduce, label_key, ignore_index, mask, split, forward, batches)
    loader, test_loader, outside_loader = map(own, (loader, test_loader, outside_loader))
    kept = randomness_kept(reader.device, loader, test_loader, outside_loader)
    with kept, _buffers_of_first(model, group):
        with _failing_together(group):
            passed = _begun(reader, reader.batches_of(loader), head, K)
        if nc4 and reader.read_by_head not in reader.layers:
            raise ValueError(f"nc4 is measured of {PENULTIMATE!r}, which is not among layers = {reader.layers}")
        if nc4 and (rows := len(reader.head.weight)) != reader.K:
            raise ValueError(f"the head has {rows} rows and K is {reader.K}: nc4 needs one for each class")
        both = test_loader is not None and outside_loader is not None
        found = _of_training(reader, loader, passed, nc4, details, centre, missing, group, both)
        if test_loader is not None:
            inside = _add_test(found, reader, test_loader, missing, group)
        if outside_loader is not None:
            outside = _add_nc5(found, reader, outside_loader, group)
        if reader.frame:
            row = found[reader.layers.index(reader.read_by_head)]
            pairs = zip(torch.cat(inside, 1), torch.cat(outside, 1), strict=True)
            row["auroc_neco"], row["auroc_nci"] = (formulas.auroc(*pair).item() for pair in pairs)
    found.notes += [note for note, holds in reader.notes.items() if holds]
    found[:] = [{column: row[column] for column in COLUMNS if column in row} for row in found]
    return found


def layers(model: nn.Module, batch, *, split: Callable | None = None, forward: Callable | None = None) -> LayerShapes:
    """The layers that :func:`measure` may be asked for, with the shapes of what they give, found by running a batch.

    Parameters
    ----------
    model
        As in :func:`measure`, and left as it was found.
    batch
        One of the batches that :func:`measure` takes, or x alone.
    split, forward
        As in :func:`measure`.

    Returns
    -------
    LayerShapes
        The shape by the name of the layer, in the order in which they run; printed as a table. Of an output that is a
        tuple its first entry counts. Layers that do not run, or give something else, are left out.

    Raises
    ------
    ValueError
        For what is no batch, and for a model that :func:`measure` refuses.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> batch = torch.eye(4)[:3], torch.tensor([0, 1, 2])
    >>> print(layers(model, batch))
    layer  output
    0      (3, 8)
    1      (3, 8)
    2      (3, 3)
    """
    reader = Reader(model, None, None, "mean", None, -100, None, split, forward, 1)
    found = LayerShapes()

    def keep(name, module, inputs, named, output):
        output = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(output, Tensor) and name:
            found[name] = tuple(output.shape)

    with randomness_kept(reader.device):
        x, _ = next(reader.batches_of([batch], labelled=False))
        reader.watched(x, keep)
    return found


def _begun(reader: Reader, batches: Iterator[tuple], given: Classifier | None, K: int | None) -> Iterable[tuple]:
    """The batches, once the reader knows the head and the number of classes, by default that of the head's rows.

    The head is the one that was given, or else the one found by running on the first batch; None where none is needed.
    """
    first, head = next(batches), None
    if isinstance(given, tuple | list):
        W, b = given
        if PENULTIMATE in reader.layers:
            raise ValueError("head = (W, b): give as layers= the layer that it reads, the last if there are several")
        head = as_head("(W, b)", SimpleNamespace(weight=W, bias=b))
        reader.read_by_head = reader.layers[-1]
    elif given is not None:
        name = reader.name(given)
        head = as_head(name, reader.modules[name])
    elif K is None or PENULTIMATE in reader.layers:
        head = reader.find_head(first[0])
    reader.head, reader.K = head, len(head.weight) if K is None else K
    checks.integers(2, K=reader.K)
    return chain([first], batches)


def cka(model: nn.Module, loader: Loader, a: Layer, b: Layer, device=None, reduce="mean", label_key=None) -> float:
    r"""Linear centred kernel alignment of two layers of a model, from unbiased estimates in each batch.

    .. math:: \frac{\sum_t h(K_t, L_t)}{\sqrt{\sum_t h(K_t, K_t) \sum_t h(L_t, L_t)}}, \qquad
        h(K, L) = \operatorname{Tr} KL + \frac{1^\top K 1\; 1^\top L 1}{(n-1)(n-2)} - \frac2{n-2} 1^\top K L 1

    :math:`K_t` and :math:`L_t` are the products of all pairs of the features of the two layers in batch `t` of `n`
    samples, with zeros on their diagonals. With equal layers up to rotation, scale and place it is 1; of layers without
    relation it is 0 on average, and may be negative. Numerator and factors of the denominator are unbiased, up to a
    common factor, for batches of any size of at least four samples; smaller ones are left out, and if there are no
    others the result is nan. Only the features of one batch are in memory, and labels do not count.

    Two models, of two seeds for example, are compared as parts of one module whose `forward` runs both.

    Sources: Kornblith et al. (2019), CKA; Song et al. (2012), the unbiased estimate, :math:`h / n(n-3)`; Nguyen, Raghu
    & Kornblith (2021), its mean over batches of one size. Here a batch has the weight :math:`n(n-3)`.

    Parameters
    ----------
    model, loader, device, reduce, label_key
        As in :func:`measure`; model and random number generators are left as they were.
    a, b
        Two modules or their names, or `"penultimate"`.

    Raises
    ------
    ValueError
        For layers and batches, as :func:`measure`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> _ = nn.init.orthogonal_(model[0].weight)
    >>> whole = nn.Sequential(nn.Identity(), model)
    >>> x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    >>> round(cka(whole, [(x, None)], "0", "1.0"), 4), cka(whole, [(x, None)], "0", "1.1") < 0.999
    (1.0, True)
    """
    reader = Reader(model, [a, b], device, reduce, label_key, -100, None, None, None, None)
    loader, total = own(loader), torch.zeros(3).double()
    with randomness_kept(reader.device, loader):
        batches = _begun(reader, reader.batches_of(loader, labelled=False), None, 2)
        with closing(reader.read(batches)) as passed:
            for features in passed:
                X, Y = (features[reader.name(layer)][0].cpu().double() for layer in (a, b))
                K, L = (((H - H.mean(0)) @ (H - H.mean(0)).T).fill_diagonal_(0) for H in (X, Y))
                if len(K) > 3:
                    total += torch.stack([_hsic(K, L), _hsic(K, K), _hsic(L, L)])
    return (total[0] / (total[1] * total[2]).sqrt()).item()


def _hsic(K: Tensor, L: Tensor) -> Tensor:
    n = len(K)
    return (K * L).sum() + K.sum() * L.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (K.sum(0) @ L.sum(0))


def _of_training(
    reader: Reader, loader: Loader, batches: Iterable, nc4: bool, details: bool, centre: str, missing: str, group, both
) -> Measures:
    """A row for each layer, with what there is to say of them.

    Sets the reader's frame if `both` test and outside samples are to be read.
    """
    kept, head, K = _Kept(), reader.head, reader.K
    classes, collected, accuracy, _ = _collected(reader, batches, K, missing, group, kept.add if nc4 else None)
    found = Measures(K=len(classes), head=head.name if head else None, centre=centre)
    for name, part in collected.items():
        row = {"layer": name, "d": part.d, "samples": part.samples} | part.measures(centre, details)
        is_read = name == reader.read_by_head
        row |= {"nc3": None, "duality": None, "nc4": None, "accuracy": accuracy if is_read else None}
        if is_read and head.weight.shape == (K, part.d) and head.weight.any():
            W = head.weight[classes].to(part.means)
            row["nc3"] = formulas.nc3(W, part.means).item()
            row["duality"] = formulas.duality(W, part.means - part.centre(centre)).item()
            if details:
                row |= {"nc0": formulas.nc0(W).item(), "nc2_norms_head": formulas.nc2_norms(W).item()}
                row["nc2_angles_head"] = formulas.nc2_angles(W).item()
            if both and reader.POSITIONS not in reader.notes:
                covariance = part.within_class_covariance + torch.cov(part.means.T, correction=0, fweights=part.counts)
                directions = torch.linalg.eigh(covariance).eigenvectors[:, max(part.d - len(classes), 0) + 1 :]
                reader.frame = part.centre(), directions, head.weight.to(part.means)
        found.append(row)
        found.statistics[name] = ClassMeans(part.means, part.counts, part.variances, classes)
    found.notes = _notes(found, collected, reader)
    if nc4:
        counts = torch.zeros(len(found), 3, dtype=torch.int64, device=reader.device)
        with _failing_together(group):
            for features in kept or _again(reader, loader):
                _compare(found, counts, features)
        _add_compared(found, counts, "", group)
    if len(classes) < K:
        found.notes.append(f"{K - len(classes)} of {K} classes have no sample and are left out")
    if group is None and isinstance(getattr(loader, "sampler", None), DistributedSampler):
        found.notes.append("the share of this process only; group=torch.distributed.group.WORLD measures all")
    return found


def _add_test(found: Measures, reader: Reader, loader: Loader, missing: str, group) -> list[Tensor]:
    """Dilation, and what is classified right, of every row, from samples that the model was not trained on.

    Returns their values of :func:`_scored`.
    """
    counts = torch.zeros(len(found), 3, dtype=torch.int64, device=reader.device)
    compare, batches = partial(_compare, found, counts), reader.batches_of(loader)
    with checks.errors_of("test_loader"):
        seen, collected, accuracy, values = _collected(reader, batches, reader.K, missing, group, compare)
    _add_compared(found, counts, "test_", group)
    for row in found:
        part = collected[row["layer"]]
        row["dilation"] = part.nc1(found.centre)
        row["test_accuracy"] = accuracy if row["layer"] == reader.read_by_head else None
    if not torch.equal(seen, found.statistics[reader.layers[0]].classes):
        found.notes.append(f"the test samples are of {len(seen)} classes, and not of the same")
    if few := _few(found, "dilation", part.counts):
        found.notes.append(f"too few test samples of a class for dilation, which may be off by: {few}")
    return values


def _add_nc5(found: Measures, reader: Reader, loader: Loader, group) -> list[Tensor]:
    """NC5 of every row, from samples of none of the classes; returns their values of :func:`_scored`."""
    with checks.errors_of("outside_loader"):
        _, collected, _, values = _collected(reader, reader.batches_of(loader, labelled=False), 1, "refuse", group)
    for row in found:
        name = row["layer"]
        row["nc5"] = formulas.nc5(found.statistics[name].means, collected[name].means[0]).item()
    return values


def _scored(H: Tensor, scores: Tensor, centre: Tensor, directions: Tensor, W: Tensor) -> Tensor:
    """NECO and NCI of samples, `(2, n)`, as :func:`measure` says, with principal `directions: (d, r)`."""
    H = nn.functional.normalize(H.to(centre) - centre, dim=1)
    return torch.stack([(H @ directions).norm(dim=1), (H * W[scores.argmax(1).to(W.device)]).sum(1)])


def _collected(
    reader: Reader, batches: Iterable, K: int, missing: str, group, then: Callable | None = None
) -> tuple[Tensor, dict[str, ClassStatistics], float | None, list[Tensor]]:
    """The classes that have samples, by layer the statistics of these classes, and the accuracy, from one pass.

    `then` is called with each batch, once it has been checked. Last come values of :func:`_scored`, if there is a frame
    for them.
    """
    found: dict[str, ClassStatistics] = {}
    values = []
    right = torch.zeros(2, dtype=torch.int64, device=reader.device)  # samples that are classified right, and all
    with _failing_together(group), closing(reader.read(batches)) as passed:
        for number, features in enumerate(passed):
            for name in features:  # a variable for the features would keep them while the next are made
                if name not in found:
                    found[name] = _statistics(name, K, features[name][0].shape[1], reader.device)
                with checks.errors_of(f"{called(name)}, batch {number}"):
                    found[name].update(*features[name][:2])
                y, scores = features[name][1:]
                if scores is not None:
                    right += torch.tensor([(scores.argmax(1).cpu() == y.cpu()).sum(), len(y)]).to(right)
                    if reader.frame:
                        values.append(_scored(features[name][0], scores, *reader.frame).cpu())
            if then:
                then(features)
    if group is not None:
        torch.distributed.all_reduce(right, group=group)
        for part in found.values():
            part.reduce(group)
        values = sum(_of_each_process(values, group), [])
    classes = _classes(found[reader.layers[0]].counts, missing)
    if len(classes) < K:
        found = {name: part.without_empty() for name, part in found.items()}
    return classes, found, right[0].item() / right[1].item() if right[1] else None, values


class _Kept(list):
    """Batches of features, unless they are too many; then it ends up empty."""

    size = 0  # in bytes

    def add(self, features: dict[str, tuple]) -> None:
        self.append({name: (part[0].clone(), *part[1:]) for name, part in features.items()})
        self.size += sum(part.nbytes for parts in features.values() for part in parts if part is not None)
        if self.size > KEPT:
            self.clear()


def _compare(found: Measures, counts: Tensor, features: dict[str, tuple]) -> None:
    """Count the samples of a batch: for each row all, those nearest to their own class mean, and those that the head
    puts into another class than the nearest.
    """
    for row, count in zip(found, counts, strict=True):
        H, y, scores = features[row["layer"]]
        means, _, _, classes = found.statistics[row["layer"]]
        near = formulas.nearest(H.to(means), means).cpu()
        taken = near if scores is None else scores[:, classes].argmax(1).cpu()
        count += torch.tensor([len(y), (classes[near] == y.cpu()).sum(), (taken != near).sum()]).to(count)


def _add_compared(found: Measures, counts: Tensor, prefix: str, group) -> None:
    """To each row the accuracy of the nearest class mean, and to that of the head NC4."""
    if group is not None:
        torch.distributed.all_reduce(counts, group=group)
    for row, (n, right, apart) in zip(found, counts.tolist(), strict=True):
        row[f"{prefix}ncm_accuracy"] = right / n
        row[f"{prefix}nc4"] = None if row["accuracy"] is None else apart / n


def _statistics(name: str, K: int, d: int, device: torch.device) -> ClassStatistics:
    """Empty statistics of a layer; on the CPU for MPS, a device without float64."""
    if d > LARGEST_WIDTH:
        raise ValueError(f"{called(name)} is {d} wide, above {LARGEST_WIDTH}: use reduce='mean' or a narrower layer")
    return ClassStatistics(K, d, "cpu" if device.type == "mps" else device, chance=K > 1)


def _classes(counts: Tensor, missing: str) -> Tensor:
    """The classes that have samples; ValueError where one has none and is not to be skipped."""
    seen = counts.nonzero()[:, 0].cpu()
    if len(seen) < len(counts) and (missing == "refuse" or len(seen) < 2):
        absent = int((counts == 0).nonzero()[0])
        labels = ", ".join(map(str, seen[:10].tolist())) + (", ..." if len(seen) > 10 else "")
        known = f"K is {len(counts)} (the rows of the head, unless given), and labels seen are {labels or 'none'}"
        raise ValueError(f"class {absent} has no sample: {known}; give K, or missing='skip' to measure the others")
    return seen


def _notes(found: Measures, collected: dict[str, ClassStatistics], reader: Reader) -> list[str]:
    """What a reader of the table has to know: samples in each class, head and centre, and what may mislead."""
    counts = next(iter(collected.values())).counts
    least, most = int(counts.min()), int(counts.max())
    notes = [f"{len(counts)} classes of {least if least == most else f'{least} to {most}'} samples"]
    if reader.read_by_head in collected:
        notes[0] += f"; the head is {repr(found.head) if found.head else 'the model itself'}"
    notes[0] += f"; centred at the mean of {'the class means' if found.centre == 'classes' else 'all samples'}"
    if most > 2 * least:
        notes.append("unequal classes: NC1 and NC2 depend on the centre, and large classes decide the spreads")
    what = called(found.head or "", "head")
    if reader.read_by_head in collected and not reader.head.weight.any():
        notes.append(f"the weight of {what} is zero: there is nothing to compare features with")
    elif PENULTIMATE in collected and reader.linear is False:
        notes.append(f"{what} is no plain linear layer: its scores are not W h + b, and NC3 and duality see W alone")
    if few := _few(found, "nc1", counts):
        notes.append(f"too few samples of a class for their NC1, which may be off by: {few}")
    if noise := ", ".join(named(name) for name, part in collected.items() if part.is_noise(found.centre)):
        notes.append(f"noise may be all that tells class means apart; trace_ratio_debiased is then arbitrary: {noise}")
    for row in found:
        possible = min(len(counts) - 1, row["d"])
        if row["numerical_rank"] < possible and (left := collected[row["layer"]].left_out(found.centre)):
            notes.append(f"NC1 leaves out {left} of {possible} directions, as rounding: {named(row['layer'])}")
    return notes


def _few(rows: Measures, column: str, counts: Tensor) -> str:
    """The layers for whose NC1 in a given column the smallest class has too few samples, and by how much it is off.

    With noise of the same variance in all directions, NC1 is about its true value times (n - 1) / n, as the means are
    those of the samples, and times 1 - lost / (n - 1), as these scatter, see the book; with fewer dimensions than
    classes, noise alone has an NC1 of (n - 1) d / (K - d - 2).
    """
    K, least, few = len(counts), int(counts.min()), []
    for row in rows:
        lost = row[column] * ((row["d"] - K) / (K - 1) if row["d"] > K else (K - row["d"] - 2) / row["d"])
        if (bias := min((1 + lost) / least, 1)) > TOLERATED:
            few.append(f"{named(row['layer'])} {bias:.0%}")
    return ", ".join(few)


@contextmanager
def _failing_together(group) -> Iterator[None]:
    """An error in one process of a group is one in all: the others would wait for it."""
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    if group is not None:
        for rank, text in enumerate(_of_each_process(error and str(error), group)):
            if text and not error:
                raise ValueError(f"process {rank} of the group: {text}")
    if error:
        raise error


def _of_each_process(value, group) -> list:
    """The values that the processes of a group have, in their order."""
    found = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, value, group)
    return found


@contextmanager
def _buffers_of_first(model: nn.Module, group) -> Iterator[None]:
    """In every process of a group the buffers of the first: each collects running statistics of its own.

    Afterwards each has its own again.
    """
    with ExitStack() as afterwards:
        for buffer in [] if group is None else model.buffers():
            afterwards.callback(setattr, buffer, "data", buffer.data)
            buffer.data = buffer.clone(memory_format=torch.contiguous_format)
            torch.distributed.broadcast(buffer, torch.distributed.get_global_rank(group, 0), group)
        yield


def _again(reader: Reader, loader: Loader) -> Iterator:
    """The batches of another pass."""
    if isinstance(loader, Iterator):
        raise ValueError("nc4 of so many features needs a second pass, and the loader can be read once only")
    with closing(reader.read(reader.batches_of(loader))) as batches:
        yield from batches
