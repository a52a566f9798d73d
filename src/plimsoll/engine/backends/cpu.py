"""The CPU of this machine: its compiler, its rates, and plans that are timed on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from plimsoll.engine.backends.compiled import analysis_of, module_of
from plimsoll.engine.executables import compiled
from plimsoll.engine.rates import cpu_rates
from plimsoll.engine.steps import RecipeSteps
from plimsoll.engine.timing import Candidate, step_seconds
from plimsoll.planned import Plan
from plimsoll.planner import liveness
from plimsoll.planner.flops import Dots, dots, likely_instructions
from plimsoll.planner.hlo.packed import packed_bytes
from plimsoll.planner.host import cores
from plimsoll.planner.types import Analysis, Rates


class Cpu:
    """Compiler of the CPU that this process runs on, which may be treated as several devices."""

    counts_every_dot = True
    """Whether a traced step shows all of its products."""

    def __init__(self, devices: int) -> None:
        """Looks at the devices, as which the CPU is treated."""
        self.devices = jax.devices()[:devices] if devices > 1 else None
        """Devices that functions are lowered for; None for the only one."""
        self._number = devices

    def compile(
        self, lowered: jax.stages.Lowered, *, deterministic: bool = True, file: Path | None = None
    ) -> jax.stages.Compiled:
        """Returns a function, compiled as the process that trains does. A CPU's are all deterministic."""
        return compiled(lowered, file)

    def rates(self) -> Rates:
        """Returns the measured rates of this machine."""
        return cpu_rates()

    def analysis(self, step: jax.stages.Compiled, counted: Dots) -> Analysis:
        """Returns the bytes of a compiled step, with those that libraries pack, and its work as it was counted."""
        analysis = analysis_of(step, flops=counted.flops, dots=counted.number)
        module = module_of(step)
        packed = packed_bytes(module, cores=cores())
        temporaries = analysis.temp_bytes + packed
        return dataclasses.replace(analysis, temp_bytes=temporaries, instructions=len(module.instructions))

    def estimate(self, share: Any, *, micro_batches: int) -> Analysis:
        """Returns what one device's share of a traced step says of its bytes and its work."""
        counted = dots(share)
        return Analysis(
            temp_bytes=self.traced_bytes(share),
            instructions=likely_instructions(share),
            flops=counted.flops * self._number,
            dots=counted.number,
            source="estimated",
        )

    def traced_bytes(self, share: Any) -> int:
        """Returns the temporaries of one device's share of a traced function."""
        return liveness.temporary_bytes(share)

    def time(self, steps: RecipeSteps, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan. Allocates one state, so only a child does it."""
        return step_seconds([Candidate(steps, plan, self.compile, put=dict) for plan in plans])
