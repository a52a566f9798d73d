import contextlib
import io
import os
import re
import sys
import termios
import threading

import pytest

from plimsoll.report.progress import Progress
from plimsoll.units import GIB


def row(elapsed=0.0, **changed):
    facts = {"loss": 3.21456, "tokens_per_second": 38_095.2, "resident_bytes": 3 * GIB // 2}
    return facts | {"elapsed_seconds": elapsed} | changed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def test_golden_lines_without_a_terminal():
    stream = io.StringIO()
    shown = Progress(1000, start_step=200, stream=stream)
    shown.update(220, row(100.0))
    shown.update(240, row(110.0, device_bytes=GIB))
    shown.message("saved step 240")
    shown.update(1000, row(490.0))
    shown.close()
    assert stream.getvalue().splitlines() == [
        "step  220/1000  loss 3.2146  38,095 tokens/s  resident 1.5 GiB  elapsed 1.7 min  left -",
        "step  240/1000  loss 3.2146  38,095 tokens/s  resident 1.5 GiB  device 1.0 GiB  "
        "elapsed 1.8 min  left 6.3 min",  # 760 steps at 0.5 s
        "saved step 240",
        "step 1000/1000  loss 3.2146  38,095 tokens/s  resident 1.5 GiB  elapsed 8.2 min  left 0 ms",
    ]


def test_quiet_shows_only_what_is_important(terminal):
    shown = Progress(10, quiet=True, stream=terminal)
    shown.update(1, row())
    shown.message("saved step 1")
    shown.message("stopped: the loss is NaN at step 2", important=True)
    shown.close()
    assert terminal.getvalue() == "stopped: the loss is NaN at step 2\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_a_bar_with_every_number(columns, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, columns))
    with os.fdopen(slave, "w") as stream:
        shown = Progress(20_000, start_step=50, stream=stream)
        for step in (100, 200):
            shown.update(step, row(step / 10))
        shown.message("saved [step] 200")
        shown.close()
    text = ""
    with contextlib.suppress(OSError):  # its other end is closed
        while chunk := os.read(master, 2**16):
            text += chunk.decode()
    os.close(master)
    lines = [line for line in re.split("[\r\n]+", text) if line.strip()]
    assert max(map(len, lines)) <= columns
    for words in ("200/20000", "loss 3.2146", "38,095 tokens/s", "1.5 GiB", "20.0 s + 33.0 min left"):  # at 0.1 s
        assert words in lines[-1]
    assert "saved [step] 200" in lines


def test_a_bar_is_drawn_four_times_a_second_at_most_and_starts_no_thread(terminal):
    before = threading.active_count()
    shown = Progress(1000, stream=terminal)
    shown.update(1, row())
    written = len(terminal.getvalue())
    for step in range(2, 100):
        shown.update(step, row())
    assert len(terminal.getvalue()) == written
    assert threading.active_count() == before
    shown.close()


@pytest.mark.parametrize(("error", "is_terminal"), [(BrokenPipeError(), False), (OSError(5, "I/O error"), True)])
def test_a_terminal_that_goes_away_does_not_stop_the_run(error, is_terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    class Gone(io.StringIO):
        def isatty(self):
            return is_terminal

        def write(self, _):
            raise error

        def flush(self):
            raise error

    shown = Progress(10, stream=Gone())
    shown.update(1, row())
    shown.message("saved")
    shown.close()


def test_a_process_without_standard_error_trains_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    shown = Progress(10)
    shown.update(1, row())
    shown.message("stopped", important=True)
    shown.close()
