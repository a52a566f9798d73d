"""Bytes of the state by arithmetic: every number is that of the real state's shapes."""

from dataclasses import asdict, replace

import pytest

from plimsoll.engine.compile import LocalCompiler
from plimsoll.recipes.finetune.recipe import Finetune
from plimsoll.recipes.finetune.state import learned, static_bytes
from plimsoll.recipes.saved import to_dict
from plimsoll.types import Storage

STORAGES = (
    Storage(),
    Storage(frozen_bits=4),
    Storage(frozen_bits=8, optimizer_bits=8, ema_bits=16),
    Storage(frozen_bits=16, weight_bits=16),
    Storage(optimizer_bits=8, weight_bits=24, embedding_bits=8),
    Storage(frozen_bits=4, embedding_bits=4),
)
"""Every value of every field in one of them."""
RECIPES = {
    "all kernels, tied": Finetune(seq_len=512),
    "biases, an output layer of its own, an average": Finetune(
        pretrained="Qwen/Qwen2.5-7B", lora_rank=3, lora_targets="q,v", ema_decay=0.9
    ),
    "norms on both sides": Finetune(pretrained="google/gemma-2-2b", lora_rank=64, lora_targets="blocks/down/kernel"),
    "norms of heads, learned whole": Finetune(pretrained="Qwen/Qwen3-0.6B", lora_rank=0, ema_decay=0.9, batch_size=3),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_bytes_of_a_state_are_those_of_its_shapes(recipe):
    compiler = LocalCompiler({"recipe": to_dict(recipe), "steps": 10})
    parameters = compiler.static(1, Storage()).parameters
    for storage in STORAGES:
        real = asdict(compiler.static(1, storage))
        real |= {"parameters": parameters}  # of packed leaves it counts codes
        found = static_bytes(recipe, storage)
        assert found == {name: real[name] for name in found}, storage
        assert real.keys() - found.keys() == {"carry_bytes", "imported_bytes"}


def test_adapters_are_as_many_as_the_rank_times_the_sides_of_their_kernels():
    recipe = replace(RECIPES["all kernels, tied"], lora_rank=8, lora_targets="q,up")
    width, layers, inner = recipe.shape.width, recipe.shape.layers, recipe.shape.inner
    assert learned(recipe) == {
        "blocks/query/kernel/a": (layers, width, 8),
        "blocks/query/kernel/b": (layers, 8, width),
        "blocks/up/kernel/a": (layers, width, 8),
        "blocks/up/kernel/b": (layers, 8, inner),
    }
