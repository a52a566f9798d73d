"""Batches of a recipe without a run, for the user's own training loop or to inspect the data."""

from __future__ import annotations

import tempfile
from pathlib import Path

from plimsoll.api.keywords import read_request
from plimsoll.errors import RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.recipes.saved import differences, from_dict
from plimsoll.types import Source


def loader(recipe: Recipe | Pinned | str, folder: str | Path | None = None, *, prefetch: int = 2) -> Source:
    """Returns an endless iterator over the training batches of a recipe, for a training loop of your own.

    Args:
        recipe: A recipe (training problem), or the name of a preset like "code".
        folder: Folder for the tokenizer and other prepared files. If it is the folder of a run of the same recipe, its
            files are used. By default they are made anew and not kept.
        prefetch: Number of batches that a background thread prepares in advance.

    Returns:
        The iterator. A batch is a dict of NumPy arrays with the examples of one optimizer step (`effective_batch`).
        For text these are `input_ids` and `labels`, int32 of shape (batch, sequence). `labels[:, i]` is the token that
        follows `input_ids[:, i]`, or -1 if it does not count. `state()` returns the position in the data as a
        JSON-serialisable dict, `restore(state)` continues from there, and `close()` ends the background thread.

    Raises:
        DataError: The data cannot be read.
        RunError: The folder has a run of another recipe.

    Example:
        >>> batches = plimsoll.loader("code")  # doctest: +SKIP
        >>> next(batches)["input_ids"].shape  # doctest: +SKIP
        (64, 128)
    """
    recipe = read_request(recipe, verb="loader").recipe
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:  # the tokenizer is in memory when the source is open
            _prepare(recipe, Path(temporary))
            return recipe.open(Path(temporary)).source(prefetch=prefetch)
    path = Path(folder).expanduser()
    _prepare(recipe, path)
    return recipe.open(path).source(prefetch=prefetch)


def _prepare(recipe: Recipe, folder: Path) -> None:
    """Writes the tokenizer and other files for the data into the folder, unless a run of the recipe has them there."""
    run = RunFolder(folder)
    if run.exists():
        changed = differences(from_dict(run.read("recipe.json")), recipe)
        if changed:
            words = "; ".join(
                f"{name} is {theirs!r} there and {ours!r} here" for name, (theirs, ours) in changed.items()
            )
            raise RunError(f"{folder} is a run of another recipe: {words}. Name another folder, or none")
        if run.has("data.json"):
            return
    folder.mkdir(parents=True, exist_ok=True)
    # Set any number of steps, so that the examples are not counted to find it. Batches are endless here.
    uncounted = recipe.replace(steps=recipe.length.steps or 1, epochs=None)
    prepared = uncounted.open(folder).prepare(lambda text: None)
    run.write("data.json", prepared.to_json())
