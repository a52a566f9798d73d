"""The history that `plimsoll rank` is asked about: the file's own names of items, to ids. Without JAX."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from plimsoll.errors import DataError
from plimsoll.recipes.recommend.catalogue import Catalogue
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
            f"--history {text!r} names no item: give some of the {len(catalogue):,} of {recipe.data}, as the file that"
            f" was prepared calls them, oldest first, like {','.join(catalogue.originals[:3])}"
        )
    if not all(words):
        raise DataError(
            f"--history {text!r} has nothing between two commas, at place {words.index('') + 1} of {len(words)}: name"
            " the item that is missing, or take the comma out"
        )
    if unknown := [word for word in words if word not in catalogue.ids]:
        raise DataError(_unknown(unknown, catalogue, recipe.data))
    return {"history": [catalogue.ids[word] for word in words]}


def _unknown(words: Sequence[str], catalogue: Catalogue, folder: str) -> str:
    some = ", ".join(map(repr, words[:5])) + (f" and {len(words) - 5:,} more" if len(words) > 5 else "")
    near = difflib.get_close_matches(words[0], catalogue.originals, n=3)
    hint = f" Near to the first: {', '.join(near)}." if near else ""
    return (
        f"--history has {some}, which {folder} does not know: its {len(catalogue):,} items are called as in the file"
        f" that was prepared (items.jsonl lists them), and those that too few took were left out.{hint} Leave"
        f" {'it' if len(words) == 1 else 'them'} out, or correct {'it' if len(words) == 1 else 'them'}"
    )
