"""`recommend` on a real data set: trained to the end as its defaults have it, and with a frozen language model.

    python benchmarks/recommend_quality.py --interactions amazon_toys.txt [--pretrained FOLDER] [--only defaults]
    python benchmarks/recommend_quality.py --interactions ml-latest-small/ratings.csv --pretrained FOLDER --only titles

Prepares the file with the defaults of `prepare`, then for each row trains with `--memory 1GiB` and ranks every item of
the catalogue for every user's test item by `evaluate`, beside the four baselines that learn nothing. Seconds are those
of the whole command, planning and evaluations included. Writes its file after each row.

The row `titles` is of a data set made from MovieLens' ratings.csv with its movies.csv beside it: a fifth of the films
with five ratings or more is taken out of every history, so that they are left as users' last ones alone, to be found by
their titles. Its file is bench-out/recommend_titles.json.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import os
import random
import shutil
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
TITLES = "titles"
HIDDEN, LEAST, SEED = 0.2, 5, 42
"""Share of films that histories lose, of those with so many ratings, by this seed."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--interactions", required=True, type=Path)
    options.add_argument("--pretrained", default="", help="a Llama's or a Gemma's folder; else no such rows")
    options.add_argument("--only", nargs="+", choices=[*ROWS, TITLES], default=list(ROWS))
    options.add_argument("--folder", type=Path, help="to keep the runs; default one that is removed")
    options.add_argument("--out", type=Path, default=Path("bench-out/recommend_quality.json"), help="not of `titles`")
    given = options.parse_args()
    Path("bench-out").mkdir(exist_ok=True)
    if TITLES in given.only:
        titles(given)
        given.only.remove(TITLES)
    if given.only:
        quality(given)


def quality(given: argparse.Namespace) -> None:
    """Trains and ranks the rows of `ROWS` that are asked for."""
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


def titles(given: argparse.Namespace) -> None:
    """Trains around the frozen model without the hidden films, and ranks them by their titles."""
    if not given.pretrained:
        raise SystemExit(f"--only {TITLES} needs --pretrained FOLDER: titles are read by that model")
    out = Path("bench-out/recommend_titles.json")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        data = folder / "data-titles"
        if not data.exists():
            ratings = without_some(given.interactions, folder / "hidden")
            plimsoll("prepare", "recommend", "--interactions", ratings, "--k-core", "1", "--out", data)
        row = measured(data, ["--pretrained", given.pretrained], folder / "titles")
    found = {"conditions": conditions(given), "interactions": given.interactions.name, "hidden": HIDDEN, "row": row}
    out.write_text(json.dumps(found, indent=1))
    print(f"{TITLES}: {row['seconds'] / 60:.1f} min, {json.dumps(row['cold'])}", flush=True)


def without_some(ratings: Path, folder: Path) -> Path:
    """Writes ratings without those of hidden films, but for users' last ones; films with few ratings are left out."""
    with open(ratings, newline="", encoding="utf-8") as file:
        head, *rows = list(csv.reader(file))
    often = collections.Counter(row[1] for row in rows)
    films = sorted((film for film, count in often.items() if count >= LEAST), key=int)
    hidden = set(random.Random(SEED).sample(films, int(HIDDEN * len(films))))
    of_users: dict[str, list[list[str]]] = {}
    for row in rows:
        if often[row[1]] >= LEAST:
            of_users.setdefault(row[0], []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "ratings.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(head)
        for of_user in of_users.values():
            *before, last = sorted(of_user, key=lambda row: float(row[3]))  # of the same time, as they stand
            out.writerows([*(row for row in before if row[1] not in hidden), last])
    shutil.copy(ratings.parent / "movies.csv", folder)
    return folder / "ratings.csv"


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
