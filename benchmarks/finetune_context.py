"""The longest context of QLoRA on a card that is not here: bytes of the training step by the chip's own compiler.

    python benchmarks/finetune_context.py [--shape llama-3.1-8b] [--tokens 4096 8192 ...] [--variant plain host]
        [--chip h100] [--buffers 12]

The step is plimsoll's own: `PretrainedNextToken` in NF4 with its embedding and head in bfloat16, LoRA of rank 32 beside
all seven kernels in float32 with AdamW in float32, batch 1, activations in bfloat16, block inputs in the host's memory,
feed-forward part and loss in chunks. Nothing runs and no weight is made. Needs `plimsoll chips --install cuda`.

For every length it prints the step's bytes on the device and in the host's memory, and its time as a plan estimates it,
from kernels and from what goes over the link to the host. A row is one document: attention is cuDNN's, where it takes
the model's heads;
then, per shape, a line fitted to device bytes (at or above it everywhere), the tokens that fit in 8, 24 and 80 GB
by interpolation, and Unsloth's published line for Llama-3.1-8B. VARIANTS are other levers beside that: the optimizer's
state on the host or in 8 bits, adapters in 24, and no host at all. `--buffers N` names the N largest temporaries at the
peak. GB is 10^9 bytes. Writes one JSON to bench-out/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

GB, MB = 1e9, 1e6
LENGTHS = (4_096, 8_192, 16_384, 65_536, 131_072, 262_144)
CARDS = (8, 24, 80)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "host": {"offload": "optimizer"},
    "8-bit": {"optimizer_bits": 8},
    "24-bit": {"weight_bits": 24},
    "no-host": {"remat": "block"},
}
"""Name to the levers that differ."""
GOAL = 7.0, 0.072
"""GB, and MB a token, that no length from 4,096 on should lie above."""
RANK = 32
UNSLOTH = 7.37, 0.212
"""GB, and MB a token, that Unsloth's published lengths for Llama-3.1-8B lie on (rank 32 on all seven, 4 bits)."""
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4_096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "rope_theta": 500_000.0, "max_position_embeddings": 131_072,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8_192,
        },
    },
    "llama-3.2-3b": {
        "model_type": "llama", "vocab_size": 128_256, "hidden_size": 3_072, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "intermediate_size": 8_192, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "rope_theta": 500_000.0, "max_position_embeddings": 131_072, "head_dim": 128,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8_192,
        },
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "vocab_size": 152_064, "hidden_size": 3_584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18_944, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "rope_theta": 1_000_000.0, "max_position_embeddings": 32_768,
    },
    "gemma-2-9b": {
        "model_type": "gemma2", "vocab_size": 256_000, "hidden_size": 3_584, "num_hidden_layers": 42,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14_336,
        "rms_norm_eps": 1e-6, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256, "sliding_window": 4_096, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8_192,
    },
}  # fmt: skip
"""Name to the settings of its `config.json` that make its shape."""
TARGETS = ["blocks/(query|key|value|out|gate|up|down)/kernel"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shape", nargs="*", choices=SHAPES, default=["llama-3.1-8b"])
    options.add_argument("--tokens", type=int, nargs="*", default=LENGTHS)
    options.add_argument("--chip", default="h100", help="a GPU, as `plimsoll chips` calls it")
    options.add_argument("--variant", nargs="*", choices=VARIANTS, default=["plain", "host"])
    options.add_argument("--levers", type=json.loads, default={}, help="levers in JSON, besides those of a variant")
    options.add_argument("--buffers", type=int, default=0, help="largest temporaries at the peak to name")
    options.add_argument("--text", type=Path, help="folder to write the compiled steps into, as text")
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.here:
        for length in given.tokens:
            print(json.dumps(compiled_step(given.shape[0], length, given)), flush=True)
        return
    from text_vs_trainer import conditions

    results: dict[str, dict[str, Any]] = {}
    for shape, variant in itertools.product(given.shape, given.variant):
        print(f"{shape}, {variant} {VARIANTS[variant] | given.levers or ''}", flush=True)
        rows = []
        for row in from_child(shape, VARIANTS[variant] | given.levers, given):
            rows.append(row)
            print(line(row), flush=True)
        results.setdefault(shape, {})[variant] = found = {"rows": rows, **fitted(rows)}
        print(summary(shape, found), flush=True)
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "finetune_context.json").write_text(
        json.dumps({"conditions": conditions(given), "chip": given.chip, "shapes": results}, indent=1)
    )


