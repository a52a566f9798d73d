"""The training process: loads what was compiled, restores or starts, runs the loop, writes the ledger.

Part of the joint. It finds everything in the run folder (recipe.json, plan.json, data.json); the command line has
turned into it by exec, so that its resident set starts from nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plimsoll.errors import RunError
from plimsoll.planner.types import Rehearsal
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.registry import from_dict
from plimsoll.session_log import SessionLog
from plimsoll.session_options import SessionOptions
from plimsoll.training import memory, program
from plimsoll.training.checkpoint import Checkpoints, load_state
from plimsoll.training.folder import RunFolder
from plimsoll.training.interruption import Interruption
from plimsoll.training.loop import Schedule, run_steps, summed
from plimsoll.training.nans import Watched
from plimsoll.training.step import make_step
from plimsoll.types import Plan, Source
from plimsoll.units import format_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session(SessionOptions):
    """What a session is asked to do beyond what stands in the run folder."""

    run: str
    budget_bytes: int
    notes: tuple[str, ...] = ()


def import_everything(recipe: Recipe, *, tracker: str = "none") -> None:
    """Every module the run will use, so that a rehearsal weighs what a training process weighs."""
    names = ["orbax.checkpoint.v1", "grain", "tensorboardX", "tokenizers", *recipe.imports()]
    names += [] if tracker == "none" else [tracker]
    for name in names:
        if name == "orbax.checkpoint.v1":
            from orbax.checkpoint import v1  # noqa: F401  (not importable by its dotted name)
        else:
            importlib.import_module(name)


def lowered(recipe: Recipe, plan: Plan, *, steps: int) -> program.Program:
    """The run's executables, not yet compiled: the same in the compile child and in the training process."""
    return program.lower(
        recipe.task(plan.compute(jax.default_backend())),
        recipe.optimizer(steps),
        plan,
        batch=recipe.batch_spec(recipe.effective_batch),
        evaluation_batch=recipe.evaluation_spec(plan.micro_batch),
    )


def load(recipe: Recipe, plan: Plan, *, steps: int) -> program.Executables:
    """From the compile cache, giving back what each stage of starting left behind."""
    memory.trim()
    program_ = lowered(recipe, plan, steps=steps)
    memory.trim()
    executables = program.compile_all(program_)
    del program_
    memory.trim()
    return executables


def rehearse(recipe: Recipe, plan: Plan, *, steps: int) -> Rehearsal:
    """Does what a training process does up to its first step, but for the state."""
    import_everything(recipe)
    executables = load(recipe, plan, steps=steps)
    starting = memory.peak_resident_bytes()
    with tempfile.TemporaryDirectory() as folder:  # Orbax's threads and caches stay after the first save
        Checkpoints(Path(folder), in_background=False).save(0, {"nothing": np.zeros(1, np.float32)}, {})
    memory.trim()
    return Rehearsal(
        process_bytes=memory.resident_bytes(),
        starting_bytes=starting,
        init_temp_bytes=_temp_bytes(executables.init),
        evaluate_temp_bytes=_temp_bytes(executables.evaluate),
    )


def _temp_bytes(executable: jax.stages.Compiled) -> int:
    stats = executable.memory_analysis()
    return stats.temp_size_in_bytes if stats is not None else 0


def train_here(options: Mapping[str, Any], interruption: Interruption) -> int:
    """Runs the session in this process; the exit code."""
    session = Session(**{**options, "notes": tuple(options.get("notes", ()))})
    if session.profiler_port is not None:
        jax.profiler.start_server(session.profiler_port)
    return _Training(session, interruption).run()


