"""The verdict follows from the declaration and the measurement, and from nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_claim import BAD, CLAIM, ERRATUM, GOOD, claim

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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "1.0", None, [1.0], True])
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


@pytest.mark.parametrize(
    ("kind", "measured", "dataset", "errata", "expected"),
    [
        ("theorem", GOOD, None, (), "reproduced"),
        ("theorem", GOOD, None, (ERRATUM,), "reproduced"),
        ("theorem", BAD, None, (), "not reproduced"),
        ("theorem", BAD, None, (ERRATUM,), "contradicted"),
        ("figure", GOOD, "mnist", (), "reproduced"),
        ("figure", GOOD, "digits", (), "reproduced on substitute data"),
        ("figure", GOOD, "cifar10-jpeg75", (), "reproduced on substitute data"),
        ("figure", GOOD, "my-own-images", (), "reproduced on substitute data"),
        ("figure", BAD, "digits", (), "not reproduced"),
        ("question", GOOD, None, (), "supported"),
        ("question", BAD, None, (), "not supported"),
    ],
)
def test_the_verdict_follows_from_kind_data_and_errata(kind, measured, dataset, errata, expected):
    assert verdict(claim(kind=kind), measured, dataset=dataset, errata=errata) == expected
    assert expected in VERDICTS


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
