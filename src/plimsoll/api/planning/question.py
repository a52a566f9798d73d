"""What a user wants a plan for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.api.planning.pins import require_levers
from plimsoll.recipes.recipe import Recipe
from plimsoll.types import StepOptions


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a user wants a plan for. What it means on a chip is a `Place`.

    Raises:
        RecipeError: A pin is of no lever, or its value is none of the lever's.
    """

    recipe: Recipe
    name: str
    """Name of the recipe in messages."""
    memory: str | float | None = None
    """Budget of each device; None for what is free, or all of a chip that is not here."""
    host_memory: str | float | None = None
    """Budget of each host beside its accelerators."""
    chip: str | None = None
    """One of `plimsoll chips`; None for the accelerator that is here, else the CPU."""
    mesh: str | None = None
    """Devices that share the work and the state, like "data=4,fsdp=2"; None for all that are there."""
    numerics: str = "mixed"
    pins: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Levers that keep a value."""
    pinned_by: str | None = None
    """Source of the pins where nobody typed them, like "--plan FILE"."""
    step_options: StepOptions = field(default_factory=StepOptions)
    """What is set about the step itself."""
    within: str | float | None = None
    """Time that planning may take; None for what is usual on the platform."""
    measure: bool = False
    """Whether the best few plans are timed on the chip, which must be here."""
    is_of_run: bool = False
    """Whether a run begins with the plan: then what it calls is compiled, and its process weighed."""

    def __post_init__(self) -> None:
        pins = {name: value for name, value in self.pins.items() if value is not None}
        require_levers(pins)
        object.__setattr__(self, "pins", pins)

    @property
    def batch(self) -> int:
        """Examples that the devices share at a time: the pinned micro-batch, else the effective batch."""
        return self.pins.get("micro_batch") or self.recipe.effective_batch
