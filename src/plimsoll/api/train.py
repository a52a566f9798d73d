"""A recipe and a budget become a plan, and a plan becomes a run: what to start, for the command and the library.

Nothing here imports JAX: compiling happens in a child, training in a process of its own (`api/launch.py` starts it).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from plimsoll.api import changes
from plimsoll.api.changes import Changes
from plimsoll.api.messages import Say, printing
from plimsoll.api.planning.card import training_environment
from plimsoll.api.planning.find import find_plan, problem_of, seconds_for
from plimsoll.api.planning.pins import levers_of, require_levers
from plimsoll.api.planning.place import (
    Place,
    budget_bytes,
    chip_here,
    chip_named,
    elsewhere,
    parse_mesh,
    place_of,
    require_free,
)
from plimsoll.api.planning.question import Question
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import BudgetError, DataError, PlimsollError, RecipeError, RunError, StoppedError
from plimsoll.files.provenance import note_session
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.registry import LEVERS
from plimsoll.options import IS_PATH, notes_of
from plimsoll.planned import Planned
from plimsoll.planner.chips import Chip
from plimsoll.processes import interruption
from plimsoll.processes.handover import Ready, become
from plimsoll.recipes.flat import absent_data, rows
from plimsoll.recipes.own.files import keep_source
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import begun_with, from_dict, is_saved_as, name_of, to_dict
from plimsoll.training import disk, memory, overruns
from plimsoll.units import format_budget, format_bytes

FEW_STEPS = 30
"""Optimizer steps below which a line before training says that they are few, unless --steps asked for so many."""


def prepare_run(
    recipe: Recipe, options: TrainOptions, say: Say, *, lock: int | None = None, processes: int = 1
) -> Ready:
    """Prepares folder, data and plan, and returns what to start. The caller closes the lock after it.

    `lock` is the run's, where this process holds it already. `processes` train it together: each has devices.
    """
    from plimsoll.report.trackers import require_tracker

    require_tracker(options.tracker)
    require_levers(options.pins)
    options.refuse_clock(processes)
    folder = RunFolder(options.run or f"runs/{options.name or name_of(recipe)}")
    _require_own_folder(recipe, folder)
    _require_data_here(recipe, folder)
    made = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    try:
        folder.create()
    except RunError:
        _remove_empty(made)
        raise
    lock = folder.lock() if lock is None else lock
    try:
        target = _target(folder, recipe, options, say, processes)
        has_plan = folder.has("plan.json") and not options.replan
        asked = dataclasses.replace(options, plan=None) if has_plan else options
        question = question_of(recipe, asked, target)
        place = place_of(question, processes=processes, trains=True)
        if options.debug_nans and place.chip.devices > 1:
            raise RecipeError(
                "--debug-nans takes a step again, one operation at a time on one device, and this run has"
                f" {place.chip.devices}: add --mesh data=1, or leave it out"
            )

        # What is impossible is refused before data is prepared.
        if not has_plan:
            seconds_for(question, place)
            problem_of(question, place, None)
            disk.require_room(folder.checkpoints, disk.needed(0))
        prepared = prepare_data(folder, recipe, say, on_purpose=options.on_purpose)
        trained_by = folder.trained_by()
        budget = _settle_plan(folder, recipe, options, prepared, place, say, processes)
        require_free(place.card, place.chip, budget)
        planned = folder.planned()
        variables = training_environment(
            place.chip,
            place.card,
            budget,
            say,
            devices=planned.plan.devices // processes,
            one_heap=not in_heap(planned),
            planned_host=planned.ledger.host,
        )
        notes = (*_notes_of_changes(folder, trained_by, planned.plan.to_dict()), *prepared.changes)
        note_session(folder, notes, options.kept)
    except BaseException as problem:
        if folder.path in made and isinstance(problem, PlimsollError):  # refused: there is no run
            shutil.rmtree(folder.path, ignore_errors=True)
            _remove_empty(made)
        os.close(lock)
        raise
    session = {
        **dataclasses.asdict(options),
        "run": str(folder.path),
        "budget_bytes": budget,
        "notes": notes,
        "lock": lock,
    }
    command = [sys.executable, "-m", "plimsoll.worker", "train", json.dumps(session)]
    return Ready(command, variables, lock)


def _require_own_folder(recipe: Recipe, folder: RunFolder) -> None:
    """Raises RunError if the folder of the run is one that the recipe reads."""
    for option in rows(recipe):
        is_path = isinstance(option.default, str) and IS_PATH in notes_of(option.kind)
        if is_path and Path(option.default).absolute() == folder.path.absolute():
            raise RunError(
                f"--run {folder.path} is what {option.flag} names: a run has a folder of its own, name another --run"
            )


def _require_data_here(recipe: Recipe, folder: RunFolder) -> None:
    """Raises DataError if files of texts or chats are not here, before a model is fetched or anything is planned."""
    for flag, problem in absent_data(recipe).items():
        if not folder.has("recipe.json"):
            raise problem
        raise DataError(f"{problem} If it lies elsewhere now: `plimsoll resume {folder.path} {flag} PLACE`")


def _remove_empty(folders: list[Path]) -> None:
    """Removes those of these folders that are empty, of which the inner ones come first."""
    for folder in folders:
        with contextlib.suppress(OSError):  # another run is in there by now, or it was never made
            folder.rmdir()


def in_heap(planned: Planned) -> bool:
    """Returns whether a step's temporaries come from the heap.

    There threads that share one wait for one another, a quarter of a step of 0.3 ms; and so little leaves no holes
    that matter (notes, "A heap for each thread of a small step").
    """
    return 0 < planned.temporary_bytes < memory.SMALLEST_MAPPED


def _notes_of_changes(folder: RunFolder, before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a note where the plan has changed: from here on sums may come in another order.

    Args:
        folder: The run.
        before: Levers by which its checkpoints were trained; empty if it has none.
        now: Levers of its plan.
    """
    changed = [name for name in now if name in before and name != "pinned" and before[name] != now[name]]
    if not changed:
        return ()
    words = ", ".join(f"{name.replace('_', ' ')} {now[name]} instead of {before[name]}" for name in changed)
    return (f"planned again after step {folder.newest_whole()[0]:,}: {words}",)


