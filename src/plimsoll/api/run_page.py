"""Writes the HTML page of `plimsoll report` about a run, or about a plan that was never run."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from plimsoll.errors import PlimsollError, as_written
from plimsoll.files.bucket import fetched, is_address
from plimsoll.files.provenance import version

Place = str | os.PathLike[str]
SUFFIXES = (".html", ".htm")


def write(
    run: str | None = None,
    *,
    out: Place | None = None,
    plan: Place | None = None,
    model: bool = True,
    closed_loop: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Writes an HTML page about a run or a plan. Returns the path of the page.

    Args:
        run: Folder or address of a run.
        out: File of the page. By default report.html in the run's folder; in the current folder for a plan, or for a
            run in a bucket.
        plan: A plan that was never run: a file from `plimsoll plan ... --json`, or a run's plan.json.
        model: Whether to run the trained model for outputs like samples, in a separate process, within the run's
            budget.
        closed_loop: Whether to let a model of the recipe "control" control simulated systems, which takes minutes.
        say: Function that is called with a message before slow work.

    Raises:
        PlimsollError: There is nothing to show, or the page cannot be written.
    """
    from plimsoll.api import run_report
    from plimsoll.api.planning.pins import read_plan_file
    from plimsoll.report.page.plans import plan_page
    from plimsoll.report.page.run import run_page
    from plimsoll.report.picture import require_place

    if (run is None) == (plan is None):
        raise PlimsollError(
            "a page shows one run or one plan: name a run, like `plimsoll report runs/code`, or a plan with --plan"
            " plan.json"
        )

    # Check that the page can be written, before reading the run. Skip this if the run's folder is missing, because
    # reading the run raises the better error.
    folder = Path() if run is None or is_address(run) else Path(run).expanduser()
    path = Path(out or folder / "report.html").expanduser()
    if out is not None or folder.is_dir():
        require_place(path, SUFFIXES)

    # Draw the page.
    if plan is not None:
        page = plan_page(read_plan_file(os.fspath(plan)))
    else:
        with as_written(f"a file of {run}"):
            here = fetched(str(run))
            page = run_page(run_report.recorded(here, ask_model=model, closed_loop=closed_loop, say=say))
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    footer = f"Made by plimsoll {version()}, {now}. This file is complete: it loads nothing from elsewhere."
    try:
        path.write_text(page.html(footer=footer), encoding="utf-8")
    except OSError as problem:
        raise PlimsollError(f"the page {path} was not written: {problem.strerror or problem}") from None
    return path
