"""Rows of items that nobody took in training, from what a frozen language model makes of their titles.

The vector of a title is the mean of the model's outputs over its tokens, genres included where the catalogue has them.
A ridge regression from these vectors to the rows of the items that were trained on (Gantner et al. 2010,
https://doi.org/10.1109/ICDM.2010.129) gives the others a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Float32

from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.models.pretrained.find import find_folder
from plimsoll.models.pretrained.model import Pretrained
from plimsoll.models.pretrained.weights import word_vectors
from plimsoll.recipes.recommend.catalogue import Catalogue
from plimsoll.recipes.recommend.recipe import Recommend
from plimsoll.types import Compute

MOST_TOKENS = 64
"""Tokens of a title that are read."""
TOGETHER = 64
"""Titles that are read at a time."""
RIDGE = 0.1
"""Penalty of the regression's weights, for each item it is fitted to, of vectors with a deviation of 1."""


def has_titles(recipe: Recommend) -> bool:
    """Returns whether the run has a frozen language model with its tokenizer, and a data set with titles."""
    if recipe.published is None or not recipe.freeze:
        return False
    words = (find_folder(recipe.pretrained) / "tokenizer.json").is_file()
    return words and any(title is not None for title in recipe.interactions.catalogue.titles)


def title_vectors(recipe: Recommend, model: Any, compute: Compute) -> Float32[np.ndarray, "items_and_1 width"]:
    """Returns a vector for each id; zeros for padding and for items without a title.

    Args:
        recipe: Recipe for which `has_titles` is true.
        model: The frozen language model's parameters, without its embedding.
        compute: Arithmetic of the run.
    """
    shape, folder = recipe.published, find_folder(recipe.pretrained)
    assert shape is not None
    items, tokens, lengths = _tokens(recipe.interactions.catalogue, folder, min(MOST_TOKENS, shape.positions))
    used, places = np.unique(tokens, return_inverse=True)
    words, places = word_vectors(folder, shape, used), places.reshape(tokens.shape)
    reader = Pretrained(shape, compute, frozen=True)
    run = jax.jit(lambda model, x: reader.hidden(model, inputs_embeds=x))
    vectors = np.zeros((recipe.interactions.items + 1, shape.width), np.float32)
    for first in range(0, len(items), TOGETHER):
        here = slice(first, first + TOGETHER)
        rows = words[places[here]]
        filled = np.concatenate([rows, np.zeros((TOGETHER - len(rows), *rows.shape[1:]), np.float32)])
        out = np.asarray(run(model, filled))[: len(rows)]
        counted = np.arange(tokens.shape[1]) < lengths[here, None]
        vectors[items[here]] = np.einsum("ntw,nt->nw", out, counted) / lengths[here, None]
    return vectors


def rows_by_title(
    vectors: Float[np.ndarray, "items_and_1 width"],
    table: Float[np.ndarray, "items_and_1 item_width"],
    trained: Bool[np.ndarray, " items_and_1"],
) -> Float32[np.ndarray, "items_and_1 item_width"]:
    """Returns the table, in which items that have a title and were not trained on have rows by their titles.

    Args:
        vectors: Vectors of titles, zeros for none.
        table: Rows of the items.
        trained: Items whose rows were learned.
    """
    titled = vectors.any(axis=1)
    known, wanted = trained & titled, ~trained & titled
    rows = np.array(table, np.float32)
    if not known.any():
        return rows
    middle, spread = vectors[known].mean(axis=0), vectors[known].std(axis=0) + 1e-6
    x, mean = (vectors - middle) / spread, rows[known].mean(axis=0)
    penalty = RIDGE * known.sum() * np.eye(x.shape[1])
    weights = np.linalg.solve(x[known].T @ x[known] + penalty, x[known].T @ (rows[known] - mean))
    rows[wanted] = x[wanted] @ weights + mean
    return rows


def _tokens(catalogue: Catalogue, folder: Path, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the ids of items with a title, its tokens padded on the right with 0, and how many they are."""
    texts: dict[int, str] = {
        item: text for item in range(1, len(catalogue.originals) + 1) if (text := catalogue.text(item))
    }
    flat, counts = load_tokenizer(folder).encode_each([*texts.values()])
    ends = np.cumsum(counts)
    each: Sequence[np.ndarray] = [flat[end - count : end][:most] for end, count in zip(ends, counts, strict=True)]
    lengths = np.array([len(tokens) for tokens in each])
    items = np.array([*texts])[lengths > 0]
    each, lengths = [tokens for tokens in each if len(tokens)], lengths[lengths > 0]
    padded = np.zeros((len(each), int(lengths.max(initial=1))), np.int32)
    for row, tokens in zip(padded, each, strict=True):
        row[: len(tokens)] = tokens
    return items, padded, lengths
