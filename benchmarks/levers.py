"""The figures of docs/levers.md: plans without a lever and with it, trained here, or compiled for a card.

    PYTHONPATH=src:benchmarks python benchmarks/levers.py [--only micro-batch unroll ...]

A column of a table is a rung of `plimsoll ladder`, which trains, or a plan of `plimsoll plan`, which is compiled (for a
card by its compiler: `plimsoll chips --install cuda`) and, for this CPU, timed. Writes bench-out/levers.json; columns
that are there already are kept, unless --only names their table.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from measuring import ROOT, conditions
from training_process import plimsoll

OUT = ROOT / "bench-out/levers.json"
STATE = ("parameters", "optimizer", "ema", "carry", "batches")
"""Components that stay from step to step."""

SMALL = "stories --dataset-id python:standard-library --max-examples 300 --validation-tokens 2000 --steps 200"
LAYERS_12 = f"{SMALL} --width 512 --layers 12 --heads 8 --vocab-size 4096 --batch-size 2 --seq-len 128 --rung-steps 6"
MODEL_12M = f"{SMALL} --target-params 12M --vocab-size 4096 --batch-size 16 --seq-len 256 --rung-steps 6"
MODEL_97M = (
    "stories --width 768 --layers 12 --heads 12 --vocab-size 16384 --seq-len 1024 --batch-size 16 --micro-batch 16"
    " --loss-chunk 0 --precision bfloat16 --activations bfloat16 --chip h100"
)
MODEL_124M = "stories --target-params 124M --vocab-size 50257 --seq-len 1024 --loss-chunk 256"
ON_RTX4090 = f"{MODEL_124M} --batch-size 32 --chip rtx4090 --precision bfloat16"
PRODUCTS = "code --micro-batch 16 --loss-chunk 256 --remat none --precision bfloat16 --memory 4GiB"
ATTENTION = (
    "stories --width 384 --layers 2 --heads 6 --vocab-size 4096 --batch-size 1 --micro-batch 1 --remat none"
    " --loss-chunk 256 --precision float32 --memory 8GiB"
)


@dataclass(frozen=True)
class Column:
    """A plan of a table. `rung` is the name of a ladder's rung; without one, `words` are those of `plimsoll plan`."""

    title: str
    words: str
    rung: str | None = None

    @property
    def command(self) -> str:
        return f"plimsoll {'plan' if self.rung is None else 'ladder'} {self.words}".strip()


def of_ladder(words: str, **titles: str) -> list[Column]:
    """Returns columns from the titles of rungs: `_` stands for `-` in their names."""
    return [Column(title, words, name.replace("_", "-")) for name, title in titles.items()]


def of_plans(words: str, **pins: str) -> list[Column]:
    """Returns columns from a title and what is pinned besides."""
    return [Column(title.replace("_", " "), f"{words} {pinned}") for title, pinned in pins.items()]


