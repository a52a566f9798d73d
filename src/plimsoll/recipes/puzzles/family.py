"""Puzzles by a Tiny Recursive Model: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

_HERE = "plimsoll.recipes.puzzles"
_PRESETS = (
    ("sudoku", "sudoku_mlp", "Sudoku by a Tiny Recursive Model: sudoku-mlp"),
    ("sudoku-mlp", "sudoku_mlp", "as published: Sudoku-Extreme, without attention"),
    ("sudoku-attention", "sudoku_attention", "as published: Sudoku-Extreme, attention"),
    ("sudoku-4x4", "sudoku_4x4", "Sudoku of four digits, for a laptop"),
    ("sudoku-6x6", "sudoku_6x6", "Sudoku of six digits, for a laptop"),
    ("maze", "maze", "as published: shortest paths through mazes of 30 x 30"),
    ("arc", "arc_1", "ARC by a Tiny Recursive Model: arc-1"),
    ("arc-1", "arc_1", "as published: ARC-AGI-1"),
    ("arc-2", "arc_2", "as published: ARC-AGI-2"),
)
"""Name, what makes it in `presets.py`, and the line about it."""
_SETS = (
    ("sudoku", "SudokuOptions", "--size 4 --out data/sudoku-4x4"),
    ("maze", "MazeOptions", "--source mazes.csv --out data/maze"),
    ("arc", "ArcOptions", "--source arc-tasks/ --out data/arc"),
)
"""Name of a data set and of the module that makes it, its options, and those of an example."""

FAMILY = Family(
    kinds={"puzzles": f"{_HERE}.recipe:Puzzles"},
    presets={
        name: Preset(f"{_HERE}.presets:{make}", purpose, "--data data/ --memory 1GiB")
        for name, make, purpose in _PRESETS
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
