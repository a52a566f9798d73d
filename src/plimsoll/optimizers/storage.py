"""How many bits optimizer state and weights are kept in: the part of a plan that an optimizer sees."""

from dataclasses import dataclass
from typing import Literal

from plimsoll.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Bits per element between two updates; arithmetic is float32 whatever they are."""

    optimizer_bits: Literal[32, 8] = 32
    """Of each moment (levers/eight_bit.py); 8 for matrices, 32 for what `moments_bits` says either way."""
    weight_bits: Literal[32, 24, 16] = 32
    """Of each weight of a matrix (levers/weight_bits.py)."""

    def __post_init__(self) -> None:
        if self.optimizer_bits not in (32, 8):
            raise RecipeError(f"--optimizer-bits must be 32 or 8, got {self.optimizer_bits}")
        if self.weight_bits not in (32, 24, 16):
            raise RecipeError(f"--weight-bits must be 32, 24 or 16, got {self.weight_bits}")
