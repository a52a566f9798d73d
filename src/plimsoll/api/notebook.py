"""Plans and training in a notebook: a plan is shown as a picture, training as one progress bar in one output.

Training is a process of its own there, too. It logs its progress as JSON (`report/progress.py`), and the notebook's
process draws it. IPython is only used in a process that has imported it already.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

from plimsoll.planned import Planned
from plimsoll.report.progress import TOLD, TOLD_AS_JSON

Show = Callable[[str], None]
"""Function that replaces the shown output by this HTML."""


@dataclass(frozen=True, kw_only=True)
class ShownPlan(Planned):
    """A plan that a notebook shows as HTML when it is the last value of a cell."""

    def _repr_html_(self) -> str:
        from plimsoll.report.page.notebook import plan_html

        return plan_html(self.to_dict())

    def __str__(self) -> str:
        from plimsoll.report import plan_table

        return plan_table(self)

    @classmethod
    def of(cls, planned: Planned) -> ShownPlan:
        """Returns the same plan as a ShownPlan."""
        return cls(**{field.name: getattr(planned, field.name) for field in fields(planned)})


def is_here() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def output() -> Show:
    """Makes an output below the cell that runs, and returns the function that replaces it."""
    from IPython.display import HTML, display  # type: ignore[import-not-found]

    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))


def watched(command: list[str], environment: Mapping[str, str], *, lock: int, show: Show) -> int:
    """Runs the training process, draws its progress, and returns its exit code.

    An interrupt of the notebook is sent to the process, which then saves and ends.

    Args:
        command: Program and arguments of the process.
        environment: Its variables.
        lock: File descriptor of the run's lock, which it inherits.
        show: Function that replaces the shown output.
    """
    process = subprocess.Popen(
        command,
        env={**environment, TOLD: TOLD_AS_JSON},
        pass_fds=[lock],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    bar = _Bar(show)
    while True:
        try:
            bar.draw(process.stdout)
            return process.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)


class _Bar:
    """Progress bar with the messages below it, drawn again after every line of output."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._step, self._total, self._facts = 0, 0, ""
        self._messages: list[str] = []

    def draw(self, lines: Iterable[str]) -> None:
        """Draws the output of the training process until it ends. What others print is shown as messages."""
        from plimsoll.report.page.notebook import bar_html

        for line in lines:
            try:
                logged = json.loads(line)
            except ValueError:
                logged = None
            row = logged.get(TOLD) if isinstance(logged, dict) else None
            if not isinstance(row, dict):
                self._messages.append(line.rstrip("\n"))
            elif "message" in row:
                self._messages.append(row["message"])
            else:
                self._step, self._total, self._facts = row["step"], row["total"], row["facts"]
            self._show(bar_html(self._step, self._total, self._facts, self._messages, ended=False))
        self._show(bar_html(self._step, self._total, self._facts, self._messages, ended=True))
