"""Complete recipes of puzzles: those that were published, and small ones for a laptop.

`sudoku_mlp`, `sudoku_attention`, `maze`, `arc_1` and `arc_2` have the settings of https://arxiv.org/abs/2510.04871 and
of its public code; their accuracies are those that were published. Each is called without arguments.
"""

from functools import partial

from plimsoll.recipes.puzzles.recipe import Puzzles

sudoku_mlp = Puzzles
"""Published: 5.0M parameters, 87.4 % of the puzzles of Sudoku-Extreme, below 36 hours on one L40S."""

sudoku_attention = partial(Puzzles, variant="attention")
"""Published: 6.8M parameters, 74.7 %."""

maze = partial(Puzzles, variant="attention", seq_len=900, vocab_size=6, low_cycles=4)
"""Published: 6.8M parameters, 85.3 % of Maze-Hard."""

_arc = partial(
    Puzzles,
    variant="attention",
    seq_len=900,
    vocab_size=12,
    low_cycles=4,
    weight_decay=0.1,
    puzzle_learning_rate=1e-2,
    puzzle_weight_decay=0.1,
    default_epochs=100_000,
    eval_interval=10_000,
)

arc_1 = partial(_arc, identifiers=1 + 960 * 1001)
"""Published: 44.6 % of ARC-AGI-1 in two tries. 800 + 160 puzzles, each with 1,000 augmentations at most."""

arc_2 = partial(_arc, identifiers=1 + 1280 * 1001)
"""Published: 7.8 % of ARC-AGI-2 in two tries. 1,120 + 160 puzzles."""

_small = partial(
    Puzzles,
    width=128,
    heads=4,
    high_cycles=2,
    low_cycles=3,
    puzzle_positions=1,
    batch_size=256,
    learning_rate=3e-4,
    default_warmup_steps=100,
    weight_decay=0.1,
    ema_decay=0.99,
    default_epochs=1_200,
    eval_interval=120,
)

sudoku_4x4 = partial(_small, seq_len=4**2, vocab_size=4 + 2)
"""Grids of four digits: 0.4M parameters, learned in minutes on two cores."""

sudoku_6x6 = partial(_small, seq_len=6**2, vocab_size=6 + 2)
"""Grids of six digits: 0.5M parameters, for a laptop."""
