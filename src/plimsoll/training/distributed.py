"""Several processes that train one run: how they find one another, what the first tells the others, what they agree on.

JAX's own runtime connects them. Small things go through its key-value store, which needs no device: a process may wait
there for minutes while the first one plans. Leaves of a state go from device to device.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from plimsoll.errors import RunError

HEARTBEAT_SECONDS = 30
"""A process that was not heard for so long counts as gone, and ends the others."""
CONNECT_SECONDS = 300
PATIENCE_MILLISECONDS = 24 * 3600 * 1000
LEAVING_SECONDS = 3
"""That the first process leaves to the others to say what they have heard."""
POLL_SECONDS = 0.2
"""Between two looks for what the first process prepares: it makes data and compiles plans meanwhile."""
PIECE_BYTES = 16 * 2**20
"""Of a leaf that goes to the other processes at a time."""


def join(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    told: Callable[[], int | None] = lambda: None,
) -> None:
    """Before anything else touches JAX. None: as the variables of Slurm, MPI, Kubernetes or a TPU say.

    JAX waits for the others where no signal handler of Python's runs: in a thread here, while this one looks whether
    a signal was `told`.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM for itself, and notes it late
    failures: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                initialization_timeout=CONNECT_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=HEARTBEAT_SECONDS,
            )
        except (ValueError, RuntimeError) as problem:
            failures.append(problem)

    waiting = threading.Thread(target=initialize, daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(POLL_SECONDS)
        if (number := told()) is not None:
            stopped = RunError("stopped while it waited for the other processes: nothing was begun")
            stopped.exit_code = 128 + number
            raise stopped
    for problem in failures:
        where = coordinator or "the coordinator that this cluster names"
        raise RunError(
            f"the processes of this run did not find one another at {where} in {CONNECT_SECONDS} s:"
            f" {str(problem).splitlines()[0][:200]}. Start all of them with the same --coordinator and --processes,"
            " each with its own --process from 0, and let the port through"
        )


def leave() -> None:
    """When all have come to the end."""
    meet("end")
    jax.distributed.shutdown()


def meet(place: str) -> None:
    """Waits until all have come to `place`, each time once. Where one may take minutes (compiling, writing), so that
    none waits for it in a collective, which gives up."""
    if processes() > 1:
        _met[place] = _met.get(place, 0) + 1
        _state().client.wait_at_barrier(f"plimsoll/{place}-{_met[place]}", PATIENCE_MILLISECONDS)


_met: dict[str, int] = {}


def processes() -> int:
    return _state().num_processes if _state().client is not None else 1


def process() -> int:
    return _state().process_id if _state().client is not None else 0


def is_first() -> bool:
    """Whether this process writes what the run keeps: the only one, or number 0."""
    return process() == 0


def _state() -> Any:
    from jax._src import distributed  # the store of its client has no public name yet

    return distributed.global_state


def devices(count: int) -> list[Any]:
    """`count` of them, as many of every process: the first of each."""
    each = count // processes()
    if each * processes() != count or jax.device_count() < count:
        raise RunError(
            f"the plan is for {count} devices, and JAX finds {jax.device_count()} in {processes()} processes: start as"
            " many as the plan has hosts, or add --replan and a --mesh or --chip of what is here"
        )
    by_process: dict[int, list[Any]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    return [device for number in sorted(by_process) for device in by_process[number][:each]]


class Board:
    """Where the first process writes what all of them read, and each its own: under names that are used once."""

    def __init__(self, told: Callable[[], int | None] = lambda: None) -> None:
        self._client, self._told = _state().client, told

    def write(self, name: str, value: Any) -> None:
        self._client.key_value_set(f"plimsoll/{name}", json.dumps(value))

    def read(self, name: str) -> Any:
        """Waits until it is there, or a signal was `told`."""
        while True:
            try:
                return json.loads(self._client.key_value_try_get(f"plimsoll/{name}"))
            except jax.errors.JaxRuntimeError as problem:
                if not str(problem).startswith("NOT_FOUND"):
                    raise
            if (number := self._told()) is not None:
                raise SystemExit(128 + number)
            time.sleep(POLL_SECONDS)

    def heard(self, name: str) -> None:
        """Waits until all have read what was written, so that none is ended by another one's end before."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # one is gone: it will not hear it
            self._client.wait_at_barrier(f"plimsoll/heard-{name}", HEARTBEAT_SECONDS * 1000)
        if is_first():  # its end takes the store with it, and whoever is still connected ends with an abort
            time.sleep(LEAVING_SECONDS)

    def write_files(self, name: str, folder: Path, paths: list[str]) -> None:
        import tarfile

        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in paths:
                archive.add(folder / path, arcname=path)
        pieces = [packed.getvalue()[at : at + 2**20] for at in range(0, packed.tell(), 2**20)]
        for number, piece in enumerate(pieces):
            self._client.key_value_set_bytes(f"plimsoll/{name}/{number}", piece)
        self.write(name, len(pieces))

    def read_files(self, name: str, folder: Path) -> None:
        import tarfile

        pieces = range(self.read(name))
        packed = b"".join(self._client.key_value_try_get_bytes(f"plimsoll/{name}/{number}") for number in pieces)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")


class Agreement:
    """What any process wishes becomes what all do, one step later: none of them waits for it."""

    def __init__(self) -> None:
        self._asked: jax.Array | None = None
        self.alone = processes() == 1
        if not self.alone:
            firsts = np.asarray(devices(processes()))
            self._lies = NamedSharding(jax.sharding.Mesh(firsts, ("process",)), PartitionSpec("process"))
            whole = NamedSharding(self._lies.mesh, PartitionSpec())
            self._largest = jax.jit(lambda wishes: wishes.max(), out_shardings=whole)

    def __call__(self, wish: int) -> int:
        """The largest of those that were given in the call before; alone, `wish` itself."""
        if self.alone:
            return wish
        before = 0 if self._asked is None else int(self._asked)
        mine = np.full(1, wish, np.int32)
        self._asked = self._largest(jax.make_array_from_process_local_data(self._lies, mine, (processes(),)))
        return before


def gathered(leaf: jax.Array) -> np.ndarray:
    """The whole of it, on every process."""
    if leaf.is_fully_addressable or leaf.is_fully_replicated:
        return np.asarray(leaf)
    from jax.experimental import multihost_utils  # here, as below: a process that trains alone stays lean

    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def from_first(whole: np.ndarray | None, like: Any) -> jax.Array:
    """Of `like`'s shape, and where it lies: what the first process gives, bit for bit."""
    from jax.experimental import multihost_utils

    size = int(np.prod(like.shape)) * np.dtype(like.dtype).itemsize
    sent = np.zeros(size, np.uint8) if whole is None else np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
    received = np.empty(size, np.uint8)
    for at in range(0, size, PIECE_BYTES):
        received[at : at + PIECE_BYTES] = multihost_utils.broadcast_one_to_all(sent[at : at + PIECE_BYTES])
    found = received.view(like.dtype).reshape(like.shape)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: found[index])


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """For what the first process does with Orbax by itself, which else waits for the others, whatever its
    `active_processes` are (0.11.36: it compares the folder's name over all). May go when it does not."""
    if processes() == 1:
        yield
        return
    from unittest import mock

    with mock.patch.object(jax, "process_count", return_value=1):
        yield
