"""The values of an option that `plan --largest` tries (largest.py): multiples, whole numbers, numbers of two digits."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.errors import RecipeError
from plimsoll.recipes.parts import MOST_EXAMPLES
from plimsoll.recipes.recipe import Recipe


@dataclass(frozen=True)
class Steps:
    """Values that an option may have, by their number from 0."""

    option: str
    step: int = 1
    """Distance of two values; 0 for numbers of two digits."""
    most: int = 10**12
    """The largest of them, which need not be a whole number of steps."""
    why_most: str = "what is tried at most"

    @property
    def last(self) -> int:
        return self.number(self.most) + (self.value(self.number(self.most)) < self.most)

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


def steps_of(recipe: Recipe, option: str, *, devices: int = 1) -> Steps:
    """Returns the values to try of an option.

    Args:
        recipe: The recipe.
        option: Its name, with hyphens or underscores.
        devices: Devices that share a batch.

    Raises:
        RecipeError: It is none of these options, or the recipe does not have it.
    """
    name = option.replace("-", "_")
    every = {"seq_len": 128, "batch_size": devices, "lora_rank": 1, "target_params": 0}
    grid = {name: step for name, step in every.items() if name in recipe.options}
    if name not in grid:
        raise RecipeError(
            f"--largest {option}: this recipe has no such option whose largest value could be looked for, it has"
            f" {', '.join(grid).replace('_', '-')}: name one of these"
        )
    limit = recipe.model.most(name)
    if name == "batch_size":
        limit = limit or (MOST_EXAMPLES, "the most examples that a step counts")
    return Steps(name, grid[name]) if limit is None else Steps(name, grid[name], *limit)
