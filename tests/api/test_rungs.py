"""A ladder pulls one lever at a time, in the order of the classes, and says why a recipe has no such rung."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.api.planning.pins import require_supported
from plimsoll.api.rungs import FIRST, rungs
from plimsoll.errors import RecipeError
from plimsoll.levers import registry
from plimsoll.levers.lever import CLASSES
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Plan
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registry import preset

STORIES = preset("stories").replace(seq_len=256, batch_size=16)


class Images(Recipe):
    """Of which nobody says how many rows of logits one has."""

    chunks = ()

    @property
    def hints(self):
        return replace(super().hints, loss_rows=None, loss_chunks=self.chunks)


class Patches(Images):
    chunks = (128, 32)


def test_every_lever_of_a_plan_has_its_place():
    assert set(registry.plain()) == set(LEVERS) - {"micro_batch"}
    assert {lever.name for lever in LEVERS.values() if not lever.rungs} == {"fsdp", "unroll", "deterministic"}


def test_a_rung_changes_the_one_lever_it_names_and_its_class_is_that_of_its_plan():
    ladder, _ = rungs(STORIES)
    assert set(ladder[0].pins) == set(LEVERS)
    for below, rung in itertools.pairwise(ladder):
        changed = [lever for lever in LEVERS if rung.pins[lever] != below.pins[lever]]
        assert changed == [rung.lever]
        assert Plan.from_dict({"chip": "cpu", "accumulation": 1, **rung.pins}).numerics == rung.numerics
    places = [CLASSES.index(lever.touches) for lever, _ in registry.rungs()]
    assert places == sorted(places), "numbers are left alone first"


def test_the_rungs_of_a_language_model():
    ladder, left_out = rungs(STORIES)
    levers = {rung.name: rung.pins.get(rung.lever) for rung in ladder}
    assert levers == {
        FIRST.name: None, "save": False, "micro-batch": 4, "loss-chunk": 256, "micro-batch-1": 1, "remat": "block",
        "prefetch": 0, "bfloat16": "bfloat16", "activations-16": "bfloat16", "optimizer-8": 8, "weights-24": 24,
        "weights-16": 16,
    }  # fmt: skip
    small = ["attention", "layerwise", "offload", "ema-16"]
    unused = ["mlp-chunk", "frozen-16", "frozen-8", "frozen-4", "embedding-8", "embedding-4"]
    assert {*left_out} == {*small, *unused}
    assert "16 at once, and there are micro-batches of 1 here" in left_out["layerwise"]
    assert "--offload optimizer --chip NAME" in left_out["offload"]
    assert {left_out[name] for name in unused} == {"the recipe's loss makes no use of this lever"}
    assert rungs(STORIES.replace(ema_decay=0.999))[0][10].pins["ema_bits"] == 16


def test_a_chunk_is_taken_only_where_a_micro_batch_is_larger():
    ladder, left_out = rungs(STORIES.replace(seq_len=64), chosen=["micro-batch", "loss-chunk"])
    assert [rung.name for rung in ladder] == [FIRST.name, "micro-batch"]
    assert left_out == {"loss-chunk": "a micro-batch has 256 tokens, no more than its smallest chunk of 256"}
    ladder, left_out = rungs(STORIES.replace(seq_len=65), chosen=["micro-batch", "loss-chunk"])
    assert [rung.pins["loss_chunk"] for rung in ladder] == [0, 0, 256]


def test_chosen_rungs_stand_on_the_first_in_the_ladders_order():
    ladder, left_out = rungs(STORIES, chosen=["remat", "save"])
    assert [rung.name for rung in ladder] == [FIRST.name, "save", "remat"]
    assert ladder[-1].pins == ladder[0].pins | {"async_save": False, "remat": "block"}
    assert left_out == {}
    with pytest.raises(RecipeError, match="--rungs ramat is no rung of this ladder: did you mean remat"):
        rungs(STORIES, chosen=["ramat"])


def test_an_update_layer_by_layer_stands_on_whole_batches_and_recomputed_blocks():
    ladder, left_out = rungs(STORIES, chosen=["remat", "layerwise"])
    assert (ladder[-1].name, ladder[-1].pins["layerwise"], left_out) == ("layerwise", 2, {})
    unclipped, _ = rungs(STORIES.replace(clip_norm=0), chosen=["remat", "layerwise"])
    assert unclipped[-1].pins["layerwise"] == 1
    assert rungs(STORIES, chosen=["layerwise"])[1] == {
        "layerwise": "it computes blocks again in the backward pass: add remat to --rungs"
    }


def test_a_loss_without_tokens_is_chunked_only_as_its_recipe_says():
    assert rungs(Images(**STORIES.parts))[1]["loss-chunk"] == "the recipe names no chunks worth trying (`loss_chunks`)"
    ladder, _ = rungs(Patches(**STORIES.parts), chosen=["loss-chunk"])
    assert ladder[-1].pins["loss_chunk"] == 32


def test_a_class_that_is_not_allowed_is_left_out():
    ladder, left_out = rungs(STORIES, numerics="exact")
    assert {rung.numerics for rung in ladder} == {"exact"}
    assert left_out["bfloat16"] == "--numerics exact does not allow it: it is mixed"


@given(batch=st.integers(1, 512))
def test_the_middle_micro_batch_divides_the_batch_and_lies_between_its_ends(batch):
    ladder, left_out = rungs(STORIES.replace(batch_size=batch), chosen=["micro-batch", "micro-batch-1"])
    micros = [rung.pins["micro_batch"] for rung in ladder]
    assert micros[0] == batch
    assert all(batch % micro == 0 for micro in micros)
    assert micros == sorted(set(micros), reverse=True)
    assert micros[-1] == 1
    prime = all(batch % n for n in range(2, batch))
    assert ("micro-batch" in left_out) == prime  # 1 too: neither has a divisor between


def test_a_recipe_may_have_a_ladder_of_its_own():
    """That of fine-tuning: its names in torchtune's order, adapters last, and nothing for a host on a CPU."""
    recipe = preset("finetune")
    ladder, left_out = rungs(recipe, platform="cuda")
    assert [rung.name for rung in ladder] == [
        "packed", "loss-chunk", "remat", "layerwise", "offload", "optimizer-8", "lora", "qlora",
    ]  # fmt: skip
    assert not left_out
    assert {rung.recipe.options["lora_rank"] for rung in ladder[:6]} == {0}
    assert all(rung.recipe == recipe for rung in ladder[6:])
    assert [rung.pins["frozen_bits"] for rung in ladder] == [32] * 6 + [16, 4]
    assert ladder[3].pins["layerwise"] == ladder[3].recipe.hints.layerwise == 2
    assert rungs(recipe.replace(clip_norm=0.0), platform="cuda")[0][3].pins["layerwise"] == 1
    for rung in ladder:
        require_supported(rung.recipe, rung.pins)
    ladder, left_out = rungs(recipe, chosen=["offload", "lora"])
    assert [rung.name for rung in ladder] == ["packed", "lora"]
    assert "on a CPU" in left_out["offload"]
    ladder, left_out = rungs(recipe, numerics="exact")
    assert [rung.name for rung in ladder] == ["loss-chunk", "remat", "layerwise"]
    assert {rung.pins["weight_bits"] for rung in ladder} == {32}
    assert left_out["packed"] == "--numerics exact does not allow it: it is compressed"
