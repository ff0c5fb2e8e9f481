"""Checks at the door that several modules make in the same words."""

from __future__ import annotations


def positive_integers(**numbers: int) -> None:
    """ValueError that names the first of the numbers which is not a positive integer.

    >>> positive_integers(K=3, n=2)
    >>> positive_integers(K=3, n=0)
    Traceback (most recent call last):
    ValueError: n = 0: a positive integer is needed
    """
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} = {value!r}: a positive integer is needed")
