"""`plimsoll report`: a run's folder, or a plan's file, becomes what a page is drawn from. Part of the joint.

Nothing is written into a run. Its files are read as they stand, so a run that was killed, or goes on, has a page too;
the model is asked in a process of its own, within the memory that its training may take.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plimsoll.api import commands as repeating
from plimsoll.errors import PlimsollError
from plimsoll.planner import host
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import class_of, from_dict, is_from_file
from plimsoll.report.metrics import read_rows
from plimsoll.report.page.recorded import Columns, Recorded, columns_of
from plimsoll.runs import provenance
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.provenance import version
from plimsoll.types import Plan
from plimsoll.units import GIB, format_bytes

Say = Callable[[str], None]
Facts = dict[str, Any]

VALIDATION = "validation_"


def made_by() -> str:
    """The last line of a page."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"Made by plimsoll {version()}, {now}. It holds all it shows: nothing is fetched from anywhere."


def recorded(run: str, *, ask_model: bool = True, closed_loop: bool = False, say: Say = lambda text: None) -> Recorded:
    """All that its folder says, and what its model makes. Raises PlimsollError for what is no run."""
    folder = RunFolder(run)
    recipe = folder.read("recipe.json")
    if not isinstance(recipe, dict) or "kind" not in recipe:
        raise PlimsollError(f"{folder.path / 'recipe.json'} is of something else than a run of plimsoll: name a run")
    provenance.require_known_version(folder)
    planned, data, ledger = (_optional(folder, f"{name}.json") for name in ("plan", "data", "ledger"))
    columns, last = _metrics(folder)
    if planned is None and not columns:
        raise PlimsollError(
            f"{folder.path} has neither a plan nor a row of metrics yet: train it first (`plimsoll train`, the same"
            " command continues)"
        )
    left_out: list[str] = []
    commands = _commands(folder, recipe, planned, left_out)
    made = _made(folder, recipe, data, last, left_out, ask_model=ask_model, closed_loop=closed_loop, say=say)
    rates = made.get("learning_rate")
    left_out += _after_the_last_checkpoint(folder, columns)
    return Recorded(
        name=folder.path.name,
        path=str(folder.path),
        state=folder.state((data or {}).get("steps")),
        recipe=recipe,
        planned=planned,
        data=data,
        ledger=ledger,
        sessions=provenance.sessions(folder),
        columns=columns,
        learning_rate=(rates["steps"], rates["rates"]) if rates else None,
        exhibits=made.get("exhibits", ()),
        left_out=left_out,
        **commands,
    )


def _after_the_last_checkpoint(folder: RunFolder, columns: Columns) -> list[str]:
    """Of a run that was killed or stopped: rows that the same command makes anew."""
    saved, rows = max(folder.saved_steps(), default=0), columns.get("loss")
    last = int(rows.steps[-1]) if rows else 0
    if last <= saved or folder.is_trained_now():
        return []
    steps = f"step {last:,}" if last == saved + 1 else f"steps {saved + 1:,} to {last:,}"
    beside = (
        ", and what is measured of the whole process is of the sessions before" if folder.has("ledger.json") else ""
    )
    return [f"{steps}: logged after the last checkpoint. The same command trains them again{beside}"]


def _optional(folder: RunFolder, name: str) -> Facts | None:
    return folder.read(name) if folder.has(name) else None


def _metrics(folder: RunFolder) -> tuple[Any, Facts]:
    """The columns, and the means of the last evaluation, without its prefix."""
    last: Facts = {}

    def kept(rows: Iterator[Facts]) -> Iterator[Facts]:
        nonlocal last
        for row in rows:
            if f"{VALIDATION}loss" in row:
                last = {name.removeprefix(VALIDATION): row[name] for name in row if name.startswith(VALIDATION)}
            yield row

    rows = read_rows(folder.metrics) if folder.metrics.exists() else iter(())
    return columns_of(kept(rows)), last


