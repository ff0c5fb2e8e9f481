"""What is refused at the door: each a ValueError that names the argument and its value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral

import numpy as np
import torch
from torch import Tensor


@contextmanager
def errors_of(place: str) -> Iterator[None]:
    """A ValueError names the place that it comes from, such as a loader or a batch."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def integers(least: int, **values: int) -> None:
    """ValueError that names the first of the values which is not an integer of at least `least`.

    >>> integers(2, K=1)
    Traceback (most recent call last):
    ValueError: K = 1: an integer of at least 2 is needed
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
            raise ValueError(f"{name} = {value!r}: {kind} is needed")


def one_of(known: Iterable, **values: object) -> None:
    """ValueError that names the first of the values which is none of the known ones.

    >>> one_of(("mean", "flatten"), reduce="maen")
    Traceback (most recent call last):
    ValueError: reduce = 'maen': one of 'mean', 'flatten' is needed; did you mean 'mean'?
    """
    known = list(map(str, known))
    for name, value in values.items():
        if value not in known:
            near = difflib.get_close_matches(str(value), known, 1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{name} = {value!r}: one of {', '.join(map(repr, known))} is needed{hint}")


def finite(name: str, value: Tensor) -> Tensor:
    """The tensor, in float32 where it has less precision; ValueError unless its entries are finite real numbers."""
    if not value.is_floating_point():
        raise ValueError(f"{name} is {value.dtype}; floating point needed")
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    # the sum of a tensor with an entry that is not finite is not finite, and takes no memory
    if not value.sum().isfinite() and not value.isfinite().all():
        raise ValueError(f"{name} has {int((~value.isfinite()).sum())} entries that are not finite")
    return value


def integers_of(y: Tensor | np.ndarray | Iterable[int]) -> Tensor:
    """A tensor, an array or a list of integers, of any type, as a tensor, int64; ValueError for what is none.

    A second dimension of length 1, as in `(n_samples, 1)`, is dropped.

    >>> integers_of([[True], [False]]), integers_of([2.0, 0.0])
    (tensor([1, 0]), tensor([2, 0]))
    >>> integers_of(["cat", "dog"])
    Traceback (most recent call last):
    ValueError: labels are words: give their numbers 0..K-1, as [names.index(word) for word in y]
    """
    if not isinstance(y, Tensor):
        y = np.asarray(y)
        if y.dtype.kind in "OSU":
            raise ValueError("labels are words: give their numbers 0..K-1, as [names.index(word) for word in y]")
        y = torch.from_numpy(y)
    # subclasses of tensors for images and for labels cannot be computed with together
    y = (y[:, 0] if y.ndim > 1 and y.shape[1] == 1 else y).as_subclass(Tensor)
    if y.is_floating_point() and (y.ndim == 2 or (y != y.round()).any()):
        raise ValueError(f"y is {y.dtype}, {tuple(y.shape)}; labels are integers (y.argmax(1) of one-hot or soft ones)")
    return y.long()


def labels(y: Tensor | np.ndarray | Iterable[int], n: int, K: int | None = None) -> Tensor:
    """Labels `(n,)`, int64, of a tensor, an array or a list; ValueError unless they are integers in `0..K-1`.

    >>> labels([0, 2], n=2, K=3)
    tensor([0, 2])
    """
    y = integers_of(y)
    if y.shape != (n,):
        hint = ": take y.argmax(1) of one-hot labels" if y.ndim == 2 else ""
        raise ValueError(f"y has shape {tuple(y.shape)}; one label for each of {n} samples is needed{hint}")
    least, most = y.aminmax() if n else (0, 0)
    if least < 0 or (K is not None and most >= K):
        largest = "K-1" if K is None else K - 1
        hint = "; ignore_index=255 leaves those out" if most == 255 else ""
        hint = "; subtract 1" if least > 0 and most == K else hint
        raise ValueError(f"y has labels {int(least)} to {int(most)}; they are 0..{largest}{hint}")
    return y
