"""Calls side by side, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor

import joblib


def side_by_side(calls: Iterable, jobs: int) -> Iterator:
    """The results of calls that `joblib.delayed` made, as they come, each from one of `jobs` processes.

    In each process torch and the linear algebra libraries have one thread. Processes are used since threads that make
    many small steps in numpy or torch wait for one another at every step: two together are slower than one.
    Raises BrokenExecutor, which says so, if a process dies; what a call raises passes through.

    >>> sorted(side_by_side((joblib.delayed(abs)(number) for number in (-2, 3)), jobs=1))
    [2, 3]
    """
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        parallel = joblib.Parallel(jobs, batch_size=1, return_as="generator_unordered")
        try:
            yield from parallel(calls)
        except BrokenExecutor as error:
            reason = str(error).split(".")[0]
            raise BrokenExecutor(f"a process of this machine died ({type(error).__name__}: {reason})") from error
