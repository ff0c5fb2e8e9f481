"""The tables show what was claimed and measured, lead where they should, and cannot be broken by what they show."""

import re

import pytest

from lib.book.ledger import claims, declarations, tables
from lib.book.page import chapters
from one_claim import BAD, CLAIM, ERRATUM, GOOD, claim, record


def table(*arguments, links=True, **changes):
    return tables.claim(claims.judge(record(*arguments, **changes)), links)


def test_the_table_shows_print_measurement_and_a_sign_beside_the_colour(files):
    for text in ("printed or expected", "1.5", "1.45", "✓", 'aria-label="met"', "reproduced", "Theorem 1"):
        assert text in table()
    assert "✗" in table(BAD) and 'aria-label="not met"' in table(BAD)


def test_a_table_says_what_stands_against_a_verdict_and_leads_there(files):
    files(errata=[ERRATUM])
    assert 'href="../errata/feature-collapse.html#erratum-sign"' in table(BAD)
    assert "erratum sign" in table(BAD, links=False) and "href" not in table(BAD, links=False)
    assert 'href="../back/ledger.html#ledger-fc-one"' in table() and "erratum" not in table()
    files([claim(data=["mnist"])], errata=[ERRATUM])
    assert "data: mnist; <a" in table(BAD, dataset="mnist")
    assert "Not run: it takes a cluster.</p>" in table({}, reason="it takes a cluster.")
    assert "No verdict: the smoke profile" in table(profile="smoke") and "1.45" in table(profile="smoke")


def test_text_from_the_files_cannot_break_the_page(files):
    evil = "a < b & <script>x</script>"
    expect = {"<script>": {"equals": "<script>", "printed": evil}}
    files([claim(statement=evil, where=evil, expect=expect)], errata=[{**ERRATUM, "id": "a-b"}])
    shown = claims.judge(record({"<script>": "<script>"}, dataset=evil, profile="smoke"))
    kept = record({"<script>": "<script>"}, finished="2026", machine={"name": evil}, dataset=evil, outdated=[evil])
    kept["verdict"], skipped = "reproduced", claims.judge(record({}, reason=evil))
    page = tables.ledger({"fc-one": shown}, {"fc-one": kept}, {}) + tables.ledger({"fc-one": skipped}, {}, {})
    assert "<script>" not in tables.claim(shown) + tables.claim(skipped) + page and "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("K = n_c^L", "K = n<sub>c</sub><sup>L</sup>"),
        ("|u_{k,ℓ}| and σ_e²", "|u<sub>k,ℓ</sub>| and σ<sub>e</sub>²"),
        ("K^{(3-L)/2} < r_max.", "K<sup>(3-L)/2</sup> &lt; r<sub>max</sub>."),
        ("no index: _ and ^, or _this_", "no index: _ and ^, or _this_"),
    ],
)
def test_indices_and_exponents_of_a_statement_are_set(files, text, expected):
    files([claim(statement=text)])
    assert expected in table()
    assert expected in tables.ledger({}, {}, {})


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-1.23456e-7, "−1.235\u00a0×\u00a010⁻⁷"), (True, "true"), ([1, -2.5], "1, −2.5"), ([5] * 9, "5, … (9 values)")],
)
def test_values_are_set_for_a_reader(files, value, expected):
    assert expected in table({"constant": 1.5, "note": value})


