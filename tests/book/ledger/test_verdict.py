"""The verdict follows from the declaration and the measurement, and from nothing else."""

import itertools
import math

import pytest

from lib.book.ledger.declarations import KINDS
from lib.book.ledger.verdict import VERDICTS, met, verdict
from one_claim import BAD, CLAIM, ERRATUM, GOOD, claim

# an expectation, what meets it, and what does not: on both sides of each bound, and the bound itself
MET = [
    ({"value": 1.5, "abs": 0.5}, [1.0, 1.5, 2.0], [0.999, 2.001]),
    ({"below": 1e-9}, [0, -5, 0.9e-9], [1e-9, 1]),
    ({"above": 2}, [2.001, 5], [2, -5]),
    ({"between": [-0.1, 0.1]}, [-0.1, 0, 0.1], [-0.101, 0.101]),
    ({"between": [-0.1, 0.1]}, [[-0.05, 0.1]], [[-0.05, 0.2], [], [0.0, math.nan]]),  # an interval, as a whole
    ({"rounds_to": "1.41"}, [1.4051, 1.4149], [1.4049, 1.4151]),
    ({"rounds_to": "-60"}, [-60.4], [-60.6, 60]),
    ({"predicts": "34.9"}, [[34.0, 34.86], [34.94, 36.0], [34.9, 34.9]], [[34.0, 34.84], [34.96, 36.0], []]),
    ({"equals": True}, [True], [1, "true", False]),
    ({"equals": 2}, [2, 2.0], [3, "2"]),
    ({"equals": 1}, [1], [True]),
    ({"equals": "SRG"}, ["SRG"], ["srg", True]),
]


@pytest.mark.parametrize(("expectation", "inside", "outside"), MET)
def test_an_expectation_is_met_up_to_its_bounds_and_nowhere_else(expectation, inside, outside):
    assert [met(expectation, value) for value in inside] == [True] * len(inside)
    assert [met(expectation, value) for value in outside] == [False] * len(outside)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "1.0", None, [], [math.nan], True])
def test_what_is_not_a_finite_number_meets_no_numeric_expectation(value):
    for relation in ({"value": 1.0, "abs": 1e9}, {"below": 1e9}, {"above": -1e9}, {"between": [-9, 9]}):
        assert met(relation, value) is False
    assert met({"report": True}, value) is None


SLIP, GAP = {**ERRATUM, "kind": "slip"}, {**ERRATUM, "kind": "true, with a gap in the proof"}


VERDICTS_OF = [
    ("theorem", GOOD, (), "reproduced"),
    ("theorem", GOOD, (ERRATUM,), "reproduced"),
    ("theorem", BAD, (), "not reproduced"),
    ("theorem", BAD, (SLIP,), "not reproduced"),
    ("theorem", BAD, (SLIP, GAP, ERRATUM), "contradicted: another constant"),
    ("theorem", BAD, (GAP,), "contradicted: true, with a gap in the proof"),
    ("question", GOOD, (), "supported"),
    ("question", BAD, (), "not supported"),
]


@pytest.mark.parametrize(("kind", "measured", "errata", "expected"), VERDICTS_OF)
def test_at_the_printed_settings_the_verdict_follows_from_kind_and_errata(kind, measured, errata, expected):
    assert verdict(claim(kind=kind), measured, errata=errata) == expected
    own = {"reproduced": "supported", "not reproduced": "not supported"}
    assert verdict(claim(kind=kind, paper="beyond"), measured, errata=errata) == own.get(expected, expected)
    assert expected in VERDICTS


@pytest.mark.parametrize("value", [math.nan, "inf", None, "text", [], [1.5, "nan"]])
@pytest.mark.parametrize("errata", [(), (ERRATUM,)])
def test_what_is_no_finite_number_contradicts_nobody_and_supports_nothing(value, errata):
    for relation in ({"value": 1.5, "abs": 9}, {"below": 9}, {"rounds_to": "1"}, {"predicts": "1"}, {"equals": 0}):
        for profile, kind in itertools.product(("laptop", "paper"), KINDS):
            expect = {"a": {**relation, "printed": "1"}, "own": {"below": 0, "ours": True}}
            declaration = claim(kind=kind, expect=expect)
            assert verdict(declaration, {"a": value, "own": value}, profile, errata=errata) == "not run"
            own = {"a": 0 if "equals" in relation else 1.0, "own": value}
            assert verdict(declaration, {**own, "a": [1.0]} if "predicts" in relation else own, profile) != "not run"


SMALLER = [("laptop", None), ("laptop", "mnist"), ("night", "mnist"), ("paper", "cifar10-jpeg75")]
OTHER_DATA = [("paper", "digits"), ("paper", "cifar10")]


@pytest.mark.parametrize(
    ("profile", "dataset", "takes"), [(*one, "more") for one in SMALLER] + [(*one, None) for one in OTHER_DATA]
)
def test_a_reduced_run_and_other_data_reproduce_nothing_and_fail_nothing(profile, dataset, takes):
    """Whatever is measured, and whatever the errata say; another paper's data set is other data, too."""
    assert verdict(claim(data=["svhn", "cifar10"]), GOOD, "paper", "cifar10") == "reproduced"
    for kind, errata in itertools.product(KINDS, ([], [ERRATUM])):
        declaration = claim(kind=kind, takes=takes, data=["mnist"])
        assert verdict(declaration, GOOD, profile, dataset, errata) == "seen at reduced size"
        assert verdict(declaration, BAD, profile, dataset, errata) == "not seen at reduced size"


def test_a_criterion_of_the_books_own_decides_nothing():
    expect = {**CLAIM["expect"], "ours": {"below": 0, "ours": True}}
    for measured, expected in ((GOOD, "reproduced"), (BAD, "not reproduced")):
        assert {verdict(claim(expect=expect), {**measured, "ours": value}) for value in (-1, 1)} == {expected}


@pytest.mark.parametrize("measured", [GOOD, BAD])
def test_the_smoke_profile_claims_nothing(measured):
    assert verdict(CLAIM, measured, profile="smoke") == "not run"


def test_only_a_criterion_with_what_is_printed_beside_it_can_be_contradicted():
    """An erratum does not explain that a search of the book's missed, too."""
    expect = {"theirs": {"below": 0, "printed": "< 0"}, "missed": {"below": 0}}
    for missed, expected in ((-1, "contradicted: another constant"), (1, "not reproduced")):
        assert verdict(claim(expect=expect), {"theirs": 1, "missed": missed}, errata=[ERRATUM]) == expected


@pytest.mark.parametrize("profile", ["laptop", "smoke"])
def test_a_measured_quantity_has_to_be_declared_and_a_declared_one_measured(profile):
    with pytest.raises(ValueError, match="'fc-one'.*'constnat'.*did you mean 'constant'"):
        verdict(CLAIM, {"constnat": 1.5, "note": 0}, profile)
    with pytest.raises(ValueError, match="'fc-one'.*'note' is not measured"):
        verdict(CLAIM, {"constant": 1.5}, profile)
