"""The pipeline, on small books that the tests make: what it executes, what it keeps, and how it fails.

What decides is asked in this process, of executions that are made up; what runs is run by commands.
"""

import ctypes
import errno
import io
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from lib.book import __main__ as command_line
from lib.book import execute as run
from lib.book import folders, forks, inputs
from lib.book import page as chapters
from lib.book.kernel import devices
from lib.book.ledger import declarations
from lib.book.site import compose
from lib.book.site import publish as site
from made_up import CLAIM, MEASURE, ROOT, Book
from waiting import wait_for

ERRATA = """errata:
- {id: slip, paper: feature-collapse, place: (7), kind: another constant, printed: $a$ is new,
   corrected: $b$, shown_by: fc-one, how: by hand, consequence: none, transcription: it is not}
"""
SECTION = """(erratum-slip)=
## What slipped

<!-- erratum slip -->

```{code-cell} ipython3
print("decided")
```

<!-- consequence slip -->

## The end
"""
SETTINGS = ("--profile", "paper", "--seed", "7")
VERSION = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
NOTES = """import os
from lib.book.kernel import notes
from lib.book.kernel import devices
devices.choose("cpu")
notes.note("data", name="some", files=2, sha256="ab")
notes.note("another kind", of="note")
from IPython.display import SVG, display
display(SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'))
print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("COLLAPSE_GPU_SHARE"))"""


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    """A book with an erratum and a page about its library, recorded and built by commands; tests get copies of it."""
    made = Book(tmp_path_factory.mktemp("made"))
    made.write("chapters/errata.yml", ERRATA)
    made.chapter("feature-collapse", "pass", prose=SECTION, part="errata")
    made.chapter("two", NOTES, parameters='device = "auto"')
    shown = "<!-- errata -->\n\n```{eval-rst}\n.. autofunction:: lib.helper.answer\n```\n\n<!-- ledger -->\n"
    made.write("chapters/back/ledger.md", f"# Ledger\n\n<!-- cite button -->\n\n{shown}\n\n<!-- unmeasured -->\n")
    made.with_library()
    made.output = made.run("execute", *SETTINGS, "--jobs", "1", OMP_NUM_THREADS=None)
    made.said = made.run("record")
    made.run("build", *SETTINGS)
    return made


@pytest.fixture
def built(built_once, tmp_path):
    shutil.copytree(built_once.root, tmp_path / "book", symlinks=True)
    return Book(tmp_path / "book", exists=True)


@pytest.fixture
def real(tmp_path):
    """A book that commands can execute, and that has not been."""
    book = Book(tmp_path).with_library()
    yield book
    book.end()


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# --------------------------------------------------------------------------------------------- what has to be executed


@pytest.fixture
def current(book):
    """A book whose chapters have results."""
    for name in ("one", "two"):
        book.execute(name, "laptop")
    assert book.stale() == {}
    return book


def test_the_reason_names_the_parameter_that_differs(current):
    assert current.stale(profile="smoke")["one"] == "parameter profile: 'laptop' -> 'smoke'"
    assert current.stale(seed=3)["two"] == "parameter seed: 0 -> 3"
    assert current.stale(device="cpu") == {}, "a parameter that no chapter declares changes nothing"


def test_code_makes_its_chapter_stale_and_prose_does_not(current):
    current.edit("chapters/part/two.md", "Prose.", "Other words.")
    assert current.stale() == {}
    current.edit("chapters/part/one.md", "seed is", "the seed is")
    assert current.stale() == {"one": "its code cells changed"}


def test_a_module_that_is_imported_indirectly_makes_its_chapter_stale_and_its_comments_do_not(current):
    current.edit("lib/deeper.py", "42", '"""Says so."""  # and means it\n    return (42)')
    current.edit("lib/deeper.py", 'return "', '"')
    assert current.stale() == {}
    current.edit("lib/deeper.py", "42", "42 + 0")
    assert current.stale() == {"one": "lib.deeper changed"}
    current.write("lib/book/kernel/profiles.py", "")
    late = "def late():\n    from . import unused\n    from lib.book.kernel.profiles import pick"
    current.edit("lib/helper.py", "import value", f"import value\n{late}")
    assert current.stale() == {"one": "lib.deeper changed"}, "nobody calls it"
    current.edit("lib/helper.py", "return value()", "return value() or late()")
    now = "lib.book.kernel.profiles is imported now; lib.deeper changed; lib.helper changed; lib.unused is imported now"
    assert current.stale() == {"one": now}


