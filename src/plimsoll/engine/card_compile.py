"""Compiles the real step on the GPU that is here, and times it there, in the compile child.

What it compiles is what training loads from the cache, so its bytes are those of the very executable. The child's
allocator has the budget as its limit: a plan that needs more fails here, and not in training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from plimsoll.engine.card_rates import card_rates
from plimsoll.engine.cross_compile import CrossCompiler
from plimsoll.errors import PlimsollError
from plimsoll.planned import Plan
from plimsoll.planner.types import Rates
from plimsoll.training import program

QUEUED = 5
"""Steps that are queued and then waited for at once: waiting for each would cost a short one half of its time."""
ROUNDS = 3
"""Times that each plan is timed, at least; the median counts."""
TIMED_SECONDS = 1.0
"""Seconds that each plan is timed for, at least."""


class CardCompiler(CrossCompiler):
    """A recipe's compiler for the GPUs that it runs on.

    `about` holds what CrossCompiler needs, and the `card`, on which answers depend.
    """

    def placed(self) -> Sequence[Any]:
        """Returns the devices that are used. Raises PlimsollError if they are not the card's: JAX may be left a CPU."""
        found, expected = jax.local_devices()[: self.chip.devices], self._about["card"]["kind"]
        if any(device.device_kind != expected for device in found):
            raise PlimsollError(
                f"plans were to be compiled on the {expected} of this machine, and JAX finds a {found[0].device_kind}"
                " in the process that was to do it: `plimsoll doctor` says whether the card can be used; --chip cpu"
                " plans for the CPU"
            )
        return found

    def rates(self) -> Rates:
        """Returns the chip's rates from the catalogue; measured, if it is in none."""
        return super().rates() if self.chip.flops else card_rates()

    def functions(self, plan: Plan) -> program.Functions:
        """Returns the plan's functions as training lowers them: over a mesh only if it has several devices."""
        devices = self.devices if len(self.devices) > 1 else None
        return program.Functions(self._task(plan), self.rule(plan.storage), plan, devices)

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan, on one random batch that is ready on the device.

        Plans whose state is alike take turns on one state; never are there two.
        """
        seconds: dict[int, float] = {}
        groups: dict[Any, list[int]] = {}
        for number, plan in enumerate(plans):
            kept = plan.storage, plan.fsdp, plan.offload, plan.precision == "float16"
            groups.setdefault(kept, []).append(number)
        for numbers in groups.values():
            timed = self._timed([plans[number] for number in numbers])
            seconds |= dict(zip(numbers, timed, strict=True))
        return [seconds[number] for number in range(len(plans))]

    def _timed(self, plans: Sequence[Plan]) -> list[float]:
        spec = self.recipe.spec.batch(self.recipe.effective_batch)
        every = [self.functions(plan) for plan in plans]
        steps = [self.executable(functions.step(spec)[0], plan) for functions, plan in zip(every, plans, strict=True)]
        held = {"state": self.executable(every[0].init(), plans[0])(np.uint32(0))}
        random = np.random.default_rng(0)
        numbers = {name: random.integers(0, 2, shape).astype(dtype) for name, (shape, dtype) in spec.items()}
        batch = jax.device_put(numbers, self.devices[0]) if len(self.devices) == 1 else every[0].put(numbers)

        def taking(step: jax.stages.Compiled) -> Callable[[int], None]:
            def take(count: int) -> None:
                metrics = None
                for _ in range(count):
                    held["state"], metrics = step(held["state"], batch)
                jax.block_until_ready((held["state"], metrics))

            return take

        return in_turn([taking(step) for step in steps])


def in_turn(runs: Sequence[Callable[[int], None]], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Returns the median seconds of a step of each run. They take turns, so that other load meets all of them alike.

    Args:
        runs: Functions that take as many steps as they are told, and wait for them.
        clock: Clock in seconds.
    """
    for run in runs:
        run(1)  # loads kernels
    taken: list[list[float]] = [[] for _ in runs]
    while any(len(each) < ROUNDS or QUEUED * sum(each) < TIMED_SECONDS for each in taken):
        for run, each in zip(runs, taken, strict=True):
            started = clock()
            run(QUEUED)
            each.append((clock() - started) / QUEUED)
    return [statistics.median(each) for each in taken]
