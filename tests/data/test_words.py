"""What options of a source may be, and how an error is told on one line."""

import pytest

from plimsoll.data import in_short, read_json, require_sizes
from plimsoll.errors import DataError, RecipeError


def test_sizes_are_one_or_more_and_some_may_be_zero():
    require_sizes(seq_len=1, batch_size=None)
    require_sizes(least=0, prefetch=0, seed=0)
    for name, value, least in [("seq_len", 0, 1), ("batch_size", -1, 1), ("prefetch", -1, 0), ("seed", -2, 0)]:
        with pytest.raises(RecipeError, match=f"--{name.replace('_', '-')} must be {least} or more, got {value}"):
            require_sizes(least=least, **{name: value})


def test_a_long_error_is_cut_after_200_characters_and_lines_become_one():
    assert in_short(ValueError("a\n  b")) == "a b"
    assert in_short(ValueError("a"), kind=True) == "ValueError: a"
    assert in_short(ValueError("x" * 200)) == "x" * 200
    assert in_short(ValueError("x" * 201)) == "x" * 200 + "..."


def test_json_that_is_absent_or_damaged_is_told_in_the_callers_words(tmp_path):
    with pytest.raises(DataError, match=r"^nothing there$"):
        read_json(tmp_path / "x", absent="nothing there", again="Again.")
    (tmp_path / "x").write_text("{")
    with pytest.raises(DataError, match=r"x cannot be read as JSON \(.*\)\. Again\."):
        read_json(tmp_path / "x", absent="nothing there", again="Again.")
    (tmp_path / "x").write_text("[1]")
    assert read_json(tmp_path / "x", absent="", again="") == [1]
