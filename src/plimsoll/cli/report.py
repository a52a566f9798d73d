"""Command `plimsoll report`: one page of a run, of several side by side, or of a plan that was never run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from plimsoll.api import run_page
from plimsoll.cli.parse import parse


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
    out = run_page.write(
        options.runs,
        out=options.out,
        plan=options.plan,
        model=options.model,
        closed_loop=options.closed_loop,
        say=lambda text: print(f"  {text} ...", file=sys.stderr),
    )
    print(out)
    return 0
