"""Plans of a large model over many chips: mesh, time to plan, and bytes a device beside those of its step.

    python benchmarks/mesh_plans.py [--chips h100x8 tpu-v4-64 tpu-v5e-16] [--target-params 1.3B] [--seq-len 2048]

Needs the chips' compile environments (`plimsoll chips --install cuda`, `tpu`); nothing runs. Each plan begins with an
empty cache; then another process lowers and compiles the step of the plan that was chosen, and reads the bytes of one
device from the compiled module: arguments, temporaries and results of their own, or the compiler's own peak where that
is more (on a TPU neither bounds the other). The plan's bytes are those of its phase `train`, which has the batch that
is ready, too. Prints a line for each chip, writes bench-out/mesh_plans.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from goals import verdict
from peers.environment import ROOT
from text_vs_trainer import conditions
from training_process import ENVIRONMENT, PLIMSOLL, SOURCE

sys.path.insert(0, str(SOURCE))

GIB = 2**30
GOALS = {"h100x8": 60, "tpu-v4-64": 90}
"""Seconds that a plan may take."""
NEAR = 0.01
"""Share by which the bytes of a device may be off."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--chips", nargs="+", default=[*GOALS, "tpu-v5e-16"])
    options.add_argument("--target-params", default="1.3B")
    options.add_argument("--seq-len", default="2048")
    given = options.parse_args()
    size = ["--target-params", given.target_params, "--seq-len", given.seq_len]
    rows = [planned(name, ["stories", *size, "--chip", name]) for name in given.chips]
    out = ROOT / "bench-out/mesh_plans.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"conditions": conditions(given), "rows": rows}, indent=1))
    return 0 if all(row["met"] for row in rows) else 1


def planned(name: str, words: list[str]) -> dict[str, Any]:
    """Returns what a plan says that begins with an empty cache, its seconds, and the bytes of its step."""
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        command = [*PLIMSOLL, "plan", *words, "--json"]
        answer = subprocess.run(
            command, env=ENVIRONMENT | {"PLIMSOLL_CACHE": cache}, stdout=subprocess.PIPE, text=True, check=True
        )
        seconds = time.perf_counter() - started
    found = json.loads(answer.stdout)
    if found["source"] != "compiled":
        raise SystemExit(f"{name}: its plan was not compiled, but estimated")
    train, devices, fsdp = found["phases"]["train"], found["devices"], found["plan"]["fsdp"]
    module = compiled(name, words, found["plan"])
    scaled = next((row for row in found["scaling"] if row["devices"] == devices), None)
    off = train / module - 1
    row = {
        "chip": name,
        "seconds": seconds,
        "devices": devices,
        "fsdp": fsdp,
        "planned_bytes": train,
        "module_bytes": module,
        "hidden_share": found["hidden_share"],
        "hidden_at_most": found["hidden_at_most"],
        "sent_bytes": found["sent_bytes"],
        "scaled": scaled,
        "met": abs(off) <= NEAR and seconds <= GOALS.get(name, seconds),
    }
    outcome = verdict(met=seconds <= GOALS.get(name, seconds))
    goal = f" (goal {GOALS[name]}: {outcome})" if name in GOALS else ""
    share = "" if scaled is None else f", efficiency {scaled['efficiency']:.0%}"
    print(
        f"{name}: {seconds:.1f} s{goal}, data={devices // fsdp},fsdp={fsdp}, {train / GIB:.2f} GiB a device planned,"
        f" {module / GIB:.2f} by the module ({off:+.2%}, goal {NEAR:.0%}: {verdict(met=abs(off) <= NEAR)}){share}",
        flush=True,
    )
    return row


def compiled(name: str, words: list[str], plan: dict[str, Any]) -> int:
    """Returns the bytes of one device by the compiled step, from a process in the chip's compile environment."""
    from plimsoll.planner.chips import chip
    from plimsoll.processes import environment, toolchains

    platform = chip(name).platform
    python = toolchains.python_for(platform)
    if python is None:
        raise SystemExit(f"{name}: {toolchains.missing(platform)}: `plimsoll chips --install {platform}`")
    variables = environment.for_processes(platform) | {"PYTHONPATH": str(SOURCE)}
    command = [str(python), __file__, "--here", json.dumps({"words": words, "plan": plan, "chip": name})]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def here(asked: dict[str, Any]) -> None:
    import dataclasses

    from plimsoll.cli.options import PlanOptions
    from plimsoll.cli.parse import parse_with_recipe
    from plimsoll.engine.cross_compile import CrossCompiler
    from plimsoll.planned import Plan
    from plimsoll.planner.chips import chip
    from plimsoll.recipes.saved import to_dict

    recipe = parse_with_recipe(PlanOptions, asked["words"], command="plan")[1].recipe
    about = {"recipe": to_dict(recipe), "steps": recipe.steps or 1000, "chip": dataclasses.asdict(chip(asked["chip"]))}
    compiler, plan = CrossCompiler(about | {"compiled": True}), Plan.from_dict(asked["plan"])
    lowered, _ = compiler.functions(plan).step(recipe.batch_spec(recipe.effective_batch))
    stats = compiler.executable(lowered, plan).memory_analysis()
    assert stats is not None
    summed = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    on_host = stats.host_argument_size_in_bytes + stats.host_temp_size_in_bytes
    print(max(stats.argument_size_in_bytes + summed, stats.peak_memory_in_bytes - on_host))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
