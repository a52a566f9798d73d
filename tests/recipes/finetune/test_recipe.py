"""The recipe of fine-tuning: its options, what it takes from its files, and what it refuses before planning."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from chat_files import turns, write_records, write_tokenizer
from plimsoll.data.chat.rows import PackedRows
from plimsoll.errors import DataError, RecipeError
from plimsoll.models.pretrained.adapters import AdapterSettings, write_adapter
from plimsoll.processes import cache
from plimsoll.recipes.finetune import data
from plimsoll.recipes.registry import preset
from plimsoll.training.schedule import epochs_over
from plimsoll.types import Compute
from pretrained_folders import drawn
from tuning_files import SHAPE, small, write_model

ENDS = "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
"""Another chat template, of fewer tokens."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Around files that no test changes."""
    return small(tmp_path_factory.mktemp("finetune"))


@pytest.fixture
def own(tmp_path):
    """Around files of the test's own."""
    return small(tmp_path)


def prepared(recipe, tmp_path):
    """Prepares a folder as `api.train.prepare_data` leaves it."""
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    made = recipe.open(folder).prepare(lambda _: None)
    (folder / "data.json").write_text(json.dumps(made.to_json()))
    return made


def test_by_default_adapters_beside_every_kernel_of_a_small_published_model():
    recipe = preset("finetune")
    assert (recipe.model.adapter.scale, recipe.model.shape.width) == (2, 576)  # without a download
    assert recipe.hints.frozen_given
    assert "frozen_bits" in recipe.hints.levers
    assert "unroll" not in recipe.hints.levers  # frozen layers are always a loop
    whole = recipe.replace(lora_rank=0)
    assert not whole.hints.frozen_given
    assert "frozen_bits" not in whole.hints.levers
    assert "unroll" in whole.hints.levers


def test_training_begins_with_the_published_weights_and_adapters_that_add_nothing(recipe):
    some = recipe.replace(lora_targets="q,v")
    params = some.open(None).load(jax.jit(some.task(Compute()).init)(jax.random.key(0)))
    published = drawn(SHAPE)["model.layers.1.mlp.up_proj.weight"]
    np.testing.assert_array_equal(params["frozen"]["base"]["blocks"]["up"]["kernel"][1], published.T)
    assert params["trainable"].keys() == {"blocks/query/kernel", "blocks/value/kernel"}
    assert params["trainable"]["blocks/query/kernel"]["a"].shape == (2, 32, 4)
    assert not any(pair["b"].any() for pair in params["trainable"].values())
    whole = recipe.replace(lora_rank=0)
    params = whole.open(None).load(jax.jit(whole.task(Compute()).init)(jax.random.key(0)))
    np.testing.assert_array_equal(params["trainable"]["blocks"]["up"]["kernel"][1], published.T)


def test_a_file_is_named_for_whoever_continues_from_elsewhere(recipe, tmp_path, monkeypatch):
    (tmp_path / "here").touch()
    monkeypatch.chdir(tmp_path)
    names = ("pretrained", "dataset_id", "validation_id", "chat_template", "init_from")
    found = recipe.replace(**dict.fromkeys(names, "here"))
    assert {found.options[name] for name in names} == {str(tmp_path / "here")}


