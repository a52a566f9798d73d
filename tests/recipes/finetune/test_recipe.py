"""The recipe of fine-tuning: its options, what it takes from its files, and what it refuses before planning."""

import json
import shutil
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from chat_files import turns, write_records, write_tokenizer
from plimsoll import cache
from plimsoll.data.chat.rows import PackedRows
from plimsoll.errors import DataError, RecipeError
from plimsoll.models.pretrained.adapters import AdapterSettings, write_adapter
from plimsoll.recipes.finetune import data
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import from_dict, to_dict
from plimsoll.training.schedule import epochs_over
from plimsoll.types import Compute
from pretrained_folders import drawn
from tuning_files import SHAPE, small, write_model


@pytest.fixture
def recipe(tmp_path):
    return small(tmp_path)


def prepared(recipe, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    return recipe.prepare(folder, lambda _: None)


def test_by_default_adapters_beside_every_kernel_of_a_small_published_model():
    recipe = preset("finetune")
    assert (recipe.lora_rank, recipe.adapter.scale, recipe.lora_targets) == (16, 2, "all-linear")
    assert (recipe.seq_len, recipe.shape.width) == (2048, 576)  # without a download
    assert recipe.frozen_is_given
    assert "frozen_bits" in recipe.supported_levers
    whole = replace(recipe, lora_rank=0)
    assert not whole.frozen_is_given
    assert "frozen_bits" not in whole.supported_levers


def test_adapters_are_learned_beside_the_kernels_that_are_named(recipe):
    task = replace(recipe, lora_targets="q,v").task(Compute())
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert params["trainable"].keys() == {"blocks/query/kernel", "blocks/value/kernel"}
    assert params["trainable"]["blocks/query/kernel"]["a"].shape == (2, 32, 4)


def test_training_begins_with_the_published_weights_and_adapters_that_add_nothing(recipe):
    params = recipe.begin(recipe.task(Compute()).init(jax.random.key(0)))
    published = drawn(SHAPE)["model.layers.1.mlp.up_proj.weight"]
    np.testing.assert_array_equal(params["frozen"]["base"]["blocks"]["up"]["kernel"][1], published.T)
    assert not any(pair["b"].any() for pair in params["trainable"].values())
    whole = replace(recipe, lora_rank=0)
    params = whole.begin(whole.task(Compute()).init(jax.random.key(0)))
    np.testing.assert_array_equal(params["trainable"]["blocks"]["up"]["kernel"][1], published.T)


def test_it_is_saved_and_read_back(recipe):
    assert from_dict(to_dict(recipe)) == recipe


@pytest.mark.parametrize("name", ["pretrained", "dataset_id", "validation_id", "chat_template", "init_from"])
def test_a_file_is_named_for_whoever_continues_from_elsewhere(recipe, tmp_path, monkeypatch, name):
    (tmp_path / "here").touch()
    monkeypatch.chdir(tmp_path)
    assert getattr(replace(recipe, **{name: "here"}), name) == str(tmp_path / "here")


REFUSED = {
    "no model": ({"pretrained": " "}, r"--pretrained is empty: name a model's folder"),
    "a short row": ({"seq_len": 1}, r"--seq-len must be 2 or more, got 1"),
    "no examples": ({"max_examples": 0}, r"--max-examples must be 1 or more, got 0"),
    "rank": ({"lora_rank": -1}, r"--lora-rank must be 0 \(the whole model is learned\) or more, got -1"),
    "rank 0 with targets": (
        {"lora_rank": 0, "lora_targets": "q,v"},
        r"--lora-rank 0 learns the whole model, and --lora-targets are of adapters: leave them out, or give a rank",
    ),
    "rank 0 with more": ({"lora_rank": 0, "rslora": True, "init_from": "a"}, "and --rslora, --init-from are of adapt"),
    "dropout": ({"lora_dropout": 1.0}, r"--lora-dropout must be from 0 to below 1, got 1"),
    "scale": ({"lora_alpha": 0.0}, r"--lora-alpha must be above 0 and finite, got 0"),
    "no scale": ({"lora_alpha": float("nan")}, r"--lora-alpha must be above 0 and finite, got nan"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_mean_nothing_are_refused(recipe, name):
    changed, words = REFUSED[name]
    with pytest.raises(RecipeError, match=words):
        replace(recipe, **changed)


def test_rows_longer_than_the_model_reads_are_refused(recipe):
    with pytest.raises(RecipeError, match=r"--seq-len 257 is more than the 256 tokens that .*model was made to read"):
        _ = replace(recipe, seq_len=257).shape


TARGETS = {
    "nothing": ("blocks/quary", r"no leaf matches blocks/quary.*The leaves are .*blocks/query/kernel"),
    "everything": (".*", r"\.\* matches every leaf, norms and embeddings too, .*or all-linear, or a narrower pattern"),
    "a norm": (".*norm/scale", r"LoRA is for kernels, and norm is of shape|LoRA of rank 4 is more than .*norm/scale"),
    "no pattern": ("q(", r"--lora-targets q\( is neither q, k, v, o, gate, up, down nor all-linear, and no regular"),
    "no name": ("", r"--lora-targets names nothing: give some of q,k,v,o,gate,up,down, or all-linear"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_that_name_no_kernels_are_refused_before_anything_is_planned(recipe, name):
    targets, words = TARGETS[name]
    with pytest.raises(RecipeError, match=words):
        _ = replace(recipe, lora_targets=targets).shape


def test_a_data_set_that_is_missing_is_asked_for(recipe, tmp_path):
    with pytest.raises(RecipeError, match=r"--dataset-id is missing: name a \.jsonl or \.parquet file of records with"):
        prepared(replace(recipe, dataset_id=""), tmp_path)


def test_fewer_rows_than_a_batch_are_refused(recipe, tmp_path):
    with pytest.raises(DataError, match=r"fills \d+ rows of 128 tokens, fewer than the 400 of one batch: lower --bat"):
        prepared(replace(recipe, batch_size=400), tmp_path)


def test_a_tokenizer_of_more_ids_than_the_model_has_is_refused(tmp_path):
    recipe = small(tmp_path)
    write_model(tmp_path / "narrow", replace(SHAPE, vocab=100))
    with pytest.raises(DataError, match=r"narrow has 268 ids, and the model 100 rows for them: copy the tokenizer"):
        prepared(replace(recipe, pretrained=str(tmp_path / "narrow")), tmp_path)


def test_tensors_that_are_not_the_models_are_refused_by_name(recipe, tmp_path):
    path = tmp_path / "model/model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": np.zeros(7, np.float32)}, path)
    with pytest.raises(DataError, match=r"1 of another shape: model\.norm\.weight \(7\) instead of \(32\)"):
        prepared(recipe, tmp_path)


def adapter(folder, rank, **settings):
    random = np.random.default_rng(1)
    draw = lambda *sides: random.standard_normal((SHAPE.layers, *sides), np.float32)  # noqa: E731
    learned = {"blocks/query/kernel": {"a": draw(32, rank), "b": draw(rank, 32)}}
    write_adapter(folder, learned, AdapterSettings(**{"rank": rank, "alpha": 2 * rank} | settings))
    return learned


def test_an_adapter_is_begun_with(recipe, tmp_path):
    learned = adapter(tmp_path / "adapter", 4)
    begun = replace(recipe, init_from=str(tmp_path / "adapter"), lora_targets="q")
    prepared(begun, tmp_path)
    params = begun.begin(begun.task(Compute()).init(jax.random.key(0)))
    np.testing.assert_array_equal(params["trainable"]["blocks/query/kernel"]["a"], learned["blocks/query/kernel"]["a"])
    assert begun.begins_with == "--pretrained, --init-from"


OTHER_ADAPTERS = {
    "rank": ({"rank": 8}, r"is of rank 8, and --lora-rank is 4: give --lora-rank 8$"),
    "scale": ({"rank": 4, "alpha": 3}, r"is scaled by 0\.75, and this run's by 2: give --lora-alpha 3"),
    "rslora": ({"rank": 4, "rslora": True}, r"is scaled by 4, and this run's by 2: give --lora-alpha 8 --rslora"),
}


@pytest.mark.parametrize("name", OTHER_ADAPTERS)
def test_an_adapter_of_other_settings_is_refused(recipe, tmp_path, name):
    settings, words = OTHER_ADAPTERS[name]
    adapter(tmp_path / "adapter", **settings)
    with pytest.raises(DataError, match=words):
        prepared(replace(recipe, init_from=str(tmp_path / "adapter"), lora_targets="q"), tmp_path)


def test_an_adapter_of_another_model_of_the_hub_is_refused_though_it_would_fit(recipe, tmp_path, monkeypatch):
    adapter(tmp_path / "adapter", 4, base="org/Base")
    monkeypatch.setattr("plimsoll.models.pretrained.find._downloaded", lambda name, files: tmp_path / "model")
    begun = replace(recipe, pretrained="org/other", init_from=str(tmp_path / "adapter"), lora_targets="q")
    with pytest.raises(DataError, match=r"belongs to org/Base, and --pretrained is org/other: name its own model, or"):
        prepared(begun, tmp_path)
    prepared(replace(begun, pretrained="Org/base"), tmp_path)  # the hub tells no cases apart


def test_an_adapter_as_a_pickle_is_refused(recipe, tmp_path):
    adapter(tmp_path / "adapter", 4)
    (tmp_path / "adapter/adapter_model.safetensors").rename(tmp_path / "adapter/adapter_model.bin")
    with pytest.raises(DataError, match=r"Pickled adapters \(adapter_model.bin\) can run code and are never loaded"):
        prepared(replace(recipe, init_from=str(tmp_path / "adapter"), lora_targets="q"), tmp_path)


def test_an_adapter_beside_other_kernels_is_refused_with_those_it_is_beside(recipe, tmp_path):
    adapter(tmp_path / "adapter", 4)
    with pytest.raises(DataError, match=r"is beside q, and the kernels asked for are q,v: give --lora-targets q$"):
        prepared(replace(recipe, init_from=str(tmp_path / "adapter"), lora_targets="q,v"), tmp_path)


def test_messages_without_a_chat_template_are_refused_and_one_can_be_named(tmp_path):
    recipe = small(tmp_path)
    template = json.loads((tmp_path / "model/tokenizer_config.json").read_text())["chat_template"]
    write_tokenizer(tmp_path / "model", None)
    with pytest.raises(DataError, match=r"has messages, and the tokenizer .* has no chat template .*--chat-template F"):
        prepared(recipe, tmp_path)
    (tmp_path / "own.jinja").write_text(template)
    facts = prepared(replace(recipe, chat_template=str(tmp_path / "own.jinja")), tmp_path).facts
    assert facts["conversations"]


def test_a_named_template_is_used_whatever_the_models_folder_is_called(recipe, tmp_path):
    (tmp_path / "model").rename(tmp_path / "tokenizer")
    (tmp_path / "own.jinja").write_text("{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}")
    folder = str(tmp_path / "tokenizer")
    plain = prepared(replace(recipe, pretrained=folder), tmp_path).facts
    own = prepared(replace(recipe, pretrained=folder, chat_template=str(tmp_path / "own.jinja")), tmp_path).facts
    assert own["packing"]["tokens"] < plain["packing"]["tokens"]


RECORDS = {
    "text": ([{"text": f"once {'upon ' * (i % 7)}{i}"} for i in range(200)], False),
    "pairs": ([{"prompt": f"{i} and {i} is ", "completion": str(2 * i)} for i in range(200)], False),
    "turns": (
        [
            {"prompt": turns(f"{i} twice?"), "completion": [{"role": "assistant", "content": str(2 * i)}]}
            for i in range(99)
        ],
        True,
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_run_knows_whether_it_learned_conversations(recipe, tmp_path, name):
    rows, conversations = RECORDS[name]
    path = write_records(tmp_path / "rows.jsonl", rows)
    assert prepared(replace(recipe, dataset_id=str(path)), tmp_path).facts["conversations"] is conversations


def test_the_batches_of_training_and_validation_are_rows_of_whole_documents(recipe, tmp_path):
    own = write_records(tmp_path / "held.jsonl", [{"messages": turns("a?", "b")}] * 3)
    recipe = replace(recipe, validation_id=str(own))
    run = tmp_path / "run"
    made = prepared(recipe, tmp_path)
    assert made.steps == 6
    assert made.facts["packing"]["documents"] == 60  # none is held out of them
    source = recipe.source(run, prefetch=0)
    batch = next(source)
    spec = recipe.batch_spec(4)
    assert {name: (array.shape, str(array.dtype)) for name, array in batch.items()} == spec
    assert 0 < batch["counted"].sum() < batch["counted"].size / 2  # the assistant's alone
    (held,) = recipe.validation(run, examples=2)
    assert held["segments"].max() == 3


@pytest.mark.parametrize("own", [False, True])
def test_a_run_reads_its_batches_without_a_tokenizer_unless_the_cache_lost_them(recipe, tmp_path, own, monkeypatch):
    """It would count in the memory of the process that trains, for 31 MiB at 49,152 tokens."""
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))  # other tests read what is in that of all
    if own:
        path = write_records(tmp_path / "held.jsonl", [{"messages": turns("a?", "b")}] * 3)
        recipe = replace(recipe, validation_id=str(path))
    run = tmp_path / "run"
    made = prepared(recipe, tmp_path)
    (run / "data.json").write_text(json.dumps(asdict(made)))
    read, load = [], data.tokenizer_of_run
    monkeypatch.setattr(data, "tokenizer_of_run", lambda folder: read.append(folder) or load(folder))

    def batches():
        both = [next(recipe.source(run, prefetch=0)), *recipe.validation(run, examples=2)]
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
    recipe = replace(recipe, **{field: str(path)})
    run = tmp_path / "run"
    made = prepared(recipe, tmp_path)
    (run / "data.json").write_text(json.dumps(asdict(made)))
    write_records(path, [{"messages": turns("a?", "c")}] * 3)
    with pytest.raises(DataError, match=r"is not the data of this run any more: rows.jsonl has .* fewer bytes"):
        recipe.training_data_changed(made)
    list(recipe.validation(run, examples=2))  # the cache has what the run began with
    shutil.rmtree(cache.cache_folder() / "tokens")
    with pytest.raises(DataError, match=r"rows.jsonl has .* fewer bytes"):
        list(recipe.validation(run, examples=2))


def test_a_model_that_changed_since_the_run_began_is_refused(recipe, tmp_path):
    made = prepared(recipe, tmp_path)
    assert recipe.training_data_changed(made) is None
    path = tmp_path / "model/model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, path)
    with pytest.raises(DataError, match=r"is not the data of this run any more: model.safetensors has "):
        recipe.data_changed(made)


def test_other_records_or_another_template_are_refused_to_go_on_with(recipe, tmp_path):
    made = prepared(recipe, tmp_path)
    write_tokenizer(tmp_path / "model", "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}")
    with pytest.raises(DataError, match=r"is not the data of this run any more: tokenizer_sha256 was"):
        recipe.training_data_changed(made)
    assert recipe.data_changed(made) is None  # what was learned can still be evaluated


@pytest.mark.parametrize("epochs", [1, 2, 7, 2.5])
def test_steps_are_those_of_the_epochs_though_each_packs_its_rows_anew(recipe, tmp_path, monkeypatch, epochs):
    monkeypatch.setattr(PackedRows, "rows", lambda _, epoch: 40 - 3 * epoch)  # as a file of many documents does
    found = prepared(replace(recipe, steps=None, epochs=epochs, batch_size=2), tmp_path)
    assert found.steps == int(found.steps_per_epoch * epochs + 1e-9)
    assert epochs_over(found.steps, found.steps_per_epoch, found.steps) == int(epochs)
