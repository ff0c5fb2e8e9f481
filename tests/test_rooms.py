"""The rooms of the library stand on one another: a room imports rooms below it, never one above."""

import ast
import re

import pytest

from lib.book.chapters import ROOT

LIB = ROOT / "lib"
ROOMS = ("checks", "figures", "ledger", "data", "models", "theory", "metrics", "search", "training", "runs", "book")


def imported(path):
    """The names that a module imports, at its top or inside a function, but for its neighbours' in the metrics."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert path.parent == LIB / "metrics" and node.level == 1, f"{path}: imports are written in full"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_metrics_import_nothing_of_lib_by_name_for_they_are_installed_under_another():
    names = {name.split(".")[0] for path in (LIB / "metrics").glob("*.py") for name in imported(path)}
    assert "lib" not in names and "torch" in names


def test_lib_has_these_rooms_and_no_other():
    assert sorted(p.stem for p in LIB.iterdir() if p.stem not in ("__init__", "__pycache__")) == sorted(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_rooms_below_it(room):
    files = [LIB / f"{room}.py"] if (LIB / f"{room}.py").exists() else (LIB / room).rglob("*.py")
    for path in files:
        names = [name.split(".")[1] for name in imported(path) if name.split(".")[0] == "lib"]
        above = [name for name in names if ROOMS.index(name) > ROOMS.index(room)]
        assert not above, f"{path.relative_to(LIB.parent)} imports {', '.join(above)}"


def test_the_page_on_building_shows_the_rooms_in_this_order():
    page = (LIB.parent / "chapters" / "back" / "building.md").read_text("utf-8")
    picture = re.search(r'<svg class="rooms".*?</svg>', page, re.DOTALL)[0]
    assert re.findall(r'font-weight="600">(\w+)<', picture) == list(reversed(ROOMS))
