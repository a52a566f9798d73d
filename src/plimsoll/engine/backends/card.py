"""The GPU that is here: its compiler, and plans that are timed on it.

What it compiles is what training loads from the cache, so its bytes are those of the very executable. The allocator of
this process has the budget as its limit: a plan that needs more fails here, and not in training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from plimsoll.engine.backends.accelerator import Accelerator
from plimsoll.engine.rates import card_rates
from plimsoll.engine.steps import RecipeSteps
from plimsoll.errors import PlimsollError
from plimsoll.planned import Plan
from plimsoll.planner import chips
from plimsoll.planner.types import Rates, Subject
from plimsoll.training import program

QUEUED = 5
"""Steps that are queued and then waited for at once: waiting for each would cost a short one half of its time."""
ROUNDS = 3
"""Times that each plan is timed, at least; the median counts."""
TIMED_SECONDS = 1.0
"""Seconds that each plan is timed for, at least."""


class Card(Accelerator):
    """Compiler of the GPUs that this process runs on."""

    def __init__(self, subject: Subject) -> None:
        assert subject.chip is not None
        assert subject.card is not None
        super().__init__(subject.chip)
        self._here = _devices_here(subject.devices, subject.card.kind)
        self.devices = self._here if len(self._here) > 1 else None
        """Devices that functions are lowered for; None for the only one, as training lowers them."""

    def rates(self) -> Rates:
        """Returns the chip's rates from the catalogue; measured, if it is in none."""
        return chips.rates(self.chip) if self.chip.flops else card_rates()

    def compile(self, lowered: jax.stages.Lowered, *, deterministic: bool) -> jax.stages.Compiled:
        """Returns a function of a run, compiled as the process that trains compiles it."""
        return program.compiled(lowered, platform="gpu", deterministic=deterministic)

    def time(self, steps: RecipeSteps, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan, on one random batch that is ready on the device.

        Plans whose state is alike take turns on one state; never are there two.
        """
        # Plans by the kind of their state.
        groups: dict[Any, list[Plan]] = {}
        for plan in plans:
            kind = plan.storage, plan.fsdp, plan.offload, plan.precision == "float16"
            groups.setdefault(kind, []).append(plan)

        seconds: dict[Plan, float] = {}
        for group in groups.values():
            times = self._time_together(steps, group)
            seconds |= zip(group, times, strict=True)
        return [seconds[plan] for plan in plans]

    def _time_together(self, steps: RecipeSteps, plans: Sequence[Plan]) -> list[float]:
        functions = [steps.functions(plan) for plan in plans]
        compiled = [
            self.compile(of_plan.step(steps.batch)[0], deterministic=plan.deterministic)
            for plan, of_plan in zip(plans, functions, strict=True)
        ]
        init = self.compile(functions[0].init(), deterministic=plans[0].deterministic)
        state = init(np.uint32(0))
        numbers = steps.random_batch()
        batch = jax.device_put(numbers, self._here[0]) if self.devices is None else functions[0].put(numbers)

        def stepping(step: jax.stages.Compiled) -> Callable[[int], None]:
            def take(count: int) -> None:
                nonlocal state
                metrics = None
                for _ in range(count):
                    state, metrics = step(state, batch)
                jax.block_until_ready((state, metrics))

            return take

        return in_turn([stepping(step) for step in compiled])


def _devices_here(number: int, kind: str) -> Sequence[Any]:
    """Returns the devices that are used. Raises PlimsollError if they are not the card's: JAX may be left a CPU."""
    devices = jax.local_devices()[:number]
    if any(device.device_kind != kind for device in devices):
        raise PlimsollError(
            f"plans were to be compiled on the {kind} of this machine, and JAX finds a {devices[0].device_kind} in the"
            " process that was to do it: `plimsoll doctor` says whether the card can be used; --chip cpu plans for the"
            " CPU"
        )
    return devices


def in_turn(runs: Sequence[Callable[[int], None]], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Returns the median seconds of a step of each run. They take turns, so that other load meets all of them alike.

    Args:
        runs: Functions that take as many steps as they are told, and wait for them.
        clock: Clock in seconds.
    """
    for run in runs:
        run(1)  # loads kernels
    seconds: list[list[float]] = [[] for _ in runs]
    while any(len(times) < ROUNDS or QUEUED * sum(times) < TIMED_SECONDS for times in seconds):
        for run, times in zip(runs, seconds, strict=True):
            begin = clock()
            run(QUEUED)
            times.append((clock() - begin) / QUEUED)
    return [statistics.median(times) for times in seconds]
