"""Who trains at an address: an object with host, process and time, since a bucket has no locks.

It is written again every `BEAT_SECONDS`; one that nobody wrote for `LEASE_SECONDS` is of a machine that is gone, and
is taken over. Clocks of machines that share an address should agree within a minute. Two that take over the same old
lease in the same second both hold it, until the one that did not write last looks again, before it sends anything.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plimsoll.errors import RunError
from plimsoll.runs.store import Store
from plimsoll.units import format_seconds

OBJECT = "mirror-lease.json"
LEASE_SECONDS = 300
BEAT_SECONDS = 60


class LeaseLost(RunError):
    """Another machine trains at the address now."""


class Lease:
    """Of the process that holds `home`: an older one of the same folder is of a process that has ended."""

    def __init__(self, store: Store, home: Path) -> None:
        self.store, self.home = store, home
        self.passing: set[str] = set()
        """Objects that may be on no list: whoever takes the lease over cleans up after its holder."""
        self._token = uuid.uuid4().hex
        self._one_at_a_time = threading.Lock()

    def take(self) -> str | None:
        """What is to be said about it. RunError where another machine trains there."""
        found = self._found()
        if found is None and self.store.create(OBJECT, self._content()):  # of two that ask now, one: where a store can
            return None
        found = found or self._found()
        age = max(0.0, time.time() - found["time"]) if found else 0.0
        words = None
        if found and not found["released"] and [found["host"], found["home"]] != [socket.gethostname(), str(self.home)]:
            holder = f"process {found['pid']} on {found['host']}"
            if age < LEASE_SECONDS:
                raise RunError(
                    f"{self.store.address} is being trained by {holder}, which was there {format_seconds(age)} ago:"
                    f" wait for it, stop it, or name another --run. If it is gone, the address is free"
                    f" {format_seconds(LEASE_SECONDS)} after its last sign"
                )
            words = (
                f"{self.store.address} was being trained by {holder}, unheard of for {format_seconds(age)}: taken over"
            )
        self.passing = set(found["passing"]) if found else set()
        self.store.write(OBJECT, self._content())
        return words

    def renew(self, passing: Iterable[str] | None = None) -> None:
        """LeaseLost where it is not ours any more."""
        with self._one_at_a_time:
            found = self._found()
            if found is None or found["token"] != self._token:
                holder = f"process {found['pid']} on {found['host']}" if found else "somebody who removed our lease"
                raise LeaseLost(
                    f"{self.store.address} was taken over by {holder}, as anyone may when nothing was heard of this"
                    f" machine for {format_seconds(LEASE_SECONDS)}: nothing more is sent there from here"
                )
            self.passing = self.passing if passing is None else set(passing)
            self.store.write(OBJECT, self._content())

    def release(self) -> None:
        """For the next one, at once. What may be left of a push stays noted."""
        with self._one_at_a_time:
            found = self._found()
            if found is None or found["token"] != self._token:
                return
            if self.passing:
                self.store.write(OBJECT, self._content(released=True))
            else:
                self.store.remove(OBJECT)

    def _content(self, *, released: bool = False) -> bytes:
        return json.dumps(
            {
                "token": self._token,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "home": str(self.home),
                "time": time.time(),
                "released": released,
                "passing": sorted(self.passing),
            }
        ).encode()

    def _found(self) -> dict[str, Any] | None:
        """None where there is none, or one that nobody can read."""
        raw = self.store.read(OBJECT)
        try:
            found = json.loads(raw or b"")
            return {
                "token": str(found["token"]),
                "host": str(found["host"]),
                "pid": int(found["pid"]),
                "home": str(found["home"]),
                "time": float(found["time"]),
                "released": bool(found["released"]),
                "passing": [_of_the_run(name) for name in found["passing"]],
            }
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            return None


def _of_the_run(name: str) -> str:
    """Of an object that a push left: nothing else is ever removed for the sake of a lease."""
    stem, _, checksum = name.rpartition(".")
    if not stem or len(checksum) != 16 or set(checksum) - set("0123456789abcdef"):
        raise ValueError(f"no object of a run: {name[:80]!r}")
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"no object of a run: {name[:80]!r}")
    return name