TABLES: Mapping[str, list[Column]] = {
    "micro-batch": of_ladder("code --rungs micro-batch", plain="the whole batch", micro_batch="micro-batches of 8"),
    "loss-chunk": of_ladder("code --rungs loss-chunk remat", plain="all logits", loss_chunk="those of 256 tokens"),
    "remat": of_ladder("code --rungs loss-chunk remat", loss_chunk="`none`", remat="`block`"),
    "layerwise": of_ladder(
        f"{LAYERS_12} --rungs save remat layerwise", remat="whole", layerwise="layer by layer, two passes"
    ),
    "precision": of_ladder("code --rungs bfloat16", plain="float32", bfloat16="bfloat16"),
    "optimizer-bits": of_ladder(
        f"{MODEL_12M} --rungs save micro-batch-1 remat bfloat16 optimizer-8", bfloat16="32 bits", optimizer_8="8 bits"
    ),
    "save": of_ladder("code --rungs save", plain="beside training", save="between steps"),
    "prefetch": of_ladder("benchmarks/ours/photos.py --rungs prefetch", plain="two batches ahead", prefetch="none"),
    "attention": [
        Column(f"{length:,} positions, {title}", f"{ATTENTION} --seq-len {length} --attention-chunk {chunk}")
        for length in (1024, 4096)
        for title, chunk in (("whole", 0), ("blocks of 256", 256))
    ],
    "precision-cards": [
        Column(
            f"`{precision}` on `{chip}`",
            f"{MODEL_124M} --batch-size 32 --chip {chip} --micro-batch 4 --remat none --activations float32"
            f" --offload none --precision {precision}",
        )
        for chip, precisions in (("t4", ("float32", "float16")), ("a100-40", ("float32", "tf32")))
        for precision in precisions
    ],
    "activations": [
        Column(f"{where}, {title}", f"{words} --activations {dtype}")
        for where, words in (
            ("128 x 4, 128 long, CPU", PRODUCTS),
            ("256 x 4, 256 long, CPU", f"{PRODUCTS} --width 256 --layers 4 --heads 4 --seq-len 256"),
            ("97.5M, 1,024 long, `h100`", f"{MODEL_97M.replace('--activations bfloat16 ', '')} --remat none"),
        )
        for title, dtype in (("products", "float32"), ("and activations", "bfloat16"))
    ],
    "unroll": [
        Column(f"`{remat}`, {title}", f"{MODEL_97M} --remat {remat} --unroll {unroll}")
        for remat in ("none", "dots", "block")
        for title, unroll in (("in a loop", 0), ("one after another", 24))
    ],
    "offload": of_plans(
        f"{ON_RTX4090} --micro-batch 4 --remat none",
        without="--offload none",
        **{"`--offload_optimizer`": "--offload optimizer"},
    ),
    "remat-offload": of_plans(
        f"{ON_RTX4090} --micro-batch 16 --offload none",
        **{"`--remat_block`": "--remat block", "`--remat_offload`": "--remat offload"},
    ),
    "deterministic": of_plans(
        "code --chip h100 --micro-batch 64 --remat none --loss-chunk 0 --precision bfloat16",
        **{"`--deterministic_False`": "--deterministic False", "by_default": ""},
    ),
    "fsdp": of_plans(
        f"{MODEL_124M} --batch-size 512 --chip h100x8 --micro-batch 64 --remat none --precision bfloat16",
        **{"`--fsdp_1`": "--fsdp 1", "`--fsdp_8`": "--fsdp 8"},
    ),
    "finetune-long": [
        Column(
            f"`--seq-len {length}`, `{chip}`",
            "finetune --pretrained meta-llama/Llama-3.1-8B --frozen-bits 4 --batch-size 1 --remat offload"
            f" --mlp-chunk 2048 --loss-chunk 512 --offload optimizer --seq-len {length} --chip {chip}",
        )
        for length, chip in ((65536, "rtx4090"), (131072, "h100"))
    ],
    "mlp-chunk": of_plans(
        "finetune --pretrained meta-llama/Llama-3.1-8B --frozen-bits 4 --batch-size 1 --remat offload --loss-chunk 512"
        " --offload optimizer --seq-len 65536 --chip h100",
        **{"`--mlp-chunk_0`": "--mlp-chunk 0", "`--mlp-chunk_2048`": "--mlp-chunk 2048"},
    ),
    "puzzles": [
        Column("`sudoku-mlp`", "sudoku-mlp --chip tpu-v4-64"),
        Column("`arc-1`", "arc-1 --chip tpu-v4-64 --micro-batch 768 --remat none --precision bfloat16"),
    ],
}


@cache
def asked(command: str) -> dict[str, Any]:
    """Returns what a command printed."""
    print(command, flush=True)
    return json.loads(plimsoll(*shlex.split(command)[1:], "--json"))


def measured(column: Column, commit: str) -> dict[str, Any]:
    """Returns the figures of a column, in bytes and seconds."""
    answer = asked(column.command)
    about = {"title": column.title, "command": column.command, "commit": commit}
    if column.rung is not None:
        rung = next(each for each in answer["rungs"] if each["name"] == column.rung)
        names = ("predicted_peak_bytes", "measured_peak_bytes", "state_bytes", "temporary_bytes")
        rates = {name: rung[name] for name in rung if name.endswith("_per_second")}
        return about | {name: rung[name] for name in (*names, "step_seconds", "loss_drift")} | rates
    parts, host = answer["components"], answer["host"]
    return about | {
        "predicted_peak_bytes": answer["predicted_peak_bytes"],
        "parts": parts,
        "state_bytes": sum(parts.get(name, 0) for name in STATE),
        "temporary_bytes": answer["temporary_bytes"],
        "host_peak_bytes": None if host is None else host["predicted_peak_bytes"],
        "step_seconds": answer["step_seconds"],
        "step_seconds_source": answer["step_seconds_source"],
        "step_flops": answer["step_flops"],
        "plan": answer["plan"],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=[*TABLES], default=[], help="tables to measure anew")
    given = options.parse_args()
    tables: dict[str, Any] = json.loads(OUT.read_text())["tables"] if OUT.exists() else {}
    OUT.parent.mkdir(exist_ok=True)
    about = conditions(given)
    for name, columns in TABLES.items():
        if name in given.only or (not given.only and name not in tables):
            tables[name] = [measured(column, about["commit"]) for column in columns]
            OUT.write_text(json.dumps({"conditions": about, "tables": tables}, indent=1))
    print(OUT)


if __name__ == "__main__":
    main()
