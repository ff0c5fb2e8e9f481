"""The verdict on a claim: a pure function of what is declared, what was measured, and on what."""

from __future__ import annotations

from collections.abc import Collection

from lib.checks import nearest
from lib.ledger.declarations import is_number

#: The verdicts and the sign that goes with each (a verdict never speaks by colour alone).
VERDICTS = {
    "reproduced": "✓",
    "reproduced on substitute data": "✓",
    "supported": "✓",
    "not reproduced": "✗",
    "contradicted": "≠",
    "not supported": "✗",
    "not run": "○",
}
#: The data sets of the papers. Any other, the reader's own images too, stands in for one of them.
ORIGINALS = ("mnist", "fashion_mnist", "cifar10", "svhn")


def met(expectation: dict, value: object) -> bool | None:
    """Does the measured value satisfy the expectation? None where it is only reported.

    A NaN, an infinity or a value of another type satisfies nothing.

    >>> met({"value": 1.5, "rel": 0.1}, 1.6), met({"below": 1e-9}, float("nan")), met({"equals": True}, 1)
    (True, False, False)
    """
    if "report" in expectation:
        return None
    if "equals" in expectation:
        wanted = expectation["equals"]
        if isinstance(wanted, bool | str):
            return type(value) is type(wanted) and value == wanted
        return is_number(value) and value == wanted
    if not is_number(value):
        return False
    if "value" in expectation:
        tolerance = expectation["abs"] if "abs" in expectation else expectation["rel"] * abs(expectation["value"])
        return abs(value - expectation["value"]) <= tolerance
    if "below" in expectation:
        return value < expectation["below"]
    if "above" in expectation:
        return value > expectation["above"]
    lower, upper = expectation["between"]
    return lower <= value <= upper


def verdict(
    declaration: dict,
    measured: dict[str, object],
    profile: str = "laptop",
    dataset: str | None = None,
    errata: Collection = (),
) -> str:
    """One of `VERDICTS`.

    declaration: an entry of claims.yml. measured: {quantity: value}. errata: the errata that the claim shows.
    The `smoke` profile claims nothing. ValueError when the measured quantities are not the declared ones.
    """
    expect, name = declaration["expect"], declaration["id"]
    for key in (*measured, *expect):
        lack, known = ("measured", measured) if key in expect else ("declared", expect)
        if key not in known:
            raise ValueError(f"claim {name!r}: quantity {key!r} is not {lack}{nearest(key, known)}")
    if profile == "smoke":
        return "not run"
    question = declaration["kind"] == "question"
    if any(met(expectation, measured[key]) is False for key, expectation in expect.items()):
        return "contradicted" if errata else "not supported" if question else "not reproduced"
    if question:
        return "supported"
    own = declaration.get("dataset", [])
    original = dataset in (None, *ORIGINALS, *([own] if isinstance(own, str) else own))
    return "reproduced" if original else "reproduced on substitute data"
