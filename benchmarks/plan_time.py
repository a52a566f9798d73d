"""How long a plan takes: the first time, with an empty cache, and again from what was kept.

    python benchmarks/plan_time.py [--only 0]

A chip whose compile environment is not here answers with its reason, or an estimate: the table says which.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from training_process import ENVIRONMENT, PLIMSOLL

GPT = ["stories", "--target-params", "124M", "--seq-len", "1024", "--batch-size", "512"]
CASES: list[tuple[str, list[str], float, float | None]] = [
    # name, command, goals in seconds: first, again
    ("10M on this CPU", ["stories", "--target-params", "10M", "--memory", "2GiB"], 30, 2),
    ("124M on an h200", [*GPT, "--chip", "h200"], 60, None),
    ("124M on a tpu-v4-64", [*GPT, "--chip", "tpu-v4-64"], 180, None),
]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", type=int, nargs="*", default=list(range(len(CASES))))
    rows = [row(*CASES[at]) for at in options.parse_args().only]
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "plan-time.json").write_text(json.dumps(rows, indent=2))
    return 0 if all(one["met"] for one in rows) else 1


def row(name: str, words: list[str], first_goal: float, again_goal: float | None) -> dict:
    with tempfile.TemporaryDirectory() as cache:
        first, said = took(words, cache)
        again, _ = took(words, cache)
    met = first <= first_goal and (again_goal is None or again <= again_goal) and said in ("compiled", "estimated")
    goals = f"goals {first_goal:.0f} s" + (f" and {again_goal:.0f} s" if again_goal is not None else "")
    print(
        f"{name:22} first {first:6.1f} s, again {again:5.1f} s ({goals}){'' if met else ' MISSED'}: {said}", flush=True
    )
    return {"name": name, "first_seconds": first, "again_seconds": again, "said": said, "met": met}


def took(words: list[str], cache: str) -> tuple[float, str]:
    """Seconds of the whole command, and where its figures come from, or why there are none."""
    command = [*PLIMSOLL, "plan", *words, "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, env=ENVIRONMENT | {"PLIMSOLL_CACHE": cache}, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if not done.stdout.strip():
        return seconds, done.stderr.strip().splitlines()[-1]
    found = json.loads(done.stdout)
    return seconds, found["source"] if found["fits"] else found["reason"].splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