REFUSED = {
    "a short row": ({"seq_len": 1}, "--seq-len must be 2 or more, got 1"),
    "a long row": ({"seq_len": 257}, "--seq-len 257 is more than the 256 tokens"),
    "no examples": ({"max_examples": 0}, "--max-examples must be 1 or more, got 0"),
    "rank": ({"lora_rank": -1}, "--lora-rank must be 0 or more, got -1"),
    "rank 0 with targets": ({"lora_rank": 0, "lora_targets": "q,v"}, "--lora-rank 0 .*--lora-targets"),
    "rank 0 with more": ({"lora_rank": 0, "rslora": True, "init_from": "a"}, "--rslora, --init-from"),
    "dropout": ({"lora_dropout": 1.0}, "--lora-dropout must be 0 or more and below 1, got 1"),
    "scale": ({"lora_alpha": 0.0}, "--lora-alpha must be above 0 and finite, got 0"),
    "no scale": ({"lora_alpha": float("nan")}, "--lora-alpha must be above 0 and finite, got nan"),
    "no such kernel": ({"lora_targets": "blocks/quary"}, "blocks/quary.*blocks/query/kernel"),
    "every leaf": ({"lora_targets": ".*"}, r"\.\* matches every leaf.*all-linear"),
    "a norm": ({"lora_targets": ".*norm/scale"}, "norm"),
    "no pattern": ({"lora_targets": "q("}, r"--lora-targets 'q\(' "),
    "no name": ({"lora_targets": ""}, "--lora-targets .*all-linear"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_mean_nothing_are_refused_before_anything_is_planned(recipe, name):
    changed, words = REFUSED[name]
    with pytest.raises(RecipeError, match=words):
        _ = recipe.replace(**changed).hints


@pytest.mark.parametrize("name", ["", " "])
def test_a_model_without_a_name_is_refused_before_anything_is_planned(recipe, name):
    with pytest.raises(DataError, match=f"--pretrained {name} is no folder here"):
        _ = recipe.replace(pretrained=name).hints


def test_what_no_run_can_begin_with_is_refused(own, tmp_path):
    with pytest.raises(RecipeError, match=r"--dataset-id is missing: .*\.jsonl"):
        prepared(own.replace(dataset_id=""), tmp_path)
    with pytest.raises(DataError, match="sequences of 128 tokens to train on, fewer than the 400 of one batch"):
        prepared(own.replace(batch_size=400), tmp_path)
    write_model(tmp_path / "narrow", replace(SHAPE, vocab=100))
    with pytest.raises(DataError, match="narrow has 268 ids, and the model 100 rows"):
        prepared(own.replace(pretrained=str(tmp_path / "narrow")), tmp_path)
    path = tmp_path / "model/model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": np.zeros(7, np.float32)}, path)
    with pytest.raises(DataError, match=r"1 of them differ: model\.norm\.weight \(7\) instead of \(32\)"):
        prepared(own, tmp_path)


def adapter(folder, rank=4, **settings):
    random = np.random.default_rng(1)
    draw = lambda *sides: random.standard_normal((SHAPE.layers, *sides), np.float32)  # noqa: E731
    learned = {"blocks/query/kernel": {"a": draw(32, rank), "b": draw(rank, 32)}}
    write_adapter(folder, learned, AdapterSettings(**{"rank": rank, "alpha": 2 * rank} | settings))
    return learned


def test_an_adapter_is_begun_with(recipe, tmp_path):
    learned = adapter(tmp_path / "adapter")
    begun = recipe.replace(init_from=str(tmp_path / "adapter"), lora_targets="q")
    prepared(begun, tmp_path)
    params = begun.open(None).load(jax.jit(begun.task(Compute()).init)(jax.random.key(0)))
    np.testing.assert_array_equal(params["trainable"]["blocks/query/kernel"]["a"], learned["blocks/query/kernel"]["a"])
    assert begun.hints.begins_with == "--pretrained, --init-from"


OTHER_ADAPTERS = {
    "rank": ({"rank": 8}, "q", "give --lora-rank 8$"),
    "scale": ({"alpha": 3}, "q", r"by 0\.75, and this run's by 2: give --lora-alpha 3"),
    "rslora": ({"rslora": True}, "q", "by 4, and this run's by 2: give --lora-alpha 8 --rslora"),
    "kernels": ({}, "q,v", "give --lora-targets q$"),
}


@pytest.mark.parametrize("name", OTHER_ADAPTERS)
def test_an_adapter_of_other_settings_is_refused(recipe, tmp_path, name):
    settings, targets, words = OTHER_ADAPTERS[name]
    adapter(tmp_path / "adapter", **settings)
    with pytest.raises(DataError, match=words):
        prepared(recipe.replace(init_from=str(tmp_path / "adapter"), lora_targets=targets), tmp_path)


def test_an_adapter_of_another_model_of_the_hub_is_refused_though_it_would_fit(recipe, tmp_path, monkeypatch):
    adapter(tmp_path / "adapter", base="org/Base")
    monkeypatch.setattr(
        "plimsoll.models.pretrained.find._downloaded", lambda name, files: Path(recipe.model.pretrained)
    )
    begun = recipe.replace(pretrained="org/other", init_from=str(tmp_path / "adapter"), lora_targets="q")
    with pytest.raises(DataError, match="belongs to org/Base, and --pretrained is org/other"):
        begun.model.check(begun.spec, print)
    begun.replace(pretrained="Org/base").model.check(begun.spec, print)  # the hub tells no cases apart


