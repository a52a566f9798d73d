"""Windows of control: how fast they are read, how much memory files of any length take, what a linear map learns.

    plimsoll prepare control --samples 400k --out windows.h5
    python benchmarks/windows.py loader windows.h5      # beside h5py front to back, and single rows of huge chunks
    python benchmarks/windows.py memory                 # trained on 10k, 1M and 100M windows
    python benchmarks/windows.py linear windows.h5      # macro R^2 of the best linear map of a window

`loader`: one epoch each, in turn, medians; rows/s. `memory`: files of constants, whose chunks are all there and packed
to a few bytes, so that the index is as large as a real file's; each run in a process of its own, in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from goals import verdict

from plimsoll.recipes.control.rows import COLUMNS, ControlRows

BATCH, MIX = 1024, 16
HUGE = 10_000
"""Rows of a chunk of the original's file, packed with gzip."""
PLIMSOLL = [sys.executable, "-m", "plimsoll.cli.main"]
TRAINED = ["--split", "none", "--memory", "1GiB", "--micro-batch", "64", "--remat", "none"]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", choices=["loader", "memory", "linear"])
    options.add_argument("file", nargs="?", help="made by `plimsoll prepare control`")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=60, help="of each run of `memory`")
    options.add_argument("--rows", type=int, nargs="*", default=[10_000, 1_000_000, 100_000_000])
    given = options.parse_args()
    if given.what != "memory" and not given.file:
        options.error(f"{given.what} needs the file")
    return {"loader": loader, "memory": memory, "linear": linear}[given.what](given)


