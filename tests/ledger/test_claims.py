"""The ledger judges by the declaration and by nothing else, and says clearly what is wrong with its input."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lib.book import chapters
from lib.ledger import claims, notes

ROOT = Path(__file__).resolve().parents[1]
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
positive = st.floats(min_value=1e-6, max_value=1e6)

CLAIM = {
    "id": "fc-one",
    "paper": "feature-collapse",
    "where": "Theorem 1",
    "kind": "number",
    "statement": "It is so.",
    "expect": {"constant": {"value": 1.5, "abs": 0.1}, "note": {"report": True}},
}
GOOD = {"constant": 1.45, "note": [1, 2, 3]}
BAD = {"constant": 2.0, "note": [1, 2, 3]}
ERRATUM = {
    "id": "sign",
    "paper": "feature-collapse",
    "place": "(7)",
    "printed": "$a$",
    "corrected": "$b$",
    "shown_by": "fc-one",
    "how": "By evaluation.",
    "consequence": "None.",
    "transcription": "The derivation repeats it.",
}


def claim(**changes):
    entry = {**CLAIM, **changes}
    return {key: value for key, value in entry.items() if value is not None}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes the two declaration files of a small book and makes the ledger read them."""

    def write(entries=(CLAIM,), pending=(), errata=(), text=None, errata_text=None):
        document = {"claims": list(entries), "pending": list(pending)}
        texts = {
            "claims.yml": text if text is not None else yaml.safe_dump(document, allow_unicode=True),
            "errata.yml": errata_text if errata_text is not None else yaml.safe_dump({"errata": list(errata)}),
        }
        for name, content in texts.items():
            (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path

    monkeypatch.setattr(claims, "CLAIMS", tmp_path / "claims.yml")
    monkeypatch.setattr(claims, "ERRATA", tmp_path / "errata.yml")
    monkeypatch.delenv("COLLAPSE_CHAPTER", raising=False)
    write()
    return write


@pytest.fixture
def shown(monkeypatch):
    """What a ledger displays."""
    outputs = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: outputs.append(data))
    return outputs


# ------------------------------------------------------------------------------------------------------- relations


@given(finite, positive, finite)
def test_a_value_is_met_within_its_absolute_tolerance_and_nowhere_else(value, tolerance, measured):
    inside = abs(measured - value) <= tolerance
    assert claims.met({"value": value, "abs": tolerance}, measured) is inside


@given(st.floats(min_value=1e-3, max_value=1e3), st.sampled_from([-1.0, 1.0]), st.floats(min_value=1e-4, max_value=0.5))
def test_a_relative_tolerance_is_a_fraction_of_the_value_whatever_its_sign(value, sign, rel):
    expectation = {"value": sign * value, "rel": rel}
    assert claims.met(expectation, sign * value * (1 + 0.99 * rel))
    assert claims.met(expectation, sign * value * (1 - 0.99 * rel))
    assert not claims.met(expectation, sign * value * (1 + 1.01 * rel))
    assert not claims.met(expectation, sign * value * (1 - 1.01 * rel))


@given(finite, finite)
def test_below_and_above_exclude_each_other_and_the_bound_itself(bound, measured):
    below, above = claims.met({"below": bound}, measured), claims.met({"above": bound}, measured)
    assert not (below and above)
    assert below or above or measured == bound
    assert not claims.met({"below": bound}, bound)
    assert not claims.met({"above": bound}, bound)


@given(st.lists(finite, min_size=3, max_size=3).map(sorted))
def test_between_holds_its_bounds_and_what_lies_inside(ordered):
    lower, middle, upper = ordered
    for measured in ordered:
        assert claims.met({"between": [lower, upper]}, measured)
    if lower < middle < upper:
        assert not claims.met({"between": [middle, upper]}, lower)
        assert not claims.met({"between": [lower, middle]}, upper)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "1.0", None, [1.0], True])
@pytest.mark.parametrize(
    "relation", [{"value": 1.0, "abs": 1e9}, {"below": 1e9}, {"above": -1e9}, {"between": [-9, 9]}]
)
def test_what_is_not_a_finite_number_meets_no_numeric_expectation(relation, value):
    assert claims.met(relation, value) is False


