"""The profiles: how much of a paper's experiment a build computes."""

from __future__ import annotations

from collections.abc import Mapping

from lib.checks import one_of

#: From the smallest to the largest. `night` is what two processor cores compute in a few hours.
PROFILES = ("smoke", "laptop", "night", "paper")


def pick(settings: Mapping[str, tuple], profile: str) -> dict:
    """The settings of one profile, from rows `name: (paper, laptop, smoke)` or `name: (paper, night, laptop, smoke)`.

    Where a row has no value for `night`, the paper's counts. ValueError for an unknown profile, and for a row of
    another length.

    >>> pick({"K": (1000, 100, 3), "seeds": (20, 10, 5, 1)}, "night")
    {'K': 1000, 'seeds': 10}
    """
    one_of(PROFILES, profile=profile)
    for name, row in settings.items():
        if len(row) not in (3, 4):
            raise ValueError(f"settings {name!r} = {row!r}: values for paper, laptop and smoke are needed")
    column = {"smoke": -1, "laptop": -2, "night": -3, "paper": 0}[profile]
    return {name: row[column] for name, row in settings.items()}
