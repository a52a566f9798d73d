"""The training process: loads what was compiled, restores or starts, runs the loop, writes the ledger.

A run that goes over its budget saves, logs it, and hands its process back to planning (`Ending.again`).

It finds everything in the run folder (recipe.json, plan.json, data.json). The command line has become this process by
exec, so that its resident set starts from nothing.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from plimsoll.engine.budget_guard import BudgetGuard
from plimsoll.engine.ledger import Measurements
from plimsoll.engine.log import SessionLog
from plimsoll.engine.options import Session, TrainOptions
from plimsoll.engine.program import import_everything, load
from plimsoll.optimizers.in_place import in_place
from plimsoll.planned import Plan
from plimsoll.processes.interruption import Interruption
from plimsoll.recipes.base import Prepared
from plimsoll.recipes.saved import from_dict
from plimsoll.runs.folder import RunFolder
from plimsoll.training import allocator, distributed, memory, program
from plimsoll.training.checkpoint import Checkpoints
from plimsoll.training.initial_weights import with_initial
from plimsoll.training.loop import Ended, Schedule, run_steps, summed
from plimsoll.training.nans import Watched
from plimsoll.training.step import make_step
from plimsoll.types import Source


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
        self.recipe = from_dict(self.folder.read("recipe.json"))
        self.planned = self.folder.read("plan.json")
        self.plan = Plan.from_dict(self.planned["plan"])
        self.prepared = Prepared(**self.folder.read("data.json"))
        self.notes = list(session.notes)
        self.guard = BudgetGuard(
            session, self.folder, self.planned, budget_bytes=session.budget_bytes, steps=self.prepared.steps
        )
        self.measured = Measurements(
            self.folder,
            self.planned,
            self.guard,
            self.notes,
            kind=self.recipe.kind,
            budget_bytes=session.budget_bytes,
            tracker=session.tracker,
        )
        self.start = time.monotonic()

    def run(self) -> Ending:
        try:
            ended = self._train()
        except Exception as problem:
            if not allocator.refused(problem):
                raise
            ended = self.guard.refused(problem, self.folder.checkpoints)
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
        executables = self._load()
        distributed.barrier("loaded")
        if self.interruption.signal is not None and distributed.processes() == 1:
            print("interrupted before the first step", flush=True)
            return Ended(0, self.interruption.signal, False, {})
        in_background = self.plan.async_save and distributed.processes() == 1  # while steps send, nothing else may
        checkpoints = Checkpoints(self.folder.checkpoints, in_background=in_background)
        loader = self.recipe.source(self.folder.path, prefetch=self.plan.prefetch)
        try:
            state, resumed = self._start(executables, checkpoints, loader)
            log = SessionLog(self.session, self.recipe, self.planned, self.prepared, self.folder, resumed)
            for note in self.notes:
                log.say(note, important=True)
            schedule = self._schedule()
            source = _TimedSource(loader, self.measured.marks)
            log.opened(schedule, resumed, source)
            ended = None
            self.guard.training_begins()
            try:
                state, ended = run_steps(
                    state,
                    source,
                    executables,
                    schedule,
                    checkpoints,
                    lambda params: self._evaluate(params, executables),
                    log,
                    self.interruption,
                    self.guard.exceeded,
                )
                self.guard.session_ended(ended)
            except Exception as problem:
                if not allocator.refused(problem):
                    raise
                ended = self.guard.refused(problem, self.folder.checkpoints)
            finally:
                self.measured.write(executables.state, log)
                self.measured.calibrate(log)
                plans_again = ended is not None and ended.over and distributed.processes() == 1
                if self.guard.overrun is not None:
                    log.say(self.guard.words(plans_again=plans_again), important=True)
                log.close(None if plans_again else ended, self.folder.read("ledger.json"), checkpoints.best())
        finally:
            loader.close()
        assert ended is not None
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
        import_everything(self.recipe, tracker=self.session.tracker)
        executables = load(self.recipe, self.plan, steps=self.prepared.steps)
        self.measured.loaded()
        if self.session.debug_nans:
            self.notes.append("--debug-nans keeps a second copy of the state, which the plan does not count")
            executables = dataclasses.replace(executables, step=self._watched(executables.state))
        return executables

    def _watched(self, state: Any) -> Watched:
        task = self.recipe.task(self.plan.compute(jax.default_backend()))
        rule = self.recipe.update_rule(self.prepared.steps, self.plan.storage)
        step = make_step(task, rule, accumulation=self.plan.accumulation, layerwise=self.plan.layerwise)
        batch = program.shapes(self.recipe.batch_spec(self.recipe.effective_batch))
        return Watched(step, program.compiled(jax.jit(step).lower(state, batch)), self.folder.path / "nan.txt")

    def _start(
        self, executables: program.Executables, checkpoints: Checkpoints, loader: Source
    ) -> tuple[Any, int | None]:
        step, state, position, notes = checkpoints.newest(executables.state)
        noted = " ".join(notes)
        self.notes += notes + [  # the session that set them aside may have been killed before it logged it
            f"{name} is a damaged checkpoint that an earlier session set aside"
            for name in checkpoints.set_aside()
            if name not in noted
        ]
        if step is None:
            if notes:
                self.notes.append("no checkpoint is whole: starting from the beginning")
            state = executables.init(np.uint32(self.recipe.seed % 2**32))
            state = self._initial(jax.block_until_ready(state), executables.state)
        else:
            loader.restore(position)
        memory.trim()
        self.measured.started(state, resumed=step)
        return state, step

    def _initial(self, state: Any, like: Any) -> Any:
        """Returns the state with the recipe's initial parameters, where they are not the random ones."""
        rule = in_place(self.recipe.update_rule(self.prepared.steps, self.plan.storage))
        entries = with_initial(state, self.recipe.begin, rule.average)
        if entries is None:
            return state
        if self.plan.devices > 1:
            entries = jax.tree.map(
                lambda leaf, spec: jax.device_put(leaf, spec.sharding), entries, {name: like[name] for name in entries}
            )
        self.notes.append(f"the run began with weights that were given to it ({self.recipe.begins_with})")
        return jax.block_until_ready(state | entries)

    def _schedule(self) -> Schedule:
        steps, session = self.prepared.steps, self.session
        per_epoch = self.prepared.steps_per_epoch
        every_epoch = per_epoch or max(1, steps // 4)
        return Schedule(
            steps=steps,
            stop_at=min(steps, session.max_steps or steps),
            stop_after_seconds=math.inf if session.max_seconds is None else session.max_seconds,
            evaluate_every=every_epoch if session.eval_every is None else session.eval_every,
            save_every=max(1, min(1000, steps // 4)) if session.save_every is None else session.save_every,
            best_by=self.recipe.best_by,
        )

    def _evaluate(self, params: Any, executables: program.Executables) -> Mapping[str, float]:
        self.measured.evaluated = True
        batches = iter(self.recipe.validation(self.folder.path, examples=self.plan.micro_batch))
        return summed(batches, executables.evaluate, params)


class _TimedSource:
    """A source that notes the memory in use after its first batch, and how long training waited for batches."""

    def __init__(self, source: Source, marks: dict[str, int]) -> None:
        self._source, self._marks = source, marks
        self.waited_seconds = 0.0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        start = time.monotonic()
        batch = next(self._source)
        self.waited_seconds += time.monotonic() - start
        if "data" not in self._marks:
            self._marks["data"] = allocator.bytes_now()
        return batch

    def state(self) -> dict[str, Any]:
        return self._source.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._source.restore(state)

    def close(self) -> None:
        self._source.close()
