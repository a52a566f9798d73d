"""Fine-tuning that others have published, beside our plans for the same: bytes by the card's own compiler.

    python benchmarks/finetune_published.py [--only t4 torchtune litgpt] [--out bench-out/finetune_published.json]

Nothing runs and no weight is read: every step is compiled for the card, without one (`plimsoll chips --install cuda`).

* `t4`: PEFT on a T4 with 14,000 MiB (NF4, r 16 on q,k,v,o, 1,024 long) runs out of memory at these batches. Each is
  planned twice, as the search likes it, and with the whole batch at once, as it was tried.
* `torchtune`: its table for Llama-3.2-3B (A100, batch 2 packed x 4,096), cumulative. Ours is `ladder finetune --chip`.
* `litgpt`: its table for an A10G (512 long, r 32 on q and v). The published peak is our budget: the plan is the fastest
  that the search finds under it, for an rtx3090, whose compute capability is the A10G's; what of its rows cannot be had
  under the published peak is planned for the whole card.

Published peaks are PyTorch's, of tensors: ceilings. Beside each stand bytes that need no compiler: what is learned and
its moments in bfloat16, as those runs keep them, by the published configuration (`implied`), and of our step's own
state in the same form (`ours`): equal, but for norms, which we keep in float32. Prints tables, writes one JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from text_vs_trainer import conditions
from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

GIB, GB, MIB = 2**30, 1e9, 2**20

T4 = {
    "meta-llama/Llama-3.2-1B": 6, "meta-llama/Llama-3.2-3B": 5, "Qwen/Qwen2.5-Coder-1.5B": 5, "Qwen/Qwen2.5-7B": 2,
}  # fmt: skip
"""Model to the batch at which PEFT runs out of memory."""
T4_MEMORY = "14000MiB"
TORCHTUNE = {
    "packed": 51.0, "loss-chunk": 42.9, "remat": 24.9, "layerwise": 23.1, "offload": 21.8, "optimizer-8": 17.6,
    "lora": 8.5, "qlora": 4.6,
}  # fmt: skip
"""Rung to published GiB. The first is that of the compiled step, which needed 60.0 before it was."""
TORCHTUNE_RECIPE: dict[str, Any] = {
    "pretrained": "meta-llama/Llama-3.2-3B", "seq_len": 4_096, "batch_size": 2, "lora_rank": 64,
    "lora_targets": "q,v,o,gate,up,down", "clip_norm": 0.0,
}  # fmt: skip
LITGPT: tuple[tuple[str, str, int, float], ...] = (
    ("meta-llama/Llama-3.2-1B", "lora", 1, 4.49),
    ("meta-llama/Llama-3.2-1B", "qlora", 2, 5.53),
    ("meta-llama/Llama-3.2-1B", "full", 4, 8.70),
    ("meta-llama/Llama-3.2-3B", "lora", 1, 9.67),
    ("meta-llama/Llama-3.2-3B", "qlora", 2, 10.30),
    ("meta-llama/Llama-3.2-3B", "full", 4, 16.51),
)
"""Model, method, micro-batch, published GB."""
LITGPT_CHIP = "rtx3090"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options.add_argument("--out", type=Path, default=Path("bench-out/finetune_published.json"))
    given = options.parse_args()
    result: dict[str, Any] = {"conditions": conditions(given)}
    for part in given.only:
        result[part] = PARTS[part]()
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1))


def t4() -> list[dict[str, Any]]:
    rows = []
    for model, batch in T4.items():
        recipe = finetune(pretrained=model, seq_len=1_024, batch_size=batch, lora_rank=16, lora_targets="q,k,v,o")
        for pins in ({}, {"micro_batch": batch}):
            planned = plan(recipe, chip="t4", memory=T4_MEMORY, pins={"frozen_bits": 4, **pins})
            row = {"model": model, "batch": batch, **pins, **described(planned), "static": static(recipe, 4)}
            rows.append(row)
            print(line(f"t4 {model} batch {batch}, {'at once' if pins else 'searched'}", row), flush=True)
    return rows


def torchtune() -> list[dict[str, Any]]:
    from plimsoll.api.ladder import predict

    recipe = finetune(**TORCHTUNE_RECIPE)
    ladder = predict(recipe, name="finetune", chip="a100-80")
    rows = []
    for rung in ladder["rungs"]:
        published = TORCHTUNE[rung["name"]]
        whole = rung["name"] not in ("lora", "qlora")
        of_rung = replace(recipe, lora_rank=0, lora_targets="all-linear") if whole else recipe
        bits = 32 if whole else rung["plan"]["frozen_bits"]
        row = rung | {"published_gib": published, "static": static(of_rung, bits)}
        rows.append(row)
        print(line(f"torchtune {rung['name']}: published {published} GiB", row), flush=True)
    return rows


def litgpt() -> list[dict[str, Any]]:
    from plimsoll.errors import BudgetError

    rows = []
    for model, method, batch, published in LITGPT:
        how = {"lora_rank": 0} if method == "full" else {"lora_rank": 32, "lora_targets": "q,v"}
        recipe = finetune(pretrained=model, seq_len=512, batch_size=batch, clip_norm=0.0, **how)
        bits = {"lora": 16, "qlora": 4, "full": 32}[method]
        pins = {"micro_batch": batch, **({"weight_bits": 16} if method == "full" else {"frozen_bits": bits})}
        try:
            planned, over = plan(recipe, chip=LITGPT_CHIP, memory=str(int(published * GB)), pins=pins), ""
        except BudgetError as refused:
            planned, over = plan(recipe, chip=LITGPT_CHIP, memory=None, pins=pins, smallest=True), str(refused)
        row = {"model": model, "method": method, "micro_batch": batch, "published_gb": published, "over": over}
        row |= described(planned) | {"static": static(recipe, bits)}
        rows.append(row)
        print(line(f"litgpt {model} {method} mb {batch}: published {published} GB", row), flush=True)
    return rows


PARTS = {"t4": t4, "torchtune": torchtune, "litgpt": litgpt}


def finetune(**fields: Any) -> Any:
    from plimsoll.recipes.finetune.recipe import Finetune

    return Finetune(**fields)


def plan(recipe: Any, **how: Any) -> Any:
    from plimsoll.api.plan import plan

    return plan(recipe, name="finetune", numerics="compressed", **how)


def described(planned: Any) -> dict[str, Any]:
    """Returns what a row keeps of a plan."""
    ledger = planned.ledger
    return {
        "plan": planned.plan.to_dict(),
        "parameters": planned.parameters,
        "predicted_peak_bytes": ledger.predicted_peak_bytes,
        "phase": ledger.phase,
        "source": ledger.source,
        "components": dict(ledger.predicted),
        "host_bytes": None if ledger.host is None else ledger.host.predicted_peak_bytes,
        "step_seconds": planned.step_seconds,
    }


def static(recipe: Any, frozen_bits: int) -> dict[str, Any]:
    """Returns bytes of the state where what is learned and its moments are in bfloat16, from shapes alone.

    In a process of its own: JAX is imported there, and never beside a compiler.
    """
    from plimsoll.recipes.saved import to_dict

    command = [sys.executable, "-c", STATIC, json.dumps(to_dict(recipe)), str(frozen_bits)]
    environment = {"PYTHONPATH": str(SOURCE), "JAX_PLATFORMS": "cpu", "PATH": ""}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


STATIC = """
import json, sys
import jax, jax.numpy as jnp
from plimsoll.planned import Plan
from plimsoll.recipes.saved import from_dict
from plimsoll.training.step import make_init
from plimsoll.types import NORMS_AND_BIASES, Storage

