"""What adapters save: their number and the optimizer's bytes are those of the real state, and the sentence has them."""

from dataclasses import replace

import pytest

from plimsoll.engine.compile import LocalCompiler
from plimsoll.recipes.finetune.lora_bytes import adapters, optimizer_bytes
from plimsoll.recipes.finetune.recipe import Finetune
from plimsoll.recipes.saved import to_dict
from plimsoll.types import Storage
from plimsoll.units import GIB, MIB
from report_examples import PLANNED

PLAN = PLANNED.plan.with_levers(micro_batch=1, accumulation=1, loss_chunk=2048)
STORAGES = (
    Storage(),
    Storage(optimizer_bits=8),
    Storage(weight_bits=16),
    Storage(optimizer_bits=8, weight_bits=24),
)
RECIPES = {
    "all kernels": Finetune(seq_len=512),
    "a rank of which no group is whole": Finetune(pretrained="Qwen/Qwen2.5-7B", lora_rank=3, lora_targets="q,v"),
    "one kernel": Finetune(pretrained="google/gemma-2-2b", lora_rank=64, lora_targets="blocks/down/kernel"),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_bytes_of_the_optimizer_are_those_of_its_shapes(recipe):
    compiler = LocalCompiler({"recipe": to_dict(recipe), "steps": 10})
    for storage in STORAGES:
        assert optimizer_bytes(recipe, storage) == compiler.static(1, storage).optimizer_bytes, storage


def test_adapters_are_as_many_as_the_rank_times_the_sides_of_their_kernels():
    recipe = replace(RECIPES["all kernels"], lora_rank=8, lora_targets="q,up")
    width, layers, inner = recipe.shape.width, recipe.shape.layers, recipe.shape.inner
    assert adapters(recipe) == {
        "blocks/query/kernel/a": (layers, width, 8),
        "blocks/query/kernel/b": (layers, 8, width),
        "blocks/up/kernel/a": (layers, width, 8),
        "blocks/up/kernel/b": (layers, 8, inner),
    }


def test_what_adapters_save_is_said_with_the_plans_own_numbers():
    recipe = Finetune(pretrained="meta-llama/Llama-3.1-8B", seq_len=8192, lora_rank=32, batch_size=2)
    ledger = replace(PLANNED.ledger, predicted={"parameters": 5 * GIB, "step temporaries": 10 * GIB})
    planned = replace(PLANNED, ledger=ledger, plan=PLAN.with_levers(micro_batch=2))
    ((name, text),) = recipe.remarks(planned)
    assert name == "what LoRA saves"
    # 8.03 B weights: 12 bytes of each; of adapters 83,886,080 weights, whose gradient is 320 MiB.
    assert text == (
        "gradient and state 89.7 GiB -> 960.0 MiB; activations stay: 9.7 GiB; without a chunked loss 7.8 GiB of logits"
    )
    whole = replace(planned, plan=PLAN.with_levers(loss_chunk=0))
    assert recipe.remarks(whole)[0][1].endswith("9.7 GiB, 3.9 GiB of logits among them")
    loading = replace(whole, ledger=replace(ledger, predicted={"process": 5 * GIB}, phase="load"))
    assert recipe.remarks(loading)[0][1].endswith("-> 960.0 MiB; activations stay, 3.9 GiB of logits among them")
    assert pytest.approx(89.7, abs=0.05) == 12 * 8_030_261_248 / GIB
    assert 960 * MIB == 12 * 83_886_080
    assert replace(recipe, lora_rank=0).remarks(planned) == ()
