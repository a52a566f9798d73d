"""Tokenising by one, two and four processes: the time, and that each has the same ids in a cache of its own.

    python benchmarks/shared_tokens.py [--copies 4] [--rounds 3] [--processes 1 2 4]

The text is Python's standard library, `--copies` times with another first line; every process has one core, as far as
there are cores, and a cache of its own. The time is from the first process's start of encoding until all have the ids;
the processor time of the busiest process says what more cores would bring.
Writes bench-out/shared_tokens.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from text_vs_trainer import conditions

CHILD = """
import hashlib, json, os, sys, time
number, count, port, home, text = sys.argv[1:]
number, count = int(number), int(count)
os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))]])
os.environ["PLIMSOLL_CACHE"] = f"{home}/cache-{number}"
from plimsoll.cache import cache_folder
from plimsoll.data.packed.by_processes import helped_by, receive_folder, send_folder, wait_and_encode
from plimsoll.data.packed.kept import tokenised
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.training import distributed
if count > 1:
    distributed.join(f"127.0.0.1:{port}", count, number)
    board = distributed.Board()
distributed.barrier("begin")
start, begun = time.monotonic(), time.process_time()
if number == 0:
    documents, tokenizer = open_documents(text), load_tokenizer(f"{home}/tokenizer.json")
    if count == 1:
        packed = tokenised(documents, tokenizer, lambda words: None)
    else:
        with helped_by(board, count):
            packed = tokenised(documents, tokenizer, lambda words: None)
        board.write("session", packed.folder.name)
        send_folder(board, packed.folder.name, range(1, count))
    name = packed.folder.name
else:
    name = wait_and_encode(board, number, "session")
    receive_folder(board, number, name)
seconds = time.monotonic() - start
ids = hashlib.sha256((cache_folder() / "tokens" / name / "tokens.bin").read_bytes()).hexdigest()
print(json.dumps({"seconds": seconds, "ids": ids, "process_seconds": time.process_time() - begun}), flush=True)
if count > 1:
    distributed.leave()
"""
TOKENIZER = """
import sys
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.tokenizer import train_byte_bpe
train_byte_bpe(open_documents(sys.argv[1]), 4096).save(sys.argv[2])
"""


def tokenised(count: int, home: Path, text: Path) -> list[dict]:
    """Returns what each of so many processes measured."""
    with socket.socket() as free, tempfile.TemporaryDirectory(dir=home) as caches:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        os.link(home / "tokenizer.json", Path(caches) / "tokenizer.json")
        started = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, *map(str, (number, count, port, caches, text))],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]
        return [json.loads(each.communicate(timeout=900)[0].splitlines()[-1]) for each in started]


def write_text(path: Path, copies: int) -> None:
    from plimsoll.data.text.opening import python_sources

    paths = python_sources().paths or []
    with open(path, "w", encoding="utf-8") as lines:
        for copy in range(copies):
            for source in paths:
                lines.write(json.dumps({"text": f"# copy {copy}\n{source.read_text('utf-8')}"}) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--copies", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    given = options.parse_args()
    seconds: dict[int, list[float]] = {count: [] for count in given.processes}
    busiest: dict[int, list[float]] = {count: [] for count in given.processes}
    ids = set()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        text = home / "text.jsonl"
        write_text(text, given.copies)
        subprocess.run([sys.executable, "-c", TOKENIZER, str(text), str(home / "tokenizer.json")], check=True)
        size = text.stat().st_size
        for _ in range(given.rounds):
            for count in seconds:
                found = tokenised(count, home, text)
                seconds[count].append(max(each["seconds"] for each in found))
                busiest[count].append(max(each["process_seconds"] for each in found))
                ids |= {each["ids"] for each in found}
                print(f"{count} processes: {seconds[count][-1]:.1f} s", flush=True)
    if len(ids) != 1:
        raise SystemExit("the processes have other ids")
    medians = {count: statistics.median(times) for count, times in seconds.items()}
    of_busiest = {count: statistics.median(times) for count, times in busiest.items()}
    out = Path("bench-out/shared_tokens.json")
    out.parent.mkdir(exist_ok=True)
    found = {
        "conditions": conditions(given),
        "text_bytes": size,
        "seconds": seconds,
        "medians": medians,
        "busiest": of_busiest,
    }
    out.write_text(json.dumps(found, indent=1))
    for count, median in medians.items():
        times = f"{medians[min(medians)] / median:.2f} times as fast"
        print(f"{count} processes: {median:.1f} s, {times}; the busiest {of_busiest[count]:.1f} s of CPU; the same ids")


if __name__ == "__main__":
    main()
