"""A run of two processes under a real Slurm, a real Open MPI and a real Ray: started, stopped, hurt, continued.

    python benchmarks/schedulers.py [--only slurm|mpi|ray] [--steps 4000]

The same tiny recipe is trained once by two processes that are started by hand, without a fault, and then under each
scheduler, with faults. Every check is printed as it is made; at the end the fingerprints of all runs have to be equal:
no step was lost, none was another one. What is not installed is left out, with the reason. Slurm and Open MPI are the
system's (Debian: `apt-get install slurm-wlm munge openmpi-bin`). Ray is looked for in this Python, else in the one that
PLIMSOLL_RAY_PYTHON names. Slurm needs root here: each of its nodes is a namespace of its own (schedulers_slurm.py).
Writes bench-out/schedulers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measuring import conditions, write
from training_process import ENVIRONMENT, PLIMSOLL

PATIENCE = 900
"""Seconds after which a wait has failed."""
SIZES = (
    "--width 32 --layers 1 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 16 --shuffle-buffer-size 16"
    " --micro-batch 8 --remat none --loss-chunk 0 --precision float32 --prefetch 0 --async-save False --eval-every 0"
    " --log-every 20 --memory 700MiB"
)
"""Every lever is set: the plan, and so each bit, is the same wherever it is made."""


class World:
    """A folder with a text and the runs, and what was found out in it."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.checks = folder, []
        text = folder / "text.jsonl"
        if not text.exists():
            lines = [
                f"The {at}th of {at * at} lines is about {at % 17} and about {at % 23} things." for at in range(4000)
            ]
            text.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        self.words = ["train", "stories", "--dataset-id", str(text), *SIZES.split(), "--steps", str(steps)]
        self.words += ["--save-every", str(max(1, steps // 8))]

    def check(self, what: str, passed: bool, **facts: Any) -> None:
        """Prints and keeps a check; the first that fails ends the program."""
        shown = ", ".join(f"{name} {value}" for name, value in facts.items())
        print(f"{'ok  ' if passed else 'FAIL'} {what}{': ' * bool(shown)}{shown}", flush=True)
        self.checks.append({"what": what, "passed": passed, "facts": facts})
        if not passed:
            raise SystemExit(f"{what}: failed")

    def fingerprint(self, run: Path) -> str:
        """Returns the checksum of all that a run has learned, and its step."""
        command = [*PLIMSOLL, "fingerprint", str(run)]
        return " ".join(
            subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout.split()
        )


def wait_until(found: Callable[[], Any], what: str, *, seconds: float = PATIENCE) -> Any:
    """Returns what is found, as soon as it is."""
    deadline = time.monotonic() + seconds
    while not (result := found()):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.2)
    return result


def step_of(run: Path) -> int:
    """Returns the last step that the run has logged; 0 before the first."""
    path = run / "metrics.jsonl"
    rows = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return json.loads(rows[-1])["step"] if rows else 0


def saved(run: Path) -> list[int]:
    """Returns the steps that are saved, the newest last."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*/manifest.json"))


def says_that_one_is_gone(printed: str) -> bool:
    """Returns whether a process has printed that another one is gone, in its own words or in JAX's."""
    return "another process of this run is gone" in printed or "another task died" in printed


def by_hand(world: World) -> str:
    """Trains with two processes and no scheduler, and returns the fingerprint."""
    run = world.folder / "by-hand"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = ["--coordinator", f"127.0.0.1:{free.getsockname()[1]}", "--processes", "2", "--run", str(run)]
    started = [
        subprocess.Popen(
            [*PLIMSOLL, *world.words, *where, "--process", str(number)],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(2)
    ]
    codes = [process.wait() for process in started]
    world.check("two processes by hand, without a fault", codes == [0, 0], codes=codes, steps=step_of(run))
    return world.fingerprint(run)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", choices=("slurm", "mpi", "ray"))
    options.add_argument("--steps", type=int, default=4000)
    options.add_argument("--folder", type=Path, help="where to train, and keep it; by default it is thrown away")
    given = options.parse_args()
    import schedulers_mpi
    import schedulers_ray
    import schedulers_slurm

    parts = {"slurm": schedulers_slurm, "mpi": schedulers_mpi, "ray": schedulers_ray}
    names = [given.only] if given.only else list(parts)
    result: dict[str, Any] = {
        "steps": given.steps,
        "left_out": {},
        "versions": {},
        "fingerprints": {},
        "checks": {},
        "commits": {},
    }
    with tempfile.TemporaryDirectory(prefix="plimsoll-schedulers-") as made:
        folder = (given.folder or Path(made)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        world = World(folder, given.steps)
        result["fingerprints"]["by hand"] = by_hand(world)
        for name in names:
            if missing := parts[name].missing():
                print(f"left out: {name}, {missing}")
                result["left_out"][name] = missing
                continue
            world.checks = []
            result["versions"][name] = parts[name].version()
            result["fingerprints"][name] = found = parts[name].run(world)
            world.check(f"{name}: the same bits", found == result["fingerprints"]["by hand"], fingerprint=found)
            result["checks"][name], result["commits"][name] = world.checks, conditions(given)["commit"]
    path = Path("bench-out/schedulers.json")
    before = json.loads(path.read_text()) if given.only and path.exists() else {}
    for key in ("left_out", "versions", "fingerprints", "checks", "commits"):  # the others as they were measured before
        result[key] = before.get(key, {}) | result[key]
    write(path, result | {"conditions": conditions(given)})


def said(command: Sequence[str]) -> str:
    """Returns the first line that a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout.splitlines()[0]


if __name__ == "__main__":
    main()
