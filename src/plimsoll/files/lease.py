"""Lease on an address: an object with host, process and time that says who trains there, since a bucket has no locks.

The holder writes it again every `BEAT_SECONDS`. A lease that nobody wrote for `LEASE_SECONDS` belongs to a machine that
is gone, and may be taken over. Clocks of machines that share an address should agree within a minute.

If two machines take over the same old lease within the same second, both hold it for a moment. Each looks again before
it sends anything, and the one that did not write last finds that its lease is lost.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plimsoll.errors import RunError
from plimsoll.files.store import Store
from plimsoll.units import format_seconds

OBJECT = "mirror-lease.json"
LEASE_SECONDS = 300
BEAT_SECONDS = 60
FIELDS = {"token": str, "host": str, "pid": int, "home": str, "time": float, "released": bool}
"""Fields of the object with their types; `passing` lists the objects that may be on no list."""
_OBJECT_NAME = re.compile(r"[^/].*\.[0-9a-f]{16}", re.DOTALL)


class LeaseLost(RunError):
    """Another machine trains at the address now."""


class Lease:
    """Lease of one process on the address of `store`, for which it trains in the folder `home` of this machine.

    An older lease with the same host and the same folder belongs to a process that has ended, and is taken at once.
    """

    def __init__(self, store: Store, home: Path) -> None:
        self.store, self.home = store, home
        self.passing: set[str] = set()
        """Objects that may be on no list. Whoever takes the lease over removes what its holder could not."""
        self._token = uuid.uuid4().hex
        self._one_at_a_time = threading.Lock()

    def take(self) -> str | None:
        """Takes the lease, and returns a message if it was taken over from another machine.

        Raises:
            RunError: Another machine trains there; with its host, its process and the age of its last sign.
        """
        held = self._read()
        if held is None and self.store.create(OBJECT, self._content()):  # only one of two succeeds, where a store can
            return None
        held = held or self._read()
        message = None
        if held and not held["released"] and [held["host"], held["home"]] != [socket.gethostname(), str(self.home)]:
            holder, age = f"process {held['pid']} on {held['host']}", max(0.0, time.time() - held["time"])
            if age < LEASE_SECONDS:
                raise RunError(
                    f"{self.store.address} is being trained by {holder}, which was there {format_seconds(age)} ago:"
                    f" wait for it, stop it, or name another --run. If it is gone, the address is free"
                    f" {format_seconds(LEASE_SECONDS)} after its last sign"
                )
            message = (
                f"{self.store.address} was being trained by {holder}, unheard of for {format_seconds(age)}: taken over"
            )
        self.passing = set(held["passing"]) if held else set()
        self.store.write(OBJECT, self._content())
        return message

    def renew(self, passing: Iterable[str] | None = None) -> None:
        """Writes the lease again with the present time.

        Args:
            passing: Objects that may be on no list from now on; as before if it is left out.

        Raises:
            LeaseLost: The lease is held by another process, or was removed.
        """
        with self._one_at_a_time:
            held = self._read()
            if held is None or held["token"] != self._token:
                holder = f"process {held['pid']} on {held['host']}" if held else "somebody who removed our lease"
                raise LeaseLost(
                    f"{self.store.address} was taken over by {holder}, as anyone may when nothing was heard of this"
                    f" machine for {format_seconds(LEASE_SECONDS)}: nothing more is sent there from here"
                )
            self.passing = self.passing if passing is None else set(passing)
            self.store.write(OBJECT, self._content())

    def release(self) -> None:
        """Frees the address at once. A lease with objects that may be on no list stays, marked as released."""
        with self._one_at_a_time:
            held = self._read()
            if held is None or held["token"] != self._token:
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

    def _read(self) -> dict[str, Any] | None:
        """Returns the lease that is at the address; None if there is none, or none that can be read.

        A lease with a name that is not one of a run's objects (`log.txt.3fa9c1d2e4b5a697`) counts as unreadable, so
        that nothing else is ever removed because a lease lists it.
        """
        try:
            held = json.loads(self.store.read(OBJECT) or b"")
            passing = list(held["passing"])
            if not all(_OBJECT_NAME.fullmatch(name) and ".." not in name.split("/") for name in passing):
                return None
            return {name: kind(held[name]) for name, kind in FIELDS.items()} | {"passing": passing}
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            return None
