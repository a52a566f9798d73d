"""Loaders: how fast windows of packed rows, of an HDF5 file and of text are read, and whether training waits for them.

    python benchmarks/loaders.py packed                        # a file of 512 MiB, windows of 1,024 tokens
    python benchmarks/loaders.py packed --seq-len 32768 --batch 4
    plimsoll prepare control --samples 400k --out windows.h5
    python benchmarks/loaders.py windows windows.h5            # one epoch, shuffled, beside h5py front to back
    python benchmarks/loaders.py text                          # Python's own source, 16 windows of 1,024 tokens a batch

`packed`: each way reads every window twice, in a shuffled order, in a process of its own on one core, in turn; medians
of the second time, when a memory map has all of its pages. `resident` is what the process grew by.

`text`: how fast text is tokenised, by one thread and by all cores, and read, from a file that was tokenised once and
from a stream that is tokenised as it is read. Needs no card: a consumer that sleeps stands in its place, takes a batch,
and sleeps as long as a card would work on it. `waited` is the share of the time that it had to wait for batches, after
the first one.

Each way is asked in turn, medians of the rounds. On a machine that others use, the rate of CPU time says more than that
of the clock. Writes bench-out/loaders-WHAT.json (--out), and ends with 1 where a goal is missed.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import ROOT, busy_seconds, verdict, write
from peers.programs import resident_bytes

from plimsoll.files.facts import Facts
from plimsoll.files.manifest import finish
from plimsoll.processes.cache import cache_folder

VOCABULARY = 8_192
SLICE = 2**22
PACKED_ROWS = 40_000
"""Goal: rows of 1,024 tokens for a second of CPU time."""
PACKED_MEASURED = ("first_rows_per_second", "rows_per_second", "rows_per_cpu_second", "grown_bytes")

WINDOWS_BATCH, WINDOWS_MIX = 1024, 16
WINDOWS_SHARE = 0.7
"""Goal: of what h5py reads front to back."""

TEXT_VOCABULARY = 4_096
TOKENIZER = "tokenizer.json"
TEXT_SCALES, TEXT_RATE, TEXT_WAITED = 0.8, 500_000, 0.02
"""Goals: of N times one thread's rate; tokens/s from the file for two cores; share of the time."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = options.add_subparsers(dest="kind", required=True)
    each = {name: kinds.add_parser(name) for name in ("packed", "windows", "text")}
    for name, of_kind in each.items():
        of_kind.add_argument("--rounds", type=int, default=3)
        of_kind.add_argument("--out", type=Path, default=ROOT / f"bench-out/loaders-{name}.json")
        of_kind.add_argument("--folder", help="where the files are written; default a temporary one")
    for name in ("packed", "text"):
        each[name].add_argument("--seq-len", type=int, default=1024)
        each[name].add_argument("--one", help=argparse.SUPPRESS)
    each["packed"].add_argument("--tokens", type=int, default=2**28)
    each["packed"].add_argument("--batch", type=int, default=256)
    each["windows"].add_argument("file", type=Path, help="made by `plimsoll prepare control`")
    each["text"].add_argument("--card", type=int, default=500_000, help="tokens/s that the card takes from the file")
    each["text"].add_argument("--slow-card", type=int, default=300_000, help="the same from a stream")
    each["text"].add_argument("--batch", type=int, default=16)
    each["text"].add_argument("--shuffle", type=int, default=640, help="windows")
    each["text"].add_argument("--batches", type=int, default=160)
    each["text"].add_argument("--documents", type=int, help="of Python's source; default all")
    given = options.parse_args()
    if getattr(given, "one", None):
        print(json.dumps({"packed": packed_way, "text": text_way}[given.kind](given)))
        return 0
    return {"packed": packed, "windows": windows, "text": text}[given.kind](given)


def asked(name: str, folder: str, given: argparse.Namespace) -> dict[str, float]:
    """Runs one way in a process of its own, and adds the cores that other programs took meanwhile."""
    words = [given.kind, "--one", name, "--folder", folder]
    for option, value in vars(given).items():
        if option not in ("kind", "one", "folder", "out", "rounds") and value is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    began, busy = time.perf_counter(), busy_seconds()
    done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    others = busy_seconds() - busy - found.pop("process_seconds")
    return found | {"cores_taken_by_others": max(0.0, others / (time.perf_counter() - began))}


def medians(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {figure: statistics.median(each[name][figure] for each in rounds) for figure in rounds[0][name]}
        for name in rounds[0]
    }


