"""Collects the contents of a run's page for `plimsoll report`: facts from its files, and outputs of its model.

Writes nothing into the run. Files may be incomplete, so a run that was killed or is still training has a page, too. The
model's outputs are computed in a separate process, within the run's budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plimsoll.api import commands
from plimsoll.api.run_facts import optional
from plimsoll.errors import PlimsollError, RunError
from plimsoll.files import provenance
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Planned, RunLedger
from plimsoll.planner import host
from plimsoll.processes.request import ask
from plimsoll.recipes.own.pickled import is_pickled
from plimsoll.recipes.saved import chosen_fields, uses_of
from plimsoll.recipes.specs import spec_of
from plimsoll.report.metrics import read_rows
from plimsoll.report.page.recorded import Recorded, columns_of
from plimsoll.units import GIB, format_bytes

Say = Callable[[str], None]
Facts = dict[str, Any]

VALIDATION = "validation_"


def recorded(run: str, *, ask_model: bool = True, closed_loop: bool = False, say: Say = lambda text: None) -> Recorded:
    """Returns the contents of a run's page: facts from the run's folder, and outputs of its model.

    Args:
        run: Folder of the run.
        ask_model: Whether to load the model, in a separate process.
        closed_loop: Whether to let a model of the recipe "control" control simulated systems, which takes minutes.
        say: Called with a message before slow work.

    Raises:
        PlimsollError: The folder is no run.
    """
    folder = RunFolder(run)
    recipe = folder.read("recipe.json")
    data = optional(folder, "data.json")
    left_out: list[str] = []

    # Read the plan. If it has levers that a user's Python file registers, this fails: the file is not run for a page.
    planned: Planned | None = None
    if folder.has("plan.json"):
        try:
            planned = folder.planned()
        except RunError as problem:
            left_out.append(f"the plan: {problem}")
    ledger = folder.ledger() if folder.has("ledger.json") else planned and RunLedger.of_plan(planned)

    # Run the model for its outputs. If that fails, show only exhibits that follow from logged metrics.
    metrics = _last_evaluation(folder)
    shown: Facts = {}
    try:
        _require_askable(folder, ask_model=ask_model)
        say("running the model for samples and other outputs")
        budget = ledger.budget_bytes if ledger else 0
        shown = _answer_of_model(folder, metrics, budget, closed_loop=closed_loop)
        left_out += shown["left_out"]
    except PlimsollError as problem:
        left_out.append(f"the model's outputs, and its learning rate: {problem}")
        if data:
            shown = {"exhibits": uses_of(recipe).exhibits(metrics, spec_of(data["spec"]))}

    rates = shown.get("learning_rate")
    return Recorded(
        name=folder.path.name,
        path=str(folder.path),
        state=folder.state(data.get("steps")),
        recipe=recipe,
        planned=planned,
        ledger=ledger,
        steps=data.get("steps"),
        data=data.get("facts", {}).get("description", ""),
        sessions=provenance.sessions(folder),
        columns=columns_of(read_rows(folder.metrics)),
        chosen=chosen_fields(recipe, commands.base_of(recipe, planned.recipe)[1]) if planned else {},
        commands=_commands(folder, recipe, planned) if planned else {},
        learning_rate=(rates["steps"], rates["rates"]) if rates else None,
        exhibits=shown.get("exhibits", ()),
        left_out=left_out,
    )


def _last_evaluation(folder: RunFolder) -> Facts:
    """Returns the metrics of the latest evaluation, by their names without the prefix `validation_`."""
    evaluations = [row for row in read_rows(folder.metrics) if f"{VALIDATION}loss" in row]
    last = evaluations[-1] if evaluations else {}
    return {name.removeprefix(VALIDATION): value for name, value in last.items() if name.startswith(VALIDATION)}


def _commands(folder: RunFolder, recipe: Facts, planned: Planned) -> dict[str, str]:
    """Returns the possible commands that continue, repeat and use a run, by their titles on the page."""
    named = {
        "Continues it": commands.continue_command(folder, recipe),
        "Repeats it, with the same plan": commands.repeat_command(folder, recipe, planned),
        "Uses it": "\n".join(commands.use_commands(folder, uses_of(recipe).shown)),
    }
    if folder.state(optional(folder, "data.json").get("steps")) == "finished":
        del named["Continues it"]
    if not folder.saved_steps() or is_pickled(recipe):
        del named["Uses it"]
    return {name: command for name, command in named.items() if command}


def _require_askable(folder: RunFolder, *, ask_model: bool) -> None:
    """Raises RunError with the reason if the model should not be loaded."""
    if not ask_model:
        raise RunError("it was not asked (--no-model)")
    if folder.is_trained_now():
        raise RunError("the run is training now, and would be slowed down: write the page again when it has ended")
    if not folder.saved_steps():
        raise RunError("the run has no checkpoint yet")


def _answer_of_model(folder: RunFolder, metrics: Facts, budget: int, *, closed_loop: bool) -> Facts:
    """Returns outputs of the model from a separate process. Raises PlimsollError if the process fails."""
    limit = _limit_bytes(budget)
    question = {"run": str(folder.path), "metrics": metrics, "limit_bytes": limit, "closed_loop": closed_loop}
    try:
        return ask("show", question)
    except (PlimsollError, RuntimeError) as problem:
        raise PlimsollError(f"{problem}. It may use {format_bytes(limit)}") from None


def _limit_bytes(budget: int) -> int:
    """Returns the model's memory limit in bytes: the budget, at least 1 GiB, at most the free memory less a margin."""
    free = host.available_bytes()
    return min(free - host.margin_bytes(free), max(budget, GIB))
