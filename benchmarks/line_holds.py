"""The line holds: one recipe under three budgets, and again in a memory control group that kills what goes over.

    python benchmarks/line_holds.py --text TEXT.txt [--budgets 430 600 900]

For every budget the command line plans and trains; the peak (`VmHWM`) must be at most the budget, the plans
differ, the losses agree. Then the same plans run in a control group whose hard limit is the budget less the
file-backed pages (a group does not charge for them, or takes them back): skipped, with the reason, where groups
cannot be made. That needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 2**20
GROUP = Path("/sys/fs/cgroup/memory/plimsoll-proof")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--text", default="../shared/data/text/tinystories_train.txt")
    options.add_argument("--budgets", type=int, nargs="*", default=[430, 600, 900])
    options.add_argument("--steps", type=int, default=20)
    given = options.parse_args()
    held = []
    with tempfile.TemporaryDirectory() as folder:
        for budget in given.budgets:
            held.append(trained(given, Path(folder) / f"free-{budget}", budget))
        for budget, free in zip(given.budgets, held, strict=True):
            in_group(given, Path(folder), budget, free)
    losses = [row["loss"] for row in held]
    spread = max(losses) / min(losses) - 1
    plans = {row["plan"] for row in held}
    print(f"{len(plans)} different plans of {len(held)}; final losses {losses}: {spread:.2%} apart")
    return 0 if all(row["peak"] <= row["budget"] * MIB for row in held) and spread < 0.01 else 1


def trained(given, run: Path, budget: int, *, plan: Path | None = None, start=None) -> dict:
    command = [
        sys.executable, "-m", "plimsoll.cli.main", "train", "stories", "--dataset-id", given.text, "--width", "256",
        "--layers", "8", "--heads", "4", "--vocab-size", "4096", "--seq-len", "512", "--batch-size", "16",
        "--shuffle-buffer-size", "1000", "--steps", str(given.steps), "--memory", f"{budget}MiB", "--run", str(run),
        "--save-every", "8", "--eval-every", "8", "--quiet", *(["--plan", str(plan)] if plan else []),
    ]  # fmt: skip
    most = files = 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=start)
    while process.poll() is None:
        resident = status(process.pid, "VmRSS")
        if resident > most:
            most, files = resident, status(process.pid, "RssFile")
        try:
            process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
    assert process.stderr is not None
    if process.returncode:
        print(f"budget {budget} MiB: ended with code {process.returncode}: {process.stderr.read().strip()[-400:]}")
        return {"budget": budget, "peak": 2**62, "files": files, "plan": "", "loss": float("nan"), "run": run}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ledger, planned = (json.loads((run / name).read_text()) for name in ("ledger.json", "plan.json"))
    lever = planned["plan"]
    row = {
        "budget": budget,
        "peak": ledger["measured"]["peak_bytes"],
        "files": files,
        "plan": f"{lever['micro_batch']} x {lever['accumulation']}, remat {lever['remat']}, {lever['precision']},"
        f" chunk {lever['loss_chunk']}, {'background' if lever['async_save'] else 'blocking'} save",
        "loss": next(row["loss"] for row in reversed(rows) if "loss" in row),
        "run": run,
    }
    predicted = ledger["predicted"]["peak_bytes"]
    print(
        f"budget {budget} MiB: predicted {predicted / MIB:.0f}, peak {row['peak'] / MIB:.0f} MiB"
        f" ({row['peak'] / budget / MIB:.0%}); {row['plan']}; loss {row['loss']:.4f}",
        flush=True,
    )
    return row


def status(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def in_group(given, folder: Path, budget: int, free: dict) -> None:
    limit = budget * MIB - resident_files(free)
    try:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as problem:
        print(f"budget {budget} MiB in a control group: skipped, no group can be made here ({problem})")
        return
    print(f"in a control group of {limit / MIB:.0f} MiB: ", end="")
    try:
        enter = lambda: (GROUP / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731  (runs in the child)
        trained(given, folder / f"group-{budget}", budget, plan=free["run"] / "plan.json", start=enter)
        print(f"  the group counted {int((GROUP / 'memory.max_usage_in_bytes').read_text()) / MIB:.0f} MiB at most")
    finally:
        GROUP.rmdir()


def resident_files(free: dict) -> int:
    """File-backed pages of the training process where it held the most, sampled while it ran freely."""
    return free["files"]


if __name__ == "__main__":
    sys.exit(main())
