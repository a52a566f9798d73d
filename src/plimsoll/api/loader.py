"""A recipe's batches without the rest of a run: for a training loop of one's own, or to look at the data."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

from plimsoll.errors import RunError
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import differences, from_dict, to_dict
from plimsoll.runs.folder import RunFolder, replace_file
from plimsoll.types import Source

_PREPARED = "prepared.json"


def loader(recipe: Recipe | str, folder: str | Path | None = None, *, prefetch: int = 2) -> Source:
    """Iterates dicts of arrays, for text `input_ids` and `labels` of (batch, sequence), without end.

    The tokenizer is taken from `folder` (that of a run, or of an earlier call with the same recipe), or made there; in
    a temporary folder where none is named. The position is JSON: `state()` and `restore()`; `close()` ends the
    background thread.
    """
    recipe = preset(recipe) if isinstance(recipe, str) else recipe
    if folder is None:
        with tempfile.TemporaryDirectory() as made:  # the tokenizer is in memory when the source is open
            _prepare(recipe, Path(made))
            return recipe.source(Path(made), prefetch=prefetch)
    path = Path(folder).expanduser()
    _prepare(recipe, path)
    return recipe.source(path, prefetch=prefetch)


def _prepare(recipe: Recipe, folder: Path) -> None:
    run, mine = RunFolder(folder), folder / _PREPARED
    if run.exists():
        changed = differences(from_dict(run.read("recipe.json")), recipe)
        if changed:
            words = "; ".join(f"{name} is {there!r} there and {here!r} here" for name, (there, here) in changed.items())
            raise RunError(f"{folder} is a run of another recipe: {words}. Name another folder, or none")
        if run.has("data.json"):
            return
    wanted = json.dumps(to_dict(recipe))
    if mine.exists() and mine.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    # A length, so that nobody counts the whole set for it: batches come without end.
    uncounted = dataclasses.replace(recipe, steps=recipe.steps or 1, epochs=None)
    uncounted.prepare(folder, lambda text: None)
    replace_file(mine, wanted)
