"""`recommend` on a real data set: trained to the end as its defaults have it, and with a frozen language model.

    python benchmarks/recommend_quality.py --interactions amazon_toys.txt [--pretrained FOLDER] [--only defaults]

Prepares the file with the defaults of `prepare`, then for each row trains with `--memory 1GiB` and ranks every item of
the catalogue for every user's test item by `evaluate`, beside the four baselines that learn nothing. Seconds are those
of the whole command, planning and evaluations included. Writes its file after each row.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from text_vs_trainer import conditions
from training_process import plimsoll, trained

LAST = ("--learn-validation", "--ema-decay", "0.999")
ROWS: Mapping[str, Sequence[str]] = {
    "defaults": (),
    "frozen": ("--pretrained", "{pretrained}"),
    "defaults, learned from validation items, averaged": LAST,
    "frozen, learned from validation items, averaged": ("--pretrained", "{pretrained}", *LAST),
}
"""Words after `plimsoll train recommend`."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--interactions", required=True, type=Path)
    options.add_argument("--pretrained", default="", help="a Llama's or a Gemma's folder; else no such rows")
    options.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    options.add_argument("--folder", type=Path, help="to keep the runs; default one that is removed")
    options.add_argument("--out", type=Path, default=Path("bench-out/recommend_quality.json"))
    given = options.parse_args()
    Path("bench-out").mkdir(exist_ok=True)
    out: Path = given.out
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        data = folder / "data"
        if not data.exists():
            plimsoll("prepare", "recommend", "--interactions", given.interactions, "--out", data)
        found = json.loads(out.read_text()) if out.exists() else {}
        found |= {"conditions": conditions(given), "interactions": given.interactions.name}
        found.setdefault("rows", {})
        for name in given.only:
            words = [word.format(pretrained=given.pretrained) for word in ROWS[name]]
            if "" in words:
                continue
            row = measured(data, words, folder / name.replace(" ", "-").replace(",", ""))
            found["rows"][name] = {"words": list(ROWS[name])} | row
            out.write_text(json.dumps(found, indent=1))
            print(f"{name}: {row['seconds'] / 60:.1f} min, {json.dumps(row['test'])}", flush=True)


def measured(data: Path, words: Sequence[str], run: Path) -> dict[str, Any]:
    begun, load = time.monotonic(), os.getloadavg()[0]
    plimsoll("train", "recommend", "--data", data, "--memory", "1GiB", "--quiet", *words, "--run", run)
    seconds = time.monotonic() - begun
    told = json.loads(plimsoll("evaluate", run, "--json"))
    over = trained(run)
    steps = max(row["step"] for row in over.rows if "loss" in row)
    memory = {"predicted_bytes": over.predicted, "peak_bytes": over.peak, "plan": over.planned["plan"]}
    return {"seconds": seconds, "load_before": load, "steps": steps} | memory | told


if __name__ == "__main__":
    main()
