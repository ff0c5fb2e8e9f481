"""What is refused at the door: one set of checks of arguments, each a ValueError that names parameter and value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what reads sources, as the command line of the book, does without it
    import torch


def integers(least: int, **values: int) -> None:
    """ValueError that names the first of the values which is not an integer of at least `least`.

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
    """ValueError that names the first of the values which is not a positive finite number.

    >>> positive(lam_w=0.1, lam_h=-0.1)
    Traceback (most recent call last):
    ValueError: lam_h = -0.1: a positive number is needed
    """
    _needed("a positive number", values, lambda value: isinstance(value, Real) and 0 < value < math.inf)


def not_negative(**values: float) -> None:
    """ValueError that names the first of the values which is not a finite number of at least 0.

    >>> not_negative(weight_decay=-1.0)
    Traceback (most recent call last):
    ValueError: weight_decay = -1.0: a number of at least 0 is needed
    """
    _needed("a number of at least 0", values, lambda value: isinstance(value, Real) and 0 <= value < math.inf)


def each(count: int, zero: bool = False, **values: float | Iterable) -> list[list[float]]:
    """For each value `count` numbers, of runs or of layers, from one number or a sequence (list, tensor) of so many.

    ValueError that names the first of the values which is neither, or has numbers that are not positive and finite;
    with `zero` they may be 0.

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
            (not_negative if zero else positive)(**{name: number})
        found.append(numbers)
    return found


def shares(**values: float) -> None:
    """ValueError that names the first of the values which is not a number in [0, 1).

    >>> shares(alpha=1.0)
    Traceback (most recent call last):
    ValueError: alpha = 1.0: a number in [0, 1) is needed
    """
    _needed("a number in [0, 1)", values, lambda value: isinstance(value, Real) and 0 <= value < 1)


def one_of(known: Iterable, **values: object) -> None:
    """ValueError that names the first of the values which is none of the known ones.

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
    """ValueError that names the first of the tensors which has entries that are not finite.

    >>> import torch
    >>> finite(H=torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
    ValueError: H has 1 entries that are not finite
    """
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} has {int((~tensor.isfinite()).sum())} entries that are not finite")


def labels(y: torch.Tensor, N: int, K: int | None = None, every: bool = True) -> None:
    """ValueError unless `y: (N,)` holds integers in 0..K-1, and each class at least once, unless `every` is false.

    Without K there are as many classes as the largest label says.

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
    if every:  # without a count for each class, of which a wrong label may make very many
        present = y.unique().tolist()
        empty = [k for k, label in enumerate([*present, K or present[-1] + 1]) if k != label]
        if empty:
            raise ValueError(f"y: class {empty[0]} has no sample")


def _needed(kind: str, values: dict, fits: Callable) -> None:
    for name, value in values.items():
        if not fits(value):
            raise ValueError(f"{name} = {value!r}: {kind} is needed")
