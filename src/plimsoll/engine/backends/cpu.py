"""Compiling, measuring and timing on this machine's CPU."""

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
    """Compiler for this machine's CPU, which JAX may present as several devices."""

    counts_every_dot = True
    """True if a jaxpr shows all matmuls of a step."""

    def __init__(self, devices: int) -> None:
        """Initializes for a CPU that JAX presents as `devices` devices."""
        self.devices = jax.devices()[:devices] if devices > 1 else None
        """Devices that functions are lowered for; None for a single device."""
        self._number = devices

    def compile(
        self, lowered: jax.stages.Lowered, *, deterministic: bool = True, file: Path | None = None
    ) -> jax.stages.Compiled:
        """Loads a function from `file`, or compiles it as training does. All functions on a CPU are deterministic."""
        return compiled(lowered, file)

    def rates(self) -> Rates:
        """Returns FLOP/s and other rates of this CPU, as measured now."""
        return cpu_rates()

    def analysis(self, step: jax.stages.Compiled, counted: Dots) -> Analysis:
        """Returns bytes of a compiled step, with copies of operands that CPU libraries make, and the counted FLOPs."""
        analysis = analysis_of(step, flops=counted.flops, dots=counted.number)
        module = module_of(step)
        packed = packed_bytes(module, cores=cores())
        temporaries = analysis.temp_bytes + packed
        return dataclasses.replace(analysis, temp_bytes=temporaries, instructions=len(module.instructions))

    def estimate(self, share: Any, *, micro_batches: int) -> Analysis:
        """Estimates bytes and FLOPs of a step from the jaxpr of one device's part of it."""
        counted = dots(share)
        return Analysis(
            temp_bytes=self.traced_bytes(share),
            instructions=likely_instructions(share),
            flops=counted.flops * self._number,
            dots=counted.number,
            source="estimated",
        )

    def traced_bytes(self, share: Any) -> int:
        """Estimates the bytes of a function's temporaries on one device, from the jaxpr `share`."""
        return liveness.temporary_bytes(share)

    def time(self, steps: RecipeSteps, plans: Sequence[Plan]) -> list[float]:
        """Measures the seconds per step of each plan. Call it in a child process: it allocates a training state."""
        return step_seconds([Candidate(steps, plan, self.compile, put=dict) for plan in plans])
