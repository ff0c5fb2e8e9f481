"""What is refused at the door: one set of checks of arguments, each a ValueError that names parameter and value."""

from __future__ import annotations

import ast
import json
import math
import textwrap
from collections.abc import Iterable
from numbers import Integral, Real

import torch


def integers(least: int, **values: int) -> None:
    """ValueError that names the first of the values which is not an integer of at least `least`.

    >>> integers(2, K=3, r=2)
    >>> integers(2, K=1)
    Traceback (most recent call last):
    ValueError: K = 1: an integer of at least 2 is needed
    """
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
            raise ValueError(f"{name} = {value!r}: {kind} is needed")


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
    for name, value in values.items():
        if not (isinstance(value, Real) and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} = {value!r}: a positive number is needed")


def not_negative(**values: float) -> None:
    """ValueError that names the first of the values which is not a finite number of at least 0.

    >>> not_negative(weight_decay=-1.0)
    Traceback (most recent call last):
    ValueError: weight_decay = -1.0: a number of at least 0 is needed
    """
    for name, value in values.items():
        if not (isinstance(value, Real) and math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} = {value!r}: a number of at least 0 is needed")


def shares(**values: float) -> None:
    """ValueError that names the first of the values which is not a number in [0, 1).

    >>> shares(alpha=1.0)
    Traceback (most recent call last):
    ValueError: alpha = 1.0: a number in [0, 1) is needed
    """
    for name, value in values.items():
        if isinstance(value, bool) or not (isinstance(value, Real) and 0 <= value < 1):
            raise ValueError(f"{name} = {value!r}: a number in [0, 1) is needed")


def one_of(known: Iterable, **values: object) -> None:
    """ValueError that names the first of the values which is none of the known ones.

    >>> one_of(("mse", "ce"), loss="hinge")
    Traceback (most recent call last):
    ValueError: loss = 'hinge': one of 'mse', 'ce' is needed
    """
    known = tuple(known)
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"{name} = {value!r}: one of {', '.join(map(repr, known))} is needed")


def finite(**tensors: torch.Tensor) -> None:
    """ValueError that names the first of the tensors which has entries that are not finite.

    >>> finite(H=torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
    ValueError: H has 1 entries that are not finite
    """
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has {int((~torch.isfinite(tensor)).sum())} entries that are not finite")


def labels(y: torch.Tensor, N: int, K: int) -> None:
    """ValueError unless `y: (N,)` holds integers in 0..K-1, each class at least once.

    >>> labels(torch.tensor([0, 2]), N=2, K=3)
    Traceback (most recent call last):
    ValueError: y: class 1 has no sample
    """
    if y.shape != (N,) or N == 0:
        raise ValueError(f"y has shape {tuple(y.shape)}; one label for each of N = {N} samples is needed")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"y is {y.dtype}; labels are integers")
    if y.min() < 0 or y.max() >= K:
        raise ValueError(f"y has labels {int(y.min())} to {int(y.max())}; they are 0..{K - 1}")
    empty = (torch.bincount(y, minlength=K) == 0).nonzero()
    if len(empty):
        raise ValueError(f"y: class {int(empty[0])} has no sample")


def program(source: str) -> str:
    """What a source text does, as JSON: without its docstrings, its comments and its layout, and the same for every
    version of Python. Broken code comes back as it is.

    >>> program("def f(x):\\n    'Twice x.'\\n    return 2*x  # doubled") == program("def f(x): return 2 * x")
    True
    """
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return source
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return json.dumps(_shape(tree))


def _shape(node):
    """A syntax tree as lists; fields that are empty are left out, for versions of Python differ in those."""
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, *(field for field in fields if field[1] not in ("None", []))]
    return [_shape(item) for item in node] if isinstance(node, list) else repr(node)
