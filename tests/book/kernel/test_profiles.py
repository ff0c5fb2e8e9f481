"""A chapter's settings stand in one form: the profiles say which column counts."""

import pytest

from lib.book.kernel.profiles import PROFILES, pick


def test_a_profile_picks_the_column_of_its_name_or_of_the_next_larger_profile():
    three = {"profile": "paper laptop smoke", "K": (1000, 100, 3)}
    assert [pick(three, profile) for profile in PROFILES] == [{"K": 3}, {"K": 100}, {"K": 1000}, {"K": 1000}]
    four = {"profile": "smoke paper night laptop", "K": (3, 1000, 500, 100)}
    assert [pick(four, profile)["K"] for profile in PROFILES] == [3, 100, 500, 1000]


@pytest.mark.parametrize(
    ("table", "profile", "named"),
    [
        ({"profile": "paper laptop smoke", "K": (1, 2)}, "smoke", "'K'.*paper, laptop, smoke"),
        ({"profile": "paper laptop smoke", "K": (1, 2, 3)}, "lptop", "profile = 'lptop'"),
        ({"profile": "paper lptop smoke", "K": (1, 2, 3)}, "smoke", "lptop"),
        ({"K": (1, 2, 3)}, "smoke", "columns"),
    ],
)
def test_a_row_of_another_length_an_unknown_profile_and_columns_without_names_are_refused(table, profile, named):
    with pytest.raises(ValueError, match=named):
        pick(table, profile)
