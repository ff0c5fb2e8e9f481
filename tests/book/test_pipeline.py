"""The pipeline, on small books that the tests make: what it executes, what it keeps, and how it fails."""

import ctypes
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import nbformat
import pytest
from made_up import HEADER

from lib.book import chapters, run
from lib.runs import devices

ROOT = Path(__file__).resolve().parents[2]

PARAMETERS = '```{code-cell} ipython3\n:tags: [parameters]\nprofile = "laptop"\nseed = 0\n```\n'
CLAIMS = """claims:
- {id: fc-one, paper: feature-collapse, where: here, kind: number, statement: one, expect: {x: {value: 42, abs: 1}}}
- {id: fc-two, paper: feature-collapse, where: there, kind: number, statement: two, expect: {x: {above: 0}}}
"""
MEASURE = """from lib.ledger import claims
from lib.helper import answer
ledger = claims.open("feature-collapse", profile=profile)
ledger.check("fc-one", measured={"x": answer()})
if profile == "paper":
    ledger.check("fc-two", measured={"x": 1})
print(f"seed is {seed}")"""


def cell(code):
    return f"```{{code-cell}} ipython3\n{code}\n```\n"


def _heed_interrupts():
    """A shell that starts the suite in the background has it ignore interrupts, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Book:
    """A throw-away book with its own copy of the pipeline."""

    def __init__(self, root):
        self.root, self.build = root, root / "_build"
        (root / "lib").mkdir()
        (root / "_static").mkdir()
        shutil.copytree(ROOT / "lib" / "book", root / "lib" / "book", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("__init__", "claims", "checks", "notes", "devices", "batches"):
            shutil.copy(ROOT / "lib" / f"{name}.py", root / "lib")
        for name in ("_config.yml", "_static/favicon.svg"):
            shutil.copy(ROOT / name, root / name)
        self.write("lib/helper.py", "from lib.deeper import value\n\ndef answer():\n    return value()\n")
        self.write("lib/deeper.py", "def value():\n    return 42\n")
        self.write("lib/unused.py", "nothing = None\n")
        self.write("references.bib", "@book{b2000, author={A. Bee}, title={Bees}, publisher={P}, year={2000}}\n")
        self.write("chapters/claims.yml", CLAIMS)
        self.write("chapters/errata.yml", "errata: []\n")
        self.write("chapters/intro.md", "# Intro\n\nSee [one](one.md) and {cite}`b2000`.\n\n```{bibliography}\n```\n")
        self.write("chapters/back/ledger.md", "# Ledger\n\n<!-- ledger -->\n")
        self.chapter("one", MEASURE)
        self.chapter("two", "print('two')")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def chapter(self, name, *code, prose="Some prose.", parameters=""):
        cells = "\n".join(cell(part) for part in code)
        head = PARAMETERS.replace("seed = 0", f"seed = 0\n{parameters}")
        self.write(f"chapters/{name}.md", f"{HEADER}# Chapter {name}\n\n{prose}\n\n{head}\n{cells}")
        names = sorted({"one", "two", name} | {path.stem for path in (self.root / "chapters").glob("*.md")} - {"intro"})
        listed = "".join(f"- file: chapters/{each}\n" for each in names)
        self.write(
            "_toc.yml", f"format: jb-book\nroot: chapters/intro\nchapters:\n{listed}- file: chapters/back/ledger\n"
        )

    def edit(self, name, old, new):
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def start(self, *arguments, environment=()):
        changed = {"BOOK_BUILD": None, "PYTHONPATH": None, **dict(environment)}
        environment = {key: value for key, value in {**os.environ, **changed}.items() if value is not None}
        return subprocess.Popen(
            [sys.executable, "-m", "lib.book", *arguments], cwd=self.root, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            preexec_fn=_heed_interrupts,
        )  # fmt: skip

    def run(self, *arguments, status=0, environment=()):
        process = self.start(*arguments, environment=environment)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == status, output
        return output

    def executed(self):
        """Which chapters have results, and when they got them."""
        found = (self.build / "executed").rglob("*.ipynb")
        return {path.stem: path.stat().st_mtime_ns for path in found}

    def noted(self, name):
        """What is kept about the execution of a chapter."""
        return json.loads((self.build / "executed" / "chapters" / f"{name}.ipynb").read_text())["metadata"]["book"]

    def printed(self, name):
        notebook = nbformat.read(self.build / "executed" / "chapters" / f"{name}.ipynb", as_version=4)
        return "".join(output.get("text", "") for each in notebook.cells for output in each.get("outputs", []))

    def page(self, name):
        return (self.build / "html" / "chapters" / f"{name}.html").read_text()

    def stale(self, *arguments):
        """The reasons that `status` gives, by chapter."""
        rows = [line.split(maxsplit=2) for line in self.run("status", *arguments).splitlines()]
        return {row[0]: row[2].strip() for row in rows if len(row) == 3 and row[1] == "stale"}


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path)


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    """A built book of which every test gets a copy."""
    made = Book(tmp_path_factory.mktemp("made"))
    made.run("build")
    return made


@pytest.fixture
def built(built_once, tmp_path):
    root = tmp_path / "book"
    shutil.copytree(built_once.root, root, symlinks=True)
    copy = object.__new__(Book)
    copy.root, copy.build = root, root / "_build"
    return copy


def wait_for(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# ------------------------------------------------------------------------------------------------ what gets executed


def test_building_executes_the_chapters_and_publishes_their_results(built):
    assert set(built.executed()) == {"one", "two"}
    assert "seed is 0" in built.page("one")
    assert 'href="one.html"' in built.page("intro")
    assert (built.build / "html" / "index.html").is_file()


def test_a_second_build_executes_nothing_and_leaves_the_site_alone(built):
    before, site = built.executed(), os.readlink(built.build / "html")
    output = built.run("build")
    assert built.executed() == before
    assert os.readlink(built.build / "html") == site
    assert "unchanged" in output


def test_a_prose_edit_is_rendered_without_executing(built):
    before = built.executed()
    built.edit("chapters/one.md", "Some prose.", "Other words.")
    built.run("build")
    assert built.executed() == before
    assert "Other words." in built.page("one")
    assert "seed is 0" in built.page("one")


def test_a_code_edit_executes_that_chapter_alone(built):
    before = built.executed()
    built.edit("chapters/one.md", "seed is", "the seed is")
    assert built.stale() == {"one": "its code cells changed"}
    built.run("build")
    after = built.executed()
    assert after["one"] != before["one"] and after["two"] == before["two"]
    assert "the seed is 0" in built.page("one")


def test_status_says_which_parameter_differs(built):
    assert built.stale("--profile", "smoke")["one"] == "parameter profile: 'laptop' -> 'smoke'"
    assert built.stale("--seed", "3")["two"] == "parameter seed: 0 -> 3"
    assert built.stale("--device", "cpu") == {}, "a parameter that no chapter declares changes nothing"


def test_a_module_that_is_imported_indirectly_makes_its_chapter_stale(built):
    built.edit("lib/deeper.py", "42", "42.5")
    assert built.stale() == {"one": "lib.deeper changed"}
    built.run("build")
    assert json.loads((built.build / "claims.json").read_text())[0]["measured"] == {"x": 42.5}


def test_modules_that_a_chapter_does_not_import_and_the_pipeline_itself_are_no_inputs(built):
    for name in ("lib/unused.py", "lib/ledger/claims.py", "lib/book/site.py"):
        with open(built.root / name, "a") as file:
            file.write("\nchanged = True\n")
    assert built.stale() == {}


def test_comments_and_docstrings_of_a_module_execute_nothing_and_reach_the_pages_that_show_them(built):
    built.write("chapters/back/ledger.md", "# Ledger\n\n```{eval-rst}\n.. autofunction:: lib.helper.answer\n```\n")
    for text in ("The first words.", "Other words."):
        built.write(
            "lib/helper.py",
            f'from lib.deeper import value\n\n# {text}\ndef answer():\n    """{text}"""\n    return (value())\n',
        )
        assert built.stale() == {}
        built.run("build")
        assert text in built.page("back/ledger")
    built.edit("lib/helper.py", "(value())", "value() + 0")
    assert built.stale() == {"one": "lib.helper changed"}


def test_parameters_are_injected_where_they_are_declared(built):
    built.run("execute", "--seed", "7", "--chapter", "chapters/one.md")
    notebook = nbformat.read(built.build / "executed" / "chapters" / "one.ipynb", as_version=4)
    (injected,) = (each for each in notebook.cells if "injected-parameters" in each.metadata.get("tags", []))
    assert "seed = 7" in injected.source and "device" not in injected.source


def test_a_chapter_is_selected_by_path_and_by_glob(built):
    for pattern in ("chapters/one.md", "chapters/one", "one", "o*", "./chapters/o*.md"):
        assert set(built.stale("--seed", "3", "--chapter", pattern)) == {"one"}
    assert set(built.stale("--seed", "3", "--chapter", "one,two")) == {"one", "two"}


def test_two_chapters_are_executed_at_the_same_time(book):
    meet = """import pathlib, time
