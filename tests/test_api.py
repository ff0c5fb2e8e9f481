"""The API pages show every public name of `lib`, and docstrings say what the code raises."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from lib.book import api

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "chapters" / "back" / "api.md", *sorted((ROOT / "chapters" / "api").glob("*.md"))]
NAMES = [name for module in api.modules() for name in api.public(module)]


def test_the_overview_links_every_public_name_once():
    rows = re.findall(r"\* - :\w+:`~([\w.]+)`", api.fill(PAGES[0].read_text(encoding="utf8")))
    assert sorted(rows) == sorted(f"{name.module}.{name.name}" for name in NAMES)


def test_the_pages_document_every_public_name_once():
    text = "\n".join(api.fill(path.read_text(encoding="utf8")) for path in PAGES[1:])
    shown = re.findall(r"^\.\. auto(?:function|class):: ([\w.]+)$", text, re.MULTILINE)
    shown += [f"{b}.{a}" for a, b in re.findall(r"^\.\. py:data:: (\w+)\n   :module: ([\w.]+)$", text, re.MULTILINE)]
    assert sorted(shown) == sorted(f"{name.module}.{name.name}" for name in NAMES)


def test_every_page_is_in_the_table_of_contents():
    contents = (ROOT / "_toc.yml").read_text(encoding="utf8")
    absent = [path.name for path in PAGES if path.relative_to(ROOT).with_suffix("").as_posix() not in contents]
    assert not absent


def test_what_a_module_defines_without_an_underscore_is_public():
    import lib.metrics.statistics

    own = {
        name for name, value in vars(lib.metrics.statistics).items()
        if getattr(value, "__module__", None) == "lib.metrics.statistics" and not name.startswith("_")
    }  # fmt: skip
    assert {name.name for name in api.public("lib.metrics.statistics")} == own
    assert "lib.metrics" in api.modules() and "lib.metrics.formulas" not in api.modules()
    assert not [module for module in api.modules() if module.startswith("lib.book")]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name.module}.{name.name}")
def test_a_public_name_has_a_summary_that_ends(name):
    first = name.doc.strip().split("\n\n")[0]
    assert len(name.summary.split()) >= 3, f"{name.module}.{name.name} has no summary"
    assert first.rstrip().endswith((".", ":", "?", "!", ",")) or name.kind == "data", f"unfinished: {first!r}"


def test_a_public_constant_is_documented():
    """By a comment `#:`, without which the pages do not show it; those of the ledger are for the build only."""
    silent = []
    for module in (name for name in api.modules() if name != "lib.metrics" and not name.startswith("lib.ledger")):
        path = ROOT.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        known = {name.name for name in api.public(module)}
        for node in ast.parse(path.read_text(encoding="utf8")).body:
            names = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
            silent += [f"{module}.{name}" for name in names if not name.startswith("_") and name not in known]
    assert not silent


def test_what_a_public_class_offers_has_a_docstring():
    silent = [
        f"{name.module}.{name.name}.{member}"
        for name in NAMES
        for member in name.members
        if not (getattr(getattr(importlib.import_module(name.module), name.name), member).__doc__ or "").strip()
    ]
    assert not silent


def test_a_docstring_says_that_a_value_error_is_raised():
    """One that the function raises itself or by private helpers of its module; or another name's errors are meant."""
    said = re.compile(r"ValueError|[Ee]rrors?\b[^.]*:(?:func|meth|class):|[Oo]therwise as\s+:func:")
    silent = []
    for path in sorted((ROOT / "lib").rglob("*.py")):
        if "book" in path.relative_to(ROOT).parts or path.stem == "__main__":
            continue
        tree = ast.parse(path.read_text(encoding="utf8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        strict = {name for name in _called(tree) if name.startswith("check") or name == "positive_integers"}
        while more := {
            name for name, node in functions.items()
            if name.startswith("_") and name not in strict and (_raises(node) or strict & _called(node))
        }:  # fmt: skip
            strict |= more
        for name, node in functions.items():
            raises = _raises(node) or strict & _called(node)
            if not name.startswith("_") and raises and not said.search(_docstrings(node)):
                silent.append(f"{path.relative_to(ROOT)}: {name}")
    assert not silent, "\n".join(silent)


def _raises(node: ast.AST) -> bool:
    raised = (part.exc for part in ast.walk(node) if isinstance(part, ast.Raise))
    return any(isinstance(error, ast.Call) and ast.unparse(error.func) == "ValueError" for error in raised)


def _called(node: ast.AST) -> set[str]:
    return {part.func.id for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)}


def _docstrings(node: ast.FunctionDef | ast.ClassDef) -> str:
    parts = [
        node,
        *(part for part in node.body if isinstance(node, ast.ClassDef) and isinstance(part, ast.FunctionDef)),
    ]
    return "\n".join(ast.get_docstring(part) or "" for part in parts)
