"""Sizes of a Tiny Recursive Model. Imports no JAX, because recipes use it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from plimsoll.errors import RecipeError

Variant = Literal["mlp", "attention"]
Positions = Literal["rope", "learned", "none"]
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
    """Mixing of positions: attention, or a SwiGLU across them, which needs a fixed length."""
    positions: Positions = "rope"
    width: int = 512
    heads: int = 8
    layers: int = 2
    """Blocks of the one module that both latents share."""
    expansion: float = 4.0
    """Expansion of a SwiGLU: its inner width is two thirds of that times the width, rounded up to a multiple of 256."""
    high_cycles: int = 3
    """Rounds of a supervision step; the gradient goes through the last one."""
    low_cycles: int = 6
    """Updates of the low latent in a round."""
    puzzle_positions: int = 16
    """Positions before the tokens, which a puzzle's row is spread over."""
    puzzle_width: int | None = None
    """Width of a row of the table of puzzles; default `width`."""

    def __post_init__(self) -> None:
        counts = ("vocab", "length", "identifiers", "width", "heads", "layers", "high_cycles", "low_cycles")
        for name in (*counts, "puzzle_positions"):
            if getattr(self, name) < 1:
                raise RecipeError(f"--{name.replace('_', '-')} must be 1 or more, got {getattr(self, name)}")
        if not 0 < self.expansion < math.inf:
            raise RecipeError(f"--expansion must be above 0 and finite, got {self.expansion:g}")
        if self.variant == "attention" and (self.width % self.heads or (self.width // self.heads) % 2):
            raise RecipeError(
                f"--width {self.width} cannot be split over --heads {self.heads}: width / heads must be an even whole"
                f" number (rotary embedding turns pairs), for example --heads {max(1, self.width // 64)}"
            )
        if not 1 <= self.row_width <= self.puzzle_positions * self.width:
            raise RecipeError(
                f"--puzzle-width {self.row_width} must be from 1 to {self.puzzle_positions * self.width}, which is"
                f" --puzzle-positions {self.puzzle_positions} times --width {self.width}"
            )

    @property
    def row_width(self) -> int:
        return self.width if self.puzzle_width is None else self.puzzle_width

    @property
    def whole_length(self) -> int:
        """Positions of a latent: those of the puzzle's row, and the tokens."""
        return self.puzzle_positions + self.length

    def inner(self, width: int) -> int:
        """Returns the inner width of a SwiGLU over so many features or positions: a multiple of 256."""
        return -(-round(self.expansion * width * 2 / 3) // INNER_MULTIPLE) * INNER_MULTIPLE