pathlib.Path({!r}).touch()
while not pathlib.Path({!r}).exists():
    time.sleep(0.05)"""
    book.chapter("one", meet.format("one-is-here", "two-is-here"))
    book.chapter("two", meet.format("two-is-here", "one-is-here"))
    book.write("chapters/claims.yml", "claims: []\n")
    book.run("execute", "--jobs", "2")
    assert set(book.executed()) == {"one", "two"}


@pytest.mark.parametrize(("usable", "expected"), [(1, 1), (2, 2), (16, 4)])
def test_chapters_run_side_by_side_on_the_cores_that_there_are(monkeypatch, usable, expected):
    monkeypatch.setattr(run, "cores", lambda: usable)
    assert run.default_jobs() == expected


def test_whether_there_is_a_gpu_is_asked_without_importing_torch_where_there_is_no_driver():
    if devices.has_driver():
        pytest.skip("there is a driver")
    code = (
        "import sys; from lib.book import run; assert 'no driver' in run._why_cpu(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_cores_and_the_memory_of_a_gpu_are_shared_among_the_chapters_that_run_side_by_side(book):
    book.chapter("two", "import os\nprint(*map(os.environ.get, ('OMP_NUM_THREADS', 'COLLAPSE_GPU_SHARE')))")
    for jobs, shares in (("2", f"{max(1, run.cores() // 2)} 0.475"), ("1", "None None")):
        environment = {"OMP_NUM_THREADS": None, "COLLAPSE_GPU_SHARE": None}
        book.run("execute", "--force", "--jobs", jobs, "--chapter", "two", environment=environment)
        assert book.printed("two").strip() == shares


def test_that_auto_is_the_processor_is_said_once_and_only_where_something_is_executed(book):
    if devices.has_driver():
        pytest.skip("there is a driver")
    for name in ("one", "two"):
        book.chapter(name, "print(device)", parameters='device = "auto"')
    book.write("chapters/claims.yml", "claims: []\n")
    said = "device auto: the CPU, because there is no driver of a GPU"
    assert book.run("execute").count(said) == 1
    assert said not in book.run("execute")
    assert said not in book.run("execute", "--device", "cpu")


def test_side_by_side_the_longest_chapters_begin_first_and_those_never_executed_before_them(book, monkeypatch):
    for name in ("three", "four"):
        book.chapter(name, "pass")
    for name, seconds in (("one", 3), ("three", 50)):
        book.write(f"_build/executed/chapters/{name}.ipynb", json.dumps({"metadata": {"book": {"seconds": seconds}}}))
    monkeypatch.setattr(run, "BUILD", book.build)
    begun = []
    monkeypatch.setattr(run, "_execute_all", lambda todo, *_: begun.append([page.short for page, _ in todo]) or [])
    pages = chapters.chapters(book.root)
    assert [page.short for page in pages] == ["four", "one", "three", "two"]
    for jobs in (1, 2):
        with pytest.raises(KeyError):  # nothing is executed here
            run.execute(pages, {}, jobs, None)
    assert begun == [["four", "one", "three", "two"], ["four", "two", "three", "one"]]


def test_building_one_chapter_of_an_unexecuted_book_shows_the_others_without_results(book):
    output = book.run("build", "--chapter", "one")
    assert set(book.executed()) == {"one"}
    assert "two" in output.partition("shown without results")[2]
    assert "has not been executed" in book.page("two")
    assert "has not been executed" not in book.page("one")


def test_imports_are_found_inside_functions_and_through_relative_ones(tmp_path):
    sources = {
        "__init__": "",
        "a/__init__": "from . import b",
        "a/b": "from .c import f\nfrom ..d import g",
        "a/c": "def f():\n    import lib.e",
        "d": "g = 1",
        "e": "import lib.ledger.claims",
        "claims": "import lib.hidden",
        "hidden": "",
        "other": "",
    }
    for name, text in sources.items():
        path = tmp_path / "lib" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code = nbformat.v4.new_code_cell("%matplotlib inline\ndef late():\n    from lib import a")
    found = chapters.imported_modules([code], tmp_path)
    assert list(found) == ["lib", "lib.a", "lib.a.b", "lib.a.c", "lib.d", "lib.e"]


def test_the_data_set_counts_for_chapters_that_declare_one(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").write_text("12")
    pages = {}
    for name, code in (("with", 'dataset = "digits"'), ("without", "seed = 0")):
        (tmp_path / f"{name}.md").write_text(
            f"{HEADER}# T\n\n```{{code-cell}} ipython3\n:tags: [parameters]\n{code}\n```\n"
        )
        pages[name] = chapters.Page(name, tmp_path)
    old = {name: page.key({}) for name, page in pages.items()}
    (tmp_path / "data" / "images").write_text("123")
    changed = {name: chapters.differences(old[name], page.key({})) for name, page in pages.items()}
    assert changed == {"with": ["the data set changed"], "without": []}


def test_the_readers_own_images_count_as_the_data_folder_does(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "data"))
    own = tmp_path / "own.npz"
    own.write_text("12")
    old = chapters.data_fingerprint(str(own))
    own.write_text("123")
    assert chapters.data_fingerprint(str(own)) != old


def test_stored_results_count_for_the_page_that_has_their_folders_name(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.md").write_text(f"{HEADER}# T\n\n```{{code-cell}} ipython3\nseed = 0\n```\n")
    pages = [chapters.Page(name, tmp_path) for name in ("one", "two")]
    stored = tmp_path / "one" / "deep" / "a.npz"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"1")
    old = [page.key({}) for page in pages]
    stored.write_bytes(b"2")
    (tmp_path / "one" / "b.npz").write_bytes(b"3")
    changed = [chapters.differences(before, page.key({})) for before, page in zip(old, pages, strict=True)]
    assert changed == [["one/b.npz, one/deep/a.npz changed"], []]


# ------------------------------------------------------------------------------------------------------- the results


def test_the_page_tells_how_to_run_it_and_offers_the_executed_notebook(built):
    page = built.page("one")
    assert "make book CHAPTER=chapters/one.md PROFILE=laptop" in re.sub("<[^>]*>", "", page)
    button = built.build / "html" / "_sources" / "chapters" / "one.ipynb"
    assert "_sources/chapters/one.ipynb" in page
    for path in [button, *(built.build / "html" / "_downloads").rglob("one.ipynb")]:
        notebook = nbformat.read(path, as_version=4)
        assert any("injected-parameters" in each.metadata.get("tags", []) for each in notebook.cells)
        assert any(
            "seed is 0" in output.get("text", "") for each in notebook.cells for output in each.get("outputs", [])
        )
        assert not any("make book" in each.source for each in notebook.cells)
        assert str(built.root) not in path.read_text()
    (source,) = (built.build / "html" / "_downloads").rglob("one.md")
    assert source.read_text() == (built.root / "chapters" / "one.md").read_text()


def test_a_note_that_a_process_died_over_is_left_out_of_what_is_kept(tmp_path):
    path = tmp_path / "notes"
    path.write_text('{"kind": "resumed", "runs": 2, "seconds": 3.5}\n{"kind": "resumed", "ru')
    facts = run._facts(path, 1)
    assert (facts["seconds"], facts["resumed"]) == (4.5, 2)
    facts = run._facts(tmp_path / "absent", 1)
    assert (facts["seconds"], facts["resumed"], facts["data"]) == (1, 0, {})


def test_an_execution_is_noted_with_its_machine_its_data_and_its_time(book):
    report = """from lib import devices, notes
    devices.choose("cpu")
    notes.note("data", name="some", files=2, sha256="ab")
    notes.note("another kind", of="note")"""
    book.chapter("two", report.replace("\n    ", "\n"))
    before = datetime.now(timezone.utc).replace(microsecond=0)
    book.run("execute", "--jobs", "1")
    two = book.noted("two")
    assert two["data"] == {"some": {"files": 2, "sha256": "ab"}}
    assert before <= datetime.fromisoformat(two["finished"]) <= datetime.now(timezone.utc)
    versions = {"torch": chapters.version("torch"), "numpy": chapters.version("numpy"), "cuda": None}
    machine = {"device": "cpu", "name": devices.name("cpu"), "python": platform.python_version(), **versions}
    assert two["machine"] == book.noted("one")["machine"] == machine, "one chooses no device, and is on the processor"
    assert (two["resumed"], book.noted("one")["data"]) == (0, {})


def test_the_seconds_of_runs_that_were_taken_up_count_and_a_gpu_that_was_used_is_the_machine(tmp_path):
    card = {"kind": "device", "device": "cuda", "name": "A Card", "memory": 1, "torch": "2", "cuda": "13.0"}
    lines = [
        {"kind": "resumed", "name": "a", "runs": 3, "seconds": 100.25},
        card,
        {"kind": "device", "device": "cpu", "name": "A Processor", "cuda": None},
        {"kind": "resumed", "name": "b", "runs": 2, "seconds": 10},
    ]
    path = tmp_path / "notes"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "da')
    facts = run._facts(path, 5)
    assert (facts["seconds"], facts["resumed"]) == (115.2, 5)
    assert [facts["machine"][name] for name in ("device", "name", "cuda")] == ["cuda", "A Card", "13.0"]


IMAGES = """import os, pathlib, sys
missing = [name for name in sys.argv[2:] if name != "mnist"]
folder = pathlib.Path(os.environ["COLLAPSE_DATA"])
pathlib.Path("asked").write_text(" ".join(sys.argv[1:]))
if __name__ == "__main__":
    anew = not (folder / "mnist").exists()
    (folder / "mnist").touch()
    print("mnist: downloaded into" if anew else "mnist: already in", folder)
    print(*(f"error: no network: {name}" for name in missing), sep="\\n", file=sys.stderr)
    sys.exit(1)
