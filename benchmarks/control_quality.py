"""`control` trained to its end by its defaults: R^2 of every family, and what driving costs beside the optimal one.

    plimsoll prepare control --samples 2M --out windows.h5
    python benchmarks/control_quality.py --data windows.h5 [--run FOLDER] [-- --epochs 2]

Trains with `--memory 512MiB` and the words after `--`; a run that is finished is only evaluated. Held-out variants are
evaluated on `--validation-rows`, and driven for 10 s each. Writes bench-out/control_quality.json. Goals: a mean R^2 of
0.9, and 30 of 35 systems that cost at most 1.1 times what the optimal controller does.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from goals import verdict
from training_process import plimsoll, trained

R2_GOAL, COST_GOAL, SYSTEMS_GOAL = 0.9, 1.1, 30


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, required=True, help="made by `plimsoll prepare control`")
    options.add_argument("--run", type=Path, help="to keep the run; default one that is removed")
    options.add_argument("words", nargs="*", help="more options of `plimsoll train control`, after --")
    given = options.parse_args()
    out = Path("bench-out/control_quality.json")
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        run = given.run or Path(temporary) / "run"
        load = os.getloadavg()[0]
        if not is_finished(run):
            words = ["--data", given.data, "--memory", "512MiB", "--quiet", *given.words]
            plimsoll("train", "control", *words, "--run", run)
        found = {"words": given.words, "load_before": load} | measured(run)
    out.write_text(json.dumps(found, indent=1))
    cheap = sum(cost is not None and cost <= COST_GOAL for cost in found["cost"].values())
    learned, driven = found["macro_r2"] >= R2_GOAL, cheap >= SYSTEMS_GOAL
    print(f"{found['seconds'] / 60:.1f} min, {found['steps']:,} steps")
    print(f"mean R^2 of the families {found['macro_r2']:.3f} (goal: at least {R2_GOAL}: {verdict(met=learned)})")
    print(
        f"at most {COST_GOAL} x the optimal cost: {cheap} of {len(found['cost'])} systems"
        f" (goal: {SYSTEMS_GOAL}: {verdict(met=driven)})"
    )
    return 0 if learned and driven else 1


def is_finished(run: Path) -> bool:
    """Returns whether the run has reached its last step."""
    if not (run / "ledger.json").exists():
        return False
    over = trained(run)
    return max(row["step"] for row in over.rows) >= json.loads((run / "data.json").read_text())["steps"]


def measured(run: Path) -> dict[str, Any]:
    over, first = trained(run), json.loads((run / "sessions.json").read_text())[0]
    told = json.loads(plimsoll("evaluate", run, "--closed-loop", "--json"))
    driven = told["closed_loop"]
    return {
        "conditions": {"commit": first["commit"], "cpu": first["processor"], "cores": first["cores"]},
        "parameters": over.planned["parameters"],
        "plan": over.planned["plan"],
        "predicted_bytes": over.predicted,
        "peak_bytes": over.peak,
        "seconds": max(row["elapsed_seconds"] for row in over.rows),
        "steps": max(row["step"] for row in over.rows),
        "step": told["step"],
        "loss": told["loss"],
        "macro_r2": told["macro_r2"],
        "r2": told["r2"],
        "cost": {name: family["cost_ratio"] for name, family in driven["families"].items()},
        "lost": {name: family["lost"] for name, family in driven["families"].items() if family["lost"]},
        "seconds_driven": driven["seconds"],
    }


if __name__ == "__main__":
    raise SystemExit(main())
