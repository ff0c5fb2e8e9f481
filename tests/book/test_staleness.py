"""What has to be executed: asked in this process, of executions that are made up."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from lib.book import execute, inputs
from lib.book.kernel import notes
from lib.book.page import BadInput, chapters, pages, select
from lib.book.site import publish
from lib.book.site.compose import SiteError
from made_up import CLAIM, MEASURE


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
    now = "lib.deeper changed; lib.helper changed; lib.unused is imported now"
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
        (PICKED, "paper laptop smoke", "laptop paper smoke", True),
        (PICKED, "paper laptop smoke", "smoke laptop paper", False),
        (PICKED, "'runs'", "'seeds'", True),
        (f"{PICKED}\nprint(SETTINGS)", "(9, 5, 1)", "(9, 5, 2)", True),
        ("runs = SETTINGS['runs'][2]", "(9, 5, 1)", "(9, 5, 2)", True),
    ],
)
def test_of_the_settings_the_column_of_the_profile_counts(book, use, old, new, counts):
    rows = "    'profile': 'paper laptop smoke',\n    'runs': (9, 5, 1),\n    'steps': (9, 8, 5),\n"
    table = f"SETTINGS = {{\n{rows}}}\nprint(1)"
    book.chapter("two", table, use)
    book.pretend("two", "laptop")
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
        ("1, 2", "1, 3", True),
        ("+= 1", "+= 2", True),
        ("NAMELESS = 3", "NAMELESS = 4", True),  # what defines nothing may do anything
        ("functools.cache", "functools.lru_cache", True),
        ("sin as f", "cos as f", True),
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
from lib.book.kernel import notes
notes.watch()
np.load(f"{notes.ROOT}/chapters/other/stored.npy")
sorted(Path(f"{notes.ROOT}/chapters/other/deep").glob("*"))
open(f"{notes.ROOT}/chapters/claims.yml").close()
(notes.data_folder() / "MNIST" / "file").read_text()"""


def test_what_a_process_reads_is_noted_whoever_reads_it(real, tmp_path, monkeypatch):
    """Files and listed folders below `chapters/`, but for declarations and pages, and the data sets."""
    for name in ("chapters/other/deep/a.txt", "data/MNIST/file"):
        real.write(name, "")
    subprocess.run([sys.executable, "-c", "import numpy; numpy.save('chapters/other/stored', 1)"], cwd=real.root)
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("COLLAPSE_DATA", str(real.root / "data"))
    subprocess.run([sys.executable, "-c", READS], cwd=real.root, check=True)
    read = notes.read(tmp_path / "notes")["read"]
    assert [fact["file"] for fact in read if "file" in fact] == ["chapters/other/stored.npy", "chapters/other/deep"]
    assert [fact["data"] for fact in read if "data" in fact] == ["MNIST"]


WHY = {"data/MNIST/file": "the data set changed", "chapters/other/a": "chapters/other/a changed"}
WHY |= {"chapters/other/deep/b": "chapters/other/deep changed", "data/svhn/file": None, "chapters/other/b": None}


@pytest.mark.parametrize(("name", "why"), WHY.items())
def test_what_a_chapter_read_is_what_it_depends_on(book, name, why):
    for each in ("data/MNIST/file", "chapters/other/a", "chapters/other/deep/a"):
        book.write(each, "1")
    book.pretend("two", "laptop")
    read = [{"data": "MNIST"}, {"file": "chapters/other/a"}, {"file": "chapters/other/deep"}]
    notebook = execute.executed_notebook(book.page("two"))
    notebook.metadata["book"] = execute.facts(book.page("two"), notebook.metadata.book.key, {"read": read}, 1)
    execute.keep(book.page("two"), notebook)
    assert "two" not in book.stale()
    book.write(name, "something else")
    assert book.stale().get("two") == why


def test_with_auto_it_counts_which_sets_there_are_and_so_do_the_readers_own_images(book):
    book.chapter("one", parameters='dataset = "auto"')
    book.write("data/README.txt", "1")
    book.pretend("one", "laptop")
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


@pytest.mark.parametrize("name", ["scipy", "scikit-learn"])
def test_the_version_of_every_package_that_computes_counts_for_chapters_that_reach_it(book, monkeypatch, name):
    book.write("lib/deeper.py", "def value():\n    import scipy.stats, sklearn\n    return 42\n")
    for chapter in ("one", "two"):
        book.pretend(chapter, "laptop")
    real = inputs.version
    monkeypatch.setattr(inputs, "version", lambda each: "0.0" if each == name else real(each))
    assert {chapter: why.split()[0] for chapter, why in book.stale().items()} == {"one": name}, "two does not reach it"


def test_a_parameter_is_compared_as_it_is_kept(book):
    book.chapter("two", parameters="sizes = (1, 2)")
    book.pretend("two", "laptop")
    assert "two" not in book.stale()
    assert book.stale(sizes=[1, 3])["two"] == "parameter sizes: [1, 2] -> [1, 3]"


