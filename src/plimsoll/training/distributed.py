"""Several processes that train one run: connecting, exchanging values, and agreeing on the end.

JAX's runtime connects the processes (`jax.distributed`). Values are exchanged through its key-value store, which needs
no device. When a process is lost, JAX ends the others: within a second if its connection broke, and after
HEARTBEAT_SECONDS if it is silent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed as runtime  # jax 0.10.2: its client of the key-value store is not public
from jax.sharding import NamedSharding, PartitionSpec

from plimsoll.errors import RunError

CONNECT_SECONDS = 300
"""Seconds within which all processes must connect."""
HEARTBEAT_SECONDS = 30
"""Seconds of silence after which a process counts as lost, and the others end."""
LEAVING_SECONDS = 2
"""Seconds that process 0 waits before it and JAX's coordinator end, so that others can print their errors."""
POLL_MILLISECONDS = 200
"""Longest wait for another process's value in one call. Signal handlers run between calls."""

_exchanges = itertools.count()
"""Counter that numbers exchanged values. Processes exchange the same values in the same order, so numbers match."""


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Connects the processes of a run. Call it before anything else initializes JAX.

    Args:
        coordinator: HOST:PORT of process 0. If None, JAX reads it from the environment of Slurm, MPI, Kubernetes or a
            TPU.
        processes: Number of processes. If None, JAX reads it from the environment.
        process: Number of this process, from 0. If None, JAX reads it from the environment.

    Raises:
        RunError: The port is in use, or the other processes do not connect in time.
    """
    if coordinator is not None and process == 0:
        require_free(coordinator)
    place = coordinator or "the coordinator that this cluster names"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM itself, and late
    giving_up = threading.Timer(CONNECT_SECONDS, _give_up, [place])  # earlier than JAX, which would abort
    giving_up.start()
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=2 * CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as problem:
        raise RunError(_not_met(place, str(problem).splitlines()[0][:200])) from None
    finally:
        giving_up.cancel()


def _give_up(place: str) -> NoReturn:
    """Prints an error and ends this process, because not all processes connected in time."""
    print(f"error: {_not_met(place, f'not all connected in {CONNECT_SECONDS} s')}", file=sys.stderr, flush=True)
    os._exit(RunError.exit_code)


def _not_met(place: str, reason: str) -> str:
    return (
        f"the processes of this run did not find one another at {place}: {reason}. Start all of them with the same"
        " --coordinator and --processes, each with its own --process from 0, and let the port through"
    )


def require_free(coordinator: str) -> None:
    """Raises RunError if the coordinator's port is in use on this machine.

    JAX itself would crash with a segmentation fault.

    Args:
        coordinator: HOST:PORT of process 0, which is this process.
    """
    port = int(coordinator.rpartition(":")[2])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError as problem:
        raise RunError(
            f"port {port} of --coordinator {coordinator} is not free on this machine, and process 0 must listen on it"
            f" ({problem.strerror}): give all processes another port"
        ) from None


def processes() -> int:
    """Returns the number of processes."""
    return runtime.global_state.num_processes if runtime.global_state.client is not None else 1


def process() -> int:
    """Returns the number of this process, from 0. Process 0 writes the files of the run."""
    return runtime.global_state.process_id if runtime.global_state.client is not None else 0


def devices(count: int) -> list[Any]:
    """Returns `count` devices of all processes together: the first `count / processes()` devices of each process.

    Raises:
        RunError: `count` is not a multiple of the number of processes, or JAX finds fewer devices.
    """
    each = count // processes()
    if each * processes() != count or jax.device_count() < count:
        raise RunError(
            f"the plan is for {count} devices, and JAX finds {jax.device_count()} in {processes()} processes: start a"
            " process for each host of the plan, or add --replan with a --mesh or --chip of the present devices"
        )
    return [device for number in range(processes()) for device in jax.local_devices(number)[:each]]


def of_first(topic: str, answer: Callable[[], Any]) -> Any:
    """Returns the value of `answer` in process 0 to every process. The other processes wait for the value.

    Args:
        topic: Name of the value, for debugging.
        answer: Function that only process 0 calls. Its value must be serializable as JSON.
    """
    if processes() == 1:
        return answer()
    key = f"{next(_exchanges)}/{topic}"
    if process() == 0:
        value = answer()
        _tell(key, value)
        return value
    return _hear(key)


def of_each(topic: str, value: Any) -> list[Any]:
    """Returns the values of all processes to every process, by process number.

    Args:
        topic: Name of the value, for debugging.
        value: This process's value, serializable as JSON.
    """
    if processes() == 1:
        return [value]
    key = f"{next(_exchanges)}/{topic}"
    _tell(f"{key}/{process()}", value)
    return [_hear(f"{key}/{number}") for number in range(processes())]


def barrier(place: str) -> None:
    """Waits until all processes have called it.

    Use it around work that can take minutes in one process: a collective of JAX would time out.
    """
    of_each(place, True)


def _client() -> Any:
    """Returns JAX's client of the key-value store that all processes share."""
    return runtime.global_state.client


