"""The glossary of symbols: what it says is on the pages, and a formula names the symbols that are in it."""

import re
from collections import Counter

import pytest

from lib.book.folders import ROOT
from lib.book.site import symbols

ROWS = symbols.read()
PLACES = [(place, sign) for row in ROWS for place in row if place not in symbols.FIELDS for sign in row[place]]


def formulas(place):
    """The formulas of a page, or of all pages of a part, without braces and spaces."""
    pages = [ROOT / "chapters" / f"{place}.md"] if "/" in place else (ROOT / "chapters" / place).glob("*.md")
    for path in pages:
        text = re.sub(r"^```\{code-cell\}.*?^```", "", path.read_text("utf8"), flags=re.DOTALL | re.MULTILINE)
        for found in re.finditer(r"^```\{math\}(.*?)^```|\$\$(.+?)\$\$|\$(.+?)\$", text, re.DOTALL | re.MULTILINE):
            yield re.sub(r"[{}\s]", "", found[1] or found[2] or found[3])


@pytest.mark.parametrize(("place", "sign"), PLACES)
def test_every_symbol_stands_on_a_page_of_the_part_that_it_is_said_of(place, sign):
    plain = re.escape(re.sub(r"[{}\s]", "", sign))
    assert any(re.search(rf"(?<![A-Za-z\\]){plain}(?![_'])", formula) for formula in formulas(place))


def test_a_symbol_has_one_meaning_in_a_part_and_a_row_says_something_of_a_part():
    shown = []
    for row in ROWS:
        for place in row.keys() - symbols.FIELDS if row.get("hover", True) else ():
            shown += [(place, " ".join(symbols.signs(sign))) for sign in row[place]]
    assert [one for one, count in Counter(shown).items() if count > 1] == []
    assert all({place.partition("/")[0] for place in row} & set(symbols.PARTS) for row in ROWS)
    assert {place.partition("/")[0] for place, _ in PLACES} == set(symbols.PARTS)


FORMULAS = [
    (r"\sqrt{KL} = n_c^L", ["K", "n_c"]),
    (r"\mathbf{H}_1 W_{1} W_2 W_L", [r"\mathbf H_1", "W_l", "W_L"]),
    (r"\frac{\lambda_{W_1}}2 n_{\text{spl}}", [r"\lambda_{W_l}", r"n_{\text{spl}}"]),
    (r"\begin{aligned} K' + K_r + W_{L-1} + x_{KL} + \tilde K + \mathrm{K} \end{aligned}", []),
]


@pytest.mark.parametrize(("tex", "found"), FORMULAS)
def test_the_symbols_in_a_formula_are_whole_and_the_longest(tex, found):
    known = ["K", "n", "n_c", r"\mathbf H", r"\mathbf H_1", "W_L", "W_l", r"\lambda_{W_l}", r"n_{\text{spl}}"]
    assert list(symbols.used(tex, tuple(known))) == found


def test_a_symbol_says_what_it_is_here_and_what_stands_elsewhere():
    rows = [
        {"means": "classes", "feature-collapse": ["K"], "extended-ufm": ["K"], "memorization-dilation": ["N"]},
        {"means": "examples of a class", "memorization-dilation": ["K"]},
        {"means": "something else", "memorization-dilation/one": ["K"]},
        {"means": "weights", "low-rank-bias": ["W_l"], "extended-ufm": ["W_2"]},
    ]
    here = symbols.meanings(rows, "feature-collapse/theorems")
    assert list(here) == ["K"] and "<strong>classes</strong>" in here["K"]
    assert r"Part II: the same; Part III: \(N\) and \(K\) for examples of a class" in here["K"]
    assert "<strong>something else</strong>" in symbols.meanings(rows, "memorization-dilation/one")["K"]
    everywhere = symbols.meanings(rows, "synthesis/halves")["K"]
    assert "Part I, II: classes; Part III: examples of a class" in everywhere and "strong" not in everywhere
    assert "Part II, IV: weights" in symbols.meanings(rows, "synthesis/halves")["W_2"]
