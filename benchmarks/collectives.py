"""What devices tell one another in a step: every recipe compiled for TPU slices, and the collectives in it.

    python benchmarks/collectives.py [--chips tpu-v4-64 tpu-v5e-8] [--recipes stories ...] [--windows windows.h5]

Needs the chips' compile environment (`plimsoll chips --install tpu`). Each recipe takes two micro-batches of one
example a device, so that what is summed once a step can be told from what is summed for each micro-batch; `fsdp` splits
the state over all devices. `control` needs a file of windows. A line for each, with how often each kind of collective
stands in a loop and outside of all, and the elements of what it gives; rows in bench-out/collectives.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

RECIPES = (
    *("stories", "code", "control", "longcontext", "longcontext-small-32k", "recommend", "recommend-gemma-2b"),
    *("sudoku-mlp", "sudoku-attention", "maze", "arc-1", "arc-2"),
)
KINDS = "all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--chips", nargs="*", default=["tpu-v4-64", "tpu-v5e-8"])
    options.add_argument("--recipes", nargs="*", default=list(RECIPES))
    options.add_argument("--windows", help="of `plimsoll prepare control`, for that recipe")
    options.add_argument("--fsdp", action="store_true", help="the state is split over all devices")
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.here:
        here(given.chips[0], given.recipes[0], given.windows, fsdp=given.fsdp)
        return
    out = Path("bench-out/collectives.jsonl")
    out.parent.mkdir(exist_ok=True)
    for chip in given.chips:
        for recipe in given.recipes:
            if recipe == "control" and given.windows is None:
                print(f"{chip:10} {recipe:22} left out: it needs --windows")
                continue
            row = compiled(chip, recipe, given.windows, fsdp=given.fsdp)
            print(line(row), flush=True)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def compiled(name: str, recipe: str, windows: str | None, *, fsdp: bool) -> dict[str, Any]:
    """Yields the compiled steps, each from a process in the chip's compile environment."""
    from plimsoll.planner.chips import chip
    from plimsoll.processes import environment, toolchains

    platform = chip(name).platform
    python = toolchains.python_for(platform)
    if python is None:
        raise SystemExit(f"{name}: {toolchains.missing(platform)}: `plimsoll chips --install {platform}`")
    variables = environment.for_processes(platform) | {"PYTHONPATH": str(SOURCE)}
    command = [str(python), __file__, "--chips", name, "--recipes", recipe, "--here"]
    command += (["--windows", windows] if windows else []) + (["--fsdp"] if fsdp else [])
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"chip": name, "recipe": recipe, "fsdp": fsdp, "failed": done.stderr.strip()[-500:]}
    return json.loads(done.stdout.splitlines()[-1])


def here(name: str, recipe_name: str, windows: str | None, *, fsdp: bool) -> None:
    import dataclasses

    from plimsoll.engine.cross_compile import CrossCompiler
    from plimsoll.planned import Plan
    from plimsoll.planner.chips import chip
    from plimsoll.recipes.registry import preset
    from plimsoll.recipes.saved import to_dict

    found = chip(name)
    changes: dict[str, Any] = {"batch_size": 2 * found.devices, "gradient_accumulation_steps": 1}
    if recipe_name == "control":
        changes |= {"data": windows}
    recipe = dataclasses.replace(preset(recipe_name), **changes)
    plan = Plan(
        chip=name, micro_batch=found.devices, accumulation=2, remat="block", precision="bfloat16",
        loss_chunk=256 if recipe.loss_chunks else 0, prefetch=2, async_save=True, devices=found.devices,
        fsdp=found.devices if fsdp else 1,
    )  # fmt: skip
    about = {"recipe": to_dict(recipe), "steps": 1000, "chip": dataclasses.asdict(found), "compiled": True}
    compiler = CrossCompiler(about)
    started = time.perf_counter()
    lowered, _ = compiler.functions(plan).step(recipe.batch_spec(recipe.effective_batch))
    step = compiler.executable(lowered, plan)
    stats = step.memory_analysis()
    assert stats is not None
    row = {"chip": name, "recipe": recipe_name, "fsdp": fsdp, "devices": found.devices}
    row |= {"temporary_bytes": stats.temp_size_in_bytes, "argument_bytes": stats.argument_size_in_bytes}
    row |= {"compile_seconds": time.perf_counter() - started, **collectives(step.as_text())}
    print(json.dumps(row))


def collectives(text: str) -> dict[str, dict[str, list[int]]]:
    """Returns, for `loop` and `once`: kind to how many there are, and the elements of their results."""
    bodies = set(re.findall(r"(?:body|condition)=%?([\w.-]+)", text))
    counted: dict[str, dict[str, list[int]]] = {"loop": {}, "once": {}}
    inside = ""
    for each in text.splitlines():
        if each and not each[0].isspace() and "{" in each:
            inside = each.removeprefix("ENTRY ").split()[0].lstrip("%")
        if found := re.search(rf"= (.*?) ({KINDS})(?:-start)?\(", each):
            shapes = re.findall(r"\[([\d,]*)\]", found[1])
            elements = sum(math.prod(int(size) for size in shape.split(",") if size) for shape in shapes)
            of_kind = counted["loop" if inside in bodies else "once"].setdefault(found[2], [0, 0])
            of_kind[0] += 1
            of_kind[1] += elements
    return counted


def line(row: Mapping[str, Any]) -> str:
    head = f"{row['chip']:10} {row['recipe']:22} {'fsdp' if row['fsdp'] else '':4}"
    if "failed" in row:
        return f"{head} failed: {row['failed'][-160:]}"
    places = (
        f"{place}: "
        + (", ".join(f"{n} {kind} of {elements:,}" for kind, (n, elements) in row[place].items()) or "none")
        for place in ("loop", "once")
    )
    return f"{head} {row['temporary_bytes'] / 2**20:9.1f} MiB {row['compile_seconds']:6.0f} s  {'; '.join(places)}"


if __name__ == "__main__":
    main()
