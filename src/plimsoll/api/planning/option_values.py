"""Values of an option that `plan --largest` may try: integers, multiples, or numbers with two significant digits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.errors import RecipeError
from plimsoll.recipes.parts import MOST_EXAMPLES
from plimsoll.recipes.recipe import Recipe

STEPS = {"target_params": 0, "batch_size": 1, "seq_len": 128, "lora_rank": 1}
"""Options that `plan --largest` can maximise, with the difference between the values that it tries.

0 stands for numbers with two significant digits.
"""
TWO_DIGITS = [digits * 10**zeros for zeros in range(11) for digits in range(10, 100)]
"""Numbers with two significant digits, in rising order."""


@dataclass(frozen=True)
class Values:
    """Values of an option that `plan --largest` may try."""

    option: str
    rising: Sequence[int]
    """Values of the option to try, in rising order."""
    why_most: str
    """Phrase for messages: the reason why no value above the largest of `rising` is tried."""

    @property
    def flag(self) -> str:
        """Name of the option, with hyphens."""
        return self.option.replace("_", "-")

    def number(self, value: float) -> int:
        """Returns the index of the largest value that is at most `value`; 0 if all are larger."""
        return max(0, bisect_right(self.rising, value) - 1)


def options_with_values(recipe: Recipe) -> tuple[str, ...]:
    """Returns the recipe's options that `plan --largest` can maximise, with hyphens."""
    return tuple(name.replace("_", "-") for name in STEPS if name in recipe.options)


def values_of(recipe: Recipe, option: str, *, devices: int = 1) -> Values:
    """Returns the values of an option that `plan --largest` may try.

    Args:
        recipe: The recipe.
        option: Name of the option, with hyphens or underscores.
        devices: Number of devices that share a batch.

    Raises:
        RecipeError: The recipe has no such option, or the option cannot be maximised.
    """
    options = options_with_values(recipe)
    if option.replace("_", "-") not in options:
        raise RecipeError(
            f"--largest {option}: this recipe has no such option to maximise, it has {', '.join(options)}: name one of"
            " these"
        )
    name = option.replace("-", "_")
    step = devices if name == "batch_size" else STEPS[name]
    limit = recipe.model.most(name)
    if limit is not None:
        most, why = limit
        return Values(name, [*range(step, most, step), most], why)
    if name == "batch_size":
        return Values(name, range(step, MOST_EXAMPLES, step), "the most examples that a step counts")
    return Values(name, range(step, 10**12, step) if step else TWO_DIGITS, "the largest value that is tried")
