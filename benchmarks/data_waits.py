"""Text for a card: how fast it is tokenised and read, and how long a card would wait for it. Needs no card.

    python benchmarks/data_waits.py                       # Python's own source, 16 windows of 1,024 tokens a batch
    python benchmarks/data_waits.py --card 630000         # a card that takes so many tokens/s

A consumer that sleeps stands in the card's place: it takes a batch, and sleeps as long as a card would work on it.
`waited` is the share of the time that it had to wait for batches, after the first one. Ways of reading, in turn, each
in a process of its own, medians of the rounds:

    file            text that was tokenised once, as local text is read
    stream          text that is tokenised as it is read, as a hub's is: by all cores, the shuffle filled as it empties
    stream before   one thread, and Grain's shuffle, which is filled before the first window leaves it

`cores taken by others` says whether the figures mean anything.
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

import psutil
from goals import verdict

ROOT = Path(__file__).parents[1]
VOCABULARY = 4_096
TOKENIZER = "tokenizer.json"
SCALES, FILE_RATE, WAITED = 0.8, 500_000, 0.02
"""Goals: of N times one thread's rate; tokens/s from the file for two cores; share of the time."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--card", type=int, default=500_000, help="tokens/s that the card takes from the file")
    options.add_argument("--slow-card", type=int, default=300_000, help="the same from a stream")
    options.add_argument("--seq-len", type=int, default=1024)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--shuffle", type=int, default=640, help="windows")
    options.add_argument("--batches", type=int, default=160)
    options.add_argument("--documents", type=int, default=None, help="of Python's source; default all")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path, default=ROOT / "bench-out/data_waits.json")
    options.add_argument("--one", choices=[*ENCODE, *WAYS], help=argparse.SUPPRESS)
    options.add_argument("--folder", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps((ENCODE | WAYS)[given.one](given)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"PLIMSOLL_CACHE": folder, "TOKENIZERS_PARALLELISM": "false"}
        prepare(Path(folder), given)
        rounds = [{name: asked(name, folder, given) for name in [*ENCODE, *WAYS]} for _ in range(given.rounds)]
    found = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in rounds[0][name]}
        for name in rounds[0]
    }
    for name, way in found.items():
        words = "  ".join(f"{key.replace('_', ' ')} {value:,.3g}" for key, value in way.items() if key != "tokens")
        print(f"{name:16s} {words}")
    one, all_cores = (found[name]["tokens_per_second"] for name in ENCODE)
    cores = len(os.sched_getaffinity(0))
    goals = {
        f"tokenising on {cores} cores, times one thread's": (all_cores / one, SCALES * cores, True),
        "tokens/s from the file": (found["file"]["tokens_per_second_alone"], FILE_RATE, True),
        f"waited at {given.card:,} tokens/s from the file": (found["file"]["waited"], WAITED, False),
    }
    met: list[bool] = []
    for name, (value, goal, least) in goals.items():
        met.append(value >= goal if least else value <= goal)
        outcome = verdict(met=met[-1])
        print(f"{name}: {value:,.4g} (goal: at {'least' if least else 'most'} {goal:,.4g}: {outcome})")
    about = {name: value for name, value in vars(given).items() if name not in ("out", "one", "folder")}
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps({"cores": cores, **about, "ways": found, "rounds": rounds}, indent=1))
    return 0 if all(met) else 1


def prepare(folder: Path, given: argparse.Namespace) -> None:
    from plimsoll.data.packed.kept import tokenised
    from plimsoll.data.text.opening import python_sources
    from plimsoll.data.text.tokenizer import train_byte_bpe

    documents = python_sources(max_examples=given.documents)
    tokenizer = train_byte_bpe(documents, VOCABULARY)
    tokenizer.save(folder / TOKENIZER)
    (folder / "name").write_text(tokenised(documents, tokenizer, lambda text: None).folder.name)


def asked(name: str, folder: str, given: argparse.Namespace) -> dict[str, float]:
    """Runs one way in a process of its own, and adds the cores that other programs took meanwhile."""
    words = ["--one", name, "--folder", folder]
    for option in ("card", "slow_card", "seq_len", "batch", "shuffle", "batches", "documents"):
        if (value := getattr(given, option)) is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    began, busy = time.perf_counter(), busy_seconds()
    done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    others = busy_seconds() - busy - found.pop("process_seconds")
    return found | {"cores_taken_by_others": max(0.0, others / (time.perf_counter() - began))}


def busy_seconds() -> float:
    times = psutil.cpu_times()
    return times.user + times.system


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
    return {
        "tokens_per_second": tokens / (time.perf_counter() - began),
        "tokens_per_cpu_second": tokens / cpu,
        "process_seconds": time.process_time(),
    }


def from_file(given: argparse.Namespace) -> Iterator[Any]:
    from plimsoll.data.packed.kept import kept
    from plimsoll.data.packed.stream_order import stream_order_loader

    packed = kept((Path(given.folder) / "name").read_text())
    assert packed is not None
    sizes = {"seq_len": given.seq_len, "stride": given.seq_len, "batch_size": given.batch}
    return stream_order_loader(packed, shuffle_buffer_size=given.shuffle, seed=42, prefetch=2, **sizes)


def from_stream(given: argparse.Namespace) -> Iterator[Any]:
    from plimsoll.data.text.loader import text_loader
    from plimsoll.data.text.windows import encoding_threads

    sizes = {"seq_len": given.seq_len, "batch_size": given.batch, "shuffle_buffer_size": given.shuffle}
    return text_loader(*opened(given), threads=encoding_threads(), **sizes)


def from_stream_before(given: argparse.Namespace) -> Iterator[Any]:
    from grain.experimental import WindowShuffleIterDataset

    from plimsoll.data.batch_source import BatchSource
    from plimsoll.data.text.loader import batched
    from plimsoll.data.text.windows import TokenWindows

    windows = TokenWindows(*opened(given), seq_len=given.seq_len)
    shuffled = WindowShuffleIterDataset(windows, window_size=given.shuffle, seed=42)
    return BatchSource(batched(shuffled, batch_size=given.batch, seq_len=given.seq_len), prefetch=2)


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
        "process_seconds": time.process_time(),
    }


ENCODE: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "one thread": lambda given: encode(given, 1),
    "all cores": lambda given: encode(given, None),
}
WAYS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "file": lambda given: waits(given, from_file(given), given.card),
    "stream": lambda given: waits(given, from_stream(given), given.slow_card),
    "stream before": lambda given: waits(given, from_stream_before(given), given.slow_card),
}


if __name__ == "__main__":
    raise SystemExit(main())
