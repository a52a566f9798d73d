"""What more devices of the kind would do: bytes that each sends in a step, and the share of its time that is work.

By the same formulas as the plan's own step (speed.py), for the same effective batch: a device has fewer examples the
more there are, and sends as much. Not in it: that some of what is sent hides behind arithmetic, and slower links
between machines.
"""

from __future__ import annotations

from dataclasses import replace

from plimsoll.planned import Plan, Scaled
from plimsoll.planner.speed import sent_bytes, step_seconds
from plimsoll.planner.types import Analysis, Rates, Static

DEVICES = (1, 2, 4, 8, 16, 32)


def scaling(plan: Plan, analysis: Analysis, static: Static, rates: Rates) -> tuple[Scaled, ...]:
    """Returns the step on each number of devices that divides the effective batch; empty without a link rate."""
    if not rates.link_bytes:
        return ()
    counts = [count for count in DEVICES if plan.effective_batch % count == 0]
    times = {count: _on(count, plan, analysis, static, rates) for count in counts}
    alone = times[1][0]
    return tuple(
        Scaled(devices=count, sent_bytes=int(sent), step_seconds=seconds, efficiency=alone / (count * seconds))
        for count, (seconds, sent) in times.items()
    )


def _on(count: int, plan: Plan, analysis: Analysis, static: Static, rates: Rates) -> tuple[float, float]:
    """Returns seconds of a step, and bytes that a device sends in it. A device gets no more examples than now."""
    now, examples = plan.micro_batch // plan.devices, plan.effective_batch // count
    share = max(n for n in range(1, min(now, examples) + 1) if examples % n == 0)
    fsdp = count if plan.fsdp > 1 else 1
    there = replace(plan, micro_batch=share * count, accumulation=examples // share, fsdp=fsdp, devices=count)
    names = ("parameter_bytes", "optimizer_bytes", "ema_bytes")
    held = replace(static, **{name: getattr(static, name) * plan.fsdp // fsdp for name in names})
    temporaries = replace(analysis, temp_bytes=analysis.temp_bytes * share // now)
    return step_seconds(there, temporaries, held, rates, devices=count), sent_bytes(there, held, devices=count)
