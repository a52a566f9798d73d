"""Writes the page of a run, of several side by side, or of a plan that was never run: `plimsoll report`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from plimsoll.errors import PlimsollError, as_written
from plimsoll.files.bucket import fetched, is_address
from plimsoll.files.provenance import version

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
    _require_one_page(runs, plan)
    page = _writable(runs, out)
    text = _drawn(runs, plan, model=model, closed_loop=closed_loop, say=say)
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise PlimsollError(_refused(page, str(problem.strerror or problem))) from None
    return page


def _drawn(
    runs: Sequence[str], plan: Place | None, *, model: bool, closed_loop: bool, say: Callable[[str], None]
) -> str:
    from plimsoll.api import run_report
    from plimsoll.report.page.plans import plan_page
    from plimsoll.report.page.runs import run_page

    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    footer = f"Made by plimsoll {version()}, {now}. It holds all it shows: nothing is fetched from anywhere."
    if plan is not None:
        with as_written(os.fspath(plan)):
            return plan_page(run_report.plan_of_file(os.fspath(plan)), footer=footer)
    if len(runs) == 1:
        with as_written(f"a file of {runs[0]}"):
            recorded = run_report.recorded(fetched(runs[0]), ask_model=model, closed_loop=closed_loop, say=say)
            return run_page(recorded, footer=footer)
    from plimsoll.report.page.compared import comparison_page

    with as_written(f"a file of {' or '.join(runs)}"):
        several = [run_report.recorded(fetched(run), ask_model=False) for run in runs]
        return comparison_page(several, footer=footer)


def _require_one_page(runs: Sequence[str], plan: Place | None) -> None:
    """Raises PlimsollError unless there is one page to make: of a plan, or of as many runs as have colours."""
    if bool(runs) == (plan is not None):
        which = "RUN and --plan ask for two pages" if runs else "there is nothing to show"
        raise PlimsollError(
            f"{which}: name a run, like `plimsoll report runs/code`, several to compare them, or a plan with --plan"
            " plan.json"
        )
    from plimsoll.report.page.palette import SERIES

    if len(runs) > len(SERIES):
        raise PlimsollError(f"{len(runs)} runs on one page cannot be told apart: name at most {len(SERIES)}")


def _writable(runs: Sequence[str], out: Place | None) -> Path:
    """Returns the path of the page. Raises PlimsollError, before anything is read, if it cannot be written."""
    alone = len(runs) == 1 and not is_address(runs[0])
    folder = Path(runs[0]).expanduser() if alone else Path()
    page = Path(out).expanduser() if out is not None else folder / "report.html"
    if page.suffix.lower() not in SUFFIXES:
        raise PlimsollError(f"--out {page} is to be a page: give it a name that ends in .html")
    if out is None and not folder.is_dir():
        return page  # not a run: reading it will say so
    if page.is_dir():
        why = "it is a folder"
    elif not page.parent.is_dir():
        why = f"there is no folder {page.parent}"
    elif not os.access(page if page.exists() else page.parent, os.W_OK):
        why = "you may not write there"
    else:
        return page
    raise PlimsollError(_refused(page, why))


def _refused(out: Path, why: str) -> str:
    return f"the page {out} cannot be written, {why}: name a file in a folder that is yours with --out"
