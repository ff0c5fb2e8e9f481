"""One pass of a model over its data: batches of any kind, hooked layers, and the head among them."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from . import _checks as checks

Loader = Iterable | Callable[[], Iterable]
Layer = str | nn.Module
#: What :func:`measure` calls the input of the head.
PENULTIMATE = "penultimate"
LABELS = ("labels", "label", "label_ids", "targets", "target", "y")  # keys under which a batch may hold its labels
IGNORED = -100  # the label that PyTorch's and transformers' losses leave out


class Head(NamedTuple):
    """A classifier: its name, its module, weight `(K, d)` and bias `(K,)` or None."""

    name: str
    module: nn.Module
    weight: Tensor
    bias: Tensor | None


def as_head(name: str, module: nn.Module) -> Head:
    """The module as a head; ValueError unless its weight is `(K, d)` or that of a single-position convolution."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim < 2 or weight[0, 0].numel() > 1:
        raise ValueError(f"the head {name!r} has no weight (K, d)")
    bias = getattr(module, "bias", None)
    return Head(name, module, weight.detach().flatten(1), None if bias is None else bias.detach())


class Reader:
    """Runs a model over batches and hands out what some of its layers give, one batch at a time.

    Parameters
    ----------
    model, device, reduce
        As in :func:`measure`.
    label_key
        The key of the labels in batches that are mappings, or None for the usual ones.
    """

    def __init__(self, model: nn.Module, device: torch.device, reduce: str | Callable, label_key: str | None):
        self.model, self.device, self.reduce, self.label_key = model, device, reduce, label_key
        if callable(reduce):
            given = inspect.signature(reduce).parameters.values()
            self.sees_batch = sum(p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD for p in given) > 1
        else:
            checks.one_of(("mean", "flatten"), reduce=reduce)

    def head(self, batch) -> Head | None:
        """The module whose output is the model's, found by running a batch; the last of several, None if there is none.

        The module may also give the model's output for each token, of which the model takes one, or for each position,
        over which the model averages.
        """
        first: dict[str, tuple[nn.Module, Tensor]] = {}

        def keep(name):
            def hook(module, inputs, named, output):
                if isinstance(output, Tensor):
                    first.pop(name, None)  # the last of several runs counts
                    first[name] = module, output[:1].clone()  # a sample is enough, and a view would keep all

            return hook

        candidates = []
        for name, module in self.model.named_modules():
            weight = None if isinstance(module, nn.Embedding) else getattr(module, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim >= 2 and weight.shape[2:].numel() == 1:
                candidates.append((module, keep(name)))
        with evaluated(self.model, candidates), torch.no_grad():
            logits = _logits(self._run(self._split(batch)[0])[1])
        if logits is None:
            return None
        logits = logits[:1]
        found = [name for name, (_, output) in first.items() if _gives(output, logits)]
        return as_head(found[-1], first[found[-1]][0]) if found else None

    def read(
        self, batches: Iterable, layers: dict[str, nn.Module], head: Head | None, labelled: bool = True
    ) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """For each batch the features `(n, d)` of some layers and of the head's input, and its labels; to be closed.

        Samples with the label -100 are left out. Unless `labelled`, all labels are 0. ValueError for a layer that does
        not run, and for anything that is not a batch.
        """
        outputs: dict[str, object] = {}

        def of_output(name):
            # a copy: the next module may work in place
            return lambda module, inputs, named, output: outputs.update({name: _copied(output)})

        def of_head(module, inputs, named, output):
            given = _copied(next(chain(inputs, named.values())))
            if module.weight.ndim == 3 and isinstance(given, Tensor):  # a convolution: (N, d, T) to tokens (N, T, d)
                given = given.mT
            outputs[PENULTIMATE] = given, output

        hooks = [(module, of_output(name)) for name, module in layers.items() if name != PENULTIMATE]
        if PENULTIMATE in layers:
            hooks.append((head.module, of_head))
        with evaluated(self.model, hooks):
            batches = iter(batches)
            while (batch := next(batches, None)) is not None:  # `enumerate` would keep one while the next is made
                x, y = self._split(batch)
                del batch  # before the loader makes the next one
                with torch.no_grad():  # no inference mode: what a model keeps for later could not be trained with
                    x, result = self._run(x)
                if missing := layers.keys() - outputs.keys():
                    raise ValueError(f"the layer {min(missing)!r} does not run when the model does")
                if PENULTIMATE in outputs:
                    outputs[PENULTIMATE] = _chosen(*outputs[PENULTIMATE], _logits(result))
                features = {name: self._rows(name, outputs.pop(name), x) for name in layers}
                del x, result
                n = len(next(iter(features.values())))
                y = checks.integers_of(y) if labelled else torch.zeros(n).long()
                kept = y != IGNORED
                if y.shape == (n,) and not kept.all():
                    y = y[kept]
                    features = {name: rows[kept.to(rows.device)] for name, rows in features.items()}
                yield features, y
                features.clear()  # even if the caller still holds them

    def _split(self, batch) -> tuple:
        """Inputs and labels of a batch."""
        if isinstance(batch, Tensor) or (isinstance(batch, tuple | list) and len(batch) < 2):
            raise ValueError(f"a batch is no (x, y), but has {_kind(batch)}")
        if not isinstance(batch, Mapping):
            return batch[0], batch[1]
        known = (self.label_key,) if self.label_key else LABELS
        key = next((name for name in known if name in batch), None)
        if key is None:
            entries = ", ".join(map(str, batch))
            raise ValueError(f"a batch has the entries {entries}; say which are the labels: label_key=...")
        return {name: value for name, value in batch.items() if name != key}, batch[key]

    def _run(self, x) -> tuple:
        """The inputs, moved to the device, and the model's output."""
        if isinstance(x, Mapping):
            x = {name: _moved(value, self.device) for name, value in x.items()}
            return x, self.model(**x)
        several = isinstance(x, tuple | list) and not hasattr(x, "to")  # a packed sequence is a tuple too
        x = tuple(_moved(value, self.device) for value in x) if several else _moved(x, self.device)
        return x, self.model(*x) if several else self.model(x)

    def _rows(self, name: str, output, x) -> Tensor:
        """Features `(n_samples, d)` made from a module's output."""
        if callable(self.reduce):
            output = self.reduce(output, x) if self.sees_batch else self.reduce(output)
            if not isinstance(output, Tensor) or output.ndim != 2:
                raise ValueError(f"reduce makes {_kind(output)} of the layer {name!r}; a tensor (n_samples, d) needed")
        if not isinstance(output, Tensor) or output.ndim < 2:
            raise ValueError(f"the layer {name!r} gives {_kind(output)}; a tensor (n_samples, ...) needed")
        if output.ndim == 2 or self.reduce == "flatten":
            return output.flatten(1)
        dtype = torch.promote_types(output.dtype, torch.float32)
        if output.ndim > 3:
            return output.mean(tuple(range(2, output.ndim)), dtype=dtype)
        mask = x.get("attention_mask") if isinstance(x, Mapping) else None
        if mask is None or mask.shape != output.shape[:2]:
            return output.mean(1, dtype=dtype)
        weights = mask.to(dtype) / mask.sum(1, keepdim=True)
        return (output.to(dtype) * weights[..., None]).sum(1)


def own(loader):
    """The loader, or a copy if its workers persist: iterating the original would reset the training loop's iterator."""
    if isinstance(loader, DataLoader) and loader.persistent_workers:
        loader = copy(loader)
        vars(loader).update(persistent_workers=False, _iterator=None)  # assigning them is refused
    return loader


def peeked(loader) -> tuple[object, Iterator]:
    """The first batch of a loader, and an iterator over all batches; ValueError if there is none."""
    batches = iter(loader() if callable(loader) else loader)
    try:
        first = next(batches)
    except StopIteration:
        raise ValueError("the loader has no batch") from None
    return first, chain([first], batches)


@contextmanager
def evaluated(model: nn.Module, hooks: Iterable[tuple[nn.Module, Callable]]):
    """The model in evaluation mode, with hooks `(module, inputs, named inputs, output)`; afterwards as it was."""
    training = {module: module.training for module in model.modules()}
    handles, fused = [], torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)  # a fused transformer layer does not run its parts
        for module, hook in hooks:
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, mode in training.items():
            module.training = mode