def test_the_code_cells_are_those_of_the_notebook(book):
    lists = "- a list\n\n  ```{code-cell}\n  nested = 1\n  ```\n\n<!--\n```{code-cell}\ncomment = 1\n```\n-->\n"
    book.chapter("one", "---\ntags: [a]\nb: {c: d}\n---\n\nx = 1\n", ":name: y\n\n\ny = 2", "", prose=lists)
    for page in (book.page(), *chapters()[::4]):
        cells = [cell for cell in page.notebook.cells if cell.cell_type == "code"]
        assert [(cell.source, cell.metadata) for cell in page.code] == [(one.source, one.metadata) for one in cells]


def test_stored_results_count_for_the_page_that_has_their_folders_name(current):
    current.write("chapters/part/one/deep/a.npz", "1")
    assert current.stale() == {"one": "chapters/part/one/deep/a.npz changed"}
    current.pretend("one", "laptop")
    current.write("chapters/part/one/deep/a.npz", "2")
    current.write("chapters/part/one/b.npz", "3")
    assert current.stale() == {"one": "chapters/part/one/b.npz, chapters/part/one/deep/a.npz changed"}


@pytest.mark.parametrize("left", ['{"cells": [], "metada', '{"cells": [], "metadata": {}}'])
def test_an_executed_notebook_that_is_cut_off_or_says_nothing_of_its_execution_is_no_result(current, left):
    execute.executed_path(current.page()).write_text(left)
    assert current.stale() == {"one": "never executed"}
    with pytest.raises(SiteError, match="without results.*: part/one;"):
        publish.publish(current.root)


def test_a_chapter_is_selected_by_path_and_by_glob(book):
    everything = chapters(book.root)
    for pattern in ("chapters/part/one.md", "chapters/part/one", "part/one", "part/o*", "./chapters/part/o*.md"):
        assert select(everything, pattern) == everything[:1]
    assert select(everything, "part/one,part/two") == select(everything, "part") == select(everything, "") == everything


def test_a_page_that_is_missing_is_named(book):
    book.page("two").path.unlink()
    with pytest.raises(BadInput, match="chapters/part/two"):
        pages(book.root)


IMAGES = """import os, pathlib, sys
pathlib.Path("asked").write_text(" ".join(sys.argv[1:]))
pathlib.Path(os.environ["COLLAPSE_DATA"], "MNIST").mkdir()
pathlib.Path(os.environ["COLLAPSE_DATA"], "MNIST", "raw").touch()"""


def test_the_paper_profile_downloads_what_its_claims_name_before_it_asks_what_is_stale(book, monkeypatch):
    book.write("data/other", "")
    book.write("lib/data/__init__.py", "")
    book.write("lib/data/image_files.py", IMAGES)
    book.declare({**CLAIM, "data": ["mnist", "cifar10"]}, {**CLAIM, "id": "fc-two", "data": ["svhn"]})
    book.chapter("one", MEASURE.partition("if profile")[0], parameters='dataset = "auto"')
    for profile, name in (("laptop", "one"), ("paper", "two")):
        book.pretend(name, profile)
        execute.execute([book.page(name)], {"profile": profile}, 1, Console())
    assert not (book.root / "asked").exists(), "other profiles, and chapters that measure no such claim, get nothing"
    book.pretend("one", "paper")
    found = []
    monkeypatch.setattr(execute, "stale", lambda *_: found.append((book.root / "data/MNIST/raw").exists()) or {})
    execute.execute([book.page("one")], {"profile": "paper"}, 1, Console())
    assert (book.root / "asked").read_text() == "fetch cifar10 mnist" and found == [True]


# ----------------------------------------------------------------------------------------------- what is noted and kept


def test_the_seconds_of_runs_that_were_taken_up_count_and_a_gpu_that_was_used_is_the_machine(book, tmp_path):
    """A note that a process died over does not."""
    lines = [
        {"kind": "resumed", "name": "a", "runs": 3, "seconds": 100.25},
        {"kind": "device", "device": "cuda", "name": "A Card", "memory": 1, "torch": "2", "cuda": "13.0"},
        {"kind": "device", "device": "cpu", "name": "A Processor", "cuda": None},
        {"kind": "resumed", "name": "b", "runs": 2, "seconds": 10},
    ]
    path, key = tmp_path / "notes", {"files": {}, "data": {}}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "resumed", "ru')
    facts = execute.facts(book.page(), key, notes.read(path), 5)
    assert (facts["seconds"], facts["resumed"]) == (115.2, 5)
    assert [facts["machine"][name] for name in ("device", "name", "cuda")] == ["cuda", "A Card", "13.0"]
    facts = execute.facts(book.page(), key, notes.read(tmp_path / "absent"), 1)
    assert (facts["seconds"], facts["resumed"], facts["data"]) == (1, 0, {})


def test_finished_runs_wait_for_their_parameters_and_go_when_the_code_or_the_data_change(book):
    book.chapter("one", MEASURE, parameters='dataset = "digits"')

    def folder(seed):
        page = book.page()
        found = execute.unfinished_runs(page, inputs.key(page, {"seed": seed}))
        found.mkdir(parents=True, exist_ok=True)
        return found

    first, second = folder(1), folder(2)
    assert first != second and folder(1) == first
    book.edit("chapters/part/one.md", "seed is", "the seed is")
    assert folder(1) != first and not first.exists() and second.exists()
    book.write("data/MNIST/raw", "1")
    assert folder(2) != second and not second.exists()
