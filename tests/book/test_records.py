"""Records of the paper profile: taken from executed notebooks, refused when damaged, outdated when the code moved."""

import json
import re
import shutil

import pytest

from lib.book import execute as run
from lib.book import inputs, records
from lib.book import page as chapters
from lib.book.ledger import claims, declarations
from lib.book.page import BadInput
from lib.book.site import publish as site
from made_up import CLAIM, DATA, MACHINE, MEASURE, ROOT

PROCESSOR = {**MACHINE, "device": "cpu", "name": "Processor 2"}


def file(book):
    return book.root / "recorded" / "part" / "one.json"


def record(book, pattern=""):
    return records.record(chapters.select(chapters.chapters(book.root), pattern), book.root)


@pytest.fixture
def kept(book):
    """The book with one record."""
    book.execute()
    record(book)
    return book


@pytest.fixture
def two_measure(book):
    """Both chapters measure a claim, and the first has been executed."""
    book.chapter("one", MEASURE.partition("if profile")[0])
    more = 'ledger = claims.Ledger("feature-collapse", profile=profile)\nledger.check("fc-two", measured={})'
    book.chapter("two", more)
    book.execute("one")
    return book


# ------------------------------------------------------------------------------------------------------------ making


def test_a_record_holds_the_claims_with_their_provenance(book):
    book.execute()
    (taken,) = record(book)
    text = file(book).read_text()
    assert text == json.dumps(taken, sort_keys=True, indent=1, ensure_ascii=False) + "\n", "its changes can be read"
    assert [path.name for path in file(book).parent.iterdir()] == ["one.json"], "nothing else is left there"
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
    kept.execute(x=45)
    (taken,) = record(kept, "part/one")
    assert taken["claims"][0]["verdict"] == "not reproduced"


def test_chapters_without_claims_and_of_another_profile_are_passed_over(two_measure, capsys):
    two_measure.execute("two", profile="laptop")
    assert [taken["chapter"] for taken in record(two_measure)] == ["part/one"]
    assert capsys.readouterr().out == "not recorded: part/two: profile 'laptop'\n"


def test_without_an_execution_in_the_paper_profile_nothing_is_recorded(book):
    with pytest.raises(BadInput, match="'night'\n  part/one: never executed"):
        record(book)
    book.execute(profile="laptop")
    with pytest.raises(BadInput, match="'night'\n  part/one: profile 'laptop'"):
        record(book)
    book.execute("two")
    with pytest.raises(BadInput, match="none of the selected chapters measures a claim"):
        record(book, "part/two")
    assert not (book.root / "recorded").exists()


@pytest.mark.parametrize("missing", ["machine", "finished", "data"])
def test_an_execution_that_does_not_say_when_and_where_counts_as_none(book, missing):
    book.execute(without=[missing])
    with pytest.raises(BadInput, match="never executed"):
        record(book)


def test_claims_that_cannot_be_judged_or_are_of_another_profile_are_refused(book):
    book.execute()
    notebook = run.executed_notebook(book.page())
    del notebook.metadata.book["checksum"]
    claims.collect(notebook)[1][claims.MIME]["profile"] = "laptop"
    run.keep(book.page(), notebook)
    with pytest.raises(BadInput, match="one.md: claim 'fc-two' was measured with profile 'laptop'"):
        record(book)
    book.declare({**CLAIM, "expect": {"y": {"below": 1}}}, {**CLAIM, "id": "fc-two"})
    with pytest.raises(BadInput, match="one.md: claim 'fc-one'.*execute the chapter again"):
        record(book)


def test_nothing_is_recorded_where_one_chapter_is_stale_which_is_named_with_the_reason(two_measure):
    two_measure.execute("two")
    two_measure.edit("chapters/part/two.md", "measured={}", "measured={'x': 1}")
    with pytest.raises(BadInput, match="two.md is stale, execute it again: its code cells changed"):
        record(two_measure)
    assert not file(two_measure).exists()
    assert [taken["chapter"] for taken in record(two_measure, "part/one")] == ["part/one"]


@pytest.mark.parametrize("facts", [{"machine": PROCESSOR}, {"profile": "night"}])
def test_a_cpu_and_a_night_replace_no_record_of_a_card_that_holds(kept, capsys, facts):
    before = file(kept).read_text()
    kept.execute(x=41, **facts)
    assert record(kept) == []
    assert "not recorded: part/one: its record was made at paper on Card 1" in capsys.readouterr().out
    assert file(kept).read_text() == before


