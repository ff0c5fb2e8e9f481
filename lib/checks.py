"""One set of checks of arguments, each of which raises a ValueError that names parameter and value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # code that only reads sources, such as the command line of the book, does without it
    import torch


def integers(least: int, **values: int) -> None:
    """Raise a ValueError that names the first value that is not an integer of at least `least`.

    >>> integers(2, K=3, r=2)
    >>> integers(2, K=1)
    Traceback (most recent call last):
    ValueError: K = 1: an integer of at least 2 is needed
    """
    kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
    _needed(kind, values, lambda value: isinstance(value, Integral) and not isinstance(value, bool) and value >= least)


def positive_integers(**values: int) -> None:
    """:func:`integers` of at least 1.

    >>> positive_integers(K=3, n=0)
    Traceback (most recent call last):
    ValueError: n = 0: a positive integer is needed
    """
    integers(1, **values)


def positive(**values: float) -> None:
    """Raise a ValueError that names the first value that is not a positive finite number.

    >>> positive(lam_w=0.1, lam_h=-0.1)
    Traceback (most recent call last):
    ValueError: lam_h = -0.1: a positive number is needed
    """
    _needed("a positive number", values, lambda value: isinstance(value, Real) and 0 < value < math.inf)


def not_negative(**values: float) -> None:
    """Raise a ValueError that names the first value that is not a finite number of at least 0.

    >>> not_negative(weight_decay=-1.0)
    Traceback (most recent call last):
    ValueError: weight_decay = -1.0: a number of at least 0 is needed
    """
    _needed("a number of at least 0", values, lambda value: isinstance(value, Real) and 0 <= value < math.inf)


def each(count: int, zero: bool = False, **values: float | Iterable) -> list[list[float]]:
    """For each value, `count` numbers (of runs or layers), from one number or a sequence (list, tensor) of that many.

    Raises a ValueError that names the first value that is neither, or has numbers that are not positive and finite;
    with `zero` the numbers may be 0.

    >>> each(2, learning_rate=0.5, weight_decay=[0.1, 0.2])
    [[0.5, 0.5], [0.1, 0.2]]
    >>> each(3, weight_decay=[0.1, 0.2])
    Traceback (most recent call last):
    ValueError: weight_decay has 2 entries: one number, or 3 of them, is needed
    """
    found = []
    for name, value in values.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        numbers = list(value) if isinstance(value, Iterable) else [value] * count
        if len(numbers) != count:
            raise ValueError(f"{name} has {len(numbers)} entries: one number, or {count} of them, is needed")
        for number in numbers:
            if zero:
                not_negative(**{name: number})
            else:
                positive(**{name: number})
        found.append(numbers)
    return found


def shares(**values: float) -> None:
    """Raise a ValueError that names the first value that is not a number in [0, 1).

    >>> shares(alpha=1.0)
    Traceback (most recent call last):
    ValueError: alpha = 1.0: a number in [0, 1) is needed
    """
    _needed("a number in [0, 1)", values, lambda value: isinstance(value, Real) and 0 <= value < 1)


def one_of(known: Iterable, **values: object) -> None:
    """Raise a ValueError that names the first value that is none of the known ones.

    >>> one_of(("mse", "ce"), loss="hinge")
    Traceback (most recent call last):
    ValueError: loss = 'hinge': one of 'mse', 'ce' is needed
    """
    known = tuple(known)
    for name, value in values.items():
        if value not in known:
            names = ", ".join(map(repr, known))
            raise ValueError(f"{name} = {value!r}: one of {names} is needed{nearest(value, known)}")


def nearest(word: object, known: Iterable) -> str:
    """The known names that are most like a word, as the end of a message; nothing where none is near.

    >>> nearest("smkoe", ("smoke", "laptop", "paper"))
    "; did you mean 'smoke'?"
    """
    close = difflib.get_close_matches(str(word), map(str, known), cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def finite(**tensors: torch.Tensor) -> None:
    """Raise a ValueError that names the first tensor with entries that are not finite.

    >>> import torch
    >>> finite(H=torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
    ValueError: H has 1 entries that are not finite
    """
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} has {int((~tensor.isfinite()).sum())} entries that are not finite")


def labels(y: torch.Tensor, N: int, K: int | None = None, every: bool = True) -> None:
    """Raise ValueError unless `y: (N,)` holds integers in 0..K-1 and, if `every` is true, each class at least once.

    Without K, the largest label says how many classes there are.

    >>> import torch
    >>> labels(torch.tensor([0, 2]), N=2, K=3)
    Traceback (most recent call last):
    ValueError: y: class 1 has no sample
    """
    if y.shape != (N,) or (every and N == 0):
        raise ValueError(f"y has shape {tuple(y.shape)}; one label for each of N = {N} samples is needed")
    if y.is_floating_point() or y.is_complex() or str(y.dtype) == "torch.bool":
        raise ValueError(f"y is {y.dtype}; labels are integers")
    if N and (y.min() < 0 or (K is not None and y.max() >= K)):
        largest = "K-1" if K is None else K - 1
        raise ValueError(f"y has labels {int(y.min())} to {int(y.max())}; they are 0..{largest}")
    if every:  # without counting per class, since a wrong label may make very many classes
        present = y.unique().tolist()
        empty = [k for k, label in enumerate([*present, K or present[-1] + 1]) if k != label]
        if empty:
            raise ValueError(f"y: class {empty[0]} has no sample")


def _needed(kind: str, values: dict, fits: Callable) -> None:
    for name, value in values.items():
        if not fits(value):
            raise ValueError(f"{name} = {value!r}: {kind} is needed")
