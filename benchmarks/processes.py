"""One run by one process and by two, each on a core of its own: what the second one brings.

    python benchmarks/processes.py [--rounds 3] [--steps 40]

The same command line, data, effective batch and number of micro-batches; two processes join by `--coordinator`, have
half of every micro-batch each, and add up their gradients over Gloo. In turn, 1 2 1 2; of each the median step after
the first quarter. Efficiency is the time of one process over twice that of two. The losses of both are compared: the
second process changes who computes, not what is learned. Writes bench-out/processes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from training_process import ENVIRONMENT, PLIMSOLL

PLAN = (
    "--remat none --loss-chunk 0 --precision float32 --prefetch 1 --async-save False --max-examples 200"
    " --eval-every 0 --save-every 1000000 --log-every 1 --quiet"
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--micro-batch", type=int, default=16)
    options.add_argument("--width", type=int, default=192)
    options.add_argument("--layers", type=int, default=4)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="plimsoll-processes-") as folder:
        rounds = [
            {count: trained(given, count, Path(folder) / f"{number}-{count}") for count in (1, 2)}
            for number in range(given.rounds)
        ]
    seconds = {count: [each[count]["seconds"] for each in rounds] for count in (1, 2)}
    one, two = (median(seconds[count]) for count in (1, 2))
    apart = max(
        abs(a - b) / abs(b) for each in rounds for a, b in zip(each[2]["losses"], each[1]["losses"], strict=True)
    )
    parameters = rounds[0][1]["parameters"]
    found = {"options": vars(given), "seconds": seconds, "parameters": parameters, "efficiency": one / (2 * two)}
    found["losses_apart"] = apart
    out = Path("bench-out/processes.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1))
    print(f"{parameters:,} parameters, {given.batch_size} windows a step in micro-batches of {given.micro_batch}")
    print(f"one process   {one:.3f} s a step   of {', '.join(f'{each:.3f}' for each in seconds[1])}")
    print(f"two processes {two:.3f} s a step   of {', '.join(f'{each:.3f}' for each in seconds[2])}")
    print(f"speed-up {one / two:.2f}, efficiency {one / (2 * two):.0%}; losses at most {apart:.1e} apart")


def trained(given: argparse.Namespace, count: int, run: Path) -> dict[str, Any]:
    sizes = f"--width {given.width} --layers {given.layers} --heads {given.width // 32} --steps {given.steps}"
    split = f"--batch-size {given.batch_size} --micro-batch {given.micro_batch}"
    command = [*PLIMSOLL, "train", "code", *sizes.split(), *split.split(), *PLAN.split(), "--run", str(run)]
    if count > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command += ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count)]
    cores = sorted(os.sched_getaffinity(0))
    processes = [
        subprocess.Popen(
            [*command, *(["--process", str(number)] if count > 1 else [])],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            preexec_fn=partial(os.sched_setaffinity, 0, {cores[number]}),
        )
        for number in range(count)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{count} processes ended with {codes}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "loss" in row]
    kept = steps[len(steps) // 4 :]
    planned = json.loads((run / "plan.json").read_text())
    return {
        "seconds": median(row["step_seconds"] for row in kept),
        "losses": [row["loss"] for row in steps],
        "parameters": planned["parameters"],
    }


if __name__ == "__main__":
    main()
