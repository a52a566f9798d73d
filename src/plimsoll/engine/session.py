"""The training process: loads what was compiled, restores or starts, runs the loop, writes the ledger.

A run that goes over its budget saves, says so, and hands its process back to planning (`Ending.again`).

Part of the joint. It finds everything in the run folder (recipe.json, plan.json, data.json); the command line has
turned into it by exec, so that its resident set starts from nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plimsoll.engine.budget_guard import Line
from plimsoll.engine.log import SessionLog
from plimsoll.engine.options import SessionOptions, session_options
from plimsoll.errors import PlimsollError, RunError
from plimsoll.optimizers.in_place import in_place
from plimsoll.planner import calibration
from plimsoll.planner.estimate import LEARNED
from plimsoll.planner.types import Rehearsal
from plimsoll.processes.environment import cache_folder
from plimsoll.processes.interruption import Interruption
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.registry import from_dict
from plimsoll.runs.folder import RunFolder
from plimsoll.training import allocator, distributed, memory, overruns, program
from plimsoll.training.beginning import with_given
from plimsoll.training.checkpoint import Checkpoints
from plimsoll.training.loop import Ended, Schedule, run_steps, summed
from plimsoll.training.nans import Watched
from plimsoll.training.spread import Spread
from plimsoll.training.step import make_step
from plimsoll.types import Plan, Source
from plimsoll.units import format_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session(SessionOptions):
    """What a session is asked to do beyond what stands in the run folder."""

    run: str
    budget_bytes: int
    notes: tuple[str, ...] = ()
    lock: int | None = None
    """The descriptor that holds the run's lock: planning again needs it."""
    name: str | None = None
    numerics: str = "mixed"


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a session ended."""

    code: int
    again: Mapping[str, Any] | None = None
    """For the process that plans again, where the run is to go on with another plan (`worker.py`)."""


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
    task, rule = recipe.task(plan.compute(jax.default_backend())), recipe.update_rule(steps, plan.storage)
    batch, evaluation = recipe.batch_spec(recipe.effective_batch), recipe.evaluation_spec(plan.micro_batch)
    if plan.devices > 1:
        spread = Spread(distributed.devices(plan.devices), task, rule, plan)
        return spread.program(batch=batch, evaluation_batch=evaluation)
    return program.lower(task, rule, plan, batch=batch, evaluation_batch=evaluation)


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


def _temp_bytes(executable: jax.stages.Compiled | program.Fed) -> int:
    stats = executable.memory_analysis()
    return stats.temp_size_in_bytes if stats is not None else 0


def train_here(options: Mapping[str, Any], interruption: Interruption) -> Ending:
    """Runs the session in this process."""
    session = Session(**{**options, "notes": tuple(options.get("notes", ()))})
    if session.profiler_port is not None:
        jax.profiler.start_server(session.profiler_port)
    return _Training(session, interruption).run()


def _mesh_of(plan: Plan) -> str | None:
    """Where the user asked for it."""
    asked = plan.devices > 1 and "fsdp" in plan.pinned
    return f"data={plan.devices // plan.fsdp},fsdp={plan.fsdp}" if asked else None


def _held(state: Any) -> dict[str, dict[int, int]]:
    """By device: of the whole state, and of the entries that a ledger tells apart."""
    entries = {name: state.get(name) for name in ("params", "ema", "carry")}
    return {name: program.held_bytes(tree) for name, tree in {"state": state, **entries}.items()}


def _on_device(phases: Mapping[str, int]) -> dict[str, int]:
    """Those that an accelerator's ledger has: loading, restoring and saving are its host's, and steps beside a save
    are steps."""
    training = max(phases.get("train", 0), phases.get("save", 0))
    found = {name: phases[name] for name in ("start", "evaluate") if name in phases}
    return found | ({"train": training} if training else {})


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
        self.line = Line(
            session, self.folder, self.planned, budget_bytes=session.budget_bytes, steps=self.prepared.steps
        )
        self.evaluated = False
        self.begun = time.monotonic()

    def run(self) -> Ending:
        try:
            ended = self._train()
        except Exception as problem:
            if not allocator.refused(problem):
                raise
            ended = self.line.refused(problem, self.folder.checkpoints)
            print(self.line.words(plans_again=True), flush=True)
        if ended.signal is not None:
            return Ending(128 + ended.signal)
        left = self._seconds_left()
        if ended.over and distributed.processes() > 1:
            return Ending(3)
        if not ended.over or (left is not None and left <= 0):
            return Ending(0)
        return Ending(0, again=self._again(left))

    def _train(self) -> Ended:
        executables = self._load()
        distributed.meet("loaded")
        if self.interruption.signal is not None and distributed.processes() == 1:
            print("interrupted before the first step", flush=True)
            return Ended(0, self.interruption.signal, False, {})
        beside = self.plan.async_save and distributed.processes() == 1  # while steps send, nothing else may
        checkpoints = Checkpoints(self.folder.checkpoints, in_background=beside)
        loader = self.recipe.source(self.folder.path, prefetch=self.plan.prefetch)
        try:
            state, resumed = self._start(executables, checkpoints, loader)
            self.resumed = resumed
            log = SessionLog(self.session, self.recipe, self.planned, self.prepared, self.folder, resumed)
            for note in self.notes:
                log.say(note, important=True)
            schedule = self._schedule()
            source = _Timed(loader, self.marks)
            log.opened(schedule, resumed, source)
            ended = None
            self.line.training_begins()
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
                    self.line.crossed,
                )
                self.line.session_ended(ended)
            except Exception as problem:
                if not allocator.refused(problem):
                    raise
                ended = self.line.refused(problem, self.folder.checkpoints)
            finally:
                self._write_ledger(executables, resumed, log)
                self._calibrate(log)
                plans_again = ended is not None and ended.over and distributed.processes() == 1
                if self.line.overrun is not None:
                    log.say(self.line.words(plans_again=plans_again), important=True)
                log.close(None if plans_again else ended, self.folder.read("ledger.json"), checkpoints.best())
        finally:
            loader.close()
        assert ended is not None
        return ended

    def _seconds_left(self) -> float | None:
        limit = self.session.max_seconds
        return None if limit is None else limit - (time.monotonic() - self.begun)

    def _again(self, seconds_left: float | None) -> dict[str, Any]:
        """What planning again is to know: what the user pinned stays pinned."""
        return {
            **session_options(self.session),
            "run": self.session.run,
            "name": self.session.name,
            "numerics": self.session.numerics,
            "memory": self.session.budget_bytes,
            "mesh": _mesh_of(self.plan),
            "pins": {name: getattr(self.plan, name) for name in self.plan.pinned},
            "max_seconds": seconds_left,
            "lock": self.session.lock,
        }

    def _load(self) -> program.Executables:
        import_everything(self.recipe, tracker=self.session.tracker)
        executables = load(self.recipe, self.plan, steps=self.prepared.steps)
        self.marks["peak while loading"] = allocator.peak_bytes()
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
        said = " ".join(notes)
        self.notes += notes + [  # whoever set them aside may have been killed before it could say so
            f"{name} is a damaged checkpoint that an earlier session set aside"
            for name in checkpoints.set_aside()
            if name not in said
        ]
        if step is None:
            if notes:
                self.notes.append("no checkpoint is whole: starting from the beginning")
            state = executables.init(np.uint32(self.recipe.seed % 2**32))
            state = self._begun(jax.block_until_ready(state), executables.state)
        else:
            loader.restore(position)
        memory.trim()
        self.held = _held(state)
        self.marks["before data"] = allocator.bytes_now()
        self.marks["peak before training"] = allocator.peak_bytes()
        return state, step

    def _begun(self, state: Any, like: Any) -> Any:
        """With the parameters that the recipe begins with, where they are not those drawn."""
        rule = in_place(self.recipe.update_rule(self.prepared.steps, self.plan.storage))
        begun = with_given(state, self.recipe.begin, rule.average)
        if begun is None:
            return state
        if self.plan.devices > 1:
            begun = jax.tree.map(
                lambda leaf, lies: jax.device_put(leaf, lies.sharding), begun, {name: like[name] for name in begun}
            )
        self.notes.append(f"the run began with weights that were given to it ({self.recipe.begins_with})")
        return jax.block_until_ready(state | begun)

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
            judged_by=self.recipe.judged_by,
        )

    def _evaluate(self, params: Any, executables: program.Executables) -> Mapping[str, float]:
        self.evaluated = True
        batches = iter(self.recipe.validation(self.folder.path, examples=self.plan.micro_batch))
        return summed(batches, executables.evaluate, params)

    def _phases(self, log: SessionLog) -> dict[str, int]:
        """The peak after each phase of this session that raised it."""
        loaded, started = self.marks["peak while loading"], self.marks["peak before training"]
        first = "start" if self.resumed is None else "restore"
        phases = {"load": loaded} | ({first: started} if started > loaded else {}) | log.phase_peaks
        return phases if allocator.device_bytes() is None else _on_device(phases)

    def _measured(self, log: SessionLog, peak: int, predicted: Mapping[str, int]) -> dict[str, int | None]:
        """State by its arrays, process and temporaries by what is held between steps and at the peak."""
        state, params, ema, carry = (self._counted(name) for name in ("state", "params", "ema", "carry"))
        data = max(0, self.marks.get("data", 0) - self.marks["before data"])
        training = log.phase_peaks.get("train")  # None where loading had needed more
        held: dict[str, int | None] = {
            "parameters": params,
            "optimizer": state - params - ema - carry,
            **({"ema": ema} if ema else {}),
            **({"carry": carry} if carry else {}),
        }
        temporaries = {"step temporaries": None if training is None else max(0, training - log.between_steps)}
        if allocator.device_bytes() is not None:
            return {**held, "batches": max(0, log.between_steps - state), **temporaries}
        measured = {"process": max(0, log.between_steps - state - data), **held, "data": data, **temporaries}
        beyond = [name for name in predicted if name not in measured and name != LEARNED]
        if beyond:  # a save, an evaluation: together, what the peak has on top
            measured[beyond[0]] = max(0, peak - sum(size or 0 for size in measured.values()))
        return measured

    def _counted(self, name: str) -> int:
        """Bytes of the state, or of an entry of it: of the fullest device, or of all devices that are one CPU."""
        by_device = self.held[name].values()
        return sum(by_device) if allocator.device_bytes() is None else max(by_device, default=0)

    def _split(self, shapes: Any) -> dict[str, Any]:
        """Over several devices: what each holds of the state, by its shards, beside what it is to hold."""
        plan = self.plan
        if plan.devices == 1:
            return {}
        share = jax.tree.map(
            lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize, shapes
        )
        return {
            "per_device": {
                "devices": plan.devices,
                "data": plan.devices // plan.fsdp,
                "fsdp": plan.fsdp,
                "whole_state_bytes": program.tree_bytes(shapes),
                "state_bytes": {
                    "predicted": sum(jax.tree.leaves(share)),
                    "measured": max(self.held["state"].values()),
                },
            }
        }

    def _earlier_ledger(self) -> dict[str, Any]:
        """Of the sessions before this one: their peak counts, and their notes are kept."""
        try:
            return self.folder.read("ledger.json") if self.folder.has("ledger.json") else {}
        except RunError as problem:
            self.notes.append(f"what earlier sessions measured is lost: {problem}")
            return {}

    def _write_ledger(self, executables: program.Executables, resumed: int | None, log: SessionLog) -> None:
        peak = allocator.peak_bytes()
        earlier = self._earlier_ledger()
        before = (earlier.get("measured") or {}).get("peak_bytes") or 0
        predicted: dict[str, int] = self.planned["components"]
        measured = self._measured(log, peak, predicted)
        phases = self._phases(log)
        if not {"train", "save"} & log.seen and "components" in earlier:
            # The same command after the end takes no step, so it measures no part: what the steps took stays.
            measured = {name: part["measured"] for name, part in earlier["components"].items()}
            phases = earlier["measured"]["phases"]
        names = dict.fromkeys([*predicted, *measured])
        if peak > self.session.budget_bytes and self.line.overrun is None:
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
                "measured": {"peak_bytes": max(peak, before, *phases.values()), "phases": phases},
                "components": {
                    name: {"predicted": predicted.get(name, 0), "measured": measured.get(name)} for name in names
                },
                **self._split(executables.state),
                **self._host_ledger(earlier),
                "resumed_from_step": resumed,
                "overruns": [one.to_dict() for one in overruns.read(self.folder)],
                "notes": [*earlier.get("notes", []), *self.notes],
            },
        )

    def _host_ledger(self, earlier: Mapping[str, Any]) -> dict[str, Any]:
        """Beside an accelerator: the peak resident set of this process and of the run's earlier ones."""
        if allocator.device_bytes() is None:
            return {}
        before = earlier.get("host", {}).get("measured_peak_bytes", 0)
        return {
            "host": {**(self.planned["host"] or {}), "measured_peak_bytes": max(before, memory.peak_resident_bytes())}
        }

    def _calibrate(self, log: SessionLog) -> None:
        """What this session measured, for the next prediction of the kind; a tracker's own weight is not in any."""
        seen = {"train", "save"} <= log.seen and self.evaluated
        over = (
            self.line.overrun is not None and self.line.overrun.what == "resident set"
        )  # a lower bound, and what matters most
        if self.plan.devices > 1:  # what several need together says little of what one needs
            return
        if not calibration.is_on() or not self.line.counts or self.session.tracker != "none" or not (seen or over):
            return
        learned, margin = self.planned.get("learned", {}), self.planned.get("margin_bytes", 0)
        promised: dict[str, int] = self.planned["phases"]
        computed = {phase: size - learned.get(phase, 0) for phase, size in promised.items()}
        sample = calibration.Sample(
            predicted=computed,
            corrected=computed if margin else promised,
            measured=self._phases(log),
            plan=self.planned["plan"],
        )
        try:
            problem = calibration.add(cache_folder(), calibration.key_of(self.recipe.kind, self.plan.chip), sample)
        except (OSError, PlimsollError) as failure:  # no reason to lose the end of a run
            problem = f"nothing was learned from this session for the next prediction: {failure}"
        if problem is not None:
            log.say(problem, important=True)


class _Timed:
    """A source that notes the resident set once its first batch is there, and how long training waited for batches."""

    def __init__(self, source: Source, marks: dict[str, int]) -> None:
        self._source, self._marks = source, marks
        self.waited_seconds = 0.0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        asked = time.monotonic()
        batch = next(self._source)
        self.waited_seconds += time.monotonic() - asked
        if "data" not in self._marks:
            self._marks["data"] = allocator.bytes_now()
        return batch

    def state(self) -> dict[str, Any]:
        return self._source.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._source.restore(state)

    def close(self) -> None:
        self._source.close()
