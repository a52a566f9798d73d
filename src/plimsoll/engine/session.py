"""A training session, one process of a run: loads compiled functions and state, runs the loop, writes the ledger.

A session that exceeds the memory budget saves its state. Then its process plans the run again (`Ending.again`).
Recipe, plan and facts about the data come from the run folder (recipe.json, plan.json, data.json). The command line
becomes the training process by `exec`, so that the memory of planning is not in the resident set.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from plimsoll.engine.beginning import Start, evaluated_before, restore_or_start, schedule_of
from plimsoll.engine.budget_guard import BudgetGuard
from plimsoll.engine.console import Console
from plimsoll.engine.ledger import Measurements, held_by
from plimsoll.engine.meter import TimedSource
from plimsoll.engine.nan_watch import watched_for_nan
from plimsoll.engine.options import Session, TrainOptions
from plimsoll.engine.program import import_everything, load
from plimsoll.engine.training_run import TrainingRun
from plimsoll.errors import DeviceLostError, RecipeError, RunError
from plimsoll.files.run_folder import note_holder
from plimsoll.processes.interruption import Interruption
from plimsoll.training import distributed
from plimsoll.training.acts import Evaluate, Save
from plimsoll.training.loop import Training, run_steps
from plimsoll.training.phases import Phases
from plimsoll.training.program import Executables, held_bytes
from plimsoll.training.reports import summed
from plimsoll.training.schedule import Schedule
from plimsoll.training.stop import Ended, Reason, Stop


@dataclass(frozen=True)
class Ending:
    """End of a session: its exit code, and options for planning again."""

    code: int
    again: Mapping[str, Any] | None = None
    """Options for planning again, for `worker.py`; None if the run does not continue with another plan."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A loaded session that is ready for its first step."""

    training: Training
    console: Console
    measured: Measurements


def train_here(options: Mapping[str, Any], interruption: Interruption) -> Ending:
    """Runs a training session in this process.

    Args:
        options: Fields of `Session`, by name.
        interruption: Installed handler of signals, like SIGTERM.

    Returns:
        Exit code of the session. After an overrun of the memory budget, also the options for planning again.

    Raises:
        StoppedError: The run cannot continue, for a reason that the user can change.
        DeviceLostError: The accelerator no longer answers.
    """
    began = time.monotonic()
    session = Session(**{**options, "notes": tuple(options.get("notes", ()))})
    if session.profiler_port is not None:
        jax.profiler.start_server(session.profiler_port)
    if session.lock is not None:
        note_holder(session.lock)  # it outlives the program or notebook that took the lock
    run = TrainingRun.read(session)
    guard = BudgetGuard(run)

    # Load everything. A failed allocation here loses no steps, and the run is planned again.
    try:
        phases = Phases()
        executables = load_executables(run)
        phases.begin("start")
        if interruption.signal is not None and distributed.processes() == 1:
            print("interrupted before the first step", flush=True)
            return Ending(Reason(interruption.signal).exit_code)
        loaded = begin(run, executables, guard, phases, interruption)
    except Exception as problem:
        ended = guard.end_by(problem)  # returns only after a failed allocation that another plan may avoid
        print(guard.words(plans_again=True), flush=True)
        return ending_of(run, ended, began)

    # Train. The ledger is written even if training fails, unless the device is lost.
    with closing(loaded.measured.source):
        try:
            ended = train(loaded)
        except DeviceLostError:  # a lost device reports no memory
            loaded.console.close()
            raise
        except Exception:
            finish(loaded, None)
            raise
        finish(loaded, ended)
    return ending_of(run, ended, began)


def load_executables(run: TrainingRun) -> Executables:
    """Loads the compiled functions of the run's plan, or compiles them if the cache lacks them."""
    plan = run.plan
    if plan.chip != "cpu" and jax.default_backend() == "cpu":  # JAX falls back to the CPU without a message
        raise RunError(
            f"{run.folder.path} is planned for {plan.chip}, and JAX finds only a CPU in the process that was to train:"
            " `plimsoll doctor` says whether the accelerator can be used. What was saved is whole; run the same"
            " command again, or --replan --chip cpu to go on without it"
        )
    if not run.session.quiet:
        print("loading the functions of the plan", flush=True)
    import_everything(run.recipe, tracker=run.session.tracker)
    executables = load(run.recipe, plan, run.planned.step_options, steps=run.prepared.steps)
    if not plan.deterministic:
        run.notes.append("--deterministic False: another run of this plan, or a resumed one, differs by rounding")
    if run.session.debug_nans:
        executables = watched_for_nan(run, executables)
    distributed.barrier("loaded")
    return executables


def begin(
    run: TrainingRun, executables: Executables, guard: BudgetGuard, phases: Phases, interruption: Interruption
) -> Loaded:
    """Opens the data, and restores or creates the state. Returns a session that is ready for its first step."""
    schedule = schedule_of(run)
    start = restore_or_start(run, executables)
    require_validation(run, schedule)
    source = TimedSource(start.loader)
    measured = Measurements(
        run=run,
        guard=guard,
        phases=phases,
        source=source,
        shapes=executables.state,
        held=held_by(start.state),
        fullest_bytes=max(held_bytes(start.state).values()),
        resumed=start.resumed,
    )
    console = Console(run, schedule, source, phases, resumed=start.resumed)
    training = training_of(start, executables, console, guard, interruption)
    return Loaded(training=training, console=console, measured=measured)


