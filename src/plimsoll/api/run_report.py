"""Records that the page of `plimsoll report` is drawn from: all that a run's folder, or a plan's file, says.

Nothing is written into a run. Its files are read as they are, so a run that was killed or is still training has a page,
too. What the model makes is computed in a process of its own, within the memory that its training may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from plimsoll.api import commands
from plimsoll.api.pins import PLAN_ADVICE, read_plan_file
from plimsoll.errors import PlimsollError
from plimsoll.files import provenance
from plimsoll.files.provenance import version
from plimsoll.files.run_folder import PROCESSES, RunFolder
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Plan
from plimsoll.planner import host
from plimsoll.processes.request import ask
from plimsoll.recipes.own.pickled import is_pickled
from plimsoll.recipes.saved import class_of, from_dict, is_from_file
from plimsoll.report.metrics import read_rows
from plimsoll.report.page.recorded import Columns, Recorded, columns_of
from plimsoll.units import GIB, format_bytes

Say = Callable[[str], None]
Facts = dict[str, Any]

VALIDATION = "validation_"


def recorded(run: str, *, ask_model: bool = True, closed_loop: bool = False, say: Say = lambda text: None) -> Recorded:
    """Returns all that the folder of a run says, and what its model makes.

    Args:
        run: Folder of the run.
        ask_model: Whether to load the model, in a process of its own.
        closed_loop: Whether a control model is to drive its systems, which takes minutes.
        say: Called with a message before something that takes time.

    Raises:
        PlimsollError: The folder is no run, was written by a newer version, or has nothing to show yet.
    """
    folder = RunFolder(run)
    recipe: Any = folder.read("recipe.json")
    if not isinstance(recipe, dict) or "kind" not in recipe:
        raise PlimsollError(f"{folder.path / 'recipe.json'} is of something else than a run of plimsoll: name a run")
    recipe = cast(Facts, recipe)
    provenance.require_known_version(folder)
    planned, data, ledger = (_optional(folder, f"{name}.json") for name in ("plan", "data", "ledger"))
    columns, last = _metrics(folder)
    if planned is None and not columns:
        raise PlimsollError(
            f"{folder.path} has neither a plan nor a row of metrics yet: train it first (`plimsoll train`, the same"
            " command continues)"
        )
    left_out: list[str] = []
    usable = _commands(folder, recipe, planned, left_out)
    planned = planned and _of_known_levers(planned, left_out)
    why_not = None  # said where the model is not to be loaded
    if not ask_model:
        why_not = "it was not asked (--no-model)"
    elif folder.is_trained_now():
        why_not = "the run is training now, and would be held up: ask for the page again when it has ended"
    elif data is None or not folder.saved_steps():
        why_not = "the run has no checkpoint yet"
    shown = _shown(folder, recipe, data, last, left_out, why_not=why_not, closed_loop=closed_loop, say=say)
    rates = shown.get("learning_rate")
    left_out += _after_the_last_checkpoint(folder, columns)
    return Recorded(
        name=folder.path.name,
        path=str(folder.path),
        state=folder.state((data or {}).get("steps")),
        recipe=recipe,
        planned=planned or {},
        data=data or {},
        ledger=ledger or {},
        sessions=provenance.sessions(folder),
        processes=_optional(folder, PROCESSES) or {},
        columns=columns,
        learning_rate=(rates["steps"], rates["rates"]) if rates else None,
        exhibits=shown.get("exhibits", ()),
        left_out=left_out,
        **usable,
    )


def _of_known_levers(planned: Facts, left_out: list[str]) -> Facts:
    """Returns the plan without levers that a user's file registers: drawing a page is no reason to run it."""
    unknown = planned["plan"].keys() - Plan.__dataclass_fields__.keys() - LEVERS.keys()

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            parts = cast(dict[str, Any], value)
            return {name: without(part) for name, part in parts.items() if name not in unknown}
        return [without(part) for part in cast(list[Any], value)] if isinstance(value, list) else value

    left_out += [
        f"the lever {name}, {planned['plan'][name]}: the recipe's file registers it, and is not run for a page"
        for name in sorted(unknown)
    ]
    return without(planned) if unknown else planned


def _after_the_last_checkpoint(folder: RunFolder, columns: Columns) -> list[str]:
    """Describes rows that a killed or stopped run has logged after its last checkpoint, and will train again."""
    saved, rows = max(folder.saved_steps(), default=0), columns.get("loss")
    last = int(rows.steps[-1]) if rows else 0
    if last <= saved or folder.is_trained_now():
        return []
    steps = f"step {last:,}" if last == saved + 1 else f"steps {saved + 1:,} to {last:,}"
    of_ledger = ", and what is measured of the whole process is of the sessions before"
    return [
        f"{steps}: logged after the last checkpoint. The same command trains them again"
        f"{of_ledger if folder.has('ledger.json') else ''}"
    ]


