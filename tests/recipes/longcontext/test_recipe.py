"""Long contexts: published sizes, what the packed folder decides, and refusals."""

import json
from dataclasses import asdict, replace
from itertools import islice

import numpy as np
import pytest

from packed_files import write_packed
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.manifest import finish
from plimsoll.recipes.base import Prepared
from plimsoll.recipes.longcontext.recipe import BY_POSITION, LongContext
from plimsoll.recipes.longcontext.tables import positions_table
from plimsoll.recipes.registry import preset
from plimsoll.types import COUNTED

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
    assert preset(f"longcontext-{name}").shape.parameters() == PARAMETERS[name]


@pytest.fixture
def packed(tmp_path):
    ids = np.random.default_rng(0).integers(0, 256, 5000)
    return write_packed(tmp_path / "packed", ids, validation=ids[:700])


def small(packed, **fields):
    return LongContext(data=str(packed), width=16, layers=1, states=4, seq_len=64, batch_size=4, **fields)


def test_the_folder_says_the_vocabulary_and_the_type(packed, tmp_path):
    recipe = small(packed)
    assert recipe.shape.vocab == 300
    assert recipe.batch_spec(2) == {"tokens": ((2, 65), "uint16")}
    assert recipe.evaluation_spec(2)[COUNTED] == ((2,), "bool")
    assert small(packed, vocab_size=512).shape.vocab == 512
    with pytest.raises(RecipeError, match=r"vocabulary of 300, but --vocab-size 299 .* at least 300"):
        _ = small(packed, vocab_size=299).shape
    wide = write_packed(tmp_path / "wide", [1, 2, 256] * 100, vocab_size=70_000, dtype="uint32")
    assert small(wide).batch_spec(1) == {"tokens": ((1, 65), "uint32")}
    assert LongContext(vocab_size=70_000).batch_spec(1)["tokens"][1] == "uint32"


def test_preparing_counts_the_windows_and_keeps_the_tokenizer(packed, tmp_path):
    said = []
    prepared = small(packed).prepare(tmp_path, said.append)
    assert prepared.steps == (5000 - 1) // 64 // 4  # an epoch
    assert prepared.steps_per_epoch == (5000 - 1) // 64 / 4
    assert small(packed, epochs=3.0).prepare(tmp_path, said.append).steps == int(3 * 78 / 4)
    assert small(packed, steps=7).prepare(tmp_path, said.append).steps == 7
    assert (tmp_path / "tokenizer.json").read_text() == "{}"
    assert "5,000 tokens" in said[0]
    assert "78 windows of 64, 10 held out" in said[0]
    with pytest.raises(DataError, match="5,000 tokens to train on, 1 windows of 4,000"):
        replace(small(packed), seq_len=4000).prepare(tmp_path, print)


def test_a_run_goes_on_with_its_own_data_alone(packed, tmp_path):
    recipe = small(packed)
    prepared = Prepared(**json.loads(json.dumps(asdict(recipe.prepare(tmp_path, lambda _: None)))))
    assert recipe.data_changed(prepared) is None
    meta = json.loads((packed / "meta.json").read_text())
    (packed / "meta.json").write_text(json.dumps({**meta, "counts": meta["counts"] | {"vocab_size": 400}}))
    finish(packed)
    with pytest.raises(DataError, match="not the data of this run any more: vocab_size was 300 and is 400"):
        small(packed).data_changed(prepared)


def test_without_data_training_is_refused_and_planning_is_not():
    with pytest.raises(RecipeError, match=r"--data is missing: .* `plimsoll prepare longcontext"):
        _ = LongContext().packed
    assert LongContext().shape.vocab == 50_257
    assert LongContext().host_bytes(None, prefetch=2)["data"] > 0


def test_batches_are_windows_of_the_text_and_validation_ends_where_it_is_told_to(packed, tmp_path):
    recipe = small(packed)
    (batch,) = islice(recipe.source(tmp_path, prefetch=0), 1)
    assert {name: (value.shape, str(value.dtype)) for name, value in batch.items()} == recipe.batch_spec(4)
    counted = [sum(b[COUNTED].sum() for b in replace(recipe, validation_tokens=most).validation(tmp_path, examples=4))
               for most in (10**6, 6 * 64, 1, 0)]  # fmt: skip
    assert counted == [10, 6, 1, 0]


def test_the_learning_rate_warms_up_for_a_tenth_and_ends_at_nothing():
    recipe = LongContext(learning_rate=1e-3)
    rate = recipe.optimizer(1000).schedule(1000)
    assert [float(rate(step)) for step in (0, 50, 100, 1000)] == pytest.approx([0, 5e-4, 1e-3, 0], abs=1e-9)
    assert float(LongContext(warmup_steps=20).optimizer(1000).schedule(1000)(20)) == pytest.approx(3e-4)


def test_the_loss_by_position_becomes_a_table():
    recipe = LongContext(seq_len=128)
    metrics = {"loss": 3.0, "loss_from_0": 4.0, "loss_from_80": 2.0}
    reported = recipe.reported(metrics)
    assert reported == {"loss": 3.0, BY_POSITION: {"0 to 0": 4.0, "80 to 95": 2.0}}
    assert positions_table(reported[BY_POSITION]).splitlines()[-1].split() == ["80", "to", "95", "2.0000", "-2.0000"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 0}, "--vocab-size must be from 1 to 2,147,483,648, got 0"),
        ({"warmup_fraction": 1.0}, "--warmup-fraction must be from 0 to below 1, got 1"),
        ({"validation_tokens": -1}, "--validation-tokens must be 0 or more, got -1"),
        ({"width": 130, "heads": 4}, "--width 130 cannot be split over --heads 4"),
    ],
)
def test_a_wrong_field_is_refused_by_its_option_and_value(fields, words):
    with pytest.raises(RecipeError, match=words):
        LongContext(**fields)


def test_attention_is_a_lever_only_where_a_layer_attends():
    assert "attention_chunk" not in LongContext().supported_levers
    attending = LongContext(attention_every=2)
    assert "attention_chunk" in attending.supported_levers
    assert attending.attention_chunks == (256,)
