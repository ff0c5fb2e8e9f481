"""The examples in the docstrings of `lib` give what they print."""

import doctest
import importlib

import pytest

from lib.book.inputs import modules

MODULES = [name for name, path in modules().items() if ">>> " in path.read_text(encoding="utf8")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_print(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
    assert not found.failed, "what differs is printed above"
    assert found.attempted, f"{name} has an example that doctest does not find"
