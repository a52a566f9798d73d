"""Sizes of a Tiny Recursive Model. Imports no JAX, because recipes use it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from plimsoll.data import require_sizes
from plimsoll.errors import RecipeError

Variant = Literal["mlp", "attention"]
INNER_MULTIPLE = 256


@dataclass(frozen=True, kw_only=True)
class TRMShape:
    """Sizes of a model. Defaults are those published for Sudoku-Extreme with attention."""

    vocab: int
    length: int
    """Tokens of a puzzle."""
    identifiers: int = 1
    """Rows of the table of puzzles, the blank one included."""
    variant: Variant = "attention"
    """Mixing of positions: attention with rotary encoding, or a SwiGLU across them, which needs a fixed length."""
    width: int = 512
    heads: int = 8
    layers: int = 2
    """Blocks of the one module that both latents share."""
    high_cycles: int = 3
    """Rounds of a supervision step; the gradient goes through the last one."""
    low_cycles: int = 6
    """Updates of the low latent in a round."""
    puzzle_positions: int = 16
    """Positions before the tokens, which a puzzle's row is spread over."""

    def __post_init__(self) -> None:
        counts = ("width", "heads", "layers", "high_cycles", "low_cycles", "puzzle_positions")
        require_sizes(**{name: getattr(self, name) for name in counts})
        if self.variant == "attention" and (self.width % self.heads or (self.width // self.heads) % 2):
            raise RecipeError(
                f"--width {self.width} cannot be split over --heads {self.heads}: width / heads must be an even whole"
                f" number (rotary embedding turns pairs), for example --heads {max(1, self.width // 64)}"
            )

    @property
    def whole_length(self) -> int:
        """Positions of a latent: those of the puzzle's row, and the tokens."""
        return self.puzzle_positions + self.length

    def inner(self, width: int) -> int:
        """Returns the inner width of a SwiGLU over so many features or positions: 8/3, up to a multiple of 256."""
        return math.ceil(round(width * 8 / 3) / INNER_MULTIPLE) * INNER_MULTIPLE
