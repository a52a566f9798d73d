"""Optimizer of the recursive models: one rule for the network, another for the rows of puzzles that a step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.optimizers.adam_atan2 import AdamATan2
from plimsoll.options import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat
from plimsoll.types import WHOLE, Storage

if TYPE_CHECKING:
    from plimsoll.optimizers.in_place import InPlace


@dataclass(frozen=True, kw_only=True)
class TrmOptimizer(AdamATan2):
    """Adam-atan2 for the network, Sign-SGD for the rows of puzzles that a step reads. Defaults are the published."""

    name = "trm-optimizer"

    learning_rate: PositiveFloat = 1e-4
    default_warmup_steps: NonNegativeInt | None = 2_000
    final_fraction: Fraction = 1.0
    weight_decay: NonNegativeFloat = 1.0
    puzzle_learning_rate: NonNegativeFloat = 1e-4
    """Learning rate of the puzzle embeddings."""
    puzzle_weight_decay: NonNegativeFloat = 1.0
    """Weight decay of the puzzle embeddings, applied to the rows that a step reads."""

    def rule(self, steps: int, storage: Storage = WHOLE) -> InPlace:
        from plimsoll.optimizers.in_place import in_place
        from plimsoll.optimizers.sign_sgd import RowRule

        rows = RowRule(self.curve(self.puzzle_learning_rate, steps), self.puzzle_weight_decay)
        return in_place(super().rule(steps, storage), row_rule=rows)
