"""Fine-tuning on cards that are not here: the tables of docs/finetune.md, bytes by the card's own compiler.

    python benchmarks/finetune_cards.py published [--only t4 torchtune litgpt]
    python benchmarks/finetune_cards.py context [--shape llama-3.1-8b] [--tokens 4096 8192 ...] [--variant plain host]

Nothing runs and no weight is read or made: every step is compiled for the card (`plimsoll chips --install cuda`).

`published`: what others have published, beside our plans for the same.

* `t4`: PEFT on a T4 with 14,000 MiB (NF4, r 16 on q,k,v,o, 1,024 long) runs out of memory at these batches. Each is
  planned twice, as the search likes it, and with the whole batch at once, as it was tried.
* `torchtune`: its table for Llama-3.2-3B (A100, batch 2 packed x 4,096), cumulative. Ours is `ladder finetune --chip`.
* `litgpt`: its table for an A10G (512 long, r 32 on q and v). The published peak is our budget: the plan is the fastest
  that the search finds under it, for an rtx3090, whose compute capability is the A10G's; what of its rows cannot be had
  under the published peak is planned for the whole card.

Published peaks are PyTorch's, of tensors: ceilings. Beside each stand bytes that need no compiler: what is learned and
its moments in bfloat16, as those runs keep them, by the published configuration (`implied`), and of our step's own
state in the same form (`ours`): equal, but for norms, which we keep in float32.

`context`: the longest context of QLoRA. The step is `PretrainedNextToken` in NF4 with its embedding and head in
bfloat16, LoRA of rank 32 beside all seven kernels in float32 with AdamW in float32, batch 1, activations in bfloat16,
block inputs in the host's memory, feed-forward part and loss in chunks; VARIANTS are other levers beside that. For
every length: the step's bytes on the device and in the host's memory, and its time as a plan estimates it. Per shape, a
line fitted to device bytes, the tokens that fit in 8, 24 and 80 GB by interpolation, and Unsloth's published line for
Llama-3.1-8B. GB is 10^9 bytes.

Writes bench-out/finetune_published.json or finetune_context.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from measuring import ROOT, conditions, write
from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

GIB, GB, MB = 2**30, 1e9, 1e6

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


LENGTHS = (4_096, 8_192, 16_384, 65_536, 131_072, 262_144)
CARDS = (8, 24, 80)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "host": {"offload": "optimizer"},
    "no-host": {"remat": "block"},
}
"""Name to the levers that differ."""
GOAL = 7.0, 0.072
"""GB, and MB a token, that no length from 4,096 on should lie above."""
RANK = 32
UNSLOTH = 7.37, 0.212
"""GB, and MB a token, that Unsloth's published lengths for Llama-3.1-8B lie on (rank 32 on all seven, 4 bits)."""
SHAPES = {
    "llama-3.1-8b": "meta-llama/llama-3.1-8b",
    "llama-3.2-3b": "meta-llama/llama-3.2-3b",
    "qwen2.5-7b": "qwen/qwen2.5-7b",
    "gemma-2-9b": "google/gemma-2-9b",
}
"""Name to the model of plimsoll's table whose shape it is."""
TARGETS = ["blocks/(query|key|value|out|gate|up|down)/kernel"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = options.add_subparsers(dest="kind", required=True)
    kinds.add_parser("published").add_argument("--only", nargs="*", choices=PUBLISHED, default=list(PUBLISHED))
    of_context = kinds.add_parser("context")
    of_context.add_argument("--shape", nargs="*", choices=SHAPES, default=["llama-3.1-8b"])
    of_context.add_argument("--tokens", type=int, nargs="*", default=LENGTHS)
    of_context.add_argument("--chip", default="h100", help="a GPU, as `plimsoll chips` calls it")
    of_context.add_argument("--variant", nargs="*", choices=VARIANTS, default=["plain", "host"])
    of_context.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.kind == "published":
        result: dict[str, Any] = {"conditions": conditions(given)} | {part: PUBLISHED[part]() for part in given.only}
        write(ROOT / "bench-out/finetune_published.json", result)
    elif given.here:
        for length in given.tokens:
            print(json.dumps(compiled_step(given.shape[0], given.variant[0], length, given.chip)), flush=True)
    else:
        context(given)


def context(given: argparse.Namespace) -> None:
    results: dict[str, dict[str, Any]] = {}
    for shape, variant in itertools.product(given.shape, given.variant):
        print(f"{shape}, {variant} {VARIANTS[variant] or ''}", flush=True)
        rows = []
        for row in from_child(shape, variant, given):
            rows.append(row)
            print(line(row), flush=True)
        results.setdefault(shape, {})[variant] = found = {"rows": rows, **fitted(rows)}
        print(summary(shape, found), flush=True)
    about = {"conditions": conditions(given), "chip": given.chip}
    write(ROOT / "bench-out/finetune_context.json", about | {"shapes": results})


def t4() -> list[dict[str, Any]]:
    rows = []
    for model, batch in T4.items():
        recipe = finetune(pretrained=model, seq_len=1_024, batch_size=batch, lora_rank=16, lora_targets="q,k,v,o")
        for pins in ({}, {"micro_batch": batch}):
            planned = plan(recipe, chip="t4", memory=T4_MEMORY, pins={"frozen_bits": 4, **pins})
            row = {"model": model, "batch": batch, **pins, **described(planned), "static": static(recipe, 4)}
            rows.append(row)
            print(published_line(f"t4 {model} batch {batch}, {'at once' if pins else 'searched'}", row), flush=True)
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
        print(published_line(f"torchtune {rung['name']}: published {published} GiB", row), flush=True)
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
        print(published_line(f"litgpt {model} {method} mb {batch}: published {published} GB", row), flush=True)
    return rows


PUBLISHED = {"t4": t4, "torchtune": torchtune, "litgpt": litgpt}


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


def published_line(what: str, row: Mapping[str, Any]) -> str:
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


def from_child(shape: str, variant: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row for each length, from one process in the chip's compile environment."""
    from plimsoll.processes import environment, toolchains

    python = toolchains.python_for("cuda")
    if python is None:
        sys.exit(f"{given.chip}: its compiler is {toolchains.missing('cuda')}: `plimsoll chips --install cuda`")
    variables = environment.for_processes("cuda") | {"PYTHONPATH": str(SOURCE)}
    variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    command = [str(python), __file__, "context", "--here", "--shape", shape, "--chip", given.chip]
    command += ["--variant", variant, "--tokens", *map(str, given.tokens)]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield from map(json.loads, child.stdout)
    if child.returncode:
        sys.exit(f"the compile process ended with code {child.returncode}")


def levers_of(length: int) -> dict[str, Any]:
    """Returns the levers of a context of so many tokens."""
    return {
        "remat": "offload", "precision": "bfloat16", "activations": "bfloat16", "frozen_bits": 4,
        "loss_chunk": 512, "mlp_chunk": min(2_048, length // 8),
    }  # fmt: skip


def compiled_step(shape_name: str, variant: str, length: int, chip_name: str) -> dict[str, Any]:
    """Compiles the step for one length and counts its bytes."""
    from plimsoll.engine.compile import analysis_of
    from plimsoll.planned import Plan
    from plimsoll.planner import topology
    from plimsoll.planner.chips import chip, rates
    from plimsoll.planner.flops import dots
    from plimsoll.planner.hlo.kernels import kernels
    from plimsoll.planner.hlo.module import Module
    from plimsoll.planner.kernel_seconds import kernel_seconds
    from plimsoll.planner.speed import step_seconds
    from plimsoll.planner.types import Static
    from plimsoll.training import program

    levers = levers_of(length) | VARIANTS[variant]
    plan = Plan(
        chip=chip_name, micro_batch=1, accumulation=1, prefetch=2, async_save=False, remat="none", loss_chunk=0,
        precision="float32",
    ).with_levers(**levers)  # fmt: skip
    task, rule = made(shape_name, plan)
    batch = dict.fromkeys(("input_ids", "labels"), ((1, length), "int32"))
    lowered, jaxpr = program.Functions(task, rule, plan, topology.devices(chip(chip_name))).step(batch)
    started = time.monotonic()
    compiled: Any = program.compiled(lowered, platform="gpu", deterministic=plan.deterministic)
    took = time.monotonic() - started
    stats = compiled.memory_analysis()
    (module,) = compiled.runtime_executable().hlo_modules()
    counted, target = kernels(Module(module.as_serialized_hlo_module_proto())), chip(chip_name)
    analysis = analysis_of(
        compiled,
        flops=dots(jaxpr).flops,
        kernels=sum(counted.values()),
        kernel_seconds=kernel_seconds(counted, target),
        host_temp_bytes=stats.host_temp_size_in_bytes,
    )
    nothing = dict.fromkeys(
        ("parameters", "parameter_bytes", "optimizer_bytes", "other_bytes", "largest_leaf_bytes"), 0
    )
    static = Static(**nothing, movable={"optimizer": stats.host_argument_size_in_bytes})
    on_host = stats.host_argument_size_in_bytes + stats.host_temp_size_in_bytes
    return {
        "tokens": length,
        "levers": levers,
        "device_bytes": stats.argument_size_in_bytes + analysis.beyond_state_bytes,
        "argument_bytes": stats.argument_size_in_bytes,
        "temporary_bytes": stats.temp_size_in_bytes,
        "host_bytes": on_host,
        "step_seconds": step_seconds(plan, analysis, static, rates(target)),
        "compile_seconds": took,
    }


def made(shape_name: str, plan: Any) -> tuple[Any, Any]:
    """Returns the task and its update rule."""
    from plimsoll.levers.lora import LoRA
    from plimsoll.models.pretrained.config import shape_of
    from plimsoll.models.pretrained.find import known_configs
    from plimsoll.models.pretrained.language import PretrainedNextToken
    from plimsoll.optimizers.adamw import AdamW
    from plimsoll.optimizers.adamw8 import build

    shape = shape_of(dict(known_configs()[SHAPES[shape_name]]), source=shape_name)
    task = LoRA(PretrainedNextToken(shape, plan.compute("gpu")), TARGETS, rank=RANK)
    return task, build(AdamW(learning_rate=2e-4, weight_decay=0.0), 1_000, plan.storage)


def fitted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a line through device bytes, and the tokens that fit on each card, between and beyond the lengths."""
    import numpy as np

    tokens, used = (np.array([row[name] for row in rows], float) for name in ("tokens", "device_bytes"))
    if len(rows) < 2:
        return {}
    slope, start = np.polyfit(tokens[-3:], used[-3:], 1)
    return {
        "bytes": start,
        "bytes_per_token": slope,
        "tokens": {card: _reached(tokens, used, card * GB) for card in CARDS},
    }


def _reached(tokens: Any, used: Any, limit: float) -> int:
    """Returns the tokens of a piecewise line through the points, extended at both ends, at which `limit` is reached."""
    at = min(max(1, int((used < limit).sum())), len(used) - 1)
    slope = (used[at] - used[at - 1]) / (tokens[at] - tokens[at - 1])
    return max(0, int(tokens[at - 1] + (limit - used[at - 1]) / slope))


def line(row: dict[str, Any]) -> str:
    words = [
        f"{row['tokens']:9,} tokens",
        f"device {row['device_bytes'] / GB:7.3f} GB",
        f"({row['argument_bytes'] / GB:.3f} held, {row['temporary_bytes'] / GB:.3f} temporaries)",
        f"host {row['host_bytes'] / GB:7.2f} GB",
        f"{row['step_seconds']:9,.1f} s a step",
        f"compiled in {row['compile_seconds']:.0f} s",
    ]
    return "  ".join(words)


def summary(shape: str, result: dict[str, Any]) -> str:
    if "bytes" not in result:
        return f"{shape}: one length makes no line"
    fits = ", ".join(f"{card} GB {count:,} tokens" for card, count in result["tokens"].items())
    base, slope = UNSLOTH
    theirs = ", ".join(f"{card} GB {max(0, int(1e3 * (card - base) / slope)):,}" for card in CARDS)
    above = [
        row["tokens"] for row in result["rows"] if row["device_bytes"] > GOAL[0] * GB + GOAL[1] * MB * row["tokens"]
    ]
    words = f"  {result['bytes'] / GB:.2f} GB + {result['bytes_per_token'] / MB:.4f} MB a token; {fits}"
    words += f"; above {GOAL[0]} GB + {GOAL[1]} MB a token at {', '.join(f'{n:,}' for n in above) or 'no length'}"
    return words + (f"\n  Unsloth's published line: {base} GB + {slope} MB a token; {theirs}" if "8b" in shape else "")


if __name__ == "__main__":
    main()
