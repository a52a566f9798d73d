"""Memory measurements of one training session, and the run's ledger of predicted and measured bytes by component."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from plimsoll.engine.budget_guard import BudgetGuard
from plimsoll.engine.meter import TimedSource
from plimsoll.engine.training_run import TrainingRun
from plimsoll.errors import RunError
from plimsoll.files import provenance
from plimsoll.planned import Component, EndedEarly, PerDevice, RunHost, RunLedger, SessionBytes
from plimsoll.planner.bytes import AFTER_OVERRUN
from plimsoll.training import allocator, memory, overruns, program
from plimsoll.training.phases import Phases
from plimsoll.training.step import State
from plimsoll.training.stop import Ended, Reason
from plimsoll.units import format_bytes
from plimsoll.values import to_json


def held_by(state: State) -> dict[str, int]:
    """Returns the bytes of a training state by component: on a CPU the sum over devices, else the maximum."""
    total = sum if allocator.device_bytes() is None else max

    def held(tree: Any) -> int:
        return total([0, *program.held_bytes(tree).values()])

    parts = {"parameters": held(state["params"]), "ema": held(state.get("ema")), "carry": held(state.get("carry"))}
    optimizer = held(state) - sum(parts.values())
    parts = {"optimizer": optimizer, **parts}
    return {name: size for name, size in parts.items() if size or name in ("optimizer", "parameters")}


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Memory measurements of one training session."""

    run: TrainingRun
    guard: BudgetGuard
    phases: Phases
    source: TimedSource
    shapes: Any
    """Shapes and shardings of the training state."""
    held: Mapping[str, int]
    """Bytes of the state by component (`held_by`)."""
    fullest_bytes: int
    """Bytes of the training state on the device that holds most of it."""
    resumed: int | None
    """Step that the session continues from; None for a new run."""

    def write(self, ended: Ended | None) -> RunLedger:
        """Writes and returns the ledger of the run's sessions. Its components are of the session with the highest peak.

        Args:
            ended: End of the session; None if an error ended it.
        """
        # Collect measurements and notes of this session.
        self.phases.look()
        peak = allocator.peak_bytes()
        budget = self.run.session.budget_bytes
        session = SessionBytes(peak_bytes=peak, phases=self._peaks(), components=self._components(peak))
        notes = list(self.run.notes)
        if peak > budget and self.guard.overrun is None:
            notes.append(
                f"the measured peak of {format_bytes(peak)} is over the budget of {format_bytes(budget)}: continue with"
                " --replan and a larger --memory"
            )

        # Read earlier sessions. Their peaks are comparable only if measured on the same kind of memory, host or device.
        earlier = None
        if self.run.folder.has("ledger.json"):
            try:
                earlier = self.run.folder.ledger()
            except RunError as problem:
                notes.append(f"what earlier sessions measured is lost: {problem}")
        host = self._host(earlier)
        same_kind = earlier is not None and (earlier.host is None) == (host is None)
        notes = [*(earlier.notes if earlier else ()), *provenance.notes(self.run.folder), *notes]

        ledger = replace(
            RunLedger.of_plan(self.run.planned),
            budget_bytes=budget,
            per_device=self._per_device(),
            host=host,
            resumed_from_step=self.resumed,
            ended_early=self._ended_early(ended),
            overruns=tuple(overruns.read(self.run.folder)),
            notes=tuple(dict.fromkeys(notes)),
        )
        ledger = ledger.merged(session, earlier if same_kind else None)
        self.run.folder.write("ledger.json", to_json(ledger))
        return ledger

    def _peaks(self) -> dict[str, int]:
        """Returns the peak bytes by phase of this session, for phases that raised the peak."""
        peaks = self.phases.peaks
        if allocator.device_bytes() is None:
            return peaks
        # On an accelerator, leave out loading and restoring, which use host memory. Count the peak of a
        # save as training, which goes on during a save.
        on_device = {name: peaks[name] for name in ("start", "evaluate") if name in peaks}
        training = max(peaks.get("train", 0), peaks.get("save", 0))
        return on_device | ({"train": training} if training else {})

    def _components(self, peak: int) -> dict[str, int | None]:
        """Returns bytes by component: the state's from its arrays, others from the bytes between steps and the peak.

        A component that could not be measured is None.
        """
        state = sum(self.held.values())
        between = self.phases.between_steps or peak
        training = self.phases.peaks.get("train")  # None where loading needed more than training
        temporaries = None if training is None else max(0, training - between)
        components = {**self.held, "step temporaries": temporaries}
        if allocator.device_bytes() is not None:
            return components | {"batches": max(0, between - state)}

        data = self.source.held_bytes or 0
        components |= {"process": max(0, between - state - data), "data": data}
        return components | self._beyond(components, peak)

    def _beyond(self, components: Mapping[str, int | None], peak: int) -> dict[str, int | None]:
        """Returns one more component: the first predicted one not in `components`, with the rest of the peak bytes."""
        predicted = self.run.planned.ledger.components
        names = [name for name in predicted if name not in (*components, AFTER_OVERRUN)]
        known = sum(size or 0 for size in components.values())
        return {name: max(0, peak - known) for name in names[:1]}

    def _host(self, earlier: RunLedger | None) -> RunHost | None:
        """Returns the host memory of a run on an accelerator, with the highest peak of all sessions; None on a CPU."""
        planned = self.run.planned.ledger.host
        if planned is None:
            return None
        peak = memory.peak_resident_bytes()
        if earlier is not None and earlier.host is not None:
            peak = max(peak, earlier.host.measured_peak_bytes)
        return RunHost(**vars(planned), measured_peak_bytes=peak)

    def _per_device(self) -> PerDevice | None:
        """Returns the predicted and measured bytes of the state on one of several devices; None for a single device."""
        plan = self.run.plan
        if plan.devices == 1:
            return None
        leaves = jax.tree.leaves(self.shapes)
        predicted = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
        return PerDevice(
            devices=plan.devices,
            data=plan.devices // plan.fsdp,
            fsdp=plan.fsdp,
            whole_state_bytes=program.tree_bytes(self.shapes),
            state_bytes=Component(predicted=predicted, measured=self.fullest_bytes),
        )

    def _ended_early(self, ended: Ended | None) -> EndedEarly | None:
        """Returns the step at which --patience ended the run, and the patience; None if it did not end the run."""
        if ended is None or ended.why is not Reason.NO_BETTER:
            return None
        return EndedEarly(step=ended.step, patience=self.run.session.patience or 0)
