"""Puzzles by a Tiny Recursive Model: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

_HERE = "plimsoll.recipes.puzzles"
_PRESETS = (
    ("sudoku", "sudoku_mlp", "Sudoku by a Tiny Recursive Model: sudoku-mlp", "sudoku"),
    ("sudoku-mlp", "sudoku_mlp", "as published: Sudoku-Extreme, without attention", "sudoku"),
    ("sudoku-attention", "sudoku_attention", "as published: Sudoku-Extreme, attention", "sudoku"),
    ("sudoku-4x4", "sudoku_4x4", "Sudoku of four digits, for a laptop", "sudoku-4x4"),
    ("sudoku-6x6", "sudoku_6x6", "Sudoku of six digits, for a laptop", "sudoku-6x6"),
    ("maze", "maze", "as published: shortest paths through mazes of 30 x 30", "maze"),
    ("arc", "arc_1", "ARC by a Tiny Recursive Model: arc-1", "arc"),
    ("arc-1", "arc_1", "as published: ARC-AGI-1", "arc"),
    ("arc-2", "arc_2", "as published: ARC-AGI-2", "arc"),
)
"""Name, what makes it in `presets.py`, the line about it, and the folder of its example."""
_SETS = (
    ("sudoku", "SudokuOptions", "--size 4 --out data/sudoku-4x4"),
    ("maze", "MazeOptions", "--source mazes.csv --out data/maze"),
    ("arc", "ArcOptions", "--source arc-tasks/ --out data/arc"),
)
"""Name of a data set and of the module that makes it, its options, and those of an example."""
_OFTEN = ("data", "epochs", "eval_interval", "batch_size", "width", "learning_rate", "weight_decay")

FAMILY = Family(
    kinds={"puzzles": f"{_HERE}.recipe:Puzzles"},
    presets={
        name: Preset(f"{_HERE}.presets:{make}", purpose, f"--data data/{folder}", _OFTEN)
        for name, make, purpose, folder in _PRESETS
    },
    prepares={
        name: Preparation(
            purpose="puzzles and their augmentations: a folder",
            options=f"{_HERE}.prepare_options:{options}",
            make=f"{_HERE}.{name}:make",
            text=f"{_HERE}.tables:prepared_text",
            example=f"plimsoll prepare {name} {words}",
        )
        for name, options, words in _SETS
    },
    inspects=(
        Inspection(
            recognises=f"{_HERE}.dataset:is_puzzle_set",
            describe=f"{_HERE}.tables:describe_puzzles",
            table=f"{_HERE}.tables:puzzles_table",
        ),
    ),
)
