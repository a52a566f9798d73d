"""In a notebook a plan shows itself, and training shows a bar: one output that changes, not a line per step.

Part of the joint. Training is a process of its own there too; it tells what it does as JSON (`report/progress.py`),
and the notebook's process draws it. IPython is used where it runs already, and never imported otherwise.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from plimsoll.planned import Planned
from plimsoll.report.progress import TOLD, TOLD_AS_JSON

Show = Callable[[str], None]
"""Replaces what is shown by this HTML."""


@dataclass(frozen=True, kw_only=True)
class ShownPlan(Planned):
    """A plan, as a notebook's last line shows it."""

    def _repr_html_(self) -> str:
        from plimsoll.report.page.notebook import plan_html

        return plan_html(self.to_dict())

    def __str__(self) -> str:
        from plimsoll.report import plan_table

        return plan_table(self)

    @classmethod
    def of(cls, planned: Planned) -> ShownPlan:
        return cls(**{field.name: getattr(planned, field.name) for field in fields(planned)})


def is_here() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def output() -> Show:
    """Of the cell that runs."""
    from IPython.display import HTML, display  # type: ignore[import-not-found]

    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))


def watched(command: list[str], environment: Mapping[str, str], *, lock: int, show: Show) -> int:
    """Runs the training process, and draws what it tells; its exit code.

    The notebook's interrupt becomes that of the process, which then saves and ends.
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
    def __init__(self, show: Show) -> None:
        self._show = show
        self._step, self._total, self._facts = 0, 0, ""
        self._messages: list[str] = []

    def draw(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._take(line.rstrip("\n"))
            self._shown()
        self._shown(ended=True)

    def _take(self, line: str) -> None:
        told = _told(line)
        if told is None:
            self._messages.append(line)
        elif "message" in told:
            self._messages.append(told["message"])
        else:
            self._step, self._total, self._facts = told["step"], told["total"], told["facts"]

    def _shown(self, *, ended: bool = False) -> None:
        from plimsoll.report.page.notebook import bar_html

        self._show(bar_html(self._step, self._total, self._facts, self._messages, ended=ended))


def _told(line: str) -> dict[str, Any] | None:
    """None of a line that somebody else has printed."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found[TOLD] if isinstance(found, dict) and isinstance(found.get(TOLD), dict) else None