def _plan_there(folder: RunFolder, options: TrainOptions) -> Planned | None:
    """Returns the run's plan; None if there is none, or a damaged one that --replan replaces."""
    if not folder.has("plan.json"):
        return None
    try:
        return folder.planned()
    except PlimsollError:
        if options.replan:
            return None
        raise


def _target(folder: RunFolder, recipe: Recipe, options: TrainOptions, say: Say, processes: int = 1) -> Chip:
    """Returns the chip to train on: by default the accelerator that is here, else the CPU.

    A run stays on its chip, unless it is planned again for another. Of several processes each has a CPU by default.
    """
    there = _plan_there(folder, options)
    theirs = there.plan.chip if there is not None else None
    given = None if options.chip is None else chip_named(options.chip).name
    if theirs is not None and given not in (None, theirs) and not options.replan:
        raise RunError(
            f"{folder.path} is planned for {theirs}, and --chip says {options.chip}: add --replan to go on there, leave"
            " --chip out, or name another --run"
        )
    if name := given or theirs or ("cpu" if processes > 1 else None):
        return chip_named(name)
    batch = options.pins.get("micro_batch") or recipe.effective_batch
    return chip_here(say, batch=batch, mesh=parse_mesh(options.mesh))


def prepare_data(folder: RunFolder, recipe: Recipe, say: Say, *, on_purpose: Collection[str] = ()) -> Prepared:
    """Prepares the data once, before training, and returns what is kept of it in the run.

    A run has begun once it has a plan; until then a corrected recipe replaces what was refused. Afterwards it changes
    as `api/changes.py` says; options in `on_purpose` may change what was learned.
    """
    changes.finish(folder)
    if folder.has("plan.json"):
        before = begun_with(folder.read("recipe.json"), recipe, run=folder.path)
        folder.require_sealed()
        prepared = Prepared.read(folder)
        changed = Changes(folder=folder, before=before, recipe=recipe, prepared=prepared, on_purpose=on_purpose)
        changes.apply(changed, say)
        return Prepared.read(folder)
    if folder.has("data.json") and folder.exists() and is_saved_as(folder.read("recipe.json"), recipe):
        folder.require_sealed()
        prepared = Prepared.read(folder)
        with contextlib.suppress(DataError):  # what was prepared is of other data: nothing was begun with it
            recipe.open(folder.path).require_same(prepared, training=True)
            return prepared
    prepared = recipe.open(folder.path).prepare(say)
    if recipe.length.steps is None and prepared.steps < FEW_STEPS:
        say(_notice_of_few_steps(recipe, prepared))
    folder.write("data.json", prepared.to_json())
    saved = to_dict(recipe)
    keep_source(saved, folder.path)
    folder.seal()
    folder.write("recipe.json", saved)
    return prepared


