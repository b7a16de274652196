import pytest

from guided_collapse.experiments.records.text import aligned, short_commit

HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("commit", "shown"),
    [(HASH, "0123456"), (f"{HASH}+", "0123456+"), ("0123abc", "0123abc"), ("a tag", "a tag"), (HASH + "89", HASH + "89")],
)
def test_a_commit_is_shown_in_seven_digits(commit, shown):
    assert short_commit(commit) == shown


def test_cells_stand_under_each_other_and_lines_end_with_their_last():
    assert aligned([("head", "acc"), ("fixed-etf", "9"), ("a", "")]) == ["head   acc", "fixed  9", "a"]
    assert aligned([]) == []