def test_equals_tells_truth_values_numbers_and_text_apart():
    assert claims.met({"equals": True}, True)
    assert not claims.met({"equals": True}, 1)
    assert not claims.met({"equals": 1}, True)
    assert claims.met({"equals": 2}, 2)
    assert claims.met({"equals": 2}, 2.0)
    assert not claims.met({"equals": 2}, 3)
    assert claims.met({"equals": "SRG"}, "SRG")
    assert not claims.met({"equals": "true"}, True)


@given(st.one_of(finite, st.booleans(), st.text(), st.just(math.nan)))
def test_what_is_only_reported_is_never_judged(value):
    assert claims.met({"report": True}, value) is None


# -------------------------------------------------------------------------------------------------------- verdicts


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
    assert claims.verdict(claim(kind=kind), measured, dataset=dataset, errata=errata) == expected
    assert expected in claims.VERDICTS


def test_a_declared_data_set_is_no_substitute():
    assert claims.verdict(claim(dataset="digits"), GOOD, dataset="digits") == "reproduced"
    assert claims.verdict(claim(dataset=["mnist", "digits"]), GOOD, dataset="digits") == "reproduced"


@pytest.mark.parametrize("measured", [GOOD, BAD])
def test_the_smoke_profile_claims_nothing(measured):
    assert claims.verdict(CLAIM, measured, profile="smoke") == "not run"


@given(st.dictionaries(st.sampled_from("abcdef"), st.booleans(), min_size=1))
def test_one_quantity_that_fails_is_enough(outcomes):
    declaration = claim(expect={name: {"equals": True} for name in outcomes})
    expected = "reproduced" if all(outcomes.values()) else "not reproduced"
    assert claims.verdict(declaration, outcomes) == expected


def test_a_measured_quantity_has_to_be_declared_and_a_declared_one_measured():
    with pytest.raises(ValueError, match=r"'fc-one'.*'constnat' is not declared; did you mean 'constant'\?"):
        claims.verdict(CLAIM, {"constnat": 1.5, "note": 0})
    with pytest.raises(ValueError, match="'fc-one'.*declared quantity 'note' is not measured"):
        claims.verdict(CLAIM, {"constant": 1.5})
    with pytest.raises(ValueError, match="is not measured"):
        claims.verdict(CLAIM, {}, profile="smoke")


# ---------------------------------------------------------------------------------------------------------- ledger


def test_a_check_leaves_a_record_of_plain_values(files, shown):
    ledger = claims.open("feature-collapse", profile="laptop", device=torch.device("cpu"))
    ledger.check("fc-one", measured={"constant": torch.tensor(1.45, dtype=torch.float64), "note": np.arange(3)})
    record = shown[0][claims.MIME]
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert set(record) == {
        *("id", "verdict", "measured", "expected", "chapter", "profile", "device", "dataset", "seconds")
    }
    assert record["verdict"] == "reproduced"
    assert record["measured"] == {"constant": 1.45, "note": [0, 1, 2]}
    assert record["expected"] == CLAIM["expect"]
    assert (record["chapter"], record["device"], record["dataset"]) == ("feature-collapse", "cpu", None)
    assert 'id="claim-fc-one"' in shown[0]["text/html"]
    assert "fc-one" in shown[0]["text/plain"]


def test_the_record_names_the_chapter_that_is_being_built(files, shown, monkeypatch):
    monkeypatch.setenv("COLLAPSE_CHAPTER", "feature-collapse/theorems")
    claims.open("feature-collapse").check("fc-one", measured=GOOD)
    assert shown[0][claims.MIME]["chapter"] == "feature-collapse/theorems"


def test_the_seconds_of_a_claim_count_what_its_taken_up_runs_took_in_the_build_before(
    files, shown, monkeypatch, tmp_path
):
    files([CLAIM, claim(id="fc-two")])
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    clock = iter([100.0, 102.0, 105.0])
    monkeypatch.setattr(claims.time, "perf_counter", lambda: next(clock))
    notes.note("resumed", name="before the ledger", runs=1, seconds=7.0)
    ledger = claims.open("feature-collapse")
    notes.note("resumed", name="squares", runs=2, seconds=60.0)
    ledger.check("fc-one", measured=GOOD)
    ledger.check("fc-two", measured=GOOD)
    assert [output[claims.MIME]["seconds"] for output in shown] == [62.0, 3.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), torch.tensor(math.nan)])
