"""The history that `plimsoll rank` is asked about: the file's own names of items, to ids. Without JAX."""

from __future__ import annotations

import difflib

from plimsoll.errors import DataError
from plimsoll.recipes.recommend.recipe import Recommend


def request_of(recipe: Recommend, run: str, text: str) -> dict[str, list[int]]:
    """Returns the `history` for `rank.rank`, as ids of the data set.

    Args:
        recipe: Recipe of the run.
        run: Folder of the run; not needed here.
        text: Items by their names in the file that was prepared, oldest first, separated by commas.

    Raises:
        DataError: The data set has no item of such a name.
    """
    catalogue = recipe.interactions.catalogue
    words = [word.strip() for word in text.split(",")]
    if not any(words):
        raise DataError(
            f"--history {text!r} names no item: give some of the {len(catalogue.originals):,} of {recipe.data}, as the"
            f" file that was prepared calls them, oldest first, like {','.join(catalogue.originals[:3])}"
        )
    if not all(words):
        raise DataError(
            f"--history {text!r} has nothing between two commas, at place {words.index('') + 1} of {len(words)}: name"
            " the item that is missing, or take the comma out"
        )
    ids = {original: number for number, original in enumerate(catalogue.originals, 1)}
    if unknown := [word for word in words if word not in ids]:
        some = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else "")
        near = difflib.get_close_matches(unknown[0], catalogue.originals, n=3)
        hint = f" Near to the first: {', '.join(near)}." if near else ""
        them = "it" if len(unknown) == 1 else "them"
        raise DataError(
            f"--history has {some}, which {recipe.data} does not know: its {len(ids):,} items are called as in the file"
            f" that was prepared (items.jsonl lists them), and those that too few took were left out.{hint} Leave"
            f" {them} out, or correct {them}"
        )
    return {"history": [ids[word] for word in words]}
