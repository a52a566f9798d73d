"""Predicted bytes of a run, from four sources, and the smallest budget that it fits.

1. Shapes give the exact bytes of the state, the batches and the copy that a save makes (`Static`).
2. Before a compile, a trace gives the bytes of a step besides the training state, with an error of tens of percent
   (`liveness`).
3. The compiler gives the bytes of the step that training will run, with an error of about a percent (`Analysis`).
4. The process itself holds its imports, which are measured, and compiled code, which is predicted from the number of
   instructions. A trial process of the plan measures both together (`Preparation`).

The peak of a run is the peak of its largest phase, not a sum over phases. On a CPU one process holds everything. With
an accelerator there are two ledgers (bytes by component): one of the device and one of the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll.planned import RUNNING, HostLedger, Ledger, Plan, Process
from plimsoll.planner.types import Analysis, Preparation, Problem, Static
from plimsoll.units import KIB, MIB


@dataclass(frozen=True, kw_only=True)
class Code:
    """Memory of compiled functions in a process, besides imported modules: a constant plus bytes per instruction."""

    least_bytes: int
    """Constant part, in bytes. It covers part of the code of initialisation and evaluation."""
    instruction_bytes: float
    """Bytes per instruction of the compiled step. They include the rest of the initialisation and evaluation code."""

    def bytes_of(self, instructions: int) -> int:
        return self.least_bytes + round(self.instruction_bytes * instructions)


LOADED = Code(least_bytes=36 * MIB, instruction_bytes=6.8 * KIB)
"""Memory of functions that were traced, lowered, and found in the compilation cache."""
LOADING = Code(least_bytes=72 * MIB, instruction_bytes=12.4 * KIB)
"""Peak memory while functions are traced, lowered, and read from the compilation cache."""
FILED = Code(least_bytes=27 * MIB, instruction_bytes=6.1 * KIB)
"""Memory of compiled functions that were read from files, without tracing and lowering."""
READING = Code(least_bytes=40 * MIB, instruction_bytes=11.6 * KIB)
"""Peak memory while compiled functions are read from files."""
COMPILED = Code(least_bytes=62 * MIB, instruction_bytes=9.1 * KIB)
"""Memory of functions that the process compiled itself.

When several processes train together on CPUs, each may compile: JAX writes only the first process's functions to its
cache."""
COMPILING = Code(least_bytes=250 * MIB, instruction_bytes=20.5 * KIB)
"""Peak memory while the process compiles its functions itself."""
RUNNING_BYTES = 12 * MIB
"""Bytes that steps add to a process with loaded functions: pages of library code, stacks, logs."""
SAVING_BYTES = 12 * MIB
"""Bytes that Orbax holds while it writes a checkpoint, besides the copy of the state."""
RESTORE_BYTES = 16 * MIB
"""Bytes that Orbax reads at a time while it restores a checkpoint. It also holds one array of the state twice."""
BATCHES_ON_DEVICE = 4
"""Largest number of batches on a device: one of the running step, one of the next step, and two that wait
(`training/on_device.py`)."""
TIMED_KERNELS_SHARE = 0.011
"""Extra bytes of kernels that XLA chooses by timing them on the card, as a share of the step's bytes.

With such kernels an H100 used up to 1.01 % more bytes than predicted for one plan of six, and without them never more
(2026-11-23, jax 0.11.2; notes, "Determinism on cards")."""

AFTER_OVERRUN = "margin after an overrun"
"""Name of the component for the margin that a run gets after it exceeded an earlier prediction."""
STEP = "step temporaries"
OF_STATE = {"optimizer": "optimizer", "ema": "ema", "frozen": "parameters"}
"""Component of the ledger that counts the bytes of each part of the training state that can be offloaded."""
UNPREPARED = Preparation(init_temp_bytes=0, evaluate_temp_bytes=0)
"""Stand-in for a plan of which only the training step was analysed: 0 bytes for initialisation and evaluation."""

Parts = dict[str, int]
Phases = dict[str, Parts]


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Safety margin: the part of a budget that must stay free beside the predicted peak."""

    least_bytes: int
    """Smallest margin, in bytes."""
    largest_share: float
    """Largest share of a budget that the peak may take."""

    def needed_bytes(self, peak: int) -> int:
        """Returns the smallest budget for a peak, in bytes.

        The result depends on the peak alone. So a plan fits the budget that an error message recommends.
        """
        share = math.ceil(peak / self.largest_share)
        return max(peak + self.least_bytes, share)


PREDICTED = Margin(least_bytes=64 * MIB, largest_share=0.95)
"""Margin of a process whose memory is predicted from its number of instructions."""
TRIED = Margin(least_bytes=24 * MIB, largest_share=0.97)
"""Margin of a process whose memory was measured in a trial process."""
ALLOCATED = Margin(least_bytes=0, largest_share=1.0)
"""Margin of an accelerator: none, because its allocator takes the bytes that the compiler reports."""