"""


def test_the_paper_profile_downloads_what_its_chapters_want_before_they_begin(book):
    data = book.root / "data"
    data.mkdir()
    book.write("lib/data/__init__.py", "")
    book.write("lib/data/image_sets.py", IMAGES)
    book.chapter("one", MEASURE, parameters='dataset = "auto"')
    want = 'for wanted in ("cifar10", "mnist"):\n    print(wanted, "download=")\nprint("there", len(os.listdir({!r})))'
    book.chapter("two", "import os", want.format(str(data)), parameters='dataset = "auto"')
    environment = {"COLLAPSE_DATA": str(data)}
    for profile in ("smoke", "laptop"):
        book.run("execute", "--profile", profile, environment=environment)
    assert not (book.root / "asked").exists(), "the others download nothing"
    output = book.run("execute", "--profile", "paper", environment=environment)
    assert (book.root / "asked").read_text() == "fetch mnist cifar10"
    assert "no network: cifar10" in output and "there 1" in book.printed("two")
    assert "up to date" in book.run("execute", "--profile", "paper", environment=environment)
    (book.root / "asked").unlink()
    book.run("execute", "--profile", "paper", "--chapter", "one", "--force", environment=environment)
    assert not (book.root / "asked").exists(), "a chapter that does not ask for it gets nothing"


def test_claims_json_has_a_row_for_every_declared_claim(built):
    one, two = json.loads((built.build / "claims.json").read_text())
    fields = ["id", "verdict", "measured", "expected", "chapter", "profile", "device", "dataset", "seconds"]
    assert list(one) == list(two) == [*fields, "recorded"] and one["recorded"] is None
    assert (one["id"], one["verdict"], one["measured"], one["chapter"]) == ("fc-one", "reproduced", {"x": 42}, "one")
    assert (two["id"], two["verdict"]) == ("fc-two", "not run")
    assert "fc-one" in built.run("claims")


def test_an_edited_declaration_is_judged_anew_without_executing(built):
    before = built.executed()
    built.edit("chapters/claims.yml", "value: 42", "value: 50")
    built.run("build")
    assert built.executed() == before
    assert json.loads((built.build / "claims.json").read_text())[0]["verdict"] == "not reproduced"
    assert 'data-verdict="not reproduced"' in built.page("one")


ERRATA = """errata:
- {id: slip, paper: feature-collapse, place: (7), printed: $a$ is new, corrected: $b$, shown_by: fc-one, how: by hand,
   consequence: none, transcription: it is not}
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


