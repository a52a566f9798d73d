"""From what the compiler says to the peak of the run: a maximum over its phases, not a sum of everything.

On a CPU one resident set holds it all: the process (measured in a rehearsal), the state, the step's temporaries,
what the loader holds, and what a save needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planner.types import Analysis, Learned, Rehearsal, Static
from plimsoll.types import Ledger, Plan
from plimsoll.units import MIB

SAVE_BYTES = 20 * MIB
"""Orbax writing slices of 4 MiB, 8 MiB of them in flight (measured: docs/log.md, "Saving")."""
RESTORE_BYTES = 8 * MIB
"""What Orbax reads at a time; besides it a leaf is there twice, as read and as it goes to the device."""
RUNNING_BYTES = 20 * MIB
"""What a running process adds to a rehearsed one: library code that comes back, thread stacks, logs, allocator
rounding (docs/log.md, "Given back")."""

LEARNED = "learned from runs"
"""The component for what earlier runs needed beyond their predictions."""

LOADING_BYTES = 4 * MIB
"""What two starts of the same process differ by."""


def ledger(
    plan: Plan,
    *,
    budget_bytes: int,
    static: Static,
    analysis: Analysis,
    rehearsal: Rehearsal,
    host: Mapping[str, int],
    learned: Learned | None = None,
) -> Ledger:
    """Every phase priced; the ledger holds the components of the dearest."""
    host = dict(host)
    base = {
        "process": rehearsal.process_bytes + RUNNING_BYTES,
        "parameters": static.parameter_bytes,
        "optimizer": static.optimizer_bytes + static.other_bytes,
    }
    step = {"step temporaries": analysis.beyond_state_bytes}
    save = {"save buffers": min(SAVE_BYTES, 2 * static.state_bytes)}
    if plan.async_save:
        save["state copy while saving"] = static.state_bytes
    phases = {
        "load": {"process": rehearsal.starting_bytes + LOADING_BYTES},
        "start": base | {"init temporaries": rehearsal.init_temp_bytes},
        "restore": base | {"restore buffers": RESTORE_BYTES + 2 * static.largest_leaf_bytes},
        "train": base | step | host,
        "evaluate": base | {"evaluation temporaries": rehearsal.evaluate_temp_bytes} | host,
        "save": base | save | host | (step if plan.async_save else {}),
    }
    computed = {name: sum(parts.values()) for name, parts in phases.items()}
    if learned is not None:
        phases = {name: _corrected(name, parts, learned.of(name, computed[name])) for name, parts in phases.items()}
    peaks = {name: sum(parts.values()) for name, parts in phases.items()}
    dearest = max(peaks, key=lambda name: peaks[name])
    return Ledger(
        budget_bytes=budget_bytes,
        predicted=phases[dearest],
        phase=dearest,
        phases=peaks,
        learned={name: peaks[name] - computed[name] for name in peaks if peaks[name] != computed[name]},
    )


def _corrected(phase: str, parts: Mapping[str, int], more: int) -> dict[str, int]:
    """What was learned is a part of its own. Where less was needed, only our own allowance gives way: never bytes
    that are exact, compiled or rehearsed."""
    if more >= 0:
        return dict(parts) | ({LEARNED: more} if more else {})
    allowance = LOADING_BYTES if phase == "load" else RUNNING_BYTES
    return dict(parts) | {"process": parts["process"] - min(-more, allowance)}
