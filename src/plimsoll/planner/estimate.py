"""Peak of the run from what the compiler says: a maximum over its phases, not a sum of everything.

Micro-batches between and beyond the compiled ones are interpolated: temporaries grow almost linearly.

On a CPU one resident set holds it all: the process (measured in a rehearsal), the state, the step's temporaries,
what the loader holds, and what a save needs. Beside an accelerator there are two: the device's, and the host's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planned import RUNNING, EstimateBand, HostLedger, Ledger, Plan
from plimsoll.planner.types import Analysis, Problem, Rehearsal, Static
from plimsoll.units import MIB

SAVING_BYTES = 6 * MIB
"""Orbax at work on a state of any size: its library code, its threads. It writes from the arrays' own memory."""
RESTORE_BYTES = 16 * MIB
"""Bytes that Orbax reads at a time; besides them a leaf is held twice, as read and as it goes to the device."""
RUNNING_BYTES = 14 * MIB
"""Bytes that a running process adds to a rehearsed one: library code that comes back, thread stacks, logs, allocator
rounding (notes, "Given back", "Allowances, measured again")."""
SPARE_BYTES = 64 * MIB
"""Least that stays free of a budget on a CPU, beside the predicted peak."""
SHARE_OF_BUDGET = 0.95
"""Largest share of a budget that a predicted peak may take on a CPU."""

AFTER_OVERRUN = "margin after an overrun"
"""Component of what this very run needed beyond an earlier prediction."""

BATCHES_ON_DEVICE = 4
"""The one of the step that runs, and the one of the step that waits: at most two are in flight. And the two that no
step has taken (`training/on_device.py`)."""
TIMED_KERNELS_SHARE = 0.011
"""Bytes that kernels chosen by the card's clock may take beyond those of the compiler's own choice, as a share of the
step's. An H100 took up to 1.01 % more than was predicted for one plan of six (2026-11-23, jax 0.11.2; docs/chips.md)
with such kernels, and not more than was predicted without."""
ESTIMATED_ON_ONE_DEVICE = 21, (0.87, 1.49)
"""Number of estimated plans that were compared with a compiler, and the lowest and highest of them: what a step needs
beyond its state, as estimated, over what the compiler reported. 19 for four cards (0.87 to 1.09) and 2 for a tpu-v5e-1,
of five recipes, on 2026-11-30 (jax 0.10.2); docs/chips.md lists them."""
ESTIMATED_ON_SEVERAL = 32, (0.46, 1.73)
"""The same for a tpu-v5e-8 and a tpu-v4-64: 14 and 18 on 2026-11-21 and 2026-11-26, of `stories`."""
TRACED = "temporaries"
"""End of the names of components that are counted in a traced function; all others are exact, or measured."""
OF_STATE = {"optimizer": "optimizer", "ema": "ema", "frozen": "parameters"}
"""The component in which a part that can be offloaded is counted."""

Parts = dict[str, int]


def ledger(plan: Plan, problem: Problem, *, static: Static, analysis: Analysis, rehearsal: Rehearsal) -> Ledger:
    """Prices every phase and returns the ledger with the components of the dearest."""
    data = dict(problem.host_bytes[plan.lever("prefetch")])
    if problem.platform == "cpu":
        local = problem.devices // problem.hosts
        phases, host = _one_memory(plan, static, analysis, rehearsal, data, local=local), None
    else:
        phases = _device(plan, static, analysis, rehearsal)
        host = _host(plan, problem, static, analysis, rehearsal, data)
    if problem.margin_bytes:
        for name in phases.keys() & set(RUNNING):
            phases[name][AFTER_OVERRUN] = problem.margin_bytes
    peaks = {name: sum(parts.values()) for name, parts in phases.items()}
    dearest = max(peaks, key=peaks.__getitem__)
    return Ledger(
        budget_bytes=problem.budget_bytes,
        components=phases[dearest],
        phase=dearest,
        phases=peaks,
        source=analysis.source,
        host=host,
        spare_bytes=spare_bytes(peaks[dearest]) if problem.platform == "cpu" else 0,
    )


def spare_bytes(predicted: int) -> int:
    """Returns the bytes that stay free beside a predicted peak on a CPU. An accelerator's allocator needs none.

    They follow from the peak and not from the budget, so that the budget which a refusal names does work.
    """
    share = math.ceil(predicted / SHARE_OF_BUDGET) - predicted
    return max(SPARE_BYTES, share)


def estimates_compared(devices: int) -> tuple[int, tuple[float, float]]:
    """Returns the number of estimated plans that were compared with a compiler, and the lowest and highest ratio."""
    return ESTIMATED_ON_ONE_DEVICE if devices == 1 else ESTIMATED_ON_SEVERAL


def estimate_band(ledger: Ledger, *, devices: int = 1) -> EstimateBand | None:
    """Returns the range of the compiler's bytes for an estimated ledger; None for one that was compiled.

    The highest peak may be over the budget.
    """
    if ledger.source != "estimated":
        return None

    plans, (least, most) = estimates_compared(devices)
    lowest = 1 / most
    highest = 1 / least
    traced = sum(size for name, size in ledger.components.items() if name.endswith(TRACED))
    exact = ledger.predicted_peak_bytes - traced
    return EstimateBand(
        lowest=round(lowest - 1, 2),
        highest=round(highest - 1, 2),
        plans=plans,
        lowest_peak_bytes=round(exact + lowest * traced),
        highest_peak_bytes=round(exact + highest * traced),
    )