def test_messages_without_a_chat_template_are_refused_and_one_can_be_named(own, tmp_path):
    usual = prepared(own, tmp_path).facts
    write_tokenizer(tmp_path / "model", None)
    with pytest.raises(DataError, match=r"no chat template .*--chat-template"):
        prepared(own, tmp_path)
    (tmp_path / "own.jinja").write_text(ENDS)
    (tmp_path / "model").rename(tmp_path / "tokenizer")  # a named one is used whatever the model's folder is called
    named = own.replace(pretrained=str(tmp_path / "tokenizer"), chat_template=str(tmp_path / "own.jinja"))
    facts = prepared(named, tmp_path).facts
    assert facts["conversations"]
    assert facts["packing"]["tokens"] < usual["packing"]["tokens"]


def test_the_batches_of_training_and_validation_are_rows_of_whole_documents(recipe, tmp_path):
    held_out = write_records(tmp_path / "held.jsonl", [{"messages": turns("a?", "b")}] * 3)
    recipe = recipe.replace(validation_id=str(held_out))
    run = tmp_path / "run"
    made = prepared(recipe, tmp_path)
    assert made.steps == 6
    assert made.facts["packing"]["documents"] == 60  # none is held out of them
    source = recipe.open(run).source(prefetch=0)
    batch = next(source)
    spec = recipe.spec.batch(4)
    assert {name: (array.shape, str(array.dtype)) for name, array in batch.items()} == spec
    assert 0 < batch["learned"].sum() < batch["learned"].size / 2  # the assistant's alone
    (held,) = recipe.open(run).validation(examples=2)
    assert held["segments"].max() == 3


def test_a_run_reads_its_batches_without_a_tokenizer_unless_the_cache_lost_them(recipe, tmp_path, monkeypatch):
    """It would count in the memory of the process that trains, for 31 MiB at 49,152 tokens."""
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))  # other tests read what is in that of all
    path = write_records(tmp_path / "held.jsonl", [{"messages": turns("a?", "b")}] * 3)
    recipe = recipe.replace(validation_id=str(path))
    prepared(recipe, tmp_path)
    run = tmp_path / "run"
    read, load = [], data.tokenizer_of_run
    monkeypatch.setattr(data, "tokenizer_of_run", lambda folder, day: read.append(folder) or load(folder, day))

    def batches():
        both = [next(recipe.open(run).source(prefetch=0)), *recipe.open(run).validation(examples=2)]
        return [array.tolist() for batch in both for array in batch.values()]

    before = batches()
    assert not read
    shutil.rmtree(cache.cache_folder() / "tokens")
    assert batches() == before
    assert read


@pytest.mark.parametrize("field", ["dataset_id", "validation_id"])
def test_records_that_changed_are_refused_where_the_cache_lost_the_old_ones(recipe, tmp_path, field, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))  # other tests read what is in that of all
    path = write_records(tmp_path / "rows.jsonl", [{"messages": turns("a?", f"b {i}")} for i in range(100)])
    recipe = recipe.replace(**{field: str(path)})
    made = prepared(recipe, tmp_path)
    run = tmp_path / "run"
    write_records(path, [{"messages": turns("a?", "c")}] * 3)
    with pytest.raises(DataError, match=r"rows.jsonl has .* fewer bytes"):
        recipe.open(None).require_same(made, training=True)
    list(recipe.open(run).validation(examples=2))  # the cache has what the run began with
    shutil.rmtree(cache.cache_folder() / "tokens")
    with pytest.raises(DataError, match=r"rows.jsonl has .* fewer bytes"):
        list(recipe.open(run).validation(examples=2))


def test_another_template_is_refused_to_go_on_with_and_another_model_to_be_evaluated_too(own, tmp_path):
    made = prepared(own, tmp_path)
    assert own.open(None).require_same(made, training=True) is None
    write_tokenizer(tmp_path / "model", ENDS)
    with pytest.raises(DataError, match="tokenizer_sha256 was"):
        own.open(None).require_same(made, training=True)
    assert own.open(None).require_same(made, training=False) is None  # what was learned can still be evaluated
    path = tmp_path / "model/model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"] + 1}, path)
    with pytest.raises(DataError, match=r"not the data of this run any more: model.safetensors has "):
        own.open(None).require_same(made, training=False)


@pytest.mark.parametrize("epochs", [1, 7, 2.5])
def test_steps_are_those_of_the_epochs_though_each_packs_its_rows_anew(recipe, tmp_path, monkeypatch, epochs):
    monkeypatch.setattr(PackedRows, "rows", lambda _, epoch: 40 - 3 * epoch)  # as a file of many documents does
    found = prepared(recipe.replace(steps=None, epochs=epochs, batch_size=2), tmp_path)
    assert found.steps == int(found.steps_per_epoch * epochs + 1e-9)
    assert epochs_over(found.steps, found.steps_per_epoch, found.steps) == int(epochs)
