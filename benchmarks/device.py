"""Everything that needs a real accelerator, in one call: predicted against measured bytes, step times, MFU.

    python benchmarks/device.py --chip h200 --out OUT [--steps 20] [--only 0 3] [--text FILE]

Versions first: jax >=0.10.2,<0.12 and the packages that training imports, else it ends with what is missing (install
wheels with `pip install --no-index --find-links WHEELS -e .`). Then each plan of a list is made and trained by
`plimsoll train --chip`, a process of its own, so that its allocator has the budget as its limit from the beginning:
two models, every lever that a card has, evaluations and two saves among the steps. The peak is the allocator's own
(`memory_stats()`); the step time is the median of the logged steps behind the first three. A line for each, and one
JSON file with the machine and all rows.

`--chip cpu` runs the small plans of the list here: that the program works, not what it is for.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from training_process import MIB, PLIMSOLL, plan_words, trained, watch

NEEDED = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tyro", "tokenizers", "h5py", "psutil")
SECONDS = 300
"""For one plan and its run."""

MEDIUM = ["--width", "768", "--layers", "12", "--heads", "12", "--vocab-size", "16384", "--seq-len", "1024"]
SMALL = ["--width", "128", "--layers", "4", "--heads", "4", "--vocab-size", "4096", "--seq-len", "128"]
OWN = Path(__file__).resolve().parents[1] / "docs/examples/plain_jax.py"
PLANS: list[tuple[str, list[str]]] = [
    # name, words behind `plimsoll train RECIPE`; the small ones first
    ("small, found", ["code", *SMALL, "--batch-size", "64"]),
    ("small, exact", ["code", *SMALL, "--batch-size", "64", "--numerics", "exact"]),
    ("small, micro-batch 8", ["code", *SMALL, "--batch-size", "64", "--micro-batch", "8"]),
    ("own recipe", [str(OWN), "--batch-size", "4096"]),
    ("own recipe, micro-batch 512", [str(OWN), "--batch-size", "4096", "--micro-batch", "512"]),
    ("medium, found", ["code", *MEDIUM, "--batch-size", "64"]),
    ("medium, exact", ["code", *MEDIUM, "--batch-size", "64", "--numerics", "exact"]),
    ("medium, tf32", ["code", *MEDIUM, "--batch-size", "64", "--precision", "tf32"]),
    ("medium, float16", ["code", *MEDIUM, "--batch-size", "64", "--precision", "float16"]),
    ("medium, loss chunk", ["code", *MEDIUM, "--batch-size", "64", "--loss-chunk", "1024"]),
    ("medium, remat dots", ["code", *MEDIUM, "--batch-size", "64", "--remat", "dots", "--loss-chunk", "1024"]),
    ("medium, remat block", ["code", *MEDIUM, "--batch-size", "64", "--remat", "block", "--loss-chunk", "1024"]),
    ("medium, remat offload", ["code", *MEDIUM, "--batch-size", "64", "--remat", "offload", "--loss-chunk", "1024"]),
    ("medium, 8-bit state", ["code", *MEDIUM, "--batch-size", "64", "--optimizer-bits", "8"]),
    ("medium, 16-bit weights", ["code", *MEDIUM, "--batch-size", "64", "--optimizer-bits", "8", "--weight-bits", "16"]),
    ("medium, state on the host", ["code", *MEDIUM, "--batch-size", "64", "--offload", "optimizer"]),
    ("medium, layer by layer", ["code", *MEDIUM, "--batch-size", "16", "--layerwise", "2"]),
    ("medium, 2 GiB", ["code", *MEDIUM, "--batch-size", "64", "--memory", "2GiB"]),
    ("medium, 4 GiB", ["code", *MEDIUM, "--batch-size", "64", "--memory", "4GiB"]),
]
ON_A_CPU = 5
"""Of PLANS, those that a CPU trains in seconds."""


def main() -> None:
    given = arguments()
    machine = machine_of(given.chip)
    print(json.dumps(machine, indent=2), flush=True)
    rows = []
    for number, (name, words) in enumerate(PLANS[: ON_A_CPU if given.chip == "cpu" else None]):
        if given.only is None or number in given.only:
            rows.append({"number": number, "name": name, **measured(given, words)})
            print(line(rows[-1]), flush=True)
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "device.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    errors = [abs(row["predicted"] - row["measured"]) / row["measured"] for row in rows if "measured" in row]
    if errors:
        print(
            f"{len(errors)} of {len(rows)} ran; error of the peak: median {statistics.median(errors):.1%},"
            f" worst {max(errors):.1%}"
        )


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--chip", required=True, help="as `plimsoll chips` calls it")
    options.add_argument("--out", type=Path, default=Path("bench-out"))
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--only", type=int, nargs="*", help="numbers of the plans to run")
    options.add_argument("--text", help="text to learn from; Python's own source if it is not said")
    return options.parse_args()


def machine_of(chip: str) -> dict[str, Any]:
    """Ends the program where a version does not do."""
    found = {
        each.metadata["Name"].lower().replace("_", "-"): each.version for each in importlib.metadata.distributions()
    }
    missing = [name for name in NEEDED if name not in found]
    release = tuple(map(int, re.findall(r"\d+", found.get("jax", "0"))[:3]))
    if missing or not (0, 10, 2) <= release < (0, 12):
        sys.exit(f"missing: {', '.join(missing) or 'nothing'}; jax {found.get('jax')}, wanted >=0.10.2,<0.12")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    return {
        "chip": chip,
        "commit": commit,
        "python": platform.python_version(),
        "versions": {name: found[name] for name in NEEDED},
        "plugins": {
            name: version for name, version in found.items() if name.startswith("jax-cuda") or name == "libtpu"
        },
    }


def measured(given: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    own = words[0].endswith(".py")
    text = [] if own or given.text is None else ["--dataset-id", given.text]
    half = str(max(1, given.steps // 2))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        session = ["--chip", given.chip, "--steps", str(given.steps), "--log-every", "1", "--run", str(run)]
        session += ["--save-every", half, "--eval-every", half, "--quiet"]
        ended = watch([*PLIMSOLL, "train", *words, *text, *session], seconds=SECONDS)
        if ended.code:
            return {"said": ended.said[-600:] or f"ended with code {ended.code}"}
        found = trained(run)
    rows = [row for row in found.rows if "step_seconds" in row]
    seconds = statistics.median(row["step_seconds"] for row in rows[3:] or rows)
    return {
        "plan": found.planned["plan"],
        "words": plan_words(found.planned["plan"]),
        "source": found.planned["source"],
        "budget": found.ledger["budget_bytes"],
        "predicted": found.predicted,
        "measured": found.peak,
        "phases": {"predicted": found.ledger["predicted"]["phases"], "measured": found.ledger["measured"]["phases"]},
        "components": found.ledger["components"],
        "host": found.ledger.get("host"),
        "overruns": found.ledger["overruns"],
        "step_seconds": {"predicted": found.planned["step_seconds"], "measured": seconds},
        "mfu": statistics.median(row.get("mfu", 0.0) for row in rows[3:] or rows),
        "loss": [rows[0]["loss"], rows[-1]["loss"]],
    }


def line(row: dict[str, Any]) -> str:
    head = f"{row['number']:4} {row['name']:28}"
    if "said" in row:
        return f"{head} {row['said'].splitlines()[0][:200]}"
    predicted, peak, times = row["predicted"], row["measured"], row["step_seconds"]
    return (
        f"{head} {row['words']:26} predicted {predicted / MIB:9.1f} measured {peak / MIB:9.1f} MiB"
        f" {(predicted - peak) / peak:+6.1%}  step {times['predicted'] * 1e3:8.1f} -> {times['measured'] * 1e3:8.1f} ms"
        f"  MFU {row['mfu']:5.1%}  loss {row['loss'][0]:.3f} -> {row['loss'][1]:.3f}"
        f"{'  WENT OVER' if row['overruns'] else ''}"
    )


if __name__ == "__main__":
    main()
