"""Preparation of a run for `plimsoll train` and `plimsoll.train`: folder, data, plan, and the training command.

Imports no JAX. Other processes compile plans and train (`api/follow.py` starts the training process).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any, NoReturn

from plimsoll.api import changes
from plimsoll.api.changes import Changes
from plimsoll.api.messages import Say, printing
from plimsoll.api.plan_of_run import Starting, notes_of_changes, question_of, settle_plan
from plimsoll.api.planning.card import training_environment
from plimsoll.api.planning.find import problem_of, seconds_for
from plimsoll.api.planning.pins import require_levers
from plimsoll.api.planning.place import Place, chip_here, chip_named, parse_mesh, place_of, require_free
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import DataError, PlimsollError, RecipeError, RunError
from plimsoll.files.provenance import note_session
from plimsoll.files.run_folder import RunFolder
from plimsoll.options import IS_PATH, notes_of
from plimsoll.planned import Planned
from plimsoll.planner.chips import Chip
from plimsoll.processes import interruption
from plimsoll.processes.handover import Ready, become
from plimsoll.recipes.flat import rows, unresolvable_data
from plimsoll.recipes.own.files import keep_source
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import begun_with, from_dict, is_saved_as, name_of, to_dict
from plimsoll.training import disk, memory

FEW_STEPS = 30
"""Number of optimizer steps below which training begins with a warning, unless the user sets --steps."""


def prepare_run(
    recipe: Recipe, options: TrainOptions, say: Say, *, lock: int | None = None, processes: int = 1
) -> Ready:
    """Prepares folder, data and plan of a run. Returns the command, environment and lock of its training process.

    The caller must close the lock after the training process has started.

    Args:
        recipe: Recipe of the run.
        options: Options of training.
        say: Function that is called with progress messages.
        lock: File descriptor of the run's lock, if this process already holds it.
        processes: Number of processes that train the run together, each with its own devices.
    """
    from plimsoll.report.trackers import require_tracker

    require_tracker(options.tracker)
    require_levers(options.pins)
    options.refuse_clock(processes)
    folder = RunFolder(options.run or f"runs/{options.name or name_of(recipe)}")
    _require_own_folder(recipe, folder)
    _require_data_here(recipe, folder)
    run = Starting(folder=folder, recipe=recipe, options=options, say=say, processes=processes)
    with _locked(folder, lock) as lock:
        # Refuse impossible options before the data is prepared, which may take long.
        place = _place_of(run)
        trained_by = folder.trained_by()
        data = prepare_data(folder, recipe, say, on_purpose=options.on_purpose)

        budget = settle_plan(run, place, data)
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
        notes = (*notes_of_changes(folder, trained_by, planned.plan.to_dict()), *data.changes)
        note_session(folder, notes, options.kept)
    session = {
        **dataclasses.asdict(options),
        "run": str(folder.path),
        "budget_bytes": budget,
        "notes": notes,
        "lock": lock,
    }
    command = [sys.executable, "-m", "plimsoll.worker", "train", json.dumps(session)]
    return Ready(command, variables, lock)


@contextlib.contextmanager
def _locked(folder: RunFolder, lock: int | None) -> Generator[int]:
    """Creates the folder of a run and yields the file descriptor of the run's lock, which stays open.

    After an error the lock is closed. After a PlimsollError, a folder that was created here is removed.
    """
    made = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    try:
        folder.create()
    except RunError:
        _remove_empty(made)
        raise
    lock = folder.lock() if lock is None else lock
    try:
        yield lock
    except BaseException as problem:
        if folder.path in made and isinstance(problem, PlimsollError):
            shutil.rmtree(folder.path, ignore_errors=True)
            _remove_empty(made)
        os.close(lock)
        raise


def _place_of(run: Starting) -> Place:
    """Returns the chip and budgets for a run to train. Raises PlimsollError for options that no plan can satisfy."""
    options = dataclasses.replace(run.options, plan=None) if run.has_plan else run.options
    question = question_of(run.recipe, options, _target(run))
    place = place_of(question, processes=run.processes, trains=True)
    if options.debug_nans and place.chip.devices > 1:
        raise RecipeError(
            "--debug-nans takes a step again, one operation at a time on one device, and this run has"
            f" {place.chip.devices}: add --mesh data=1, or leave it out"
        )
    if not run.has_plan:
        seconds_for(question, place)
        problem_of(question, place, None)
        disk.require_room(run.folder.checkpoints, disk.needed(0))
    return place


def _require_own_folder(recipe: Recipe, folder: RunFolder) -> None:
    """Raises RunError if the recipe reads data or weights at the path of the run's folder."""
    for option in rows(recipe):
        is_path = isinstance(option.default, str) and IS_PATH in notes_of(option.kind)
        if is_path and Path(option.default).absolute() == folder.path.absolute():
            raise RunError(
                f"--run {folder.path} is also named by {option.flag}: a run needs its own folder, name another --run"
            )


