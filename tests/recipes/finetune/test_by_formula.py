"""Temporaries by formula: beside what NVIDIA's compiler made of the same steps, and growing with their sizes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planned import Plan
from plimsoll.recipes.finetune.by_formula import temporaries
from plimsoll.recipes.finetune.recipe import Finetune
from plimsoll.units import GIB, MIB
from report_examples import PLANNED

PLAN = Plan.from_dict(
    {
        "chip": "rtx4090", "micro_batch": 1, "accumulation": 1, "remat": "offload", "mlp_chunk": 0, "loss_chunk": 2048,
        "precision": "bfloat16", "activations": "bfloat16", "frozen_bits": 4, "prefetch": 2, "async_save": True,
    }
)  # fmt: skip
COMPILED = [
    ("mistralai/mistral-7b-v0.3", {"lora_rank": 128, "seq_len": 512}, "block accumulation=4", 3017954788),
    ("qwen/qwen2.5-3b", {"seq_len": 256}, "micro_batch=2 loss_chunk=8192 frozen_bits=16", 469027948),
    ("qwen/qwen2.5-coder-7b", {"lora_rank": 32, "seq_len": 256}, "dots micro_batch=2 accumulation=4", 2230540308),
    ("deepseek-ai/deepseek-coder-6.7b-instruct", {"seq_len": 16384}, "block accumulation=2 mlp_chunk=512", 7401825508),
    ("qwen/qwen3-8b-base", {"seq_len": 256}, "none loss_chunk=0", 1534365756),
    ("meta-llama/llama-3.1-8b", {"seq_len": 16384}, "mlp_chunk=2048 attention_chunk=256", 1983159484),
    ("mistralai/mistral-7b-v0.3", {"lora_rank": 8, "seq_len": 512}, "frozen_bits=16", 536155972),
    ("google/gemma-2b", {"lora_rank": 32, "seq_len": 256, "lora_targets": "q,v"}, "frozen_bits=16", 394423980),
    ("meta-llama/llama-3.2-3b-instruct", {"lora_rank": 128, "seq_len": 256}, "", 978364340),
]
"""Model, fields, levers that differ from PLAN, and bytes beyond the state (jax 0.10.2; notes, "The answer by
formula")."""


def plan_of(words):
    levers = dict(word.split("=") if "=" in word else ("remat", word) for word in words.split())
    return PLAN.with_levers(
        **{name: value if name == "remat" else int(value) for name, value in levers.items() if name != "accumulation"}
        | {"accumulation": int(levers.get("accumulation", 1))}
    )


@pytest.mark.parametrize(("model", "fields", "levers", "compiled"), COMPILED)
def test_golden_compiled_bytes_lie_inside_and_near_the_likeliest(model, fields, levers, compiled):
    plan = plan_of(levers)
    recipe = Finetune(pretrained=model, batch_size=plan.effective_batch, **fields)
    low, likely, high = temporaries(recipe, plan)
    assert low <= compiled <= high
    assert likely == pytest.approx(compiled, rel=0.12)


SIZES = st.sampled_from([256, 1024, 4096, 16_384])


@given(SIZES, st.sampled_from([8, 32, 128]), st.sampled_from(["offload", "block", "dots", "none"]))
def test_bytes_grow_with_length_rank_and_batch_and_bound_one_another(length, rank, remat):
    recipe, plan = Finetune(seq_len=1024, lora_rank=16), PLAN.with_levers(remat=remat)
    recipe = replace(recipe, pretrained="Qwen/Qwen2.5-7B", seq_len=length, lora_rank=rank)
    low, likely, high = temporaries(recipe, plan)
    assert 0 <= low < likely < high
    for larger, other in (
        (replace(recipe, seq_len=2 * length), plan),
        (replace(recipe, lora_rank=2 * rank), plan),
        (recipe, plan.with_levers(micro_batch=2)),
        (recipe, plan.with_levers(accumulation=2)),
    ):
        assert temporaries(larger, other)[2] > high


@given(SIZES)
def test_levers_that_save_bytes_save_them_by_formula_too(length):
    recipe = Finetune(pretrained="google/gemma-2-9b", seq_len=min(length, 8192))
    order = [{"remat": "none"}, {"remat": "dots"}, {"remat": "block"}, {"remat": "offload"}]
    sizes = [temporaries(recipe, PLAN.with_levers(loss_chunk=0, **levers))[1] for levers in order]
    assert sizes == sorted(sizes, reverse=True)
    assert temporaries(recipe, PLAN)[1] <= sizes[-1]
    assert temporaries(recipe, PLAN.with_levers(mlp_chunk=512))[1] <= temporaries(recipe, PLAN)[1]


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
