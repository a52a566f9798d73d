"""Complete recipes of puzzles: those that were published, and small ones for a laptop.

`sudoku-mlp`, `sudoku-attention`, `maze`, `arc-1` and `arc-2` have the settings of https://arxiv.org/abs/2510.04871 and
of its public code; their accuracies are those that were published.
"""

from plimsoll.recipes.puzzles.recipe import Puzzles


def sudoku_mlp() -> Puzzles:
    """Published: 5.0M parameters, 87.4 % of the puzzles of Sudoku-Extreme, below 36 hours on one L40S."""
    return Puzzles()


def sudoku_attention() -> Puzzles:
    """Published: 6.8M parameters, 74.7 %."""
    return Puzzles(variant="attention")


def maze() -> Puzzles:
    """Published: 6.8M parameters, 85.3 % of Maze-Hard."""
    return Puzzles(variant="attention", seq_len=900, vocab_size=6, low_cycles=4)


def arc_1() -> Puzzles:
    """Published: 44.6 % of ARC-AGI-1 in two tries. 800 + 160 puzzles, each with 1,000 augmentations at most."""
    return _arc(puzzles=960)


def arc_2() -> Puzzles:
    """Published: 7.8 % of ARC-AGI-2 in two tries. 1,120 + 160 puzzles."""
    return _arc(puzzles=1280)


def _arc(*, puzzles: int) -> Puzzles:
    return Puzzles(
        variant="attention",
        seq_len=900,
        vocab_size=12,
        identifiers=1 + puzzles * 1001,
        low_cycles=4,
        weight_decay=0.1,
        puzzle_learning_rate=1e-2,
        puzzle_weight_decay=0.1,
        default_epochs=100_000,
        eval_interval=10_000,
    )


def sudoku_4x4() -> Puzzles:
    """Grids of four digits: 0.4M parameters, learned in minutes on two cores."""
    return _small(digits=4)


def sudoku_6x6() -> Puzzles:
    """Grids of six digits: 0.5M parameters, for a laptop."""
    return _small(digits=6)


def _small(*, digits: int) -> Puzzles:
    return Puzzles(
        seq_len=digits**2,
        vocab_size=digits + 2,
        width=128,
        heads=4,
        high_cycles=2,
        low_cycles=3,
        puzzle_positions=1,
        batch_size=256,
        learning_rate=3e-4,
        warmup_steps=100,
        weight_decay=0.1,
        ema_decay=0.99,
        default_epochs=1_200,
        eval_interval=120,
    )
