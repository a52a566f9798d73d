"""The CPU of this machine: its compiler, its rates, and plans that are timed on it."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from plimsoll.engine.backends.compiled import analysis_of, module_of
from plimsoll.engine.rates import cpu_rates
from plimsoll.engine.steps import RecipeSteps
from plimsoll.planned import Plan
from plimsoll.planner import liveness
from plimsoll.planner.flops import Dots, dots, likely_instructions
from plimsoll.planner.hlo.packed import packed_bytes
from plimsoll.planner.host import cores
from plimsoll.planner.types import Analysis, Rates
from plimsoll.training import memory, program

Compile = Callable[..., jax.stages.Compiled]
"""From a lowered function, and whether it is `deterministic`."""

TIMED_ROUNDS = 4
"""Rounds of timing, where the order is not clear before."""
FEWEST_ROUNDS = 2
"""Rounds after which an order may be clear."""
APART = 0.85
"""Share of another plan's least time below which all of a plan's times are clearly less."""
TIMED_SECONDS = 1.0
"""Seconds of timing for each plan, where the order is not clear before: short steps need more rounds where others use
the machine."""
LONGEST_SECONDS = 4.0
"""Seconds of timing for each plan after which no further round begins."""
KEPT_STEPS = 2
"""Compiled steps that are kept: one is timed beside several, one after another."""


class Cpu:
    """Compiler of the CPU that this process runs on, which may be treated as several devices."""

    counts_every_dot = True
    """Whether a traced step shows all of its products."""

    def __init__(self, devices: int, compile: Compile) -> None:
        """Looks at the devices.

        Args:
            devices: Number of devices that the CPU is treated as.
            compile: Compiles a lowered function as the process that trains does.
        """
        self.devices = jax.devices()[:devices] if devices > 1 else None
        """Devices that functions are lowered for; None for the only one."""
        self.compile = compile
        self._number = devices
        self._loaded: dict[Plan, tuple[Any, Any]] = {}
        """Functions that begin a run and take a step, compiled."""

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
        """Returns the seconds per step of each plan on one random batch. Allocates one state, so only a child does it.

        The plans take turns, A B A B, so that other work on the machine affects all of them alike, until their order is
        clear or the time is over; never are there two states. The median counts.
        """
        batch = steps.random_batch()
        functions = [self._load(steps, plan) for plan in plans]
        states: dict[Any, Any] = {}
        seconds: list[list[float]] = [[] for _ in plans]
        start = time.perf_counter()
        while not _is_clear(seconds, time.perf_counter() - start):
            for plan, (init, step), times in zip(plans, functions, seconds, strict=True):
                # A state of this plan's kind.
                kind = plan.storage, plan.fsdp, plan.precision == "float16"
                if kind not in states:
                    states.clear()
                    states[kind] = init(np.uint32(0))

                # A step of it.
                begin = time.perf_counter()
                states[kind], metrics = step(states[kind], batch)
                jax.block_until_ready((states[kind], metrics))
                times.append(time.perf_counter() - begin)
        return [statistics.median(times[1:] or times) for times in seconds]

    def _load(self, steps: RecipeSteps, plan: Plan) -> tuple[Any, Any]:
        """Returns the functions that begin a run of the plan and take its step, compiled."""
        if plan not in self._loaded:
            functions = steps.functions(plan)
            init = self.compile(functions.init(), deterministic=plan.deterministic)
            compiled = self.compile(functions.step(steps.batch)[0], deterministic=plan.deterministic)
            memory.trim()

            # It stays, and the one before it.
            step = program.Fed(compiled, functions.put) if plan.devices > 1 else compiled
            others = list(self._loaded.items())[1 - KEPT_STEPS :]
            self._loaded = dict(others) | {plan: (init, step)}
        return self._loaded[plan]


def _is_clear(seconds: Sequence[Sequence[float]], elapsed: float) -> bool:
    """Returns whether plans were timed enough: each round's first is their loading."""
    rounds = len(seconds[-1])
    if rounds == 0:
        return False
    if elapsed > LONGEST_SECONDS * len(seconds):
        return True

    # An order that is clear: the slowest step of a plan took clearly less than the fastest of the next.
    timed = sorted((min(times[1:], default=0.0), max(times[1:], default=0.0)) for times in seconds)
    apart = all(slowest < APART * fastest for (_, slowest), (fastest, _) in itertools.pairwise(timed))
    if len(seconds) > 1 and apart and rounds > FEWEST_ROUNDS:
        return True

    return rounds > TIMED_ROUNDS and elapsed > TIMED_SECONDS * len(seconds)
