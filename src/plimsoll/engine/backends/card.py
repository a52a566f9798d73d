"""Compiling and timing plans on this machine's GPU.

Training loads the same compiled step from a cache, so the analysed bytes are exact. The allocator of this process is
limited to the memory budget: a plan that needs more fails here instead of in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from plimsoll.engine.backends.accelerator import Accelerator
from plimsoll.engine.rates import card_rates
from plimsoll.engine.steps import RecipeSteps
from plimsoll.engine.timing import Candidate, step_seconds
from plimsoll.errors import PlimsollError
from plimsoll.planned import Plan
from plimsoll.planner import chips
from plimsoll.planner.types import Rates, Subject
from plimsoll.training import program

QUEUED = 5
"""Number of steps dispatched before waiting. Waiting after every step would take half the time of a short step."""


class Card(Accelerator):
    """Compiler for the GPUs of this machine, which also times plans."""

    def __init__(self, subject: Subject) -> None:
        assert subject.chip is not None
        assert subject.card is not None
        super().__init__(subject.chip)
        here = _devices_here(subject.devices, subject.card.kind)
        self.devices = here if len(here) > 1 else None
        """JAX devices that functions are lowered for; None for a single device."""

    def rates(self) -> Rates:
        """Returns FLOP/s and other rates of the GPU: from the catalogue of chips, else measured."""
        return chips.rates(self.chip) if self.chip.flops else card_rates()

    def compile(
        self, lowered: jax.stages.Lowered, *, deterministic: bool, file: Path | None = None
    ) -> jax.stages.Compiled:
        """Compiles a function with the compiler options of training."""
        return program.compiled(lowered, platform="gpu", deterministic=deterministic)

    def time(self, steps: RecipeSteps, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan, timed in turn with the batch already on the device."""
        return step_seconds([Candidate(steps, plan, self.compile, jax.device_put) for plan in plans], queued=QUEUED)


def _devices_here(number: int, kind: str) -> Sequence[Any]:
    """Returns the first `number` devices of JAX. Raises PlimsollError if one is not of the expected kind.

    Args:
        number: Number of devices.
        kind: JAX's name of the GPU.
    """
    devices = jax.local_devices()[:number]
    if any(device.device_kind != kind for device in devices):
        raise PlimsollError(
            f"plans were to be compiled on the {kind} of this machine, but JAX finds a {devices[0].device_kind} in the"
            " compile process: `plimsoll doctor` says whether the card can be used; --chip cpu plans for the CPU"
        )
    return devices
