"""Several processes that train one run: how they connect, what the first sends to the others, what they agree on.

JAX's own runtime connects them. Small things go through its key-value store, which needs no device: a process may wait
there for minutes while the first one plans. Leaves of a state go over connections of their own (crossing.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from plimsoll.errors import RunError, StoppedError
from plimsoll.processes.peers import ALL_AGAIN, lost

HEARTBEAT_SECONDS = 30
"""Silence after which a process counts as gone; the others then end."""
CONNECT_SECONDS = 300
"""Time that processes have to find one another. JAX is given more: it would abort the process, with another reason."""
COME_BACK_SECONDS = 90
"""Time that processes have to find one another again where all have become new ones."""
JAX_WAITS_SECONDS = 2 * CONNECT_SECONDS
SAID_AFTER_SECONDS = 30
"""Time after which a process says for whom it waits."""
ENDING_SECONDS = 30
"""Time that the same process of the same run has to end, where an earlier start of it is still there."""
LEAVING_SECONDS = 3
"""Time that the first process leaves to the others to print what they have read."""
POLL_SECONDS = 0.2
"""Time between two looks for what the first process prepares: it makes data and compiles plans meanwhile."""
WOKEN_WAITS = 50
"""Waits of `POLL_SECONDS` which the value itself ends. After them it is looked for: the store keeps a wait that was
given up, until the value is there."""


def join(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    signal: Callable[[], int | None] = lambda: None,
    *,
    again: Sequence[str] = (),
) -> None:
    """Connects the processes of a run. Call it before anything else touches JAX.

    None: as the variables of Slurm, MPI, Kubernetes or a TPU give it. JAX waits for the others where no signal handler
    of Python's runs: in a thread here, while this one looks whether `signal` returns one. `again`: names of all
    processes' machines where they were connected before, and have become new processes.

    Raises:
        RunError: The others do not come in time, the port is taken, or this process of the run is there already. The
            thread may still wait then: end the process by `os._exit`.
        StoppedError: They do not come back in time.
    """

    def heed() -> None:
        if (number := signal()) is not None:
            what = ALL_AGAIN if again else "nothing was begun"
            stopped = RunError(f"stopped while it waited for the other processes: {what}")
            stopped.exit_code = 128 + number
            raise stopped

    if coordinator is not None:
        _require_alone(coordinator, process, heed)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM for itself, and notes it late
    failures: list[Exception] = []

    def initialize() -> None:
        try:
            _require_free(coordinator, processes, process)
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                initialization_timeout=JAX_WAITS_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=HEARTBEAT_SECONDS,
            )
        except Exception as problem:  # raised below, where it is heard
            failures.append(problem)

    where = coordinator or "the coordinator that this cluster names"
    many = "the others" if processes is None else f"all {processes} processes"
    limit = COME_BACK_SECONDS if again else CONNECT_SECONDS
    started, waited, said = time.monotonic(), 0.0, False
    waiting = threading.Thread(target=initialize, daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(POLL_SECONDS)
        if not waiting.is_alive():  # all have come: from here on each tells the others why it ends
            break
        heed()
        waited = time.monotonic() - started
        if waited > SAID_AFTER_SECONDS and not said:
            said = True
            print(f"waiting for {many} at {where}, for {limit} s at most", file=sys.stderr, flush=True)
        if waited > limit:
            failures.append(TimeoutError("not all have come"))
            break
    for problem in failures:
        if isinstance(problem, RunError):
            raise problem
        if again and isinstance(problem, TimeoutError):
            other = [1 - process] if process is not None and len(again) == 2 else []
            how = f"all became new ones, and it has not come to {where} in {waited:.0f} s"
            raise StoppedError(lost(other, again, how))
        raise RunError(
            f"the processes of this run did not find one another at {where} in {waited:.0f} s:"
            f" {str(problem).splitlines()[0][:200]}. Start all of them with the same --coordinator and --processes,"
            " each with its own --process from 0, and let the port through"
        )


def _require_free(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Raises RunError where something listens at the first process's own port: JAX would end by a fault of memory.

    Args:
        coordinator: HOST:PORT of the first process, and the arguments after it; None as in `join`.
        processes: Number of processes.
        process: Number of this process.
    """
    from jax._src import clusters  # how JAX finds a cluster's coordinator has no public name

    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
    given = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    address, _, process, _ = detect(given, processes, process, None, None, JAX_WAITS_SECONDS)
    if process != 0 or address is None:  # None: JAX says so
        return
    port = int(address.rpartition(":")[2])
    for family, everywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with contextlib.suppress(OSError), socket.socket(family) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before may still close
            try:
                listening.bind((everywhere, port))
                listening.listen()
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    raise
                named, advice = f"--coordinator {coordinator}", "give all processes another port"
                if coordinator is None:
                    named = f"{address}, which JAX takes from the variables of this cluster,"
                    advice = "set JAX_COORDINATOR_PORT to another one for all processes, or start the job again"
                raise RunError(
                    f"port {port} of {named} is in use on this machine, where process 0 was to listen at it: {advice}"
                ) from None


_held: list[Any] = []
"""Files that are locked as long as this process lives."""


def _require_alone(coordinator: str, process: int | None, heed: Callable[[], None]) -> None:
    """Raises RunError where this process of the run is on this machine already: JAX would end both, and all others.

    Meanwhile it calls `heed`, which raises at a signal.
    """
    name = hashlib.sha256(f"{coordinator} {process}".encode()).hexdigest()[:16]
    file = open(Path(tempfile.gettempdir()) / f"plimsoll-{os.getuid()}-{name}.lock", "w")  # noqa: SIM115
    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise RunError(
                    f"process {process} of the run at --coordinator {coordinator} is on this machine already, and has"
                    f" not ended in {ENDING_SECONDS} s: stop it first, or give this one its own --process"
                ) from None
            heed()
            time.sleep(POLL_SECONDS)
        else:
            _held.append(file)
            return


