"""The values of an option that `plan --largest` tries (largest.py): multiples, whole numbers, numbers of two digits."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.errors import RecipeError
from plimsoll.recipes.parts import MOST_EXAMPLES
from plimsoll.recipes.recipe import Recipe

STEPS = {"target_params": 0, "batch_size": 1, "seq_len": 128, "lora_rank": 1}
"""Options whose largest value can be looked for, to the distance of two values; 0 for numbers of two digits."""


@dataclass(frozen=True)
class Values:
    """Values that an option may have, by their number from 0."""

    option: str
    step: int = 1
    """Distance of two values; 0 for numbers of two digits."""
    most: int = 10**12
    """The largest of them, which need not be a whole number of steps."""
    why_most: str = "what is tried at most"

    @property
    def flag(self) -> str:
        """Name of the option, with hyphens."""
        return self.option.replace("_", "-")

    @property
    def last(self) -> int:
        number = self.number(self.most)
        return number if self.value(number) == self.most else number + 1

    def value(self, number: int) -> int:
        value = self.step * (number + 1) if self.step else (10 + number % 90) * 10 ** (number // 90)
        return min(value, self.most)

    def number(self, value: float) -> int:
        """Returns the number of the largest value that is no larger than this."""
        value = int(value)
        if self.step:
            return max(0, value // self.step - 1)
        beyond = max(0, len(str(max(10, value))) - 2)
        return max(0, 90 * beyond + value // 10**beyond - 10)


def options_with_values(recipe: Recipe) -> tuple[str, ...]:
    """Returns the recipe's options whose largest value can be looked for, with hyphens."""
    return tuple(name.replace("_", "-") for name in STEPS if name in recipe.options)


def values_of(recipe: Recipe, option: str, *, devices: int = 1) -> Values:
    """Returns the values to try of an option.

    Args:
        recipe: The recipe.
        option: Its name, with hyphens or underscores.
        devices: Devices that share a batch.

    Raises:
        RecipeError: It is none of these options, or the recipe does not have it.
    """
    name = option.replace("_", "-")
    if name not in options_with_values(recipe):
        raise RecipeError(
            f"--largest {option}: this recipe has no such option whose largest value could be looked for, it has"
            f" {', '.join(options_with_values(recipe))}: name one of these"
        )
    name = name.replace("-", "_")
    step = devices if name == "batch_size" else STEPS[name]
    limit = recipe.model.most(name)
    if name == "batch_size":
        limit = limit or (MOST_EXAMPLES, "the most examples that a step counts")
    return Values(name, step) if limit is None else Values(name, step, *limit)
