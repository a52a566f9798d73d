"""Recipes of puzzles: what was published, what a data set must be, and what is said of an evaluation."""

import shutil
from pathlib import Path

import jax
import pytest

from making import made
from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.puzzles.data import READER_BYTES
from plimsoll.recipes.puzzles.model import reported
from plimsoll.recipes.registry import preset
from plimsoll.types import COUNTED, Compute
from puzzle_files import write_split


@pytest.fixture
def folder(tmp_path):
    for split, seed in (("train", 0), ("test", 1)):
        write_split(tmp_path / split, groups=[[1, 1]] * 10, seq_len=6, vocab_size=9, identifiers=4, seed=seed)
    return tmp_path


def small(folder, **fields):
    sizes = {"seq_len": 6, "vocab_size": 9, "identifiers": 4, "width": 16, "heads": 2, "puzzle_positions": 1}
    return made("sudoku", data=str(folder), batch_size=4, default_epochs=20, eval_interval=4, **(sizes | fields))


def prepared(recipe, folder):
    said = []
    return recipe.open(folder).prepare(said.append), said


@pytest.mark.parametrize(
    ("name", "parameters", "epochs"),
    [
        ("sudoku-mlp", 5_028_866, 50_000),
        ("sudoku-attention", 6_828_034, 50_000),
        ("maze", 6_822_914, 50_000),
        ("arc-1", 6_829_058, 100_000),
    ],
)
def test_presets_are_as_published(name, parameters, epochs):
    recipe = preset(name)
    params = jax.eval_shape(recipe.task(Compute()).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params["trainable"])) == parameters
    assert params["tables"]["puzzles"].shape == (recipe.options["identifiers"], 512)
    assert (recipe.effective_batch, recipe.length.default_epochs, recipe.data.eval_interval) == (
        768,
        epochs,
        epochs // 10,
    )
    assert recipe.optimizer.default_warmup_steps == 2000


def test_a_published_run_has_as_many_steps_as_was_published(tmp_path):
    for split in ("train", "test"):
        write_split(tmp_path / split, groups=[[1]] * 1000, seq_len=81, vocab_size=11, identifiers=2)
    recipe = preset("sudoku-mlp").replace(data=str(tmp_path), identifiers=2)
    found, _ = prepared(recipe, tmp_path)
    assert found.steps == 65_104
    assert found.evaluate_every == 6510
    assert int(found.steps_per_epoch * 50_000) == found.steps
    assert prepared(recipe.replace(epochs=1000), tmp_path)[0].steps == 1302
    assert prepared(recipe.replace(steps=7), tmp_path)[0].steps == 7


def test_what_is_prepared_says_what_there_is_and_batches_are_of_the_shapes_said(folder):
    recipe = small(folder)
    found, said = prepared(recipe, folder)
    assert found.steps == 50  # 20 epochs of 10 groups in batches of 4
    assert (found.steps_per_epoch, found.evaluate_every) == (2.5, 10)
    assert found.facts["test_examples"] == 20
    assert any("20 puzzles in 10 groups, 20 examples" in line and "20 test examples" in line for line in said)
    source = recipe.open(folder).source(prefetch=0)
    batch = next(source)
    source.close()
    assert {name: (rows.shape, str(rows.dtype)) for name, rows in batch.items()} == recipe.spec.batch(4)


@pytest.mark.parametrize(("most", "counted"), [(None, 20), (7, 7), (100, 20), (0, 0)])
def test_so_many_test_examples_count(folder, most, counted):
    recipe = small(folder, validation_examples=most)
    batches = list(recipe.open(folder).validation(examples=3))
    assert sum(int(batch[COUNTED].sum()) for batch in batches) == counted
    assert len(batches) == -(-counted // 3)
    for batch in batches:
        spec = recipe.spec.validation_batch(3)
        assert {name: (rows.shape, str(rows.dtype)) for name, rows in batch.items()} == spec


def test_what_a_loader_holds_is_stated(folder):
    recipe = small(folder)
    offsets = 4 * (20 + 1) + 4 * (10 + 1) + 4 * 20
    batches = (2 + 3) * 4 * 4 * (6 + 6 + 1)
    assert recipe.data.memory(None, recipe.reading, prefetch=2).bytes == READER_BYTES + offsets + 2 * 4 * 10 + batches


def test_planning_needs_no_data():
    recipe = preset("arc-1")
    assert recipe.spec.identifiers == 960_961
    assert recipe.data.memory(None, recipe.reading, prefetch=2).bytes > 0
    assert recipe.spec.batch(5)["inputs"] == ((5, 900), "int32")
    with pytest.raises(RecipeError, match="--data is missing"):
        recipe.open(Path()).prepare(print)


def test_a_data_set_of_other_puzzles_is_refused(folder):
    with pytest.raises(DataError, match=r"--seq-len 6 --vocab-size 9 --identifiers 4, .* 81, 11 and 3"):
        _ = small(folder, seq_len=81, vocab_size=11, identifiers=3).spec
    assert small(folder, identifiers=1000).spec.identifiers == 4  # a table as large as the data set needs


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_data_set_that_was_made_anew_is_not_the_one_that_a_run_began_with(folder, split):
    begun, _ = prepared(small(folder), folder)
    assert small(folder).open(None).require_same(begun, training=False) is None
    shutil.rmtree(folder / split)
    write_split(folder / split, groups=[[1, 2]] * 10, seed=77)
    with pytest.raises(DataError, match=rf"this run any more: {split}/all__inputs\.npy has 60 more bytes"):
        small(folder).open(None).require_same(begun, training=False)


def test_a_data_set_is_named_by_its_whole_path(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert small(Path(folder.name)).data.data == str(folder)


def test_too_few_puzzles_for_a_batch_are_refused(folder):
    with pytest.raises(DataError, match="do not fill a batch of 4,000"):
        small(folder).replace(batch_size=4000).open(folder).prepare(print)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"halt_max_steps": 0}, "--halt-max-steps must be 1 or more, got 0"),
        ({"halt_exploration": 1.5}, "--halt-exploration must be 0 or more and at most 1, got 1.5"),
        ({"low_cycles": 0}, "--low-cycles must be 1 or more, got 0"),
        ({"variant": "attention", "width": 36}, "--width 36 cannot be split over --heads 8"),
        ({"puzzle_learning_rate": -1.0}, "--puzzle-learning-rate must be 0 or more"),
        ({"puzzle_weight_decay": float("nan")}, "--puzzle-weight-decay must be 0 or more and finite, got nan"),
        ({"validation_examples": -1}, "--validation-examples must be 0 or more, got -1"),
    ],
)
def test_a_wrong_field_is_refused_by_its_option_and_value(fields, words):
    with pytest.raises(RecipeError, match=words):
        made("sudoku", **fields)


def test_an_evaluation_is_told_in_four_words_and_a_loss():
    metrics = {"accuracy": 0.9, "exact_accuracy": 0.5, "q_halt_accuracy": 0.7, "supervision_steps": 16.0, "loss": 1.0}
    assert reported(metrics | {"token_loss": 0.1, "halt_loss": 0.2}, preset("sudoku-mlp").spec) == {
        "exact_accuracy": 0.5,
        "token_accuracy": 0.9,
        "q_halt_accuracy": 0.7,
        "mean_steps": 16.0,
        "loss": 1.0,
    }