def test_of_a_package_only_the_module_counts_that_has_what_is_used(book):
    book.write("lib/shop/__init__.py", "from .one import a\nfrom .two import b\n")
    book.write("lib/shop/one.py", "from lib.deeper import value as a\n")
    book.write("lib/shop/two.py", "b = 1\n")

    def counted(*code):
        book.chapter("two", *code)
        return {name.partition(".")[2] for name in inputs.imported_parts(book.page("two").code, book.root)}

    assert counted("from lib.shop import a", "a()") == {"deeper"}
    assert counted("from lib import shop as s", "s.b  # and no s") == {"shop.two"}
    assert counted("import lib.shop.two", "lib.shop.two.b") == {"shop.two"}
    everything = {"shop", "shop.two", "deeper"}
    assert counted("from lib import shop", "shop.b", "dir(shop)") == everything
    assert counted("import lib.shop") == counted("from lib.shop import *") == everything


PICKED = "settings = pick(SETTINGS, profile)"


@pytest.mark.parametrize(
    ("use", "old", "new", "counts"),
    [
        (PICKED, "(9, 5, 1)", "(9, 6, 1)", True),
        (PICKED, "(9, 5, 1)", "(8, 5, 2)", False),
        (PICKED, "(9, 8, 5, 1)", "(9, 7, 6, 1)", True),
        (PICKED, "(9, 8, 5, 1)", "(7, 7, 5, 7)", False),
        (PICKED, "'runs'", "'seeds'", True),
        (PICKED, "print(1)", "print(2)", True),
        (f"{PICKED}\nprint(SETTINGS)", "(9, 5, 1)", "(9, 5, 2)", True),
        (f"{PICKED}\nprint(pick(SETTINGS, 'smoke'))", "(9, 5, 1)", "(9, 5, 2)", True),
        ("runs = SETTINGS['runs'][2]", "(9, 5, 1)", "(9, 5, 2)", True),
    ],
)
def test_of_the_settings_the_column_of_the_profile_counts(book, use, old, new, counts):
    table = "SETTINGS = {  # paper, laptop, smoke\n    'runs': (9, 5, 1),\n    'steps': (9, 8, 5, 1),\n}\nprint(1)"
    book.chapter("two", table, use)
    book.execute("two", "laptop")
    assert book.stale()["one"] == "never executed" and "two" not in book.stale()
    book.edit("chapters/part/two.md", old, new)
    assert ("two" in book.stale()) == counts


MODULE = """
from math import sin as f
import functools, lib.deeper
SIZE, OTHER = 1, 2
SIZE += 1
if SIZE: NAMELESS = 3
class Shape:
    def area(self): return helper()
@functools.cache
def helper(size=SIZE): return f(size)
def apart(): return 1
"""


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("return helper()", "return 2 * helper()", True),
        ("return f(size)", "return -f(size)", True),
        ("1, 2", "1, 3", True),
        ("+= 1", "+= 2", True),
        ("NAMELESS = 3", "NAMELESS = 4", True),  # what defines nothing may do anything
        ("functools.cache", "functools.lru_cache", True),
        ("sin as f", "cos as f", True),
        ("def apart(): return 1", "def apart(): return 2", False),
        ("def apart(): return 1", "", False),
        ("lib.deeper\n", "lib.deeper\nimport json\n", False),
        ("class Shape:\n", "class Shape:\n    'A shape.'  # of some size\n\n", False),
    ],
)
def test_of_a_module_the_definitions_count_that_what_is_used_needs(book, old, new, counts):
    book.write("lib/parts.py", MODULE)
    book.chapter("two", "from lib.parts import Shape", "Shape().area()")
    before = inputs.hashes(book.page("two"))
    assert set(before["lib"]) == {"lib.parts", "lib.deeper"}
    book.edit("lib/parts.py", old, new)
    assert (inputs.hashes(book.page("two")) != before) == counts


def test_what_a_chapter_does_not_import_and_what_builds_and_judges_it_is_no_input(current):
    for name in ("lib/unused.py", "lib/book/ledger/claims.py", "lib/book/site/publish.py"):
        current.write(name, "import lib.book.execute\n")
    assert current.stale() == {}