def _tell(key: str, value: Any) -> None:
    """Writes a value into the key-value store."""
    _client().key_value_set(f"plimsoll/{key}", json.dumps(value))


def _hear(key: str) -> Any:
    """Waits until a key is in the key-value store, and returns its value."""
    while True:
        try:
            return json.loads(_client().blocking_key_value_get(f"plimsoll/{key}", POLL_MILLISECONDS))
        except jax.errors.JaxRuntimeError as problem:
            if not str(problem).startswith("DEADLINE_EXCEEDED"):
                raise


def is_of_others(problem: Exception) -> bool:
    """Returns True if an error may mean that another process is lost: one of JAX, or of its CPU collectives (Gloo)."""
    return isinstance(problem, jax.errors.JaxRuntimeError) or "Gloo" in str(problem)


def require_alike(facts: Mapping[str, Any]) -> list[str]:
    """Checks that all processes were started alike, and returns the host names of all processes.

    Args:
        facts: Values that must be equal in all processes, and this process's `host`.

    Raises:
        RunError: A value differs between processes. Raised in every process, with the values and the hosts.
    """
    each = of_each("facts", dict(facts))
    hosts = [own.pop("host") for own in each]
    first = each[0]
    differences = []
    for number, own in enumerate(each):
        for name in first | own:
            value = own.get(name)
            expected = first.get(name)
            if value != expected:
                differences.append(
                    f"{name} is {value!r} on process {number} ({hosts[number]}) and {expected!r} on process 0"
                    f" ({hosts[0]})"
                )
    if differences:
        raise RunError(
            f"the processes of this run were not started alike: {'; '.join(differences)}. Start all of them with the"
            " same command and the same code"
        )
    return hosts


def leave() -> None:
    """Disconnects from the other processes once all have called this. Otherwise the end of one aborts the others."""
    if processes() > 1:
        barrier("end")
        jax.distributed.shutdown()


def end(code: int, *, together: bool) -> NoReturn:
    """Ends this process by `os._exit`.

    A regular exit would run JAX's exit handler, which waits for lost processes and changes the exit code.

    Args:
        code: Exit code.
        together: True if all processes end now. Each then waits for the others before it ends (`leave`).
    """
    if together:
        with contextlib.suppress(RuntimeError):  # raised by JAX if another process is lost
            leave()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()

    # JAX's coordination service ends with process 0: let the others end first.
    if not together and processes() > 1 and process() == 0:
        time.sleep(LEAVING_SECONDS)
    os._exit(code)


class Agreement:
    """Agreement of all processes on the largest request (an int, like `stop.Reason`) of any process.

    The result arrives one call later, so no process waits for another.
    """

    def __init__(self) -> None:
        self._pending: jax.Array | None = None
        self.alone = processes() == 1
        if not self.alone:
            firsts = np.asarray(devices(processes()))
            self._sharding = NamedSharding(jax.sharding.Mesh(firsts, ("process",)), PartitionSpec("process"))
            whole = NamedSharding(self._sharding.mesh, PartitionSpec())
            requests = jax.ShapeDtypeStruct((processes(),), np.int32, sharding=self._sharding)
            self._largest = jax.jit(lambda requests: requests.max(), out_shardings=whole).lower(requests).compile()

    def __call__(self, request: int) -> int:
        """Sends a request, and returns the largest request of the previous call. A single process gets `request`."""
        if self.alone:
            return request
        agreed = 0 if self._pending is None else int(self._pending)
        own = np.full(1, request, np.int32)
        self._pending = self._largest(jax.make_array_from_process_local_data(self._sharding, own, (processes(),)))
        return agreed