def test_a_night_is_recorded_where_there_is_nothing_larger(book):
    book.execute(profile="night")
    (taken,) = record(book)
    assert taken["profile"] == taken["parameters"]["profile"] == "night"
    page, found = states(book)
    assert "0 of the 2 claims have a current record of the `paper` profile and 1 one of `night`" in page
    assert found["fc-one"].startswith("recorded at night 2026")
    book.execute(machine=PROCESSOR)
    assert record(book)[0]["profile"] == "paper"


@pytest.mark.parametrize(("name", "old", "new"), [("lib/deeper.py", "42", "43"), ("recorded/part/one.json", "1", "2")])
def test_a_cpu_replaces_an_outdated_or_damaged_record_of_a_card(kept, name, old, new):
    kept.edit(name, old, new)
    kept.execute(machine=PROCESSOR)
    (taken,) = record(kept)
    assert taken["machine"] == PROCESSOR == json.loads(file(kept).read_text())["machine"]


# ----------------------------------------------------------------------------------------------------------- reading


def test_what_a_killed_process_left_half_written_is_no_record(book):
    assert records.read(book.root) == {}
    book.write("recorded/part/.one.machine.123.json", '{"chapter": "par')
    assert records.read(book.root) == {}


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


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{}", b'{"format": 1}'])
def test_what_is_no_record_is_refused_with_its_name(kept, content):
    file(kept).write_bytes(content)
    with pytest.raises(ValueError, match="one.json: .*record.*make the record anew"):
        records.read(kept.root)


def test_a_claim_has_one_record_and_a_declaration(kept):
    shutil.copy(file(kept), file(kept).with_name("two.json"))
    with pytest.raises(ValueError, match="'fc-one' is recorded twice: .*one.json and .*two.json"):
        records.read(kept.root)
    file(kept).with_name("two.json").unlink()
    kept.declare({**CLAIM, "id": "fc-oen"})
    with pytest.raises(ValueError, match="one.json: claim 'fc-one' is not declared; did you mean 'fc-oen'"):
        records.read(kept.root)


# ------------------------------------------------------------------------------------------------------------- pages


def test_the_rows_of_claims_json_hold_what_is_recorded(kept):
    rows = {row["id"]: row for row in site.write_claims({}, records.read(kept.root))}
    assert set(rows["fc-one"]) == set(site.FIELDS)
    assert rows["fc-one"]["verdict"] == "not run", "a record is no measurement of this build"
    assert rows["fc-one"]["recorded"] == {
        "verdict": "reproduced", "measured": {"x": 42, "note": [1, 2]}, "profile": "paper",
        "finished": "2026-11-22T10:00:00+00:00", "device": "Card 1", "outdated": [],
    }  # fmt: skip
    assert {row["recorded"] for row in site.write_claims({}, {})} == {None}


def states(book):
    """What the page about the paper profile says about each claim."""
    page = records.overview(records.read(book.root), {}, book.root)
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "ledger-" in line]
    rows = [(*cells, re.sub('<span class="claim-record">([^<]*)</span>', r"\1", state)) for *cells, state in rows]
    return page, {name: state for _, names, state in rows for name in re.findall(r">([\w-]+)</a>", names)}


def test_the_overview_says_of_every_claim_what_is_known(book):
    page, found = states(book)
    assert "0 of the 2 claims" in page and "The other 2 are judged by the build at hand alone." in page
    assert "### Feature collapse" in page and "### Low-rank bias" not in page
    assert "[Chapter one](../part/one.md)" in page
    assert found == dict.fromkeys(("fc-one", "fc-two"), "never run at paper scale")
    book.execute()
    record(book)
    page, found = states(book)
    assert "1 of the 2 claims" in page and "1 of them of a run on a GPU. The other 1 are" in page
    assert found["fc-one"] == "recorded 2026-11-22 on Card 1"
    assert found["fc-two"] == "not measured: it takes a cluster (2026-11-22 on Card 1)"
    book.edit("lib/deeper.py", "42", "43")
    book.execute(machine=PROCESSOR)
    record(book)
    page, found = states(book)
    assert "1 of the 2 claims" in page and "0 of them of a run on a GPU. The other 1 are" in page
    book.edit("lib/deeper.py", "43", "44")
    page, found = states(book)
    assert "0 of the 2 claims" in page
    assert found["fc-one"] == "outdated: lib.deeper changed (recorded 2026-11-22 on a CPU, Processor 2)"
    assert found["fc-two"].startswith("outdated: ")


def test_the_records_of_this_book_are_in_order():
    assert set(records.read(ROOT)) <= set(declarations.read().claims)