def test_an_erratum_is_shown_on_the_page_of_its_paper_and_rendered_anew_without_executing(built):
    built.write("chapters/errata.yml", ERRATA)
    assert "erratum 'slip' has no section" in built.run("build", status=2)
    built.write("chapters/back/ledger.md", "# Errata\n\n<!-- errata -->\n\n<!-- ledger -->\n")
    built.chapter("errata/feature-collapse", "pass", prose=SECTION)
    built.run("build")
    page = built.page("errata/feature-collapse")
    assert "is new" in page and "<!-- erratum" not in page and 'href="../one.html#claim-fc-one"' in page
    overview = built.page("back/ledger")
    assert '<a href="../errata/feature-collapse.html#erratum-slip">What slipped</a>' in overview
    notebook = nbformat.read(built.build / "html" / "_sources" / "chapters" / "errata" / "feature-collapse.ipynb", 4)
    assert any("is new" in cell.source for cell in notebook.cells)
    before = built.executed()
    built.edit("chapters/errata.yml", "is new", "is newer")
    built.run("build")
    assert built.executed() == before and "is newer" in built.page("errata/feature-collapse")


def test_the_same_seed_gives_the_same_values(built):
    def values():
        return [{**row, "seconds": None} for row in json.loads((built.build / "claims.json").read_text())]

    first = values()
    built.run("build", "--force")
    assert values() == first


