"""What is wrong with the declarations is named with its file and entry, and those of the book are in order."""

import re

import pytest

from lib.book.ledger import declarations
from one_claim import CLAIM, ERRATUM, claim


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "conjecture"}, "kind: 'conjecture' is not one of .*'theorem', 'number'"),
        ({"paper": "extended-umf"}, "paper: 'extended-umf' is not one of .* did you mean 'extended-ufm'"),
        ({"statement": None}, "'statement' is a required property"),
        ({"where": " "}, "where: ' ': text is needed"),
        ({"id": "FC one"}, "id: 'FC one': lower-case"),
        ({"expects": {}}, "unknown key 'expects'; did you mean 'expect'"),
        ({"expect": {"c": {"below": 1, "above": 0}}}, "c: .*exactly one of"),
        ({"expect": {"c": {"value": 1}}}, "exactly one of rounds_to"),
        ({"expect": {"c": {"value": 1, "abs": -1}}}, "abs: -1"),
        ({"expect": {"c": {"value": "1e-9", "abs": 1}}}, "value: '1e-9': a number .*1.0e-9"),
        ({"expect": {"c": {"below": 1, "abs": 1}}}, "'abs'"),
        ({"expect": {"c": {"between": [0, "x"]}}}, "between: 1: 'x': a number"),
        ({"expect": {"c": {"report": True}}}, "to judge the claim by"),
        ({"expect": {0.5: {"below": 1}}}, "0.5: text"),
    ],
)
def test_a_damaged_claim_is_named_with_its_file(files, changes, named):
    files([CLAIM, damaged := claim(**{"id": "fc-two", **changes})])
    with pytest.raises(ValueError, match=f"claims.yml: claims: {damaged['id']}: .*{named}"):
        declarations.read()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"shown_by": "fc-on"}, "shown by 'fc-on'.*did you mean 'fc-one'"),
        ({"paper": "extended-ufm"}, "shown by 'fc-one', a claim of feature-collapse"),
        ({"place_": "x"}, "unknown key 'place_'; did you mean 'place'"),
    ],
)
def test_a_damaged_erratum_is_named(files, changes, named):
    files(errata=[{**ERRATUM, **changes}])
    with pytest.raises(ValueError, match=f"errata.yml: .*sign.*{named}"):
        declarations.read()


def test_an_id_stands_once(files):
    files([CLAIM, CLAIM])
    with pytest.raises(ValueError, match="'fc-one' is there twice"):
        declarations.read()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("claims:\n- id: [unclosed\nx: []\n", "line 3"),
        ("", "None: a mapping with the list 'claims'"),
        ("claims: []\nclaim: []\n", "unknown key 'claim'; did you mean 'claims'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(files, text, named):
    files(text=text)
    with pytest.raises(ValueError, match=f"claims.yml(?s:.*){named}"):
        declarations.read()


def test_an_edited_file_is_read_again(files):
    assert set(declarations.read().claims) == {"fc-one"}
    files([claim(id="fc-two")])
    assert set(declarations.read().claims) == {"fc-two"}


def test_a_claims_id_names_its_paper_and_one_or_two_quantities_stand_beside_its_verdict():
    prefixes = {paper["prefix"]: key for key, paper in declarations.PAPERS.items()}
    for name, entry in declarations.read().claims.items():
        assert entry["paper"] == {**prefixes, "x": "beyond"}[name.split("-")[0]]
        headline = [key for key, expectation in entry["expect"].items() if "headline" in expectation]
        assert 1 <= len(headline) <= 2, name
        assert not any("ours" in entry["expect"][key] for key in headline), name


def test_no_key_stands_twice_in_an_entry_of_the_book_and_bounds_are_in_order():
    """YAML takes the second of two."""
    for path in (declarations.CLAIMS, declarations.ERRATA):
        for entry in re.split(r"(?m)^(?=- id:)", path.read_text(encoding="utf-8")):
            keys = re.findall(r"(?m)^[- ] ([a-z_]+):", entry)
            assert len(keys) == len({*keys}), entry[:40]
    for name, entry in declarations.read().claims.items():
        for expectation in entry["expect"].values():
            lower, upper = expectation.get("between", (0, 0))
            assert lower <= upper, name
