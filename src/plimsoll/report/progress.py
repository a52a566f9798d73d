"""Progress output of training: a bar on a terminal, lines elsewhere, only important messages with `quiet`.

    shown = Progress(recipe.steps, start_step=200)
    shown.update(220, {"loss": 3.2, "tokens_per_second": 38_095, "resident_bytes": 1_288_490_189, "elapsed_seconds": 9})
    shown.message("saved step 220")
    shown.close()

`tqdm` draws the bar, at most four times a second and without a thread. It is imported only for a bar. Output goes to
standard error, because standard output has the result of `--json`.

If the terminal is closed or the pipe breaks, training continues without progress output. `log.txt` and `metrics.jsonl`
have all messages and metrics.
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import islice
from typing import Any, TextIO

from plimsoll.report.layout import UNKNOWN, format_rate
from plimsoll.units import format_bytes, format_seconds

REFRESH_SECONDS = 0.25
"""Seconds between two drawings of the bar."""
OWN_SHOWN = 3
"""Largest number of recipe-specific metrics in a line of progress."""


class Progress:
    """Progress output as a bar, or as a line per update. The caller decides how often to update (`--log-every`).

    Args:
        total_steps: Planned optimizer steps of the run.
        start_step: Steps that were completed before this process.
        quiet: True to print important messages only.
        stream: Output stream; standard error if left out.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        start_step: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self.total_steps = total_steps
        self.quiet = quiet
        self.stream = stream or sys.stderr  # None if Python was started with standard error closed
        self._first: tuple[int, float] | None = None
        self._bar: Any = None
        is_terminal = self.stream is not None and self.stream.isatty() and os.environ.get("TERM") != "dumb"
        if not quiet and is_terminal:
            tqdm = import_module("tqdm").tqdm
            tqdm.monitor_interval = 0  # no thread
            self._bar = tqdm(
                total=total_steps,
                initial=start_step,
                file=self.stream,
                bar_format="{n_fmt}/{total_fmt} {bar} {desc}",
                dynamic_ncols=True,
                mininterval=REFRESH_SECONDS,
                miniters=1,
                delay=1e-9,  # the bar appears with the first update
            )

    def update(self, step: int, row: Mapping[str, Any], *, own: Mapping[str, float] | None = None) -> None:
        """Shows completed steps, elapsed time of the run, estimated time left, and metrics.

        The estimate uses the speed since this process's first update, because the first steps also load and warm up. It
        includes evaluations and saves between updates.

        Args:
            step: Completed steps since the start of the run.
            row: Metrics of the step, as in `metrics.jsonl`.
            own: Metrics that only this recipe has. A line shows the first three, a bar none.
        """
        if self.quiet:
            return
        loss, *facts = _facts(row)
        elapsed, left = format_seconds(row["elapsed_seconds"]), self._left(step, row["elapsed_seconds"])
        if self._bar is None:
            metrics = [f"{name} {value:.4g}" for name, value in islice((own or {}).items(), OWN_SHOWN)]
            numbers = "  ".join([loss, *metrics, *facts, f"elapsed {elapsed}", f"left {left}"])
            self._try(self._print, f"step {step:>{len(str(self.total_steps))}}/{self.total_steps}  {numbers}")
            return

        # Keep the bar's text short enough for 80 columns.
        text = "  ".join([f"{elapsed} + {left} left", loss, *facts]).replace("resident ", "")
        self._bar.set_description_str(text, refresh=False)
        self._try(self._bar.update, step - self._bar.n)

    def _left(self, step: int, elapsed: float) -> str:
        """Returns the estimated time left as text; `UNKNOWN` at the first update."""
        if self._first is None or step < self._first[0]:
            self._first = (step, elapsed)
        first_step, first_elapsed = self._first
        if step == first_step:
            return UNKNOWN
        return format_seconds((elapsed - first_elapsed) / (step - first_step) * (self.total_steps - step))

    def message(self, text: str, *, important: bool = False) -> None:
        """Prints a message, above the bar if there is one. With `quiet` only important messages are printed."""
        if important or not self.quiet:
            self._try(self._print if self._bar is None else self._bar.write, text, file=self.stream)

    def _print(self, text: str, file: TextIO | None = None) -> None:
        print(text, file=self.stream, flush=True)

    def _try(self, show: Callable[..., object], *arguments: object, **options: object) -> None:
        """Calls an output function. If the stream fails, switches all further output off."""
        if self.stream is None:
            return
        try:
            show(*arguments, **options)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.stream = None
            if self._bar is not None:
                self._bar.disable = True

    def close(self) -> None:
        """Draws the last state of the bar, if there is one."""
        if self._bar is not None:
            self._try(self._bar.close)


def _facts(row: Mapping[str, Any]) -> list[str]:
    """Returns texts with the loss, tokens or examples per second, and memory, from a row of metrics."""
    loss = row.get("loss")
    facts = ["loss nan" if loss is None else f"loss {loss:.4f}"]
    for unit in ("tokens", "examples"):
        if rate := row.get(f"{unit}_per_second"):
            facts.append(format_rate(rate, unit))
    for kind in ("resident", "device"):
        if size := row.get(f"{kind}_bytes"):
            facts.append(f"{kind} {format_bytes(size)}")
    return facts