def leave(met: Callable[[], None] = lambda: None) -> None:
    """Disconnects from the others when all are done.

    Args:
        met: Called once all are, while they are still connected.
    """
    barrier("end")
    met()
    jax.distributed.shutdown()


def barrier(place: str) -> None:
    """Waits until all processes have come to `place`.

    Use it around work that can take minutes on one process (compiling, writing); a collective would time out. Where
    one is gone or has failed, `processes.peers` or JAX ends the wait. It is one of Python's, a moment at a time, in
    which handlers of signals run: JAX's own barrier lets none of them run until all have come.
    """
    if processes() > 1:
        _met[place] = _met.get(place, 0) + 1
        of_each(f"met-{place}-{_met[place]}", True)


_met: dict[str, int] = {}


def processes() -> int:
    """Returns the number of processes."""
    return _state().num_processes if _state().client is not None else 1


def process() -> int:
    """Returns the number of this process, from 0. Number 0, or the only one, writes what the run keeps."""
    return _state().process_id if _state().client is not None else 0


def _state() -> Any:
    from jax._src import distributed  # the store of its client has no public name yet

    return distributed.global_state


def devices(count: int) -> list[Any]:
    """Returns `count` devices, as many of every process: the first of each."""
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
    """A store that all processes read: the first writes there, and each its own, under names that are used once."""

    def __init__(self) -> None:
        self._client = _state().client

    @property
    def host(self) -> str:
        """Name or address of the first process's machine, at which the others have reached it."""
        return _state().coordinator_address.rpartition(":")[0].strip("[]")

    def write(self, name: str, value: Any) -> None:
        self._client.key_value_set(f"plimsoll/{name}", json.dumps(value))

    def claim(self, name: str) -> bool:
        """Returns whether this process is the first that claims a name."""
        try:
            self.write(name, process())
        except jax.errors.JaxRuntimeError as problem:
            if not str(problem).startswith("ALREADY_EXISTS"):
                raise
        return self.latest(name) == process()  # the store may have heard a claim twice

    def read(self, name: str) -> Any:
        """Returns the value under a name once it is there."""
        for _ in range(WOKEN_WAITS):
            with _unless("DEADLINE_EXCEEDED"):
                return json.loads(self._client.blocking_key_value_get(f"plimsoll/{name}", int(POLL_SECONDS * 1000)))
        return self.read_first_of(name)[1]

    def read_first_of(self, *names: str) -> tuple[str, Any]:
        """Returns the first of the names that has a value, once one has, and the value."""
        while True:
            for name in names:
                with _unless("NOT_FOUND"):
                    return name, json.loads(self._client.key_value_try_get(f"plimsoll/{name}"))
            time.sleep(POLL_SECONDS)

    def put(self, name: str, value: Any) -> None:
        """Writes a value over the one that was there."""
        self._client.key_value_set(f"plimsoll/{name}", json.dumps(value), allow_overwrite=True)

    def latest(self, name: str) -> Any:
        """Returns the value under a name as it is now, None where there is none yet."""
        with _unless("NOT_FOUND"):
            return json.loads(self._client.key_value_try_get(f"plimsoll/{name}"))
        return None

    def wait_until_read(self, name: str) -> None:
        """Waits until all have read what was written, so that the end of one does not end another before."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # one is gone: it will not read it
            self._client.wait_at_barrier(f"plimsoll/read-{name}", HEARTBEAT_SECONDS * 1000)
        if process() == 0:  # its end takes the store with it, and whoever is still connected ends with an abort
            time.sleep(LEAVING_SECONDS)

    def write_files(self, name: str, folder: Path, paths: list[str]) -> None:
        """Writes files of a folder, as one archive in pieces."""
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
        """Unpacks the files that `write_files` wrote into a folder."""
        import tarfile

        pieces = range(self.read(name))
        packed = b"".join(self._client.key_value_try_get_bytes(f"plimsoll/{name}/{number}") for number in pieces)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")


@contextlib.contextmanager
def _unless(status: str) -> Iterator[None]:
    """Ends the block quietly where the store answers with this status."""
    try:
        yield
    except jax.errors.JaxRuntimeError as problem:
        if not str(problem).startswith(status):
            raise


def of_first(name: str, value: Any) -> Any:
    """Returns the first process's value, on every process. A `name` is used once."""
    if processes() == 1:
        return value
    board = Board()
    if process() == 0:
        board.write(name, value)
    return board.read(name)


def of_each(name: str, value: Any, board: Any = None) -> list[Any]:
    """Returns the values of all processes, in their order, on every process. A `name` is used once.

    Args:
        name: Of the values, on the board.
        value: This process's, JSON-serialisable.
        board: The board, if there is one already.
    """
    if processes() == 1:
        return [value]
    board = board or Board()
    board.write(f"{name}-{process()}", value)
    return [board.read(f"{name}-{number}") for number in range(processes())]


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


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Lets this process work with Orbax by itself.

    Orbax else waits for the others, whatever its `active_processes` are (0.11.36: it compares the folder's name over
    all), and takes another's folder for the one that it waits for (0.12.8: what they signal has a number that is the
    same in all). May go when it does not. One thread at a time.
    """
    if processes() == 1:
        yield
        return
    from unittest import mock

    from orbax.checkpoint._src.futures import signaling_client  # no public name

    own = signaling_client.ThreadSafeKeyValueSignalingClient()
    with (
        mock.patch.object(jax, "process_count", return_value=1),
        mock.patch.object(signaling_client, "get_signaling_client", return_value=own),
    ):
        yield
