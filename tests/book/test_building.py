"""What a build makes: small books are executed and published by commands, and looked at."""

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version

import nbformat

from lib.book import execute
from lib.book.kernel import devices
from made_up import CLAIM, ERRATA, ROOT, SECTION, SETTINGS

VERSION = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]


def test_building_executes_the_chapters_and_publishes_their_results(built_once):
    assert set(built_once.executed()) == {"one", "two", "feature-collapse"}
    assert "seed is 7" in built_once.html("part/one")
    assert 'href="part/one.html"' in built_once.html("intro")
    assert (built_once.build / "html" / "index.html").is_file()
    assert built_once.output.count("device auto: the CPU, because") == (0 if devices.missing() == "" else 1)


def test_parameters_are_injected_where_they_are_declared(built_once):
    for name in ("one", "two"):
        cells = built_once.notebook(name).cells
        (injected,) = (cell.source for cell in cells if "injected-parameters" in cell.metadata.get("tags", []))
        assert "seed = 7" in injected and ("device" in injected) == (name == "two")


def test_an_execution_is_noted_with_its_machine_its_time_and_what_it_read(built_once):
    one, two = (built_once.notebook(name).metadata.book for name in ("one", "two"))
    assert two["data"] == {"some": {"files": 2, "sha256": "ab"}}
    assert (two["resumed"], one["data"]) == (0, {})
    assert 0 <= (datetime.now(UTC) - datetime.fromisoformat(two["finished"])).total_seconds() < 600
    versions = {"torch": version("torch"), "numpy": version("numpy"), "cuda": None}
    machine = {"device": "cpu", "name": devices.name("cpu"), "python": platform.python_version(), **versions}
    assert two["machine"] == one["machine"] == machine, "one chooses no device, and is on the processor"
    assert [*two["key"]["files"]] == ["chapters/other/stored.txt"]


def test_the_page_tells_how_to_run_it_and_offers_the_executed_notebook(built_once):
    page, html = built_once.html("part/one"), built_once.build / "html"
    assert "make book CHAPTER=chapters/part/one.md PROFILE=paper SEED=7" in re.sub("<[^>]*>", "", page)
    assert "_sources/chapters/part/one.ipynb" in page
    for path in [html / "_sources/chapters/part/one.ipynb", *(html / "_downloads").rglob("one.ipynb")]:
        notebook = nbformat.read(path, as_version=4)
        assert any("injected-parameters" in cell.metadata.get("tags", []) for cell in notebook.cells)
        assert any("seed is 7" in str(cell.get("outputs")) for cell in notebook.cells)
        assert not any("make book" in cell.source for cell in notebook.cells)
        assert str(built_once.root) not in path.read_text()
    (source,) = (html / "_downloads").rglob("one.md")
    assert source.read_text() == (built_once.root / "chapters/part/one.md").read_text()


def test_from_the_execution_to_the_ledger(built_once):
    assert re.search(r"part/one: recorded 1 reproduced, 1 not run, of \d{4}-\d\d-\d\d on \w", built_once.said)
    taken = json.loads((built_once.root / "recorded/part/one.json").read_text())
    assert (taken["profile"], taken["machine"]["device"]) == ("paper", "cpu")
    page = built_once.html("back/ledger")
    assert "paper profile, this build" in page and ", CPU, " in page
    assert json.loads((built_once.build / "claims.json").read_text())[0]["recorded"]["verdict"] == "reproduced"


def test_every_page_says_its_version_and_one_how_the_book_is_cited(built_once):
    for name in ("intro", "part/one", "back/ledger"):
        assert f"<p>Version {VERSION}</p>" in built_once.html(name)
    page = re.sub("<[^>]*>", "", built_once.html("back/ledger"))
    assert "author = {{The authors of How Representations Collapse}}" in page
    assert f"note   = {{Version {VERSION}}}" in page


def test_an_erratum_is_shown_on_the_page_of_its_paper(built_once):
    page = built_once.html("errata/feature-collapse")
    assert "is new" in page and "<!-- erratum" not in page and 'href="../part/one.html#claim-fc-one"' in page
    link = '<a href="../errata/feature-collapse.html#erratum-slip">What slipped</a>'
    assert link in built_once.html("back/ledger")


def test_a_second_build_executes_nothing_and_leaves_the_site_alone(built_once):
    before, site = built_once.executed(), os.readlink(built_once.build / "html")
    output = built_once.run("build", *SETTINGS)
    assert built_once.executed() == before and os.readlink(built_once.build / "html") == site
    assert "unchanged" in output and "device auto" not in output


