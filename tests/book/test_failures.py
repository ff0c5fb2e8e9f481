"""How a build fails: bad input before any work, a chapter alone, a site not at all."""

import io
import resource

import nbformat
import pytest
from rich.console import Console
from typer.testing import CliRunner

from lib.book import __main__ as command_line
from lib.book import execute, folders
from lib.book.kernel import devices
from lib.book.ledger import declarations
from lib.book.page import BadInput
from made_up import MEASURE

FAILS = "import os\nos.makedirs(os.environ['COLLAPSE_UNFINISHED'])\n\n\n\n\nx = 0\n1 / x  # cannot work"


def test_a_failing_chapter_and_a_kernel_that_dies_stop_neither_the_others_nor_the_site(built):
    site, before = built.html("part/two"), built.executed()
    built.chapter("one", MEASURE, "good = 1", FAILS)
    built.chapter("two", "print('two again')")
    built.chapter("three", "import os\nos.write(2, b'last words')\nos._exit(3)")
    output = built.run("build", status=1)
    assert "chapters/part/one.md failed in code cell 4 of 4" in output
    assert "8 1 / x  # cannot work\nZeroDivisionError: division by zero" in output
    assert "its finished runs are kept: the next build goes on from them, unless the code changes" in output
    assert "chapters/part/three.md failed in code cell 2 of 2" in output and "last words" in output
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


def test_too_few_open_files_are_refused_before_any_work(refused):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        assert "may open only 200 files" in refused()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_misspelt_claim_is_refused_before_any_work(refused, monkeypatch, tmp_path):
    misspelt = declarations.CLAIMS.read_text(encoding="utf8").replace("id: fc-thm1-constant", "id: fc-thm1-constnat")
    monkeypatch.setattr(declarations, "CLAIMS", tmp_path / "claims.yml")
    declarations.CLAIMS.write_text(misspelt, encoding="utf8")
    assert "'fc-thm1-constant' is not declared" in refused()


def test_a_chapter_that_cannot_be_read_is_refused_before_any_is_executed(current):
    current.edit("chapters/part/two.md", "print('two')", "---\ntags: [a\n---\nprint('two')")
    with pytest.raises(BadInput, match="two.md cannot be read"):
        execute.execute([current.page("one"), current.page("two")], {"profile": "smoke"}, 1, Console())
    assert not (current.build / "running").exists()


def test_a_build_folder_that_cannot_be_written_to_is_named(monkeypatch):
    monkeypatch.setattr(folders, "BUILD", folders.Path("/proc/nowhere"))
    with pytest.raises(BadInput, match="/proc/nowhere cannot be written to"), execute.lock(print):
        pass
