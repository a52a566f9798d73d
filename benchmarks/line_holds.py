"""The line holds: one recipe under three budgets, and again in a memory control group that kills what goes over.

    python benchmarks/line_holds.py --text TEXT.txt [--budgets 430 600 900]

For every budget the command line plans and trains; the peak (`VmHWM`) must be at most the budget, the plans
differ, the losses agree. Then the same plans run in a control group whose hard limit is the budget less the
file-backed pages (training_process.MemoryGroup says why): skipped, with the reason, where groups cannot be made.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from training_process import (
    MIB,
    PLIMSOLL,
    Ended,
    MemoryGroup,
    NoGroup,
    Trained,
    plan_words,
    prepared_copy,
    trained,
    watch,
)

SECONDS = 600
MODEL = ["--width", "256", "--layers", "8", "--heads", "4", "--vocab-size", "4096", "--seq-len", "512"]


@dataclass(frozen=True)
class Held:
    budget: int
    """MiB"""
    run: Path
    ended: Ended
    found: Trained | None
    """None where it was refused or killed."""

    @property
    def within(self) -> bool:
        return self.found is not None and self.found.peak <= self.budget * MIB


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--text", default="../shared/data/text/tinystories_train.txt")
    options.add_argument("--budgets", type=int, nargs="*", default=[430, 600, 900])
    options.add_argument("--steps", type=int, default=20)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        free = [held(given, Path(folder) / f"free-{budget}", budget) for budget in given.budgets]
        grouped = [in_group(given, Path(folder) / f"group-{one.budget}", one) for one in free if one.within]
    found = [one.found for one in free if one.found is not None]
    plans, losses = {plan_words(one.planned["plan"]) for one in found}, [one.loss for one in found]
    spread = max(losses) / min(losses) - 1
    print(f"{len(plans)} different plans of {len(free)}; final losses {losses}: {spread:.2%} apart")
    return 0 if all(one.within for one in free) and all(grouped) and spread < 0.01 else 1


def command(given: argparse.Namespace, run: Path, budget: int) -> list[str]:
    return [
        *PLIMSOLL, "train", "stories", "--dataset-id", given.text, *MODEL, "--batch-size", "16",
        "--shuffle-buffer-size", "1000", "--steps", str(given.steps), "--memory", f"{budget}MiB", "--run", str(run),
        "--save-every", "8", "--eval-every", "8", "--quiet",
    ]  # fmt: skip


def held(given: argparse.Namespace, run: Path, budget: int, group: MemoryGroup | None = None) -> Held:
    ended = watch(command(given, run, budget), seconds=SECONDS, start=group.enter if group else None)
    if ended.code:
        print(f"budget {budget} MiB: ended with code {ended.code}: {ended.said[-400:]}")
        return Held(budget, run, ended, None)
    found = trained(run)
    print(
        f"budget {budget} MiB: predicted {found.predicted / MIB:.0f}, peak {found.peak / MIB:.0f} MiB"
        f" ({found.peak / budget / MIB:.0%}); {plan_words(found.planned['plan'])}; loss {found.loss:.4f}",
        flush=True,
    )
    return Held(budget, run, ended, found)


def in_group(given: argparse.Namespace, run: Path, free: Held) -> bool:
    """Returns whether it ran to its end there, or could not be tried."""
    limit = free.budget * MIB - free.ended.files
    try:
        with MemoryGroup(limit) as group:
            print(f"in a control group of {limit / MIB:.0f} MiB: ", end="")
            again = held(given, prepared_copy(free.run, run), free.budget, group)
            print(f"  the group counted {group.most() / MIB:.0f} MiB at most")
            return again.found is not None
    except NoGroup as problem:
        print(f"budget {free.budget} MiB in a control group: skipped, {problem}")
        return True


if __name__ == "__main__":
    sys.exit(main())