recipe, bits = from_dict(json.loads(sys.argv[1])), int(sys.argv[2])
plan = Plan(chip="h100", micro_batch=1, accumulation=1, prefetch=1, async_save=False, remat="none", loss_chunk=0,
            precision="bfloat16", optimizer_bits=16, weight_bits=16, frozen_bits=bits)
init = make_init(recipe.task(plan.compute("gpu")), recipe.update_rule(100, plan.storage), frozen_bits=bits)
state = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
size = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
learned = state["params"]["trainable"]
norms = sum(leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(learned)
            if {str(getattr(entry, "key", entry)) for entry in path} & NORMS_AND_BIASES)
count = sum(leaf.size for leaf in jax.tree.leaves(learned))
moments = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state["optimizer"]) if leaf.size > 1)
print(json.dumps({
    "learned": count, "norms": norms, "frozen_bytes": size(state["params"].get("frozen", {})),
    "implied_bytes": 6 * count, "ours_bytes": size(learned) + moments, "norms_beyond_bytes": 6 * norms,
}))
"""


def line(what: str, row: Mapping[str, Any]) -> str:
    """Returns a row as it is printed."""
    if row["predicted_peak_bytes"] is None:
        return f"{what}: failed, {row['why_not']}"
    kept = row["static"]
    levers = {name: value for name, value in row["plan"].items() if name in SHOWN and value not in (0, "none", 32)}
    words = [
        f"{row['predicted_peak_bytes'] / GIB:.2f} GiB ({row['predicted_peak_bytes'] / GB:.2f} GB, {row['source']})",
        f"{row['step_seconds']:.2f} s a step",
        f"learned {kept['learned']:,}, implied {kept['implied_bytes']:,} B,"
        f" ours {kept['ours_bytes'] - kept['norms_beyond_bytes']:,} + {kept['norms_beyond_bytes']:,} B of norms",
        " ".join(f"{name}={value}" for name, value in levers.items()),
        *(["over the published peak"] if row.get("over") else []),
    ]
    return f"{what}\n    " + "; ".join(words)


SHOWN = (
    "micro_batch", "accumulation", "remat", "loss_chunk", "attention_chunk", "mlp_chunk", "layerwise", "precision",
    "activations", "optimizer_bits", "weight_bits", "frozen_bits", "offload",
)  # fmt: skip


if __name__ == "__main__":
    main()
