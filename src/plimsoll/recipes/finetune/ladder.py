"""Configurations of `plimsoll ladder finetune`: the whole model is trained, then adapters, then adapters beside NF4.

They follow the table that torchtune publishes for Llama-3.2-3B ("Memory Optimization Overview"), for comparison.
In the first configuration, weights and moments are bfloat16, and values between matrix products are recomputed, as in
torchtune's compiled step.
"""

from typing import Any

from plimsoll.recipes.parts import OwnRung

BEGINS: dict[str, Any] = {
    "precision": "bfloat16", "activations": "bfloat16", "weight_bits": 16, "optimizer_bits": 16, "remat": "dots",
}  # fmt: skip
LOSS_CHUNK = 512


def finetune_rungs(whole: dict[str, Any], *, rank: int, tokens: int, needs_norm: bool) -> tuple[OwnRung, ...]:
    """Returns the configurations in order; none with adapters if `rank` is 0.

    Args:
        whole: Fields of the recipe that train the whole model.
        rank: Rank of the adapters; 0 for none.
        tokens: Tokens of a step.
        needs_norm: True if an update needs the norm of the whole gradient.
    """
    chunk = min(LOSS_CHUNK, tokens // 2)
    passes = 2 if needs_norm else 1
    rungs = (
        OwnRung("packed", "the whole model, weights and moments in bfloat16; products are kept", BEGINS, whole),
        OwnRung("loss-chunk", f"the logits of {chunk:,} tokens at a time", {"loss_chunk": chunk}, whole),
        OwnRung("remat", "blocks are computed again in the backward pass", {"remat": "block"}, whole),
        OwnRung("layerwise", f"layers are updated one by one; backward passes: {passes}", {"layerwise": passes}, whole),
        OwnRung("offload", "the inputs of blocks lie on the host", {"remat": "offload"}, whole, host=True),
        OwnRung("optimizer-8", "moments in 8 bits", {"optimizer_bits": 8}, whole),
    )
    if not rank:
        return rungs
    beside = {"layerwise": 0, "optimizer_bits": 16, "frozen_bits": 16}
    return (
        *rungs,
        OwnRung("lora", f"adapters of rank {rank} beside a model in bfloat16", beside, {}),
        OwnRung("qlora", "the model in NF4", {"frozen_bits": 4}, {}),
    )
