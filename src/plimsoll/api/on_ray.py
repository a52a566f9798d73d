"""Training on a Ray cluster: `plimsoll train ... --on ray` starts a process on each node and follows it to its end.

An actor on each node starts the command that a user would type there, in a process of its own: its environment must be
set before it starts, and Ray's own process holds JAX no longer than that. If one is lost, all start again from the
checkpoint. Ray Train's JaxTrainer is not used: it runs a function in Ray's process.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plimsoll.api.jobs import Job
from plimsoll.api.plan import Say
from plimsoll.errors import PlimsollError, StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.supervise import end_with
from plimsoll.units import MIB, format_bytes

PLACE_SECONDS = 60
"""Seconds that the cluster has to find room for all processes."""
LOOK_SECONDS = 0.5
"""Time between two looks at the processes."""
START_SECONDS = 120
"""Seconds that the actors have to start where there is room, and the processes in them."""
LEAVE_SECONDS = 90
"""Seconds in which the others end by themselves, once one is lost: they notice after 30."""
ACTOR_BYTES = 256 * MIB
"""Memory of an actor, beside that of the process that it has started."""
PASSED_ON = ("PLIMSOLL_", "JAX_", "XLA_", "HF_", "PYTHONPATH")
"""Beginnings of the variables that the processes get from this one."""
LOST_IN_VAIN = 2
"""Losses in a row, without a step that was saved in between, after which the processes are not started again."""
ENDED_BY_JAX = 128 + signal.SIGABRT
"""Exit code of a process that JAX ends where another is gone."""
OF_ITS_OWN = (1, 2)
"""Exit codes of a process that has a reason of its own to end. JAX may end the others for it."""
LOST = 137
"""Exit code of a process whose node or actor is gone: as of one that was killed."""


class Worker:
    """Actor on a node: it has one process train, and says what it prints and how it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque()
        self._reader: threading.Thread | None = None

    def address(self) -> str:
        """Returns HOST:PORT of this node, with a port that is free now."""
        import ray  # pyright: ignore[reportMissingImports]

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"  # pyright: ignore

    def start(self, words: Sequence[str], folder: str) -> None:
        """Starts the process, in `folder`. It is told to stop when this actor ends."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll.cli.main", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            preexec_fn=partial(end_with, os.getpid()),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._lines.extend(line.rstrip("\n") for line in self._process.stdout)

    def look(self) -> tuple[list[str], int | None]:
        """Returns the lines that were printed since the last look, and the exit code, None while it runs."""
        assert self._process is not None
        assert self._reader is not None
        code = self._process.poll()
        if code is not None:
            self._reader.join(LOOK_SECONDS)
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        return lines, code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Sends the process SIGTERM: it saves and ends."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def require_ray() -> Any:
    """Returns the module ray. Raises PlimsollError if it is not installed: looked for before anything is planned."""
    try:
        return importlib.import_module("ray")
    except ImportError as problem:
        raise PlimsollError(
            f"--on ray starts processes through the package ray, which cannot be imported here ({problem}): `pip"
            " install ray` here and on every node"
        ) from None


def train_on_ray(job: Job, say: Say) -> int:
    """Trains on the cluster of `RAY_ADDRESS`, else the one that runs here, and returns the exit code.

    Raises:
        PlimsollError: There is no cluster, or no room on it.
        StoppedError: Processes were lost `LOST_IN_VAIN` times in a row without a step that was saved in between.
    """
    ray = require_ray()
    variables = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    try:
        ray.init(
            address=os.environ.get("RAY_ADDRESS", "auto"),
            runtime_env={"env_vars": variables},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as problem:  # the library raises a dozen unrelated classes here
        reason = " ".join(str(problem).split())[:200]
        raise PlimsollError(
            f"--on ray finds no Ray cluster ({type(problem).__name__}: {reason}): start one with `ray start --head`,"
            " and name it in RAY_ADDRESS where it is on another machine"
        ) from None
    asked: list[int] = []
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _until_done(ray, job, say, asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        ray.shutdown()


def _until_done(ray: Any, job: Job, say: Say, asked: list[int]) -> int:
    """Starts the processes until they end by themselves, and returns the worst exit code."""
    run, in_vain = RunFolder(job.run), 0
    while True:
        saved = max(run.saved_steps(), default=0)
        codes = _once(ray, job, say, asked)
        ended = [number for number, code in enumerate(codes) if code > 128 and code - 128 not in asked]
        killed = [number for number in ended if codes[number] != ENDED_BY_JAX]
        refused = any(code in OF_ITS_OWN for code in codes)
        lost = killed or ([] if refused else ended)
        if not lost or asked:
            return max((code for code in codes if code != ENDED_BY_JAX), default=ENDED_BY_JAX)
        newest = max(run.saved_steps(), default=0)
        who = f"process{'es' * (len(lost) > 1)} {', '.join(map(str, lost))}"
        in_vain = 0 if newest > saved else in_vain + 1
        if in_vain == LOST_IN_VAIN:
            raise StoppedError(
                f"{who} of {job.processes} on Ray ended with {', '.join(str(codes[number]) for number in lost)}, and"
                f" {in_vain} times in a row nothing was saved after step {saved:,}: they would only go round. Look at"
                " what they printed, and at the memory of the nodes; the same command tries again"
            )
        are = "are" if len(lost) > 1 else "is"
        say(f"{who} of {job.processes} on Ray {are} lost: all start again from step {newest:,}")


def _once(ray: Any, job: Job, say: Say, asked: list[int]) -> list[int]:
    """Starts all processes once and follows them to their ends.

    Returns:
        Their exit codes, `LOST` of all where a node was lost before they had started.
    """
    group = _placed(ray, job)
    remote = ray.remote(max_restarts=0, num_cpus=1, num_gpus=1 if job.gpus_per_node else 0)(Worker)
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    workers = [
        remote.options(
            scheduling_strategy=strategy(group, placement_group_bundle_index=number // job.tasks_per_node)
        ).remote()
        for number in range(job.processes)
    ]
    folder, where = str(Path.cwd()), []
    try:
        if job.processes > 1:
            address = ray.get(workers[0].address.remote(), timeout=START_SECONDS)
            where = ["--coordinator", address, "--processes", str(job.processes)]
        ray.get(
            [
                worker.start.remote([*job.command, *where, *(["--process", str(number)] if where else [])], folder)
                for number, worker in enumerate(workers)
            ],
            timeout=START_SECONDS,
        )
    except ray.exceptions.RayTaskError as problem:  # Python's own, there
        raise PlimsollError(
            f"--on ray could not start the processes of {job.run} in {folder} ({problem.cause}): every node needs that"
            " folder, and the same Python"
        ) from None
    except ray.exceptions.RayError as problem:  # an actor or its node is gone, or had no answer in time
        said = " ".join(str(problem).split())[:200]
        say(f"the processes of {job.run} could not be started on Ray ({type(problem).__name__}: {said})")
        return [LOST] * job.processes
    else:
        return _followed(ray, workers, say, asked)
    finally:
        for worker in workers:
            ray.kill(worker)
        ray.util.remove_placement_group(group)


def _placed(ray: Any, job: Job) -> Any:
    """Returns a placement group that has a bundle on each node. Raises PlimsollError if the cluster has no room."""
    bundle: dict[str, float] = {
        "CPU": job.tasks_per_node,
        "memory": job.tasks_per_node * (job.process_bytes + ACTOR_BYTES),
    }
    if job.gpus_per_node:
        bundle["GPU"] = job.gpus_per_node
    importlib.import_module("ray.util.scheduling_strategies")
    group = ray.util.placement_group([bundle] * job.nodes, strategy="STRICT_SPREAD")
    if group.wait(PLACE_SECONDS):
        return group
    ray.util.remove_placement_group(group)
    raise PlimsollError(
        f"--on ray asks for {job.nodes} node{'s' * (job.nodes > 1)} with {job.tasks_per_node} CPUs, {job.gpus_per_node}"
        f" GPUs and {format_bytes(int(bundle['memory']))} each, and the cluster has not given them in {PLACE_SECONDS}"
        " s (`ray status` says what it has). Name fewer --nodes, a smaller --memory, or start more nodes"
    )


def _followed(ray: Any, workers: Sequence[Any], say: Say, asked: Sequence[int]) -> list[int]:
    """Prints what the first process prints, and what others say of a failure. Returns the exit codes."""
    codes: list[int | None] = [None] * len(workers)
    told, since = False, None
    while None in codes:
        time.sleep(LOOK_SECONDS)
        if asked and not told:
            told = True
            for worker in workers:
                worker.stop.remote()
        for number, worker in enumerate(workers):
            if codes[number] is not None:
                continue
            lines: list[str] = []
            try:
                lines, codes[number] = ray.get(worker.look.remote(), timeout=LEAVE_SECONDS)
            except ray.exceptions.RayError:  # the actor or its node is gone
                codes[number] = LOST
            for line in lines:
                if number == 0 or line.startswith("error: "):
                    say(line if number == 0 else f"process {number}: {line}")
        if any(code for code in codes):
            since = since or time.monotonic()
            if time.monotonic() - since > LEAVE_SECONDS:  # they wait for one that is not there any more
                return [LOST if code is None else code for code in codes]
    return [code or 0 for code in codes]