def test_a_value_that_is_not_finite_is_kept_as_text_and_fails(files, shown, value):
    claims.open("feature-collapse").check("fc-one", measured={"constant": value, "note": value})
    record = shown[0][claims.MIME]
    assert record["verdict"] == "not reproduced"
    assert record["measured"]["constant"] in ("nan", "inf")
    json.dumps(record, allow_nan=False)


def test_a_skipped_claim_is_not_run_and_says_why(files, shown):
    claims.open("feature-collapse").skip("fc-one", reason="needs a GPU")
    record = shown[0][claims.MIME]
    assert (record["verdict"], record["reason"]) == ("not run", "needs a GPU")
    assert "needs a GPU" in shown[0]["text/html"]
    assert claims.render(record)[0]["verdict"] == "not run"


def test_a_smoke_run_shows_values_and_no_verdict(files, shown):
    claims.open("feature-collapse", profile="smoke").check("fc-one", measured=GOOD)
    assert shown[0][claims.MIME]["verdict"] == "not run"
    assert "smoke" in shown[0]["text/html"]


def test_the_ledger_refuses_what_it_cannot_judge(files, shown):
    pending = claim(id="fc-later", expect=None)
    other = claim(id="ufm-one", paper="extended-ufm")
    files([CLAIM, other, pending], pending=["fc-later"])
    ledger = claims.open("feature-collapse")
    for name, message in {
        "fc-onee": r"claim 'fc-onee' is not declared in claims.yml; did you mean 'fc-one'",
        "ufm-one": r"claim 'ufm-one' is one of extended-ufm, this ledger is that of feature-collapse",
        "fc-later": r"claim 'fc-later' is pending",
    }.items():
        with pytest.raises(ValueError, match=message):
            ledger.check(name, measured=GOOD)
        with pytest.raises(ValueError, match=message):
            ledger.skip(name, reason="no time")
    with pytest.raises(ValueError, match="has to map quantities to values"):
        ledger.check("fc-one", measured=1.5)
    with pytest.raises(ValueError, match="quantity 'note' is object"):
        ledger.check("fc-one", measured={"constant": 1.5, "note": object()})
    with pytest.raises(ValueError, match="takes a reason"):
        ledger.skip("fc-one", reason=" ")
    assert not shown
    ledger.check("fc-one", measured=GOOD)
    with pytest.raises(ValueError, match="'fc-one' is checked twice"):
        ledger.check("fc-one", measured=GOOD)
    with pytest.raises(ValueError, match="'fc-one' is checked twice"):
        ledger.skip("fc-one", reason="enough")


def test_an_unknown_paper_or_profile_is_named_with_the_known_ones(files):
    with pytest.raises(ValueError, match="unknown paper 'feature-colapse'; known are feature-collapse, .*did you mean"):
        claims.open("feature-colapse")
    with pytest.raises(ValueError, match="unknown profile 'lptop'; known are smoke, laptop, paper"):
        claims.open("feature-collapse", profile="lptop")


def test_opening_a_ledger_checks_the_whole_file(files):
    files([CLAIM, claim(id="lr-other", paper="low-rank-bias", kind="conjecture")])
    with pytest.raises(ValueError, match="'lr-other'.*unknown kind 'conjecture'"):
        claims.open("feature-collapse")


