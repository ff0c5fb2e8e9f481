"""Records of the paper profile: taken from executed notebooks, outdated when the code moved, judged by what is declared
now."""

import json
import re
import shutil

import pytest

from lib.book import execute, inputs, records
from lib.book.ledger import claims, declarations
from lib.book.page import BadInput, chapters, select
from lib.book.site import publish
from made_up import CLAIM, DATA, MACHINE, MEASURE

PROCESSOR = {**MACHINE, "device": "cpu", "name": "Processor 2"}


def file(book):
    return book.root / "recorded" / "part" / "one.json"


def record(book, pattern=""):
    return records.record(select(chapters(book.root), pattern), book.root)


@pytest.fixture
def kept(book):
    """The book with one record."""
    book.pretend()
    record(book)
    return book


@pytest.fixture
def two_measure(book):
    """Both chapters measure a claim, and the first has been executed."""
    book.chapter("one", MEASURE.partition("if profile")[0])
    more = 'ledger = claims.Ledger("feature-collapse", profile=profile)\nledger.check("fc-two", measured={})'
    book.chapter("two", more)
    book.pretend("one")
    return book


# ------------------------------------------------------------------------------------------------------------ making


def test_a_record_holds_the_claims_with_their_provenance(book):
    book.pretend()
    (taken,) = record(book)
    text = file(book).read_text()
    assert text == json.dumps(taken, sort_keys=True, indent=1, ensure_ascii=False) + "\n", "its changes can be read"
    assert (taken["chapter"], taken["finished"], taken["seconds"]) == ("part/one", "2026-11-22T10:00:00+00:00", 9.5)
    assert (taken["machine"], taken["data"]) == (MACHINE, DATA)
    assert taken["parameters"] == {"profile": "paper", "seed": 0}
    key = inputs.key(book.page(), {})
    assert taken["hashes"] == {part: key[part] for part in ("code", "lib", "files")}
    assert set(taken["hashes"]["lib"]) == {"lib", "lib.deeper", "lib.helper"}
    one, two = taken["claims"]
    assert (one["id"], one["verdict"], one["measured"]) == ("fc-one", "reproduced", {"x": 42, "note": [1, 2]})
    assert (one["expected"], one["dataset"], one["seconds"]) == (CLAIM["expect"], "mnist", 1.5)
    assert "reason" not in one
    assert (two["id"], two["verdict"], two["reason"]) == ("fc-two", "not run", "it takes a cluster")


def test_recording_the_same_execution_again_changes_nothing_and_another_one_is_judged(kept):
    before = file(kept).read_text()
    record(kept)
    assert file(kept).read_text() == before
    kept.pretend(x=45)
    (taken,) = record(kept, "part/one")
    assert taken["claims"][0]["verdict"] == "not reproduced"


def test_a_page_reads_what_the_record_of_a_claim_holds(kept):
    assert claims.recorded("fc-one", kept.root) == {"x": 42, "note": [1, 2]}
    file(kept).unlink()
    assert claims.recorded("fc-one", kept.root) == {}


def test_chapters_without_claims_and_of_another_profile_are_passed_over(two_measure, capsys):
    two_measure.pretend("two", profile="laptop")
    assert [taken["chapter"] for taken in record(two_measure)] == ["part/one"]
    assert capsys.readouterr().out == "not recorded: part/two: profile 'laptop'\n"


def test_without_an_execution_in_the_paper_profile_nothing_is_recorded(book):
    with pytest.raises(BadInput, match="'night'\n  part/one: never executed"):
        record(book)
    book.pretend(profile="laptop")
    with pytest.raises(BadInput, match="'night'\n  part/one: profile 'laptop'"):
        record(book)
    book.pretend(without=["machine"])
    with pytest.raises(BadInput, match="'night'\n  part/one: never executed"):
        record(book)
    with pytest.raises(BadInput, match="none of the selected chapters measures a claim"):
        record(book, "part/two")
    assert not (book.root / "recorded").exists()


def test_claims_that_cannot_be_judged_or_are_of_another_profile_are_refused(book):
    book.pretend()
    notebook = execute.executed_notebook(book.page())
    claims.collect(notebook)[1][claims.MIME]["profile"] = "laptop"
    execute.keep(book.page(), notebook)
    with pytest.raises(BadInput, match="one.md: claim 'fc-two' was measured with profile 'laptop'"):
        record(book)
    book.declare({**CLAIM, "expect": {"y": {"below": 1}}}, {**CLAIM, "id": "fc-two"})
    with pytest.raises(BadInput, match="one.md: claim 'fc-one'.*execute the chapter again"):
        record(book)