def loader(given: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        huge = Path(folder) / "huge.h5"
        count = in_huge_chunks(Path(given.file), huge)
        ways: dict[str, Callable[[], float]] = {
            "h5py, front to back": lambda: front_to_back(given.file),
            "plimsoll, shuffled": lambda: shuffled(given.file),
            f"single rows at random, gzip chunks of {HUGE:,}": lambda: single_rows(huge, count),
        }
        found = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, way in ways.items():
                found[name].append(way())
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    first, ours, single = medians.values()
    for name, rates in found.items():
        print(f"{name:46s} {medians[name]:12,.0f} rows/s   ({', '.join(f'{rate:,.0f}' for rate in rates)})")
    met = ours >= 0.7 * first and ours >= 50 * single
    goals = f"goals 70 % and 50: {verdict(met=met)}"
    print(f"of front to back: {ours / first:.0%}; of single rows: {ours / single:,.0f} x ({goals})")
    return 0 if met else 1


def needed() -> list[str]:
    """The datasets that the recipe reads, split by variant."""
    return [place for name, place in COLUMNS.items() if name != "trajectory"]


def front_to_back(path: str) -> float:
    started = time.perf_counter()
    with h5py.File(path) as file:
        datasets = [file[name] for name in needed()]
        rows, size = len(datasets[0]), datasets[0].chunks[0]
        for at in range(0, rows, size):
            for dataset in datasets:
                dataset[at : at + size]
    return rows / (time.perf_counter() - started)


def shuffled(path: str) -> float:
    """Begins with opening, as the other does; the thread that reads ahead included."""
    started = time.perf_counter()
    source = ControlRows(path, split="variant")
    batches = source.loader(batch_size=BATCH, seed=0, mix=MIX, skip_bad=False, prefetch=2)
    count = source.training_rows // BATCH
    for _ in range(count):
        next(batches)
    seconds = time.perf_counter() - started
    batches.close()
    return count * BATCH / seconds


def in_huge_chunks(old: Path, new: Path) -> int:
    """Copies of `old` as many rows as fill some huge chunks."""
    with h5py.File(old) as source, h5py.File(new, "w") as file:
        rows = min(len(source["controls"]), 10 * HUGE)
        for name in needed():
            values = source[name][:rows]
            chunk = (min(HUGE, rows), *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunk, compression="gzip")
    return rows


def single_rows(path: Path, count: int, rows: int = 64) -> float:
    random = np.random.default_rng(0)
    started = time.perf_counter()
    with h5py.File(path) as file:
        datasets = [file[name] for name in needed()]
        for at in random.integers(0, count, rows).tolist():
            for dataset in datasets:
                dataset[at]
    return rows / (time.perf_counter() - started)


def memory(given: argparse.Namespace) -> int:
    peaks: dict[int, list[int]] = {rows: [] for rows in given.rows}
    with tempfile.TemporaryDirectory() as folder:
        files = {rows: constant(Path(folder) / f"{rows}.h5", rows) for rows in given.rows}
        for rows, path in files.items():
            seconds = opened_in(path)
            print(f"{rows:>11,} rows: opened in {seconds * 1e3:.0f} ms, {path.stat().st_size:,} bytes")
        for number in range(given.rounds):
            for rows, path in files.items():
                run = Path(folder) / f"run-{rows}-{number}"
                words = ["control", "--data", path, *TRAINED, "--steps", given.steps, "--run", run, "--quiet"]
                subprocess.run([*PLIMSOLL, "train", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
                ledger = json.loads((run / "ledger.json").read_text())
                peaks[rows].append(ledger["measured"]["peak_bytes"])
    medians = {rows: statistics.median(found) / 2**20 for rows, found in peaks.items()}
    for rows, found in peaks.items():
        print(f"{rows:>11,} rows: peak {medians[rows]:.1f} MiB ({', '.join(f'{one / 2**20:.1f}' for one in found)})")
    apart = max(medians.values()) - min(medians.values())
    print(f"apart by {apart:.1f} MiB (goal 16: {verdict(met=apart <= 16)})")
    return 0 if apart <= 16 else 1


def constant(path: Path, rows: int) -> Path:
    """Writes a file as `prepare control` lays it out, but for what is in it and how it is packed."""
    with h5py.File(path, "w", libver="latest") as file:
        for name, shape, dtype, fill in (
            ("input_sequences", (32, 19), "float32", 0),
            ("controls", (6,), "float32", 0),
            ("control_masks", (6,), "float32", 1),
            ("system_ids", (), "S50", b"Family"),
        ):
            made = file.create_dataset(name, (rows, *shape), dtype, chunks=(512, *shape), compression="gzip")
            packed = zlib.compress(np.full((512, *shape), fill, dtype).tobytes())
            for at in range(0, rows, 512):
                made.id.write_direct_chunk((at,) + (0,) * len(shape), packed)
        file["normalization/Family/control_std"] = np.ones(6, np.float32)
    return path


def opened_in(path: Path) -> float:
    """Seconds, in a new process, imports apart."""
    code = (
        "import sys, time; from plimsoll.recipes.control.rows import ControlRows; started = time.perf_counter();"
        " rows = ControlRows(sys.argv[1], split='none'); rows.spec, rows.training_rows, rows.spreads;"
        " print(time.perf_counter() - started)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def linear(given: argparse.Namespace) -> int:
    """Least squares of all numbers of a window and a one, over every row that is trained on; the recipe's own R^2."""
    rows = ControlRows(given.file, split="variant")
    batches = rows.loader(batch_size=8192, seed=0, mix=MIX, skip_bad=False, prefetch=2)
    features = int(np.prod(rows.spec["inputs"][0])) + 1
    squares = np.zeros((6, features, features))
    products = np.zeros((6, features))
    for _ in range(rows.training_rows // 8192):
        batch = next(batches)
        windows = with_one(batch["inputs"])
        for output in range(6):
            there = batch["masks"][:, output] > 0
            mine = windows[there]
            squares[output] += mine.T @ mine
            products[output] += mine.T @ batch["controls"][there, output]
    batches.close()
    ridge = 1e-6 * np.eye(features)
    weights = [np.linalg.solve(a + np.trace(a) / features * ridge, b) for a, b in zip(squares, products, strict=True)]
    wrong, power = np.zeros(len(rows.families)), np.zeros(len(rows.families))
    for batch in rows.validation(most=20_000, batch_size=1024):
        guessed = with_one(batch["inputs"]) @ np.stack(weights, axis=1)
        np.add.at(wrong, batch["family"], (batch["masks"] * (guessed - batch["controls"]) ** 2).sum(axis=1))
        np.add.at(power, batch["family"], (batch["masks"] * batch["controls"] ** 2).sum(axis=1))
    r2 = 1 - wrong / power
    worst = sorted(zip(r2, rows.families, strict=True))[:3]
    words = ", ".join(f"{name} {one:.2f}" for one, name in worst)
    print(f"the best linear map of a window: macro R^2 {r2.mean():.3f}, median {np.median(r2):.3f}; worst {words}")
    return 0


def with_one(inputs: np.ndarray) -> np.ndarray:
    flat = inputs.reshape(len(inputs), -1)
    return np.concatenate([flat, np.ones((len(flat), 1), np.float32)], axis=1)


if __name__ == "__main__":
    raise SystemExit(main())
