"""Progress of a run while it trains: a bar on a terminal, lines elsewhere, JSON for a notebook, nothing with `quiet`.

    shown = progress(recipe.steps, start_step=200)
    shown.update(220, loss=3.2, rate=38_095, rate_unit="tokens", resident_bytes=1_288_490_189)
    shown.message("saved step 220")
    shown.close()

`rich` is imported only for a bar: it takes 4.3 MiB of resident memory, which a run without a terminal saves.
`update` itself redraws the bar, at most four times a second. No thread runs, so between two updates its clock
stands still. It goes to standard error, so that `--json` has standard output to itself.

If the terminal goes away (a closed window, a broken pipe), progress is no longer shown, and training continues:
`log.txt` and `metrics.jsonl` hold everything.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from plimsoll.report.layout import UNKNOWN, format_rate
from plimsoll.units import format_bytes, format_seconds

PROGRESS_VARIABLE, AS_JSON = "PLIMSOLL_PROGRESS", "json"
"""Environment variable, and its value, that make a run report its progress as JSON, for a program that draws it."""
REFRESH_SECONDS = 0.25
NARROW = 100
"""Columns of a terminal below which the bar is shortened."""


def progress(
    total_steps: int,
    *,
    start_step: int = 0,
    seconds_before: float = 0.0,
    quiet: bool = False,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> "Progress":
    """Returns the kind of progress that suits the stream (default: standard error) and the environment.

    Args:
        total_steps: Steps of the whole run.
        start_step: Steps that earlier processes took.
        seconds_before: Seconds that they took.
        quiet: Shows important messages only.
        stream: Where it is written.
        clock: Seconds since any moment.
    """
    stream = stream or sys.stderr  # None if Python was started with standard error closed: nobody is looking
    as_json = os.environ.get(PROGRESS_VARIABLE) == AS_JSON
    if stream is None or quiet or as_json or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return Progress(
            stream,
            total_steps,
            clock=clock,
            seconds_before=seconds_before,
            quiet=quiet,
            as_json=as_json and not quiet,
        )
    return _Bar(stream, total_steps, clock=clock, start_step=start_step, seconds_before=seconds_before)


class Progress:
    """Progress as a line per update and message: of text, or of JSON for a program that draws it (a notebook).

    The caller decides how often that is (`--log-every`). With `quiet`, only important messages are shown.
    """

    def __init__(
        self,
        stream: TextIO | None,
        total_steps: int,
        *,
        clock: Callable[[], float],
        seconds_before: float,
        quiet: bool = False,
        as_json: bool = False,
    ) -> None:
        self.stream, self.total_steps, self.clock = stream, total_steps, clock
        self.quiet, self.as_json = quiet, as_json
        self._start = clock() - seconds_before
        self._first: tuple[int, float] | None = None

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
        """Shows that `step` steps are done, with the time that the run has taken, in all its processes, and is to take.

        The time left is counted from the first update on, because the first steps also load and warm up. Evaluations
        and saves between updates are included, and so are part of it. Steps of an earlier process are not counted.

        Args:
            step: Steps since the start of the run.
            loss: Training loss of that step.
            rate: `rate_unit` per second.
            rate_unit: `tokens` or `examples`.
            resident_bytes: Resident memory of this process.
            device_bytes: Memory in use on one accelerator, if there is one.
        """
        facts = [f"loss {loss:.4f}", format_rate(rate, rate_unit), f"resident {format_bytes(resident_bytes)}"]
        if device_bytes is not None:
            facts.append(f"device {format_bytes(device_bytes)}")
        now = self.clock()
        if self._first is None or step < self._first[0]:
            self._first = (step, now)
        first_step, first_time = self._first
        left = UNKNOWN
        if step >= self.total_steps:
            left = format_seconds(0.0)
        elif step > first_step:
            left = format_seconds((now - first_time) / (step - first_step) * (self.total_steps - step))
        self._show(step, facts, format_seconds(now - self._start), left)

    def _show(self, step: int, facts: list[str], elapsed: str, left: str) -> None:
        numbers = "  ".join([*facts, f"elapsed {elapsed}", f"left {left}"])
        text = f"step {step:>{len(str(self.total_steps))}}/{self.total_steps}  {numbers}"
        self._print(text, {"step": step, "total": self.total_steps, "facts": numbers}, important=False)

    def message(self, text: str, *, important: bool = False) -> None:
        """Prints a line, above the bar if there is one; with `quiet` only if it is `important`."""
        self._print(text, {"message": text}, important=important)

    def _print(self, text: str, values: dict[str, object], *, important: bool) -> None:
        if important or not self.quiet:
            line = json.dumps({PROGRESS_VARIABLE: values}) if self.as_json else text
            self._try(print, line, file=self.stream, flush=True)

    def _try(self, show: Callable[..., object], *arguments: object, **options: object) -> None:
        """Calls `show` until the stream refuses once."""
        if self.stream is None:
            return
        try:
            show(*arguments, **options)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.stream = None

    def close(self) -> None:
        """Ends the bar, if there is one."""


class _Bar(Progress):
    """Progress as one bar of a terminal, which is redrawn."""

    def __init__(
        self,
        stream: TextIO,
        total_steps: int,
        *,
        clock: Callable[[], float],
        start_step: int,
        seconds_before: float,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        super().__init__(stream, total_steps, clock=clock, seconds_before=seconds_before)

        class PatientConsole(Console):
            def on_broken_pipe(self) -> None:
                raise  # rich would exit the process here; `_try` catches the error instead

        self._console = PatientConsole(file=stream, highlight=False)
        self._bar = RichProgress(
            # In a narrow window the bar shrinks first, then the facts; never the number of steps.
            MofNCompleteColumn(table_column=Column(min_width=2 * len(str(total_steps)) + 1)),
            BarColumn(bar_width=4 if self._console.width < NARROW else None),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            auto_refresh=False,  # no thread
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=total_steps, completed=start_step, facts="")
        self._drawn_at = float("-inf")
        self._try(self._bar.start)

    def _show(self, step: int, facts: list[str], elapsed: str, left: str) -> None:
        facts = [*facts, f"{elapsed} + {left} left"]
        if self._console.width < NARROW:
            facts = [fact.removeprefix("resident ") for fact in facts]
        self._bar.update(self._task, completed=step, facts="  ".join(facts))
        now = self.clock()
        if now - self._drawn_at >= REFRESH_SECONDS or step >= self.total_steps:
            self._drawn_at = now
            self._try(self._bar.refresh)

    def message(self, text: str, *, important: bool = False) -> None:
        self._try(self._console.print, text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Draws the last state and shows the cursor again, which the bar hides."""
        self._try(self._bar.stop)
