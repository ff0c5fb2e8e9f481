"""An erratum has one complete section on the page of its paper, and the pages say what the file says."""

import pytest

from lib.book.ledger import claims, declarations, errata
from lib.book.page import chapters
from one_claim import BAD, CLAIM, ERRATUM, record

SECTION = """(erratum-sign)=
## The sign of $r$

<!-- erratum sign -->

Words.

```{code-cell} ipython3
## not a heading
"<!-- erratum other -->"
```

<!-- consequence sign -->
"""


@pytest.fixture
def page(files, tmp_path):
    """Writes a page below the folder of the book with one erratum and returns its path."""
    files([{**CLAIM, "stated": "thm-one"}], [ERRATUM])

    def write(text, name="errata/feature-collapse.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# Errata\n\n{text}\n## Another\n\n```{{code-cell}} ipython3\nx\n```\n", encoding="utf-8")
        return path

    return write


def test_the_heading_of_an_erratum_is_read_from_its_section(page):
    assert errata.sections([page(SECTION)]) == ({"sign": "The sign of $r$"}, [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SECTION, ""),
        (SECTION, SECTION + SECTION),
        ("## The sign of $r$", ""),
        ("<!-- consequence sign -->", ""),
        ("```{code-cell} ipython3", "```python"),
    ],
)
def test_an_erratum_has_one_complete_section(page, old, new):
    assert old in SECTION
    with pytest.raises(ValueError, match="errata/feature-collapse.md: erratum 'sign' has no section, or not one of"):
        errata.check_sections([page(SECTION.replace(old, new))])


@pytest.mark.parametrize("line", ["(erratum-sign)=", "<!-- consequence sign -->"])
def test_a_misspelt_erratum_is_named_with_its_page(page, line):
    with pytest.raises(ValueError, match="erratum 'sing' is not in errata.yml; did you mean 'sign'"):
        errata.check_sections([page(SECTION.replace(line, line.replace("sign", "sing")))])


def test_an_erratum_stands_on_the_page_of_its_paper(page):
    with pytest.raises(ValueError, match="errata/feature-collapse.md: erratum 'sign' has no section"):
        errata.check_sections([page(SECTION, "other.md")])


def test_the_markers_become_what_the_file_says_and_the_verdict_of_now(page):
    text = errata.expand(SECTION, {"fc-one": claims.judge(record(BAD))}, {"thm-one": "part/one.html#thm-one"})
    before, _, after = text.partition("```{code-cell} ipython3")
    assert "> **As printed** ((7); *another constant*): $a$\n>\n> **Corrected.** $b$\n" in before
    assert "**How it is decided.** By evaluation." in before
    assert "**Consequence.** None." in after and "The derivation repeats it." in after
    assert 'href="../feature-collapse/theorems.html#claim-fc-one"' in after and "contradicted" in after
    assert 'about <a href="../part/one.html#thm-one">this statement</a>.' in after
    assert '"<!-- erratum other -->"' in text, "text that is no marker stays"
    assert "../back/ledger.html#ledger-fc-one" in errata.expand(SECTION, {}, {})


def test_the_overview_of_the_errata_has_a_row_for_each_the_slips_apart(files):
    files(errata=[{**ERRATUM, "place": "|x|"}, {**ERRATUM, "id": "other", "kind": "slip"}])
    page = errata.page({"fc-one": claims.judge(record(BAD))}, {"sign": "The sign of $r$"})
    page, _, slips = page.partition("## Slips and remarks")
    assert "erratum-other" in slips and "Feature collapse, (7)" in slips and "erratum-sign" not in slips
    assert "## Feature collapse" in page and "Low-rank bias" not in page and "erratum-other" not in page
    (row,) = (line for line in page.splitlines() if "erratum-sign" in line)
    assert '<a href="../errata/feature-collapse.html#erratum-sign">The sign of $r$</a>' in row
    assert r"| \|x\| | another constant |" in row and "claim-contradicted" in row


def test_every_erratum_of_the_book_has_its_section():
    headings, problems = errata.sections(page.path for page in chapters())
    assert not problems
    assert set(headings) == set(declarations.read().errata)
