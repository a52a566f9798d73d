"""What is printed for whoever waits, by a clock that is the test's."""

import pytest

from plimsoll.data import progress
from plimsoll.data.progress import Spoken


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


def test_a_line_every_two_seconds_says_how_much_is_done_and_how_long_the_rest_takes(said, monkeypatch):
    """From 20 % on: 20 % in 10 s leave 30 s for 60 %."""
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    spoken = Spoken()
    assert said(1.9, spoken, None, "begun") == ""
    assert said(2.0, spoken, None, "begun") == "  begun\n"
    assert said(10.0, spoken, 0.2, "on") == "  on  20%\n"
    assert said(11.9, spoken, 0.3, "on") == ""
    assert said(20.0, spoken, 0.4, "on") == "  on  40%  left 30.0 s\n"
    assert said(30.0, spoken, 0.2, "on") == "  on  20%\n"
    assert said(40.0, spoken, None, "on") == "  on\n"
