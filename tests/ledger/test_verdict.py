"""The verdict follows from the declaration and the measurement, and from nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_claim import BAD, CLAIM, ERRATUM, GOOD, claim

from lib.ledger.declarations import KINDS
from lib.ledger.verdict import VERDICTS, met, verdict

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
positive = st.floats(min_value=1e-6, max_value=1e6)


@given(finite, positive, finite)
def test_a_value_is_met_within_its_absolute_tolerance_and_nowhere_else(value, tolerance, measured):
    inside = abs(measured - value) <= tolerance
    assert met({"value": value, "abs": tolerance}, measured) is inside


@given(st.floats(min_value=1e-3, max_value=1e3), st.sampled_from([-1.0, 1.0]), st.floats(min_value=1e-4, max_value=0.5))
def test_a_relative_tolerance_is_a_fraction_of_the_value_whatever_its_sign(value, sign, rel):
    for factor, inside in ((0.99, True), (1.01, False)):
        for side in (1, -1):
            assert met({"value": sign * value, "rel": rel}, sign * value * (1 + side * factor * rel)) is inside


@given(finite, finite)
def test_below_and_above_exclude_each_other_and_the_bound_itself(bound, measured):
    below, above = met({"below": bound}, measured), met({"above": bound}, measured)
    assert not (below and above)
    assert below or above or measured == bound
    assert not met({"below": bound}, bound)
    assert not met({"above": bound}, bound)


@given(st.lists(finite, min_size=3, max_size=3).map(sorted))
def test_between_holds_its_bounds_and_what_lies_inside(ordered):
    lower, middle, upper = ordered
    assert all(met({"between": [lower, upper]}, measured) for measured in ordered)
    if lower < middle < upper:
        assert not met({"between": [middle, upper]}, lower)
        assert not met({"between": [lower, middle]}, upper)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "1.0", None, [], [math.nan], True])
def test_what_is_not_a_finite_number_meets_no_numeric_expectation(value):
    for relation in ({"value": 1.0, "abs": 1e9}, {"below": 1e9}, {"above": -1e9}, {"between": [-9, 9]}):
        assert met(relation, value) is False


@pytest.mark.parametrize(
    ("wanted", "value", "same"),
    [
        (True, True, True), (True, 1, False), (1, True, False), (2, 2, True), (2, 2.0, True), (2, 3, False),
        ("SRG", "SRG", True), (True, "true", False),
    ],
)  # fmt: skip
def test_equals_tells_truth_values_numbers_and_text_apart(wanted, value, same):
    assert met({"equals": wanted}, value) is same


@given(st.one_of(finite, st.booleans(), st.text(), st.just(math.nan)))
def test_what_is_only_reported_is_never_judged(value):
    assert met({"report": True}, value) is None


SLIP, GAP = {**ERRATUM, "kind": "slip"}, {**ERRATUM, "kind": "true, with a gap in the proof"}


@pytest.mark.parametrize(
    ("kind", "measured", "errata", "expected"),
    [
        ("theorem", GOOD, (), "reproduced"),
        ("theorem", GOOD, (ERRATUM,), "reproduced"),
        ("theorem", BAD, (), "not reproduced"),
        ("theorem", BAD, (SLIP,), "not reproduced"),
        ("theorem", BAD, (SLIP, GAP, ERRATUM), "contradicted: another constant"),
        ("theorem", BAD, (GAP,), "contradicted: true, with a gap in the proof"),
        ("question", GOOD, (), "supported"),
        ("question", BAD, (), "not supported"),
    ],
)
def test_at_the_printed_settings_the_verdict_follows_from_kind_and_errata(kind, measured, errata, expected):
    assert verdict(claim(kind=kind), measured, errata=errata) == expected
    assert expected in VERDICTS


@given(
    st.sampled_from(KINDS), st.booleans(), st.booleans(),
    st.sampled_from([("laptop", None, True), ("laptop", "mnist", True), ("paper", "digits", False),
                     ("laptop", "digits", False), ("paper", "cifar10-jpeg75", True)]),
)  # fmt: skip
def test_a_reduced_run_and_other_data_reproduce_nothing_and_fail_nothing(kind, good, erratum, run):
    """Whatever is measured, and whatever the errata say."""
    profile, dataset, printed_only_there = run
    declaration = claim(kind=kind, settings="paper" if printed_only_there else None)
    found = verdict(declaration, GOOD if good else BAD, profile, dataset, [ERRATUM] if erratum else [])
    assert found == ("seen at reduced size" if good else "not seen at reduced size")
    assert found in VERDICTS


def test_a_criterion_of_the_books_own_decides_nothing():
    expect = {**CLAIM["expect"], "ours": {"below": 0, "ours": True}}
    for measured, expected in ((GOOD, "reproduced"), (BAD, "not reproduced")):
        assert {verdict(claim(expect=expect), {**measured, "ours": value}) for value in (-1, 1)} == {expected}


@pytest.mark.parametrize(("printed", "inside", "outside"), [("1.41", 1.4149, 1.4151), ("-60", -60.4, -60.6)])
def test_a_printed_number_is_met_by_what_rounds_to_it(printed, inside, outside):
    assert met({"rounds_to": printed}, inside) and not met({"rounds_to": printed}, outside)


def test_an_interval_meets_a_margin_as_a_whole():
    margin = {"between": [-0.1, 0.1]}
    assert [met(margin, interval) for interval in ([-0.05, 0.1], [-0.05, 0.2], [], [0.0, math.nan])] == [
        True, False, False, False
    ]  # fmt: skip


def test_a_declared_data_set_is_no_substitute():
    assert verdict(claim(dataset="digits"), GOOD, dataset="digits") == "reproduced"
    assert verdict(claim(dataset=["mnist", "digits"]), GOOD, dataset="digits") == "reproduced"


@pytest.mark.parametrize("measured", [GOOD, BAD])
def test_the_smoke_profile_claims_nothing(measured):
    assert verdict(CLAIM, measured, profile="smoke") == "not run"


@given(st.dictionaries(st.sampled_from("abcdef"), st.booleans(), min_size=1))
def test_one_quantity_that_fails_is_enough(outcomes):
    declaration = claim(expect={name: {"equals": True} for name in outcomes})
    assert verdict(declaration, outcomes) == ("reproduced" if all(outcomes.values()) else "not reproduced")


@pytest.mark.parametrize("profile", ["laptop", "smoke"])
def test_a_measured_quantity_has_to_be_declared_and_a_declared_one_measured(profile):
    with pytest.raises(ValueError, match="'fc-one'.*'constnat'.*did you mean 'constant'"):
        verdict(CLAIM, {"constnat": 1.5, "note": 0}, profile)
    with pytest.raises(ValueError, match="'fc-one'.*'note' is not measured"):
        verdict(CLAIM, {"constant": 1.5}, profile)
