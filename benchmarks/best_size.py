"""Is the size that `--best-size` finds within 2 % of the best of five, at equal time? Held-out loss, trained here.

    PYTHONPATH=src:benchmarks python benchmarks/best_size.py [--minutes 20] [--memory 768MiB] [--recipe code]

The size is found by the law alone, without earlier runs. It, and four around it from a quarter to eight times as many
parameters, as far as the vocabulary leaves shapes, are trained for the steps that `--minutes` are enough for by each
one's own plan, timed here: each has its whole schedule, and the recipe's learning rate. Then each run's loss is
predicted by the law that the other four correct. Prints a table and writes bench-out/best_size.json. What
was trained stays in bench-out/best-size/, and the same command goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from goals import verdict
from peers.environment import ROOT
from text_vs_trainer import conditions

import plimsoll
from plimsoll.api.earlier_runs import earlier_runs
from plimsoll.api.hours import steps_in
from plimsoll.api.loss_law import LossLaw, Observed, corrected
from plimsoll.units import format_count

FACTORS, SIZES = (0.25, 0.5, 0.8, 1.0, 2.0, 4.0, 8.0), 5
"""Times the size that was found, of which the first five that the recipe has are trained."""
GOAL = 0.02


def main() -> int:
    options = arguments()
    folder = ROOT / "bench-out/best-size" / f"{options.recipe}-{options.minutes:g}min-{options.memory}"
    folder.mkdir(parents=True, exist_ok=True)
    found = kept(folder / "found.json", lambda: search(options, folder))
    chosen = sizes(options, found)
    steps = {
        size: kept(folder / f"plan-{size}.json", lambda size=size: planned(options, size, found)) for size in chosen
    }
    rows = []
    for size in chosen:
        row = kept(folder / f"{size}.json", lambda size=size: trained(options, size, found, steps[size], folder))
        rows.append(row)
        print(f"{format_count(size)}: {row['loss']:.4f} after {row['steps']:,} steps", flush=True)
    compared = earlier_runs(folder, plimsoll.preset(options.recipe, **common(found)))
    answer = judged(found, rows, compared)
    print(table(found, rows, answer))
    out = ROOT / "bench-out/best_size.json"
    out.write_text(json.dumps({"conditions": conditions(options), "found": found, "rows": rows, **answer}, indent=1))
    return 0 if answer["excess"] <= GOAL else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20, help="time of each run")
    parser.add_argument("--memory", default="768MiB")
    parser.add_argument("--recipe", default="code")
    return parser.parse_args()


def kept(path: Path, make: Any) -> dict[str, Any]:
    """Returns what the file holds; what is not there yet is made."""
    if not path.exists():
        path.write_text(json.dumps(make(), indent=1))
    return json.loads(path.read_text())


def common(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that all sizes have, besides their steps."""
    fields = {name: value for name, value in found["fields"].items() if name not in ("steps", "target_params")}
    return {"target_params": found["fields"]["target_params"], **fields}


def sizes(options: argparse.Namespace, found: dict[str, Any]) -> list[int]:
    """Returns the sizes to train, with two digits: those of which the recipe has a shape."""
    reachable = []
    for factor in FACTORS:
        size = int(float(f"{factor * found['fields']['target_params']:.1e}"))
        recipe = plimsoll.preset(options.recipe, **common(found) | {"target_params": size})
        with contextlib.suppress(plimsoll.RecipeError):
            getattr(recipe, "shape", None)
            reachable.append(size)
    return reachable[:SIZES]