def test_nothing_is_recorded_where_one_chapter_is_stale_which_is_named_with_the_reason(two_measure):
    two_measure.pretend("two")
    two_measure.edit("chapters/part/two.md", "measured={}", "measured={'x': 1}")
    with pytest.raises(BadInput, match="two.md is stale, execute it again: its code cells changed"):
        record(two_measure)
    assert not file(two_measure).exists()
    assert [taken["chapter"] for taken in record(two_measure, "part/one")] == ["part/one"]


@pytest.mark.parametrize("facts", [{"machine": PROCESSOR}, {"profile": "night"}])
def test_a_cpu_and_a_night_replace_a_record_of_a_card_only_if_it_is_outdated(kept, capsys, facts):
    before = file(kept).read_text()
    kept.pretend(x=41, **facts)
    assert record(kept) == []
    assert "not recorded: part/one: its record was made at paper on Card 1" in capsys.readouterr().out
    assert file(kept).read_text() == before
    kept.edit("lib/deeper.py", "42", "43")
    kept.pretend(x=41, **facts)
    (taken,) = record(kept)
    assert taken == json.loads(file(kept).read_text()) and taken["claims"][0]["measured"]["x"] == 41


def test_a_night_is_recorded_where_there_is_nothing_larger(book):
    book.pretend(profile="night")
    (taken,) = record(book)
    assert taken["profile"] == taken["parameters"]["profile"] == "night"
    page, found = states(book)
    assert "| Feature collapse | 0 | 1 | 0 | 1 | 0 |" in page
    assert found["fc-one"] == "current: `night`, Card 1, 2026-11-22"
    book.pretend(machine=PROCESSOR)
    assert record(book)[0]["profile"] == "paper"


# ----------------------------------------------------------------------------------------------------------- reading


def test_what_a_killed_process_left_half_written_is_no_record_and_other_files_are_refused_by_name(kept):
    kept.write("recorded/part/.one.machine.123.json", '{"chapter": "par')
    assert set(records.read(kept.root)) == {"fc-one", "fc-two"}
    kept.edit("recorded/part/one.json", "{", "<<<<<<< HEAD\n{")
    with pytest.raises(ValueError, match="one.json is no record"):
        records.read(kept.root)


def test_comments_docstrings_and_prose_outdate_no_record_and_code_does(kept):
    kept.edit("lib/helper.py", '"""Helps."""', '"""Helps a lot."""  # so it does')
    kept.edit("chapters/part/one.md", "Prose.", "Other prose.")
    assert records.read(kept.root)["fc-one"]["outdated"] == []
    kept.edit("lib/deeper.py", "return 42", "return 43 - 1")
    kept.edit("chapters/part/one.md", "[1, 2]", "[1, 2, 3]")
    kept.write("chapters/part/one/more.json", "{}")
    reasons = ["its code cells changed", "lib.deeper changed", "chapters/part/one/more.json changed"]
    for claim in records.read(kept.root).values():
        assert claim["outdated"] == reasons
        assert claim["verdict"] in ("reproduced", "not run"), "the verdict of an outdated record stays"


def test_recorded_claims_are_judged_by_the_declarations_of_now(kept):
    kept.declare({**CLAIM, "expect": {**CLAIM["expect"], "x": {"value": 50, "abs": 1}}}, {**CLAIM, "id": "fc-two"})
    one = records.read(kept.root)["fc-one"]
    assert (one["verdict"], one["outdated"]) == ("not reproduced", [])
    assert one["expected"]["x"]["value"] == 50


def test_other_quantities_outdate_a_record_whose_verdict_stays_as_it_was(kept):
    kept.declare({**CLAIM, "expect": {"y": {"below": 1}}}, {**CLAIM, "id": "fc-two"})
    found = records.read(kept.root)
    assert found["fc-one"]["outdated"] == ["its declaration changed"]
    assert (found["fc-one"]["verdict"], found["fc-one"]["measured"]["x"]) == ("reproduced", 42)
    assert found["fc-two"]["outdated"] == [], "nothing was measured that could have another name now"


def test_the_record_of_a_chapter_that_is_gone_is_outdated(kept):
    kept.edit("_toc.yml", "- file: chapters/part/one\n", "")
    assert records.read(kept.root)["fc-one"]["outdated"] == ["its chapter is not in the book any more"]


