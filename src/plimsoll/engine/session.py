"""The training process: loads what was compiled, restores or starts, runs the loop, writes the ledger.

A run that goes over its budget saves, logs it, and hands its process back to planning (`Ending.again`).

It finds everything in the run folder (recipe.json, plan.json, data.json). The command line has become this process by
exec, so that its resident set starts from nothing.
"""

from __future__ import annotations

import dataclasses
import math
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plimsoll.engine.budget_guard import BudgetGuard
from plimsoll.engine.ledger import Measurements
from plimsoll.engine.log import SessionLog, TimedSource
from plimsoll.engine.options import Session, TrainOptions
from plimsoll.engine.program import import_everything, load
from plimsoll.errors import RecipeError, RunError, StoppedError, ended_by_memory
from plimsoll.files.run_folder import RunFolder, note_holder
from plimsoll.optimizers.in_place import in_place
from plimsoll.planned import EndedEarly
from plimsoll.processes.interruption import Interruption
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.saved import from_dict
from plimsoll.report.metrics import read_rows
from plimsoll.training import allocator, distributed, memory, program
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.initial_weights import own_copies, with_initial
from plimsoll.training.loop import Ended, run_steps, summed
from plimsoll.training.on_device import OnDevice
from plimsoll.training.schedule import Best, EarlyStopping, Schedule, best_of
from plimsoll.training.step import make_step
from plimsoll.types import Batch, Source

