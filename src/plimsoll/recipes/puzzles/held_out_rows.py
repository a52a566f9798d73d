"""Split of a table's rows into those to train on and those to test on, without overlap.

Rows are identified by marks of eight bytes; two rows with the same mark are in the same split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt64

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.source_table import Table

Marks = UInt64[np.ndarray, " rows"]


class Choice(NamedTuple):
    to_train: Bool[np.ndarray, " rows"]
    """Rows of the train split that are trained on."""
    to_test: Bool[np.ndarray, " rows"]
    """Rows of `test_split` that are tested on."""
    test_split: str
    held_out: Marks
    left_out: int
    """Number of rows of the train split that are used nowhere, because the table's own test split has their mark."""


def choose(
    table: Table,
    marks: Mapping[str, Marks],
    *,
    train_size: int,
    test_size: int | None,
    random: np.random.Generator,
) -> Choice:
    """Returns the rows of a table to train on and to test on, chosen at random.

    Args:
        table: Table with a train split, and perhaps a test split.
        marks: Marks of all rows of each split.
        train_size: Rows to train on, at most.
        test_size: Rows to test on; of a table without a test split, marks. Default: a tenth, and at most 1,000.
        random: Source of random numbers.
    """
    known, has_test = marks["train"], "test" in table
    if has_test:
        held_out = marks["test"]
        most, what = len(held_out), f"the {len(held_out):,} rows of {table['test']}"
        to_test = _some(np.ones(len(held_out), bool), len(held_out) if test_size is None else test_size, random)
    else:
        each = np.unique(known)
        count = min(len(each) - 1, min(1000, len(each) // 10) if test_size is None else test_size)
        if count < 1:
            raise DataError(
                f"{table['train']} has {len(each):,} different puzzles, too few to hold some out for testing:"
                " give it more rows (ten, or --test-size and one more), or a test.csv beside a train.csv"
            )
        most, what = count, f"{count:,} of the {len(each):,} different puzzles, which leave one to train on"
        held_out = random.choice(each, count, replace=False)
        to_test = np.isin(known, held_out)
    if test_size is not None and test_size > most:
        raise DataError(f"--test-size {test_size:,} is more than {what}: ask for fewer, or leave it out")
    free = ~np.isin(known, held_out)
    left_out = int((~free).sum()) if has_test else 0
    return Choice(_some(free, train_size, random), to_test, "test" if has_test else "train", held_out, left_out)


def _some(among: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Returns `count` of the rows at random, or all if there are fewer."""
    places = np.flatnonzero(among)
    chosen = np.zeros(len(among), bool)
    chosen[random.permutation(places)[:count]] = True
    return chosen