READS = """import numpy as np
from pathlib import Path
from lib.data import image_sets
np.load("chapters/other/stored.npy")
sorted(Path("chapters/other/deep").glob("*"))
open("chapters/claims.yml").close()
(Path(image_sets.data_folder()) / "MNIST" / "file").read_text()"""


def test_what_a_chapter_reads_is_what_it_depends_on(book):
    """Files and listed folders below `chapters/`, whoever reads them, and the data sets."""
    book.with_library()
    book.write("chapters/other/deep/a.txt", "")
    np.save(book.root / "chapters/other/stored.npy", np.zeros(2))
    for name in ("MNIST/file", "svhn/file", "README.txt"):
        book.write(f"data/{name}", "1")
    book.chapter("two", READS, parameters='dataset = "digits"')
    book.run("execute", "--chapter", "part/two")
    assert "two" not in book.stale()
    key = run.noted(book.page("two"))["key"]
    assert key["files"].keys() == {"chapters/other/stored.npy", "chapters/other/deep"}
    assert key["data"].keys() == {"MNIST"}
    for name in ("README.txt", "svhn/file", "MNIST-C/file"):
        book.write(f"data/{name}", "of no concern")
    assert "two" not in book.stale()
    for name, why in (("data/MNIST/file", "the data set changed"), ("chapters/other/deep/b.txt", "other/deep changed"),
                      ("chapters/other/stored.npy", "stored.npy changed")):  # fmt: skip
        before = (book.root / name).read_bytes() if (book.root / name).exists() else None
        book.write(name, "something else")
        assert why in book.stale()["two"]
        if before is None:
            (book.root / name).unlink()
        else:
            (book.root / name).write_bytes(before)


def test_with_auto_it_counts_which_sets_there_are_and_so_do_the_readers_own_images(book):
    book.chapter("one", parameters='dataset = "auto"')
    book.write("data/README.txt", "1")
    book.execute("one", "laptop")
    book.write("data/README.txt", "12")
    assert "one" not in book.stale()
    book.write("data/MNIST/raw", "12")
    assert book.stale()["one"] == "the data set changed"
    own = str(book.root / "own.npz")
    book.write("own.npz", "12")
    before = inputs.key(book.page(), {"dataset": own})
    book.write("own.npz", "123")
    assert inputs.differences(before, inputs.key(book.page(), {"dataset": own}, before)) == ["the data set changed"]


