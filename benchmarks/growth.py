"""No growth: a real training process of many tiny steps, its resident set, descriptors and threads from outside; and
what saving costs.

    python benchmarks/growth.py --steps 20000 [--save-seconds 60]

The process trims its heap whenever what is left between steps has grown by 4 MiB (training/memory.py), so what is seen
here is after a trim. What the first save brings into the process, some 13 MiB of modules, stays. Of windows of steps
the median counts: goal at most 4 MiB more in the last window than after the first 500 steps, the same number of
descriptors and threads. Saving: the seconds of all steps beside or right after a save beyond those of an ordinary step,
per save, over `--save-seconds`; goal at most 3 %. Writes bench-out/growth.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from goals import verdict
from training_process import ENVIRONMENT, MIB, PLIMSOLL, SOURCE

WINDOW = 500
"""Steps."""
MOST_MIB, MOST_SHARE = 4, 0.03
"""Goals: growth at the end, and what of the time is spent on a save a minute."""
SAMPLE_SECONDS = 0.25
MODEL = "--width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 4 --shuffle-buffer-size 50"
PLAN = "--memory 900MiB --micro-batch 4 --remat none --loss-chunk 0 --precision float32 --prefetch 1"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=20_000)
    options.add_argument("--save-every", type=int, default=250, help="the first within the first window: it stays")
    options.add_argument("--save-seconds", type=float, default=60.0, help="between saves, for their share of the time")
    options.add_argument("--out", type=Path, default=Path("bench-out/growth.json"))
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="plimsoll-growth-") as folder:
        found = measured(given, Path(folder))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    print(words(found))
    return 0 if found["sound"] else 1


def measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    run, text = folder / "run", folder / "text.txt"
    drawn = random.Random(0)
    text.write_text("\n\n".join(" ".join(drawn.choices("abcdefgh", k=60)) for _ in range(2000)))
    length = f"--steps {given.steps} --save-every {given.save_every} --eval-every 0 --log-every 10"
    command = [*PLIMSOLL, "train", "stories", "--dataset-id", str(text), *f"{MODEL} {PLAN} {length} --quiet".split()]
    process = subprocess.Popen(
        [*command, "--run", str(run)], env=ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    samples = sampled(process, run)
    if process.returncode:
        raise SystemExit(f"training ended with code {process.returncode}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    saves = [int(line.split()[-1]) for line in (run / "log.txt").read_text().splitlines() if "saved step" in line]
    return judged(samples, [row for row in rows if "loss" in row], saves, given)


def sampled(process: subprocess.Popen[Any], run: Path) -> list[tuple[int, int, int, int]]:
    """Returns of the training process its last step that is written, resident bytes, descriptors, threads."""
    found = []
    while process.poll() is None:
        time.sleep(SAMPLE_SECONDS)
        try:
            if b"plimsoll.worker" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                continue
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            values = {
                line.partition(":")[0]: line.split()[1] for line in status if ":" in line and len(line.split()) > 1
            }
            descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
            found.append((last_step(run), int(values["VmRSS"]) * 1024, descriptors, int(values["Threads"])))
        except (OSError, KeyError):
            continue
    return found


def last_step(run: Path) -> int:
    try:
        with open(run / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 2000))
            whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        return json.loads(whole)["step"] if whole else 0
    except (OSError, ValueError, KeyError):
        return 0


def judged(samples: list[Any], rows: list[Any], saves: list[int], given: argparse.Namespace) -> dict[str, Any]:
    """Resident bytes are the process's own, written between steps; the samples say descriptors and threads."""
    windows: dict[int, list[int]] = {}
    for row in rows:
        windows.setdefault((row["step"] - 1) // WINDOW, []).append(row["resident_bytes"])
    resident = {number * WINDOW: median(values) for number, values in sorted(windows.items())}
    after = [value for first, value in resident.items() if first >= WINDOW]
    whole = [sample for sample in samples if sample[0] >= WINDOW and sample[0] < given.steps - WINDOW]
    of_files = median(one[2] for one in whole[: len(whole) // 4]), median(one[2] for one in whole[-(len(whole) // 4) :])
    of_threads = (
        median(one[3] for one in whole[: len(whole) // 4]),
        median(one[3] for one in whole[-(len(whole) // 4) :]),
    )
    seconds = cost_of_a_save(rows, saves)
    growth, share = after[-1] - after[0], seconds / given.save_seconds
    return {
        "source": str(SOURCE.parent.name),
        "steps": given.steps,
        "resident_bytes_by_window": resident,
        "growth_bytes": growth,
        "most_growth_bytes": max(after) - after[0],
        "descriptors": of_files,
        "threads": of_threads,
        "saves": len(saves),
        "seconds_per_save": seconds,
        "share_of_saving": share,
        "sound": growth <= MOST_MIB * MIB
        and of_files[0] == of_files[1]
        and of_threads[0] == of_threads[1]
        and share <= MOST_SHARE,
    }


def cost_of_a_save(rows: list[Any], saves: list[int]) -> float:
    """Elapsed seconds between two rows with a save between them beyond those of rows without, in the median."""
    pairs = [(a["step"], b["step"], b["elapsed_seconds"] - a["elapsed_seconds"]) for a, b in pairwise(rows)]
    saving = [took for first, last, took in pairs if any(first <= step <= last for step in saves)]
    ordinary = median(took for first, last, took in pairs if not any(first <= step <= last for step in saves))
    of_save: dict[int, float] = {}
    for first, last, took in pairs:
        for step in saves:
            if first <= step <= last:
                of_save[step] = of_save.get(step, 0.0) + took - ordinary
    assert saving, "no save lies between two rows"
    return max(0.0, median(of_save.values()))


def words(found: dict[str, Any]) -> str:
    level = verdict(met=found["growth_bytes"] <= MOST_MIB * MIB)
    cheap = verdict(met=found["share_of_saving"] <= MOST_SHARE)
    windows = list(found["resident_bytes_by_window"].items())
    some = [windows[at] for at in sorted({*range(0, len(windows), max(1, len(windows) // 8)), len(windows) - 1})]
    return "\n".join(
        [
            *(
                f"from step {first:>6,}: {value / MIB:7.1f} MiB resident (median of {WINDOW} steps)"
                for first, value in some
            ),
            f"growth after the first {WINDOW} steps: {found['growth_bytes'] / MIB:+.1f} MiB at the end,"
            f" {found['most_growth_bytes'] / MIB:+.1f} MiB at most (goal {MOST_MIB}: {level})",
            f"descriptors {found['descriptors']}, threads {found['threads']}: first and last quarter",
            f"a save costs {found['seconds_per_save'] * 1e3:.0f} ms ({found['saves']} of them):"
            f" {found['share_of_saving']:.2%} of the time at one a minute (goal {MOST_SHARE:.0%}: {cheap})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
