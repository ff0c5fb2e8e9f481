"""The ways that chapters take in the `paper` profile alone, walked at the sizes of `smoke`, on the CPU.

Chapters that compute on the device of their choice walk them on a card of paper, in test_card.py.
"""

import ast
import copy
from pathlib import Path

import jupytext
import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from lib.book import chapters

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = chapters.chapters(ROOT)


def mentions(page, name):
    """(node, parent) wherever the code of a chapter reads the variable."""
    for cell in page.code:
        for parent in ast.walk(chapters._parse(cell.source)):
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                    yield node, parent


def is_settings(node):
    """`column = (<the three profiles>).index(profile)`"""
    return (
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "column"
        and ast.unparse(node.value).endswith(".index(profile)")
        and isinstance(node.value.func.value, ast.Tuple)
        and sorted(part.value for part in node.value.func.value.elts) == sorted(chapters.PROFILES)
    )


def settings_cells(cells):
    """Those that choose a column of a table of settings."""
    return [cell for cell in cells if any(map(is_settings, ast.walk(chapters._parse(cell.source))))]


def asks(page, name):
    """Does the code compare the variable with something?"""
    return any(isinstance(parent, ast.Compare) for _, parent in mentions(page, name))


OTHER_WAYS = [page for page in CHAPTERS if asks(page, "profile") and "devices.choose(" not in page.text]


def is_allowed(node, parent):
    """Is this use of `profile` another than to choose sizes?"""
    if isinstance(parent, ast.Compare):
        return [ast.unparse(part) for part in (parent.left, *parent.comparators) if part is not node] == ["'paper'"]
    if isinstance(parent, ast.Call):
        return ast.unparse(parent.func) == "claims.open"
    return isinstance(parent, ast.FormattedValue) or (isinstance(parent, ast.keyword) and parent.arg == "profile")


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.name)
def test_a_chapter_takes_all_its_sizes_from_one_column_of_one_table(page):
    """In the form that the next test can replace: whatever else asks for the profile asks whether it is `paper`."""
    other = [ast.unparse(parent) for node, parent in mentions(page, "profile") if not is_allowed(node, parent)]
    tables = settings_cells(page.code)
    assert len(tables) <= 1
    assert [text for text in other if not text.endswith(".index(profile)")] == []
    assert len(other) == len(tables), "sizes are chosen in another form than column = (...).index(profile)"


def walk(page, folder):
    """Execute a chapter with profile `paper` and the sizes of `smoke`, in a notebook in the folder."""
    notebook = copy.deepcopy(page.notebook)
    (cell,) = settings_cells([cell for cell in notebook.cells if cell.cell_type == "code"])
    cell.source = cell.source.replace(".index(profile)", '.index("smoke")')
    nbformat.write(notebook, folder / "source.ipynb")
    given = {"profile": "paper", "device": "cpu"}
    papermill.execute_notebook(
        folder / "source.ipynb", folder / "executed.ipynb", cwd=ROOT, kernel_name="python3", progress_bar=False,
        parameters={name: value for name, value in given.items() if name in page.declared},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    """That of a build, but with a closed door to the network: a data set that is not there is not downloaded."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "agg")  # figures are made and not drawn, which the pages of `smoke` are for
    monkeypatch.setenv("COLLAPSE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COLLAPSE_UNFINISHED", str(tmp_path / "unfinished"))
    for scheme in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(scheme, "http://127.0.0.1:9")


@pytest.mark.parametrize("page", OTHER_WAYS, ids=lambda page: page.name)
def test_the_ways_of_the_paper_profile_end_without_an_error(page, tmp_path):
    walk(page, tmp_path)


def test_an_error_on_such_a_way_is_noticed(tmp_path):
    table = 'column = ("paper", "smoke", "laptop").index(profile)\nsize = (1000, 1, 10)[column]'
    code = ['profile = "laptop"', table, 'if profile == "paper":\n    raise ValueError(f"size {size}")']
    cells = [nbformat.v4.new_code_cell(source) for source in code]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    (tmp_path / "made.md").write_text(jupytext.writes(made, fmt="md:myst"))
    page = chapters.Page("made", tmp_path)
    assert asks(page, "profile")
    with pytest.raises(PapermillExecutionError, match="size 1$"):
        walk(page, tmp_path)
