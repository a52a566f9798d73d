"""Puzzles by a Tiny Recursive Model: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

FAMILY = Family(
    kinds={
        "puzzles": "plimsoll.recipes.puzzles.recipe:Puzzles",
    },
    presets={
        "sudoku": Preset(
            "plimsoll.recipes.puzzles.presets:sudoku_mlp",
            "Sudoku by a Tiny Recursive Model: sudoku-mlp",
        ),
        "sudoku-mlp": Preset(
            "plimsoll.recipes.puzzles.presets:sudoku_mlp",
            "as published: Sudoku-Extreme, without attention",
        ),
        "sudoku-attention": Preset(
            "plimsoll.recipes.puzzles.presets:sudoku_attention",
            "as published: Sudoku-Extreme, attention",
        ),
        "sudoku-4x4": Preset(
            "plimsoll.recipes.puzzles.presets:sudoku_4x4",
            "Sudoku of four digits, for a laptop",
        ),
        "sudoku-6x6": Preset(
            "plimsoll.recipes.puzzles.presets:sudoku_6x6",
            "Sudoku of six digits, for a laptop",
        ),
        "maze": Preset(
            "plimsoll.recipes.puzzles.presets:maze",
            "as published: shortest paths through mazes of 30 x 30",
        ),
        "arc": Preset(
            "plimsoll.recipes.puzzles.presets:arc_1",
            "ARC by a Tiny Recursive Model: arc-1",
        ),
        "arc-1": Preset(
            "plimsoll.recipes.puzzles.presets:arc_1",
            "as published: ARC-AGI-1",
        ),
        "arc-2": Preset(
            "plimsoll.recipes.puzzles.presets:arc_2",
            "as published: ARC-AGI-2",
        ),
    },
    prepares={
        "sudoku": Preparation(
            purpose="puzzles and their augmentations: a folder",
            options="plimsoll.recipes.puzzles.prepare_options:SudokuOptions",
            make="plimsoll.recipes.puzzles.sudoku:make",
            text="plimsoll.recipes.puzzles.tables:prepared_text",
            example="plimsoll prepare sudoku --size 4 --out data/sudoku-4x4",
        ),
        "maze": Preparation(
            purpose="puzzles and their augmentations: a folder",
            options="plimsoll.recipes.puzzles.prepare_options:MazeOptions",
            make="plimsoll.recipes.puzzles.maze:make",
            text="plimsoll.recipes.puzzles.tables:prepared_text",
            example="plimsoll prepare maze --out data/maze",
        ),
        "arc": Preparation(
            purpose="puzzles and their augmentations: a folder",
            options="plimsoll.recipes.puzzles.prepare_options:ArcOptions",
            make="plimsoll.recipes.puzzles.arc:make",
            text="plimsoll.recipes.puzzles.tables:prepared_text",
            example="plimsoll prepare arc --source arc-tasks/ --out data/arc",
        ),
    },
    inspects=(
        Inspection(
            recognises="plimsoll.recipes.puzzles.dataset:is_puzzle_set",
            describe="plimsoll.recipes.puzzles.survey:describe_puzzles",
            table="plimsoll.recipes.puzzles.tables:puzzles_table",
        ),
    ),
)
