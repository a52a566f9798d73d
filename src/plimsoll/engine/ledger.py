"""Measurements of one session, and the ledger made of them: bytes by component, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from plimsoll.engine.budget_guard import BudgetGuard
from plimsoll.engine.log import SessionLog
from plimsoll.engine.options import Session
from plimsoll.errors import RunError
from plimsoll.files import provenance
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Component, EndedEarly, PerDevice, Planned, RunHost, RunLedger, SessionBytes
from plimsoll.planner.estimate import AFTER_OVERRUN
from plimsoll.training import allocator, memory, overruns, program
from plimsoll.units import format_bytes
from plimsoll.values import to_json


@dataclass
class Measurements:
    """Measurements of one session: marks of memory on the way, and the ledger at the end."""

    session: Session
    folder: RunFolder
    planned: Planned
    guard: BudgetGuard
    notes: list[str]
    """Shared with the session, which logs them; they are kept in the ledger."""
    marks: dict[str, int] = field(default_factory=dict)
    evaluated: bool = False
    ended_early: EndedEarly | None = None
    resumed: int | None = None
    held: dict[str, dict[int, int]] = field(default_factory=dict)
    """Bytes by device of the state and of its entries."""

    def started(self, state: Any, *, resumed: int | None) -> None:
        """Marks what the state holds, and the memory before any data is read."""
        self.resumed = resumed
        entries = {name: state.get(name) for name in ("params", "ema", "carry")}
        self.held = {name: program.held_bytes(tree) for name, tree in {"state": state, **entries}.items()}
        self.marks["before data"] = allocator.bytes_now()
        self.marks["peak before training"] = allocator.peak_bytes()

    def _phases(self, log: SessionLog) -> dict[str, int]:
        """Returns the peak after each phase of this session that raised it."""
        loaded, started = self.marks["peak while loading"], self.marks["peak before training"]
        first = "start" if self.resumed is None else "restore"
        phases = {"load": loaded} | ({first: started} if started > loaded else {}) | log.phase_peaks
        if allocator.device_bytes() is None:
            return phases
        # Loading, restoring and saving are the host's, and steps during a save are steps.
        on_device = {name: phases[name] for name in ("start", "evaluate") if name in phases}
        training = max(phases.get("train", 0), phases.get("save", 0))
        return on_device | ({"train": training} if training else {})

    def _measured(self, log: SessionLog, peak: int, predicted: Mapping[str, int]) -> dict[str, int | None]:
        """Returns bytes by component: the state by its arrays, the others by what is held between steps and at most."""
        count = sum if allocator.device_bytes() is None else max  # all that are one CPU, or the fullest device
        names = ("state", "params", "ema", "carry")
        state, params, ema, carry = (count([0, *self.held[name].values()]) for name in names)
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
        beyond = [name for name in predicted if name not in measured and name != AFTER_OVERRUN]
        if beyond:  # a save, an evaluation: together, what the peak has on top
            measured[beyond[0]] = max(0, peak - sum(size or 0 for size in measured.values()))
        return measured

    def _per_device(self, shapes: Any) -> PerDevice | None:
        """Returns what each of several devices holds of the state, by its shards, beside what it is to hold."""
        plan = self.planned.plan
        if plan.devices == 1:
            return None
        shard_bytes = jax.tree.map(
            lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize, shapes
        )
        predicted = sum(jax.tree.leaves(shard_bytes))
        return PerDevice(
            devices=plan.devices,
            data=plan.devices // plan.fsdp,
            fsdp=plan.fsdp,
            whole_state_bytes=program.tree_bytes(shapes),
            state_bytes=Component(predicted=predicted, measured=max(self.held["state"].values())),
        )

    def _earlier(self) -> RunLedger | None:
        """Returns the ledger of the sessions before; None for the first, and, with a note, if it is damaged."""
        if not self.folder.has("ledger.json"):
            return None
        try:
            return self.folder.ledger()
        except RunError as problem:
            self.notes.append(f"what earlier sessions measured is lost: {problem}")
            return None

    def write(self, shapes: Any, log: SessionLog) -> RunLedger:
        """Writes and returns the ledger: the session with the highest peak by component, every phase, all notes.

        Args:
            shapes: Shapes of the state.
            log: Log of this session, with the peak after each phase.
        """
        # This session.
        peak = allocator.peak_bytes()
        budget = self.session.budget_bytes
        components = self._measured(log, peak, self.planned.ledger.components)
        session = SessionBytes(peak_bytes=peak, phases=self._phases(log), components=components)

        # The sessions before. A process's peak is not a card's.
        earlier = self._earlier()
        host = self.planned.ledger.host
        if host is not None:
            host_peak = memory.peak_resident_bytes()
            if earlier is not None and earlier.host is not None:
                host_peak = max(host_peak, earlier.host.measured_peak_bytes)
            host = RunHost(**vars(host), measured_peak_bytes=host_peak)
        same_kind = earlier is not None and (earlier.host is None) == (host is None)

        # Notes of all.
        if peak > budget and self.guard.overrun is None:
            self.notes.append(
                f"the measured peak of {format_bytes(peak)} is over the budget of {format_bytes(budget)}: continue with"
                " --replan and a larger --memory"
            )
        notes = [*(earlier.notes if earlier else ()), *provenance.notes(self.folder), *self.notes]

        ledger = replace(
            RunLedger.of_plan(self.planned),
            budget_bytes=budget,
            per_device=self._per_device(shapes),
            host=host,
            resumed_from_step=self.resumed,
            ended_early=self.ended_early,
            overruns=tuple(overruns.read(self.folder)),
            notes=tuple(dict.fromkeys(notes)),
        )
        trained = bool({"train", "save"} & log.seen)
        ledger = ledger.merged(session, earlier if same_kind else None, trained=trained)
        self.folder.write("ledger.json", to_json(ledger))
        return ledger