def from_child(shape: str, levers: dict[str, Any], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row for each length, from one process in the chip's compile environment."""
    from plimsoll.processes import environment, toolchains

    python = toolchains.python_for("cuda")
    if python is None:
        sys.exit(f"{given.chip}: its compiler is {toolchains.missing('cuda')}: `plimsoll chips --install cuda`")
    variables = environment.for_processes("cuda") | {"PYTHONPATH": str(SOURCE)}
    variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    command = [str(python), __file__, "--here", "--shape", shape, "--chip", given.chip]
    command += ["--levers", json.dumps(levers), "--buffers", str(given.buffers)]
    command += [*(["--text", str(given.text)] if given.text else []), "--tokens", *map(str, given.tokens)]
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


def compiled_step(shape_name: str, length: int, given: argparse.Namespace) -> dict[str, Any]:
    """Compiles the step for one length and counts its bytes."""
    from plimsoll.engine.compile import analysis_of
    from plimsoll.planned import Plan
    from plimsoll.planner import topology
    from plimsoll.planner.chips import chip, rates
    from plimsoll.planner.flops import dots
    from plimsoll.planner.hlo.buffers import largest_temporaries
    from plimsoll.planner.hlo.kernels import kernels
    from plimsoll.planner.hlo.module import Module
    from plimsoll.planner.kernel_seconds import kernel_seconds
    from plimsoll.planner.speed import step_seconds
    from plimsoll.planner.types import Static
    from plimsoll.training import program

    levers = levers_of(length) | given.levers
    plan = Plan(
        chip=given.chip, micro_batch=1, accumulation=1, prefetch=2, async_save=False, remat="none", loss_chunk=0,
        precision="float32",
    ).with_levers(**levers)  # fmt: skip
    task, rule = made(shape_name, plan)
    batch = dict.fromkeys(("input_ids", "labels"), ((1, length), "int32"))
    lowered, jaxpr = program.Functions(task, rule, plan, topology.devices(chip(given.chip))).step(batch)
    started = time.monotonic()
    compiled: Any = program.compiled(lowered, platform="gpu", deterministic=plan.deterministic)
    took = time.monotonic() - started
    stats = compiled.memory_analysis()
    if given.text is not None:
        given.text.mkdir(parents=True, exist_ok=True)
        (given.text / f"{shape_name}-{length}.txt").write_text(compiled.as_text())
    named = largest_temporaries(compiled, most=given.buffers) if given.buffers else []
    (module,) = compiled.runtime_executable().hlo_modules()
    counted, target = kernels(Module(module.as_serialized_hlo_module_proto())), chip(given.chip)
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
        "buffers": [[each.bytes, each.shape, each.what, each.place] for each in named],
    }


def made(shape_name: str, plan: Any) -> tuple[Any, Any]:
    """Returns the task and its update rule."""
    from plimsoll.levers.lora import LoRA
    from plimsoll.models.pretrained.config import shape_of
    from plimsoll.models.pretrained.language import PretrainedNextToken
    from plimsoll.optimizers.adamw import AdamW
    from plimsoll.optimizers.adamw8 import build

    shape = shape_of(SHAPES[shape_name], source=shape_name)
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
    buffers = [f"\n    {size / MB:9,.1f} MB {shape} {what} {place}" for size, shape, what, place in row["buffers"]]
    return "  ".join(words) + "".join(buffers)


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
