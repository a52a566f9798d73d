"""Plans and training in a notebook: a plan is shown as a picture, training as one progress bar in one output.

Training is a process of its own there, too. It logs its progress as JSON (`report/progress.py`), and the notebook's
process draws it. IPython is only used in a process that has imported it already.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any, cast

from plimsoll.planned import Planned
from plimsoll.processes import supervise
from plimsoll.report.progress import AS_JSON, PROGRESS_VARIABLE

Show = Callable[[str], None]
"""Function that replaces the shown output by this HTML."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownPlan(Planned):
    """A plan that a prompt shows as a table, and a notebook as HTML, when it is the last value of a cell."""

    def _repr_html_(self) -> str:
        from plimsoll.report.page.plans import plan_in_notebook

        return plan_in_notebook(self.to_dict())

    def __str__(self) -> str:
        from plimsoll.report.tables import plan_table

        return plan_table(self)

    __repr__ = __str__


def is_here() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def output() -> Show:
    """Makes an output below the cell that runs, and returns the function that replaces it."""
    shown: Any = import_module("IPython.display")  # which is not installed where types are checked
    handle = shown.display(shown.HTML(""), display_id=True)
    return lambda html: handle.update(shown.HTML(html))


def watched(
    command: list[str],
    environment: Mapping[str, str],
    *,
    lock: int,
    show: Show,
    look: Callable[[], None] | None = None,
) -> int:
    """Runs the training process, draws its progress bar with the messages below it, and returns its exit code.

    An interrupt of the notebook is sent to the process, which then saves and ends. Nothing is shown of a process that
    prints nothing.

    Args:
        command: Program and arguments of the process.
        environment: Its variables.
        lock: File descriptor of the run's lock, which it inherits.
        show: Function that replaces the shown output.
        look: Function that is called again and again while it runs.
    """
    step, total, facts = 0, 0, ""
    messages: list[str] = []

    def line(text: str) -> None:
        nonlocal step, total, facts
        row = _logged(text)
        if "message" in row:
            messages.append(row["message"])
        else:
            step, total, facts = row["step"], row["total"], row["facts"]
        show(bar_html(step, total, facts, messages, ended=False))

    variables = {**environment, PROGRESS_VARIABLE: AS_JSON}
    code, _ = supervise.watched(command, variables, line=line, look=look, pass_fds=[lock])
    if total or messages:
        show(bar_html(step, total, facts, messages, ended=True))
    return code


def bar_html(step: int, total: int, facts: str, messages: list[str], *, ended: bool) -> str:
    """Returns the bar of a run with its last message below; once it has `ended`, all messages can be unfolded."""
    texts = [escape(message) for message in messages]
    bar = f'<progress value="{step}" max="{max(total, 1)}" style="width: 100%"></progress>'
    last = f"<p>step {step:,} of {total:,}  {escape(facts)}</p><pre>{''.join(texts[-1:])}</pre>"
    unfolded = "<details><summary>all that was said</summary><pre>" + "\n".join(texts) + "</pre></details>"
    return f"<div>{bar}{last}{unfolded if ended else ''}</div>"


def _logged(line: str) -> dict[str, Any]:
    """Returns what the training process has logged in a line. What others print is a message."""
    try:
        logged = json.loads(line)
    except ValueError:
        logged = None
    row: Any = cast(dict[str, Any], logged).get(PROGRESS_VARIABLE) if isinstance(logged, dict) else None
    return cast(dict[str, Any], row) if isinstance(row, dict) else {"message": line.rstrip("\n")}
