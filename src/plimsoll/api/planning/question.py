"""A user's request for a plan: the recipe, the memory budget, the chip and options of planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.api.planning.pins import require_levers
from plimsoll.recipes.recipe import Recipe
from plimsoll.types import StepOptions


@dataclass(frozen=True, kw_only=True)
class Question:
    """A user's request for a plan. `place_of` determines devices and budgets from its chip, mesh and memory.

    Raises:
        RecipeError: A key of `pins` is no lever (memory-saving option), or the lever cannot have the value.
    """

    recipe: Recipe
    name: str
    """Name of the recipe in messages."""
    memory: str | float | None = None
    """Budget of each device, like "8GiB"; None for the free memory, or for all memory of a chip not in this machine."""
    host_memory: str | float | None = None
    """Host memory budget of each machine with accelerators; None for that of the chip's usual host."""
    chip: str | None = None
    """Name of a chip, as `plimsoll chips` lists it; None for this machine's accelerator, or else its CPU."""
    mesh: str | None = None
    """Devices that share the batch and the state, like "data=4,fsdp=2"; None for all devices of the chip."""
    numerics: str = "mixed"
    """How far a plan may change the arithmetic: "exact", "mixed" or "compressed"."""
    pins: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of levers (memory-saving options), by name, that every plan must have."""
    pinned_by: str | None = None
    """Source of `pins` if the user did not type them one by one, like "--plan FILE"."""
    step_options: StepOptions = field(default_factory=StepOptions)
    """Options of the training step that only the user sets, not the planner."""
    within: str | float | None = None
    """Time limit of planning, like "10s"; None for the platform's default."""
    measure: bool = False
    """Whether to time the best few plans on the chip, which must be in this machine."""
    is_of_run: bool = False
    """Whether a run will train with the plan. If so, evaluation is compiled, too, or measured in a trial process."""

    def __post_init__(self) -> None:
        pins = {name: value for name, value in self.pins.items() if value is not None}
        require_levers(pins)
        object.__setattr__(self, "pins", pins)

    @property
    def batch(self) -> int:
        """Number of examples that the devices split: the fixed micro-batch, or else the effective batch."""
        return self.pins.get("micro_batch") or self.recipe.effective_batch
