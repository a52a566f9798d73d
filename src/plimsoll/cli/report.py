"""Command `plimsoll report`: one page of a run, of several side by side, or of a plan that was never run."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import tyro

from plimsoll.cli.parse import parse
from plimsoll.errors import PlimsollError, as_written
from plimsoll.runs.provenance import version
from plimsoll.runs.remote import fetched, is_address

SUFFIXES = (".html", ".htm")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN ...", help="Folder of a run; of several, which are compared."),
    ] = ()
    out: str | None = None
    """File of the page; default report.html in the folder of the run, of several runs, of one in a bucket or of a plan
    in this one."""
    plan: str | None = None
    """Show this plan, which was never run: a file from `plimsoll plan ... --json`, or a run's plan.json."""
    model: bool = True
    """Ask the trained model what it makes, in a process of its own, within the budget of the run."""
    closed_loop: bool = False
    """Of a run of control: let it drive the systems, which takes minutes."""


def report(arguments: list[str]) -> int:
    """Writes the page and prints its path. Returns the exit code."""
    options = parse(ReportOptions, arguments, program="plimsoll report")
    _require_one_page(options)
    out = _writable(options)
    from plimsoll.api import run_report
    from plimsoll.report.page.of_run import plan_page, run_page

    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    footer = f"Made by plimsoll {version()}, {now}. It holds all it shows: nothing is fetched from anywhere."
    if options.plan is not None:
        with as_written(options.plan):
            page = plan_page(run_report.plan_of_file(options.plan), footer=footer)
    elif len(options.runs) == 1:
        with as_written(f"a file of {options.runs[0]}"):
            recorded = run_report.recorded(
                fetched(options.runs[0]),
                ask_model=options.model,
                closed_loop=options.closed_loop,
                say=lambda text: print(f"  {text} ...", file=sys.stderr),
            )
            page = run_page(recorded, footer=footer)
    else:
        from plimsoll.report.page.compared import comparison_page

        with as_written(f"a file of {' or '.join(options.runs)}"):
            runs = [run_report.recorded(fetched(run), ask_model=False) for run in options.runs]
            page = comparison_page(runs, footer=footer)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as problem:
        raise PlimsollError(_refused(out, str(problem.strerror or problem))) from None
    print(out)
    return 0


def _require_one_page(options: ReportOptions) -> None:
    """Raises PlimsollError unless there is one page to make: of a plan, or of as many runs as have colours."""
    if bool(options.runs) == (options.plan is not None):
        which = "RUN and --plan ask for two pages" if options.runs else "there is nothing to show"
        raise PlimsollError(
            f"{which}: name a run, like `plimsoll report runs/code`, several to compare them, or a plan with --plan"
            " plan.json"
        )
    from plimsoll.report.page.palette import SERIES

    if len(options.runs) > len(SERIES):
        raise PlimsollError(f"{len(options.runs)} runs on one page cannot be told apart: name at most {len(SERIES)}")


def _writable(options: ReportOptions) -> Path:
    """Returns the path of the page. Raises PlimsollError, before anything is read, if it cannot be written."""
    alone = len(options.runs) == 1 and not is_address(options.runs[0])
    folder = Path(options.runs[0]).expanduser() if alone else Path()
    out = Path(options.out).expanduser() if options.out is not None else folder / "report.html"
    if out.suffix.lower() not in SUFFIXES:
        raise PlimsollError(f"--out {out} is to be a page: give it a name that ends in .html")
    if options.out is None and not folder.is_dir():
        return out  # not a run: reading it will say so
    if out.is_dir():
        why = "it is a folder"
    elif not out.parent.is_dir():
        why = f"there is no folder {out.parent}"
    elif not os.access(out if out.exists() else out.parent, os.W_OK):
        why = "you may not write there"
    else:
        return out
    raise PlimsollError(_refused(out, why))


def _refused(out: Path, why: str) -> str:
    return f"the page {out} cannot be written, {why}: name a file in a folder that is yours with --out"