def test_another_paper_is_an_entry_a_folder_and_a_page_of_errata_and_executes_nothing_else(built):
    """Nor does an edit of prose, of a docstring, of an erratum or of a claim; all of them are on the pages."""
    before = built.executed()
    paper = "- {key: fifth-paper, short: The fifth, prefix: five, cite: b2000}\n"
    built.write("chapters/papers.yml", (built.root / "chapters/papers.yml").read_text() + paper)
    claim = {**CLAIM, "id": "five-one", "paper": "fifth-paper", "expect": {"x": {"equals": 42, "printed": "42"}}}
    mild = {**CLAIM, "expect": {**CLAIM["expect"], "x": {"value": 50, "abs": 1}}}
    built.declare(mild, {**CLAIM, "id": "fc-two"}, claim)
    _, _, own = ERRATA.replace("slip", "five-slip").replace("fc-one", "five-one").partition("\n")
    own = own.replace("feature-collapse", "fifth-paper")
    built.write("chapters/errata.yml", ERRATA.replace("is new", "is newer") + own)
    measure = 'from lib.book.ledger import claims\nledger = claims.Ledger("fifth-paper", profile=profile)\n'
    built.chapter("five", measure + 'ledger.check("five-one", measured={"x": 43})', part="fifth-paper")
    built.chapter("fifth-paper", "pass", prose=SECTION.replace("slip", "five-slip"), part="errata")
    built.edit("chapters/part/one.md", "Prose.", "Other words.")
    built.edit("lib/helper.py", "def answer():\n", 'def answer():\n    """Forty-two."""\n')
    built.run("build", *SETTINGS)
    row = re.search(r'<tr[^>]*data-paper="fifth-paper".*?</tr>', built.html("back/ledger"), re.DOTALL)[0]
    assert "The fifth" in row and "contradicted: another constant" in row
    assert "<h2>The fifth" in built.html("back/ledger") and "is new" in built.html("errata/fifth-paper")
    after = built.executed()
    assert {name: after[name] for name in before} == before and after.keys() - before == {"five", "fifth-paper"}
    assert "Other words." in built.html("part/one") and "seed is 7" in built.html("part/one")
    assert "is newer" in built.html("errata/feature-collapse")
    row = json.loads((built.build / "claims.json").read_text())[0]
    assert (row["measured"]["x"], row["verdict"]) == (42, "not reproduced")


def test_building_one_chapter_shows_those_that_were_never_executed_without_results(built):
    result = built.build / "executed/chapters/part/two.ipynb"
    result.unlink()
    built.edit("chapters/part/one.md", "Prose.", "See {eq}`nowhere`.")
    output = built.run("build", *SETTINGS, "--chapter", "part/one")
    assert not result.exists()
    assert "two" in output.partition("shown without results")[2] and "nowhere" in output
    assert "has not been executed" in built.html("part/two")
    assert "has not been executed" not in built.html("part/one")


MEET = """import os, pathlib, sys, time
print(*map(os.environ.get, ("OMP_NUM_THREADS", "COLLAPSE_GPU_SHARE")))
print(*(name in sys.modules for name in ("networkx", "lib.book.kernel.devices")))
pathlib.Path({!r}).touch()
while not pathlib.Path({!r}).exists():
    time.sleep(0.05)"""


def test_two_chapters_run_at_the_same_time_and_share_what_there_is_and_the_large_packages(real):
    """One of them imports a large package, with which both kernels begin; modules of lib each imports itself."""
    large = "import networkx\nfrom lib.book.kernel import devices"
    real.chapter("one", MEET.format("one-is-here", "two-is-here"), large)
    real.chapter("two", MEET.format("two-is-here", "one-is-here"))
    real.write("chapters/claims.yml", "claims: []\n")
    real.run("execute", "--jobs", "2", OMP_NUM_THREADS=None, COLLAPSE_GPU_SHARE=None)
    begun = ["True", "False"] if sys.platform == "linux" else ["False", "False"]  # kernels are forked on Linux only
    for name in ("one", "two"):
        assert real.printed(name).split() == [str(max(1, execute.cores() // 2)), "0.475", *begun]


def test_chapters_that_were_never_executed_begin_with_the_one_whose_record_took_longest(real):
    real.write("chapters/claims.yml", "claims: []\n")
    for name, seconds in (("one", 1), ("two", 9)):
        real.chapter(name, "pass")
        real.write(
            f"recorded/part/{name}.json", json.dumps({"chapter": f"part/{name}", "seconds": seconds, "claims": []})
        )
    said = real.run("execute", "--jobs", "1")
    assert said.index("part/two: executed") < said.index("part/one: executed")


def test_a_chapter_alone_has_all_cores_and_all_memory(built_once):
    assert built_once.printed("two").split() == ["None", "None"]


def test_the_command_line_starts_without_what_saying_what_is_stale_does_not_need():
    large = ("torch", "matplotlib", "nbformat", "jinja2", "jsonschema")
    code = f"import sys, lib.book.__main__; sys.exit(any(name in sys.modules for name in {large}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