# ----------------------------------------------------------------------------------------------------------- failures


def test_a_failing_chapter_stops_neither_the_others_nor_the_site(built):
    site, before = built.page("two"), built.executed()
    built.chapter("one", MEASURE, "good = 1", "x = 0\n1 / x  # cannot work")
    built.chapter("two", "print('two again')")
    output = built.run("build", status=1)
    assert "chapters/one.md failed in code cell 4 of 4" in output
    assert "1 / x  # cannot work" in output and "ZeroDivisionError: division by zero" in output
    partial = nbformat.read(built.build / "failed" / "chapters" / "one.ipynb", as_version=4)
    assert any("seed is 0" in str(each.get("outputs")) for each in partial.cells)
    assert built.executed()["two"] != before["two"], "the other chapter was executed"
    assert built.page("two") == site, "the published site is as it was"
    built.chapter("one", MEASURE)
    built.run("build")
    assert "two again" in built.page("two")
    assert not (built.build / "failed" / "chapters" / "one.ipynb").exists()


def test_a_kernel_that_dies_is_reported_like_any_failure(book):
    book.chapter("two", "import os\nos._exit(3)")
    output = book.run("build", status=1)
    assert "chapters/two.md failed in code cell 2 of 2" in output and "os._exit(3)" in output
    assert set(book.executed()) == {"one"}


