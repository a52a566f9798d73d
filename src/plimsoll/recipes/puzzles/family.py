"""Puzzles by a Tiny Recursive Model: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation

_HERE = "plimsoll.recipes.puzzles"
_SETS = (
    ("sudoku", "SudokuOptions", "--size 4 --out data/sudoku-4x4"),
    ("maze", "MazeOptions", "--source mazes.csv --out data/maze"),
    ("arc", "ArcOptions", "--source arc-tasks/ --out data/arc"),
)
"""Name of a data set and of the module that makes it, its options, and those of an example."""

FAMILY = Family(
    parts={
        "model": {"trm": "plimsoll.recipes.puzzles.model:Trm"},
        "data": {"puzzles": "plimsoll.recipes.puzzles.data:PuzzleFolder"},
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
