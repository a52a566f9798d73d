"""The history that `plimsoll rank` is asked about: the file's own names of items, to ids. Without JAX."""

from __future__ import annotations

from plimsoll.errors import DataError
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.recommend.data import Interactions


def request_of(recipe: Recipe, run: str, text: str) -> dict[str, list[int]]:
    """Returns the `history` for `rank.rank`, as ids of the data set.

    Args:
        recipe: Recipe of the run.
        run: Folder of the run; not needed here.
        text: Items by their names in the file that was prepared, oldest first, separated by commas.

    Raises:
        DataError: The data set has no item of such a name.
    """
    data = recipe.data
    assert isinstance(data, Interactions)
    names = data.interactions.names
    words = [word.strip() for word in text.split(",")]
    ids = {original: number for number, original in enumerate(names, 1)}
    if unknown := [word for word in words if word not in ids]:
        raise DataError(
            f"--history has {len(unknown):,} items like {unknown[0]!r}, which {data.data} does not know: its"
            f" {len(ids):,} items are called as in the file that was prepared (items.jsonl lists them), and those that"
            " too few took were left out. Leave them out, or correct them"
        )
    return {"history": [ids[word] for word in words]}
