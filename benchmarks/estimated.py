"""The estimate without a compiler against the compiler itself: one device's temporaries of random plans.

    python benchmarks/estimated.py [--chips h200 tpu-v5e-8] [--count 12] [--seed 1]

Needs the chips' compile environments (`plimsoll chips --install`). Prints one table, writes one JSON to bench-out/.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys

from peers.environment import ROOT
from text_vs_trainer import conditions
from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

OUT = ROOT / "bench-out/estimated.json"
MIB = 2**20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--chips", nargs="*", default=["h200", "tpu-v5e-8"])
    options.add_argument("--count", type=int, default=12, help="plans of each chip")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    rows: list[dict] = []
    OUT.parent.mkdir(exist_ok=True)
    for chip in given.chips:
        rows += of_chip(chip, given.count, given.seed)
        OUT.write_text(json.dumps({"conditions": conditions(given), "rows": rows}, indent=1))
        errors = [row["estimated"] / row["compiled"] - 1 for row in rows if row["chip"] == chip]
        if errors:
            print(
                f"{chip}: {len(errors)} plans, median {statistics.median(errors):+.0%}, from {min(errors):+.0%} to"
                f" {max(errors):+.0%} of the compiler's"
            )


def of_chip(name: str, count: int, seed: int) -> list[dict]:
    """Asks one process in the chip's compile environment for all of its plans."""
    from plimsoll.planner.chips import chip
    from plimsoll.processes import environment, toolchains

    found = chip(name)
    python = toolchains.python_for(found.platform)
    if python is None:
        print(f"{name}: {toolchains.missing(found.platform)}: `plimsoll chips --install {found.platform}`")
        return []
    variables = environment.for_processes(found.platform) | {"PYTHONPATH": str(SOURCE)}
    command = [str(python), __file__, "--chips", name, "--count", str(count), "--seed", str(seed), "--here"]
    rows = []
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=quiet, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            rows.append(json.loads(line))
            row = rows[-1]
            estimated, compiled = row["estimated"] / MIB, row["compiled"] / MIB
            error = estimated / compiled - 1
            print(f"{row['plan']:75} estimated {estimated:9.1f} compiled {compiled:9.1f} MiB {error:+.0%}", flush=True)
    return rows


def here(name: str, count: int, seed: int) -> None:
    import dataclasses

    from plimsoll.engine.cross_compile import CrossCompiler
    from plimsoll.planned import Plan
    from plimsoll.planner.chips import chip
    from plimsoll.recipes.registry import preset
    from plimsoll.recipes.saved import to_dict

    dice, found = random.Random(seed), chip(name)
    for _ in range(count):
        heads = dice.choice([4, 8, 12])
        recipe = dataclasses.replace(
            preset("stories"),
            width=64 * heads,
            layers=dice.choice([2, 4, 8, 12]),
            heads=heads,
            vocab_size=dice.choice([4096, 16384, 32768]),
            seq_len=dice.choice([128, 256, 512, 1024, 2048]),
            batch_size=32,
        )
        micro = found.devices * dice.choice([1, 2, 4]) if found.devices > 1 else dice.choice([1, 2, 4, 8])
        plan = Plan(
            chip=name,
            micro_batch=min(32, micro),
            accumulation=32 // min(32, micro),
            remat=dice.choice(["none", "dots", "block"]),
            loss_chunk=dice.choice([0, 256]),
            precision=dice.choice(["float32", "bfloat16"]),
            fsdp=dice.choice([1, found.devices]),
            prefetch=2,
            async_save=True,
        )
        compiler = CrossCompiler(
            {"recipe": to_dict(recipe), "steps": 100, "chip": dataclasses.asdict(found), "compiled": True}
        )
        compiled, estimated = compiler.analyse(plan), compiler.estimated(plan)
        words = f"{recipe.width}x{recipe.layers} v{recipe.vocab_size} t{recipe.seq_len} micro {plan.micro_batch}"
        row = {
            "chip": name,
            "plan": f"{name} {words} {plan.remat} {plan.loss_chunk} {plan.precision} fsdp {plan.fsdp}",
            "compiled": compiled.beyond_state_bytes,
            "estimated": estimated.beyond_state_bytes,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    if "--here" in sys.argv:
        sys.argv.remove("--here")
        words = argparse.ArgumentParser()
        words.add_argument("--chips", nargs=1)
        words.add_argument("--count", type=int)
        words.add_argument("--seed", type=int)
        asked = words.parse_args()
        here(asked.chips[0], asked.count, asked.seed)
    else:
        main()