def test_a_reference_that_leads_nowhere_is_an_error_and_the_old_site_stays(built):
    site = built.page("one")
    built.edit("chapters/one.md", "Some prose.", "See {eq}`nowhere` and {cite}`nobody2000`.")
    for _ in range(2):  # the second time from parsed pages that Sphinx may have kept
        output = built.run("build", status=1)
        assert "nowhere" in output and "nobody2000" in output and "chapters/one" in output
    assert built.page("one") == site
    built.edit("chapters/one.md", "See {eq}`nowhere` and {cite}`nobody2000`.", "Mended.")
    built.run("build")
    assert "Mended." in built.page("one")


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("--profile", "lap", "smoke, laptop, paper"),
        ("--device", "gpu", "auto, cpu, cuda"),
        ("--chapter", "three", "chapters/one.md"),
        ("--chapter", "one,x*", "chapters/two.md"),
        ("--seed", "-1", "whole number"),
        ("--seed", "1" + 30 * "0", "whole number"),
        ("--jobs", "0", "whole number"),
        ("--jobs", "all", "auto"),
    ],
)
def test_bad_input_is_refused_before_any_work(book, option, value, known):
    output = book.run("build", option, value, status=2)
    assert value.rpartition(",")[2] in output and known in output
    assert not book.build.exists()
    assert "Traceback" not in output