# ----------------------------------------------------------------------------------------------------- damaged files


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "conjecture"}, "unknown kind 'conjecture'; known are theorem, number, figure, question"),
        ({"paper": "extended-umf"}, "unknown paper 'extended-umf'.*did you mean 'extended-ufm'"),
        ({"statement": None}, "'statement' is missing"),
        ({"statement": 3}, "'statement' has to be text, not 3"),
        ({"where": " "}, "'where' has to be text"),
        ({"id": "FC one"}, "an id has lower-case letters"),
        ({"dataset": 3}, "'dataset' has to be a name or a list of names, not 3"),
        ({"expects": {}}, "unknown key 'expects'; did you mean 'expect'"),
        ({"expect": {}}, "'expect' has to map each measured quantity"),
        ({"expect": [1]}, "'expect' has to map each measured quantity"),
        ({"expect": {"c": 1.5}}, "quantity 'c': an expectation is a mapping"),
        ({"expect": {"c": {}}}, "exactly one of value, below, above, between, equals, report"),
        ({"expect": {"c": {"below": 1, "above": 0}}}, "exactly one of"),
        ({"expect": {"c": {"belo": 1}}}, "unknown relation 'belo'; did you mean 'below'"),
        ({"expect": {"c": {"value": 1}}}, "'value' needs a tolerance"),
        ({"expect": {"c": {"value": 1, "abs": 1, "rel": 1}}}, "'value' needs a tolerance"),
        ({"expect": {"c": {"value": 1, "abs": -1}}}, "the tolerance abs = -1 is negative"),
        ({"expect": {"c": {"value": "1e-9", "abs": 1}}}, "has to be a number, not '1e-9' .*1.0e-9"),
        ({"expect": {"c": {"value": math.nan, "abs": 1}}}, "has to be a number"),
        ({"expect": {"c": {"below": True}}}, "'below' has to be a number, not True"),
        ({"expect": {"c": {"below": 1, "abs": 1}}}, "'abs' belongs to 'value'"),
        ({"expect": {"c": {"between": 3}}}, "'between' needs \\[lower, upper\\]"),
        ({"expect": {"c": {"between": [2, 1]}}}, "bounds the wrong way round"),
        ({"expect": {"c": {"between": [0, "x"]}}}, "has to be a number, not 'x'"),
        ({"expect": {"c": {"equals": 1.5}}}, "'equals' needs true, false, a whole number or text"),
        ({"expect": {"c": {"report": False}}}, "'report' takes true"),
        ({"expect": {"c": {"below": 1, "printed": [1]}}}, "'printed' has to be a number or text"),
        ({"expect": {"c": {"report": True}}}, "nothing to judge the claim by"),
        ({"expect": {0.5: {"below": 1}}}, "has to be text, not 0.5"),
        ({"expect": None}, "'fc-one' has no 'expect'"),
    ],
)
def test_a_damaged_claim_is_named_with_file_and_line(files, changes, message):
    folder = files([claim(**changes)])
    with pytest.raises(ValueError, match=message) as caught:
        claims.validate()
    assert re.search(rf"{re.escape(str(folder / 'claims.yml'))}, line 2: claim '", str(caught.value))


