"""The chosen plan against an exhaustive sweep: how far from the fastest plan that fits is what the planner chose?

    python benchmarks/sweep.py [--recipes 0 1]

For each recipe every combination of micro-batch, rematerialisation, loss chunk and precision is compiled and priced as
the planner prices it, and timed here, in turn (A B C A B C), in groups that share a reference plan: a group's times are
scaled by what the reference took there against its median over the groups. Then for each budget the planner chooses,
as `plimsoll plan --measure` does, and its choice is timed once more, in turn with the fastest that fit: the least of
fifty medians from different minutes is as much luck as speed. A rival fits if the planner takes it where it is pinned:
processes of one plan differ by some MiB, and the sweep has rehearsed but one. Goal: at most 10 % slower.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training_process import ENVIRONMENT, MIB, PLIMSOLL, SOURCE, plan_words

sys.path.insert(0, str(SOURCE))

if TYPE_CHECKING:
    from plimsoll.planned import Plan
    from plimsoll.planner.child import Pool
    from plimsoll.recipes.base import Recipe

TEXT = "data/text/tinystories_train.txt"
GOAL = 1.10
PREFETCH = 2
RIVALS = 5
"""Of the plans that fit, so many of the fastest are timed again beside the chosen one."""
GROUP = 6
"""Plans timed in one process besides the reference: all their executables are loaded at once."""
RECIPES: list[tuple[str, list[str]]] = [
    (
        "stories 128x4, 16 x 128",
        ["stories", "--width", "128", "--layers", "4", "--heads", "4", "--seq-len", "128", "--batch-size", "16"],
    ),
    (
        "stories 192x3, 8 x 512",
        ["stories", "--width", "192", "--layers", "3", "--heads", "6", "--seq-len", "512", "--batch-size", "8"],
    ),
]
SPACE = {"remat": ("none", "dots", "block"), "loss_chunk": (0, 256), "precision": ("float32", "bfloat16")}
BUDGETS = (0.15, 0.4, 1.0)
"""Shares of the way from the smallest peak of the space to that of its fastest plan."""

Levers = Mapping[str, Any]


@dataclass(frozen=True)
class Swept:
    """One plan of the space, compiled and timed."""

    plan: Levers
    peak: int
    """Predicted, in bytes."""
    seconds: float


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--text", default=str(Path(os.environ.get("PLIMSOLL_SHARED", "../shared"), TEXT)))
    options.add_argument("--recipes", type=int, nargs="*", default=list(range(len(RECIPES))))
    given = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name, words in (RECIPES[at] for at in given.recipes):
        words = [*words, "--vocab-size", "4096", "--dataset-id", given.text, "--shuffle-buffer-size", "1000"]
        words += ["--steps", "100"]
        recipe = recipe_of(words)
        swept = sweep(recipe)
        print(f"{name}: {len(swept)} plans, {swept[0].seconds * 1e3:.0f} to {swept[-1].seconds * 1e3:.0f} ms a step")
        for budget in budgets(swept):
            rows.append({"recipe": name} | against(words, recipe, swept, budget))
            print(line(rows[-1]), flush=True)
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "sweep.json").write_text(json.dumps(rows, indent=2))
    ratios = [row["ratio"] for row in rows]
    print(f"slower than the fastest that fits: median {statistics.median(ratios) - 1:.1%}, worst {max(ratios) - 1:.1%}")
    return 0 if max(ratios) <= GOAL else 1


def recipe_of(words: Sequence[str]) -> Recipe:
    from plimsoll.cli.options import PlanOptions
    from plimsoll.cli.parse import parse, take_recipe

    _, recipe, rest = take_recipe(list(words), command="plan")
    return parse(PlanOptions, rest, program="sweep", recipe=recipe).recipe


def sweep(recipe: Recipe) -> list[Swept]:
    """Fastest first. What does not compile is left out, and said."""
    with tempfile.TemporaryDirectory() as folder:
        priced = priced_plans(recipe, Path(folder))
        seconds = timed(recipe, [plan for plan, _ in priced], Path(folder))
    found = [Swept(plan.to_dict(), peak, took) for (plan, peak), took in zip(priced, seconds, strict=True)]
    return sorted(found, key=lambda one: one.seconds)


def priced_plans(recipe: Recipe, answers: Path) -> list[tuple[Plan, int]]:
    """Every plan of the space that compiles, and its predicted peak in bytes. One rehearsal serves them all."""
    from plimsoll.planner.estimate import ledger
    from plimsoll.planner.types import DoesNotCompile, Problem

    found, rehearsal = [], None
    problem = Problem(
        recipe="swept", chip="cpu", budget_bytes=0, effective_batch=recipe.effective_batch, rate_per_example=1,
        rate_unit="examples", numerics="mixed", supported=recipe.supported, loss_chunks=recipe.loss_chunks,
        host_bytes={PREFETCH: recipe.host_bytes(None, prefetch=PREFETCH)},
    )  # fmt: skip  # the budget plays no part in the bytes
    with child(recipe, answers) as compiler:
        static = compiler.static()
        for plan in space(recipe.effective_batch):
            try:
                analysis = compiler.analyse(plan)
                rehearsal = rehearsal or compiler.rehearse(plan)
            except DoesNotCompile as reason:
                print(f"left out: {plan_words(plan.to_dict())}: {reason}")
                continue
            book = ledger(plan, problem, static=static, analysis=analysis, rehearsal=rehearsal)
            found.append((plan, book.predicted_peak_bytes))
    return found


def space(effective: int) -> Iterator[Plan]:
    from plimsoll.planned import Plan

    micros = [n for n in range(1, effective + 1) if effective % n == 0]
    for micro, remat, chunk, precision in itertools.product(micros, *SPACE.values()):
        yield Plan(
            chip="cpu", micro_batch=micro, accumulation=effective // micro, remat=remat, loss_chunk=chunk,
            precision=precision, prefetch=PREFETCH, async_save=False,
        )  # fmt: skip


def child(recipe: Recipe, answers: Path, **more: Any) -> Pool:
    """The compile child as the planner starts it, with answers of its own: times must be of now."""
    from plimsoll.planner.child import Child, Pool
    from plimsoll.processes import environment
    from plimsoll.recipes.saved import to_dict

    about = {"recipe": to_dict(recipe), "steps": recipe.steps}
    command = [sys.executable, "-m", "plimsoll.worker", "compile", json.dumps(about)]
    variables = environment.for_processes("cpu", ENVIRONMENT)
    return Pool([Child(command, variables, about=about | more, answers=answers)])


def timed(recipe: Recipe, plans: Sequence[Plan], answers: Path) -> list[float]:
    """Seconds of a step of each, as if all had been timed beside one another."""
    reference, ratios, references = plans[0], [], []
    for start in range(0, len(plans), GROUP):
        with child(recipe, answers, group=start) as compiler:
            first, *rest = compiler.measure([reference, *plans[start : start + GROUP]])
        ratios += [one / first for one in rest]
        references.append(first)
    usual = statistics.median(references)
    return [one * usual for one in ratios]


def budgets(swept: Sequence[Swept]) -> list[int]:
    """Whole MiB."""
    least, most = min(one.peak for one in swept), swept[0].peak
    return sorted({-(-int(least + share * max(0, most - least)) // MIB) for share in BUDGETS})


def against(words: Sequence[str], recipe: Recipe, swept: Sequence[Swept], budget: int) -> dict[str, Any]:
    from plimsoll.planned import Plan

    fitting = [one for one in swept if one.peak <= budget * MIB]
    chosen = planned(words, f"{budget}MiB", "--measure")
    others = (one for one in fitting if not alike(one.plan, chosen["plan"]) and is_taken(words, one, budget))
    rivals = [chosen["plan"], *(one.plan for one in itertools.islice(others, RIVALS))]
    with tempfile.TemporaryDirectory() as folder, child(recipe, Path(folder)) as compiler:
        seconds = compiler.measure([Plan.from_dict(plan) for plan in rivals])
    best = min(range(len(rivals)), key=lambda at: seconds[at])
    return {
        "budget": budget,
        "fitting": len(fitting),
        "chosen": plan_words(chosen["plan"]),
        "chosen_seconds": seconds[0],
        "reason": chosen["reason"],
        "fastest": plan_words(rivals[best]),
        "fastest_seconds": seconds[best],
        "ratio": seconds[0] / seconds[best],
        "rivals": [[plan_words(plan), took] for plan, took in zip(rivals, seconds, strict=True)],
    }


def is_taken(words: Sequence[str], one: Swept, budget: int) -> bool:
    """Returns whether the planner plans it for that budget when it is pinned."""
    pins = [f"--{name.replace('_', '-')}={one.plan[name]}" for name in ("micro_batch", *SPACE, "prefetch")]
    command = [*PLIMSOLL, "plan", *words, "--memory", f"{budget}MiB", "--json", *pins]
    return subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=False).returncode == 0


def planned(words: Sequence[str], memory: str, *more: str) -> dict[str, Any]:
    command = [*PLIMSOLL, "plan", *words, "--memory", memory, "--json", *more]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def alike(one: Levers, other: Levers) -> bool:
    """Compares what the sweep varies; when a checkpoint is written changes no step."""
    same = all(one[name] == other[name] for name in ("micro_batch", *SPACE))
    return same and one["activations"] == other["activations"]


def line(row: Mapping[str, Any]) -> str:
    chosen = f"chosen {row['chosen']:22} {row['chosen_seconds'] * 1e3:6.0f} ms"
    fastest = f"fastest {row['fastest']:22} {row['fastest_seconds'] * 1e3:6.0f} ms"
    return f"  {row['budget']:5} MiB, {row['fitting']:3} fit: {chosen}, {fastest}: {row['ratio'] - 1:+.1%}"


if __name__ == "__main__":
    sys.exit(main())
