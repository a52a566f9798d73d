"""Writes the page of a run, of several side by side, or of a plan that was never run: `plimsoll report`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from plimsoll.errors import PlimsollError, as_written
from plimsoll.files.bucket import fetched, is_address
from plimsoll.files.provenance import version
from plimsoll.report.palette import SERIES

Place = str | os.PathLike[str]
SUFFIXES = (".html", ".htm")


def write(
    runs: Sequence[str] = (),
    *,
    out: Place | None = None,
    plan: Place | None = None,
    model: bool = True,
    closed_loop: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Writes the page and returns its path.

    Args:
        runs: Folder or address of a run; of several, which are compared.
        out: File of the page; by default report.html in the folder of the run, of several runs, of one in a bucket or
            of a plan in the current folder.
        plan: A plan that was never run: a file from `plimsoll plan ... --json`, or a run's plan.json.
        model: Whether to ask the trained model what it makes, in a process of its own, within the budget of the run.
        closed_loop: Whether a control model is to drive its systems, which takes minutes.
        say: Function that is called before something that takes time.

    Raises:
        PlimsollError: There is nothing to show, or the page cannot be written.
    """
    from plimsoll.api import run_report
    from plimsoll.report.page.compared import comparison_page
    from plimsoll.report.page.plans import plan_page
    from plimsoll.report.page.run import run_page
    from plimsoll.report.picture import require_place

    # One page: of a plan, or of as many runs as there are colours.
    if bool(runs) == (plan is not None) or len(runs) > len(SERIES):
        raise PlimsollError(
            f"one page is of one run, of up to {len(SERIES)} that are compared, or of a plan: name runs, like `plimsoll"
            " report runs/code`, or a plan with --plan plan.json"
        )

    # Its place, before anything is read; without a folder reading it says that it is no run.
    folder = Path()
    if len(runs) == 1 and not is_address(runs[0]):
        folder = Path(runs[0]).expanduser()
    path = Path(out or folder / "report.html").expanduser()
    if out is not None or folder.is_dir():
        require_place(path, SUFFIXES)

    # What it shows.
    if plan is not None:
        page = plan_page(run_report.plan_of_file(os.fspath(plan)))
    else:
        with as_written(f"a file of {' or '.join(runs)}"):
            if len(runs) == 1:
                folder = fetched(runs[0])
                page = run_page(run_report.recorded(folder, ask_model=model, closed_loop=closed_loop, say=say))
            else:
                page = comparison_page([run_report.recorded(fetched(run), ask_model=False) for run in runs])

    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    footer = f"Made by plimsoll {version()}, {now}. It holds all it shows: nothing is fetched from anywhere."
    try:
        path.write_text(page.html(footer=footer), encoding="utf-8")
    except OSError as problem:
        raise PlimsollError(f"the page {path} was not written: {problem.strerror or problem}") from None
    return path
