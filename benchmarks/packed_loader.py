"""Windows of a packed file: how fast they are read on one core, and what stays in memory.

    python benchmarks/packed_loader.py                        # a file of 512 MiB, windows of 1,024 tokens
    python benchmarks/packed_loader.py --seq-len 32768 --batch 4

Each way reads every window twice, in a shuffled order, in a process of its own on one core, in turn; medians of the
second time, when a memory map has all of its pages. Beside ours: rows gathered from a memory map, and the way of the
original, a file of int64 for each chunk (.npy here, of 4,096 of the windows). `resident` is what the process grew by.
On a machine that others use, the rate of CPU time says more than that of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from goals import verdict

ROOT = Path(__file__).parents[1]
VOCABULARY = 8_192
FILES = 4_096
GOAL, SHARE = 1_000_000, 0.5
"""Rows/s of 1,024 tokens, and of what a memory map gives."""
SLICE = 2**22


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=2**28)
    options.add_argument("--seq-len", type=int, default=1024)
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--folder", help="where the files are written; default a temporary one")
    options.add_argument("--out", type=Path, default=ROOT / "bench-out/packed_loader.json")
    options.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(one(given)))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        write(Path(folder), given)
        rounds = [{name: asked(name, folder, given) for name in WAYS} for _ in range(given.rounds)]
    found = {name: {of: statistics.median(each[name][of] for each in rounds) for of in MEASURED} for name in WAYS}
    file_bytes = given.tokens * 2
    print(
        f"{given.tokens:,} tokens, {file_bytes / 2**20:,.0f} MiB; windows of {given.seq_len:,}, {given.batch} a batch"
    )
    for name, way in found.items():
        first, rate, cpu, grown = (way[of] for of in MEASURED)
        print(
            f"{name:24s} {rate:12,.0f} rows/s (first time {first:12,.0f}, of its CPU time {cpu:12,.0f})"
            f"  resident {grown / 2**20:8,.1f} MiB"
        )
    ours, mapped = (found[name]["rows_per_second"] for name in ("plimsoll", "memory map"))
    goal = GOAL * 1024 / given.seq_len
    met = ours >= SHARE * mapped and ours >= goal
    print(
        f"of a memory map: {ours / mapped:.0%} (goal {SHARE:.0%}); of {goal:,.0f} rows/s: {ours / goal:.0%}:"
        f" {verdict(met=met)}"
    )
    about = {"tokens": given.tokens, "file_bytes": file_bytes, "seq_len": given.seq_len, "batch": given.batch}
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(about | {"ways": found, "rounds": rounds}, indent=1))
    return 0 if met else 1


def write(folder: Path, given: argparse.Namespace) -> None:
    """A packed folder of random ids, and the same of its beginning in many files."""
    random = np.random.default_rng(0)
    with open(folder / "tokens.bin", "wb") as file:
        for first in range(0, given.tokens, SLICE):
            random.integers(0, VOCABULARY, min(SLICE, given.tokens - first), dtype=np.uint16).tofile(file)
    (folder / "validation.bin").write_bytes(b"")
    np.save(folder / "documents.npy", np.zeros(1, np.int64))
    (folder / "tokenizer.json").write_text("{}")
    told = {"format": 1, "dtype": "uint16", "vocab_size": VOCABULARY, "end_of_text": 0, "source": "random ids"}
    sizes = {"tokens": given.tokens, "validation_tokens": 0, "documents": 1}
    (folder / "meta.json").write_text(json.dumps(told | sizes))
    (folder / "chunks").mkdir()
    tokens = np.fromfile(folder / "tokens.bin", np.uint16, FILES * given.seq_len)
    for place, chunk in enumerate(tokens[: len(tokens) // given.seq_len * given.seq_len].reshape(-1, given.seq_len)):
        np.save(folder / f"chunks/{place:06d}.npy", chunk.astype(np.int64))


def asked(name: str, folder: str, given: argparse.Namespace) -> dict[str, float]:
    words = ["--one", name, "--folder", folder, "--seq-len", given.seq_len, "--batch", given.batch]
    done = subprocess.run([sys.executable, __file__, *map(str, words)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def one(given: argparse.Namespace) -> dict[str, float]:
    """Two epochs on one core. What is imported is in memory before the first of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows, batches = WAYS[given.one](Path(given.folder), given)
    before, rates, of_cpu = resident_bytes(), [], []
    for _ in range(2):
        started, cpu, read = time.perf_counter(), time.process_time(), 0
        while read + given.batch <= rows:
            read += len(next(batches))
        rates.append(read / (time.perf_counter() - started))
        of_cpu.append(read / (time.process_time() - cpu))
    return {
        "first_rows_per_second": rates[0],
        "rows_per_second": rates[1],
        "rows_per_cpu_second": of_cpu[1],
        "grown_bytes": peak_resident_bytes() - before,
    }


MEASURED = ("first_rows_per_second", "rows_per_second", "rows_per_cpu_second", "grown_bytes")


def ours(folder: Path, given: argparse.Namespace, *, prefetch: int = 0) -> tuple[int, Iterator[np.ndarray]]:
    from plimsoll.data.packed.packed import open_packed
    from plimsoll.data.packed.windows import packed_loader

    loader = packed_loader(folder, seq_len=given.seq_len, batch_size=given.batch, seed=1, prefetch=prefetch)
    return open_packed(folder).windows(given.seq_len), (batch["tokens"] for batch in loader)


def prefetched(folder: Path, given: argparse.Namespace) -> tuple[int, Iterator[np.ndarray]]:
    """Reads as a run does: in a thread, which has the same core here."""
    return ours(folder, given, prefetch=2)


def mapped(folder: Path, given: argparse.Namespace) -> tuple[int, Iterator[np.ndarray]]:
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r").view(np.ndarray)
    table = tokens[: len(tokens) // given.seq_len * given.seq_len].reshape(-1, given.seq_len)
    return len(table), (table[rows] for rows in shuffled(len(table), given.batch))


def a_file_each(folder: Path, given: argparse.Namespace) -> tuple[int, Iterator[np.ndarray]]:
    paths = sorted((folder / "chunks").iterdir())
    read = (np.stack([np.load(paths[row]) for row in rows.tolist()]) for rows in shuffled(len(paths), given.batch))
    return len(paths), read


WAYS = {"plimsoll": ours, "plimsoll, in a thread": prefetched, "memory map": mapped, "a file for each": a_file_each}


def shuffled(count: int, batch: int) -> Iterator[np.ndarray]:
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(count)
        for first in range(0, count - batch + 1, batch):
            yield order[first : first + batch]


def resident_bytes() -> int:
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit("resident memory is read from /proc, which this system has not")


if __name__ == "__main__":
    raise SystemExit(main())
