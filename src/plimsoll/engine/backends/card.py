"""The GPU that is here: its compiler, and plans that are timed on it.

What it compiles is what training loads from the cache, so its bytes are those of the very executable. The allocator of
this process has the budget as its limit: a plan that needs more fails here, and not in training.
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
"""Steps that are queued and then waited for at once: waiting for each would cost a short one half of its time."""


class Card(Accelerator):
    """Compiler of the GPUs that this process runs on."""

    def __init__(self, subject: Subject) -> None:
        assert subject.chip is not None
        assert subject.card is not None
        super().__init__(subject.chip)
        here = _devices_here(subject.devices, subject.card.kind)
        self.devices = here if len(here) > 1 else None
        """Devices that functions are lowered for; None for the only one, as training lowers them."""

    def rates(self) -> Rates:
        """Returns the chip's rates from the catalogue; measured, if it is in none."""
        return chips.rates(self.chip) if self.chip.flops else card_rates()

    def compile(
        self, lowered: jax.stages.Lowered, *, deterministic: bool, file: Path | None = None
    ) -> jax.stages.Compiled:
        """Returns a function of a run, compiled as the process that trains compiles it."""
        return program.compiled(lowered, platform="gpu", deterministic=deterministic)

    def time(self, steps: RecipeSteps, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan, on a batch that is ready on the device."""
        return step_seconds([Candidate(steps, plan, self.compile, jax.device_put) for plan in plans], queued=QUEUED)


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
