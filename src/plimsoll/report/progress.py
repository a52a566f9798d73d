"""What a run shows while it works: a bar on a terminal, lines elsewhere, nothing with `quiet`.

    shown = progress(recipe.steps, start_step=200)
    shown.update(220, loss=3.2, rate=38_095, rate_unit="tokens", resident_bytes=1_288_490_189)
    shown.message("saved step 220")
    shown.close()

`rich` is imported only for a bar: with it 4.3 MiB of resident memory, which a run without a terminal keeps.
The bar is drawn by `update` itself, four times a second at most. No thread runs, so between two updates the
clock on it stands still. It goes to standard error, so that `--json` has standard output to itself.

A terminal that goes away (a closed window, a broken pipe) ends the showing, not the training: `log.txt` and
`metrics.jsonl` hold everything.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from plimsoll.report.layout import UNKNOWN, format_rate
from plimsoll.units import format_bytes, format_seconds

TOLD, TOLD_AS_JSON = "PLIMSOLL_PROGRESS", "json"
"""The environment variable, and its value, that make a run tell what it does to a program that shows it."""
REFRESH_SECONDS = 0.25
NARROW = 100  # columns


class Progress(Protocol):
    def update(
        self,
        step: int,
        *,
        loss: float,
        rate: float,
        rate_unit: str,
        resident_bytes: int,
        device_bytes: int | None = None,
    ) -> None:
        """`step` steps are done; `rate` is per second, `rate_unit` is `tokens` or `examples`."""
        ...

    def message(self, text: str, *, important: bool = False) -> None:
        """A line above the bar; `important` ones are shown even with `quiet`."""
        ...

    def close(self) -> None: ...


def progress(
    total_steps: int,
    *,
    start_step: int = 0,
    quiet: bool = False,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    stream = stream or sys.stderr
    if stream is None:  # Python was started with standard error closed: nobody is looking
        return _Quiet(None)
    if quiet:
        return _Quiet(stream)
    pace = _Pace(total_steps, start_step=start_step, clock=clock)
    if os.environ.get(TOLD) == TOLD_AS_JSON:
        return _Told(stream, pace)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return _Bar(stream, pace)
    return _Lines(stream, pace)


class _Pace:
    """Elapsed time and time left of this process; the steps of an earlier one say nothing about its speed."""

    def __init__(self, total_steps: int, *, start_step: int, clock: Callable[[], float]) -> None:
        self.total_steps, self.start_step = total_steps, start_step
        self.clock = clock
        self._start = clock()
        self._first: tuple[int, float] | None = None

    def at(self, step: int) -> tuple[float, float | None]:
        """Seconds since the start, and seconds left, or None while nobody can know.

        Counted from the first update on, because the first steps also load and warm up. Evaluations
        and saves between updates are in it, and so in the time left.
        """
        now = self.clock()
        if self._first is None or step < self._first[0]:
            self._first = (step, now)
        first_step, first_time = self._first
        if step >= self.total_steps:
            return now - self._start, 0.0
        if step == first_step:
            return now - self._start, None
        return now - self._start, (now - first_time) / (step - first_step) * (self.total_steps - step)


def _fields(loss: float, rate: float, rate_unit: str, resident_bytes: int, device_bytes: int | None) -> list[str]:
    device = [] if device_bytes is None else [f"device {format_bytes(device_bytes)}"]
    return [
        f"loss {loss:.4f}",
        format_rate(rate, rate_unit),
        f"resident {format_bytes(resident_bytes)}",
        *device,
    ]


def _left(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else format_seconds(seconds)


class _Writer:
    """Writes lines until the stream refuses."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._gone = stream is None

    def line(self, text: str) -> None:
        self.do(lambda: print(text, file=self._stream, flush=True))

    def do(self, show: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            show()
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._gone = True


class _Quiet:
    def __init__(self, stream: TextIO | None) -> None:
        self._writer = _Writer(stream)

    def update(self, step: int, **_: object) -> None:
        pass

    def message(self, text: str, *, important: bool = False) -> None:
        if important:
            self._writer.line(text)

    def close(self) -> None:
        pass


class _Lines:
    """A line per update: the caller decides how often that is (`--log-every`)."""

    def __init__(self, stream: TextIO, pace: _Pace) -> None:
        self._writer, self._pace = _Writer(stream), pace

    def update(
        self,
        step: int,
        *,
        loss: float,
        rate: float,
        rate_unit: str,
        resident_bytes: int,
        device_bytes: int | None = None,
    ) -> None:
        elapsed, left = self._pace.at(step)
        facts = _fields(loss, rate, rate_unit, resident_bytes, device_bytes)
        times = [f"elapsed {format_seconds(elapsed)}", f"left {_left(left)}"]
        self._step(step, self._pace.total_steps, "  ".join([*facts, *times]))

    def _step(self, step: int, total: int, facts: str) -> None:
        self._writer.line(f"step {step:>{len(str(total))}}/{total}  {facts}")

    def message(self, text: str, *, important: bool = False) -> None:
        self._writer.line(text)

    def close(self) -> None:
        pass


class _Told(_Lines):
    """A line of JSON per update and message, for a program that draws them: a notebook."""

    def _step(self, step: int, total: int, facts: str) -> None:
        self._tell({"step": step, "total": total, "facts": facts})

    def message(self, text: str, *, important: bool = False) -> None:
        self._tell({"message": text})

    def _tell(self, what: dict[str, object]) -> None:
        self._writer.line(json.dumps({TOLD: what}))


class _Bar:
    def __init__(self, stream: TextIO, pace: _Pace) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        self._writer, self._pace = _Writer(stream), pace

        class PatientConsole(Console):
            def on_broken_pipe(self) -> None:
                raise  # rich would exit the process here; the writer below catches the error instead

        self._console = PatientConsole(file=stream, highlight=False)
        self._bar = RichProgress(
            # In a narrow window the bar shrinks first, then the facts; never the number of steps.
            MofNCompleteColumn(table_column=Column(min_width=2 * len(str(pace.total_steps)) + 1)),
            BarColumn(bar_width=4 if self._console.width < NARROW else None),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            auto_refresh=False,  # no thread
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=pace.total_steps, completed=pace.start_step, facts="")
        self._drawn_at = float("-inf")
        self._writer.do(self._bar.start)

    def update(
        self,
        step: int,
        *,
        loss: float,
        rate: float,
        rate_unit: str,
        resident_bytes: int,
        device_bytes: int | None = None,
    ) -> None:
        elapsed, left = self._pace.at(step)
        facts = [
            *_fields(loss, rate, rate_unit, resident_bytes, device_bytes),
            f"{format_seconds(elapsed)} + {_left(left)} left",
        ]
        if self._console.width < NARROW:
            facts = [fact.removeprefix("resident ") for fact in facts]
        self._bar.update(self._task, completed=step, facts="  ".join(facts))
        now = self._pace.clock()
        if now - self._drawn_at >= REFRESH_SECONDS or step >= self._pace.total_steps:
            self._drawn_at = now
            self._writer.do(self._bar.refresh)

    def message(self, text: str, *, important: bool = False) -> None:
        self._writer.do(lambda: self._console.print(text, markup=False, soft_wrap=True))

    def close(self) -> None:
        """Draws the last state and gives the cursor back, which the bar hides."""
        self._writer.do(self._bar.stop)
