import io
import os
import subprocess
import sys

import pytest

from plimsoll.report.progress import progress
from plimsoll.units import GIB
from report_examples import SOURCES

FACTS = {"loss": 3.21456, "rate": 38_095.2, "rate_unit": "tokens", "resident_bytes": 3 * GIB // 2}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_golden_lines_without_a_terminal(clock):
    stream = io.StringIO()
    shown = progress(1000, start_step=200, seconds_before=90.0, stream=stream, clock=clock)
    clock.now += 10
    shown.update(220, **FACTS)
    clock.now += 10
    shown.update(240, **FACTS, device_bytes=GIB)
    shown.message("saved step 240")
    clock.now += 380
    shown.update(1000, **FACTS)
    shown.close()
    assert stream.getvalue().splitlines() == [
        "step  220/1000  loss 3.2146  38,095 tokens/s  resident 1.5 GiB  elapsed 1.7 min  left -",
        "step  240/1000  loss 3.2146  38,095 tokens/s  resident 1.5 GiB  device 1.0 GiB  "
        "elapsed 1.8 min  left 6.3 min",  # 760 steps at 0.5 s
        "saved step 240",
        "step 1000/1000  loss 3.2146  38,095 tokens/s  resident 1.5 GiB  elapsed 8.2 min  left 0 ms",
    ]


def test_a_loss_that_is_not_a_number_is_shown(clock):
    stream = io.StringIO()
    progress(10, stream=stream, clock=clock).update(1, **FACTS | {"loss": float("nan")})
    assert "loss nan" in stream.getvalue()


def test_quiet_shows_only_what_is_important():
    stream = io.StringIO()
    shown = progress(10, quiet=True, stream=stream)
    shown.update(1, **FACTS)
    shown.message("saved step 1")
    shown.message("stopped: the loss is NaN at step 2", important=True)
    shown.close()
    assert stream.getvalue() == "stopped: the loss is NaN at step 2\n"


def test_a_terminal_gets_a_bar_with_every_number(terminal, clock):
    shown = progress(1000, start_step=200, stream=terminal, clock=clock)
    for step in (220, 240):
        clock.now += 10
        shown.update(step, **FACTS)
    shown.message("saved [step] 240")
    shown.close()
    text = terminal.getvalue()
    last = text.split("\r")[-1]
    for words in ("240/1000", "loss 3.2146", "38,095 tokens/s", "resident 1.5 GiB", "20.0 s + 6.3 min left"):
        assert words in last
    assert "saved [step] 240\n" in text  # brackets are not markup
    assert text.endswith("\x1b[?25h")  # the cursor is back


def test_a_narrow_terminal_keeps_the_steps_and_the_time_left(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = progress(20_000, stream=terminal, clock=clock)
    for step in (100, 200):
        clock.now += 10
        shown.update(step, **FACTS)
    shown.close()
    last = terminal.getvalue().split("\r")[-1]
    assert "200/20000" in last
    assert "33.0 min left" in last  # 19,800 steps at 0.1 s
    assert "1.5 GiB" in last


def test_a_bar_is_drawn_four_times_a_second_at_most(terminal, clock):
    shown = progress(1000, stream=terminal, clock=clock)
    shown.update(1, **FACTS)
    before = len(terminal.getvalue())
    for step in range(2, 100):
        clock.now += 0.001
        shown.update(step, **FACTS)
    assert len(terminal.getvalue()) == before
    clock.now += 0.25
    shown.update(100, **FACTS)
    assert len(terminal.getvalue()) > before


def test_a_bar_starts_no_thread(terminal, clock):
    import threading

    before = threading.active_count()
    shown = progress(10, stream=terminal, clock=clock)
    shown.update(1, **FACTS)
    assert threading.active_count() == before
    shown.close()


def test_a_terminal_without_cursor_movement_gets_lines(terminal, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    progress(10, stream=terminal, clock=clock).update(1, **FACTS)
    assert terminal.getvalue().startswith("step  1/10  ")


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error")])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_that_goes_away_does_not_stop_the_run(error, is_terminal, clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    class Gone(io.StringIO):
        def isatty(self):
            return is_terminal

        def write(self, _):
            raise error

        def flush(self):
            raise error

    shown = progress(10, stream=Gone(), clock=clock)
    shown.update(1, **FACTS)
    shown.message("saved")
    shown.close()


def test_without_a_terminal_rich_is_not_imported():
    code = (
        "import io, sys; from plimsoll.report.progress import progress;"
        "shown = progress(10, stream=io.StringIO());"
        "shown.update(1, loss=1.0, rate=1.0, rate_unit='tokens', resident_bytes=1); shown.close();"
        "sys.exit('rich' in sys.modules or 'jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SOURCES}).returncode == 0


def test_a_process_without_standard_error_trains_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    shown = progress(10)
    shown.update(1, **FACTS)
    shown.message("stopped", important=True)
    shown.close()