def training_of(
    start: Start, executables: Executables, console: Console, guard: BudgetGuard, interruption: Interruption
) -> Training:
    """Returns the argument of the training loop: state, compiled functions, data loader, evaluation, saving, log."""
    run = console.run
    schedule = console.schedule
    before = evaluated_before(run, schedule)
    stop = Stop(schedule, before.patience, interruption, guard.is_exceeded)
    start.checkpoints.best_step = before.best.step
    save = Save(
        every=schedule.save,
        checkpoints=start.checkpoints,
        loader=console.source,
        log=console,
        last=schedule.save.begin(start.resumed or 0),
    )
    evaluate = Evaluate(
        every=schedule.evaluate,
        evaluate=partial(evaluate_run, run, executables, stop),
        best=before.best,
        patience=before.patience,
        stop=stop,
        save=save,
        log=console,
        last=schedule.evaluate.begin(before.step),
    )
    return Training(
        state=start.state,
        executables=executables,
        loader=console.source,
        evaluate=evaluate,
        save=save,
        stop=stop,
        log=console,
    )


def evaluate_run(run: TrainingRun, executables: Executables, stop: Stop, params: Any) -> Mapping[str, float]:
    """Evaluates parameters. Returns metrics on the held-out set; an empty mapping without a held-out set."""
    batches = run.open().validation(examples=run.plan.micro_batch)
    return summed(batches, executables.evaluate, params, stop.ends_evaluation)


def require_validation(run: TrainingRun, schedule: Schedule) -> None:
    """Raises RecipeError if --patience is set and the run has no held-out set."""
    if schedule.patience is None:
        return
    batches = run.open().validation(examples=run.plan.micro_batch)
    if next(iter(batches), None) is None:
        raise RecipeError(
            f"--patience {schedule.patience} needs a validation loss, and {run.folder.path} has no held-out set:"
            f" {run.recipe.data.no_validation}; or leave --patience out"
        )


def train(loaded: Loaded) -> Ended:
    """Runs the training loop, and returns the end of the session.

    Records an exceeded memory budget in the run folder. Raises errors other than failed allocations, as described at
    `BudgetGuard.end_by`.
    """
    guard = loaded.measured.guard
    phases = loaded.measured.phases
    phases.now = "start" if loaded.measured.resumed is None else "restore"
    phases.begin("train")
    guard.peak_before_training = phases.peak
    try:
        _, ended = run_steps(loaded.training)
        guard.keep_overrun(ended)
    except Exception as problem:
        ended = guard.end_by(problem)
    return ended


def finish(loaded: Loaded, ended: Ended | None) -> None:
    """Writes the ledger, and prints an overrun of the budget and a summary of the session.

    There is no summary after an error (`ended` is None), or if the run is planned again.
    """
    console = loaded.console
    ledger = loaded.measured.write(ended)
    is_over = ended is not None and ended.why is Reason.OVER_BUDGET
    plans_again = is_over and distributed.processes() == 1
    guard = loaded.measured.guard
    if guard.overrun is not None:
        console.say(guard.words(plans_again=plans_again), important=True)
    if ended is not None and not plans_again:
        console.summarise(ended, ledger, loaded.training.evaluate.best)
    console.close()


def ending_of(run: TrainingRun, ended: Ended, began: float) -> Ending:
    """Returns the exit code of a session, and options for planning again if it exceeded its budget and has time left.

    Args:
        run: The run.
        ended: Final step of the session, and the reason of its end.
        began: Time at which the session began, on the clock `time.monotonic`.
    """
    if ended.why is not Reason.OVER_BUDGET:
        return Ending(ended.why.exit_code)
    if distributed.processes() > 1:
        return Ending(3)

    # Compute the seconds of --max-minutes that are left for the next session.
    seconds_left = None
    if run.session.max_seconds is not None:
        seconds_left = run.session.max_seconds - (time.monotonic() - began)
        if seconds_left <= 0:
            return Ending(0)
    return Ending(0, again=options_again(run, seconds_left))


def options_again(run: TrainingRun, seconds_left: float | None) -> dict[str, Any]:
    """Returns the options for planning again. Memory-saving options that the user has set stay the same.

    Args:
        run: The run that exceeded its budget.
        seconds_left: Seconds that the next session may take; None for no limit.
    """
    plan = run.plan
    mesh = None
    if plan.devices > 1 and "fsdp" in plan.pinned:
        mesh = f"data={plan.devices // plan.fsdp},fsdp={plan.fsdp}"
    options = {field.name: getattr(run.session, field.name) for field in dataclasses.fields(TrainOptions)}
    of_that_plan = {"chip": None, "plan": None, "replan": False}
    return {
        **options,
        **of_that_plan,
        "memory": run.session.budget_bytes,
        "mesh": mesh,
        "pins": {name: plan.lever(name) for name in plan.pinned},
        "max_seconds": seconds_left,
        "lock": run.session.lock,
    }
