"""Sizes of a language model of linear recurrences, and what they make of parameters. No JAX here: recipes use it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from plimsoll.data import require_sizes
from plimsoll.errors import RecipeError
from plimsoll.models.shape import DecoderShape

Mixing = Literal["auto", "steps", "matmul"]


@dataclass(frozen=True, kw_only=True)
class EigenShape(DecoderShape):
    """Widths and counts; `heads` are those of the layers that attend, where there are any."""

    states: int
    """Complex numbers that a layer remembers."""
    r_min: float = 0.9
    r_max: float = 0.9999
    """Each token multiplies a state by r e^(i phase). At first r^2 is spread evenly from --r-min^2 to --r-max^2."""
    max_phase: float = 2 * math.pi
    """Radians; phases are evenly spread from 0 to this."""
    attention_every: int = 0
    """The last of so many layers attends instead; 0 for none."""
    mixing: Mixing = "auto"
    """How states are computed; changes nothing but the cost."""
    chunk_size: int = 256
    """Tokens that are computed side by side; changes nothing but the cost."""

    def __post_init__(self) -> None:
        sizes = {"width": self.width, "layers": self.layers, "inner": self.inner, "heads": self.heads}
        require_sizes(**sizes, states=self.states, vocab=self.vocab, chunk_size=self.chunk_size)
        require_sizes(least=0, attention_every=self.attention_every, attention_window=self.window)
        super().__post_init__()
        if not 0 <= self.r_min < self.r_max < 1:
            raise RecipeError(
                f"--r-min {self.r_min:g} and --r-max {self.r_max:g} bound what is left of a state after a token: they"
                " must be from 0 to below 1, the second above the first"
            )
        if not 0 < self.max_phase <= 2 * math.pi:
            raise RecipeError(f"--max-phase must be above 0 and at most 2 pi = 6.2832, got {self.max_phase:g}")
        if self.attention_every and self.layers % self.attention_every:
            raise RecipeError(
                f"--layers {self.layers} are no whole number of groups of --attention-every {self.attention_every}:"
                f" take {self.layers // self.attention_every * self.attention_every or self.attention_every} layers"
            )
        if self.window and not self.attention_every:
            raise RecipeError(
                f"--attention-window {self.window} is of layers that attend, and there are none: give"
                " --attention-every, or leave it out"
            )

    @property
    def blocks(self) -> int:
        """Groups of layers, each with one that attends at its end, where there are such."""
        return self.layers // (self.attention_every or 1)

    def parameters(self) -> int:
        """Returns the number of parameters: embedding, layers, final norm, and output layer unless it is tied."""
        d, f, k = self.width, self.inner, self.states
        mixing = 4 * k * d + d * d + d + 2 * k
        attending = self.blocks if self.attention_every else 0
        layers = (self.layers - attending) * mixing + attending * 4 * d * d + self.layers * (3 * d * f + 2 * d)
        return self.vocab * d * (1 if self.tied else 2) + layers + d


def eigen_inner(width: int) -> int:
    """Returns 7/3 of the width, to a multiple of 64: its three dots and the mixing layer's gate cost what a plain
    feed-forward of 4x would."""
    return max(64, round(width * 7 / 3 / 64) * 64)
