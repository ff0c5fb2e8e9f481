"""A claim, an erratum that it shows, and a record of it, for the tests of the ledger."""

CLAIM = {
    "id": "fc-one",
    "about": "It is so indeed",
    "paper": "feature-collapse",
    "where": "Theorem 1",
    "kind": "number",
    "statement": "It is so.",
    "expect": {"constant": {"value": 1.5, "abs": 0.1, "printed": "1.5"}, "note": {"report": True}},
}
GOOD = {"constant": 1.45, "note": [1, 2, 3]}
BAD = {"constant": 2.0, "note": [1, 2, 3]}
ERRATUM = {
    "id": "sign",
    "paper": "feature-collapse",
    "place": "(7)",
    "kind": "another constant",
    "printed": "$a$",
    "corrected": "$b$",
    "shown_by": "fc-one",
    "how": "By evaluation.",
    "consequence": "None.",
    "transcription": "The derivation repeats it.",
}


def claim(**changes):
    return {key: value for key, value in {**CLAIM, **changes}.items() if value is not None}


def record(measured=GOOD, **changes):
    about = {"chapter": "feature-collapse/theorems", "profile": "laptop", "device": "cpu", "dataset": None}
    return {"id": "fc-one", "verdict": "?", "measured": measured, "expected": {}, "seconds": 1.0, **about, **changes}
