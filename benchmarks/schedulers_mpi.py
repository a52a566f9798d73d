"""Open MPI's part of schedulers.py: `mpirun` starts two processes, is stopped, loses one, and they continue."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

from schedulers import World, said, saved, says_that_one_is_gone, step_of, wait_until
from training_process import ENVIRONMENT, PLIMSOLL

NOTICE_SECONDS = 20
"""Time between mpirun's SIGCONT and SIGTERM, and then until SIGKILL: the one option is both."""


def missing() -> str:
    """Returns why this part cannot run; empty if it can."""
    if shutil.which("mpirun") is None:
        return "no mpirun is here (Debian: apt-get install openmpi-bin)"
    return "" if "Open MPI" in version() else f"{version()} is not Open MPI"


def version() -> str:
    return said(["mpirun", "--version"]).removeprefix("mpirun (").replace(")", "")


def started(world: World, run: Path, output: IO[str]) -> subprocess.Popen[bytes]:
    own = f"mpirun --allow-run-as-root --oversubscribe --mca odls_base_sigkill_timeout {NOTICE_SECONDS} -n 2"
    command = [*own.split(), *PLIMSOLL, *world.words, "--run", str(run)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)


def workers(parent: int) -> list[int]:
    """Returns the processes that train below another, by their number in the run."""
    children = [
        int(word) for path in Path(f"/proc/{parent}/task").glob("*/children") for word in path.read_text().split()
    ]
    own = [pid for pid in children if b"plimsoll.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return own + [pid for child in children for pid in workers(child)]


def run(world: World) -> str:
    """Trains under mpirun with a stop and a kill, and returns the fingerprint."""
    folder, log = world.folder / "mpi", world.folder / "mpi.log"
    with log.open("w+") as output:
        first = started(world, folder, output)
        wait_until(lambda: step_of(folder) >= 100 or first.poll() is not None, "100 steps are logged")
        began = time.monotonic()
        first.send_signal(signal.SIGTERM)
        code = first.wait()
        seconds = round(time.monotonic() - began, 1)
        at = saved(folder)[-1]
        stopped = "Training stopped early" in log.read_text()
        world.check("mpirun gets SIGTERM: all save", stopped and at >= 100, code=code, seconds=seconds, saved=at)

        second = started(world, folder, output)
        wait_until(lambda: step_of(folder) > at + 40 or second.poll() is not None, "it continues")
        began = time.monotonic()
        subprocess.run(["kill", "-KILL", str(workers(second.pid)[1])], check=True)
        code = second.wait()
        told = says_that_one_is_gone(log.read_text())
        seconds = round(time.monotonic() - began, 1)
        world.check("a process is killed: the other says so, all end", told and code != 0, code=code, seconds=seconds)

        code = started(world, folder, output).wait()
    world.check("the same command continues to the end", code == 0, steps=step_of(folder))
    return world.fingerprint(folder)