def _optional(folder: RunFolder, name: str) -> Facts | None:
    return folder.read(name) if folder.has(name) else None


def _metrics(folder: RunFolder) -> tuple[Any, Facts]:
    """Returns the columns of all metrics, and the means of the last evaluation without their prefix."""
    last: Facts = {}

    def with_last(rows: Iterator[Facts]) -> Iterator[Facts]:
        nonlocal last
        for row in rows:
            if f"{VALIDATION}loss" in row:
                last = {name.removeprefix(VALIDATION): row[name] for name in row if name.startswith(VALIDATION)}
            yield row

    rows = read_rows(folder.metrics) if folder.metrics.exists() else iter(())
    return columns_of(with_last(rows)), last


def _commands(folder: RunFolder, recipe: Facts, planned: Facts | None, left_out: list[str]) -> Facts:
    """Returns the commands of a run; none if its recipe cannot be read any more, since the page does not need them."""
    if planned is None:
        return {}
    try:
        shown = class_of(recipe).shown
        usable = folder.saved_steps() and not is_pickled(recipe)  # no command has functions of a Python program
        finished = folder.state((_optional(folder, "data.json") or {}).get("steps")) == "finished"
        return {
            "chosen": commands.chosen_fields(recipe, planned.get("recipe")),
            "continue_command": None if finished else commands.continue_command(folder, recipe, planned),
            "repeat_command": commands.repeat_command(folder, recipe, planned),
            "use_commands": commands.use_commands(folder, shown) if usable else [],
        }
    except PlimsollError as problem:
        left_out.append(f"the commands: {problem}")
        return {}


def _shown(
    folder: RunFolder,
    recipe: Facts,
    data: Facts | None,
    metrics: Facts,
    left_out: list[str],
    *,
    why_not: str | None,
    closed_loop: bool,
    say: Say,
) -> Facts:
    """Returns `exhibits` and `learning_rate`, from the model unless `why_not` says why; else what the files say alone.

    What cannot be shown is added to `left_out`. A model that fails is tried once more without being loaded.
    """
    if why_not is None:
        say("asking the model what it makes")
        limit = _limit_bytes(folder)
        question = {"run": str(folder.path), "metrics": metrics, "limit_bytes": limit, "closed_loop": closed_loop}
        for model in (True, False):
            try:
                shown = ask("show", question | {"model": model})
            except (PlimsollError, RuntimeError) as problem:
                why_not = f"{problem}. It may use {format_bytes(limit)}"
                continue
            left_out += shown["left_out"]
            left_out += [] if model else [f"what the model makes: {why_not}"]
            return shown
    left_out.append(f"what the model makes, and its learning rate: {why_not}")
    try:
        if data is None or is_from_file(recipe):  # drawing a page is no reason to run it
            return {}
        return {"exhibits": from_dict(recipe).exhibits(metrics, data.get("facts") or {})}
    except PlimsollError:  # the commands have reported it already
        return {}


def _limit_bytes(folder: RunFolder) -> int:
    """Returns the larger of the run's budget and 1 GiB, at most the free memory less the usual margin."""
    free = host.available_bytes()
    free -= host.margin_bytes(free)
    planned = _optional(folder, "plan.json")
    if planned is None or planned["plan"]["chip"] != "cpu":
        return free
    return min(free, max(planned["budget_bytes"], GIB))


def plan_of_file(path: str) -> Facts:
    """Returns a plan from a file: the output of `plimsoll plan --json`, or a run's plan.json.

    Raises:
        PlimsollError: The file cannot be read, is not a plan, or is one that did not fit.
    """
    planned = read_plan_file(path)
    required = ("plan", "components", "budget_bytes", "predicted_peak_bytes", "parameters")
    missing = [name for name in required if name not in planned]
    if missing:
        raise PlimsollError(f"--plan {path} is not a plan, it does not say {', '.join(missing)}: {PLAN_ADVICE}")
    try:
        for plan in [planned["plan"], *(other["plan"] for other in planned.get("alternatives", ()))]:
            Plan.read(plan)
    except TypeError as problem:
        raise PlimsollError(
            f"--plan {path} has a plan that plimsoll {version()} cannot read ({problem}): it may be of a"
            f" newer version. {PLAN_ADVICE[0].upper()}{PLAN_ADVICE[1:]}"
        ) from None
    return planned