def _commands(folder: RunFolder, recipe: Facts, planned: Facts | None, left_out: list[str]) -> Facts:
    """Empty for a recipe that cannot be read any more: the rest of the page does not need it."""
    if planned is None:
        return {}
    try:
        shown = class_of(recipe).shown
        finished = folder.state((_optional(folder, "data.json") or {}).get("steps")) == "finished"
        return {
            "chosen": repeating.chosen_fields(recipe, planned.get("recipe")),
            "continue_command": None if finished else repeating.continue_command(folder, recipe, planned),
            "repeat_command": repeating.repeat_command(folder, recipe, planned),
            "use_commands": repeating.use_commands(folder, shown) if folder.saved_steps() else [],
        }
    except PlimsollError as problem:
        left_out.append(f"the commands: {problem}")
        return {}


def _made(
    folder: RunFolder,
    recipe: Facts,
    data: Facts | None,
    metrics: Facts,
    left_out: list[str],
    *,
    ask_model: bool,
    closed_loop: bool,
    say: Say,
) -> Facts:
    """`exhibits` and `learning_rate`, from the model where it may be asked; else what the files alone say."""
    why_not = _why_not(folder, data, ask_model)
    if why_not is None:
        say("asking the model what it makes")
        limit = _limit_bytes(folder)
        asked = {"run": str(folder.path), "metrics": metrics, "limit_bytes": limit, "closed_loop": closed_loop}
        for model in (True, False):
            try:
                found = ask("show", asked | {"model": model})
            except (PlimsollError, RuntimeError) as problem:
                why_not = f"{problem}. It may use {format_bytes(limit)}"
                continue
            left_out += found["left_out"]
            left_out += [] if model else [f"what the model makes: {why_not}"]
            return found
    left_out.append(f"what the model makes, and its learning rate: {why_not}")
    try:
        if data is None or is_from_file(recipe):  # drawing a page is no reason to run it
            return {}
        return {"exhibits": from_dict(recipe).exhibits(metrics, data.get("facts") or {})}
    except PlimsollError:  # said of the commands already
        return {}


def _why_not(folder: RunFolder, data: Facts | None, ask_model: bool) -> str | None:
    if not ask_model:
        return "it was not asked (--no-model)"
    if folder.is_trained_now():
        return "the run is training now, and would be held up: ask for the page again when it has ended"
    if data is None or not folder.saved_steps():
        return "the run has no checkpoint yet"
    return None


def _limit_bytes(folder: RunFolder) -> int:
    """What training may take, or a GiB if that is more; at most what is free here less the usual margin."""
    free = host.available_bytes()
    free -= host.margin_bytes(free)
    planned = _optional(folder, "plan.json")
    if planned is None or planned["plan"]["chip"] != "cpu":
        return free
    return min(free, max(planned["budget_bytes"], GIB))


def plan_of_file(path: str) -> Facts:
    """What `plimsoll plan --json` printed, or a run's plan.json."""
    advice = "write one with `plimsoll plan ... --json > plan.json`, or take a run's plan.json"
    try:
        planned = json.loads(Path(path).expanduser().read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise PlimsollError(f"--plan {path} cannot be read ({problem}): {advice}") from None
    if not isinstance(planned, Mapping):
        raise PlimsollError(f"--plan {path} is not a plan: {advice}")
    if planned.get("fits") is False:
        raise PlimsollError(f"--plan {path} is a refusal, nothing had fitted its budget: plan with a larger --memory")
    required = ("plan", "components", "budget_bytes", "predicted_peak_bytes", "parameters")
    missing = [name for name in required if name not in planned]
    if missing:
        raise PlimsollError(f"--plan {path} is not a plan, it does not say {', '.join(missing)}: {advice}")
    plans = [planned["plan"], *(other["plan"] for other in planned.get("alternatives", ()))]
    try:
        for one in plans:
            Plan.from_dict(one)
    except TypeError as problem:
        raise PlimsollError(
            f"--plan {path} has a plan that plimsoll {version()} cannot read ({problem}): it may be of a"
            f" newer version. {advice[0].upper()}{advice[1:]}"
        ) from None
    return dict(planned)