@pytest.mark.parametrize(
    ("entries", "pending", "message"),
    [
        ([CLAIM, CLAIM], [], "claim 'fc-one' is declared a second time \\(first in line 2\\)"),
        ([CLAIM], ["fc-two"], "pending claim 'fc-two' is not declared; did you mean 'fc-one'"),
        ([CLAIM], ["fc-one"], "'fc-one' is pending and has an 'expect'"),
        ([claim(expect=None)], ["fc-one", "fc-one"], "'fc-one' stands twice under 'pending'"),
        ([7], [], "entry 1 of 'claims' has to be a mapping, not 7"),
    ],
)
def test_declarations_that_contradict_each_other_are_refused(files, entries, pending, message):
    files(entries, pending)
    with pytest.raises(ValueError, match=message):
        claims.validate()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claims:\n- id: [unclosed\npending: []\n", "claims.yml, line 3"),
        ("claims:\n- id: a\n  id: b\npending: []\n", "claims.yml, line 3: the key 'id' stands twice"),
        ("", "'claims' and 'pending' are needed"),
        ("- one\n", "'claims' and 'pending' are needed"),
        ("claims: []\npendign: []\n", "unknown entry 'pendign' at the top; did you mean 'pending'"),
        ("claims: {}\npending: []\n", "'claims' has to be a list, not {}"),
        ("claims: []\n", "'pending' has to be a list, not None"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line(files, text, message):
    files(text=text)
    with pytest.raises(ValueError, match=message):
        claims.open("feature-collapse")


def test_a_missing_file_or_one_that_is_not_text_is_named(files):
    folder = files()
    (folder / "claims.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="claims.yml: not UTF-8 text"):
        claims.validate()
    (folder / "claims.yml").unlink()
    with pytest.raises(ValueError, match="claims.yml: there is no such file"):
        claims.validate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shown_by": "fc-on"}, "shown by 'fc-on', which is not declared; did you mean 'fc-one'"),
        ({"paper": "extended-ufm"}, "shown by 'fc-one', a claim of feature-collapse"),
        ({"paper": "none"}, "unknown paper 'none'"),
        ({"how": ""}, "'how' has to be text"),
        ({"place_": "x"}, "unknown key 'place_'; did you mean 'place'"),
    ],
)
def test_a_damaged_erratum_is_named(files, changes, message):
    files(errata=[{**ERRATUM, **changes}])
    with pytest.raises(ValueError, match=f"errata.yml, line .*erratum 'sign'.*{message}"):
        claims.open("feature-collapse")


def test_errata_that_stand_twice_or_lack_a_key_are_refused(files):
    files(errata=[ERRATUM, dict(ERRATUM)])
    with pytest.raises(ValueError, match="erratum 'sign' stands there a second time"):
        claims.validate()
    files(errata=[{key: value for key, value in ERRATUM.items() if key != "transcription"}])
    with pytest.raises(ValueError, match="'transcription' is missing"):
        claims.validate()
    files(errata=["text"])
    with pytest.raises(ValueError, match="entry 1 of 'errata' has to be a mapping"):
        claims.validate()
    files(errata_text="errata: 3\n")
    with pytest.raises(ValueError, match="'errata' has to be a list, not 3"):
        claims.validate()


# ------------------------------------------------------------------------------------------------- records and pages


def record_of(measured=GOOD, **changes):
    fields = {"verdict": "?", "expected": {}, "chapter": "feature-collapse/theorems", "profile": "laptop"}
    return {"id": "fc-one", "measured": measured, "device": "cpu", "dataset": None, "seconds": 1.0, **fields, **changes}


def test_rendering_judges_by_the_declaration_of_now(files):
    record = record_of()
    assert claims.render(record)[0]["verdict"] == "reproduced"
    files([claim(expect={"constant": {"value": 3.0, "abs": 0.1}, "note": {"report": True}})])
    again, table = claims.render(record)
    assert again["verdict"] == "not reproduced"
    assert again["expected"]["constant"]["value"] == 3.0
    assert "not reproduced" in table
    files([claim(expect={"constant": {"value": 3.0, "abs": 0.1}, "note": {"report": True}})], errata=[ERRATUM])
    again, table = claims.render(record)
    assert again["verdict"] == "contradicted"
    assert 'href="../errata/feature-collapse.html#erratum-sign"' in table
    assert record["verdict"] == "?"


def test_a_record_without_a_fitting_declaration_is_refused(files):
    with pytest.raises(ValueError, match="the record of claim 'fc-gone' has no declaration any more"):
        claims.render(record_of(id="fc-gone"))
    with pytest.raises(ValueError, match="declared quantity 'note' is not measured"):
        claims.render(record_of({"constant": 1.5}))


def test_the_table_shows_print_measurement_difference_and_a_sign_beside_the_colour(files):
    _, table = claims.render(record_of())
    for text in ("printed or expected", "1.5", "1.45", "−0.05", "✓", 'aria-label="met"', "reproduced", "Theorem 1"):
        assert text in table
    _, table = claims.render(record_of(BAD))
    assert "✗" in table
    assert 'aria-label="not met"' in table


def test_what_the_paper_prints_can_stand_in_its_own_words(files):
    files([claim(expect={"norm": {"value": 1.41, "abs": 0.02, "printed": "1.41 ± 0.13"}})])
    _, table = claims.render(record_of({"norm": 1.42}))
    assert "1.41 ± 0.13" in table


def test_text_from_the_files_cannot_break_the_page(files):
    files([claim(statement="a < b & <script>x</script>", expect={"<i>": {"equals": "<b>"}})])
    record, table = claims.render(record_of({"<i>": "<script>"}))
    assert "<script>" not in table + claims.ledger_page([record])


def test_records_are_collected_from_the_outputs_of_a_notebook(files, tmp_path):
    outputs = [
        {"output_type": "stream", "text": "x"},
        {"output_type": "display_data", "data": {claims.MIME: {"id": "a"}}},
    ]
    notebook = {"cells": [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}]}
    assert claims.collect(notebook) == [{"id": "a"}]
    path = tmp_path / "executed.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert claims.collect(path) == [{"id": "a"}]


