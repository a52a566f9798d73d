"""Connections from the first process of a run to the others: ids and parts of a state cross without JAX's store.

The store compresses each message with zlib, and keeps it in the first process until it is taken. What has to be secret,
a key that shows who belongs to the run, still goes through it.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

from plimsoll.errors import RunError
from plimsoll.processes.peers import SILENT_SECONDS

REACH_SECONDS = 10
"""Time within which a port of the first process answers."""
LENGTH, NUMBER = struct.Struct("!Q"), struct.Struct("!I")
KEY_BYTES = 16
STRANGERS = 16
"""Callers that may wait beside those of the run, like who scans ports."""


class Connection:
    """A connection over which messages arrive whole and in their order, or not at all."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")

    def send(self, message: bytes | memoryview) -> None:
        """Sends a message; waits while the other end takes none. Raises OSError where that is closed."""
        self._socket.sendall(LENGTH.pack(len(message)))
        self._socket.sendall(message)

    def receive(self) -> bytes:
        """Returns the next message. Raises OSError where the other end is closed."""
        return self._whole(LENGTH.unpack(self._whole(LENGTH.size))[0])

    def receive_into(self, out: memoryview) -> None:
        """Receives the next message, which has the size of `out`. Raises OSError where the other end is closed."""
        (size,) = LENGTH.unpack(self._whole(LENGTH.size))
        if size != len(out):
            raise ConnectionAbortedError(f"{size} bytes have come for {len(out)}")
        at = 0
        while at < size:
            if not (more := self._file.readinto(out[at:])):
                raise ConnectionResetError("the other end is closed")
            at += more

    def _whole(self, size: int) -> bytes:
        if len(read := self._file.read(size)) < size:
            raise ConnectionResetError("the other end is closed")
        return read

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
            self._socket.close()


@contextlib.contextmanager
def breaking(process: int) -> Iterator[None]:
    """Raises RunError where the connection to a process breaks in the block and the process is there.

    Where it is gone, `peers.Watch` or JAX end this one while it waits, and say so.
    """
    try:
        yield
    except OSError as problem:
        time.sleep(SILENT_SECONDS)
        raise RunError(
            f"the connection to process {process} broke ({problem}), and nobody says that it is gone: what was saved"
            " is whole. Start all of them again with the same command"
        ) from None


class Port:
    """An open port of the first process, for so many others that know its key."""

    def __init__(self, callers: int) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._server = socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=callers + STRANGERS)
        self._key = secrets.token_bytes(KEY_BYTES)

    @property
    def address(self) -> dict[str, Any]:
        """Port and key, as JSON for `connect`."""
        return {"port": self._server.getsockname()[1], "key": self._key.hex()}

    def accepted(self, processes: Sequence[int]) -> dict[int, Connection]:
        """Returns the connection to each of these processes, all of which have connected already."""
        found: dict[int, Connection] = {}
        self._server.settimeout(REACH_SECONDS)
        try:
            while missing := set(processes) - found.keys():
                caller, _ = self._server.accept()
                if (process := _who(caller, self._key)) in missing:
                    found[process] = Connection(caller)
                else:
                    caller.close()
        except OSError as problem:
            for connection in found.values():
                connection.close()
            raise RunError(
                f"process {min(set(processes) - found.keys())} of this run said that it is connected to the first one,"
                f" and is not ({problem}): start all again"
            ) from None
        return found

    def close(self) -> None:
        self._server.close()


def _who(caller: socket.socket, key: bytes) -> int | None:
    """Returns the number of the process that calls; None where it does not know the key."""
    caller.settimeout(REACH_SECONDS)
    said = b""
    with contextlib.suppress(OSError):
        while len(said) < KEY_BYTES + NUMBER.size and (more := caller.recv(KEY_BYTES + NUMBER.size - len(said))):
            said += more
    if len(said) < KEY_BYTES + NUMBER.size or not hmac.compare_digest(said[:KEY_BYTES], key):
        return None
    caller.settimeout(None)
    return NUMBER.unpack(said[KEY_BYTES:])[0]


def connect(host: str, address: dict[str, Any], process: int) -> Connection:
    """Returns the connection of process number `process` to the first one, whose `Port.address` it is.

    Raises:
        RunError: The port does not answer.
    """
    try:
        caller = socket.create_connection((host, address["port"]), timeout=REACH_SECONDS)
        try:
            caller.sendall(bytes.fromhex(address["key"]) + NUMBER.pack(process))
        except OSError:
            caller.close()
            raise
    except OSError as problem:
        raise RunError(
            f"process {process} does not reach port {address['port']} of {host}, the first process ({problem}): let"
            " ports through between the machines of a run, as its sums need too"
        ) from None
    caller.settimeout(None)
    return Connection(caller)
