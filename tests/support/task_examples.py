"""Every kind of recipe at the size of a test. A new kind is added here, and has its task and levers held."""

import atexit
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from control_files import write_control
from example_tables import TABLES, written
from plimsoll.recipes.registry import preset
from pretrained_folders import LLAMA, write
from puzzle_files import write_split
from recipe_packages import EXAMPLE


def folder_of_this_process(name):
    folder = tempfile.mkdtemp(prefix=f"plimsoll-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


NORMALISED = {"flax_batchnorm": {"norm_group": 2}}
"""Options of recipes that normalise examples together: few enough for one device of eight."""


@cache
def own(path):
    """An example's recipe; one on HDF5 gets a file made of a table of random numbers."""
    recipe = preset(str(path), **NORMALISED.get(path.stem, {}))
    if path.stem in TABLES:
        module, folder = sys.modules[type(recipe.origin).__module__], folder_of_this_process(path.stem)
        module.FILE = str(folder / "made.h5")
        module.convert(written(path.stem, folder))
    return recipe


DOCS = Path(__file__).parents[2] / "docs/examples"


@cache
def waves():
    """The recipe of the example package, which is imported from its folder."""
    sys.path.append(str(EXAMPLE))
    try:
        from plimsoll_waves.data import WavesOptions, make
        from plimsoll_waves.recipe import Waves
    finally:
        sys.path.remove(str(EXAMPLE))
    file = make(WavesOptions(count=200, out=str(folder_of_this_process("waves") / "waves.npz")))["path"]
    return Waves(file=file, batch_size=8, steps=10).composed()


OWN = {path.stem: partial(own, path) for path in sorted(DOCS.glob("*.py"))} | {"waves": waves}
"""The recipes of docs/your-own.md: plain JAX, Equinox, Flax, a package."""

FROM_THEIR_DATA = ("control", "puzzles")
"""Kinds whose batches cannot be drawn at random: masks and families go together, and a vocabulary is small."""


@cache
def control_file():
    return str(write_control(folder_of_this_process("control") / "windows.h5", rows=400, window=16))


@cache
def puzzle_folder(seq_len, vocab_size, identifiers):
    folder = folder_of_this_process("puzzles")
    for split, seed in (("train", 0), ("test", 1)):
        sizes = {"seq_len": seq_len, "vocab_size": vocab_size, "identifiers": identifiers}
        write_split(folder / split, groups=[[1, 1]] * 40, **sizes, seed=seed)
    return str(folder)


def puzzles(name, *, seq_len=9, vocab_size=12):
    """A small one of the preset's kind; every cell of its data is drawn at random."""
    recipe = preset(name)
    return recipe.replace(
        data=puzzle_folder(seq_len, vocab_size, 6),
        seq_len=seq_len,
        vocab_size=vocab_size,
        identifiers=6,
        width=32,
        heads=2,
        layers=1,
        low_cycles=2,
        high_cycles=2,
        halt_max_steps=3,
        puzzle_positions=2,
        warmup_steps=2,
        batch_size=8,
        steps=10,
    )


@cache
def model_folder():
    return str(write(folder_of_this_process("pretrained"), LLAMA, max_position_embeddings=1024))


def recommend(name):
    """Of 511 items: what random batches name."""
    return preset(name).replace(
        num_items=511,
        item_embedding_dim=32,
        adapter_inner=48,
        seq_len=32,
        dropout=0.2,
        batch_size=8,
        gradient_accumulation_steps=1,
        steps=10,
    )


@cache
def tuned_folder():
    shape = replace(LLAMA, vocab=4096, width=64, head_width=16, inner=512, layers=4, tied=True)
    return str(write(folder_of_this_process("tuned"), shape, max_position_embeddings=1024))


def finetune():
    """Learned whole: half of an adapter has no gradient at first, and levers/test_lora.py is about adapters."""
    return preset("finetune").replace(
        pretrained=tuned_folder(), lora_rank=0, seq_len=32, batch_size=8, warmup_steps=2, steps=10
    )


RECIPES = {
    "stories": lambda: preset("stories").replace(
        width=32, layers=2, heads=1, vocab_size=512, seq_len=32, batch_size=8, steps=10
    ),
    "control": lambda: preset("control").replace(
        data=control_file(), width=32, heads=2, layers=2, patch=1, batch_size=8, steps=10
    ),
    "longcontext": lambda: preset("longcontext").replace(
        width=32, layers=2, states=32, vocab_size=512, seq_len=32, batch_size=8, steps=10
    ),
    "recommend": lambda: recommend("recommend"),
    "recommend-gemma-2b": lambda: recommend("recommend-gemma-2b").replace(pretrained=model_folder()),
    "finetune": finetune,
    "sudoku-mlp": lambda: puzzles("sudoku-mlp"),
    "sudoku-attention": lambda: puzzles("sudoku-attention"),
}
TWINS = {
    "code": "stories",
    "tales": "stories",
    "sudoku": "sudoku-mlp",
    "sudoku-4x4": "sudoku-mlp",
    "sudoku-6x6": "sudoku-mlp",
    "maze": "sudoku-attention",
    "arc": "sudoku-attention",
    "arc-1": "sudoku-attention",
    "arc-2": "sudoku-attention",
    "longcontext-nano": "longcontext",
    "longcontext-micro": "longcontext",
    "longcontext-tiny": "longcontext",
    "longcontext-small": "longcontext",
    "longcontext-small-32k": "longcontext",
    "longcontext-medium-32k": "longcontext",
    "longcontext-large-32k": "longcontext",
    "recommend-no-lm": "recommend",
    "recommend-debug": "recommend",
    "recommend-llama-3.2-1b": "recommend-gemma-2b",
    "recommend-tpu-optimized": "recommend-gemma-2b",
}
"""Presets that differ in nothing but sizes from another one, which is held instead."""


def random_batch(recipe, examples, *, seed=0):
    """By the recipe's own spec; integers are valid ids of a vocabulary of 512. A user's recipe has its data."""
    if recipe.origin is not None or recipe.kind in FROM_THEIR_DATA:
        recipe = recipe.replace(batch_size=examples, gradient_accumulation_steps=1, seed=seed)
        return next(recipe.open(Path()).source(prefetch=0))
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 512, shape).astype(dtype)
        if np.issubdtype(np.dtype(dtype), np.integer)
        else random.normal(size=shape).astype(dtype)
        for name, (shape, dtype) in recipe.spec.batch(examples).items()
    }