def test_the_ledger_page_has_one_row_per_claim_whatever_was_measured(files):
    later = claim(id="lr-later", paper="low-rank-bias", kind="figure", expect=None)
    files([CLAIM, claim(id="fc-two"), later], pending=["lr-later"], errata=[ERRATUM])
    page = claims.ledger_page([record_of(BAD)], paper_records={"fc-one": kept_of()})
    rows = re.findall(r'<tr id="ledger-([^"]*)" data-paper="([^"]*)" data-verdict="([^"]*)" data-kind="([^"]*)">', page)
    assert rows == [
        ("fc-one", "feature-collapse", "contradicted", "number"),
        ("fc-two", "feature-collapse", "not run", "number"),
        ("lr-later", "low-rank-bias", "not written yet", "figure"),
    ]
    assert 'href="../feature-collapse/theorems.html#claim-fc-one"' in page
    assert 'href="../errata/feature-collapse.html#erratum-sign"' in page
    assert '<table id="ledger">' in page
    for field in ("ledger-paper", "ledger-kind", "ledger-verdict", "ledger-text"):
        assert f'id="{field}"' in page
    tally = re.findall(r'<a href="\?verdict=([^"]*)".*?<strong>(\d+)</strong>', page)
    assert tally == [("contradicted", "1"), ("not+run", "1"), ("not+written+yet", "1")]
    assert "\n\n" not in page
    assert "Paper profile" in page
    assert "Paper profile" not in claims.ledger_page([], paper_records={}), "a column of which nothing is recorded"


def kept_of(measured=GOOD, **changes):
    """A record of the paper profile as lib.book.records.read has it."""
    about = {"profile": "paper", "finished": "2026-11-22T10:00:00+00:00", "machine": {"name": "Card <1>"}}
    return record_of(measured, **{"verdict": "reproduced", "outdated": [], **about, **changes})


def recorded_cell(page, name="fc-one"):
    (row,) = re.findall(rf'<tr id="ledger-{name}".*?</tr>', page)
    before, _, after = row.partition('<td data-label="Paper profile"')
    return before, after


def test_a_recorded_verdict_stands_beside_the_live_one_with_its_values_date_device_and_data(files):
    files([CLAIM, claim(id="fc-two")])
    page = claims.ledger_page([record_of(BAD)], {"fc-one": kept_of(dataset="digits")})
    live, kept = recorded_cell(page)
    assert "not reproduced" in live and "constant = 2" in live and "2026" not in live
    assert "claim-reproduced" in kept and "not reproduced" not in kept and "constant = 1.45" in kept
    assert "<small>2026-11-22, Card &lt;1&gt;</small>" in kept and "<small>data: digits</small>" in kept
    assert "outdated" not in kept and "<details>" not in kept
    assert "—" in recorded_cell(page, "fc-two")[1], "nothing is recorded of the other claim"


def test_an_outdated_record_says_why_in_words_and_by_a_sign(files):
    kept = kept_of(outdated=["its code cells changed", "lib.training.unconstrained changed"])
    _, cell = recorded_cell(claims.ledger_page([], {"fc-one": kept}))
    assert "⚠</span> outdated: its code cells changed; lib.training.unconstrained changed</small>" in cell


def test_a_record_of_a_claim_that_was_skipped_says_why(files):
    kept = kept_of({}, verdict="not run", reason="it takes a cluster")
    _, cell = recorded_cell(claims.ledger_page([], {"fc-one": kept}))
    assert "claim-not-run" in cell and "<small>it takes a cluster</small>" in cell


def test_more_than_three_recorded_values_wait_to_be_unfolded(files):
    expect = {f"{letter}_1": {"below": 9} for letter in "abcd"}
    files([claim(expect=expect)])
    kept = kept_of(dict.fromkeys(expect, 1.23456))
    _, cell = recorded_cell(claims.ledger_page([], {"fc-one": kept}))
    assert '<details><summary>4 values</summary><div class="claim-record"><small>a<sub>1</sub> = 1.235</small>' in cell


# ------------------------------------------------------------------------------------------------------------ errata

SECTION = """(erratum-sign)=
## The sign of $r$

<!-- erratum sign -->

Words.

```{code-cell} ipython3
## not a heading
"<!-- erratum other -->"
```

<!-- consequence sign -->
"""


