"""A run whose folder is in a bucket: trained in a folder here, which is fetched before and sent after every save.

The training process never sees the address. Its supervisor fetches, sends and holds the lease, in threads of its own,
so that no step waits for the network, and no driver's memory counts towards the budget.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from plimsoll.errors import PlimsollError, RunError, raise_refusal
from plimsoll.files.lease import BEAT_SECONDS, Lease, LeaseLost
from plimsoll.files.mirror import Mirror
from plimsoll.files.run_folder import RunFolder
from plimsoll.files.store import Store, is_address
from plimsoll.processes import environment
from plimsoll.units import format_bytes, format_seconds

Say = Callable[[str], None]
LOOK_SECONDS = 0.5
"""Time between two looks for a new checkpoint."""
PATIENCE_SECONDS = 60
"""Time that a training process whose supervisor was killed has to save and end."""
BEHIND = 3
"""Exit code of a session that was trained to its end, and could not be sent."""


@dataclass(frozen=True)
class Place:
    """Folders of an address on this machine, inside the cache folder."""

    home: Path
    """Folder for everything about this address."""
    run: Path
    """Run folder, inside `home`."""

    @classmethod
    def of(cls, address: str) -> Place:
        """Returns the place of an address; the run folder has its last part as name."""
        address = address.rstrip("/")
        home = environment.cache_folder() / "runs" / hashlib.sha256(address.encode()).hexdigest()[:12]
        return cls(home, home / (re.sub(r"[^\w.-]", "-", address.rpartition("/")[2]).lstrip(".") or "run"))

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Locks the place for the block, so that one process of this machine fetches or sends.

        Yields False if another process has the lock.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "lock", "ab") as file:
            ours = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                ours = False
            yield ours


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fetched(run: str) -> str:
    """Returns the folder of a run, for a command that reads it. If `run` is an address, it is fetched before."""
    if not is_address(run):
        return run
    place = Place.of(run)
    store = Store(run)
    with place.held() as ours:
        if ours and not RunFolder(place.run).is_trained_now():
            for message in Mirror(store, place.home, place.run).bring():
                _warn(message)
        elif not place.run.exists():
            raise RunError(f"{run} is just being fetched by another process on this machine: try again when it is here")
    if not (place.run / "recipe.json").exists():
        raise RunError(f"there is no run at {run}: `plimsoll train RECIPE --run {run}` makes one")
    return str(place.run)


class Mirrored:
    """A run that is trained in the folder `run` and sent to `address`. The block of `mirrored` gets it."""

    def __init__(self, address: str, place: Place, say: Say, lost: Callable[[], None]) -> None:
        self.address, self.run = address, place.run
        self.behind: str | None = None
        """Reason why the address does not have all that was trained; None if it does."""
        self._say, self._on_loss = say, lost
        self._store = Store(address)
        self._lease, self._mirror = Lease(self._store, place.home), Mirror(self._store, place.home, place.run)
        self._over = threading.Event()
        self._lost: LeaseLost | None = None
        self._failed: str | None = None
        """Reason why the last push failed. It is reported once, until a push succeeds."""
        self._pushes, self._bytes, self._seconds = 0, 0, 0.0
        self._threads = [
            threading.Thread(target=work, name=f"bucket-{work.__name__}", daemon=True)
            for work in (self._keep_lease, self._send_saves)
        ]

    def open(self) -> None:
        """Takes the lease, fetches, and starts to send. Refuses here, before anything is prepared, a bad address."""
        taken_over = self._lease.take()
        try:
            if taken_over:
                _warn(taken_over)
            self._mirror.passing = self._lease.passing
            for message in self._mirror.bring():
                self._say(message)
        except BaseException:
            with contextlib.suppress(PlimsollError):
                self._lease.release()
            raise
        self._say(f"{self.address} is trained in {self.run}, and sent after every save")
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Sends what is left, and releases the lease. Sets `behind` if that failed."""
        self._over.set()
        try:
            for thread in self._threads:
                thread.join()
            self._push()
            if self._lost is None:
                self._lease.release()
        except PlimsollError as problem:
            self._failed = self._failed or str(problem)
        except KeyboardInterrupt:
            self._failed = "interrupted while it was sent"
        why = self._failed or (str(self._lost) if self._lost else None)
        if why is not None and self.run.exists() and self._mirror.is_behind():
            self.behind = (
                f"{self.address} is behind what was trained: {why}. It is whole in {self.run}: the same command, on"
                " this machine, sends it and goes on"
            )
        elif self._pushes:
            took = f"{format_bytes(self._bytes)} in {format_seconds(self._seconds)}"
            self._say(f"{self.address} is up to date ({self._pushes} times sent, {took})")
        if self._mirror.unremoved:
            _warn(f"old objects stay: {self._mirror.unremoved}")

    def _keep_lease(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                self._lease.renew()
            except LeaseLost as problem:
                self._lose(problem)
                return
            except PlimsollError:
                continue  # a push reports what is wrong with the network

    def _send_saves(self) -> None:
        sent, retry_at = None, 0.0
        while not self._over.wait(LOOK_SECONDS):
            saved = RunFolder(self.run).saved_steps()
            if not saved or (saved == sent and (self._failed is None or time.monotonic() < retry_at)):
                continue
            self._push()
            sent, retry_at = saved, time.monotonic() + BEAT_SECONDS

    def _push(self) -> None:
        """Sends what is new. A failure is reported and noted, and does not end training."""
        if self._lost is not None:
            return
        started = time.monotonic()
        try:
            sent = self._mirror.push(self._lease.renew)
        except LeaseLost as problem:
            self._lose(problem)
            return
        except (PlimsollError, OSError) as problem:  # the disk of this machine may be full, too
            if self._failed is None:
                _warn(f"{problem}. Training goes on in {self.run}; it is tried again after every save")
            self._failed = str(problem)
            return
        if self._failed is not None:
            self._failed = None
            _warn(f"{self.address} is up to date again")
        if sent is not None:
            self._pushes, self._bytes = self._pushes + 1, self._bytes + sent.bytes
            self._seconds += time.monotonic() - started

    def _lose(self, problem: LeaseLost) -> None:
        if self._lost is None:
            self._lost = problem
            _warn(str(problem))
            self._on_loss()


@contextlib.contextmanager
def mirrored(address: str, say: Say, *, lost: Callable[[], None] = lambda: None) -> Iterator[Mirrored]:
    """Sends what is saved in `.run` to an address until the end of the block. Afterwards `.behind` says if it failed.

    Args:
        address: Where the run is kept.
        say: Called with messages about what is fetched and sent.
        lost: Called, in another thread, if another machine takes the address over.
    """
    place = Place.of(address)
    with place.held() as ours:
        if not ours:
            raise RunError(
                f"{address} is being trained or fetched by another process on this machine ({place.run}): wait for it,"
                " stop it, or name another --run"
            )
        folder, deadline = RunFolder(place.run), time.monotonic() + PATIENCE_SECONDS
        if folder.is_trained_now():  # a training process outlives its supervisor by the time that a save takes
            say(f"{place.run} is still being saved by a process of before: waiting for it")
        while folder.is_trained_now():
            if time.monotonic() > deadline:
                os.close(folder.lock())  # raises, and names the holder
            time.sleep(0.2)
        mirror = Mirrored(address, place, say, lost)
        mirror.open()
        try:
            yield mirror
        finally:
            mirror.close()


def stop_training() -> None:
    """Sends SIGTERM to this process, which `watched` forwards to the one that trains; that saves and ends."""
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class Door:
    """Socket by which one of several training processes, once it knows that it is the first, has its run fetched."""

    number: int
    """File descriptor that the training process inherits."""
    mirror: Mirrored | None = None

    @property
    def behind(self) -> str | None:
        """Reason why the address is behind; None if it is not, or if no process asked for it."""
        return self.mirror and self.mirror.behind


@contextlib.contextmanager
def on_demand(address: str, quiet: bool) -> Iterator[Door]:
    """Runs `mirrored` in this process from the moment that a process calls `folder_through` the door.

    Which of several processes is the first is known only after they have joined their cluster, in a process with JAX.
    """
    say = (lambda text: None) if quiet else (lambda text: print(text, flush=True))
    ours, theirs = socket.socketpair()
    door = Door(theirs.fileno())
    with contextlib.ExitStack() as opened:

        def serve() -> None:
            if not ours.recv(1):
                return  # it was not the first process
            try:
                door.mirror = opened.enter_context(mirrored(address, say, lost=stop_training))
                reply = {"run": str(door.mirror.run)}
            except PlimsollError as problem:
                reply = problem.reply()
            with contextlib.suppress(OSError):  # the other process is gone
                ours.sendall(json.dumps(reply).encode() + b"\n")

        with ours:
            serving = threading.Thread(target=serve, name="bucket-door", daemon=True)
            serving.start()
            try:
                with theirs:
                    yield door
            finally:
                serving.join()


def folder_through(door: int) -> str:
    """Has the run fetched by the process on the other side of the door, and returns its folder."""
    with socket.socket(fileno=door) as connection:
        connection.sendall(b"1")
        with connection.makefile() as replies:
            reply = json.loads(replies.readline())
    raise_refusal(reply)
    return reply["run"]
