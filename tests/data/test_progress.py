"""What is printed for whoever waits, by a clock that is the test's."""

import pytest

from plimsoll.data import progress
from plimsoll.data.progress import Left, Spoken


@pytest.fixture
def said(monkeypatch, capsys):
    """Calls at a time in seconds; returns what is printed then."""

    def at(seconds, call, *arguments):
        monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
        call(*arguments)
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return at


def test_a_line_every_two_seconds_says_how_many_how_fast_and_how_long_it_takes(said):
    """It goes on from 1,000 of 9,000: 2,000 in 2 s leave 6 s for 6,000, and 4,000 in 5 s 5 s for 4,000."""
    spoken = Spoken("rows")
    assert said(100.0, spoken, 1_000, 9_000) == ""
    assert said(101.9, spoken, 2_900, 9_000) == ""
    assert said(102.0, spoken, 3_000, 9_000) == "  3,000 of 9,000 rows  1,000/s  left 6.0 s\n"
    assert said(103.9, spoken, 4_900, 9_000) == ""
    assert said(105.0, spoken, 5_000, 9_000) == "  5,000 of 9,000 rows  800/s  left 5.0 s\n"
    resting = Spoken("rows")
    said(0.0, resting, 5, 10)
    assert said(2.0, resting, 5, 10) == "  5 of 10 rows  0/s\n"


def test_the_time_left_is_of_the_share_that_is_done_since_the_first_call(said):
    """From 20 % on: 20 % in 10 s leave 30 s for 60 %."""
    left = Left()
    assert said(0.0, left, None, "begun") == "  begun\n"
    assert said(10.0, left, 0.2, "on") == "  on  20%\n"
    assert said(20.0, left, 0.4, "on") == "  on  40%  left 30.0 s\n"
    assert said(30.0, left, 0.2, "on") == "  on  20%\n"
    assert said(30.0, left, None, "on") == "  on\n"