@pytest.fixture
def errata(files, tmp_path):
    """Writes a page below the folder of the book with one erratum and returns its path."""
    files(errata=[ERRATUM])

    def write(text, name="errata/feature-collapse.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# Errata\n\n{text}\n## Another\n\n```{{code-cell}} ipython3\nx\n```\n", encoding="utf-8")
        return path

    return write


def test_the_heading_of_an_erratum_is_read_from_its_section(errata):
    assert claims.check_errata([errata(SECTION)]) == {"sign": "The sign of $r$"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SECTION, "", r"erratum 'sign' has no section, or no anchor \(erratum-sign\)="),
        ("(erratum-sign)=", "(erratum-sing)=", "erratum 'sing' is not in errata.yml; did you mean 'sign'"),
        (SECTION, SECTION + SECTION, "erratum 'sign' has two sections"),
        ("## The sign of $r$", "", "no heading '## ...' right after its anchor"),
        ("## The sign", "### The sign", "no heading '## ...' right after its anchor"),
        ("<!-- erratum sign -->", "", "at least one code cell"),
        ("<!-- consequence sign -->", "", "at least one code cell"),
        ("<!-- erratum sign -->", "<!-- erratum sign -->\n<!-- erratum sign -->", "at least one code cell"),
        ("<!-- erratum sign -->", "<!-- consequence sign -->", "at least one code cell"),
        ("```{code-cell} ipython3", "```python", "at least one code cell"),
        ("<!-- erratum sign -->", "<!-- erratum sigh -->", "erratum 'sigh' is not in errata.yml"),
    ],
)
def test_an_erratum_has_one_complete_section_and_nothing_else(errata, old, new, message):
    assert old in SECTION
    with pytest.raises(ValueError, match=message):
        claims.check_errata([errata(SECTION.replace(old, new))])


def test_an_erratum_stands_on_the_page_of_its_paper(errata):
    with pytest.raises(ValueError, match="other.md: erratum 'sign' belongs to .*errata/feature-collapse.md"):
        claims.check_errata([errata(SECTION, "other.md")])


def test_the_markers_become_what_the_file_says_and_the_verdict_of_now(errata):
    page = claims.expand_errata(SECTION, {"fc-one": record_of(BAD)})
    before, code, after = page.partition("```{code-cell} ipython3")
    assert "> **As printed** ((7)): $a$\n>\n> **Corrected.** $b$\n" in before
    assert "**How it is decided.** By evaluation." in before
    assert "**Consequence.** None." in after and "The derivation repeats it." in after
    assert 'href="../feature-collapse/theorems.html#claim-fc-one"' in after and "contradicted" in after
    assert '"<!-- erratum other -->"' in page, "text that is no marker stays"
    assert "../back/ledger.html#ledger-fc-one" in claims.expand_errata(SECTION, {})


def test_the_overview_of_the_errata_has_a_row_for_each_and_says_so_when_there_is_none(files):
    assert "No erratum" in claims.errata_page({}, {})
    files(errata=[{**ERRATUM, "place": "|x|"}])
    page = claims.errata_page({"fc-one": record_of(BAD)}, {"sign": "The sign of $r$"})
    assert "## Feature collapse" in page and "Low-rank bias" not in page
    (row,) = (line for line in page.splitlines() if "erratum-sign" in line)
    assert '<a href="../errata/feature-collapse.html#erratum-sign">The sign of $r$</a>' in row
    assert r"| \|x\| |" in row and "claim-contradicted" in row


def test_every_erratum_of_the_book_has_its_section():
    headings = claims.check_errata(page.path for page in chapters.chapters(ROOT))
    assert set(headings) == {erratum["id"] for shown in claims.validate()[1].values() for erratum in shown}


# -------------------------------------------------------------------------------------------------------- the sources


def chapter(path, code):
    path.write_text(f"# Title\n\n```{{code-cell}} ipython3\n---\ntags: [x]\n---\n{code}\n```\n", encoding="utf-8")
    return path


