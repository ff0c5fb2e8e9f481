"""Records of the paper profile: taken from executed notebooks, refused when damaged, outdated when the code moved."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from made_up import HEADER

from lib.book import chapters, records, run, site
from lib.book.chapters import BadInput, Page
from lib.ledger import claims, declarations

ROOT = Path(__file__).resolve().parents[2]

PARAMETERS = "profile = 'laptop'\nseed = 0\ndevice = 'auto'"
MEASURE = """from lib import claims
from lib.helper import answer
ledger = claims.open("feature-collapse", profile=profile)
ledger.check("fc-one", measured={"x": answer(), "note": [1, 2]})
if profile == "smoke":
    ledger.check("fc-two", measured={"x": 41, "note": []})
else:
    ledger.skip("fc-two", reason="it takes a cluster")"""
CLAIM = {
    "id": "fc-one",
    "paper": "feature-collapse",
    "where": "Theorem 1",
    "kind": "number",
    "statement": "It is 42.",
    "expect": {"x": {"value": 42, "abs": 1}, "note": {"report": True}},
}
MACHINE = {"device": "cuda", "name": "Card 1", "torch": "2.13", "numpy": "2.3", "python": "3.11", "cuda": "13.0"}
DATA = {"mnist": {"files": 4, "sha256": "0" * 64}}


def chapter(title, *code):
    cells = "\n".join(f"```{{code-cell}} ipython3\n{part}\n```\n" for part in code)
    tagged = f"```{{code-cell}} ipython3\n:tags: [parameters]\n{PARAMETERS}\n```\n"
    return f"{HEADER}# {title}\n\nProse.\n\n{tagged}\n{cells}"


class Book:
    """A throw-away book of two chapters, of which the first measures; executions of it are made up."""

    def __init__(self, root):
        self.root = root
        self.write("lib/__init__.py", "")
        self.write("lib/helper.py", '"""Helps."""\n\ndef answer():\n    return 42\n')
        self.write("chapters/intro.md", "# Intro\n")
        self.write("chapters/part/one.md", chapter("One", MEASURE))
        self.write("chapters/part/two.md", chapter("Two", "print('two')"))
        listed = "".join(f"- file: chapters/part/{name}\n" for name in ("one", "two"))
        self.write("_toc.yml", f"format: jb-book\nroot: chapters/intro\nchapters:\n{listed}")
        self.declare(CLAIM, {**CLAIM, "id": "fc-two"})
        self.write("chapters/errata.yml", "errata: []\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name, old, new):
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def declare(self, *entries):
        self.write("chapters/claims.yml", yaml.safe_dump({"claims": list(entries)}))

    def page(self, name="one"):
        return Page(f"chapters/part/{name}", self.root)

    def execute(self, name="one", profile="paper", x=42, without=(), **facts):
        """What an execution with these values would leave."""
        page = self.page(name)
        about = {"verdict": "?", "expected": {}, "profile": profile, "device": "cuda", "seconds": 1.5}
        about |= {"chapter": page.short, "dataset": "mnist"}
        measured = [
            {"id": "fc-one", "measured": {"x": x, "note": [1, 2]}, **about},
            {"id": "fc-two", "measured": {}, "reason": "it takes a cluster", **about, "verdict": "not run"},
        ]
        notebook = nbformat.from_dict(json.loads(nbformat.writes(page.notebook)))
        if name == "one":
            notebook.cells[-1].outputs = [
                nbformat.v4.new_output("display_data", data={claims.MIME: claim}) for claim in measured
            ]
        key = json.loads(json.dumps(page.key({"profile": profile, "device": "cuda"})))
        noted = {"chapter": page.name, "key": key, "seconds": 9.5, "finished": "2026-11-22T10:00:00+00:00"}
        noted |= {"machine": MACHINE, "data": DATA, "resumed": 0, **facts}
        notebook.metadata["book"] = {key: value for key, value in noted.items() if key not in without}
        path = run.executed_path(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)

    def record(self, pattern=""):
        return records.record(chapters.select(chapters.chapters(self.root), pattern), self.root)

    @property
    def file(self):
        return self.root / "recorded" / "part" / "one.json"

    def change(self, *without, **entries):
        """Rewrite the record with other entries and a checksum that fits them."""
        kept = {**json.loads(self.file.read_text()), **entries}
        kept = {name: value for name, value in kept.items() if name not in (*without, "checksum")}
        self.file.write_text(json.dumps({**kept, "checksum": records.checksum(kept)}))


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", tmp_path / "chapters" / "claims.yml")
    monkeypatch.setattr(claims, "ERRATA", tmp_path / "chapters" / "errata.yml")
    monkeypatch.setattr(run, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(site, "BUILD", tmp_path / "_build")
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "data"))
    return Book(tmp_path)


@pytest.fixture
def kept(book):
    """The book with one record."""
    book.execute()
    book.record()
    return book


# ------------------------------------------------------------------------------------------------------------ making


def test_a_record_holds_the_claims_with_their_provenance(book):
    book.execute()
    ((record, changed),) = book.record()
    assert changed
    assert json.loads(book.file.read_text()) == record
    assert set(record) == {*records.FIELDS, "checksum"}
    assert record["chapter"] == "part/one"
    assert (record["finished"], record["seconds"]) == ("2026-11-22T10:00:00+00:00", 9.5)
    assert (record["machine"], record["data"]) == (MACHINE, DATA)
    assert record["parameters"] == {"profile": "paper", "seed": 0, "device": "cuda"}
    key = book.page().key({})
    assert record["hashes"] == {part: key[part] for part in ("code", "lib", "files")}
    assert set(record["hashes"]["lib"]) == {"lib", "lib.helper"}
    one, two = record["claims"]
    assert (one["id"], one["verdict"], one["measured"]) == ("fc-one", "reproduced", {"x": 42, "note": [1, 2]})
    assert (one["expected"], one["dataset"], one["seconds"]) == (CLAIM["expect"], "mnist", 1.5)
    assert "reason" not in one
    assert (two["id"], two["verdict"], two["reason"]) == ("fc-two", "not run", "it takes a cluster")


def test_a_record_is_written_so_that_its_changes_can_be_read(kept):
    text = kept.file.read_text()
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    assert [path.name for path in kept.file.parent.iterdir()] == ["one.json"], "nothing else is left there"


def test_recording_the_same_execution_again_changes_nothing_and_another_one_does(kept):
    before = kept.file.stat().st_mtime_ns
    ((_, changed),) = kept.record()
    assert not changed
    assert kept.file.stat().st_mtime_ns == before
    kept.execute(x=43)
    ((record, changed),) = kept.record("part/one")
    assert changed
    assert record["claims"][0]["measured"]["x"] == 43


def test_the_verdict_is_judged_when_it_is_recorded(book):
    book.execute(x=45)
    assert book.record()[0][0]["claims"][0]["verdict"] == "not reproduced"


def test_chapters_without_claims_are_passed_over(book):
    book.execute("one")
    book.execute("two")
    assert [record["chapter"] for record, _ in book.record()] == ["part/one"]
    with pytest.raises(BadInput, match="none of the selected chapters measures a claim"):
        book.record("part/two")


def test_another_profile_or_none_is_refused_and_named(book):
    with pytest.raises(BadInput, match="no chapter was executed with profile 'paper'\n  part/one: never executed"):
        book.record()
    book.execute(profile="laptop")
    with pytest.raises(BadInput, match="no chapter was executed with profile 'paper'\n  part/one: profile 'laptop'"):
        book.record()
    assert not (book.root / "recorded").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("chapters/part/one.md", "answer()", "answer() + 0", "its code cells changed"),
        ("chapters/part/one.md", "seed = 0", "seed = 1", "its code cells changed"),
        ("lib/helper.py", "return 42", "return 41 + 1", "lib.helper changed"),
        ("lib/helper.py", "def answer", "import lib.book\nimport lib.more\n\ndef answer", "lib.more is imported now"),
    ],
)
def test_a_stale_chapter_is_refused_with_the_reasons(book, file, old, new, reason):
    book.write("lib/more.py", "")
    book.execute()
    book.edit(file, old, new)
    with pytest.raises(BadInput, match=rf"chapters/part/one.md is stale, execute it again: .*{reason}"):
        book.record()
    assert not book.file.exists()


def test_a_stored_result_beside_the_chapter_counts(kept):
    kept.write("chapters/part/one/more.json", "{}")
    assert records.read(kept.root)["fc-one"]["outdated"] == ["chapters/part/one/more.json changed"]
    with pytest.raises(BadInput, match="chapters/part/one/more.json changed"):
        kept.record()


@pytest.mark.parametrize("missing", ["machine", "finished", "data"])
def test_an_execution_that_does_not_say_when_and_where_is_refused(book, missing):
    book.execute(without=[missing])
    with pytest.raises(BadInput, match=f"one.md was executed without a note of {missing}; execute it again"):
        book.record()


def test_claims_that_cannot_be_judged_are_refused(book):
    book.execute()
    book.declare({**CLAIM, "expect": {"y": {"below": 1}}}, {**CLAIM, "id": "fc-two"})
    with pytest.raises(BadInput, match="one.md: claim 'fc-one': measured quantity .* is not declared.*execute"):
        book.record()


def test_nothing_is_recorded_where_one_chapter_is_refused(book):
    book.write("chapters/part/one.md", chapter("One", MEASURE.partition("if profile")[0]))
    more = 'ledger = claims.open("feature-collapse", profile=profile)\nledger.check("fc-two", measured={})'
    book.write("chapters/part/two.md", chapter("Two", more))
    book.execute("one")
    book.execute("two", without=["machine"])
    with pytest.raises(BadInput, match="two.md was executed without .*\nnothing was recorded"):
        book.record()
    assert not book.file.exists()
    assert [record["chapter"] for record, _ in book.record("part/one")] == ["part/one"]


def test_a_cpu_does_not_replace_what_a_card_has_recorded(kept, capsys):
    before = kept.file.read_text()
    kept.execute(machine={**MACHINE, "device": "cpu", "name": "Processor 2"}, x=41)
    assert kept.record() == []
    assert "not recorded: part/one: its record was made on Card 1" in capsys.readouterr().out
    assert kept.file.read_text() == before


def test_a_cpu_replaces_an_outdated_or_damaged_record_of_a_card(kept):
    processor = {**MACHINE, "device": "cpu", "name": "Processor 2"}
    kept.edit("lib/helper.py", "42", "43")
    kept.execute(machine=processor)
    ((record, changed),) = kept.record()
    assert changed and record["machine"] == processor
    kept.execute()
    kept.record()
    kept.edit("recorded/part/one.json", "Card 1", "Card 2")
    kept.execute(machine=processor)
    ((record, changed),) = kept.record()
    assert changed and record["machine"] == processor


def test_chapters_of_another_profile_are_named_where_others_are_recorded(book, capsys):
    book.write("chapters/part/one.md", chapter("One", MEASURE.partition("if profile")[0]))
    more = 'ledger = claims.open("feature-collapse", profile=profile)\nledger.check("fc-two", measured={})'
    book.write("chapters/part/two.md", chapter("Two", more))
    book.execute("one")
    book.execute("two", profile="laptop")
    assert [record["chapter"] for record, _ in book.record()] == ["part/one"]
    assert capsys.readouterr().out == "not recorded: part/two: profile 'laptop'\n"


def test_a_place_that_cannot_be_written_to_is_named(book):
    book.execute()
    book.write("recorded", "a file where the folder should be")
    with pytest.raises(BadInput, match="the records cannot be written: .*recorded"):
        book.record()


# ----------------------------------------------------------------------------------------------------------- reading


def test_a_record_that_holds_is_read_with_its_provenance(kept):
    found = records.read(kept.root)
    assert list(found) == ["fc-one", "fc-two"]
    one = found["fc-one"]
    assert (one["verdict"], one["measured"]["x"], one["outdated"]) == ("reproduced", 42, [])
    assert (one["chapter"], one["profile"], one["machine"]) == ("part/one", "paper", MACHINE)
    assert one["finished"].startswith("2026-11-22")
    assert found["fc-two"]["reason"] == "it takes a cluster"


def test_without_the_folder_nothing_is_recorded(book):
    assert records.read(book.root) == {}


def test_comments_docstrings_and_prose_outdate_no_record_and_code_does(kept):
    kept.edit("lib/helper.py", '"""Helps."""', '"""Helps a lot."""  # so it does')
    kept.edit("chapters/part/one.md", "Prose.", "Other prose.")
    assert records.read(kept.root)["fc-one"]["outdated"] == []
    kept.edit("lib/helper.py", "return 42", "return 43 - 1")
    kept.edit("chapters/part/one.md", "[1, 2]", "[1, 2, 3]")
    for claim in records.read(kept.root).values():
        assert claim["outdated"] == ["its code cells changed", "lib.helper changed"]
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"x": 42', '"x": 43'),
        ('"reproduced"', '"not reproduced"'),
        ('"Card 1"', '"Card 2"'),
        ("2026-11-22", "2026-11-23"),
        ('"not run"', '"supported"'),
        ('"code": "', '"code": "0'),
    ],
)
def test_an_edited_record_is_refused_by_its_checksum(kept, old, new):
    before = json.loads(kept.file.read_text())["checksum"]
    kept.edit("recorded/part/one.json", old, new)
    with pytest.raises(ValueError, match="edited") as caught:
        records.read(kept.root)
    message = str(caught.value)
    computed = records.checksum(json.loads(kept.file.read_text()))
    assert str(kept.file) in message and before in message and computed in message and computed != before
    assert "nothing is recorded by hand: restore the file, or delete it and make the record anew" in message


def test_any_single_byte_that_is_lost_is_noticed(kept):
    content = kept.file.read_bytes()
    whole = records.read(kept.root)
    for position in range(0, len(content), 7):
        kept.file.write_bytes(content[:position] + content[position + 1 :])
        try:
            found = records.read(kept.root)
        except ValueError as error:
            assert "one.json" in str(error)
        else:
            assert found == whole, "white space may go, contents may not"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a damaged record"),
        (b'{"format": 1', "a damaged record"),
        (b"\xff\xfe", "a damaged record"),
        (b"[]", "not a record"),
        (b'[{"id": "fc-one", "verdict": "reproduced"}]', "not a record"),
        (b'{"format": 2}', "a record of format 2, this book reads format 1"),
        (b'{"format": 1}', "the record lacks 'chapter', 'checksum', 'claims'"),
    ],
)
def test_what_is_no_record_is_refused_with_its_name(kept, content, message):
    kept.file.write_bytes(content)
    with pytest.raises(ValueError, match=f"one.json: .*{re.escape(message)}.*make the record anew"):
        records.read(kept.root)


def test_a_record_has_all_its_entries_and_no_others(kept):
    kept.change(machines=1)
    with pytest.raises(ValueError, match="the record has an unknown 'machines'"):
        records.read(kept.root)
    kept.change("machine", "machines")
    with pytest.raises(ValueError, match="the record lacks 'machine'"):
        records.read(kept.root)


def test_a_claim_has_one_record_and_a_declaration(kept):
    kept.change(chapter="part/two")
    with pytest.raises(ValueError, match="one.json: this is the record of part/two, its place is .*two.json"):
        records.read(kept.root)
    shutil.copy(kept.file, kept.file.with_name("two.json"))
    kept.change(chapter="part/one")
    with pytest.raises(ValueError, match="'fc-one' is recorded twice: .*one.json and .*two.json; record the chapter"):
        records.read(kept.root)
    kept.file.with_name("two.json").unlink()
    kept.declare({**CLAIM, "id": "fc-oen"})
    with pytest.raises(
        ValueError, match="one.json: claim 'fc-one' is not declared; did you mean 'fc-oen'.*, or delete"
    ):
        records.read(kept.root)


# ------------------------------------------------------------------------------------------------------------- pages


def test_the_rows_of_claims_json_hold_what_is_recorded(kept):
    rows = {row["id"]: row for row in site.write_claims([], records.read(kept.root))}
    assert set(rows["fc-one"]) == set(site.FIELDS)
    assert rows["fc-one"]["verdict"] == "not run", "a record is no measurement of this build"
    assert rows["fc-one"]["recorded"] == {
        "verdict": "reproduced", "measured": {"x": 42, "note": [1, 2]}, "profile": "paper",
        "finished": "2026-11-22T10:00:00+00:00", "device": "Card 1", "outdated": [],
    }  # fmt: skip
    assert {row["recorded"] for row in site.write_claims([], {})} == {None}


def states(book):
    """What the page about the paper profile says about each claim."""
    page = records.overview(records.read(book.root), {}, book.root)
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "ledger-" in line]
    rows = [(*cells, re.sub('<span class="claim-record">([^<]*)</span>', r"\1", state)) for *cells, state in rows]
    return page, {name: state for _, names, state in rows for name in re.findall(r">([\w-]+)</a>", names)}


def test_the_overview_says_of_every_claim_what_is_known(book):
    page, found = states(book)
    assert "0 of the 2 claims have a current record, 0 of them of a run on a GPU." in page
    assert "### Feature collapse" in page and "### Low-rank bias" not in page
    assert "[One](../part/one.md)" in page
    assert found == dict.fromkeys(("fc-one", "fc-two"), "never run at paper scale")
    book.execute()
    book.record()
    page, found = states(book)
    assert "1 of the 2 claims have a current record, 1 of them of a run on a GPU." in page
    assert found["fc-one"] == "recorded 2026-11-22 on Card 1"
    assert found["fc-two"] == "not measured: it takes a cluster (2026-11-22 on Card 1)"
    book.file.unlink()
    book.execute(machine={**MACHINE, "device": "cpu", "name": "Processor 2"})
    book.record()
    page, found = states(book)
    assert "1 of the 2 claims have a current record, 0 of them of a run on a GPU." in page
    assert found["fc-one"] == "recorded 2026-11-22 on a CPU, Processor 2"
    book.edit("lib/helper.py", "42", "43")
    page, found = states(book)
    assert "0 of the 2 claims have a current record" in page
    assert found["fc-one"] == "outdated: lib.helper changed (recorded 2026-11-22 on a CPU, Processor 2)"
    assert found["fc-two"].startswith("outdated: ")


def test_the_overview_leads_to_the_tables_of_this_build(book):
    live = {"fc-one": {"chapter": "part/one"}}
    page = records.overview({}, live, book.root)
    assert '<a href="../part/one.html#claim-fc-one">fc-one</a>' in page
    assert '<a href="../back/ledger.html#ledger-fc-two">fc-two</a>' in page


def test_the_records_of_this_book_are_in_order():
    assert set(records.read(ROOT)) <= set(declarations.read().claims)


# ----------------------------------------------------------------------------------------------------- the command line


def test_from_the_execution_to_the_ledger_by_the_command_line(tmp_path):
    """The real thing, on the throw-away book: execute, record, publish, edit, be refused, and record again."""
    book = Book(tmp_path)
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (tmp_path / "_static").mkdir()
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copy(ROOT / "_static" / "favicon.svg", tmp_path / "_static")
    book.write("references.bib", "@book{b2000, author={A. Bee}, title={Bees}, publisher={P}, year={2000}}\n")
    book.write("chapters/intro.md", "# Intro\n\n{cite}`b2000`\n\n```{bibliography}\n```\n")
    book.write("chapters/back/ledger.md", "# Ledger\n\n<!-- ledger -->\n")
    book.write("chapters/back/paper-profile.md", "# Paper profile\n\n## State\n\n<!-- unmeasured -->\n")
    pages = ("part/one", "part/two", "back/ledger", "back/paper-profile")
    listed = "".join(f"- file: chapters/{name}\n" for name in pages)
    book.write("_toc.yml", f"format: jb-book\nroot: chapters/intro\nchapters:\n{listed}")
    absent = {"BOOK_BUILD": None, "PYTHONPATH": None, "COLLAPSE_DATA": str(tmp_path / "data")}
    environment = {key: value for key, value in {**os.environ, **absent}.items() if value is not None}

    def command(*arguments, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "lib.book", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    assert "no chapter was executed with profile 'paper'" in command("record", status=2)
    assert "unknown chapter 'three'" in command("record", "--chapter", "three", status=2)
    command("build", "--profile", "paper", "--device", "cpu", "--jobs", "2")
    assert re.search(r"part/one: recorded, 2 claims \(1 not run\) of \d{4}-\d\d-\d\d on \w", command("record"))
    assert "part/one: unchanged" in command("record", "--chapter", "chapters/part/one.md")
    record = json.loads(book.file.read_text())
    assert record["machine"]["device"] == "cpu"
    command("publish")
    ledger = (tmp_path / "_build/html/chapters/back/ledger.html").read_text()
    assert "Paper profile" in ledger and record["finished"][:10] in ledger
    assert "on a CPU" in (tmp_path / "_build/html/chapters/back/paper-profile.html").read_text()
    rows = json.loads((tmp_path / "_build/claims.json").read_text())
    assert rows[0]["recorded"]["verdict"] == "reproduced"
    book.edit("recorded/part/one.json", '"reproduced"', '"contradicted"')
    for refused in ("publish", "claims", "build"):
        assert "make the record anew" in command(refused, status=2)
    command("record")
    assert json.loads(book.file.read_text()) == record
