"""Measurements of one session, and the ledger made of them: bytes by component, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from plimsoll.engine.budget_guard import BudgetGuard
from plimsoll.engine.log import SessionLog
from plimsoll.engine.options import Session
from plimsoll.errors import RunError
from plimsoll.files import provenance
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Plan
from plimsoll.planner.estimate import AFTER_OVERRUN
from plimsoll.training import allocator, memory, overruns, program
from plimsoll.units import format_bytes

OTHER = "other"
"""Component of a measured peak that none of the predicted ones accounts for."""


def adding_up(measured: Mapping[str, int | None], peak: int) -> dict[str, int | None]:
    """Returns the components of a measured peak, with `OTHER` for what is left, so that they add up to it."""
    components = {name: size for name, size in measured.items() if name != OTHER}
    rest = peak - sum(size or 0 for size in components.values())
    return components | ({OTHER: rest} if rest > 0 else {})


def largest_by_phase(*sessions: Mapping[str, int]) -> dict[str, int]:
    """Returns the largest bytes of each phase over several sessions."""
    names = dict.fromkeys(name for session in sessions for name in session)
    return {name: max(session.get(name, 0) for session in sessions) for name in names}


@dataclass
class Measurements:
    """Measurements of one session: marks of memory on the way, and the ledger at the end."""

    session: Session
    folder: RunFolder
    planned: Mapping[str, Any]
    """The run's plan.json."""
    plan: Plan
    guard: BudgetGuard
    notes: list[str]
    """Shared with the session, which logs them; they are kept in the ledger."""
    marks: dict[str, int] = field(default_factory=dict)
    evaluated: bool = False
    ended_early: Mapping[str, Any] = field(default_factory=dict)
    """Step at which evaluations without a better one ended the run, and their number (`patience`); else empty."""
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

    def _split(self, shapes: Any) -> dict[str, Any]:
        """Returns what each of several devices holds of the state, by its shards, beside what it is to hold."""
        plan = self.plan
        if plan.devices == 1:
            return {}
        shard_bytes = jax.tree.map(
            lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize, shapes
        )
        return {
            "per_device": {
                "devices": plan.devices,
                "data": plan.devices // plan.fsdp,
                "fsdp": plan.fsdp,
                "whole_state_bytes": program.tree_bytes(shapes),
                "state_bytes": {
                    "predicted": sum(jax.tree.leaves(shard_bytes)),
                    "measured": max(self.held["state"].values()),
                },
            }
        }

    def _of_all_sessions(
        self, earlier: Mapping[str, Any], log: SessionLog, peak: int, in_session: Mapping[str, int | None]
    ) -> tuple[dict[str, int | None], dict[str, Any]]:
        """Returns the components of the session with the highest peak, and the peak and phases of all sessions.

        Args:
            earlier: `ledger.json` of the sessions before; empty for the first.
            log: Log of this session.
            peak: Peak of this session.
            in_session: Components of this session.
        """
        before = earlier.get("measured") or {}
        highest = max(peak, before.get("peak_bytes") or 0)
        components = in_session
        if "components" in earlier:
            of_before = {name: part["measured"] for name, part in earlier["components"].items()}
            # The same command after the end takes no step: what those took stays.
            if not {"train", "save"} & log.seen:
                return of_before, dict(before)
            if highest > peak:
                components = of_before

        phases = largest_by_phase(before.get("phases", {}), self._phases(log))
        highest = max(highest, *phases.values())
        return adding_up(components, highest), {"peak_bytes": highest, "phases": phases}

    def _earlier(self) -> dict[str, Any]:
        """Returns `ledger.json` of the sessions before; empty for the first, and, with a note, if it is damaged."""
        if not self.folder.has("ledger.json"):
            return {}
        try:
            return self.folder.read("ledger.json")
        except RunError as problem:
            self.notes.append(f"what earlier sessions measured is lost: {problem}")
            return {}

    def write(self, shapes: Any, log: SessionLog) -> None:
        """Writes `ledger.json`: the session with the highest peak by component, every phase of all sessions, all notes.

        Args:
            shapes: Shapes of the state.
            log: Log of this session, with the peak after each phase.
        """
        peak, budget, earlier = allocator.peak_bytes(), self.session.budget_bytes, self._earlier()
        predicted: dict[str, int] = self.planned["components"]
        in_session = self._measured(log, peak, predicted)
        same_kind = ("host" in earlier) == (allocator.device_bytes() is not None)  # a process's peak is not a card's
        measured, sessions = self._of_all_sessions(earlier if same_kind else {}, log, peak, in_session)
        names = dict.fromkeys([*predicted, *measured])
        if peak > budget and self.guard.overrun is None:
            self.notes.append(
                f"the measured peak of {format_bytes(peak)} is over the budget of {format_bytes(budget)}: continue with"
                " --replan and a larger --memory"
            )
        host = {}
        if allocator.device_bytes() is not None:  # the peak of this process on the host, and of the run's earlier ones
            host_peak = max(earlier.get("host", {}).get("measured_peak_bytes", 0), memory.peak_resident_bytes())
            host = {"host": {**(self.planned["host"] or {}), "measured_peak_bytes": host_peak}}
        self.folder.write(
            "ledger.json",
            {
                "budget_bytes": budget,
                "phase": self.planned["phase"],
                "source": self.planned["source"],
                "predicted": {"peak_bytes": self.planned["predicted_peak_bytes"], "phases": self.planned["phases"]},
                "measured": sessions,
                "components": {
                    name: {"predicted": predicted.get(name, 0), "measured": measured.get(name)} for name in names
                },
                "session": {"peak_bytes": peak, "components": in_session},
                **self._split(shapes),
                **host,
                "resumed_from_step": self.resumed,
                **({"ended_early": self.ended_early} if self.ended_early else {}),
                "overruns": [overrun.to_dict() for overrun in overruns.read(self.folder)],
                "notes": list(dict.fromkeys([*earlier.get("notes", []), *provenance.notes(self.folder), *self.notes])),
            },
        )
