"""`plimsoll.finetune` in Python: what it makes is planned, trained, continued and exported."""

import jax
import numpy as np
import pytest

import plimsoll
from chat_files import turns, write_records
from plimsoll.api.keywords import read_request
from plimsoll.models.pretrained.adapters import read_adapter
from plimsoll.recipes.saved import from_dict, to_dict
from plimsoll.training.checkpoints import load_arrays
from small_runs import newest_checkpoint
from tuning_files import SHAPE, write_chats, write_model

PINS = {
    "micro_batch": 4, "remat": "none", "loss_chunk": 0, "mlp_chunk": 0, "attention_chunk": 0, "precision": "float32",
    "prefetch": 0, "async_save": False,
}  # fmt: skip
"""So that little is compiled."""


def tune(folder, **options):
    if not (folder / "model").exists():
        write_model(folder / "model")
        write_chats(folder / "chats.jsonl", 300)
    given = {"seq_len": 128, "batch_size": 4, "steps": 2, "warmup_steps": 1, "lora_rank": 4, "frozen_bits": 16}
    how = {"pins": PINS, "run": folder / "run"} | given | options
    return plimsoll.finetune(folder / "model", data=folder / "chats.jsonl", **how)


def test_its_options_are_those_of_the_recipe():
    with pytest.raises(plimsoll.RecipeError, match=r"finetune has no option lora_rnak: did you mean lora_rank\?$"):
        plimsoll.finetune("org/name", lora_rnak=8)
    with pytest.raises(plimsoll.RecipeError, match="--lora-rank 0 trains the whole model, and --lora-targets are for"):
        plimsoll.finetune("org/name", lora_rank=0, lora_targets="q")


def test_its_levers_go_with_it_and_another_value_of_the_call_comes_before(tmp_path):
    made = tune(tmp_path)
    request = read_request(made, verb="plan", pins={"micro_batch": 2})
    assert request.recipe == made.recipe == from_dict(to_dict(made.recipe))
    assert request.pins == {**PINS, "frozen_bits": 16, "micro_batch": 2}
    assert next(plimsoll.loader(made))["input_ids"].shape == (4, 128)


def test_a_folder_of_batches_is_made_again_where_the_records_changed(tmp_path):
    made = tune(tmp_path)
    before = next(plimsoll.loader(made, tmp_path / "rows"))["input_ids"]
    assert (next(plimsoll.loader(made, tmp_path / "rows"))["input_ids"] == before).all()
    write_records(tmp_path / "chats.jsonl", [{"messages": turns("a?", f"b {i}")} for i in range(60)])
    assert (next(plimsoll.loader(made, tmp_path / "rows"))["input_ids"] != before).any()


@pytest.mark.slow
def test_it_is_planned_trained_continued_and_exported(tmp_path):
    made = tune(tmp_path)
    found = plimsoll.plan(made, memory="2GiB")
    assert (found.plan.lever("frozen_bits"), found.plan.micro_batch, found.plan.lever("remat")) == (16, 4, "none")
    how = {"memory": "2GiB", "quiet": True, "say": lambda text: None}
    made.train(max_steps=1, **how)
    run = made.train(**how)
    assert run.path == tmp_path / "run"
    answer = made.export(tmp_path / "adapter", merged=tmp_path / "whole")
    assert (tmp_path / "whole/model.safetensors").is_file()
    learned, settings = read_adapter(tmp_path / "adapter", SHAPE, rank=4)
    assert (settings.base, answer["step"]) == (str(tmp_path / "model"), 2)
    saved = load_arrays(
        newest_checkpoint(run.path), {"params": {"trainable": jax.eval_shape(lambda: learned)}}, only="['params']"
    )
    jax.tree.map(np.testing.assert_array_equal, learned, saved["params"]["trainable"])


def test_what_was_not_trained_is_not_exported(tmp_path):
    with pytest.raises(plimsoll.RunError, match=r"recipe\.json"):
        tune(tmp_path).export("adapter/")
