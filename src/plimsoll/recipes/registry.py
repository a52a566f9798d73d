"""Names of recipes and presets.

A kind is a class; a preset is a name for one complete recipe of a kind. Only what stands here, and a file that the
user names, is ever loaded.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

from plimsoll.errors import RecipeError
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.own import files

PRESETS: dict[str, tuple[str, str, str]] = {
    "stories": ("plimsoll.recipes.text.recipe", "Text", "a small language model on any text, streamed"),
    "code": ("plimsoll.recipes.text.code", "code", "the same on Python's own source: needs no data, the demo"),
    "control": (
        "plimsoll.recipes.control.recipe",
        "Control",
        "optimal controllers imitated from windows of states in HDF5",
    ),
    "sudoku": ("plimsoll.recipes.puzzles.presets", "sudoku_mlp", "Sudoku by a Tiny Recursive Model: sudoku-mlp"),
    "sudoku-mlp": (
        "plimsoll.recipes.puzzles.presets",
        "sudoku_mlp",
        "as published: Sudoku-Extreme, without attention",
    ),
    "sudoku-attention": (
        "plimsoll.recipes.puzzles.presets",
        "sudoku_attention",
        "as published: Sudoku-Extreme, attention",
    ),
    "sudoku-4x4": ("plimsoll.recipes.puzzles.presets", "sudoku_4x4", "Sudoku of four digits, for a laptop"),
    "sudoku-6x6": ("plimsoll.recipes.puzzles.presets", "sudoku_6x6", "Sudoku of six digits, for a laptop"),
    "maze": ("plimsoll.recipes.puzzles.presets", "maze", "as published: shortest paths through mazes of 30 x 30"),
    "arc": ("plimsoll.recipes.puzzles.presets", "arc_1", "ARC by a Tiny Recursive Model: arc-1"),
    "arc-1": ("plimsoll.recipes.puzzles.presets", "arc_1", "as published: ARC-AGI-1"),
    "arc-2": ("plimsoll.recipes.puzzles.presets", "arc_2", "as published: ARC-AGI-2"),
    "longcontext": (
        "plimsoll.recipes.longcontext.recipe",
        "LongContext",
        "a language model of linear recurrences on packed text, for a laptop",
    ),
    "longcontext-nano": ("plimsoll.recipes.longcontext.presets", "nano", "published size: width 512, 4 layers"),
    "longcontext-micro": ("plimsoll.recipes.longcontext.presets", "micro", "published size: width 768, 8 layers"),
    "longcontext-tiny": ("plimsoll.recipes.longcontext.presets", "tiny", "published size: width 512, 6 layers"),
    "longcontext-small": ("plimsoll.recipes.longcontext.presets", "small", "published size: width 1,024, 12 layers"),
    "longcontext-small-32k": (
        "plimsoll.recipes.longcontext.presets",
        "small_32k",
        "published size: 123M, windows of 32,768 tokens",
    ),
    "longcontext-medium-32k": (
        "plimsoll.recipes.longcontext.presets",
        "medium_32k",
        "published size: width 1,536, 16 layers, 32,768 tokens",
    ),
    "longcontext-large-32k": (
        "plimsoll.recipes.longcontext.presets",
        "large_32k",
        "published size: width 2,048, 24 layers, 32,768 tokens",
    ),
    "recommend": (
        "plimsoll.recipes.recommend.recipe",
        "Recommend",
        "the next item, by a small transformer or a frozen Llama",
    ),
    "recommend-no-lm": ("plimsoll.recipes.recommend.presets", "no_lm", "the same: a transformer that is learned along"),
    "recommend-debug": ("plimsoll.recipes.recommend.presets", "debug", "for a look: 64 and 128 wide, 200 steps"),
    "recommend-gemma-2b": (
        "plimsoll.recipes.recommend.presets",
        "gemma_2b",
        "a frozen Gemma 2B, histories of 256 items",
    ),
    "recommend-llama-3.2-1b": (
        "plimsoll.recipes.recommend.presets",
        "llama_3_2_1b",
        "a frozen Llama 3.2 1B, histories of 128 items",
    ),
    "recommend-tpu-optimized": (
        "plimsoll.recipes.recommend.presets",
        "tpu_optimized",
        "a frozen Gemma 2B, histories of 128 items",
    ),
}
KINDS: dict[str, tuple[str, str]] = {
    "stories": ("plimsoll.recipes.text.recipe", "Text"),
    "control": ("plimsoll.recipes.control.recipe", "Control"),
    "puzzles": ("plimsoll.recipes.puzzles.recipe", "Puzzles"),
    "longcontext": ("plimsoll.recipes.longcontext.recipe", "LongContext"),
    "recommend": ("plimsoll.recipes.recommend.recipe", "Recommend"),
}


def preset(name: str) -> Recipe:
    """The recipe of that name or file, complete, to be changed with `dataclasses.replace`."""
    if files.is_file_name(name):
        return files.load(name)
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise RecipeError(
            f"there is no recipe called {name!r}: `plimsoll recipes` lists {', '.join(PRESETS)}, and a file of your own"
            f" is named like my_recipe.py.{hint}"
        )
    module, attribute, _ = PRESETS[name]
    make: Callable[[], Recipe] = getattr(importlib.import_module(module), attribute)
    return make()