def _require_data_here(recipe: Recipe, folder: RunFolder) -> None:
    """Raises DataError if files of texts or chats do not exist, before a model is fetched or anything is planned."""
    for flag, problem in unresolvable_data(recipe).items():
        if not folder.has("recipe.json"):
            raise problem
        raise DataError(f"{problem} If the data has moved: `plimsoll resume {folder.path} {flag} PLACE`")


def _remove_empty(folders: list[Path]) -> None:
    """Removes empty folders, which are listed from the innermost to the outermost."""
    for folder in folders:
        with contextlib.suppress(OSError):  # the folder does not exist, or has another run by now
            folder.rmdir()


def in_heap(planned: Planned) -> bool:
    """Returns True if all temporary arrays of a step are small enough to be allocated on the heap of malloc.

    If so, threads that share one heap wait for one another, which takes a quarter of the time of a 0.3 ms step. With a
    heap for each thread, arrays so small cause little fragmentation (notes, "A heap for each thread of a small step").
    """
    return 0 < planned.temporary_bytes < memory.SMALLEST_MAPPED


def _chip_of_plan(run: Starting) -> str | None:
    """Returns the chip of the run's plan; None if there is no plan, or a damaged plan that --replan replaces."""
    if not run.folder.has("plan.json"):
        return None
    try:
        return run.folder.planned().plan.chip
    except PlimsollError:
        if run.has_plan:
            raise
        return None


def _target(run: Starting) -> Chip:
    """Returns the chip to train on: by default this machine's accelerator, or else its CPU.

    A run with a plan stays on the plan's chip, unless --chip and --replan are set. Several processes train on CPUs by
    default.
    """
    options = run.options
    theirs = _chip_of_plan(run)
    named = None if options.chip is None else chip_named(options.chip).name
    if theirs is not None and named not in (None, theirs) and not options.replan:
        raise RunError(
            f"{run.folder.path} is planned for {theirs}, and --chip says {options.chip}: add --replan to go on there,"
            " leave --chip out, or name another --run"
        )
    if name := named or theirs or ("cpu" if run.processes > 1 else None):
        return chip_named(name)
    batch = options.pins.get("micro_batch") or run.recipe.effective_batch
    return chip_here(run.say, batch=batch, mesh=parse_mesh(options.mesh))


def prepare_data(folder: RunFolder, recipe: Recipe, say: Say, *, on_purpose: Collection[str] = ()) -> Prepared:
    """Prepares the data of a run once, like its tokenizer. Returns the facts about the data that data.json keeps.

    A run without a plan has not begun, so its recipe and data are replaced if `recipe` is another one. For a run that
    has begun, `api/changes.py` checks the changes. Options named in `on_purpose` may change the results of training.
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
        with contextlib.suppress(DataError):  # other data was prepared, and training has not begun: prepare again
            recipe.open(folder.path).require_same(prepared, training=True)
            return prepared
    prepared = recipe.open(folder.path).prepare(say)
    if recipe.length.steps is None and prepared.steps < FEW_STEPS:
        count = f"{prepared.steps:,} optimizer steps of {recipe.effective_batch:,} examples"
        say(f"{count} are few to learn from: take more steps with a smaller --batch-size, or with --steps {FEW_STEPS}")
    folder.write("data.json", prepared.to_json())
    saved = to_dict(recipe)
    keep_source(saved, folder.path)
    folder.seal()
    folder.write("recipe.json", saved)
    return prepared


def plan_again(request: dict[str, Any]) -> int:
    """Plans a run again with a safety margin after it exceeded its budget. If planning fails, returns the exit code.

    `worker.py` calls this function in a separate process, which then becomes the run's next training process (exec).
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
