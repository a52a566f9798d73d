"""Several processes that train one run: how they meet, what they tell one another, and what they agree on.

JAX's own runtime connects them (`jax.distributed`). What they tell one another goes through its key-value store, which
needs no device. Where one is gone, JAX ends the others: within a second where its connection broke, after
HEARTBEAT_SECONDS where it is silent.
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
from jax._src import distributed as runtime  # jax 0.10.2: the store of its client has no public name
from jax.sharding import NamedSharding, PartitionSpec

from plimsoll.errors import RunError

CONNECT_SECONDS = 300
"""Time in which all processes must come."""
HEARTBEAT_SECONDS = 30
"""Silence after which a process counts as gone; the others then end."""
LEAVING_SECONDS = 2
"""Time that the first process leaves to the others to say why they end: its own end takes JAX's service with it."""
POLL_MILLISECONDS = 200
"""Time between two looks for a word of another process; handlers of signals run in between."""

_words = itertools.count()
"""Numbers of what was told: every process tells and hears the same words in the same order."""


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Connects the processes of a run. Call it before anything else touches JAX.

    Args:
        coordinator: HOST:PORT of the first process; None as the variables of Slurm, MPI, Kubernetes or a TPU give it.
        processes: Number of processes, or None.
        process: Number of this process, from 0, or None.

    Raises:
        RunError: The port is taken, or the others do not come within JAX's time.
    """
    if coordinator is not None and process == 0:
        require_free(coordinator)
    place = coordinator or "the coordinator that this cluster names"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM for itself, and notes it late
    giving_up = threading.Timer(CONNECT_SECONDS, _give_up, [place])  # JAX would end by an abort
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
    """Ends this process, which waits for the others."""
    print(f"error: {_not_met(place, f'not all have come in {CONNECT_SECONDS} s')}", file=sys.stderr, flush=True)
    os._exit(RunError.exit_code)


def _not_met(place: str, reason: str) -> str:
    return (
        f"the processes of this run did not find one another at {place}: {reason}. Start all of them with the same"
        " --coordinator and --processes, each with its own --process from 0, and let the port through"
    )


def require_free(coordinator: str) -> None:
    """Raises RunError where something listens at the first process's port: JAX would end by a fault of memory."""
    port = int(coordinator.rpartition(":")[2])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError as problem:
        raise RunError(
            f"port {port} of --coordinator {coordinator} is not free on this machine, where process 0 was to listen at"
            f" it ({problem.strerror}): give all processes another port"
        ) from None


def processes() -> int:
    """Returns the number of processes."""
    return runtime.global_state.num_processes if runtime.global_state.client is not None else 1


def process() -> int:
    """Returns the number of this process, from 0. Number 0, or the only one, writes what the run keeps."""
    return runtime.global_state.process_id if runtime.global_state.client is not None else 0


def devices(count: int) -> list[Any]:
    """Returns `count` devices, as many of every process: the first of each."""
    each = count // processes()
    if each * processes() != count or jax.device_count() < count:
        raise RunError(
            f"the plan is for {count} devices, and JAX finds {jax.device_count()} in {processes()} processes: start as"
            " many as the plan has hosts, or add --replan and a --mesh or --chip of what is here"
        )
    return [device for number in range(processes()) for device in jax.local_devices(number)[:each]]


def of_first(topic: str, answer: Callable[[], Any]) -> Any:
    """Returns what the first process answers, in every process. The others wait for it.

    Args:
        topic: Name for whoever debugs.
        answer: Function that the first process calls. Its value is JSON.
    """
    if processes() == 1:
        return answer()
    key = f"{next(_words)}/{topic}"
    if process() == 0:
        value = answer()
        _tell(key, value)
        return value
    return _hear(key)


def of_each(topic: str, value: Any) -> list[Any]:
    """Returns the values of all processes, in the order of their numbers, in every process. They are JSON."""
    if processes() == 1:
        return [value]
    key = f"{next(_words)}/{topic}"
    _tell(f"{key}/{process()}", value)
    return [_hear(f"{key}/{number}") for number in range(processes())]


def barrier(place: str) -> None:
    """Waits until all processes have come here.

    Use it around work that can take minutes in one process; a collective would time out.
    """
    of_each(place, True)


def _client() -> Any:
    """Returns JAX's client of the store that all processes read."""
    return runtime.global_state.client


def _tell(key: str, value: Any) -> None:
    _client().key_value_set(f"plimsoll/{key}", json.dumps(value))


def _hear(key: str) -> Any:
    """Returns what was told under a key, once it was."""
    while True:
        try:
            return json.loads(_client().blocking_key_value_get(f"plimsoll/{key}", POLL_MILLISECONDS))
        except jax.errors.JaxRuntimeError as problem:
            if not str(problem).startswith("DEADLINE_EXCEEDED"):
                raise


def is_of_others(problem: Exception) -> bool:
    """Returns whether an error of a step or of the store says that another process is gone."""
    return isinstance(problem, jax.errors.JaxRuntimeError) or "Gloo" in str(problem)


def require_alike(facts: Mapping[str, Any]) -> list[str]:
    """Returns the names of all processes' machines.

    Args:
        facts: What must be the same in every process, and its `host`.

    Raises:
        RunError: Something differs; in every process, with what differs between which.
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
    """Disconnects from the others once all have come here: the end of one would end them by an abort."""
    if processes() > 1:
        barrier("end")
        jax.distributed.shutdown()


def end(code: int, *, together: bool) -> NoReturn:
    """Ends this process.

    Not by returning from the program: JAX's handler of the exit waits for processes that are gone, and loses the code.

    Args:
        code: Exit code.
        together: Whether every process ends now. Then each waits for the others, else they would end by an abort.
    """
    if together:
        with contextlib.suppress(RuntimeError):  # of JAX: another one is gone, and nothing was left to do
            leave()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if not together and processes() > 1 and process() == 0:
        time.sleep(LEAVING_SECONDS)
    os._exit(code)


class Agreement:
    """A request of any process, which all follow one step later: none of them waits for it."""

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
        """Returns the largest request of the call before; of a process alone, `request` itself."""
        if self.alone:
            return request
        agreed = 0 if self._pending is None else int(self._pending)
        own = np.full(1, request, np.int32)
        self._pending = self._largest(jax.make_array_from_process_local_data(self._sharding, own, (processes(),)))
        return agreed