Step = Callable[[Any, Batch], tuple[Any, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Ending:
    """End of a session: its exit code, and whether another plan follows."""

    code: int
    again: Mapping[str, Any] | None = None
    """Options of the process that plans again, where the run continues with another plan (`worker.py`)."""


def train_here(options: Mapping[str, Any], interruption: Interruption) -> Ending:
    """Runs the session in this process."""
    session = Session(**{**options, "notes": tuple(options.get("notes", ()))})
    if session.profiler_port is not None:
        jax.profiler.start_server(session.profiler_port)
    return _Training(session, interruption).run()


class _Training:
    """One session from its start to its end. Its measurements become the ledger."""

    def __init__(self, session: Session, interruption: Interruption) -> None:
        self.session, self.folder, self.interruption = session, RunFolder(session.run), interruption
        if session.lock is not None:
            note_holder(session.lock)  # it outlives the program or notebook that took the lock
        self.recipe = from_dict(self.folder.read("recipe.json"))
        self.planned = self.folder.planned()
        self.plan = self.planned.plan
        self.prepared = Prepared.read(self.folder)
        self.notes = list(session.notes)
        self.guard = BudgetGuard(session, self.folder, self.planned, steps=self.prepared.steps)
        self.measured = Measurements(session, self.folder, self.planned, self.guard, self.notes)
        self.start = time.monotonic()

    def run(self) -> Ending:
        try:
            ended = self._train()
        except Exception as problem:
            if allocator.device_lost(problem):
                raise self.guard.lost(problem) from problem
            ended = self._refused(problem)
            print(self.guard.words(plans_again=True), flush=True)
        if ended.signal is not None:
            return Ending(128 + ended.signal)
        limit = self.session.max_seconds
        left = None if limit is None else limit - (time.monotonic() - self.start)
        if ended.over and distributed.processes() > 1:
            return Ending(3)
        if not ended.over or (left is not None and left <= 0):
            return Ending(0)
        return Ending(0, again=self._again(left))

    def _train(self) -> Ended:
        executables, agreed = self._load(), distributed.Agreement()
        distributed.barrier("loaded")
        if self.interruption.signal is not None and distributed.processes() == 1:
            print("interrupted before the first step", flush=True)
            return Ended(0, self.interruption.signal, False)
        checkpoints = Checkpoints(
            self.folder,
            in_background=self.plan.async_save,
            frozen=not self.recipe.hints.frozen_given,
            plan=self.plan.to_dict(),
        )
        loader = self.recipe.open(self.folder.path).source(prefetch=self.plan.prefetch)
        distributed.barrier("data")  # a host without the tokenised text has made it: minutes
        if jax.default_backend() != "cpu":
            loader = OnDevice(loader, executables.put)
        try:
            state, resumed = self._start(executables, checkpoints, loader)
            schedule, source = self._schedule(), TimedSource(loader, self.measured.marks)
            self._require_validation(schedule)
            log = SessionLog(
                self.session,
                self.recipe,
                self.planned,
                self.prepared,
                self.folder,
                schedule,
                source,
                resumed=resumed,
                notes=self.notes,
            )

            def signal() -> int:
                return agreed(self.interruption.signal or 0)

            def evaluate(params: Any) -> Mapping[str, float]:
                self.measured.evaluated = True
                batches = self.recipe.open(self.folder.path).validation(examples=self.plan.micro_batch)
                return summed(iter(batches), executables.evaluate, params, signal)

            ended, lost = None, False
            best = self._best()
            self.guard.started = allocator.peak_bytes()
            try:
                state, ended = run_steps(
                    state,
                    source,
                    executables,
                    schedule,
                    checkpoints,
                    evaluate,
                    log,
                    self.interruption,
                    self.guard.exceeded,
                    self._early_stopping(schedule),
                    best,
                    self._last_evaluated(),
                )
                self.guard.session_ended(ended)
                if ended.early and schedule.patience is not None:
                    self.measured.ended_early = EndedEarly(step=ended.step, patience=schedule.patience)
            except Exception as problem:
                lost = allocator.device_lost(problem)
                ended = self._refused(problem)
            finally:
                ledger = None if lost else self.measured.write(executables.state, log)
                plans_again = ended is not None and ended.over and distributed.processes() == 1
                if self.guard.overrun is not None:
                    log.say(self.guard.words(plans_again=plans_again), important=True)
                log.close(None if plans_again else ended, ledger, best)
        finally:
            loader.close()
        assert ended is not None
        return ended

    def _refused(self, problem: Exception) -> Ended:
        """Returns how the session ended where the allocator refused; raises any other problem.

        Of several processes it raises StoppedError, which ends this one, and JAX ends the others. The first one keeps
        an overrun of its own before.
        """
        if not allocator.refused(problem):
            raise problem
        ended = self.guard.refused(problem) if distributed.process() == 0 else None
        if ended is None or distributed.processes() > 1:
            raise StoppedError(ended_by_memory(problem)) from None
        return ended

    def _again(self, seconds_left: float | None) -> dict[str, Any]:
        """Returns the options of the process that plans again: what the user pinned stays pinned."""
        plan, mesh = self.plan, None
        if plan.devices > 1 and "fsdp" in plan.pinned:
            mesh = f"data={plan.devices // plan.fsdp},fsdp={plan.fsdp}"
        options = {field.name: getattr(self.session, field.name) for field in dataclasses.fields(TrainOptions)}
        return options | {
            "memory": self.session.budget_bytes,
            "mesh": mesh,
            "pins": {name: getattr(plan, name) for name in plan.pinned},
            "max_seconds": seconds_left,
            "lock": self.session.lock,
            **{"chip": None, "plan": None, "replan": False},  # those of the plan that it went over its budget with
        }

    def _load(self) -> program.Executables:
        if self.plan.chip != "cpu" and jax.default_backend() == "cpu":  # JAX falls back to it without a word
            raise RunError(
                f"{self.folder.path} is planned for {self.plan.chip}, and JAX finds only a CPU in the process that was"
                " to train: `plimsoll doctor` says whether the accelerator can be used. What was saved is whole; run"
                " the same command again, or --replan --chip cpu to go on without it"
            )
        import_everything(self.recipe, tracker=self.session.tracker)
        executables = load(self.recipe, self.plan, steps=self.prepared.steps)
        self.measured.marks["peak while loading"] = allocator.peak_bytes()
        if not self.plan.deterministic:
            self.notes.append("--deterministic False: another run of this plan, or a resumed one, differs by rounding")
        if not self.session.debug_nans:
            return executables
        self.notes.append("--debug-nans keeps a second copy of the state, which the plan does not count")
        task = self.recipe.task(self.plan.compute(jax.default_backend()))
        rule = self.recipe.update_rule(self.prepared.steps, self.plan.storage)
        step = make_step(task, rule, **program.of_plan(self.plan))
        batch = program.shapes(self.recipe.spec.batch(self.recipe.effective_batch))
        lowered = jax.jit(step).lower(executables.state, batch)
        compiled = program.compiled(lowered, deterministic=self.plan.deterministic)
        return dataclasses.replace(executables, step=stopping_at_nan(step, compiled, self.folder.path / "nan.txt"))

    def _start(
        self, executables: program.Executables, checkpoints: Checkpoints, loader: Source
    ) -> tuple[Any, int | None]:
        has_saved = distributed.of_first("has-saved", lambda: bool(self.folder.saved_steps()))
        frozen = self._frozen(executables) if self.recipe.hints.frozen_given and has_saved else {}
        loaded, notes = checkpoints.newest(executables.state)
        self.notes += notes
        if loaded is None:
            logged = read_rows(self.folder.metrics)
            last = max((row["step"] for row in logged), default=0)
            if notes:
                self.notes.append("no checkpoint is whole: starting from the beginning")
            elif last:
                self.notes.append(f"starting over, nothing was saved yet: the last step that was logged is {last:,}")
            frozen.clear()  # two of them are never in memory
            state = self._first(executables)
            state |= self._given(state)
        else:
            state = loaded.state
            state["params"] |= frozen
            if loaded.position.step > self.prepared.data_since:
                loader.restore(loaded.position.loader)
        memory.trim()
        step = None if loaded is None else loaded.position.step
        self.measured.started(state, resumed=step)
        return state, step

    def _first(self, executables: program.Executables) -> Any:
        """Returns the state as it is drawn."""
        return jax.block_until_ready(executables.init(np.uint32(self.recipe.length.seed % 2**32)))

    def _frozen(self, executables: program.Executables) -> dict[str, Any]:
        """Returns the frozen weights of the parameters, which the checkpoints leave out, as a dictionary with them."""
        state = self._first(executables)
        drawn = state["params"].pop("frozen")
        for leaf in jax.tree.leaves(state):
            leaf.delete()
        return {"frozen": own_copies(self.recipe.open(self.folder.path).load_frozen(drawn), drawn)}

    def _given(self, state: Any) -> dict[str, Any]:
        """Returns the entries of the state that begin with the recipe's own parameters, if it has some."""
        options = self.recipe.hints.begins_with
        if not options:
            return {}
        rule = in_place(self.recipe.update_rule(self.prepared.steps, self.plan.storage))
        opened = self.recipe.open(self.folder.path)
        entries = with_initial(state, opened.load, rule.average)
        if entries is None:
            return {}
        self.notes.append(f"the run began with weights that were given to it ({options})")
        return entries

    def _schedule(self) -> Schedule:
        prepared, session = self.prepared, self.session
        steps = prepared.steps
        every = prepared.evaluate_every or prepared.steps_per_epoch or max(1, steps // 4)
        return Schedule(
            steps=steps,
            stop_at=min(steps, session.max_steps or steps),
            stop_after_seconds=math.inf if session.max_seconds is None else session.max_seconds,
            evaluate_every=every if session.eval_every is None else session.eval_every,
            save_every=max(1, min(1000, steps // 4)) if session.save_every is None else session.save_every,
            save_by_clock=session.save_every is None,
            best_by=self.recipe.model.uses.best_by,
            patience=session.patience,
        )

    def _require_validation(self, schedule: Schedule) -> None:
        """Raises RecipeError for --patience without a held-out set."""
        if schedule.patience is None:
            return
        batches = self.recipe.open(self.folder.path).validation(examples=self.plan.micro_batch)
        if next(iter(batches), None) is None:
            raise RecipeError(
                f"--patience {schedule.patience} needs a validation loss, and {self.folder.path} has no held-out set:"
                f" {self.recipe.data.no_validation}; or leave --patience out"
            )

    def _best(self) -> Best:
        """Returns the best evaluation so far; of several processes only the first one removes what is not kept."""
        if distributed.process() != 0:
            return Best(self.recipe.model.uses.best_by)
        rows = read_rows(self.folder.metrics, after=self.prepared.data_since)
        return best_of(rows, self.folder.saved_steps(), self.recipe.model.uses.best_by)

    def _last_evaluated(self) -> int:
        """Returns the last step whose evaluation was logged."""
        steps = [row["step"] for row in read_rows(self.folder.metrics) if "validation_loss" in row]
        return distributed.of_first("last-evaluated", lambda: max(steps, default=0))

    def _early_stopping(self, schedule: Schedule) -> EarlyStopping:
        """Returns the count of evaluations without a better one so far."""
        stopping = EarlyStopping(schedule)
        if schedule.patience is None:
            return stopping
        stopping.add_rows(read_rows(self.folder.metrics, after=self.prepared.data_since))
        so_far = [stopping.best, stopping.since_best]
        stopping.best, stopping.since_best = distributed.of_first("early-stopping", lambda: so_far)
        return stopping


def stopping_at_nan(step: Step, compiled: Step, report: Path) -> Step:
    """Returns a step for `--debug-nans`, which raises StoppedError with the place of the first NaN.

    Training runs at full speed until a step's loss or gradient is not finite. The state before it is still there (the
    step is compiled without donation, which costs a second copy of the state), so that step is taken again outside of
    `jit` with `jax_debug_nans`, which stops at the first operation whose result is NaN.

    Args:
        step: The step before it was compiled.
        compiled: The step, compiled without donation.
        report: File for the traceback.
    """

    def watched(state: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        new_state, metrics = compiled(state, batch)
        if all(math.isfinite(metrics[name]) for name in ("loss", "gradient_norm")):
            return new_state, metrics
        number = int(state["step"]) + 1
        try:
            with jax.debug_nans(True), jax.disable_jit():
                step(state, batch)
        except FloatingPointError as problem:
            frames = traceback.extract_tb(problem.__traceback__)[1:]
        else:
            raise StoppedError(
                f"step {number}: the loss or the gradient is not finite, but the same step taken one operation at a"
                " time makes no NaN: it is an infinity, or an effect of the compiled order of sums. Nothing was saved"
                " over the last good checkpoint; lower --learning-rate in a new --run"
            )
        library = str(Path(jax.__file__).parent)
        frames = [frame for frame in frames if not frame.filename.startswith(library)] or list(frames)
        report.write_text("".join(traceback.format_list(frames)))
        place = frames[-1]
        raise StoppedError(
            f"step {number}: the first NaN is made in {place.name} ({place.filename}, line {place.lineno}):"
            f" `{place.line}`. The way there is in {report}. Nothing was saved over the last good checkpoint"
        )

    return watched
