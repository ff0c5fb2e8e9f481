"""The profiles: how much of a paper's experiment a build computes."""

from __future__ import annotations

from collections.abc import Mapping

from lib.checks import one_of

#: From the smallest to the largest.
PROFILES = ("smoke", "laptop", "paper")
#: The columns of a chapter's settings: what the paper prints comes first.
COLUMNS = PROFILES[::-1]


def pick(settings: Mapping[str, tuple], profile: str) -> dict:
    """The settings of one profile, from rows `name: (paper, laptop, smoke)`.

    ValueError for an unknown profile, and for a row of another length.

    >>> pick({"K": (1000, 100, 3), "seeds": (20, 5, 1)}, "laptop")
    {'K': 100, 'seeds': 5}
    """
    one_of(PROFILES, profile=profile)
    for name, row in settings.items():
        if len(row) != len(COLUMNS):
            raise ValueError(f"settings {name!r} = {row!r}: one value each for {', '.join(COLUMNS)} is needed")
    return {name: row[COLUMNS.index(profile)] for name, row in settings.items()}
