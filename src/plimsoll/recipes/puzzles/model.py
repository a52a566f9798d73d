"""Solve puzzles with a Tiny Recursive Model: Sudoku, mazes, ARC.

    plimsoll prepare sudoku --out data/sudoku
    plimsoll train   sudoku-mlp --data data/sudoku --memory 4GiB

Defaults are those published for Sudoku-Extreme (https://arxiv.org/abs/2510.04871 and its code).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.levers.records.blocks import attention_blocks_of
from plimsoll.models.shape import require_pairs
from plimsoll.optimizers.settings import Optimizer, Rates
from plimsoll.options import Fraction, NonNegativeFloat, PositiveInt
from plimsoll.recipes.parts import Hints, Model, Uses
from plimsoll.recipes.specs import PuzzleSpec, Spec
from plimsoll.recipes.verbs import Shown, Verb

if TYPE_CHECKING:
    from plimsoll.optimizers.sign_sgd import RowRule

LEVERS = ("precision", "activations", "unroll", "remat")


def reported(metrics: Mapping[str, float], spec: Spec) -> dict[str, Any]:
    """Returns the shares of right puzzles, tokens and halting decisions, the mean supervision steps, and the loss."""
    return {
        "exact_accuracy": metrics["exact_accuracy"],
        "token_accuracy": metrics["accuracy"],
        "q_halt_accuracy": metrics["q_halt_accuracy"],
        "mean_steps": metrics["supervision_steps"],
        "loss": metrics["loss"],
    }


@dataclass(frozen=True, kw_only=True)
class Trm(Model):
    """A Tiny Recursive Model."""

    name = "trm"
    reads = PuzzleSpec
    implementation = "plimsoll.recipes.puzzles.act:RecursiveSolver"
    uses = Uses(
        verbs={
            "evaluate": Verb(
                answer="plimsoll.recipes.puzzles.arc_votes:evaluate",
                options=("submission",),
            ),
            "solve": Verb(
                answer="plimsoll.recipes.puzzles.solve:solve",
                ask="plimsoll.recipes.puzzles.question:question",
                text="plimsoll.recipes.puzzles.text:solution_text",
            ),
        },
        shown=(
            Shown(
                words="what it solves",
                make="plimsoll.recipes.puzzles.solve:shown",
                command="plimsoll solve {run} test:0",
            ),
        ),
        reported=reported,
    )

    variant: Literal["mlp", "attention"] = "mlp"
    """Layer that mixes the positions of a puzzle: a feed-forward layer across them (mlp), or attention with rotary
    position encoding."""
    width: PositiveInt = 512
    """Width of the latent states, a multiple of --heads."""
    heads: PositiveInt = 8
    """Number of attention heads."""
    layers: PositiveInt = 2
    """Number of blocks in the module that is applied recursively."""
    high_cycles: PositiveInt = 3
    """Updates of the high latent state in a supervision step. Gradients flow through the last update alone."""
    low_cycles: PositiveInt = 6
    """Updates of the low latent state for each update of the high one."""
    puzzle_positions: PositiveInt = 16
    """Number of positions in front of the tokens, for the puzzle's embedding."""

    halt_max_steps: PositiveInt = 16
    """Most supervision steps of a puzzle; evaluation always takes this many."""
    halt_exploration: Fraction = 0.1
    """Probability per step that a puzzle may not halt before a random number of steps."""

    puzzle_learning_rate: NonNegativeFloat = 1e-4
    """Peak learning rate of the puzzle embeddings, which Sign-SGD updates. It follows the optimizer's schedule."""
    puzzle_weight_decay: NonNegativeFloat = 1.0
    """Weight decay of the puzzle embeddings that a step reads."""

    def check_options(self) -> None:
        if self.variant == "attention":
            require_pairs(self.width, self.heads)

    def hints(self, spec: PuzzleSpec) -> Hints:
        if self.variant != "attention":
            return Hints(levers=LEVERS)
        return Hints(
            levers=(*LEVERS, "attention_chunk"),
            attention_chunks=attention_blocks_of(self.puzzle_positions + spec.length),
            head_width=self.width // self.heads,
        )

    def row_rule(self, optimizer: Optimizer, steps: int) -> RowRule:
        """Returns the update rule for the puzzle embeddings that a step reads: Sign-SGD."""
        import optax

        from plimsoll.optimizers.sign_sgd import RowRule

        rate = optax.constant_schedule(self.puzzle_learning_rate)
        if isinstance(optimizer, Rates):
            rate = optimizer.curve(self.puzzle_learning_rate, steps)
        return RowRule(rate, self.puzzle_weight_decay)
