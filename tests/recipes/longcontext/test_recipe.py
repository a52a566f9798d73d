"""Long contexts: published sizes, what the packed folder decides, and refusals."""

import json
from itertools import islice

import jax
import numpy as np
import pytest

from making import made
from packed_files import write_packed
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.manifest import finish
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.longcontext.positions import BY_POSITION
from plimsoll.recipes.longcontext.tables import positions_table
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registry import preset
from plimsoll.types import COUNTED, Compute

PARAMETERS = {
    "nano": 34_782_720,
    "micro": 78_726_144,
    "tiny": 39_308_032,
    "small": 157_672_448,
    "small-32k": 122_269_696,
    "medium-32k": 398_140_416,
    "large-32k": 961_871_872,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_the_published_number_of_parameters(name):
    recipe = preset(f"longcontext-{name}")
    shapes = jax.eval_shape(recipe.task(Compute()).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == PARAMETERS[name]


@pytest.fixture
def packed(tmp_path):
    ids = np.random.default_rng(0).integers(0, 256, 5000)
    return write_packed(tmp_path / "packed", ids, validation=ids[:700])


def small(packed, **fields):
    return made("longcontext", data=str(packed), width=16, layers=1, states=4, seq_len=64, batch_size=4, **fields)


def test_the_folder_says_the_vocabulary_and_the_type(packed, tmp_path):
    recipe = small(packed)
    assert recipe.spec.vocab == 300
    assert recipe.spec.batch(2) == {"tokens": ((2, 65), "uint16")}
    assert recipe.spec.validation_batch(2)[COUNTED] == ((2,), "bool")
    assert small(packed, vocab_size=512).spec.vocab == 512
    with pytest.raises(RecipeError, match=r"vocabulary of 300, but --vocab-size 299 .* at least 300"):
        _ = small(packed, vocab_size=299).spec
    wide = write_packed(tmp_path / "wide", [1, 2, 256] * 100, vocab_size=70_000, dtype="uint32")
    assert small(wide).spec.batch(1) == {"tokens": ((1, 65), "uint32")}
    assert made("longcontext", vocab_size=70_000).spec.batch(1)["tokens"][1] == "uint32"


def test_preparing_counts_the_windows_and_keeps_the_tokenizer(packed, tmp_path):
    said = []
    prepared = small(packed).open(tmp_path).prepare(said.append)
    assert prepared.steps == (5000 - 1) // 64 // 4  # an epoch
    assert prepared.steps_per_epoch == (5000 - 1) // 64 / 4
    assert small(packed, epochs=3.0).open(tmp_path).prepare(said.append).steps == int(3 * 78 / 4)
    assert small(packed, steps=7).open(tmp_path).prepare(said.append).steps == 7
    assert (tmp_path / "tokenizer.json").read_text() == "{}"
    assert "5,000 tokens" in said[0]
    assert "78 windows of 64, 10 held out" in said[0]
    with pytest.raises(DataError, match="5,000 tokens has 1 sequences of 4,000 tokens to train on"):
        small(packed).replace(seq_len=4000).open(tmp_path).prepare(print)


def test_a_run_goes_on_with_its_own_data_alone(packed, tmp_path):
    recipe = small(packed)
    run = RunFolder(tmp_path)
    run.write("data.json", recipe.open(tmp_path).prepare(lambda _: None).to_json())
    prepared = Prepared.read(run)
    assert prepared.spec == recipe.spec
    assert recipe.open(None).require_same(prepared, training=False) is None
    meta = json.loads((packed / "meta.json").read_text())
    (packed / "meta.json").write_text(json.dumps({**meta, "counts": meta["counts"] | {"vocab_size": 400}}))
    finish(packed)
    with pytest.raises(DataError, match="not the data of this run any more: vocab_size was 300 and is 400"):
        small(packed).open(None).require_same(prepared, training=False)


def test_without_data_training_is_refused_and_planning_is_not():
    with pytest.raises(RecipeError, match=r"--data is missing: .* `plimsoll prepare longcontext"):
        made("longcontext").open(None)
    assert made("longcontext").spec.vocab == 50_257
    assert made("longcontext").data.memory(None, made("longcontext").reading, prefetch=2).bytes > 0


def test_batches_are_windows_of_the_text_and_validation_ends_where_it_is_told_to(packed, tmp_path):
    recipe = small(packed)
    (batch,) = islice(recipe.open(tmp_path).source(prefetch=0), 1)
    assert {name: (value.shape, str(value.dtype)) for name, value in batch.items()} == recipe.spec.batch(4)
    counted = []
    for most in (10**6, 6 * 64, 1, 0):
        batches = recipe.replace(validation_tokens=most).open(tmp_path).validation(examples=4)
        counted.append(sum(batch[COUNTED].sum() for batch in batches))
    assert counted == [10, 6, 1, 0]


def test_the_learning_rate_warms_up_for_a_tenth_and_ends_at_nothing():
    recipe = made("longcontext", learning_rate=1e-3)
    rate = recipe.optimizer.schedule(1000)
    assert [float(rate(step)) for step in (0, 50, 100, 1000)] == pytest.approx([0, 5e-4, 1e-3, 0], abs=1e-9)
    assert float(made("longcontext", warmup_steps=20).optimizer.schedule(1000)(20)) == pytest.approx(3e-4)


def test_the_loss_by_position_becomes_a_table():
    recipe = made("longcontext", seq_len=128)
    metrics = {"loss": 3.0, "loss_from_0": 4.0, "loss_from_80": 2.0}
    reported = recipe.model.uses.reported(metrics, recipe.spec)
    assert reported == {"loss": 3.0, BY_POSITION: {"0 to 0": 4.0, "80 to 95": 2.0}}
    assert positions_table(reported[BY_POSITION]).splitlines()[-1].split() == ["80", "to", "95", "2.0000", "-2.0000"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 0}, "--vocab-size must be 1 or more and at most 2,147,483,648, got 0"),
        ({"warmup_fraction": 1.0}, "--warmup-fraction must be 0 or more and below 1, got 1"),
        ({"validation_tokens": -1}, "--validation-tokens must be 0 or more, got -1"),
        ({"width": 130, "heads": 4}, "--width 130 cannot be split over --heads 4"),
    ],
)
def test_a_wrong_field_is_refused_by_its_option_and_value(fields, words):
    with pytest.raises(RecipeError, match=words):
        made("longcontext", **fields)


def test_attention_is_a_lever_only_where_a_layer_attends():
    assert "attention_chunk" not in made("longcontext").hints.levers
    attending = made("longcontext", attention_every=2)
    assert "attention_chunk" in attending.hints.levers
    assert attending.hints.attention_chunks == (256,)
