"""What changed between two builds is said claim by claim, and nothing else is."""

import json

import pytest

from lib.book import folders
from lib.book.ledger import declarations
from lib.book.page import BadInput
from lib.book.site import changes


@pytest.fixture
def diff(tmp_path):
    """The lines about two files with these contents."""

    def of(*contents):
        files = [tmp_path / "old.json", tmp_path / "new.json"]
        for file, content in zip(files, contents, strict=True):
            file.write_text(json.dumps(content))
        return changes.changes(*files)

    return of


def row(name, verdict="reproduced", **measured):
    return {"id": name, "verdict": verdict, "measured": measured, "seconds": len(name)}


def test_verdicts_values_and_claims_that_changed_have_a_line_and_what_is_the_same_has_none(diff):
    old = [row("same", a=[1.0, 2], b="x", c=True), row("gone"), row("judged", a=1), row("moved", a=[1, 2.0], b=2)]
    new = [row("same", a=[1 + 9e-7, 2], b="x", c=True), row("judged", "not run"), row("moved", a=[1, 2.1], b=2.0)]
    removed, *changed, added, counts = diff(old, [*new, row("new")])
    assert (removed, added) == ("removed: gone (reproduced)", "added: new (reproduced)")
    assert changed[:2] == ["judged: reproduced -> not run", "    a: 1 -> null"]
    assert changed[2:] == ["moved: reproduced", "    a: [1, 2.0] -> [1, 2.1]"]
    assert counts == "2 of 4 claims changed, 1 added, 1 removed"
    assert diff([row("a", x=True)], [row("a", x=1)])[1] == "    x: true -> 1"


def test_rounding_is_no_change(diff, monkeypatch):
    """Below 1e-9, and below a tolerance for rounding that the claim declares."""
    declared = {"a": {"expect": {"tight": {"below": 1e-7}, "wide": {"value": 1.0, "abs": 0.1}}}}
    monkeypatch.setattr(changes.declarations, "read", lambda: declarations.Declared(declared, {}))
    old = [row("a", tight=1e-12, wide=1.0, other=2e-13)]
    assert diff(old, [row("a", tight=9e-8, wide=1.0, other=4e-10)]) == ["0 of 1 claims changed, 0 added, 0 removed"]
    assert len(diff(old, [row("a", tight=3e-7, wide=1.01, other=2e-9)])) == 1 + 3 + 1


def test_a_file_that_no_build_wrote_is_said_in_one_sentence_and_the_release_has_one(diff):
    with pytest.raises(BadInput, match="old.json is not the claims.json of a build"):
        diff([{"id": "a", "measured": {}}], [])
    released = folders.ROOT / changes.RELEASE
    assert changes.changes(released, released)[0].startswith("0 of ")


def test_the_page_of_changes_lists_the_verdicts_that_are_not_those_of_the_release_and_the_versions(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / changes.RELEASE).write_text(json.dumps([row("same"), row("idle"), row("other"), row("gone")]))
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\nHow to read it.\n\n## 0.2.0\n\n- A page.\n")
    now = [row("same"), row("idle", "not run"), row("other", "supported"), row("new")]
    said, _, *table, _, heading, _, item = changes.page(tmp_path, {one["id"]: one for one in now}).splitlines()
    assert "3 claims" in said and "2 have another verdict" in said
    assert table[2:] == ["| `other` | reproduced | supported |", "| `new` | not there | reproduced |"]
    assert (heading, item) == ("## 0.2.0", "- A page.")