def test_a_data_set_that_is_linked_into_the_data_folder_counts(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    before = inputs.fingerprint(str(tmp_path / "link"))
    (tmp_path / "disk" / "images").write_text("12")
    assert inputs.fingerprint(str(tmp_path / "link")) != before
    assert inputs.fingerprint(str(tmp_path / "none")) is None


def test_each_data_set_is_looked_at_once_for_all_chapters_and_again_when_asked_again(book, monkeypatch):
    for name in ("one", "two"):
        book.chapter(name, parameters='dataset = "auto"')
        book.execute(name, "laptop")
        notebook = run.executed_notebook(book.page(name))
        del notebook.metadata["book"]["checksum"]
        notebook.metadata["book"]["key"]["data"]["MNIST"] = ""
        run.keep(book.page(name), notebook)
    looked = []
    monkeypatch.setattr(inputs, "fingerprint", lambda place: looked.append(place) or "")
    for times in (1, 2):
        run.stale(chapters.chapters(book.root), {})
        assert looked == [str(inputs.data_folder() / "MNIST")] * times


@pytest.mark.parametrize("name", ["scipy", "scikit-learn", "networkx"])
def test_the_version_of_every_package_that_computes_counts_for_chapters_that_reach_it(book, monkeypatch, name):
    book.write("lib/deeper.py", "def value():\n    import scipy.stats, sklearn, networkx\n    return 42\n")
    for chapter in ("one", "two"):
        book.execute(chapter, "laptop")
    real = inputs.version
    monkeypatch.setattr(inputs, "version", lambda each: "0.0" if each == name else real(each))
    assert {chapter: why.split()[0] for chapter, why in book.stale().items()} == {"one": name}, "two does not reach it"


def test_a_parameter_is_compared_as_it_is_kept(book):
    book.chapter("two", parameters="sizes = (1, 2)")
    book.execute("two", "laptop")
    assert "two" not in book.stale()
    assert book.stale(sizes=[1, 3])["two"] == "parameter sizes: [1, 2] -> [1, 3]"


def test_the_code_cells_are_those_of_the_notebook(book):
    lists = "- a list\n\n  ```{code-cell}\n  nested = 1\n  ```\n\n<!--\n```{code-cell}\ncomment = 1\n```\n-->\n"
    book.chapter("one", "---\ntags: [a]\nb: {c: d}\n---\n\nx = 1\n", ":name: y\n\n\ny = 2", "", prose=lists)
    for page in (book.page(), *chapters.chapters()):
        cells = [cell for cell in page.notebook.cells if cell.cell_type == "code"]
        assert [(cell.source, cell.metadata) for cell in page.code] == [(one.source, one.metadata) for one in cells]


@pytest.mark.parametrize(("odd", "counts"), [("nothing", False), ("link", False), (".", False), ("\udcff", True)])
def test_an_odd_file_in_the_data_folder_ends_no_command(book, odd, counts):
    book.write("data/file", "1")
    before = inputs.fingerprint(str(book.root / "data"))
    if odd == "\udcff":  # a name that is not UTF-8
        (book.root / "data" / odd).touch()
    else:
        (book.root / "data" / "link").symlink_to(odd)  # nowhere, to itself, back
    assert (inputs.fingerprint(str(book.root / "data")) != before) == counts


def test_stored_results_count_for_the_page_that_has_their_folders_name(current):
    current.write("chapters/part/one/deep/a.npz", "1")
    assert current.stale() == {"one": "chapters/part/one/deep/a.npz changed"}
    current.execute("one", "laptop")
    current.write("chapters/part/one/deep/a.npz", "2")
    current.write("chapters/part/one/b.npz", "3")
    assert current.stale() == {"one": "chapters/part/one/b.npz, chapters/part/one/deep/a.npz changed"}


@pytest.mark.parametrize(
    ("old", "new"), [(r".*", ""), (r"(?s)^\{.*", '{"metadata": {"book": {"key": []}}}'), (r'"x": 42', '"x": 41')]
)
def test_an_executed_notebook_that_is_cut_off_or_edited_is_stale_and_not_published(current, old, new):
    path = run.executed_path(current.page())
    path.write_text(re.sub(old, new, path.read_text(), count=1))
    assert current.stale() == {"one": "never executed"}
    with pytest.raises(compose.SiteError, match="edited since: part/one;"):
        site.publish(current.root)


def test_a_chapter_is_selected_by_path_and_by_glob(book):
    everything = chapters.chapters(book.root)

    def selected(pattern):
        return [page.path.stem for page in chapters.select(everything, pattern)]

    for pattern in ("chapters/part/one.md", "chapters/part/one", "part/one", "part/o*", "./chapters/part/o*.md"):
        assert selected(pattern) == ["one"]
    assert selected("part/one,part/two") == selected("part") == selected("") == ["one", "two"]


IMAGES = """import os, pathlib, sys
folder = pathlib.Path(os.environ["COLLAPSE_DATA"])
pathlib.Path("asked").write_text(" ".join(sys.argv[1:]))
(folder / "mnist").touch()
print("error: no network: cifar10", file=sys.stderr)
"""


def test_the_paper_profile_downloads_what_its_claims_name_before_its_chapters_begin(book):
    book.write("data/other", "")
    book.write("lib/data/__init__.py", "")
    book.write("lib/data/image_files.py", IMAGES)
    book.declare({**CLAIM, "data": ["mnist", "cifar10"]}, {**CLAIM, "id": "fc-two", "data": ["svhn"]})
    book.chapter("one", MEASURE.partition("if profile")[0], parameters='dataset = "auto"')
    one, two = (book.page(name) for name in ("one", "two"))
    console = Console(file=io.StringIO())
    for pages, profile in (([one, two], "laptop"), ([two], "paper")):
        run._download(pages, {"profile": profile}, console)
    assert not (book.root / "asked").exists(), "other profiles, and chapters that measure no such claim, get nothing"
    run._download([one, two], {"profile": "paper"}, console)
    assert (book.root / "asked").read_text() == "fetch cifar10 mnist"
    assert "no network: cifar10" in console.file.getvalue()


# ----------------------------------------------------------------------------------------------- what is noted and kept


def test_the_seconds_of_runs_that_were_taken_up_count_and_a_gpu_that_was_used_is_the_machine(tmp_path):
    """A note that a process died over does not."""
    lines = [
        {"kind": "resumed", "name": "a", "runs": 3, "seconds": 100.25},
        {"kind": "device", "device": "cuda", "name": "A Card", "memory": 1, "torch": "2", "cuda": "13.0"},
        {"kind": "device", "device": "cpu", "name": "A Processor", "cuda": None},
        {"kind": "resumed", "name": "b", "runs": 2, "seconds": 10},
    ]
    path = tmp_path / "notes"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "resumed", "ru')
    facts = run._facts(path, 5)
    assert (facts["seconds"], facts["resumed"]) == (115.2, 5)
    assert [facts["machine"][name] for name in ("device", "name", "cuda")] == ["cuda", "A Card", "13.0"]
    facts = run._facts(tmp_path / "absent", 1)
    assert (facts["seconds"], facts["resumed"], facts["data"]) == (1, 0, {})


def test_finished_runs_wait_for_their_parameters_and_go_when_the_code_changes(book):
    def folder(seed):
        page = book.page()
        found = run._unfinished(page, inputs.key(page, {"seed": seed}))
        found.mkdir(parents=True, exist_ok=True)
        return found

    first, second = folder(1), folder(2)
    assert first != second and folder(1) == first
    book.edit("chapters/part/one.md", "seed is", "the seed is")
    assert folder(1) != first and not first.exists() and second.exists()


# ------------------------------------------------------------------------------------------------------------- building


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


def test_an_execution_is_noted_with_its_machine_its_data_and_its_time(built_once):
    one, two = (built_once.notebook(name).metadata.book for name in ("one", "two"))
    assert two["data"] == {"some": {"files": 2, "sha256": "ab"}}
    assert (two["resumed"], one["data"]) == (0, {})
    assert 0 <= (datetime.now(UTC) - datetime.fromisoformat(two["finished"])).total_seconds() < 600
    versions = {"torch": version("torch"), "numpy": version("numpy"), "cuda": None}
    machine = {"device": "cpu", "name": devices.name("cpu"), "python": platform.python_version(), **versions}
    assert two["machine"] == one["machine"] == machine, "one chooses no device, and is on the processor"


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
    assert "paper profile, this build" in page and "on a CPU" in page
    assert json.loads((built_once.build / "claims.json").read_text())[0]["recorded"]["verdict"] == "reproduced"


def test_every_page_says_its_version_and_one_how_the_book_is_cited(built_once, monkeypatch):
    for name in ("intro", "part/one", "back/ledger"):
        assert f"<p>Version {VERSION}</p>" in built_once.html(name)
    page = re.sub("<[^>]*>", "", built_once.html("back/ledger"))
    assert "author = {{The authors of How Representations Collapse}}" in page
    assert f"note   = {{Version {VERSION}}}" in page
    person = {"given-names": "Ada", "family-names": "Bee"}
    about = {"title": "T", "authors": [person, {"name": "Group"}], "date-released": date(2027, 1, 2), "version": 3}
    monkeypatch.setattr(compose.yaml, "safe_load", lambda _: about)
    assert compose.cite(ROOT)["authors"] == "Ada Bee, Group"
    assert "{{Ada Bee} and {Group}},\n  year   = {2027}" in compose.cite(ROOT)["button"]


def test_an_erratum_is_shown_on_the_page_of_its_paper(built_once):
    page = built_once.html("errata/feature-collapse")
    assert "is new" in page and "<!-- erratum" not in page and 'href="../part/one.html#claim-fc-one"' in page
    link = '<a href="../errata/feature-collapse.html#erratum-slip">What slipped</a>'
    assert link in built_once.html("back/ledger")


def test_another_paper_is_an_entry_a_folder_and_a_page_of_errata(built):
    paper = "- {key: fifth-paper, short: The fifth, prefix: five, cite: b2000}\n"
    built.write("chapters/papers.yml", (built.root / "chapters/papers.yml").read_text() + paper)
    claim = {**CLAIM, "id": "five-one", "paper": "fifth-paper", "expect": {"x": {"equals": 42, "printed": "42"}}}
    built.declare(CLAIM, {**CLAIM, "id": "fc-two"}, claim)
    errata = (
        ERRATA.replace("slip", "five-slip").replace("feature-collapse", "fifth-paper").replace("fc-one", "five-one")
    )
    built.write("chapters/errata.yml", ERRATA + errata.partition("\n")[2])
    measure = 'from lib.book.ledger import claims\nledger = claims.Ledger("fifth-paper", profile=profile)\n'
    built.chapter("one", measure + 'ledger.check("five-one", measured={"x": 43})', part="fifth-paper")
    built.chapter("fifth-paper", "pass", prose=SECTION.replace("slip", "five-slip"), part="errata")
    built.run("build", *SETTINGS)
    row = re.search(r'<tr[^>]*data-paper="fifth-paper".*?</tr>', built.html("back/ledger"), re.DOTALL)[0]
    assert "The fifth" in row and "contradicted: another constant" in row
    assert "<h2>The fifth" in built.html("back/ledger") and "is new" in built.html("errata/fifth-paper")


def test_a_second_build_executes_nothing_and_leaves_the_site_alone(built_once):
    before, site = built_once.executed(), os.readlink(built_once.build / "html")
    output = built_once.run("build", *SETTINGS)
    assert built_once.executed() == before and os.readlink(built_once.build / "html") == site
    assert "unchanged" in output and "device auto" not in output


def test_prose_docstrings_errata_and_declarations_are_rendered_anew_without_executing(built):
    before = built.executed()
    built.edit("chapters/part/one.md", "Prose.", "Other words.")
    built.edit("chapters/claims.yml", "value: 42", "value: 50")
    built.edit("chapters/errata.yml", "is new", "is newer")
    built.edit("lib/helper.py", "def answer():\n", 'def answer():\n    """Forty-two."""\n')
    built.run("build", *SETTINGS)
    assert built.executed() == before
    assert "Other words." in built.html("part/one") and "seed is 7" in built.html("part/one")
    assert "is newer" in built.html("errata/feature-collapse") and "Forty-two." in built.html("back/ledger")
    assert json.loads((built.build / "claims.json").read_text())[0]["measured"]["x"] == 42


def test_the_same_seed_gives_the_same_values(built):
    def values():
        return [{**row, "seconds": None} for row in json.loads((built.build / "claims.json").read_text())]

    first, before = values(), built.executed()
    built.run("execute", *SETTINGS, "--force", "--chapter", "part/one")
    assert built.executed()["one"] != before["one"] and built.executed()["two"] == before["two"]
    assert "fc-one" in built.run("claims")
    assert values() == first


def test_building_one_chapter_of_an_unexecuted_book_shows_the_others_without_results(real):
    real.edit("chapters/part/one.md", "Prose.", "See {eq}`nowhere`.")
    output = real.run("build", "--chapter", "part/one")
    assert set(real.executed()) == {"one"}
    assert "two" in output.partition("shown without results")[2] and "nowhere" in output
    assert "has not been executed" in real.html("part/two")
    assert "has not been executed" not in real.html("part/one")


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
        assert real.printed(name).split() == [str(max(1, run.cores() // 2)), "0.475", *begun]


def test_a_chapter_alone_has_all_cores_and_all_memory(built_once):
    assert built_once.printed("two").split() == ["None", "None"]


# ----------------------------------------------------------------------------------------------------------- failures


def test_a_failing_chapter_and_a_kernel_that_dies_stop_neither_the_others_nor_the_site(built):
    site, before = built.html("part/two"), built.executed()
    built.chapter("one", MEASURE, "good = 1", "def halve(x):\n    pass\n\n\n\nx = 0\n1 / x  # cannot work")
    built.chapter("two", "print('two again')")
    built.chapter("three", "import os\nos._exit(3)")
    output = built.run("build", status=1)
    assert "chapters/part/one.md failed in code cell 4 of 4" in output
    assert "7 1 / x  # cannot work\nZeroDivisionError: division by zero" in output
    assert "chapters/part/three.md failed in code cell 2 of 2" in output and "os._exit(3)" in output
    failed = built.build / "failed" / "chapters" / "part" / "one.ipynb"
    assert any("seed is 0" in str(cell.get("outputs")) for cell in nbformat.read(failed, as_version=4).cells)
    assert built.executed()["two"] != before["two"], "the other chapter was executed"
    assert built.html("part/two") == site, "the published site is as it was"


def test_a_reference_that_leads_nowhere_is_an_error_and_the_old_site_stays(built):
    site = built.html("part/one")
    built.edit("chapters/part/one.md", "Prose.", "See {eq}`nowhere` and {cite}`nobody2000`.")
    for _ in range(2):  # the second time from parsed pages that Sphinx may have kept
        output = built.run("publish", status=1)
        assert "nowhere" in output and "nobody2000" in output and "chapters/part/one" in output
    assert built.html("part/one") == site


def test_a_chapter_that_measures_and_has_no_profile_is_refused(real):
    real.edit("chapters/part/one.md", "[parameters]", "[parameter]")
    assert "one.md: no cell with the tag `parameters` sets `profile`" in real.run("build", status=2)


@pytest.fixture
def refused(monkeypatch, tmp_path):
    """What a build of this book says that is refused before it begins."""

    def build(*options):
        said = io.StringIO()
        monkeypatch.setattr(command_line, "console", Console(file=said, width=1000))
        monkeypatch.setattr(folders, "BUILD", tmp_path / "build")
        result = CliRunner().invoke(command_line.app, ["build", *options])
        assert result.exit_code == 2 and not (tmp_path / "build").exists()
        return said.getvalue() + result.output

    return build


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("profile", "lap", "'smoke', 'laptop', 'night', 'paper'"),
        ("device", "gpu", "'auto', 'cpu', 'cuda'"),
        ("device", "cuda", "device 'cuda' is not available"),
        ("chapter", "intro,x*", "chapters/feature-collapse/theorems.md"),
        ("seed", "-1", "--seed"),
        ("jobs", "0", "--jobs"),
    ],
)
def test_bad_input_is_refused_before_any_work(refused, option, value, known):
    if value == "cuda" and not devices.missing():
        pytest.skip("this machine has the device")
    assert known in refused(f"--{option}", value)


def test_a_misspelt_claim_is_refused_before_any_work(refused, monkeypatch, tmp_path):
    misspelt = declarations.CLAIMS.read_text(encoding="utf8").replace("id: fc-thm1-constant", "id: fc-thm1-constnat")
    monkeypatch.setattr(declarations, "CLAIMS", tmp_path / "claims.yml")
    declarations.CLAIMS.write_text(misspelt, encoding="utf8")
    assert "'fc-thm1-constant' is not declared" in refused()


def test_the_command_line_starts_without_what_saying_what_is_stale_does_not_need():
    large = ("torch", "matplotlib", "nbformat", "jinja2", "jsonschema")
    code = f"import sys, lib.book.__main__; sys.exit(any(name in sys.modules for name in {large}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("where", ["a file/build", "/proc/nowhere", "a folder in place of the lock"])
def test_a_build_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch, where):
    (tmp_path / "a file").touch()
    (tmp_path / "a folder in place of the lock" / ".lock").mkdir(parents=True)
    folders.take(tmp_path / "a folder in place of the lock")
    monkeypatch.setattr(folders, "BUILD", tmp_path / where)
    with pytest.raises(chapters.BadInput, match=f"{where} cannot be written to"), run.lock(print):
        pass


def on_a_full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_when_a_chapter_begins_fails_this_chapter_alone(book, monkeypatch):
    book.write("chapters/claims.yml", "claims: []\n")
    monkeypatch.setattr(run, "_unfinished", on_a_full_disk)
    monkeypatch.setattr(run, "_prepare_environment", lambda *_: None)
    monkeypatch.setattr(forks, "prepare", lambda *_: None)
    console = Console(file=io.StringIO())
    outcomes = run.execute(chapters.chapters(book.root), {}, 1, console)
    assert [outcome.state for outcome in outcomes] == ["FAILED", "FAILED"]
    assert all(str(book.build) in outcome.error and "No space" in outcome.error for outcome in outcomes)


@pytest.mark.parametrize("where", ["_sync", "_build", "_link"])
def test_a_disk_that_is_full_while_the_site_is_written_is_said_and_the_old_site_stays(current, monkeypatch, where):
    monkeypatch.setattr(site, "_build", lambda *_, **__: None)
    monkeypatch.setattr(site, where, on_a_full_disk)
    with pytest.raises(compose.SiteError, match=f"written to {current.build}, .* as it was: .*No space left on device"):
        site.publish(current.root)


def test_a_page_that_is_missing_is_named(book):
    book.page("two").path.unlink()
    with pytest.raises(chapters.BadInput, match="chapters/part/two"):
        chapters.pages(book.root)


# ------------------------------------------------------------------------------------------------------- interruptions

SLEEPS = """import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(600)"""


def begun(book):
    """The process of the kernel in which the code that is to be interrupted has begun."""
    path = book.root / "pid"
    wait_for(lambda: path.exists() and path.read_text(), "this code to begin")
    return int(path.read_text())


def to_another_thread(process, number):
    """Send a signal to a thread of the process that is not its main one; the system may do so at any time."""
    for task in sorted(Path(f"/proc/{process}/task").iterdir()):
        blocked = int(re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())[1], 16)
        if int(task.name) != process and not blocked >> (number - 1) & 1:
            assert ctypes.CDLL(None).tgkill(process, int(task.name), number) == 0
            return
    raise AssertionError("every other thread blocks the signal")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_polite_kill_end_the_kernels_and_keep_what_is_finished(real, number):
    real.chapter("two", SLEEPS)
    process = real.start("build")
    wait_for(lambda: set(real.executed()) == {"one"}, "the first chapter to finish")
    kernel = begun(real)
    send = to_another_thread if sys.platform == "linux" else os.kill
    send(process.pid, number)
    output, _ = process.communicate(timeout=60)
    wait_for(lambda: gone(kernel), "the kernel to end", 20)
    assert process.returncode == 130 and "interrupted" in output and "Traceback" not in output
    assert set(real.executed()) == {"one"}
    assert not (real.build / "html").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")