def packed(given: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        write_packed(Path(folder), given)
        rounds = [{name: asked(name, folder, given) for name in PACKED} for _ in range(given.rounds)]
    found, file_bytes = medians(rounds), given.tokens * 2
    print(
        f"{given.tokens:,} tokens, {file_bytes / 2**20:,.0f} MiB; windows of {given.seq_len:,}, {given.batch} a batch"
    )
    for name, way in found.items():
        first, rate, cpu, grown = (way[of] for of in PACKED_MEASURED)
        print(
            f"{name:24s} {rate:12,.0f} rows/s (first time {first:12,.0f}, of its CPU time {cpu:12,.0f})"
            f"  resident {grown / 2**20:8,.1f} MiB"
        )
    rate = found["plimsoll"]["rows_per_cpu_second"]
    goal = PACKED_ROWS * 1024 / given.seq_len
    met = rate >= goal
    print(f"rows for a second of CPU time: {rate:,.0f} (goal: at least {goal:,.0f}: {verdict(met=met)})")
    about = {"tokens": given.tokens, "file_bytes": file_bytes, "seq_len": given.seq_len, "batch": given.batch}
    write(given.out, about | {"ways": found, "rounds": rounds})
    return 0 if met else 1


def write_packed(folder: Path, given: argparse.Namespace) -> None:
    """A packed folder of random ids, in one shard."""
    random, shard = np.random.default_rng(0), folder / "shard_00000"
    shard.mkdir()
    with open(shard / "tokens.bin", "wb") as file:
        for first in range(0, given.tokens, SLICE):
            random.integers(0, VOCABULARY, min(SLICE, given.tokens - first), dtype=np.uint16).tofile(file)
    (shard / "validation.bin").write_bytes(b"")
    (folder / TOKENIZER).write_text("{}")
    counts: dict[str, Any] = {"dtype": "uint16", "vocab_size": VOCABULARY, "end_of_text": 0, "source": "random ids"}
    counts["shards"] = [{"tokens": given.tokens, "documents": 1}]
    (folder / "meta.json").write_text(json.dumps({"made_with": Facts().to_json(), "counts": counts}))
    finish(folder)


def packed_way(given: argparse.Namespace) -> dict[str, float]:
    """Two epochs on one core. What is imported is in memory before the first of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows, batches = PACKED[given.one](Path(given.folder), given)
    before, rates, of_cpu = resident_bytes("VmRSS"), [], []
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
        "grown_bytes": resident_bytes("VmHWM") - before,
        "process_seconds": time.process_time(),
    }


def ours(folder: Path, given: argparse.Namespace, *, prefetch: int = 0) -> tuple[int, Iterator[np.ndarray]]:
    from plimsoll.data.packed.packed import open_packed
    from plimsoll.data.packed.windows import packed_loader

    loader = packed_loader(folder, seq_len=given.seq_len, batch_size=given.batch, seed=1, prefetch=prefetch)
    return open_packed(folder).windows(given.seq_len), (batch["tokens"] for batch in loader)


def prefetched(folder: Path, given: argparse.Namespace) -> tuple[int, Iterator[np.ndarray]]:
    """Reads as a run does: in a thread, which has the same core here."""
    return ours(folder, given, prefetch=2)


def mapped(folder: Path, given: argparse.Namespace) -> tuple[int, Iterator[np.ndarray]]:
    tokens = np.memmap(folder / "shard_00000/tokens.bin", np.uint16, "r").view(np.ndarray)
    table = tokens[: len(tokens) // given.seq_len * given.seq_len].reshape(-1, given.seq_len)
    return len(table), (table[rows] for rows in shuffled(len(table), given.batch))


PACKED = {"plimsoll": ours, "plimsoll, in a thread": prefetched, "memory map": mapped}


def shuffled(count: int, batch: int) -> Iterator[np.ndarray]:
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(count)
        for first in range(0, count - batch + 1, batch):
            yield order[first : first + batch]


def windows(given: argparse.Namespace) -> int:
    ways = {"h5py, front to back": front_to_back, "plimsoll, shuffled": shuffled_epoch}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            rates[name].append(way(given.file))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        print(f"{name:24s} {middle[name]:12,.0f} rows/s   ({', '.join(f'{rate:,.0f}' for rate in found)})")
    front, own = middle.values()
    met = own >= WINDOWS_SHARE * front
    print(f"of front to back: {own / front:.0%} (goal {WINDOWS_SHARE:.0%}: {verdict(met=met)})")
    write(given.out, {"rows_per_second": middle, "rounds": rates})
    return 0 if met else 1


def front_to_back(path: Path) -> float:
    """Returns rows/s of the datasets that the recipe reads."""
    import h5py

    from plimsoll.recipes.control.rows import COLUMNS

    started = time.perf_counter()
    with h5py.File(path) as file:
        datasets = [file[place] for place in COLUMNS.values()]
        rows, size = len(datasets[0]), datasets[0].chunks[0]
        for at in range(0, rows, size):
            for dataset in datasets:
                dataset[at : at + size]
    return rows / (time.perf_counter() - started)


def shuffled_epoch(path: Path) -> float:
    """Begins with opening, as the other does; the thread that reads ahead included."""
    from plimsoll.recipes.control.rows import ControlRows

    started = time.perf_counter()
    source = ControlRows(str(path), split="variant")
    batches = source.loader(batch_size=WINDOWS_BATCH, seed=0, mix=WINDOWS_MIX, skip_bad=False, prefetch=2)
    count = source.training_rows // WINDOWS_BATCH
    for _ in range(count):
        next(batches)
    seconds = time.perf_counter() - started
    batches.close()
    return count * WINDOWS_BATCH / seconds


def text(given: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        os.environ |= {"PLIMSOLL_CACHE": folder, "TOKENIZERS_PARALLELISM": "false"}
        prepare_text(Path(folder), given)
        rounds = [{name: asked(name, folder, given) for name in TEXT} for _ in range(given.rounds)]
    found = medians(rounds)
    for name, way in found.items():
        words = "  ".join(f"{key.replace('_', ' ')} {value:,.3g}" for key, value in way.items())
        print(f"{name:16s} {words}")
    cores = len(os.sched_getaffinity(0))
    scaled = found["all cores"]["tokens_per_second"] / found["one thread"]["tokens_per_second"]
    goals = {
        f"tokenising on {cores} cores, times one thread's": (scaled, TEXT_SCALES * cores, True),
        "tokens/s from the file": (found["file"]["tokens_per_second_alone"], TEXT_RATE, True),
        f"waited at {given.card:,} tokens/s from the file": (found["file"]["waited"], TEXT_WAITED, False),
    }
    met: list[bool] = []
    for name, (value, goal, least) in goals.items():
        met.append(value >= goal if least else value <= goal)
        print(f"{name}: {value:,.4g} (goal: at {'least' if least else 'most'} {goal:,.4g}: {verdict(met=met[-1])})")
    about = {name: value for name, value in vars(given).items() if name not in ("out", "one", "folder")}
    write(given.out, {"cores": cores, **about, "ways": found, "rounds": rounds})
    return 0 if all(met) else 1


def prepare_text(folder: Path, given: argparse.Namespace) -> None:
    from plimsoll.data.packed.kept import tokenised
    from plimsoll.data.text.opening import python_sources
    from plimsoll.data.text.tokenizer import train_byte_bpe

    documents = python_sources(max_examples=given.documents)
    tokenizer = train_byte_bpe(documents, TEXT_VOCABULARY)
    tokenizer.save(folder / TOKENIZER)
    (folder / "name").write_text(tokenised(documents, tokenizer, lambda text: None).folder.name)


def text_way(given: argparse.Namespace) -> dict[str, float]:
    return TEXT[given.one](given) | {"process_seconds": time.process_time()}


def opened(given: argparse.Namespace) -> tuple[Any, Any]:
    from plimsoll.data.text.opening import python_sources
    from plimsoll.data.text.tokenizer import load_tokenizer

    return python_sources(max_examples=given.documents), load_tokenizer(Path(given.folder) / TOKENIZER)


def encode(given: argparse.Namespace, workers: int | None) -> dict[str, float]:
    from plimsoll.data.packed.encoding import encoded, in_threads

    documents, tokenizer = opened(given)
    began, cpu = time.perf_counter(), time.process_time()
    with in_threads(tokenizer, workers=workers) as encoder:
        tokens = sum(len(ids) for _, ids, _ in encoded(documents.pieces(), encoder))
    cpu = time.process_time() - cpu
    return {"tokens_per_second": tokens / (time.perf_counter() - began), "tokens_per_cpu_second": tokens / cpu}


def from_file(given: argparse.Namespace) -> Iterator[Any]:
    from plimsoll.data.packed.packed import open_packed
    from plimsoll.data.text.loader import packed_text_loader

    packed = open_packed(cache_folder() / "tokens" / (Path(given.folder) / "name").read_text())
    sizes = {"seq_len": given.seq_len, "stride": given.seq_len, "batch_size": given.batch}
    return packed_text_loader(packed, seed=42, prefetch=2, **sizes)


def from_stream(given: argparse.Namespace) -> Iterator[Any]:
    from plimsoll.data.text.loader import text_loader
    from plimsoll.data.text.windows import encoding_threads

    sizes = {"seq_len": given.seq_len, "batch_size": given.batch, "shuffle_buffer_size": given.shuffle}
    return text_loader(*opened(given), threads=encoding_threads(), **sizes)


def waits(given: argparse.Namespace, loader: Iterator[Any], card: int) -> dict[str, float]:
    """Returns how long a sleeping consumer waited, and the rate of one that does not sleep."""
    tokens = given.seq_len * given.batch
    began = time.perf_counter()
    next(loader)
    first = time.perf_counter() - began
    waited, began, cpu = 0.0, time.perf_counter(), time.process_time()
    for _ in range(given.batches):
        time.sleep(tokens / card)
        asking = time.perf_counter()
        next(loader)
        waited += time.perf_counter() - asking
    slept = time.perf_counter() - began
    cpu = time.process_time() - cpu
    began = time.perf_counter()
    for _ in range(given.batches):
        next(loader)
    return {
        "card": card,
        "waited": waited / slept,
        "tokens_per_second": given.batches * tokens / slept,
        "tokens_per_second_alone": given.batches * tokens / (time.perf_counter() - began),
        "tokens_per_cpu_second": given.batches * tokens / cpu,
        "first_batch_seconds": first,
    }


TEXT: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "one thread": lambda given: encode(given, 1),
    "all cores": lambda given: encode(given, None),
    "file": lambda given: waits(given, from_file(given), given.card),
    "stream": lambda given: waits(given, from_stream(given), given.slow_card),
}


if __name__ == "__main__":
    raise SystemExit(main())