def test_a_claim_checked_under_one_profile_may_be_skipped_under_another(files, tmp_path):
    code = 'if big:\n    ledger.check("fc-one", {})\nelse:\n    ledger.skip(\n        "fc-one", reason="")'
    path = chapter(tmp_path / "a.md", code)
    assert claims.check_sources([path]) == {"fc-one": path}


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (["pass"], "'fc-one' is declared and checked nowhere"),
        (['ledger.skip("fc-one", "x")'], "'fc-one' is declared and checked nowhere"),
        (['# ledger.check("fc-one", {})'], "'fc-one' is declared and checked nowhere"),
        (['ledger.check("fc-one", {})'] * 2, "'fc-one' is checked in two places"),
        (['ledger.check("fc-one", {})\nledger.check("fc-one", {})'], "'fc-one' is checked in two places"),
        (['ledger.check("fc-one", {})', 'ledger.skip("fc-one", "x")'], "is checked in .*a0.md and skipped in .*a1.md"),
        (['ledger.check("fc-one", {})\nledger.check("fc-oen", {})'], "'fc-oen' is not declared; did you mean 'fc-one'"),
        (['ledger.check("fc-one", {})\nledger.check("fc-later", {})'], "'fc-later' is listed as pending"),
        (['ledger.check("fc-one", {})\nledger.check(name, {})'], "without the claim's id written out"),
    ],
)
def test_sources_and_declarations_have_to_agree(files, tmp_path, codes, message):
    files([CLAIM, claim(id="fc-later", expect=None)], pending=["fc-later"])
    paths = [chapter(tmp_path / f"a{number}.md", code) for number, code in enumerate(codes)]
    with pytest.raises(ValueError, match=message):
        claims.check_sources(paths)


def test_prose_about_the_ledger_is_no_check(files, tmp_path):
    path = chapter(tmp_path / "a.md", 'ledger.check("fc-one", {})')
    path.write_text(path.read_text() + '\n```python\nledger.check("fc-none", {})\n```\n')
    assert set(claims.check_sources([path])) == {"fc-one"}


# ------------------------------------------------------------------------------------------------------ the real book


def test_the_declarations_of_the_book_are_in_order():
    declared, errata, pending = claims.validate()
    assert set(pending) <= set(declared)
    assert set(errata) <= set(declared)


def test_every_claim_of_the_inventory_is_declared():
    declared = claims.declarations()
    assert Counter(entry["paper"] for entry in declared.values()) == {
        "feature-collapse": 21,
        "extended-ufm": 16,
        "memorization-dilation": 16,
        "low-rank-bias": 23,
        "beyond": 4,
    }
    prefixes = {"fc": "feature-collapse", "ufm": "extended-ufm", "md": "memorization-dilation", "lr": "low-rank-bias"}
    for name, entry in declared.items():
        assert entry["paper"] == {**prefixes, "x": "beyond"}[name.split("-")[0]]


def test_every_claim_is_measured_by_exactly_one_chapter_and_the_pending_ones_by_none():
    checked = claims.check_sources(
        path for path in (ROOT / "chapters").rglob("*.md") if ".ipynb_checkpoints" not in path.parts
    )
    assert set(checked) == set(claims.declarations()) - set(claims.pending())
    for name, path in checked.items():
        paper = claims.declarations()[name]["paper"]  # what goes beyond a paper may stand on its pages, and vice versa
        assert path.parent.name in (paper, "synthesis") or paper == "beyond"


def test_every_claim_of_feature_collapse_is_written():
    unwritten = [name for name in claims.pending() if name.startswith("fc-")]
    assert unwritten == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("K = n_c^L", "K = n<sub>c</sub><sup>L</sup>"),
        ("|u_{k,ℓ}| and σ_e²", "|u<sub>k,ℓ</sub>| and σ<sub>e</sub>²"),
        ("K^{(3-L)/2} < r_max.", "K<sup>(3-L)/2</sup> &lt; r<sub>max</sub>."),
        ("no index: _ and ^, or _this_", "no index: _ and ^, or _this_"),
    ],
)
def test_indices_and_exponents_of_a_statement_are_set(files, text, expected):
    files([claim(statement=text)])
    assert expected in claims.render(record_of())[1]
    assert expected in claims.ledger_page([])


def test_a_claim_checked_in_a_longer_fence_is_seen(tmp_path):
    chapter = tmp_path / "one.md"
    chapter.write_text('````{code-cell} ipython3\nledger.check("no-such-claim", measured={})\n````\n')
    with pytest.raises(ValueError, match="'no-such-claim' is not declared"):
        claims.check_sources([chapter])