def test_the_ledger_has_one_row_per_claim_whatever_was_measured_and_any_page_can_count_them(files):
    files([CLAIM, claim(id="fc-two"), claim(id="lr-one", paper="low-rank-bias", kind="figure")], errata=[ERRATUM])
    judged = {"fc-one": claims.judge(record(BAD))}
    page, tally = tables.ledger(judged, {"fc-one": recorded(outdated=["it changed"])}, {}), tables.tally(judged)
    rows = re.findall(r'<tr id="ledger-([^"]*)" data-paper="([^"]*)" data-verdict="([^"]*)" data-kind="([^"]*)">', page)
    assert rows == [
        ("fc-one", "feature-collapse", "contradicted: another constant", "number"),
        ("fc-two", "feature-collapse", "not run", "number"),
        ("lr-one", "low-rank-bias", "not run", "figure"),
    ]
    assert 'href="../feature-collapse/theorems.html#claim-fc-one"' in page
    assert 'href="../errata/feature-collapse.html#erratum-sign"' in page
    for name in ("ledger", "ledger-paper", "ledger-kind", "ledger-verdict", "ledger-text"):
        assert f'id="{name}"' in page
    for html, address in ((page, ""), (tally, "back/ledger.html")):
        counts = re.findall(rf'<a href="{address}\?verdict=([^"]*)".*?<strong>(\d+)</strong>', html)
        assert counts == [("contradicted:+another+constant", "1"), ("not+run", "2")]
        assert "\n\n" not in html, "a blank line ends a block of HTML in Markdown"


def recorded(measured=GOOD, reason=None, **changes):
    """A record of the paper profile as lib.book.records.read has it."""
    about = {"profile": "paper", "finished": "2026-11-22T10:00:00+00:00", "machine": {"name": "Card <1>"}}
    return {**claims.judge(record(measured, reason=reason)), "outdated": [], **about, **changes}


def row(*records, name="fc-one", **changes):
    """The row of a claim: its title, what is in sight, what is folded. changes: what its record has of its own."""
    page = tables.ledger({one["id"]: claims.judge(one) for one in records}, {"fc-one": recorded(**changes)}, {})
    found = re.search(rf'<tr id="ledger-{name}".*?</tr>', page, re.DOTALL)[0]
    head, _, verdict = found.partition('<td data-label="Verdict">')
    return head, *verdict.split("<details>")


def test_a_claim_has_one_verdict_that_of_the_largest_profile_with_where_it_comes_from(files):
    files([claim(data=["mnist"]), claim(id="fc-two", about="Another")])
    head, seen, folded = row(record(BAD, profile="night"), dataset="mnist")
    assert 'data-verdict="reproduced"' in head and "It is so" in head and "ledger-fc-one" not in seen
    assert "⚠</span> this build: not reproduced</small>" in seen
    assert ">paper profile, 2026-11-22, Card &lt;1&gt;; data: mnist</small>" in folded
    head, seen, folded = row(record(BAD, profile="paper"))
    assert 'data-verdict="not reproduced"' in head and "⚠" not in seen and "paper profile, this build" in folded
    head, seen, folded = row(record(dataset="digits"), outdated=["its code cells changed", "lib.search changed"])
    assert 'data-verdict="seen at reduced size"' in head and "seen at reduced size, on digits" in seen
    why = "⚠</span> reproduced in an outdated record of the paper profile, 2026-11-22: its code cells changed; lib.s"
    assert why in folded and "laptop profile, this build; data: digits" in folded
    head, seen, _ = row(record(), measured={}, reason="it takes a cluster")
    assert 'data-verdict="reproduced"' in head and "cluster" not in seen, "what was not run is no evidence"
    assert 'data-verdict="not run"' in row(name="fc-two")[0]


def test_what_is_not_the_headline_is_folded_and_what_is_ours_stands_apart(files):
    expect = {"a_1": {"below": 9, "headline": True}, **{f"{letter}_1": {"below": 9} for letter in "bcd"}}
    files([claim(expect={**expect, "e_1": {"below": 0, "ours": True}}, settings="ours")])
    values = dict.fromkeys([*expect, "e_1"], 1.23456)
    _, seen, folded = row(measured=values)
    assert "<small>a<sub>1</sub> = 1.23</small>" in seen and "<small>e<sub>1</sub> = 1.23</small>" in folded
    before, _, rest = table(values).partition("<details><summary>3 more quantities</summary>")
    folded, _, ours = rest.partition("</details>")
    assert "a<sub>1</sub>" in before and "d<sub>1</sub>" in folded and "e<sub>1</sub>" in ours
    assert "reproduced, settings ours" in before and "not reproduced" not in before and "not met" in ours


