"""Ray's part of schedulers.py: a cluster of two nodes as Ray's own tests make it, `--on ray`, a stop and two losses.

`side` is the cluster, in the Python that has Ray: it prints its address, and obeys lines on standard
input: `lose` kills a node without notice, `add` starts another one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers.environment import SIDE_PROGRAM

NODE: dict[str, Any] = {"num_cpus": 1, "memory": 2 * 2**30, "object_store_memory": 80 * 2**20}
TRAINS = b"plimsoll.worker\0together"


def missing() -> str:
    """Returns why this part cannot run; empty if it can."""
    done = subprocess.run(
        [python(), "-c", "import ray, plimsoll"], capture_output=True, check=False, env=_environment()
    )
    return "" if done.returncode == 0 else f"{Path(python()).name} has no Ray (pip install 'plimsoll-jax[ray]')"


def python() -> str:
    return os.environ.get("PLIMSOLL_RAY_PYTHON", sys.executable)


def version() -> str:
    command = [python(), "-c", "import ray; print('Ray', ray.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _environment() -> dict[str, str]:
    from training_process import ENVIRONMENT

    return ENVIRONMENT | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def cluster() -> Iterator[subprocess.Popen[str]]:
    """Starts a cluster of two nodes."""
    made = subprocess.Popen(
        [python(), SIDE_PROGRAM, "schedulers_ray"],
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield made
    finally:
        made.communicate("end\n", timeout=60)


def told(made: subprocess.Popen[str], word: str = "") -> str:
    """Returns the cluster's answer to a word; to none, its address."""
    assert made.stdin is not None
    assert made.stdout is not None
    if word:
        print(word, file=made.stdin, flush=True)
    for line in made.stdout:
        if line.startswith("cluster: "):
            return line.removeprefix("cluster: ").strip()
    raise SystemExit("the Ray cluster has ended")


def trains(run: Path) -> list[int]:
    """Returns the processes that train a run on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if TRAINS in command and str(run).encode() in command:
            found.append(int(path.name))
    return sorted(found)


def run(world: Any) -> str:
    """Trains with --on ray, with a stop and two losses, and returns the fingerprint."""
    from schedulers import saved, step_of, wait_until

    folder, log = world.folder / "ray", world.folder / "ray.log"
    command = [python(), "-m", "plimsoll.cli.main", *world.words, "--run", str(folder), "--on", "ray", "--nodes", "2"]
    with cluster() as made, log.open("w+") as output:
        variables = _environment() | {"RAY_ADDRESS": told(made)}

        def started() -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)

        def until(step: int, process: subprocess.Popen[bytes]) -> None:
            wait_until(lambda: step_of(folder) >= step or process.poll() is not None, f"step {step}")

        first = started()
        until(100, first)
        first.send_signal(signal.SIGTERM)
        code = first.wait()
        at = saved(folder)[-1]
        world.check("SIGTERM: both save together, and the command ends", code == 143, code=code, saved=at)

        second = started()
        until(at + 60, second)
        world.check("the same command continues", f"continuing from step {at:,} of" in log.read_text(), step=at)
        began = time.monotonic()
        os.kill(trains(folder)[0], signal.SIGKILL)
        again = "lost: all start again from step"
        wait_until(lambda: again in log.read_text() or second.poll() is not None, "the loss is noticed")
        noticed = round(time.monotonic() - began, 1)
        went_on = "continuing from step"
        wait_until(lambda: log.read_text().count(went_on) == 2 or second.poll() is not None, "it continues")
        until(saved(folder)[-1] + 60, second)
        world.check(
            "a process is killed: all start again by themselves", second.poll() is None, noticed_after_s=noticed
        )

        # Two losses in a row without a save in between end the command.
        at = saved(folder)[-1]
        wait_until(lambda: saved(folder)[-1] > at or second.poll() is not None, "a further step is saved")
        began = time.monotonic()
        told(made, "lose")
        wait_until(lambda: log.read_text().count(again) == 2 or second.poll() is not None, "the loss is noticed")
        noticed = round(time.monotonic() - began, 1)
        told(made, "add")
        code = second.wait()
        good = code == 0 and step_of(folder) == int(world.words[world.words.index("--steps") + 1])
        world.check("a node is lost: they go on with a new one, to the end", good, code=code, noticed_after_s=noticed)
    return world.fingerprint(folder)


def side() -> None:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    nodes = [made.add_node(**NODE)]
    print("cluster:", made.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "lose":
            made.remove_node(nodes.pop(), allow_graceful=False)
        elif line.strip() == "add":
            nodes.append(made.add_node(**NODE))
        else:
            break
        print("cluster: done", flush=True)
    made.shutdown()