@dataclass(frozen=True, kw_only=True)
class PlanBytes:
    """Sources of the predicted bytes of one plan, and the ledger (bytes by component) computed from them."""

    plan: Plan
    problem: Problem
    static: Static
    analysis: Analysis
    imported_bytes: int
    """Resident memory of a process after training's imports, in bytes."""
    preparation: Preparation = UNPREPARED

    def ledger(self) -> Ledger:
        """Returns the ledger: the peak of every phase, and the components of the phase with the highest peak."""
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

    # The methods below compute the parts of the ledger.

    @property
    def is_on_cpu(self) -> bool:
        return self.problem.platform == "cpu"

    @property
    def local_devices(self) -> int:
        return self.problem.devices // self.problem.hosts

    @property
    def margin(self) -> Margin:
        """Safety margin for the budget of an accelerator, or on a CPU for the budget of the process."""
        return self.margin_of_process if self.is_on_cpu else ALLOCATED

    @property
    def margin_of_process(self) -> Margin:
        """Safety margin of the process: TRIED if a trial process measures its memory, now or later, else PREDICTED."""
        is_weighed = self.preparation.process is not None
        will_be = self.preparation is UNPREPARED and self.problem.prepares == "try"
        return TRIED if is_weighed or will_be else PREDICTED

    @property
    def process(self) -> Process:
        """Resident memory of the process with its functions loaded, measured in a trial or predicted."""
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
        """Bytes of one device's share of the training state, by component."""
        static = self.static
        state = {"parameters": static.parameter_bytes, "optimizer": static.optimizer_bytes + static.other_bytes}
        further = {"ema": static.ema_bytes, "carry": static.carry_bytes}
        return state | {name: size for name, size in further.items() if size}

    @property
    def data(self) -> Parts:
        return dict(self.problem.host_bytes[self.plan.lever("prefetch")])

    @property
    def phases(self) -> Phases:
        """Bytes by phase and component of an accelerator, or of a CPU's process, with the margin after an overrun."""
        phases = self.process_phases() if self.is_on_cpu else self.device_phases()
        reserve = {AFTER_OVERRUN: self.problem.margin_bytes} if self.problem.margin_bytes else {}
        return {name: parts | reserve if name in RUNNING else parts for name, parts in phases.items()}

    def process_phases(self) -> Phases:
        """Returns the bytes by phase and component of the process on a CPU, which holds the bytes of all devices."""
        static = self.static
        local = self.local_devices
        loading = {"process": self.process.loading_bytes}
        base = {"process": self.process.resident_bytes + RUNNING_BYTES}
        base |= {name: local * size for name, size in self.state.items()}

        # Bytes that one phase needs in addition to `base`, the bytes of all phases after loading.
        init = {"init temporaries": local * self.preparation.init_temp_bytes}
        init["initial weights"] = max(1, local // self.plan.fsdp) * static.initial_bytes
        restore = {"restore buffers": RESTORE_BYTES + 2 * static.largest_leaf_bytes}
        step = {STEP: local * self.analysis.beyond_state_bytes}
        evaluation = {"evaluation temporaries": local * self.preparation.evaluate_temp_bytes}
        save = {"save buffers": SAVING_BYTES}
        if self.plan.lever("async_save"):  # steps continue while a copy of the state is written
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
        """Returns the bytes by phase and component of one accelerator. Saving needs none, as it copies to the host."""
        static = self.static
        state = self.state
        for part, moved in static.on_host(self.plan.offload).items():
            if moved:
                state[OF_STATE[part]] -= moved
        padding = self.analysis.alias_bytes - sum(state.values())
        if padding > 0:  # a TPU pads arrays to whole tiles
            state["padding of the state"] = padding

        # Bytes that one phase needs in addition to the state.
        init = {"init temporaries": self.preparation.init_temp_bytes}
        batches = {"batches": BATCHES_ON_DEVICE * static.batch_bytes}
        step = state | batches | {STEP: self.analysis.beyond_state_bytes}
        if not self.plan.deterministic:
            step["kernels chosen by the clock"] = math.ceil(TIMED_KERNELS_SHARE * sum(step.values()))
        evaluation = {"evaluation temporaries": self.preparation.evaluate_temp_bytes}
        return {"start": state | init, "train": step, "evaluate": state | batches | evaluation}

    def host_ledger(self) -> HostLedger:
        """Returns the predicted bytes of one host's memory.

        To save, a host copies its devices' state once. It restores the state array by array.
        """
        static = self.static
        local = self.local_devices
        moved = static.host_bytes(self.plan.offload)
        base = {"process": self.process.resident_bytes + RUNNING_BYTES}
        if moved:
            base["offloaded state"] = local * moved

        # Bytes that one phase needs in addition to `base`. A save, synchronous or not, first copies the whole state.
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
    """Returns the peak bytes of every phase, and the name of the phase with the highest peak."""
    peaks = {name: sum(parts.values()) for name, parts in phases.items()}
    return peaks, max(peaks, key=peaks.__getitem__)