def test_ctrl_c_in_a_terminal_does_not_reach_the_process_that_kernels_are_forked_from():
    code = """from multiprocessing import forkserver
from lib.book import forks
forks.prepare(set())
print(open(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read())"""
    status = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) >> (signal.SIGINT - 1) & 1


DRAWS = """import os, pathlib, time, torch
from lib.runs import kept
def draw(part):
    for item in part:
        while item == 3 and not pathlib.Path("go").exists():
            pathlib.Path("pid").write_text(str(os.getpid()))
            time.sleep(0.05)
        with open("log", "a") as log:
            log.write(f"{item} ")
    return [torch.rand(3, generator=torch.Generator().manual_seed(item)) for item in part]
draws = kept.run(draw, [0, 1, 2, 3, 4], "draws", at_once=1)"""
SUM = "assert pathlib.Path('mended').exists()\nprint('drawn', torch.stack(draws).tolist())"


def test_a_build_killed_inside_a_chapter_goes_on_from_its_finished_runs_and_ends_with_the_same_results(real):
    real.chapter("two", DRAWS, SUM)
    process = real.start("execute", "--chapter", "part/two")
    kernel = begun(real)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: gone(kernel), "the kernel to end with the build", 20)
    assert (real.root / "log").read_text() == "0 1 2 "
    (real.root / "go").touch()
    said = "its finished runs are kept: the next build goes on from them, unless the code changes"
    assert said in real.run("execute", "--chapter", "part/two", status=1)
    (real.root / "mended").touch()
    real.run("execute", "--chapter", "part/two")
    assert (real.root / "log").read_text() == "0 1 2 3 4 ", "each run is made once"
    assert real.notebook("two").metadata.book["resumed"] == 5
    assert "draws: 5 of 5 runs are taken up from a build before" in real.printed("two")
    assert not list((real.build / "unfinished").iterdir())
    draws = [torch.rand(3, generator=torch.Generator().manual_seed(item)).tolist() for item in range(5)]
    assert f"drawn {draws}" in real.printed("two"), "as from a build that nothing interrupts"


def test_a_build_killed_while_sphinx_writes_leaves_the_old_site_and_the_next_ones_take_turns(built):
    old = built.html("part/one")
    built.edit("chapters/part/one.md", "Prose.", "New prose.")
    process = built.start("publish")
    wait_for(lambda: list((built.build / "sites").glob(".*.new/*")), "Sphinx to write")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert built.html("part/one") == old
    both = [built.start("publish") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("waiting" in output for output in outputs) == sum("unchanged" in output for output in outputs) == 1
    assert "New prose." in built.html("part/one")
    assert not list((built.build / "sites").glob(".*"))
    published = built.published()
    shutil.rmtree(built.build / "sites")
    built.run("publish")
    assert built.published() == published, "as from a build that nothing interrupts"
