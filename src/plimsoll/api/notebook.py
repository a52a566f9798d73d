"""Plans and training in a notebook: a plan is shown as a picture, training as a progress bar.

Training is a process of its own there, too. The notebook's kernel reads the rows of its metrics and draws the bar.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Planned
from plimsoll.report.progress import BY_PARENT, PROGRESS_VARIABLE, Progress


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownPlan(Planned):
    """A plan that a prompt shows as a table, and a notebook as HTML, when it is the last value of a cell."""

    def _repr_html_(self) -> str:
        from plimsoll.report.page.plans import plan_in_notebook

        return plan_in_notebook(self)

    def __str__(self) -> str:
        from plimsoll.report.tables import plan_table

        return plan_table(self)

    __repr__ = __str__


def is_here() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class Bar:
    """Bar of a training process, which a kernel draws from the rows that the process appends to its metrics."""

    VARIABLES: ClassVar[Mapping[str, str]] = {PROGRESS_VARIABLE: BY_PARENT}
    """Variables of the training process."""

    def __init__(self, folder: RunFolder, *, max_steps: int | None, quiet: bool) -> None:
        self._folder = folder
        self._max_steps = max_steps
        self._quiet = quiet
        self._progress: Progress | None = None

    def show(self, row: Mapping[str, Any]) -> None:
        """Draws a row of metrics; not one of an evaluation."""
        if "step_seconds" not in row:
            return
        if self._progress is None:
            steps = self._folder.read("data.json")["steps"]
            total = min(steps, self._max_steps or steps)
            self._progress = Progress(total, quiet=self._quiet, in_notebook=True)
        self._progress.update(row["step"], row)

    def message(self, line: str) -> None:
        """Prints a line of the training process below the cell."""
        print(line.rstrip("\n"), flush=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