def _one_memory(
    plan: Plan, static: Static, analysis: Analysis, rehearsal: Rehearsal, data: Parts, *, local: int
) -> dict[str, Parts]:
    """Returns the phases of a CPU process, which holds what all of its `local` devices hold."""
    process = rehearsal.process_bytes + RUNNING_BYTES
    base = {"process": process} | {name: local * size for name, size in _state(static).items()}
    step = {"step temporaries": local * analysis.beyond_state_bytes}
    save = {"save buffers": SAVING_BYTES}
    if plan.lever("async_save"):
        save["state copy while saving"] = local * (static.state_bytes - static.given_bytes)
    return {
        "load": {"process": rehearsal.starting_bytes},
        "start": base
        | {"init temporaries": local * rehearsal.init_temp_bytes}
        | {"initial weights": max(1, local // plan.fsdp) * static.initial_bytes},
        "restore": base | {"restore buffers": RESTORE_BYTES + 2 * static.largest_leaf_bytes},
        "train": base | step | data,
        "evaluate": base | {"evaluation temporaries": local * rehearsal.evaluate_temp_bytes} | data,
        "save": base | save | data | (step if plan.lever("async_save") else {}),
    }


def _device(plan: Plan, static: Static, analysis: Analysis, rehearsal: Rehearsal) -> dict[str, Parts]:
    """Returns the phases of an accelerator. Saving copies to the host and adds nothing."""
    state = _state(static)
    for part, moved in static.on_host(plan.offload).items():
        if moved:
            state[OF_STATE[part]] -= moved
    if (more := analysis.alias_bytes - sum(state.values())) > 0:  # a TPU pads rows to whole tiles
        state["padding of the state"] = more
    batches = {"batches": BATCHES_ON_DEVICE * static.batch_bytes}
    step = state | batches | {"step temporaries": analysis.beyond_state_bytes}
    if not plan.deterministic:
        step["kernels chosen by the clock"] = math.ceil(TIMED_KERNELS_SHARE * sum(step.values()))
    return {
        "start": state | {"init temporaries": rehearsal.init_temp_bytes},
        "train": step,
        "evaluate": state | batches | {"evaluation temporaries": rehearsal.evaluate_temp_bytes},
    }


def _host(
    plan: Plan, problem: Problem, static: Static, analysis: Analysis, rehearsal: Rehearsal, data: Parts
) -> HostLedger:
    """Returns the ledger of a host, which writes what its devices hold once, and reads it back leaf by leaf."""
    local = problem.devices // problem.hosts
    held = max(0, min(static.whole_state_bytes, local * static.state_bytes) - static.given_bytes)
    base = {"process": rehearsal.process_bytes + RUNNING_BYTES}
    if moved := static.host_bytes(plan.offload):
        base["offloaded state"] = local * moved
    step = {"step temporaries": local * analysis.host_temp_bytes} if analysis.host_temp_bytes else {}
    save = {"save buffers": SAVING_BYTES, "state copy while saving": held}  # fetched whole, however it is written
    phases = {
        "load": {"process": rehearsal.starting_bytes},
        "restore": base | {"restore buffers": RESTORE_BYTES + 2 * static.largest_leaf_bytes},
        "train": base | data | step,
        "save": base | data | save | (step if plan.lever("async_save") else {}),
    }
    dearest = max(phases, key=lambda name: sum(phases[name].values()))
    return HostLedger(
        budget_bytes=problem.host_budget_bytes,
        components=phases[dearest],
        phase=dearest,
        pinned_bytes=local * (moved + analysis.host_temp_bytes),
    )


def _state(static: Static) -> Parts:
    state = {"parameters": static.parameter_bytes, "optimizer": static.optimizer_bytes + static.other_bytes}
    if static.ema_bytes:
        state["ema"] = static.ema_bytes
    if static.carry_bytes:
        state["carry"] = static.carry_bytes
    return state


def sample(micros: list[int]) -> list[int]:
    """Returns two micro-batches to compile: a small one, and one about four times as large."""
    small = micros[min(1, len(micros) - 1)] if len(micros) > 2 else micros[0]
    large = next((n for n in micros if n >= 4 * small), micros[-1])
    return sorted({small, large})


def interpolated(micro: int, compiled: Mapping[int, Analysis]) -> Analysis:
    """Returns the analysis by linear interpolation; below the smaller compiled one, never less than in proportion."""
    smallest, largest = min(compiled), max(compiled)
    low, high = compiled[smallest], compiled[largest]
    if smallest == largest:
        share = micro / smallest
        return replace(
            low,
            temp_bytes=round(low.temp_bytes * max(1.0, share)),
            host_temp_bytes=round(low.host_temp_bytes * share),
            kernels=low.kernels / share,
            sent_bytes=low.sent_bytes if share == 1 else 0.0,
            hidden_share=low.hidden_share if share == 1 else 0.0,
        )
    slope = (high.temp_bytes - low.temp_bytes) / (largest - smallest)
    temp = max(low.temp_bytes + slope * (micro - smallest), low.temp_bytes * min(1.0, micro / smallest))
    hosted = high.host_temp_bytes * micro / largest  # the inputs of blocks: so many for each example
    # Of the whole step, linear in 1 / micro-batch: a constant part, and one per micro-batch.
    offset, width = 1 / micro - 1 / smallest, 1 / largest - 1 / smallest
    moved, dots, kernels, seconds, sent, hidden = (
        getattr(low, name) + (getattr(high, name) - getattr(low, name)) * offset / width
        for name in ("moved_bytes", "dots", "kernels", "kernel_seconds", "sent_bytes", "hidden_share")
    )
    return replace(
        low,
        temp_bytes=round(temp),
        moved_bytes=moved,
        dots=dots,
        host_temp_bytes=round(hosted),
        kernels=kernels,
        kernel_seconds=seconds,
        sent_bytes=max(0.0, sent),
        hidden_share=min(1.0, max(0.0, hidden)),
    )
