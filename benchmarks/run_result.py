"""What a run says about itself, as one result file: `python benchmarks/run_result.py runs/demo --name demo`.

Of plan.json, ledger.json, sessions.json and metrics.jsonl: the plan, its bytes predicted and measured, how long it
took, its last loss, and the metrics of its evaluations. Writes bench-out/run-NAME.json, for docs/keep.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training_process import trained


def result(run: Path, judged_by: str, highest: bool) -> dict[str, Any]:
    over, first = trained(run), json.loads((run / "sessions.json").read_text())[0]
    judged = [_evaluation(row) for row in over.rows if f"validation_{judged_by}" in row]
    best = (max if highest else min)(judged, key=lambda row: row[judged_by], default={})
    losses = [row for row in over.rows if "loss" in row]
    return {
        "conditions": {"commit": first["commit"], "cpu": first["processor"], "cores": first["cores"]},
        "recipe": over.planned["recipe"],
        "parameters": over.planned["parameters"],
        "examples_per_step": over.planned["examples_per_step"],
        "plan": over.planned["plan"],
        "budget_bytes": over.ledger["budget_bytes"],
        "predicted_bytes": over.predicted,
        "peak_bytes": over.peak,
        "phase": over.ledger["phase"],
        "seconds": max(row["elapsed_seconds"] for row in over.rows),
        "step": max(row["step"] for row in over.rows),
        "loss": losses[-1]["loss"],
        "judged_by": judged_by,
        "best": best,
        "evaluations": judged,
    }


def _evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {name.removeprefix("validation_"): value for name, value in row.items() if name.startswith("validation_")}
    return {"step": row["step"], "seconds": row["elapsed_seconds"], **metrics}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("run", type=Path)
    options.add_argument("--name", required=True)
    options.add_argument("--judged-by", default="loss")
    options.add_argument("--highest", action="store_true", help="the better, where it is no loss")
    given = options.parse_args()
    out = Path(f"bench-out/run-{given.name}.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result(given.run, given.judged_by, given.highest), indent=1))
    print(out)
