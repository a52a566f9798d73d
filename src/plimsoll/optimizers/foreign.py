"""Settings for optimizers from users: an optax transformation, or a function of the run's length."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.errors import RecipeError
from plimsoll.optimizers.settings import TYPICAL_STEPS, Optimizer
from plimsoll.types import WHOLE, Storage

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True)
class Optax(Optimizer):
    """Any optax transformation. Its learning-rate schedule is unknown, and does not depend on the run's length."""

    transformation: Any = field(metadata={"option": False})

    def rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        return self.transformation

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        return True


@dataclass(frozen=True)
class OfLength(Optimizer):
    """A function of the run's number of steps that returns an optax transformation or settings."""

    function: Callable[[int], Any] = field(metadata={"option": False})

    def at(self, steps: int) -> Optimizer:
        """Returns the settings of a run of `steps`."""
        return optimizer_of(self.function(steps))

    @property
    def levers(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.at(TYPICAL_STEPS).levers

    @property
    def needs_norm(self) -> bool:
        return self.at(TYPICAL_STEPS).needs_norm

    def rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        return self.at(steps).rule(steps, storage)

    def schedule(self, steps: int) -> Callable[[Any], Any] | None:
        return self.at(steps).schedule(steps)

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        if steps == longer:
            return True
        settings = self.at(steps)
        return settings == self.at(longer) and settings.same_beginning(steps, longer, taken=taken)


def optimizer_of(given: Any) -> Optimizer:
    """Returns the settings of an optimizer that a user gave.

    Args:
        given: Settings like `plimsoll.AdamW(...)`, an optax transformation, or a function of the run's number of steps
            that returns one of them.

    Raises:
        RecipeError: `given` is none of these.
    """
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, type) and issubclass(given, Optimizer):
        raise RecipeError(f"optimizer is the class {given.__name__}: call it, like {given.__name__}()")
    if hasattr(given, "init") and hasattr(given, "update"):
        return Optax(given)
    if not callable(given):
        raise RecipeError(
            "optimizer must be an optax transformation, a plimsoll.AdamW, or a function of the run's number of steps"
            f" that returns one, got a {type(given).__name__}"
        )
    if [*inspect.signature(given).parameters][:1] == ["learning_rate"]:
        name = getattr(given, "func", given).__name__
        raise RecipeError(
            f"optimizer is {name} itself, which would take the number of steps for its learning rate: call it, like"
            f" {name}(1e-3)"
        )
    return OfLength(given)