class _Training:
    """One session from beginning to end: what is measured on the way becomes the ledger."""

    def __init__(self, session: Session, interruption: Interruption) -> None:
        self.session, self.folder, self.interruption = session, RunFolder(session.run), interruption
        self.recipe = from_dict(self.folder.read("recipe.json"))
        self.planned = self.folder.read("plan.json")
        self.plan = Plan.from_dict(self.planned["plan"])
        self.prepared = Prepared(**self.folder.read("data.json"))
        self.marks: dict[str, int] = {}
        self.notes = list(session.notes)

    def run(self) -> int:
        executables = self._load()
        if self.interruption.signal is not None:
            print("interrupted before the first step", flush=True)
            return 128 + self.interruption.signal
        checkpoints = Checkpoints(self.folder.checkpoints, in_background=self.plan.async_save)
        loader = self.recipe.source(self.folder.path, prefetch=self.plan.prefetch)
        try:
            state, resumed = self._start(executables, checkpoints, loader)
            self.resumed = resumed
            log = SessionLog(self.session, self.recipe, self.planned, self.prepared, self.folder, resumed)
            for note in self.notes:
                log.say(note, important=True)
            schedule = self._schedule()
            log.opened(schedule, resumed)
            ended = None
            try:
                state, ended = run_steps(
                    state,
                    _Marked(loader, self.marks),
                    executables,
                    schedule,
                    checkpoints,
                    lambda params: self._evaluate(params, executables),
                    log,
                    self.interruption,
                )
            finally:
                self._write_ledger(executables, resumed, log)
                log.close(ended, self.folder.read("ledger.json"), checkpoints.best())
        finally:
            loader.close()
        return 128 + ended.signal if ended is not None and ended.signal is not None else 0

    def _load(self) -> program.Executables:
        import_everything(self.recipe, tracker=self.session.tracker)
        executables = load(self.recipe, self.plan, steps=self.prepared.steps)
        self.marks["process"] = memory.resident_bytes()
        self.marks["peak while loading"] = memory.peak_resident_bytes()
        if self.session.debug_nans:
            self.notes.append("--debug-nans keeps a second copy of the state, which the plan does not count")
            executables = dataclasses.replace(executables, step=self._watched(executables.state))
        return executables

    def _watched(self, state: Any) -> Watched:
        task = self.recipe.task(self.plan.compute(jax.default_backend()))
        step = make_step(task, self.recipe.optimizer(self.prepared.steps), accumulation=self.plan.accumulation)
        batch = program.shapes(self.recipe.batch_spec(self.recipe.effective_batch))
        return Watched(step, jax.jit(step).lower(state, batch).compile(), self.folder.path / "nan.txt")

    def _start(
        self, executables: program.Executables, checkpoints: Checkpoints, loader: Source
    ) -> tuple[Any, int | None]:
        saved, notes = checkpoints.latest_whole()
        self.notes += notes
        if saved is None:
            if notes:
                self.notes.append("no checkpoint is whole: starting from the beginning")
            state = executables.init(np.uint32(self.recipe.seed % 2**32))
            jax.block_until_ready(state)
        else:
            state, position = load_state(saved, executables.state)
            loader.restore(position)
        memory.trim()
        self.marks["state"] = program.tree_bytes(state)
        self.marks["before data"] = memory.resident_bytes()
        self.marks["peak before training"] = memory.peak_resident_bytes()
        return state, saved.step if saved is not None else None

    def _schedule(self) -> Schedule:
        steps, session = self.prepared.steps, self.session
        per_epoch = self.prepared.steps_per_epoch
        every_epoch = max(1, round(per_epoch)) if per_epoch else max(1, steps // 4)
        return Schedule(
            steps=steps,
            stop_at=min(steps, session.max_steps or steps),
            stop_after_seconds=math.inf if session.max_seconds is None else session.max_seconds,
            evaluate_every=every_epoch if session.eval_every is None else session.eval_every,
            save_every=max(1, min(1000, steps // 4)) if session.save_every is None else session.save_every,
        )

    def _evaluate(self, params: Any, executables: program.Executables) -> Mapping[str, float]:
        batches = iter(self.recipe.validation(self.folder.path, examples=self.plan.micro_batch))
        return summed(batches, executables.evaluate, params)

    def _phases(self, log: SessionLog) -> dict[str, int]:
        """The peak after each phase of this session that raised it."""
        loaded, started = self.marks["peak while loading"], self.marks["peak before training"]
        first = "start" if self.resumed is None else "restore"
        return {"load": loaded} | ({first: started} if started > loaded else {}) | log.phase_peaks

    def _measured(self, params: int, log: SessionLog, peak: int, predicted: Mapping[str, int]) -> dict[str, int | None]:
        """State by its arrays, process and temporaries by the resident set between steps and at its peak."""
        state = self.marks["state"]
        data = max(0, self.marks.get("data", 0) - self.marks["before data"])
        training = log.phase_peaks.get("train")  # None where loading had needed more
        measured: dict[str, int | None] = {
            "process": max(0, log.between_steps - state - data),
            "parameters": params,
            "optimizer": state - params,
            "data": data,
            "step temporaries": None if training is None else max(0, training - log.between_steps),
        }
        beyond = [name for name in predicted if name not in measured]
        if beyond:  # a save, an evaluation: together, what the peak has on top
            measured[beyond[0]] = max(0, peak - sum(size or 0 for size in measured.values()))
        return measured

    def _earlier_ledger(self) -> dict[str, Any]:
        """Of the sessions before this one: their peak counts, and their notes are kept."""
        try:
            return self.folder.read("ledger.json") if self.folder.has("ledger.json") else {}
        except RunError as problem:
            self.notes.append(f"what earlier sessions measured is lost: {problem}")
            return {}

    def _write_ledger(self, executables: program.Executables, resumed: int | None, log: SessionLog) -> None:
        peak = memory.peak_resident_bytes()
        earlier = self._earlier_ledger()
        before = (earlier.get("measured") or {}).get("peak_bytes") or 0
        predicted: dict[str, int] = self.planned["components"]
        params = program.tree_bytes(executables.state["params"])
        measured = self._measured(params, log, peak, predicted)
        names = dict.fromkeys([*predicted, *measured])
        if peak > self.session.budget_bytes:
            self.notes.append(
                f"the measured peak of {format_bytes(peak)} is over the budget of"
                f" {format_bytes(self.session.budget_bytes)}: continue with --replan and a larger --memory"
            )
        self.folder.write(
            "ledger.json",
            {
                "budget_bytes": self.session.budget_bytes,
                "phase": self.planned["phase"],
                "source": self.planned["source"],
                "predicted": {"peak_bytes": self.planned["predicted_peak_bytes"], "phases": self.planned["phases"]},
                "measured": {"peak_bytes": max(peak, before), "phases": self._phases(log)},
                "components": {
                    name: {"predicted": predicted.get(name, 0), "measured": measured.get(name)} for name in names
                },
                "resumed_from_step": resumed,
                "notes": [*earlier.get("notes", []), *self.notes],
            },
        )


class _Marked:
    """A source that notes the resident set once its first batch is there."""

    def __init__(self, source: Source, marks: dict[str, int]) -> None:
        self._source, self._marks = source, marks

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = next(self._source)
        if "data" not in self._marks:
            self._marks["data"] = memory.resident_bytes()
        return batch

    def state(self) -> dict[str, Any]:
        return self._source.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._source.restore(state)

    def close(self) -> None:
        self._source.close()