def search(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    how = {"memory": options.memory, "chip": "cpu", "hours": options.minutes / 60, "best_size": True}
    plan = plimsoll.plan(options.recipe, **how, earlier_runs=folder / "none", say=print)
    print(plan, flush=True)
    return plan.best_size_found.to_dict()


def planned(options: argparse.Namespace, size: int, found: dict[str, Any]) -> dict[str, Any]:
    """Returns the steps that the time is enough for by the size's own plan. All are timed before any is trained, so
    that what else the machine does while they train changes no step."""
    recipe = plimsoll.preset(options.recipe, **common(found) | {"target_params": size})
    without_steps = dataclasses.replace(recipe, steps=None)  # as the search plans it
    plan = plimsoll.plan(without_steps, memory=options.memory, chip="cpu", measure=True)
    rate = {"step_seconds": plan.step_seconds, "tokens_per_step": plan.tokens_per_step}
    steps = steps_in(60 * options.minutes, **rate, held_out=recipe.held_out_tokens)
    print(f"{format_count(size)}: {steps:,} steps of {plan.step_seconds:.4f} s", flush=True)
    return {"parameters": plan.parameters, "steps": steps, **rate}


def trained(
    options: argparse.Namespace, size: int, found: dict[str, Any], planned: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Trains a size for its planned steps, and returns its row."""
    steps = planned["steps"]
    recipe = plimsoll.preset(options.recipe, **common(found) | {"target_params": size, "steps": steps})
    where = {"memory": options.memory, "chip": "cpu", "run": folder / str(size)}
    run = plimsoll.train(recipe, **where, quiet=True, say=lambda text: None)
    rows = run.metrics()
    evaluated = [row["validation_loss"] for row in rows if "validation_loss" in row and row["step"] == steps]
    return {
        "target_params": size,
        "parameters": planned["parameters"],
        "steps": steps,
        "tokens": steps * planned["tokens_per_step"],
        "planned_step_seconds": planned["step_seconds"],
        "step_seconds": statistics.median(row["step_seconds"] for row in rows if "step_seconds" in row),
        "elapsed_seconds": rows[-1]["elapsed_seconds"],
        "peak_bytes": run.ledger.measured_bytes,
        "loss": evaluated[-1],
    }


def judged(found: dict[str, Any], rows: list[dict[str, Any]], runs: list[Observed]) -> dict[str, Any]:
    """Returns how far the choice is from the best, and what each run was predicted to be by the others."""
    chosen = next(row for row in rows if row["target_params"] == found["fields"]["target_params"])
    predictions = {}
    for run in runs:
        law = corrected([other for other in runs if other is not run])
        low, high = law.interval(run.parameters, run.tokens)
        predictions[Path(run.run).name] = {
            **dataclasses.asdict(run),
            "prior": LossLaw().loss(run.parameters, run.tokens),
            "by_the_others": law.loss(run.parameters, run.tokens),
            "interval": [low, high],
        }
    return {"excess": chosen["loss"] / min(row["loss"] for row in rows) - 1, "predictions": predictions}


def table(found: dict[str, Any], rows: list[dict[str, Any]], answer: dict[str, Any]) -> str:
    lines = [
        f"{'parameters':>12}{'steps':>8}{'tokens':>9}{'s, steps':>10}{'loss':>9}{'over best':>11}"
        f"{'prior':>8}  by the other four"
    ]
    least = min(row["loss"] for row in rows)
    for row in rows:
        mark = "*" if row["target_params"] == found["fields"]["target_params"] else " "
        told = answer["predictions"].get(str(row["target_params"]))
        words = f"{'':8}"
        if told is not None:
            low, high = told["interval"]
            words = f"{told['prior']:8.2f}  {told['by_the_others']:.3f} ({low:.3f} to {high:.3f})"
        lines.append(
            f"{mark}{format_count(row['parameters']):>11}{row['steps']:>8,}{format_count(row['tokens']):>9}"
            f"{row['steps'] * row['step_seconds']:>10.0f}{row['loss']:>9.4f}{row['loss'] / least - 1:>11.2%}{words}"
        )
    outcome = verdict(met=answer["excess"] <= GOAL)
    return "\n".join(
        [*lines, f"the choice is {answer['excess']:.2%} above the best of them (goal {GOAL:.0%}: {outcome})"]
    )


if __name__ == "__main__":
    raise SystemExit(main())
