import pytest
import yaml

from lib.book.ledger import declarations
from one_claim import CLAIM


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes the two declaration files of a small book and makes the ledger read them."""

    def write(entries=(CLAIM,), errata=(), text=None):
        claims = yaml.safe_dump({"claims": list(entries)}, allow_unicode=True) if text is None else text
        (tmp_path / "claims.yml").write_text(claims, encoding="utf-8")
        (tmp_path / "errata.yml").write_text(yaml.safe_dump({"errata": list(errata)}), encoding="utf-8")
        return tmp_path

    monkeypatch.setattr(declarations, "CLAIMS", tmp_path / "claims.yml")
    monkeypatch.setattr(declarations, "ERRATA", tmp_path / "errata.yml")
    write()
    return write
