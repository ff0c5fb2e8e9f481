"""The profiles: how much of a paper's experiment a build computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lib.checks import one_of

#: From the smallest to the largest. `night` is what two processor cores compute in a few hours.
PROFILES = ("smoke", "laptop", "night", "paper")


def pick(settings: Mapping[str, str | Sequence], profile: str) -> dict:
    """The settings of one profile, from a table whose row `"profile"` names its columns.

    A profile that the table does not name takes the column of the next larger one. ValueError for an unknown profile,
    for a table whose columns are not named or not `paper` and other profiles, and for a row of another length.

    >>> table = {"profile": "paper  laptop  smoke",
    ...          "K":       (1000,  100,    3),
    ...          "seeds":   (20,    5,      1)}
    >>> pick(table, "laptop"), pick(table, "night")
    ({'K': 100, 'seeds': 5}, {'K': 1000, 'seeds': 20})
    """
    one_of(PROFILES, profile=profile)
    columns = str(settings.get("profile", "")).split()
    if "paper" not in columns or not {*columns} <= {*PROFILES}:
        raise ValueError(f"settings 'profile' = {columns}: the columns are to be named, paper among {PROFILES}")
    larger = PROFILES[PROFILES.index(profile) :]
    column = columns.index(next(name for name in larger if name in columns))
    picked = {}
    for name, row in settings.items():
        if name != "profile":
            if len(row) != len(columns):
                raise ValueError(f"settings {name!r} = {row!r}: a value for each of {', '.join(columns)} is needed")
            picked[name] = row[column]
    return picked
