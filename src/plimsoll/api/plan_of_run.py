"""Choice of a run's plan: a run keeps its earlier plan, unless there is a reason to plan again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.api import changes
from plimsoll.api.messages import Say
from plimsoll.api.planning.find import find_plan
from plimsoll.api.planning.pins import levers_of
from plimsoll.api.planning.place import Place, budget_bytes, elsewhere, place_of
from plimsoll.api.planning.question import Question
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import BudgetError, RunError, StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Planned
from plimsoll.planner.chips import Chip
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import name_of
from plimsoll.training import disk, overruns
from plimsoll.types import StepOptions
from plimsoll.units import format_budget, format_bytes


@dataclass(frozen=True, kw_only=True)
class Starting:
    """A run that is about to be trained."""

    folder: RunFolder
    recipe: Recipe
    options: TrainOptions
    say: Say
    processes: int = 1
    """Number of processes that train the run together, each with its own devices."""

    @property
    def has_plan(self) -> bool:
        """Whether the run has a plan to keep: plan.json exists, and --replan is not set."""
        return self.folder.has("plan.json") and not self.options.replan


def settle_plan(run: Starting, place: Place, data: Prepared) -> int:
    """Keeps the plan in the run's folder, or writes a new plan there. Returns the plan's budget in bytes.

    Raises:
        BudgetError: The plan needs more than the budget, or no plan fits the budget.
        RunError: The user sets a memory-saving option to another value than in the plan that the run keeps.
        StoppedError: The run exceeded its budget before, and no plan fits with a safety margin.
    """
    if not run.has_plan:
        return write_plan(run, place, data)
    planned = run.folder.planned()
    reason = why_plan_again(run, place, planned)
    if not reason:
        return keep(run, place, planned)
    run.say(f"{run.folder.path} {reason}: planning again")
    return plan_again(run, place, planned, data)


def why_plan_again(run: Starting, place: Place, planned: Planned) -> str:
    """Returns the reason why a run cannot keep its plan, as text; empty if it can."""
    moved = elsewhere(planned, run.options.mesh, place.chip, processes=run.processes)
    margin = overruns.margin_bytes(overruns.read(run.folder))
    lacks_margin = margin > planned.margin_bytes and not run.options.keep_plan
    reasons = [
        (moved is not None, moved or ""),
        (planned.step_options != run.options.step_options, other_step(planned.step_options, run.options.step_options)),
        (run.folder.has(changes.PENDING), "has changed"),
        (lacks_margin, f"went over its budget, and gets a margin of {format_bytes(margin)}"),
    ]
    return next((reason for holds, reason in reasons if holds), "")


def other_step(before: StepOptions, now: StepOptions) -> str:
    """Returns the difference between the planned training step and the step of this command's options, as text."""
    if before.norms != now.norms:
        return f"was planned for --log-norms {before.norms}, and this is --log-norms {now.norms}"
    was, is_now = ("without", "with") if before.donates else ("with", "without")
    return f"was planned {was} --debug-nans, which keeps two copies of the state, and goes on {is_now} it"


def keep(run: Starting, place: Place, planned: Planned) -> int:
    """Checks that a run can keep its plan with this command's options. Returns the run's memory budget in bytes."""
    require_its_levers(run, planned)
    _require_room(run, planned)
    memory = run.options.memory
    if memory is None:
        return planned.ledger.budget_bytes
    needed = planned.ledger.needed_bytes
    budget = budget_bytes(memory, place.chip, place.card)
    if needed > budget:
        raise BudgetError(
            f"the plan of {run.folder.path} needs {format_budget(needed)}, and --memory allows {format_bytes(budget)}:"
            " add --replan to look for a smaller plan",
            budget_bytes=budget,
            floor_bytes=needed,
        )
    return budget


def plan_again(run: Starting, place: Place, planned: Planned, data: Prepared) -> int:
    """Writes a new plan for a run. Returns its memory budget in bytes: the old plan's, unless --memory is set."""
    options = replace(run.options, memory=run.options.memory or planned.ledger.budget_bytes)
    pinned = None

    # If devices or step options changed, keep memory-saving options that affect numerical results or the stored state.
    moved = elsewhere(planned, options.mesh, place.chip, processes=run.processes) is not None
    if options.plan is None and (moved or planned.step_options != options.step_options):
        levers = planned.plan.levers
        touching = {name: value for name, value in levers.items() if LEVERS[name].touches != "exact"}
        options = replace(options, pins=touching | dict(options.pins))
        pinned = {*run.options.pins, *planned.plan.pinned} & options.pins.keys()

    # If the recipe changed, keep all memory-saving options, and compile the step with the new learning-rate schedule.
    elif options.plan is None and run.folder.has(changes.PENDING):
        require_its_levers(run, planned)
        options = replace(options, plan=str(run.folder.path / "plan.json"), pins={})
        pinned = planned.plan.pinned

    return write_plan(replace(run, options=options), place, data, pinned=pinned)


