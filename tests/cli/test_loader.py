"""`plimsoll.loader`: a recipe's batches for a loop of one's own."""

import json
from itertools import islice

import numpy as np
import pytest

import plimsoll
from plimsoll.recipes.saved import from_dict


@pytest.fixture
def recipe(tiny_run):
    return from_dict(json.loads((tiny_run / "recipe.json").read_text()))


def batches(recipe, folder=None, count=3):
    source = plimsoll.loader(recipe, folder)
    try:
        return list(islice(source, count))
    finally:
        source.close()


def test_a_folder_a_run_and_neither_give_the_same_batches(recipe, tiny_run, tmp_path):
    expected = batches(recipe)
    for folder in (tmp_path / "new", tiny_run):
        for batch, same in zip(batches(recipe, folder), expected, strict=True):
            assert {name: array.shape for name, array in batch.items()} == {"input_ids": (8, 32), "labels": (8, 32)}
            np.testing.assert_array_equal(batch["input_ids"], same["input_ids"])


def test_the_folder_of_another_run_is_refused(recipe, tiny_run):
    before = (tiny_run / "tokenizer.json").read_bytes()
    with pytest.raises(plimsoll.RunError, match="vocab_size is 300 there and 400 here"):
        plimsoll.loader(recipe.replace(vocab_size=400), tiny_run)
    assert (tiny_run / "tokenizer.json").read_bytes() == before
