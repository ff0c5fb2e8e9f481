"""A chapter's settings stand in one form: the profiles say which column counts."""

import pytest

from lib.book.kernel.profiles import PROFILES, pick


def test_a_profile_picks_its_column_and_night_the_papers_where_it_has_none():
    assert [pick({"K": (1000, 100, 3)}, profile)["K"] for profile in PROFILES] == [3, 100, 1000, 1000]
    assert [pick({"K": (1000, 500, 100, 3)}, profile)["K"] for profile in PROFILES] == [3, 100, 500, 1000]


@pytest.mark.parametrize(("row", "profile", "named"), [((1, 2), "smoke", "K"), ((1, 2, 3), "lptop", "profile")])
def test_a_row_of_another_length_and_an_unknown_profile_are_refused(row, profile, named):
    with pytest.raises(ValueError, match=named):
        pick({"K": row}, profile)