def test_a_device_that_is_not_there_is_refused_before_any_work(book):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    output = book.run("build", "--device", "cuda", status=2)
    assert f"device 'cuda' is not available: {devices.missing()}" in output and "Traceback" not in output
    assert not book.build.exists()


def test_results_of_another_version_are_stale_not_fatal(book):
    book.run("execute")
    path = next(book.build.rglob("executed/**/one.ipynb"))
    notebook = json.loads(path.read_text())
    notebook["metadata"]["book"]["key"] = {"cells": "an older form"}
    path.write_text(json.dumps(notebook))
    assert book.stale()["one"] == "never executed"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("value: 42", "value: [", "claims.yml"),
        ("id: fc-two", "id: fc-one", "fc-one"),
        ("id: fc-one", "id: fc-on", "fc-one"),
    ],
)
def test_damaged_double_and_misspelt_claims_are_refused_before_any_work(book, old, new, named):
    book.edit("chapters/claims.yml", old, new)
    output = book.run("build", status=2)
    assert named in output
    assert not book.build.exists()
    assert "Traceback" not in output


def test_a_page_that_is_missing_is_named(book):
    (book.root / "chapters" / "two.md").unlink()
    assert "chapters/two" in book.run("build", status=2)


# ------------------------------------------------------------------------------------------------------- interruptions

SLEEPS = """import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(0 if pathlib.Path("go").exists() else 600)"""


def to_another_thread(process, number):
    """Send a signal to a thread of the process that is not its main one; the system may do so at any time."""
    for task in sorted(Path(f"/proc/{process}/task").iterdir()):
        blocked = int(re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())[1], 16)
        if int(task.name) != process and not blocked >> (number - 1) & 1:
            assert ctypes.CDLL(None).tgkill(process, int(task.name), number) == 0
            return
    raise AssertionError("every other thread blocks the signal")


def interrupted_in_the_second_chapter(book, number, send=os.kill):
    """Send a signal while chapter two is being executed; returns what `one` was executed as, and the kernel's id."""
    book.chapter("two", SLEEPS)
    process = book.start("build")
    wait_for(lambda: "one" in book.executed() and (book.root / "pid").exists(), "the second chapter to begin")
    wait_for(lambda: (book.root / "pid").read_text(), "the kernel's process id")
    send(process.pid, number)
    output, _ = process.communicate(timeout=60)
    kernel = int((book.root / "pid").read_text())
    wait_for(lambda: gone(kernel), "the kernel to end", 20)
    return process.returncode, output


def test_a_killed_build_keeps_what_is_finished_and_the_next_one_goes_on(built):
    old = built.page("two")
    built.edit("chapters/one.md", "seed is", "the seed is")
    before = built.executed()
    built.chapter("two", SLEEPS)
    process = built.start("build")
    wait_for(lambda: built.executed()["one"] != before["one"], "the first chapter to finish")
    wait_for(lambda: (built.root / "pid").exists(), "the second chapter to begin")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert built.page("two") == old and "the seed is" not in built.page("one"), "the old site is complete"
    first = built.executed()["one"]
    (built.root / "go").touch()
    built.run("build")
    assert built.executed()["one"] == first, "the finished chapter is not executed again"
    assert built.executed()["two"] != before["two"]
    assert "the seed is 0" in built.page("one")


