"""The API pages show every public name of `lib`, and each of them says what it is."""

import ast
import importlib
import re

import pytest

from lib.book import inputs
from lib.book.page import pages
from lib.book.site import api
from lib.data.vision import torchvision  # noqa: F401  # which the packages of the callbacks import, beside any torch

OVERVIEW, *PAGES = [page.text for page in pages() if "api" in page.name.split("/")]


#: What chapters call of the tool; the rest of it has no page.
CALLED = ("lib.book.kernel", "lib.book.ledger.claims", "lib.book.ledger.verdict", "lib.book.resume")


def modules() -> list[str]:
    """The public modules of `lib`, in alphabetical order; one from which its package lists names is part of that."""
    found = []
    for name, path in inputs.modules().items():
        private = path.stem.startswith("_") and path.stem != "__init__"
        if (not name.startswith("lib.book") or name.startswith(CALLED)) and not private and api.public(name):
            found.append(name)
    listed = {(name, each.name) for name in found for each in api.public(name)}
    parts = {name for name in found for each in api.public(name) if (name.rpartition(".")[0], each.name) in listed}
    return [name for name in found if name not in parts]


NAMES = [name for module in modules() for name in api.public(module)]


def test_the_overview_links_and_the_pages_document_every_public_name_once():
    rows = re.findall(r"\* - :\w+:`~([\w.]+)`", api.fill(OVERVIEW))
    text = "\n".join(map(api.fill, PAGES))
    shown = re.findall(r"^\.\. auto(?:function|class):: ([\w.]+)$", text, re.MULTILINE)
    shown += [f"{b}.{a}" for a, b in re.findall(r"^\.\. py:data:: (\w+)\n   :module: ([\w.]+)$", text, re.MULTILINE)]
    assert sorted(rows) == sorted(shown) == sorted(f"{name.module}.{name.name}" for name in NAMES)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name.module}.{name.name}")
def test_a_public_name_has_a_summary_that_ends(name):
    first = name.doc.strip().split("\n\n")[0]
    assert len(name.summary.split()) >= 3, f"{name.module}.{name.name} has no summary"
    assert first.rstrip().endswith((".", ":", "?", "!", ",")) or name.kind == "data", f"unfinished: {first!r}"


def test_a_public_constant_is_documented():
    """By a comment `#:`, without which the pages do not show it."""
    silent = []
    for module in (name for name in modules() if name != "collapsemetrics"):
        known = {name.name for name in api.public(module)}
        for node in ast.parse(inputs.modules()[module].read_text(encoding="utf8")).body:
            names = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
            silent += [f"{module}.{name}" for name in names if not name.startswith("_") and name not in known]
    assert not silent


def test_what_a_public_class_offers_has_a_docstring():
    silent = []
    for name in (name for name in NAMES if name.members):
        offered = getattr(importlib.import_module(name.module), name.name)
        docs = {member: getattr(offered, member).__doc__ or "" for member in name.members}
        silent += [f"{name.module}.{name.name}.{member}" for member, doc in docs.items() if not doc.strip()]
    assert not silent
