"""Start of a training session: its training state, its schedule, and the run's earlier evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from plimsoll.engine.meter import evaluation_steps
from plimsoll.engine.training_run import TrainingRun
from plimsoll.optimizers.in_place import in_place
from plimsoll.report.metrics import read_rows
from plimsoll.training import distributed, memory
from plimsoll.training.checkpoints import Checkpoints, Loaded
from plimsoll.training.initial_weights import own_copies, with_initial
from plimsoll.training.on_device import OnDevice
from plimsoll.training.program import Executables
from plimsoll.training.schedule import Best, Every, Patience, Schedule, best_of
from plimsoll.training.step import State
from plimsoll.types import Source

BY_CLOCK = Every(seconds=300.0, first_seconds=60.0, largest_share=0.05)
"""Default time between checkpoints of a run that one process trains. Such a run also saves after a number of steps."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Training state, data loader and checkpoints at the start of a training session."""

    checkpoints: Checkpoints
    loader: Source
    """Data loader, positioned at the batch of the next step."""
    state: State
    resumed: int | None
    """Step of the loaded checkpoint; None for a new run."""


def restore_or_start(run: TrainingRun, executables: Executables) -> Start:
    """Opens checkpoints and data. Loads the newest undamaged checkpoint, or creates the state of a new run."""
    checkpoints = Checkpoints(
        run.folder,
        in_background=run.plan.lever("async_save"),
        frozen=not run.recipe.hints.frozen_given,
        plan=run.plan.to_dict(),
    )
    loader = run.open().source(prefetch=run.plan.lever("prefetch"))
    distributed.barrier("data")  # a host without the tokenised text has just tokenised it, which takes minutes
    if jax.default_backend() != "cpu":
        loader = OnDevice(loader, executables.put)
    try:
        loaded = restored(run, executables, checkpoints)
        if loaded is None:
            state = first_state(run, executables)
        else:
            state = loaded.state
            if loaded.position.step > run.prepared.data_since:
                loader.restore(loaded.position.loader)
    except BaseException:
        loader.close()
        raise
    memory.trim()
    step = None if loaded is None else loaded.position.step
    return Start(checkpoints=checkpoints, loader=loader, state=state, resumed=step)


def restored(run: TrainingRun, executables: Executables, checkpoints: Checkpoints) -> Loaded | None:
    """Loads the newest undamaged checkpoint; None without one. Adds notes on damaged checkpoints and lost steps."""
    # If frozen weights come from the recipe's own files, read them there: checkpoints leave them out.
    has_saved = distributed.of_first("has-saved", lambda: bool(run.folder.saved_steps()))
    frozen: dict[str, Any] = {}
    if run.recipe.hints.frozen_given and has_saved:
        frozen = frozen_weights(run, executables)

    loaded, damaged = checkpoints.newest(executables.state)
    run.notes.extend(damaged)
    if loaded is not None:
        loaded.state["params"] |= frozen
        return loaded
    last = max((row["step"] for row in read_rows(run.folder.metrics)), default=0)
    if damaged:
        run.notes.append("no checkpoint is whole: starting from the beginning")
    elif last:
        run.notes.append(f"starting over, nothing was saved yet: the last logged step was {last:,}")
    return None


def sampled_state(run: TrainingRun, executables: Executables) -> State:
    """Returns a training state that is initialized at random from the recipe's seed."""
    seed = np.uint32(run.recipe.length.seed % 2**32)
    return jax.block_until_ready(executables.init(seed))


def first_state(run: TrainingRun, executables: Executables) -> State:
    """Returns the state of a new run, with initial weights from files if the recipe names some, else random ones."""
    state = sampled_state(run, executables)
    options = run.recipe.hints.begins_with
    if options:
        rule = in_place(run.recipe.update_rule(run.prepared.steps, run.plan.storage))
        entries = with_initial(state, run.open().load, rule.average)
        if entries is not None:
            run.notes.append(f"the run began with weights that were given to it ({options})")
            state |= entries
    return state


def frozen_weights(run: TrainingRun, executables: Executables) -> dict[str, Any]:
    """Loads the recipe's frozen weights from files, as {"frozen": weights}, to be merged into the parameters."""
    state = sampled_state(run, executables)
    sampled = state["params"].pop("frozen")
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    return {"frozen": own_copies(run.open().load_frozen(sampled), sampled)}


def schedule_of(run: TrainingRun) -> Schedule:
    """Returns the schedule by which this session evaluates, saves and ends."""
    session = run.session
    steps = run.prepared.steps

    # Defaults: evaluate after epochs or quarters of the run. Save after each quarter or 1,000 steps, whichever is
    # shorter. A single process also saves by the clock.
    evaluate = Every(steps=evaluation_steps(run.prepared))
    save = Every(steps=max(1, min(1000, steps // 4)))
    if distributed.processes() == 1:
        save = replace(BY_CLOCK, steps=save.steps)

    return Schedule(
        steps=steps,
        last_step=min(steps, session.max_steps or steps),
        seconds=math.inf if session.max_seconds is None else session.max_seconds,
        evaluate=session.often("eval_every") or evaluate,
        save=session.often("save_every") or save,
        best_by=run.recipe.model.uses.best_by,
        patience=session.patience,
    )


@dataclass(frozen=True)
class Evaluated:
    """Evaluations of a run's earlier sessions."""

    best: Best
    patience: Patience
    step: int
    """Step of the latest evaluation; 0 without one."""


def evaluated_before(run: TrainingRun, schedule: Schedule) -> Evaluated:
    """Reads the evaluations of earlier sessions from the logged metrics.

    `best` and `patience` ignore evaluations on data that was replaced since. If several processes train the run, all
    use the results of process 0, except the best step. Only process 0 needs this step, because it alone removes
    checkpoints.
    """
    rows = list(read_rows(run.folder.metrics))
    same_data = [row for row in rows if row["step"] > run.prepared.data_since]
    best = best_of(same_data, run.folder.saved_steps() if distributed.process() == 0 else (), schedule.best_by)
    patience = Patience(schedule)
    patience.add_rows(same_data)
    last = max((row["step"] for row in rows if "validation_loss" in row), default=0)

    of_first = distributed.of_first("evaluated", lambda: [last, patience.best, patience.since_best])
    last, patience.best, patience.since_best = of_first
    return Evaluated(best, patience, last)