def test_a_row_shows_what_decides_against_the_claim_before_its_headline(files):
    expect = {"good": {"below": 9, "headline": True}, "worse": {"below": 0, "printed": "< 0"}}
    files([claim(expect={**expect, "own": {"below": 0, "ours": True}})])
    _, seen, folded = row(measured=dict.fromkeys([*expect, "own"], 1))
    assert "<small>worse = 1; paper: &lt; 0</small>" in seen and "good" not in seen and "own" not in seen
    assert "good = 1" in folded and "own = 1" in folded
    _, seen, _ = row(measured={"good": 1, "worse": -1, "own": 1})
    assert "good = 1" in seen and "worse" not in seen


@pytest.mark.parametrize(
    ("expectation", "value", "expected"),
    [
        ({"below": 1e-14}, 5.551e-17, "exact to rounding"),
        ({"value": 2.0, "abs": 1e-9}, 2.0 - 4e-16, "exact to rounding"),
        ({"below": 1e-9}, 3.14159e-10, "3.14\u00a0×\u00a010⁻¹⁰"),
        ({"below": 0.1}, 5.551e-17, "5.55\u00a0×\u00a010⁻¹⁷"),
        ({"report": True}, 5.551e-17, "5.55\u00a0×\u00a010⁻¹⁷"),
        ({"rounds_to": "1.42214"}, 1.422143, "1.422143; paper: 1.42214"),
        ({"predicts": "0.61"}, [0.60123, 0.62345], "0.601 to 0.623; paper: 0.61"),
        ({"above": 0}, 1234.56, "1235"),
    ],
)
def test_the_ledger_rounds_to_what_a_reader_can_use(files, expectation, value, expected):
    files([claim(expect={"a": {**expectation, "headline": True}, "judged": {"below": 1}})])
    page = tables.ledger({"fc-one": claims.judge(record({"a": value, "judged": 0}))}, {}, {})
    assert f"<small>a = {expected}</small>" in page


PAGE = """# Theorems

:::{prf:theorem} One
:label: thm-one

It is so.
:::

(sec-two)=
## Two

(fold-three)=
In a fold.
"""


def test_a_statement_leads_to_its_check_and_the_ledger_to_the_statement(files):
    two = claim(id="fc-two", stated="sec-two")
    files([claim(stated="thm-one sec-two"), two, claim(id="fc-three", stated="fold-three")])
    found = tables.places({"part/one": PAGE})
    assert found == {label: f"part/one.html#{label}" for label in ("thm-one", "sec-two", "fold-three")}
    assert '<a href="../part/one.html#thm-one">Theorem 1</a>' in tables.ledger({}, {}, found)
    shown = tables.measured_by(PAGE, {"fc-one": claims.judge(record())})
    first, second, third = re.findall(r'<p class="claim-note"><b>Checked</b>: (.*)</p>', shown)
    assert "theorems.html#claim-fc-one" in first and "ledger.html#ledger-fc-two" in second
    assert "ledger.html#ledger-fc-three" in third
    assert shown.index("It is so.\n\n\n<p") < shown.index(":::\n\n(sec-two)=") < shown.index("## Two\n\n<p")
    assert shown.endswith("</p>\n\n(fold-three)=\nIn a fold.\n")
    assert re.sub('\n\n<p class="claim-note">.*</p>\n\n', "", shown) == PAGE


def test_what_is_contradicted_beside_a_statement_is_the_version_of_the_paper(files):
    files([claim(stated="thm-one")])
    found = {"fc-one": claims.judge(record()) | {"verdict": "contradicted: another constant"}}
    assert "the paper’s version: another constant" in tables.measured_by(PAGE, found)
    assert "contradicted: another constant" in tables.linked_verdict("fc-one", found["fc-one"])


def test_every_claim_names_a_statement_that_a_chapter_tells():
    texts = {page.short: page.text for page in chapters()}
    stated = {label for entry in declarations.read().claims.values() for label in declarations.stated(entry)}
    assert set(tables.places(texts)) == stated