def require_its_levers(run: Starting, planned: Planned) -> None:
    """Raises RunError if the user sets a memory-saving option to another value than in the run's plan."""
    options = run.options
    pins = options.pins if options.plan is None else levers_of(options.plan, run.recipe, options.pins)
    levers = planned.plan.levers
    for name, value in pins.items():
        if value is not None and value != levers[name]:
            what = LEVERS[name].flag if options.plan is None else f"--plan {options.plan} with {LEVERS[name].flag}"
            raise RunError(
                f"{run.folder.path} is planned with {LEVERS[name].flag} {levers[name]}, and this command says"
                f" {what} {value}: add --replan to continue with a new plan, leave the option out, or name another"
                " --run"
            )


def write_plan(run: Starting, place: Place, data: Prepared, *, pinned: Collection[str] | None = None) -> int:
    """Finds a plan and writes it into the run's folder. Returns the plan's budget in bytes.

    Args:
        run: The run.
        place: Place with the chip to train on.
        data: Facts about the run's data.
        pinned: Names of memory-saving options to record as set by the user, if an earlier plan fixes further ones; None
            to record all that are fixed.
    """
    from plimsoll.report.tables import plan_table

    went_over = overruns.read(run.folder)
    is_searched = run.options.plan is None
    measure = is_searched and place.chip.platform in ("cpu", "cuda") and run.processes == 1
    question = question_of(run.recipe, run.options, place.chip, measure=measure)
    place = place_of(question, run.say, processes=run.processes, trains=True)
    try:
        planned = find_plan(question, replace(place, reserve_bytes=overruns.margin_bytes(went_over)), data, run.say)
    except BudgetError as refusal:
        if not went_over:
            raise
        last = went_over[-1]
        raise StoppedError(
            f"{run.folder.path} went over its budget at step {last.step:,} ({last.words()}), and no plan leaves room"
            f" for that: {refusal}\n  the checkpoint of step {last.step:,} is intact: continue with a larger"
            " --memory, or with --keep-plan to go on over the budget"
        ) from None

    if pinned is None and is_searched:
        pinned = run.options.pins
    if pinned is not None:
        planned = replace(planned, plan=replace(planned.plan, pinned=tuple(sorted(pinned))))
    run.say(plan_table(planned))
    _require_room(run, planned)
    run.folder.write("plan.json", planned.to_dict())
    (run.folder.path / changes.PENDING).unlink(missing_ok=True)
    return planned.ledger.budget_bytes


def _require_room(run: Starting, planned: Planned) -> None:
    """Raises RunError if the checkpoints of a plan do not fit on the run's disk."""
    if planned.disk is not None:
        disk.require_room(run.folder.checkpoints, planned.disk)


def question_of(recipe: Recipe, options: TrainOptions, chip: Chip, *, measure: bool = False) -> Question:
    """Returns the planning request of a run.

    Args:
        recipe: Recipe of the run.
        options: Options of training.
        chip: Chip to train on.
        measure: Whether to time the best few plans.
    """
    pins = options.pins
    pinned_by = None
    if options.plan is not None:
        pins = levers_of(options.plan, recipe, options.pins)
        pinned_by = f"--plan {options.plan}"
    return Question(
        recipe=recipe,
        name=options.name or name_of(recipe),
        memory=options.memory,
        chip=chip.name,
        mesh=options.mesh,
        numerics=options.numerics,
        pins=pins,
        pinned_by=pinned_by,
        step_options=options.step_options,
        within=options.within,
        measure=measure,
        is_of_run=True,
    )


def notes_of_changes(folder: RunFolder, before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a note if levers have changed since the newest checkpoint: the change may reorder floating-point sums.

    Args:
        folder: Folder of the run.
        before: Levers (memory-saving options) at the newest checkpoint; empty if there are no checkpoints.
        now: Levers of the run's present plan.
    """
    changed = [name for name in now if name in before and name != "pinned" and before[name] != now[name]]
    if not changed:
        return ()
    words = ", ".join(f"{name.replace('_', ' ')} {now[name]} instead of {before[name]}" for name in changed)
    return (f"planned again after step {folder.newest_whole()[0]:,}: {words}",)