def test_a_claim_has_one_record_and_a_declaration(kept):
    shutil.copy(file(kept), file(kept).with_name("two.json"))
    with pytest.raises(ValueError, match="'fc-one' is recorded twice: .*one.json and .*two.json"):
        records.read(kept.root)
    file(kept).with_name("two.json").unlink()
    kept.declare({**CLAIM, "id": "fc-oen"})
    with pytest.raises(ValueError, match="one.json: claim 'fc-one' is not declared; did you mean 'fc-oen'"):
        records.read(kept.root)


def test_the_records_of_this_book_are_in_order():
    assert {claim["id"] for one in records.load() for claim in one["claims"]} <= set(declarations.read().claims)


# ------------------------------------------------------------------------------------------------------------- pages


def quoted(text):
    """What a page quotes from records: the numbers as typed, and the quantities that `<!-- recorded claim: x; y -->`
    names after them (`x [1]` is the second number of a list)."""
    for mark in re.finditer(r"<!-- recorded ([\w-]+): (.+?) -->", text):
        before = re.sub(r"(?s)<!--.*?-->", "", text[: mark.start()].rpartition("\n")[2])
        values = []
        for name in mark[2].split("; "):
            name, _, place = name.removesuffix("]").partition(" [")
            value = claims.recorded(mark[1])[name]
            value = value[int(place)] if place else value
            values += value if isinstance(value, list) else [value]
        yield re.findall(r"[−+]?\d+(?:\.\d+)?(?: ?%)?", before)[-len(values) :], values


def test_numbers_that_pages_quote_from_records_are_those_of_the_records():
    found = [pair for page in chapters() for pair in quoted(page.text)]
    assert found
    for typed, values in found:
        for number, value in zip(typed, values, strict=True):
            digits = number.rstrip(" %").partition(".")[2]
            sign = "+" if number[0] == "+" else ""
            shown = f"{100 * value if '%' in number else value:{sign}.{len(digits)}f}"
            assert number.rstrip(" %") == shown.replace("-", "−"), (typed, values)


def test_the_rows_of_claims_json_hold_what_is_recorded(kept):
    rows = {row["id"]: row for row in publish.write_claims({}, records.read(kept.root))}
    assert set(rows["fc-one"]) == set(publish.FIELDS)
    assert rows["fc-one"]["verdict"] == "not run", "a record is no measurement of this build"
    expected = {"verdict": "reproduced", "measured": {"x": 42, "note": [1, 2]}, "profile": "paper", "outdated": []}
    expected |= {"finished": "2026-11-22T10:00:00+00:00", "device": "Card 1"}
    assert rows["fc-one"]["recorded"] == expected
    assert {row["recorded"] for row in publish.write_claims({}, {})} == {None}


def states(book):
    """What the page about the paper profile says about each claim."""
    page = records.overview(records.read(book.root), {}, book.root)
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "ledger-" in line]
    return page, {name: state for _, names, state in rows for name in re.findall(r">([\w-]+)</a>", names)}


def test_the_overview_counts_the_records_and_says_of_every_claim_what_is_known(book):
    page, found = states(book)
    assert "| claims of | current, paper | current, night | outdated | not measured | none |" in page
    assert "| Feature collapse | 0 | 0 | 0 | 0 | 2 |" in page and "Low-rank bias" not in page
    assert "[Chapter one](../part/one.md)" in page
    assert found == dict.fromkeys(("fc-one", "fc-two"), "none")
    book.pretend()
    record(book)
    page, found = states(book)
    assert "| Feature collapse | 1 | 0 | 0 | 1 | 0 |\n| all claims | 1 | 0 | 0 | 1 | 0 |" in page
    assert found["fc-one"] == "current: `paper`, Card 1, 2026-11-22"
    assert found["fc-two"] == "not measured (it takes a cluster): `paper`, Card 1, 2026-11-22"
    book.edit("lib/deeper.py", "42", "44")
    book.declare({**CLAIM, "expect": {"y": {"below": 1}}}, {**CLAIM, "id": "fc-two"})
    page, found = states(book)
    assert "| Feature collapse | 0 | 0 | 2 | 0 | 0 |" in page
    both = "outdated: `paper`, Card 1, 2026-11-22; changes since: 2"
    assert found == {"fc-one": both, "fc-two": both}, "they share a row, although one has one change more"
