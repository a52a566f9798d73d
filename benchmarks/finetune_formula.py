"""The answer by formula beside the compiler's bytes: plans of `finetune` drawn at random, for cards that are not here.

    python benchmarks/finetune_formula.py [--seed 1] [--count 20]

Model of the table, rank, kernels, bits, length, batch, chip and levers are drawn. Each step is compiled by NVIDIA's
compiler (`plimsoll chips --install cuda`), and its peak, state and temporaries, is held against the interval of
`recipes/finetune/by_formula.py`. Nothing runs. Prints a line for each plan and how many lie inside; writes one JSON to
bench-out/.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

MIB, GIB = 2**20, 2**30
CHIPS = ("rtx4090", "rtx3090", "l4", "h100", "a100-40", "t4")
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MOST_PARAMETERS, MOST_TOKENS = 15e9, 32_768


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=20)
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.here:
        for line in sys.stdin:
            print(json.dumps(compiled(json.loads(line))), flush=True)
        return
    dice = random.Random(given.seed)
    drawn = [draw(dice) for _ in range(given.count)]
    rows = []
    for request, answer in zip(drawn, from_child(drawn), strict=True):
        rows.append(row_of(request, answer))
        print(words(rows[-1]), flush=True)
    measured = [row for row in rows if "compiled" in row]
    errors = [row["likely"] / row["compiled"] - 1 for row in measured]
    inside = sum(row["low"] <= row["compiled"] <= row["high"] for row in measured)
    print(
        f"{inside} of {len(measured)} compiled peaks lie inside; the likeliest is off by"
        f" {statistics.median(errors):+.1%} in the median, from {min(errors):+.1%} to {max(errors):+.1%}"
    )
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    result = {"seed": given.seed, "inside": inside, "rows": rows}
    (out / "finetune_formula.json").write_text(json.dumps(result, indent=1))


def draw(dice: random.Random) -> dict[str, Any]:
    """Returns a recipe's fields and the levers of a plan."""
    from plimsoll.models.pretrained.find import find_shape, known_configs

    while True:
        name = dice.choice(sorted(known_configs()))
        shape, rank, length = find_shape(name), dice.choice((0, 8, 16, 32, 64, 128)), dice.choice(LENGTHS)
        micro, accumulation = dice.choice((1, 1, 2, 4)), dice.choice((1, 4, 8))
        large = shape.parameters() > (MOST_PARAMETERS if rank else 4e9)
        if not large and length <= shape.positions and micro * length <= MOST_TOKENS:
            break
    fields = {"pretrained": name, "lora_rank": rank, "seq_len": length, "batch_size": micro * accumulation}
    if rank:
        fields["lora_targets"] = dice.choice(("all-linear", "all-linear", "q,v", "q,k,v,o"))
    chip, remat = dice.choice(CHIPS), dice.choice(("offload", "offload", "block", "block", "dots", "none"))
    chunks = [0, *(each for each in (2048, 512) if 2 * each <= length and remat in ("offload", "block"))]
    levers: dict[str, Any] = {
        "remat": remat,
        "mlp_chunk": dice.choice(chunks),
        "loss_chunk": dice.choice((2048, 2048, 8192, 0)),
        "attention_chunk": dice.choice((0, 0, 0, 256)) if length > 512 else 0,
        "frozen_bits": dice.choice((16, 8, 4)) if rank else 32,
        "optimizer_bits": dice.choice((32, 32, 8)),
        "precision": "float16" if chip == "t4" else "bfloat16",
        "activations": "float32" if chip == "t4" else "bfloat16",
    }
    streams = levers["optimizer_bits"] == 32 and chip != "t4"
    levers["offload"] = dice.choice(("none", "optimizer")) if streams else "none"
    plan = {"chip": chip, "micro_batch": micro, "accumulation": accumulation, "prefetch": 2, "async_save": True}
    return {"fields": fields, "plan": plan | levers}


def row_of(request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the peaks of a drawn plan, or why it does not compile."""
    if "failed" in answer:
        return request | answer
    from plimsoll.planned import Plan
    from plimsoll.recipes.finetune.by_formula import temporaries
    from plimsoll.recipes.finetune.recipe import Finetune

    recipe, plan = Finetune(**request["fields"]), Plan.from_dict(request["plan"])
    low, likely, high = (answer["state"] + size for size in temporaries(recipe, plan))
    return request | {"low": low, "likely": likely, "high": high, "compiled": answer["state"] + answer["temporaries"]}


def words(row: dict[str, Any]) -> str:
    fields, plan = row["fields"], row["plan"]
    what = f"{fields['pretrained']} r{fields['lora_rank']} {plan['frozen_bits']} bits {fields['seq_len']}"
    levers = " ".join(str(plan[name]) for name in ("micro_batch", "accumulation", "remat", "mlp_chunk", "loss_chunk"))
    if "failed" in row:
        return f"{what} {plan['chip']} {levers}: does not compile: {row['failed'][:100]}"
    inside = "inside" if row["low"] <= row["compiled"] <= row["high"] else "OUTSIDE"
    low, likely, high, size = (row[name] / GIB for name in ("low", "likely", "high", "compiled"))
    return f"{what} {plan['chip']} {levers}: {likely:.2f} ({low:.2f} to {high:.2f}), compiled {size:.2f} GiB, {inside}"


def from_child(drawn: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the compiler's answers, from one process in the compile environment."""
    from plimsoll.processes import environment, toolchains

    python = toolchains.python_for("cuda")
    if python is None:
        sys.exit(f"NVIDIA's compiler is {toolchains.missing('cuda')}: `plimsoll chips --install cuda`")
    variables = environment.for_processes("cuda") | {"PYTHONPATH": str(SOURCE)}
    variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    pipe = subprocess.PIPE
    command = [str(python), __file__, "--here"]
    with subprocess.Popen(
        command, env=variables, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("".join(json.dumps(request) + "\n" for request in drawn))
        child.stdin.close()
        yield from map(json.loads, child.stdout)


def compiled(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles a drawn plan's step; returns the bytes of its state on the device, and what it needs beyond."""
    from plimsoll.engine.cross_compile import CrossCompiler
    from plimsoll.planned import Plan
    from plimsoll.planner.chips import chip
    from plimsoll.recipes.finetune.recipe import Finetune
    from plimsoll.recipes.saved import to_dict

    plan, recipe = Plan.from_dict(request["plan"]), Finetune(**request["fields"])
    about = {"recipe": to_dict(recipe), "steps": 100, "chip": dataclasses.asdict(chip(plan.chip)), "compiled": True}
    compiler = CrossCompiler(about)
    try:
        lowered, _ = compiler.functions(plan).step(recipe.batch_spec(recipe.effective_batch))
        stats: Any = compiler.executable(lowered, plan).memory_analysis()
    except Exception as problem:
        return {"failed": f"{type(problem).__name__}: {problem}"}
    summed = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    peak = stats.peak_memory_in_bytes - stats.host_argument_size_in_bytes - stats.host_temp_size_in_bytes
    static = compiler.static(1, plan.storage)
    state = static.state_bytes - static.host_bytes(plan.offload)
    return {"state": state, "temporaries": max(summed, peak - stats.argument_size_in_bytes)}


if __name__ == "__main__":
    main()