def _notice_of_few_steps(recipe: Recipe, prepared: Prepared) -> str:
    """Returns a notice that the steps of a run are few, with the options that make more."""
    batch, per_epoch = recipe.effective_batch, prepared.steps_per_epoch or prepared.steps
    ways = [f"--steps {FEW_STEPS:,} goes {FEW_STEPS / per_epoch:,.3g} times through the data"]
    smaller = max(1, batch * prepared.steps // FEW_STEPS)
    if recipe.length.gradient_accumulation_steps == 1 and smaller < batch:
        ways.insert(0, f"--batch-size {smaller:,} makes about {batch * prepared.steps // smaller:,} of the same data")
    count = "1 optimizer step" if prepared.steps == 1 else f"{prepared.steps:,} optimizer steps"
    return f"{count} of {batch:,} examples are few to learn from: {'; '.join(ways)}"


def _settle_plan(
    folder: RunFolder,
    recipe: Recipe,
    options: TrainOptions,
    prepared: Prepared,
    place: Place,
    say: Say,
    processes: int,
) -> int:
    """Keeps the plan in the run's folder or writes a new one there, and returns the budget in bytes.

    A started run keeps its plan, unless it went over its budget with it; --replan looks for another, which continues
    it.
    """
    went_over = overruns.read(folder)
    margin = overruns.margin_bytes(went_over)
    set_by_user = None if options.plan is not None else {*options.pins}
    if folder.has("plan.json") and not options.replan:
        planned = folder.planned()
        moved = elsewhere(planned, options.mesh, place.chip, processes=processes)
        is_changed = folder.has(changes.PENDING)
        if moved is None and not is_changed and (options.keep_plan or margin <= planned.margin_bytes):
            return _keep_plan(folder, planned, options, place, say)
        why = moved or ("has changed" if is_changed else "")
        why = why or f"went over its budget, and gets a margin of {format_bytes(margin)}"
        say(f"{folder.path} {why}: planning again")
        options = dataclasses.replace(options, memory=options.memory or planned.ledger.budget_bytes)
        if is_changed and moved is None and options.plan is None:  # the same step, compiled with another schedule
            _say_kept(planned, options, say)
            options = dataclasses.replace(options, plan=str(folder.path / "plan.json"), pins={})
            set_by_user = {*planned.plan.pinned}
        elif moved is not None and options.plan is None:  # the numbers stay: a checkpoint fits no other storage
            levers = planned.plan.levers
            touching = {name: value for name, value in levers.items() if LEVERS[name].touches != "exact"}
            pins = touching | dict(options.pins)
            set_by_user = {*options.pins, *planned.plan.pinned} & pins.keys()
            options = dataclasses.replace(options, pins=pins)
    measure = options.plan is None and place.chip.platform in ("cpu", "cuda") and processes == 1
    question = question_of(recipe, options, place.chip, measure=measure)
    place = dataclasses.replace(place_of(question, say, processes=processes, trains=True), reserve_bytes=margin)
    try:
        planned = find_plan(question, place, prepared, say)
    except BudgetError as refusal:
        if not went_over:
            raise
        last = went_over[-1]
        raise StoppedError(
            f"{folder.path} went over its budget at step {last.step:,} ({last.words()}), and no plan leaves room for"
            f" that: {refusal}\n  what was saved up to step {last.step:,} is whole: continue with a larger --memory, or"
            " with --keep-plan to go on over the budget"
        ) from None
    from plimsoll.report.tables import plan_table

    if set_by_user is not None:  # what was kept of an earlier plan is nothing that the user set
        levers = dataclasses.replace(planned.plan, pinned=tuple(sorted(set_by_user)))
        planned = dataclasses.replace(planned, plan=levers)
    say(plan_table(planned))
    _require_room(folder, planned)
    folder.write("plan.json", planned.to_dict())
    (folder.path / changes.PENDING).unlink(missing_ok=True)
    return planned.ledger.budget_bytes


def question_of(recipe: Recipe, options: TrainOptions, chip: Chip, *, measure: bool = False) -> Question:
    """Returns the question that options of training ask.

    Args:
        recipe: What is trained.
        options: Options of training.
        chip: Chip to train on.
        measure: Whether the best few plans are timed.
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
        within=options.within,
        measure=measure,
    )


def _keep_plan(
    folder: RunFolder,
    planned: Planned,
    options: TrainOptions,
    place: Place,
    say: Say,
) -> int:
    """Returns the budget of a run that keeps its plan. Raises BudgetError if the plan needs more."""
    _say_kept(planned, options, say)
    _require_room(folder, planned)
    if options.memory is None:
        return planned.ledger.budget_bytes
    needed = planned.ledger.needed_bytes
    budget = budget_bytes(options.memory, place.chip, place.card)
    if needed > budget:
        raise BudgetError(
            f"the plan of {folder.path} needs {format_budget(needed)}, and --memory allows {format_bytes(budget)}: add"
            " --replan to look for a smaller plan",
            budget_bytes=budget,
            floor_bytes=needed,
        )
    return budget


def _require_room(folder: RunFolder, planned: Planned) -> None:
    """Raises RunError if the checkpoints of a plan do not fit on the disk."""
    if planned.disk is not None:
        disk.require_room(folder.checkpoints, planned.disk)


def _say_kept(planned: Planned, options: TrainOptions, say: Say) -> None:
    """Says which options a run's plan overrules, if there are any."""
    levers = planned.plan.levers
    other = [name for name, value in options.pins.items() if levers[name] != value]
    other += ["plan"] if options.plan is not None else []
    if other:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in other)
        warn = printing(quiet=False) if options.quiet else say  # --quiet leaves warnings
        warn(f"this run has a plan and keeps it, {flags} notwithstanding: --replan looks for another")


def plan_again(request: dict[str, Any]) -> int:
    """Plans with the margin that the run has learned, and becomes the next process that trains.

    `worker.py` starts it in a process of its own after a run went over its budget.
    """

    def stop(_number: int, _frame: Any) -> NoReturn:
        print("terminated while planning again: what was saved is whole", flush=True)
        raise SystemExit(143)

    lock = request.pop("lock")
    try:
        signal.signal(signal.SIGTERM, stop)
        interruption.release()
        recipe = from_dict(RunFolder(request["run"]).read("recipe.json"))
        become(prepare_run(recipe, TrainOptions(**request), printing(quiet=request["quiet"]), lock=lock))
    except PlimsollError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("interrupted while planning again: what was saved is whole", flush=True)
        return 130
