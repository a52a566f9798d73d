"""Bytes of a run in four layers, and the budget that it needs.

1. Shapes say what state, batches and the copy of a save hold: exact (`Static`).
2. A trace says what a step needs beside its state, before anything is compiled: by a few tens of percent (`liveness`).
3. The compiler says the same of the step that training will run: to a percent (`Analysis`).
4. A process is its imports, which are weighed, and its compiled code, which is counted in instructions; or it is what a
   trial process of this very plan weighed (`Preparation`).

The peak is the largest phase of the run, not the sum of all. On a CPU one process holds everything. Beside an
accelerator there are two ledgers: the device's, and the host's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll.planned import RUNNING, HostLedger, Ledger, Plan, Process
from plimsoll.planner.types import Analysis, Preparation, Problem, Static
from plimsoll.units import KIB, MIB


@dataclass(frozen=True, kw_only=True)
class Code:
    """What compiled functions weigh in a process, beside its imports: so much, and more for each instruction."""

    least_bytes: int
    instruction_bytes: float
    """For each instruction of the step; those of init and evaluation are in it, and in the least."""

    def bytes_of(self, instructions: int) -> int:
        return self.least_bytes + round(self.instruction_bytes * instructions)


LOADED = Code(least_bytes=36 * MIB, instruction_bytes=6.8 * KIB)
"""Of functions that were traced, lowered, and found in the cache."""
LOADING = Code(least_bytes=72 * MIB, instruction_bytes=12.4 * KIB)
"""The same at the most, while that is done."""
FILED = Code(least_bytes=27 * MIB, instruction_bytes=6.1 * KIB)
"""Of functions that were read from files."""
READING = Code(least_bytes=40 * MIB, instruction_bytes=11.6 * KIB)
"""The same at the most, while they are read."""
COMPILED = Code(least_bytes=62 * MIB, instruction_bytes=9.1 * KIB)
"""Of functions that a process compiled itself: on CPUs several that train together do (JAX caches the first one's)."""
COMPILING = Code(least_bytes=250 * MIB, instruction_bytes=20.5 * KIB)
"""The same at the most, while it compiles them."""
RUNNING_BYTES = 12 * MIB
"""What steps add to a process that has loaded its functions: library code that comes back, stacks, logs."""
SAVING_BYTES = 12 * MIB
"""What Orbax holds while it writes, besides the copy of the state."""
RESTORE_BYTES = 16 * MIB
"""Bytes that Orbax reads at a time; besides them a leaf is held twice, as read and as it goes to the device."""
BATCHES_ON_DEVICE = 4
"""The one of the step that runs, and the one of the step that waits: at most two are in flight. And the two that no
step has taken (`training/on_device.py`)."""
TIMED_KERNELS_SHARE = 0.011
"""Bytes that kernels chosen by the card's clock may take beyond those of the compiler's own choice, as a share of the
step's. An H100 took up to 1.01 % more than was predicted for one plan of six (2026-11-23, jax 0.11.2; docs/chips.md)
with such kernels, and not more than was predicted without."""

AFTER_OVERRUN = "margin after an overrun"
"""Component of what this very run needed beyond an earlier prediction."""
STEP = "step temporaries"
OF_STATE = {"optimizer": "optimizer", "ema": "ema", "frozen": "parameters"}
"""The component in which a part that can be offloaded is counted."""
UNPREPARED = Preparation(init_temp_bytes=0, evaluate_temp_bytes=0)
"""Of a plan of which only the step is known."""

Parts = dict[str, int]
Phases = dict[str, Parts]


@dataclass(frozen=True, kw_only=True)
class Margin:
    """What stays free of a budget beside a predicted peak."""

    least_bytes: int
    largest_share: float
    """Largest share of a budget that a peak may take."""

    def needed_bytes(self, peak: int) -> int:
        """Returns the smallest budget for a peak. It follows from the peak alone, so what a refusal names works."""
        share = math.ceil(peak / self.largest_share)
        return max(peak + self.least_bytes, share)


PREDICTED = Margin(least_bytes=64 * MIB, largest_share=0.95)
"""Of a process whose code is counted."""
TRIED = Margin(least_bytes=24 * MIB, largest_share=0.97)
"""Of a process that was weighed in a trial."""
ALLOCATED = Margin(least_bytes=0, largest_share=1.0)
"""Of an accelerator, whose allocator takes what the compiler said."""


@dataclass(frozen=True, kw_only=True)
class PlanBytes:
    """Bytes of one plan, by what is known of it."""

    plan: Plan
    problem: Problem
    static: Static
    analysis: Analysis
    imported_bytes: int
    """Weight of a process that has imported what training imports."""
    preparation: Preparation = UNPREPARED

    def ledger(self) -> Ledger:
        """Returns the peak of every phase, and the components of the dearest."""
        phases = self.phases
        peaks, dearest = peaks_of(phases)
        return Ledger(
            budget_bytes=self.problem.budget_bytes,
            components=phases[dearest],
            phase=dearest,
            phases=peaks,
            source=self.analysis.source,
            host=None if self.is_on_cpu else self.host_ledger(),
            spare_bytes=self.margin.needed_bytes(peaks[dearest]) - peaks[dearest],
        )

    # What it is made of.

    @property
    def is_on_cpu(self) -> bool:
        return self.problem.platform == "cpu"

    @property
    def local_devices(self) -> int:
        return self.problem.devices // self.problem.hosts

    @property
    def margin(self) -> Margin:
        """What stays free of the budget of a device."""
        return self.margin_of_process if self.is_on_cpu else ALLOCATED

    @property
    def margin_of_process(self) -> Margin:
        """What stays free beside a process, which was weighed, or will be before the plan is taken."""
        is_weighed = self.preparation.process is not None
        will_be = self.preparation is UNPREPARED and self.problem.prepares == "try"
        return TRIED if is_weighed or will_be else PREDICTED

    @property
    def process(self) -> Process:
        """Weight of the process with its functions loaded: weighed, or counted."""
        if self.preparation.process is not None:
            return self.preparation.process
        loaded, loading = (FILED, READING) if self.analysis.is_filed else (LOADED, LOADING)
        if self.is_on_cpu and self.problem.hosts > 1:
            loaded, loading = COMPILED, COMPILING
        instructions = self.analysis.instructions
        return Process(
            resident_bytes=self.imported_bytes + loaded.bytes_of(instructions),
            loading_bytes=self.imported_bytes + loading.bytes_of(instructions),
        )

    @property
    def state(self) -> Parts:
        """State of one device by component."""
        static = self.static
        state = {"parameters": static.parameter_bytes, "optimizer": static.optimizer_bytes + static.other_bytes}
        further = {"ema": static.ema_bytes, "carry": static.carry_bytes}
        return state | {name: size for name, size in further.items() if size}

    @property
    def data(self) -> Parts:
        return dict(self.problem.host_bytes[self.plan.lever("prefetch")])

    @property
    def phases(self) -> Phases:
        """Phases of what the budget is for, with what this very run needed beyond an earlier prediction."""
        phases = self.process_phases() if self.is_on_cpu else self.device_phases()
        reserve = {AFTER_OVERRUN: self.problem.margin_bytes} if self.problem.margin_bytes else {}
        return {name: parts | reserve if name in RUNNING else parts for name, parts in phases.items()}

    def process_phases(self) -> Phases:
        """Returns the phases of a CPU's process, which holds what all of its devices hold."""
        static = self.static
        local = self.local_devices
        loading = {"process": self.process.loading_bytes}
        base = {"process": self.process.resident_bytes + RUNNING_BYTES}
        base |= {name: local * size for name, size in self.state.items()}

        # What a run calls.
        init = {"init temporaries": local * self.preparation.init_temp_bytes}
        init["initial weights"] = max(1, local // self.plan.fsdp) * static.initial_bytes
        restore = {"restore buffers": RESTORE_BYTES + 2 * static.largest_leaf_bytes}
        step = {STEP: local * self.analysis.beyond_state_bytes}
        evaluation = {"evaluation temporaries": local * self.preparation.evaluate_temp_bytes}
        save = {"save buffers": SAVING_BYTES}
        if self.plan.lever("async_save"):  # training goes on meanwhile
            save |= {"state copy while saving": local * (static.state_bytes - static.given_bytes)} | step
        return {
            "load": loading,
            "start": base | init,
            "restore": base | restore,
            "train": base | step | self.data,
            "evaluate": base | evaluation | self.data,
            "save": base | save | self.data,
        }

    def device_phases(self) -> Phases:
        """Returns the phases of one accelerator. Saving copies to the host and adds nothing."""
        static = self.static
        state = self.state
        for part, moved in static.on_host(self.plan.offload).items():
            if moved:
                state[OF_STATE[part]] -= moved
        padding = self.analysis.alias_bytes - sum(state.values())
        if padding > 0:  # a TPU pads rows to whole tiles
            state["padding of the state"] = padding

        # What a run calls.
        init = {"init temporaries": self.preparation.init_temp_bytes}
        batches = {"batches": BATCHES_ON_DEVICE * static.batch_bytes}
        step = state | batches | {STEP: self.analysis.beyond_state_bytes}
        if not self.plan.deterministic:
            step["kernels chosen by the clock"] = math.ceil(TIMED_KERNELS_SHARE * sum(step.values()))
        evaluation = {"evaluation temporaries": self.preparation.evaluate_temp_bytes}
        return {"start": state | init, "train": step, "evaluate": state | batches | evaluation}

    def host_ledger(self) -> HostLedger:
        """Returns the ledger of a host, which writes what its devices hold once, and reads it back leaf by leaf."""
        static = self.static
        local = self.local_devices
        moved = static.host_bytes(self.plan.offload)
        base = {"process": self.process.resident_bytes + RUNNING_BYTES}
        if moved:
            base["offloaded state"] = local * moved

        # What a run calls. A save fetches the state whole, however it is written.
        restore = {"restore buffers": RESTORE_BYTES + 2 * static.largest_leaf_bytes}
        step = {STEP: local * self.analysis.host_temp_bytes} if self.analysis.host_temp_bytes else {}
        held = min(static.whole_state_bytes, local * static.state_bytes) - static.given_bytes
        save = {"save buffers": SAVING_BYTES, "state copy while saving": max(0, held)}
        phases = {
            "load": {"process": self.process.loading_bytes},
            "restore": base | restore,
            "train": base | self.data | step,
            "save": base | self.data | save | (step if self.plan.lever("async_save") else {}),
        }
        peaks, dearest = peaks_of(phases)
        return HostLedger(
            budget_bytes=self.problem.host_budget_bytes,
            components=phases[dearest],
            phase=dearest,
            pinned_bytes=local * (moved + self.analysis.host_temp_bytes),
            spare_bytes=self.margin_of_process.needed_bytes(peaks[dearest]) - peaks[dearest],
        )


def peaks_of(phases: Phases) -> tuple[dict[str, int], str]:
    """Returns the peak of every phase, and the name of the dearest."""
    peaks = {name: sum(parts.values()) for name, parts in phases.items()}
    return peaks, max(peaks, key=peaks.__getitem__)
