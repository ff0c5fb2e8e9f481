"""One pass of a model over its data: batches of any kind, hooked layers, and the head among them."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from . import _checks as checks
from .columns import called, named

Loader = Iterable | Callable[[], Iterable]
Layer = str | nn.Module
Layers = Layer | Iterable[Layer] | None
Classifier = Layer | tuple[Tensor, Tensor | None]
#: What :func:`~collapsemetrics.measure` calls the input of the head.
PENULTIMATE = "penultimate"
LABELS = ("labels", "label", "label_ids", "targets", "target", "y")  # keys under which a batch may hold its labels
MASKS = ("attention_mask", "padding_mask", "key_padding_mask", "src_key_padding_mask")  # of tokens, among the inputs
PLAIN = {module.forward for module in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}  # those give W h + b


class Head(NamedTuple):
    """A classifier: its name, its module, weight `(K, d)` and bias `(K,)` or None."""

    name: str
    module: nn.Module
    weight: Tensor
    bias: Tensor | None


def as_head(name: str, module: nn.Module) -> Head:
    """The module as a head; ValueError unless its weight is `(K, d)` or that of a single-position convolution.

    One row gives the logit of the second of two classes, and stands for the scores `-(w h + b)` and `w h + b`.
    """
    if not _is_linear(module) or module.weight.is_meta:  # as an offloaded weight is
        advice = "run a lazy layer once before; otherwise give head=(W, b), and as layers= the layer that it reads"
        raise ValueError(f"{called(name, 'head')} has no weight (K, d) that can be read: {advice}")
    weight, bias = module.weight.detach().flatten(1), getattr(module, "bias", None)
    if len(weight) == 1:
        weight, bias = torch.cat([-weight, weight]), None if bias is None else torch.cat([-bias, bias])
    return Head(name, module, weight, None if bias is None else bias.detach())


def _is_linear(module: nn.Module | None) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or nn.parameter.is_lazy(weight) or isinstance(module, nn.Embedding):
        return False
    return weight.is_floating_point() and weight.ndim >= 2 and weight.shape[2:].numel() == 1


def _may_be_head(name: str, module: nn.Module) -> bool:
    """Whether the module scores its very input by its weight; a network with a weight of its own has layers between."""
    if not _is_linear(module) or type(module).forward in PLAIN:
        return _is_linear(module) or callable(getattr(module, "weight", None))  # as that of a quantised layer is
    weights = [getattr(part, "weight", None) for part in module.children()]
    return (name != "" or isinstance(module, nn.Linear)) and (not weights or any(w is module.weight for w in weights))


class Reader:
    """Runs a model over batches and hands out what some of its layers give, one batch at a time.

    Parameters
    ----------
    model, layers, device, reduce, label_key, ignore_index, mask, split, forward, most
        As in :func:`measure`, where `most` is called `batches`.

    Attributes
    ----------
    layers
        The names of the layers.
    head
        The :class:`Head` whose input is `"penultimate"`, None until it is set.
    K
        Number of classes that it has to give scores for; None until it is set.
    linear
        Whether these are `W h + b` of the features, by the first batch that was read; None before.
    read_by_head
        The name of the layer that the head reads, `"penultimate"` until another one is set.
    notes
        What a reader of the measures has to know, as sentences, and whether they were true of all that was read.
    frame
        What scores that tell samples of the classes from others need beside features, None until it is set.
    """

    POSITIONS = "each labelled position is a sample"  # among the notes

    def __init__(self, model, layers, device, reduce, label_key, ignore_index, mask, split, forward, most):
        if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
            raise ValueError(f"model is a {type(model).__name__}; an nn.Module that is no ScriptModule is needed")
        self.model, self.reduce, self.label_key, self.ignore_index = model, reduce, label_key, ignore_index
        self.mask, self.split, self.forward, self.most = mask, split, forward or _forward, most
        self.modules = {PENULTIMATE: None, **dict(model.named_modules())}
        layers = [layers] if isinstance(layers, str | nn.Module) else layers or [PENULTIMATE]
        self.layers = list(dict.fromkeys(map(self.name, layers)))
        self.device = torch.device(next((p.device for p in model.parameters()), "cpu") if device is None else device)
        if self.device.type == "meta":
            raise ValueError("the weights are on the meta device: load them, or give device= if they are offloaded")
        self.dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
        self.head = self.K = self.linear = self.frame = None
        self.read_by_head = PENULTIMATE
        self.notes: dict[str, bool] = {}
        if callable(reduce):
            given = inspect.signature(reduce).parameters.values()
            self.sees_batch = sum(p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD for p in given) > 1
        else:
            checks.one_of(("mean", "flatten"), reduce=reduce)

    def name(self, given: Layer) -> str:
        """The name of a submodule; ValueError if there is none."""
        if isinstance(given, nn.Module):
            known = (name for name, module in self.modules.items() if module is given)
            given = next(known, f"unknown {type(given).__name__}")
        if given not in self.modules:
            checks.one_of(filter(None, self.modules), module=given)
        return given

    def batches_of(self, loader: Loader, labelled: bool = True) -> Iterator[tuple]:
        """Inputs and labels of each batch, labels None unless `labelled`; ValueError for what is no batch."""
        workers, number = getattr(loader, "num_workers", 0), -1
        if workers > 1 and isinstance(loader.dataset, IterableDataset):
            self.notes[f"each of {workers} workers reads all of an IterableDataset that does not share it out"] = True
        for batch in islice(loader() if callable(loader) else loader, self.most):
            number += 1  # `enumerate` would keep a batch while the next is made
            with checks.errors_of(f"batch {number}, read as (x, y) unless split= is given"):
                x, y = self.split(batch) if self.split else self._split(batch, labelled)
                y = self._shifted(x, checks.integers_of(y)) if labelled else None
            del batch
            yield x, y
            del x
        if number < 0:
            raise ValueError("the loader has no batch")

    def find_head(self, x) -> Head:
        """The module whose output for inputs is the model's; the last of several, ValueError if it is that of none.

        The module may also give the model's output for each token, of which the model takes one, or for each position,
        over which the model averages; or it may run several times, and once give the model's output or its first rows.
        """
        outputs: dict[str, list[Tensor]] = {}  # of the first sample, in the order in which the modules have run

        def keep(name, module, inputs, named, output):
            if isinstance(output, Tensor) and output.ndim > 1 and _may_be_head(name, module):
                outputs.setdefault(name, []).append(output[:1].clone())  # a view would keep all

        logits = _logits(self.watched(x, keep))
        reason, seen, found = "the model returns no scores (n_samples, K), or several tensors that may be these", [], []
        if logits is not None:
            reason = "the output of the model is that of no linear layer"
            same = 3 if logits.ndim == 3 else 2  # dimensions up to that of the classes; maps may be of another size
            seen = [name for name, runs in outputs.items() if runs[-1].shape[:same] == logits[:1].shape[:same]]
            found = [name for name, runs in outputs.items() if any(_gives(output, logits[:1]) for output in runs)]
        if not found:
            saw = f" (those of {', '.join(map(repr, seen))} have as many classes)" if seen else ""
            raise ValueError(f"{reason}{saw}: name the head, or give layers= with K= or with head=(W, b)")
        return as_head(found[-1], self.modules[found[-1]])

    def watched(self, x, keep: Callable):
        """The model's output for inputs, while `keep` is called as a hook, with the name of the module before it."""
        hooks = []
        for name, module in self.model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no such hooks
                hooks.append((module, partial(keep, name)))
        with evaluated(self.model, hooks), torch.no_grad():
            return self.forward(self.model, self._moved(x))

    def read(self, batches: Iterable[tuple]) -> Iterator[dict[str, tuple]]:
        """For each batch, by layer, features `(n, d)`, labels `(n,)` and scores; to be closed.

        Scores are None of layers that the head does not read, and as in :meth:`_scores`. Samples with the label
        `ignore_index` are left out. Without labels all are 0. ValueError for a layer that does not run.
        """
        outputs: dict[str, list] = {}  # of each run of a layer in a pass
        with evaluated(self.model, [self._hook(name, outputs) for name in self.layers]):
            for x, y in batches:
                with torch.no_grad():  # no inference mode: what a model keeps for later could not be trained with
                    x = self._moved(x)
                    result = self.forward(self.model, x)
                logits, of_head = _logits(result), None
                n = next((len(each) for each in (y, logits) if each is not None and each.ndim), 0)
                if PENULTIMATE in outputs:
                    outputs[PENULTIMATE], of_head = self._given(outputs[PENULTIMATE], logits, n)
                features = {}
                for name in self.layers:
                    if name not in outputs:
                        raise ValueError(f"{called(name)} does not run when the model does")
                    features[name] = self._labelled(name, _whole(outputs.pop(name), n), x, y, of_head, logits)
                del x, result, logits, of_head  # before the loader makes the next batch
                yield features
                features.clear()  # even if the caller still holds them

    def _hook(self, name: str, outputs: dict) -> tuple[nn.Module, Callable]:
        """A module and the hook that keeps what it gives in each run, for the head what it is given and gives."""

        def of_layer(module, inputs, named, output):
            outputs.setdefault(name, []).append(_copied(output))  # the next module may work in place

        def of_head(module, inputs, named, output):
            given = _copied(next(chain(inputs, named.values())))
            if module.weight.ndim == 3 and isinstance(given, Tensor):  # a convolution: (N, d, T) to tokens (N, T, d)
                given = given.mT
            outputs.setdefault(name, []).append((given, output))

        return (self.head.module, of_head) if name == PENULTIMATE else (self.modules[name], of_layer)

    def _given(self, runs: list[tuple], logits: Tensor | None, n: int) -> tuple[list, object]:
        """What the head reads, as of one run, and gives.

        Of several runs that one counts whose output is the model's, or all that share n samples; of several tokens that
        one which the model takes.
        """
        given, scores = (_whole(parts, n) for parts in zip(*runs, strict=True))
        if len(runs) > 1 and scores is runs[-1][1]:
            matching = [run for run in runs if logits is not None and _gives(run[1], logits)]
            if not matching:
                self.notes[f"{called(self.head.name, 'head')} runs several times in a pass: its last run counts"] = True
            given, scores = (matching or runs)[-1]
        tokens = _tokens(scores, logits)
        if tokens is not None and getattr(given, "ndim", 0) == 3:
            given = given[torch.arange(len(given), device=given.device), tokens]
        return [given], scores

    def _split(self, batch, labelled: bool) -> tuple:
        """Inputs and labels of a batch."""
        batch = [batch] if isinstance(batch, Tensor) and not labelled else batch
        if isinstance(batch, Mapping):
            known = (self.label_key,) if self.label_key else LABELS
            key = next((name for name in known if name in batch), None)
            if key is None and labelled:
                raise ValueError(f"it has the entries {', '.join(batch)}; say which are the labels: label_key=...")
            return {name: value for name, value in batch.items() if name != key}, batch.get(key)
        if not isinstance(batch, tuple | list) or len(batch) <= labelled:
            raise ValueError(f"it has {_kind(batch)}; if these are several loaders, measure each")
        return batch[0], batch[1] if labelled else None

    def _shifted(self, x, y: Tensor) -> Tensor:
        """The labels; if they are the inputs, as of causal language models, each token has the label of the next."""
        ids = x.get("input_ids") if isinstance(x, Mapping) else None
        if not isinstance(ids, Tensor) or ids.shape != y.shape or ((y != ids) & (y != self.ignore_index)).any():
            return y
        self.notes["labels are the input_ids: each token has the label of the next one, as in causal models"] = True
        return nn.functional.pad(y[:, 1:], (0, 1), value=self.ignore_index)

    def _moved(self, value):
        """Inputs on the device, arrays as tensors, with the precision of the weights if none of them has their own."""
        if isinstance(value, Mapping):
            return {name: self._moved(part) for name, part in value.items()}
        if isinstance(value, tuple | list) and not hasattr(value, "to"):
            return (list if isinstance(value, list) else tuple)(map(self._moved, value))
        if isinstance(value, np.ndarray) and value.dtype.kind in "bfiu":
            value = torch.from_numpy(value)
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype not in self.dtypes:
            return value.to(self.device, next(iter(self.dtypes), value.dtype))
        return value.to(self.device) if hasattr(value, "to") else value

    def _labelled(self, name: str, output, x, y: Tensor | None, *scores) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features `(n, d)` made from a module's output, labels and scores, without samples that do not count."""
        if y is not None and y.ndim > 1 and self.reduce == "mean" and getattr(output, "ndim", 0) == y.ndim + 1:
            rows, y = self._positions(name, output, y)
        else:
            rows = self._rows(name, output, x)
        rows = rows.as_subclass(Tensor)
        given = self._scores(rows, *scores) if name == self.read_by_head else None
        if y is None:
            return rows, torch.zeros(len(rows)).long(), given
        y = y.flatten() if len(rows) == y.numel() else y
        kept = y != self.ignore_index
        if y.shape == (len(rows),) and not kept.all():
            rows, y = rows[kept.to(rows.device)], y[kept]
            given = None if given is None else given[kept.to(given.device)]
        return rows, y, given

    def _positions(self, name: str, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Features of each position, and its label: for maps of another size that of the nearest position."""
        orders = [output, output.movedim(1, -1)][:: 1 if output.ndim == 3 else -1]  # (N, T, d) or (N, d, H, W) first
        output = next((given for given in orders if given.shape[:-1] == y.shape), orders[0])
        self.notes[self.POSITIONS] = True
        if output.ndim > 3 and output.shape[1:-1] != y.shape[1:]:
            self.notes[f"labels are resized to the maps of {named(name)!r}, by nearest neighbours"] = True
            y = nn.functional.interpolate(y[:, None].double(), output.shape[1:-1], mode="nearest-exact")[:, 0].long()
        return output.flatten(0, -2), y.flatten()

    def _rows(self, name: str, output, x) -> Tensor:
        """Features `(n_samples, d)` made from a module's output."""
        if callable(self.reduce):
            output = self.reduce(output, x) if self.sees_batch else self.reduce(output)
            if not isinstance(output, Tensor) or output.ndim != 2:
                raise ValueError(f"reduce makes {_kind(output)} of {called(name)}; a tensor (n_samples, d) needed")
        if not isinstance(output, Tensor) or output.ndim < 2:
            raise ValueError(f"{called(name)} gives {_kind(output)}; a tensor (n_samples, ...) needed")
        if output.ndim == 2 or self.reduce == "flatten":
            return output.flatten(1)
        order = f"{named(name)!r} may not be (N, T, d) or (N, d, H, W), as it was read: reduce= takes a function"
        self.notes[order] = self.notes.get(order, True) and self._is_ambiguous(name, output.shape)
        dtype = torch.promote_types(output.dtype, torch.float32)
        if output.ndim > 3:
            return output.mean(tuple(range(2, output.ndim)), dtype=dtype)
        mask = self._mask(x, output.shape[:2])
        if mask is None:
            return output.mean(1, dtype=dtype)
        weights = mask.to(dtype) / mask.sum(1, keepdim=True)
        return (output.to(dtype) * weights[..., None]).sum(1)

    def _is_ambiguous(self, name: str, shape: torch.Size) -> bool:
        """Whether tokens may come before samples, or of a map the last dimension is that of the layer's parameters."""
        vectors = self.head.weight[:1] if name == PENULTIMATE else self.modules[name].parameters()
        widths = {len(vector) for vector in vectors if vector.ndim == 1}
        return shape[0] == shape[1] if len(shape) == 3 else shape[-1] in widths and shape[1] not in widths

    def _mask(self, x, shape: torch.Size) -> Tensor | None:
        """Which tokens `(N, T)` count, None if all do or no input says."""
        if callable(self.mask):
            return self.mask(x)
        if isinstance(x, tuple | list):
            x = dict(zip(inspect.signature(self.model.forward).parameters, x, strict=False))
        entries = x.items() if isinstance(x, Mapping) else ()
        masks = {name: value for name, value in entries if getattr(value, "shape", None) == shape}
        if self.mask:
            checks.one_of(masks, mask=self.mask)
        for name in [self.mask] if self.mask else MASKS:
            if name in masks:
                return (masks[name] == 0) == name.endswith("padding_mask")
        if any(((value == 0) | (value == 1)).all() for value in masks.values()):
            self.notes["an input looks like a mask of tokens, and none was used: mask= names it"] = True
        return None

    def _scores(self, H: Tensor, *given) -> Tensor | None:
        """Scores `(n, K)`: the first that are given for each sample and class, or else `W h + b`.

        The head gives them, or else the model, which may take one token or average over them. None where W is zero, or
        fits neither classes nor features.
        """
        W, b = self.head.weight, self.head.bias
        last = 1 if self.head.module.weight.ndim > 2 else -1  # where a convolution has its channels, or a linear layer
        parts = [part.movedim(last, -1).flatten(0, -2) for part in given if isinstance(part, Tensor) and part.ndim > 1]
        parts = [torch.cat([-part, part], 1) if part.shape[1] == 1 else part for part in parts]  # of one logit
        scores = [part for part in parts if part.shape == (len(H), self.K)]
        if W.shape == (self.K, H.shape[1]) and (self.linear is None or not scores):
            scores.append(nn.functional.linear(H.to(W), W, b))
            error = (scores[-1].to(scores[0]) - scores[0]).norm()
            self.linear = bool(error <= 0.02 * scores[0].norm())  # which half precision keeps to
        return scores[0] if scores and W.any() else None


def _forward(model: nn.Module, x):
    """The model's output for the inputs of a batch."""
    if isinstance(x, tuple | list) and not hasattr(x, "to"):  # a packed sequence is a tuple too
        return model(*x)
    return model(**x) if isinstance(x, Mapping) else model(x)


def own(loader):
    """The loader, or a copy if its workers persist: iterating the original would reset the training loop's iterator.

    Of a loader that accelerate has prepared, the one below: the prepared one tells the optimiser where its reader is.
    """
    loader = getattr(loader, "base_dataloader", loader)
    if isinstance(loader, DataLoader) and loader.persistent_workers:
        loader = copy(loader)
        vars(loader).update(persistent_workers=False, _iterator=None)  # assigning them is refused
    return loader


@contextmanager
def evaluated(model: nn.Module, hooks: Iterable[tuple[nn.Module, Callable]]):
    """The model in evaluation mode, with hooks `(module, inputs, named inputs, output)`; afterwards as it was."""
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as afterwards:
        for module in model.modules():
            afterwards.callback(setattr, module, "training", module.training)
            if hasattr(module, "require_forward_param_sync"):  # of a wrapper by DDP: it waits for other processes
                afterwards.callback(setattr, module, "require_forward_param_sync", module.require_forward_param_sync)
                module.require_forward_param_sync = False
        model.eval()
        afterwards.callback(torch.backends.mha.set_fastpath_enabled, fused)
        torch.backends.mha.set_fastpath_enabled(False)  # a fused transformer layer does not run its parts
        for module, hook in hooks:
            afterwards.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        if "torch._dynamo" in sys.modules:  # perhaps the model is compiled, too; the import is slow
            # compiled code does not run the hooks that it was compiled without
            afterwards.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def randomness_kept(device: torch.device, *loaders):
    """Afterwards every generator that a loader or a layer may draw from is in the state it was in before.

    A DataLoader draws from PyTorch's global generator whenever it is iterated over, even in fixed order.
    """
    places = list(loaders)
    with ExitStack() as afterwards:
        for place in places:  # which grows meanwhile
            inner = (getattr(place, name, None) for name in ("sampler", "batch_sampler", "base_dataloader"))
            places += [part for part in inner if part is not None]
            generator = getattr(place, "generator", None)
            if isinstance(generator, torch.Generator):
                afterwards.callback(generator.set_state, generator.get_state())
        afterwards.callback(random.setstate, random.getstate())
        afterwards.callback(np.random.set_state, np.random.get_state())
        afterwards.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        yield


def _logits(result) -> Tensor | None:
    """The scores among what a model returned: its only two-dimensional tensor, or else what comes first.

    In a mapping they are `logits`, or `out` as in torchvision's models that label positions.
    """
    mapping = isinstance(result, Mapping)
    result = result.get("logits", result.get("out")) if mapping else getattr(result, "logits", result)
    if isinstance(result, tuple | list) and result:
        flat = [part for part in result if isinstance(part, Tensor) and part.ndim == 2] or list(result[:1])
        result = flat[0] if len(flat) == 1 else None
    result = result[:, None] if isinstance(result, Tensor) and result.ndim == 1 else result  # one logit a sample
    return result if isinstance(result, Tensor) and result.ndim >= 2 else None


def _gives(output: Tensor, logits: Tensor) -> bool:
    """Whether a module's output is the model's: as is, at one of the tokens, or averaged over tokens or positions."""
    if output.ndim == logits.ndim or logits.ndim != 2:
        return output.shape == logits.shape and torch.equal(output, logits)
    if _tokens(output, logits) is not None:
        return True
    averaged = output.mean(1) if output.ndim == 3 else output.flatten(2).mean(2)
    return averaged.shape == logits.shape and torch.allclose(averaged, logits, rtol=1e-4, atol=1e-6)


def _tokens(scores, logits: Tensor | None) -> Tensor | None:
    """For each sample the last token whose scores are the sample's; None if a sample has no such token."""
    if logits is None or getattr(scores, "ndim", 0) != 3 or scores.shape[::2] != logits.shape:
        return None
    same = (scores == logits[:, None]).all(-1)
    last = same.shape[1] - 1 - same.int().flip(1).argmax(1)
    return last if same.any(1).all() else None


def _copied(output):
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output.clone() if isinstance(output, Tensor) else output


def _whole(parts: Sequence, n: int):
    """What a layer gives in all of its runs if each of them had a part of the n samples, or else in the last."""
    sizes = [len(part) if isinstance(part, Tensor) and part.ndim else 0 for part in parts]
    return torch.cat(parts) if len(parts) > 1 and all(sizes) and sum(sizes) == n else parts[-1]


def _kind(output) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
