"""Training on a Ray cluster: `plimsoll train ... --on ray` starts processes on the nodes and follows them to their end.

For each process, a Ray actor starts the command that a user would type on that node. Training needs a separate process,
because environment variables must be set before the process starts. If a process is lost, all processes start again
from the checkpoint. Ray Train's JaxTrainer is not used, because it trains in Ray's own process.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plimsoll.api.jobs import Job
from plimsoll.api.messages import Say
from plimsoll.errors import PlimsollError, StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.interruption import Interruption
from plimsoll.processes.supervise import end_with
from plimsoll.units import MIB, format_bytes

PLACE_SECONDS = 60
"""Time limit in seconds for the cluster to find room for all processes."""
LOOK_SECONDS = 0.5
"""Seconds between two checks for a signal to this process while no training process prints."""
START_SECONDS = 120
"""Time limit in seconds for the start of the actors, and for the start of their processes."""
LEAVE_SECONDS = 90
"""Seconds to wait for the other processes to end after one has failed. They notice the failure after 30 seconds."""
ACTOR_BYTES = 256 * MIB
"""Memory of an actor in bytes, without its training process."""
PASSED_ON = ("PLIMSOLL_", "JAX_", "XLA_", "HF_", "PYTHONPATH")
"""Prefixes of the environment variables that are passed to the processes."""
LOST_IN_VAIN = 2
"""Training is given up if processes are lost this many times in a row without a new checkpoint."""
ENDED_BY_JAX = 128 + signal.SIGABRT
"""Exit code of a process that JAX ends because another process is gone."""
OF_ITS_OWN = (1, 2)
"""Exit codes of a process that failed by itself. JAX may then end the other processes."""
LOST = 137
"""Exit code of a process whose node or actor is gone, the same as of a killed process."""


class Worker:
    """Ray actor that starts one training process on its node, and passes on the process's output and exit code."""

    _process: subprocess.Popen[str]

    def address(self) -> str:
        """Returns HOST:PORT of this node, with a port that is free now."""
        import ray  # pyright: ignore[reportMissingImports]

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"  # pyright: ignore

    def start(self, words: Sequence[str], folder: str) -> None:
        """Starts `plimsoll` with the arguments `words` in `folder`. If this actor ends, a signal stops the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll.cli.main", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            preexec_fn=partial(end_with, os.getpid()),
        )

    def follow(self) -> Iterator[str | int]:
        """Yields each line of the process's output, and then its exit code."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip("\n")
        code = self._process.wait()
        yield code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Sends SIGTERM to the process, which then saves a checkpoint and ends."""
        self._process.send_signal(signal.SIGTERM)


def require_ray() -> Any:
    """Returns the module ray. Raises PlimsollError if it is not installed. Call this before planning."""
    try:
        return importlib.import_module("ray")
    except ImportError as problem:
        raise PlimsollError(
            f"--on ray starts processes through the package ray, which cannot be imported here ({problem}): `pip"
            " install ray` here and on every node"
        ) from None


def train_on_ray(job: Job, say: Say) -> int:
    """Trains on the Ray cluster of `RAY_ADDRESS`, or else on this machine's cluster. Returns the exit code.

    Raises:
        PlimsollError: There is no cluster, or it lacks the CPUs, GPUs or memory of the job.
        StoppedError: Processes were lost `LOST_IN_VAIN` times in a row without a newly saved step.
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
            " and name it in RAY_ADDRESS if it is on another machine"
        ) from None
    try:
        with Interruption() as interruption:
            return _until_done(ray, job, say, interruption)
    finally:
        ray.shutdown()


def _until_done(ray: Any, job: Job, say: Say, interruption: Interruption) -> int:
    """Starts all processes, and starts them again whenever some are lost. Returns the largest exit code."""
    run = RunFolder(job.run)
    saved = max(run.saved_steps(), default=0)
    in_vain = 0
    while True:
        codes = _once(ray, job, say, interruption)
        lost = _lost(codes)
        if not lost or interruption.signal is not None:
            return max((code for code in codes if code != ENDED_BY_JAX), default=ENDED_BY_JAX)

        # Start all processes again, unless nothing new was saved `LOST_IN_VAIN` times in a row.
        before = saved
        saved = max(run.saved_steps(), default=0)
        in_vain = 0 if saved > before else in_vain + 1
        numbers = ", ".join(map(str, lost))
        who = f"{len(lost)} of {job.processes} processes on Ray (number {numbers})"
        if in_vain == LOST_IN_VAIN:
            raise StoppedError(
                f"{who} ended with {', '.join(str(codes[number]) for number in lost)}, and {in_vain} times in a row"
                f" nothing was saved after step {saved:,}, so they are not started again. Check their output and the"
                " memory of the nodes; the same command tries again"
            )
        say(f"{who} lost: all start again from step {saved:,}")


