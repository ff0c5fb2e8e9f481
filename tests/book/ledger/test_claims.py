"""A check leaves a record, a record is judged by the declaration of now, and each claim is checked in one place."""

import json
import math

import numpy as np
import pytest
import torch

from lib.book.kernel import notes
from lib.book.ledger import claims, declarations
from lib.book.page import Page, chapters
from one_claim import CLAIM, ERRATUM, GOOD, claim, record


@pytest.fixture
def shown(files, monkeypatch):
    """What a ledger displays."""
    outputs = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: outputs.append(data))
    return outputs


def test_a_check_leaves_a_record_of_plain_values(shown):
    ledger = claims.Ledger("feature-collapse", profile="laptop", device=torch.device("cpu"))
    ledger.check("fc-one", measured={"constant": torch.tensor(1.45, dtype=torch.float64), "note": np.arange(3)})
    left = shown[0][claims.MIME]
    assert json.loads(json.dumps(left, allow_nan=False)) == left
    seconds = left.pop("seconds")
    about = {"profile": "laptop", "device": "cpu", "dataset": None}
    values = {"measured": {"constant": 1.45, "note": [0, 1, 2]}, "expected": CLAIM["expect"]}
    assert left == {"id": "fc-one", "verdict": "reproduced", **values, **about} and seconds >= 0
    assert 'id="claim-fc-one"' in shown[0]["text/html"]
    assert "fc-one" in shown[0]["text/plain"]


def test_the_seconds_of_a_claim_count_what_its_taken_up_runs_took_before(files, shown, monkeypatch, tmp_path):
    files([CLAIM, claim(id="fc-two")])
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    clock = iter([100.0, 102.0, 105.0])
    monkeypatch.setattr(claims.time, "perf_counter", lambda: next(clock))
    notes.note("resumed", seconds=7.0)
    ledger = claims.Ledger("feature-collapse")
    notes.note("resumed", seconds=60.0)
    ledger.check("fc-one", measured=GOOD)
    ledger.check("fc-two", measured=GOOD)
    assert [output[claims.MIME]["seconds"] for output in shown] == [62.0, 3.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), torch.tensor(math.nan)])
def test_a_value_that_is_not_finite_is_kept_as_text_and_fails(shown, value):
    claims.Ledger("feature-collapse").check("fc-one", measured={"constant": value, "note": value})
    left = shown[0][claims.MIME]
    assert left["verdict"] == "not run" and "constant = " in left["reason"]
    assert left["measured"]["constant"] in ("nan", "inf")
    json.dumps(left, allow_nan=False)


def test_a_skipped_claim_is_not_run_and_says_why(shown):
    claims.Ledger("feature-collapse").skip("fc-one", reason="needs a GPU")
    left = shown[0][claims.MIME]
    assert (left["verdict"], left["reason"]) == ("not run", "needs a GPU")
    assert "needs a GPU" in shown[0]["text/html"]
    assert claims.judge(left) == left


def test_the_ledger_refuses_what_it_cannot_judge(files, shown):
    files([CLAIM, claim(id="ufm-one", paper="extended-ufm")])
    ledger = claims.Ledger("feature-collapse")
    for name, measured in {"fc-onee": GOOD, "ufm-one": GOOD, "fc-one": {"constant": 1.5}}.items():
        with pytest.raises(ValueError, match=f"'{name}'"):
            ledger.check(name, measured=measured)
    assert not shown
    ledger.check("fc-one", measured=GOOD)
    with pytest.raises(ValueError, match="'fc-one' is checked twice"):
        ledger.skip("fc-one", reason="enough")


@pytest.mark.parametrize("wrong", [{"paper": "feature-colapse"}, {"profile": "lptop"}])
def test_an_unknown_paper_or_profile_is_named(files, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        claims.Ledger(**{"paper": "feature-collapse", **wrong})


def test_a_record_is_judged_by_the_declaration_of_now(files):
    old = record()
    assert claims.judge(old)["verdict"] == "reproduced"
    changed = claim(expect={"constant": {"value": 3.0, "abs": 0.1, "printed": "3"}, "note": {"report": True}})
    files([changed])
    new = claims.judge(old)
    assert (new["verdict"], new["expected"]) == ("not reproduced", changed["expect"])
    files([changed], errata=[ERRATUM])
    assert claims.judge(old)["verdict"] == "contradicted: another constant"
    assert old["verdict"] == "?"


# -------------------------------------------------------------------------------------------------------- the sources


def chapter(path, code, prose=""):
    text = f"# Title\n\n{prose}\n\n````{{code-cell}} ipython3\n---\ntags: [x]\n---\n{code}\n````\n"
    path.write_text(text, encoding="utf-8")
    return Page(path.stem, path.parent)


def test_a_claim_checked_under_one_profile_may_be_skipped_under_another(files, tmp_path):
    code = 'if big:\n    ledger.check("fc-one", {})\nelse:\n    ledger.skip(\n        "fc-one", reason="")'
    page = chapter(tmp_path / "a.md", code)
    assert claims.check_sources([page]) == {"fc-one": page.path}
    files([claim(data=["mnist", "cifar10"]), claim(id="fc-two", data=["svhn"])])
    assert claims.data_sets([page]) == ["cifar10", "mnist"]


@pytest.mark.parametrize(
    ("codes", "named"),
    [
        (["pass"], "'fc-one' is declared and checked nowhere"),
        (['# ledger.check("fc-one", {})'], "'fc-one' is declared and checked nowhere"),
        (['ledger.check("fc-one", {})'] * 2, "'fc-one' is checked in two places"),
        (['ledger.check("fc-one", {})', 'ledger.skip("fc-one", "x")'], "is checked in .*a0.md and skipped in .*a1.md"),
        (['ledger.check("fc-one", {})\nledger.check("fc-oen", {})'], "'fc-oen' is not declared; did you mean 'fc-one'"),
        (['ledger.check("fc-one", {})\nledger.check(name, {})'], "without the claim's id written out"),
    ],
)
def test_sources_and_declarations_have_to_agree(files, tmp_path, codes, named):
    pages = [chapter(tmp_path / f"a{number}.md", code) for number, code in enumerate(codes)]
    with pytest.raises(ValueError, match=named):
        claims.check_sources(pages)


def test_prose_about_the_ledger_is_no_check(files, tmp_path):
    """A listing, and a cell that is quoted."""
    listing = '```python\nledger.check("fc-none", {})\n```'
    quoted = '`````markdown\n````{code-cell} ipython3\nledger.check("fc-none", {})\n````\n`````'
    page = chapter(tmp_path / "a.md", 'ledger.check("fc-one", {})', f"{listing}\n\n{quoted}")
    assert set(claims.check_sources([page])) == {"fc-one"}


def test_every_claim_of_the_book_is_measured_by_exactly_one_chapter():
    """In the profile with which it is executed."""
    checked, pages = claims.check_sources(chapters()), {page.path: page for page in chapters()}
    for name, path in checked.items():
        paper = declarations.read().claims[name]["paper"]  # what goes beyond a paper may stand on its pages
        assert path.parent.name in (paper, "synthesis") or paper == "beyond"
        assert "profile" in pages[path].declared
