"""Command `plimsoll report`: an HTML page about a run, or about a plan that was never run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from plimsoll.api import run_page
from plimsoll.cli.parse import parse, say
from plimsoll.options import Argument, Metavar, Options


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    run: Annotated[str | None, Argument("[RUN]")] = None
    """Folder of the run, or its address in a bucket."""
    out: Annotated[str | None, Metavar("FILE")] = None
    """File for the page. By default report.html in the run's folder; in the current folder for a run in a bucket, or a
    plan."""
    plan: Annotated[str | None, Metavar("FILE")] = None
    """Plan to show instead of a run: the output of `plimsoll plan ... --json`, or a run's plan.json. By default a run
    is shown."""
    model: bool = True
    """Include samples that the trained model makes, in a process within the run's budget."""
    closed_loop: bool = False
    """Only for control: let the model control simulated systems. Takes minutes."""


def report(arguments: list[str]) -> int:
    """Writes the page and prints its path. Returns the exit code."""
    options = parse(ReportOptions, arguments, command="report")
    print(run_page.write(**asdict(options), say=say))
    return 0
