"""Connections from the first process of a run to the others: text and ids cross without JAX's store.

The store compresses each message with zlib, and keeps it in the first process until it is taken. What has to be secret,
a key that shows who belongs to the run, still goes through it.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from plimsoll.errors import DataError

REACH_SECONDS = 10
"""Time within which a port of the first process answers."""
LENGTH, NUMBER = struct.Struct("!Q"), struct.Struct("!I")
KEY_BYTES = 16


class Line:
    """A connection over which messages arrive whole and in their order, or not at all."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")

    def send(self, message: bytes) -> None:
        """Sends a message; waits while the other end takes none. Raises OSError where that is closed."""
        self._socket.sendall(LENGTH.pack(len(message)))
        self._socket.sendall(message)

    def receive(self) -> bytes:
        """Returns the next message. Raises OSError where the other end is closed."""
        return self._whole(LENGTH.unpack(self._whole(LENGTH.size))[0])

    def _whole(self, size: int) -> bytes:
        if len(read := self._file.read(size)) < size:
            raise ConnectionResetError("the other end is closed")
        return read

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
            self._socket.close()


class Door:
    """An open port of the first process, for others that know its key."""

    def __init__(self) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._server = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        self._key = secrets.token_bytes(KEY_BYTES)

    @property
    def address(self) -> dict[str, Any]:
        """Port and key, as JSON for `connected`."""
        return {"port": self._server.getsockname()[1], "key": self._key.hex()}

    def lines(self, processes: Sequence[int]) -> dict[int, Line]:
        """Returns a line to each of these processes. All of them have connected already."""
        found: dict[int, Line] = {}
        self._server.settimeout(REACH_SECONDS)
        while missing := set(processes) - found.keys():
            try:
                caller, _ = self._server.accept()
            except TimeoutError:
                raise DataError(
                    f"process {min(missing)} of this run said that it is connected, and is not: start all again"
                ) from None
            if (process := _who(caller, self._key)) in missing:
                found[process] = Line(caller)
            else:
                caller.close()
        return found

    def close(self) -> None:
        self._server.close()


@contextlib.contextmanager
def door() -> Iterator[Door]:
    """Opens a port until the end of the block."""
    opened = Door()
    try:
        yield opened
    finally:
        opened.close()


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


def connected(host: str, address: dict[str, Any], process: int) -> Line:
    """Returns the line of process number `process` to the first one, whose `Door.address` it is.

    Raises:
        DataError: The port does not answer.
    """
    try:
        line = socket.create_connection((host, address["port"]), timeout=REACH_SECONDS)
        line.sendall(bytes.fromhex(address["key"]) + NUMBER.pack(process))
    except OSError as problem:
        raise DataError(
            f"process {process} does not reach port {address['port']} of {host}, the first process ({problem}): let"
            " ports through between the machines of a run, as its sums need too"
        ) from None
    line.settimeout(None)
    return Line(line)