@contextmanager
def randomness_kept(device: torch.device, *loaders):
    """Afterwards every generator that a loader or a layer may draw from is in the state it was in before.

    A DataLoader draws from PyTorch's global generator whenever it is iterated over, even in fixed order.
    """
    places = list(loaders)
    for place in places:  # which grows meanwhile
        inner = (getattr(place, name, None) for name in ("sampler", "batch_sampler", "base_dataloader"))
        places += [part for part in inner if part is not None]
    generators = [g for place in places if isinstance(g := getattr(place, "generator", None), torch.Generator)]
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


def _logits(result) -> Tensor | None:
    """The scores among what a model returned."""
    result = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", result)
    result = result[0] if isinstance(result, tuple | list) and result else result
    return result if isinstance(result, Tensor) and result.ndim >= 2 else None


def _gives(output: Tensor, logits: Tensor) -> bool:
    """Whether a module's output is the model's: as is, at one of the tokens, or averaged over tokens or positions."""
    if output.ndim == logits.ndim or logits.ndim != 2:
        return output.shape == logits.shape and torch.equal(output, logits)
    if output.ndim == 3 and output.shape[2] == logits.shape[1] and _tokens(output, logits) is not None:
        return True
    averaged = output.mean(1) if output.ndim == 3 else output.flatten(2).mean(2)
    return averaged.shape == logits.shape and torch.allclose(averaged, logits, rtol=1e-4, atol=1e-6)


def _tokens(scores: Tensor, logits: Tensor) -> Tensor | None:
    """For each sample the last token whose scores are the sample's; None if a sample has no such token."""
    same = (scores == logits[:, None]).all(-1)
    last = same.shape[1] - 1 - same.int().flip(1).argmax(1)
    return last if same.any(1).all() else None


def _chosen(given, scores, logits: Tensor | None):
    """The input of the head; if there is one for each token, the one that the model takes."""
    if not isinstance(given, Tensor) or given.ndim != 3 or not isinstance(scores, Tensor) or logits is None:
        return given
    if scores.ndim != 3 or logits.shape != (len(scores), scores.shape[2]):
        return given
    tokens = _tokens(scores, logits)
    return given if tokens is None else given[torch.arange(len(given), device=given.device), tokens]


def _copied(output):
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output.clone() if isinstance(output, Tensor) else output


def _moved(value, device: torch.device):
    return value.to(device) if hasattr(value, "to") else value


def _kind(output) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
