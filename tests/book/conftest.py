"""A throw-away book that the pipeline of this process takes for its own."""

import pytest
from made_up import Book

from lib.book import run, site
from lib.ledger import declarations


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setattr(declarations, "CLAIMS", tmp_path / "chapters" / "claims.yml")
    monkeypatch.setattr(declarations, "ERRATA", tmp_path / "chapters" / "errata.yml")
    monkeypatch.setattr(run, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(site, "BUILD", tmp_path / "_build")
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "data"))
    return Book(tmp_path)