def _lost(codes: Sequence[int]) -> list[int]:
    """Returns the indices of lost processes: those killed, or if none was killed or failed, those that JAX ended."""
    ended = [number for number, code in enumerate(codes) if code > 128]
    killed = [number for number in ended if codes[number] != ENDED_BY_JAX]
    if killed or any(code in OF_ITS_OWN for code in codes):
        return killed
    return ended


def _once(ray: Any, job: Job, say: Say, interruption: Interruption) -> list[int]:
    """Starts all processes once, and follows them until they end.

    Returns:
        The exit codes of the processes. All are `LOST` if the start fails because an actor is gone or too slow.
    """
    group = _placed(ray, job)
    remote = ray.remote(max_concurrency=2, num_cpus=1, num_gpus=job.gpus_per_node // job.tasks_per_node)(Worker)
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    workers = [
        remote.options(
            scheduling_strategy=strategy(group, placement_group_bundle_index=number // job.tasks_per_node)
        ).remote()
        for number in range(job.processes)
    ]
    folder = str(Path.cwd())
    try:
        address = ray.get(workers[0].address.remote(), timeout=START_SECONDS)
        words = [*job.command, "--coordinator", address, "--processes", str(job.processes), "--process"]
        starts = [worker.start.remote([*words, str(number)], folder) for number, worker in enumerate(workers)]
        ray.get(starts, timeout=START_SECONDS)
        return _followed(ray, workers, say, interruption)
    except ray.exceptions.RayTaskError as problem:  # an exception of Python on the node
        raise PlimsollError(
            f"--on ray could not start the processes of {job.run} in {folder} ({problem.cause}): every node needs that"
            " folder, and the same Python"
        ) from None
    except ray.exceptions.RayError as problem:  # an actor or its node is gone, or had no answer in time
        reason = " ".join(str(problem).split())[:200]
        say(f"the processes of {job.run} could not be started on Ray ({type(problem).__name__}: {reason})")
        return [LOST] * job.processes
    finally:
        for worker in workers:
            ray.kill(worker)
        ray.util.remove_placement_group(group)


def _placed(ray: Any, job: Job) -> Any:
    """Returns a Ray placement group with CPUs, GPUs and memory on each node. Raises PlimsollError if any is lacking."""
    bundle = {
        "CPU": job.tasks_per_node,
        "GPU": job.gpus_per_node,
        "memory": job.tasks_per_node * (job.process_bytes + ACTOR_BYTES),
    }
    group = ray.util.placement_group([bundle] * job.nodes, strategy="STRICT_SPREAD")
    if group.wait(PLACE_SECONDS):
        return group
    ray.util.remove_placement_group(group)
    raise PlimsollError(
        f"--on ray asks for --nodes {job.nodes} with {job.tasks_per_node} CPUs, {job.gpus_per_node} GPUs and"
        f" {format_bytes(bundle['memory'])} each, and the cluster has not given them in {PLACE_SECONDS} s (`ray status`"
        " shows its resources). Name fewer --nodes, a smaller --memory, or start more nodes"
    )


def _followed(ray: Any, workers: Sequence[Any], say: Say, interruption: Interruption) -> list[int]:
    """Prints the output of the first process, and the error messages of the others. Returns the exit codes."""
    codes = [LOST] * len(workers)
    running = {worker.follow.remote(): number for number, worker in enumerate(workers)}
    deadline = math.inf
    was_told = False
    while running and time.monotonic() < deadline:
        if interruption.signal is not None and not was_told:
            was_told = True
            for worker in workers:
                worker.stop.remote()
        ready, _ = ray.wait(list(running), timeout=LOOK_SECONDS)
        for output in ready:
            number = running[output]
            line = _next_line(ray, output)
            if isinstance(line, int):
                codes[number] = line
                del running[output]
                if line:  # a failure: the others may wait for this process
                    deadline = min(deadline, time.monotonic() + LEAVE_SECONDS)
            elif number == 0 or line.startswith("error: "):
                say(f"process {number}: {line}" if number else line)
    return codes


def _next_line(ray: Any, output: Any) -> str | int:
    """Returns the next line of a process's output, or its exit code."""
    try:
        return ray.get(next(output))
    except ray.exceptions.RayError:  # the actor or its node is gone
        return LOST
