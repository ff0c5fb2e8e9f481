"""The verdict on a claim: a pure function of what is declared, what was measured, and on what it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from lib.book.ledger.declarations import FINDINGS, is_number
from lib.checks import nearest

#: The verdicts and the sign that goes with each (a verdict never speaks by colour alone).
VERDICTS = {
    "reproduced": "✓",
    "supported": "✓",
    "seen at reduced size": "◐",
    "not seen at reduced size": "◔",
    "not reproduced": "✗",
    "not supported": "✗",
    **{f"contradicted: {finding}": "≠" for finding in FINDINGS},
    "not run": "○",
}


def met(expectation: dict, value: object) -> bool | None:
    """Does the measured value satisfy the expectation? None where it is only reported.

    A list does if each of its numbers does, which is how an interval is shown to lie within a margin; with `predicts`
    the list is a prediction interval, and has to hold the printed number, up to its rounding. What is no finite number
    satisfies nothing.

    >>> met({"value": 1.5, "abs": 0.1}, 1.55), met({"below": 1e-9}, float("nan")), met({"equals": True}, 1)
    (True, False, False)
    >>> met({"rounds_to": "0.61"}, 0.6149), met({"between": [-0.1, 0.1]}, [-0.02, 0.13])
    (True, False)
    >>> met({"predicts": "34.9"}, [34.2, 34.86]), met({"predicts": "34.9"}, [34.2, 34.84])
    (True, False)
    """
    if "report" in expectation:
        return None
    if "equals" in expectation:
        wanted = expectation["equals"]
        return value == wanted and (type(value) is type(wanted) or is_number(value) and is_number(wanted))
    if "predicts" in expectation:
        printed, half = _printed(expectation["predicts"])
        return finite(value) and value[0] < printed + half and value[-1] > printed - half
    if isinstance(value, list):
        return bool(value) and all(met(expectation, item) is True for item in value)
    if not is_number(value):
        return False
    if "rounds_to" in expectation:
        printed, half = _printed(expectation["rounds_to"])
        return abs(value - printed) <= half
    if "value" in expectation:
        return abs(value - expectation["value"]) <= expectation["abs"]
    if "below" in expectation:
        return value < expectation["below"]
    if "above" in expectation:
        return value > expectation["above"]
    lower, upper = expectation["between"]
    return lower <= value <= upper


def _printed(text: str) -> tuple[float, float]:
    """A printed number, and half a unit of its last digit."""
    printed = Decimal(text)
    return float(printed), 0.5 * 10.0 ** printed.as_tuple().exponent


def finite(value: object) -> bool:
    """Is it a finite number, or a list of one or more of them?"""
    return bool(value) and all(map(is_number, value)) if isinstance(value, list) else is_number(value)


def unmeasured(declaration: dict, measured: dict[str, object]) -> list[str]:
    """The quantities that decide the claim by a number, and for which no finite number was measured."""
    missing = []
    for key, expectation in declaration["expect"].items():
        by_a_number = is_number(expectation.get("equals", 0))  # all other relations compare numbers
        if by_a_number and not {"ours", "report"} & expectation.keys() and not finite(measured[key]):
            missing.append(key)
    return missing


def verdict(
    declaration: dict,
    measured: dict[str, object],
    profile: str = "laptop",
    dataset: str | None = None,
    errata: Iterable[dict] = (),
) -> str:
    """One of `VERDICTS`.

    declaration: an entry of claims.yml. measured: {quantity: value}. errata: the errata that the claim shows.
    The book's own criteria (`ours`) never decide. Below the profile that has the printed settings, and on other data
    than the claim names (`data`), a claim is seen or not seen; only at the printed settings can it be reproduced, or
    fail. It is contradicted where an erratum says how and every expectation that fails has `printed` beside it: a
    search of the book's own that missed contradicts nobody. Where a number is due and none was measured, that is a
    failure of the book's, and the claim is not run. A statement of the book's own is supported. The `smoke` profile
    claims nothing. ValueError when the measured quantities are not the declared ones.
    """
    expect, name = declaration["expect"], declaration["id"]
    for key in (*measured, *expect):
        lack, known = ("measured", measured) if key in expect else ("declared", expect)
        if key not in known:
            raise ValueError(f"claim {name!r}: quantity {key!r} is not {lack}{nearest(key, known)}")
    if profile == "smoke" or unmeasured(declaration, measured):
        return "not run"
    theirs = {key: expectation for key, expectation in expect.items() if not expectation.get("ours")}
    failing = {key: expectation for key, expectation in theirs.items() if met(expectation, measured[key]) is False}
    reduced = "takes" in declaration and profile != "paper"
    if reduced or dataset not in (None, *declaration.get("data", ())):
        return "not seen at reduced size" if failing else "seen at reduced size"
    findings = [erratum["kind"] for erratum in errata if erratum["kind"] in FINDINGS]
    if findings and failing and all("printed" in expectation for expectation in failing.values()):
        return f"contradicted: {min(findings, key=FINDINGS.index)}"
    if declaration["kind"] == "question" or declaration["paper"] == "beyond":
        return "not supported" if failing else "supported"
    return "not reproduced" if failing else "reproduced"
