"""The examples in the docstrings of `lib` give what they print."""

import doctest
import importlib
import sys

import pytest

from lib.book.chapters import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "lib").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_print(name, monkeypatch):
    # the name under which the metrics are installed
    monkeypatch.setitem(sys.modules, "collapsemetrics", importlib.import_module("lib.metrics"))
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
    assert not found.failed, "what differs is printed above"
    assert found.attempted, f"{name} has an example that doctest does not find"