def test_ctrl_c_ends_the_kernels_and_keeps_what_is_finished(book):
    status, output = interrupted_in_the_second_chapter(book, signal.SIGINT)
    assert status == 130 and "interrupted" in output and "Traceback" not in output
    assert set(book.executed()) == {"one"}
    assert not (book.build / "html").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="threads of another process are found in /proc")
def test_an_interrupt_that_another_thread_receives_ends_the_build_too(book):
    status, output = interrupted_in_the_second_chapter(book, signal.SIGINT, to_another_thread)
    assert status == 130 and "interrupted" in output


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
SUM = "print('drawn', torch.stack(draws).tolist())"


def test_a_build_killed_inside_a_chapter_goes_on_from_its_finished_runs_and_ends_with_the_same_results(book):
    book.chapter("two", DRAWS, SUM)
    process = book.start("execute", "--chapter", "two")
    wait_for(lambda: (book.root / "pid").exists() and (book.root / "pid").read_text(), "the fourth run to begin")
    kernel = int((book.root / "pid").read_text())
    for group in (process.pid, kernel):
        os.killpg(group, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: gone(kernel), "the kernel to end")
    assert (book.root / "log").read_text() == "0 1 2 "
    (book.root / "go").touch()
    book.run("execute", "--chapter", "two")
    assert (book.root / "log").read_text() == "0 1 2 3 4 ", "each run is made once"
    assert book.noted("two")["resumed"] == 3
    assert "draws: 3 of 5 runs are taken up from a build before" in book.printed("two")
    assert not list((book.build / "unfinished").iterdir())
    resumed = book.printed("two").partition("drawn")[2]
    book.run("execute", "--force", "--chapter", "two")
    assert book.noted("two")["resumed"] == 0 and (book.root / "log").read_text() == 2 * "0 1 2 3 4 "
    assert resumed and book.printed("two") == f"drawn{resumed}", "as from a build that nothing interrupts"


FAILS = "import pathlib\nassert pathlib.Path('mended').exists()"


def test_a_chapter_that_failed_goes_on_from_its_finished_runs_those_of_other_parameters_wait(book):
    runs = "0 1 2 3 4 "
    (book.root / "go").touch()
    book.chapter("two", DRAWS, FAILS)

    def execute(seed, status=0):
        return book.run("execute", "--chapter", "two", "--seed", seed, status=status)

    said = "its finished runs are kept: the next build goes on from them, unless the code changes"
    assert said in execute("1", status=1)
    book.edit("chapters/two.md", "rand(3", "rand(4")
    execute("1", status=1)
    assert (book.root / "log").read_text() == 2 * runs, "after an edit everything is made again"
    assert len(list((book.build / "unfinished").iterdir())) == 1
    execute("2", status=1)
    assert (book.root / "log").read_text() == 3 * runs
    (book.root / "mended").touch()
    for seed in ("1", "2"):
        execute(seed)
        assert book.noted("two")["resumed"] == 5
    assert (book.root / "log").read_text() == 3 * runs
    assert not list((book.build / "unfinished").iterdir())


def test_kernels_do_not_outlive_a_killed_build(book):
    status, _ = interrupted_in_the_second_chapter(book, signal.SIGKILL)
    assert status == -signal.SIGKILL


def test_a_build_killed_while_sphinx_writes_leaves_the_old_site_and_the_next_one_succeeds(built):
    old = built.page("one")
    built.edit("chapters/one.md", "Some prose.", "New prose.")
    process = built.start("build")
    wait_for(lambda: list((built.build / "sites").glob(".*.new/*")), "Sphinx to write")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert built.page("one") == old
    built.run("build")
    assert "New prose." in built.page("one")
    assert not list((built.build / "sites").glob(".*"))


def test_two_builds_at_once_take_turns(book):
    first, second = book.start("build"), book.start("build")
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0, outputs
    assert sum("waiting" in output for output in outputs) == 1
    assert sum("unchanged" in output for output in outputs) == 1
