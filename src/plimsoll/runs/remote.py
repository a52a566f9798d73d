"""A run folder in a bucket: trained in a folder here, which is fetched before and sent after every save.

Part of the joint. The training process never sees the address: whoever started it fetches, sends and holds the lease,
in threads beside it, so that training waits for no network, and no driver's memory is in its budget.
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

from plimsoll.errors import PlimsollError, RunError
from plimsoll.processes import environment
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.lease import BEAT_SECONDS, Lease, LeaseLost
from plimsoll.runs.mirror import Mirror
from plimsoll.runs.store import Store
from plimsoll.units import format_bytes, format_seconds

Say = Callable[[str], None]
LOOK_SECONDS = 0.5
"""Between two looks whether something was saved."""
PATIENCE_SECONDS = 60
"""For a training process whose starter was killed: it saves, and ends."""
BEHIND = 3
"""The exit code of a session that trained what it was asked to, and could not send it."""


def is_address(run: str | Path | None) -> bool:
    return isinstance(run, str) and re.match(r"[a-z][a-z0-9+.-]*://", run) is not None


@dataclass(frozen=True)
class Place:
    """Where the folder of an address is here: a folder for each in the cache folder."""

    home: Path
    run: Path

    @classmethod
    def of(cls, address: str) -> Place:
        address = address.rstrip("/")
        home = environment.cache_folder() / "runs" / hashlib.sha256(address.encode()).hexdigest()[:12]
        return cls(home, home / (re.sub(r"[^\w.-]", "-", address.rpartition("/")[2]).lstrip(".") or "run"))

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Whether it is ours until the end of the block: one process of this machine fetches or sends."""
        self.home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            yield False
            return
        try:
            yield True
        finally:
            os.close(descriptor)


def _aloud(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fetched(run: str, say: Say = _aloud) -> str:
    """The folder of a run, for a command that reads it. What is at an address is fetched before, where it is newer."""
    if not is_address(run):
        return run
    place = Place.of(run)
    store = Store(run)
    with place.held() as ours:
        if ours and not RunFolder(place.run).is_trained_now():
            for words in Mirror(store, place.home, place.run).bring():
                say(words)
        elif not place.run.exists():
            raise RunError(f"{run} is just being fetched by another process on this machine: try again when it is here")
    if not (place.run / "recipe.json").exists():
        raise RunError(f"there is no run at {run}: `plimsoll train RECIPE --run {run}` makes one")
    return str(place.run)


class Mirrored:
    """A run that is trained here and sent there: what the block of `mirrored` is given."""

    def __init__(self, address: str, place: Place, say: Say, lost: Callable[[], None]) -> None:
        self.address, self.place, self.run = address, place, place.run
        self.behind: str | None = None
        """Why the address does not have what was trained; None where it does."""
        self._say, self._on_loss = say, lost
        self._store = Store(address)
        self._lease, self._mirror = Lease(self._store, place.home), Mirror(self._store, place.home, place.run)
        self._over = threading.Event()
        self._lost: LeaseLost | None = None
        self._failed: str | None = None
        """Why the last push failed; said once, until one succeeds."""
        self._pushes, self._bytes, self._seconds = 0, 0, 0.0
        self._threads = [
            threading.Thread(target=work, name=f"bucket-{work.__name__}", daemon=True)
            for work in (self._keep_lease, self._send_saves)
        ]

    def open(self) -> None:
        """Refuses, before anything is prepared, what could not be sent later."""
        taken_over = self._lease.take()
        try:
            if taken_over:
                _aloud(taken_over)
            self._mirror.passing = self._lease.passing
            for words in self._mirror.bring():
                self._say(words)
        except BaseException:
            with contextlib.suppress(PlimsollError):
                self._lease.release()
            raise
        self._say(f"{self.address} is trained in {self.run}, and sent after every save")
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Sends what is left, and gives the lease back."""
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
        if why is not None and self._is_behind():
            self.behind = (
                f"{self.address} is behind what was trained: {why}. It is whole in {self.run}: the same command, on"
                " this machine, sends it and goes on"
            )
        elif self._pushes:
            took = f"{format_bytes(self._bytes)} in {format_seconds(self._seconds)}"
            self._say(f"{self.address} is up to date ({self._pushes} times sent, {took})")
        if self._mirror.unremoved:
            _aloud(f"old objects stay: {self._mirror.unremoved}")

    def _is_behind(self) -> bool:
        return self.run.exists() and self._mirror.is_behind()

    def _keep_lease(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                self._lease.renew()
            except LeaseLost as problem:
                self._lose(problem)
                return
            except PlimsollError:
                continue  # a push says what is wrong with the network

    def _send_saves(self) -> None:
        sent, retry_at = None, 0.0
        while not self._over.wait(LOOK_SECONDS):
            saved = _saved(self.run)
            if not saved or (saved == sent and (self._failed is None or time.monotonic() < retry_at)):
                continue
            self._push()
            sent, retry_at = saved, time.monotonic() + BEAT_SECONDS

    def _push(self) -> None:
        if self._lost is not None:
            return
        began = time.monotonic()
        try:
            sent = self._mirror.push(self._lease.renew)
        except LeaseLost as problem:
            self._lose(problem)
            return
        except (PlimsollError, OSError) as problem:  # the disk here may be full, too
            if self._failed is None:
                _aloud(f"{problem}. Training goes on in {self.run}; it is tried again after every save")
            self._failed = str(problem)
            return
        if self._failed is not None:
            self._failed = None
            _aloud(f"{self.address} is up to date again")
        if sent is not None:
            self._pushes, self._bytes = self._pushes + 1, self._bytes + sent.bytes
            self._seconds += time.monotonic() - began

    def _lose(self, problem: LeaseLost) -> None:
        if self._lost is None:
            self._lost = problem
            _aloud(str(problem))
            self._on_loss()


def _saved(run: Path) -> list[str]:
    """The names of the whole checkpoints."""
    return sorted(path.name for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdigit())


def stop_training() -> None:
    """`watched` hands it on to the process that trains, which saves."""
    os.kill(os.getpid(), signal.SIGTERM)


class Door:
    """Through which a process asks whoever started it to fetch its run, once it knows that it is the first one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.mirror: Mirrored | None = None

    @property
    def behind(self) -> str | None:
        return self.mirror and self.mirror.behind


@contextlib.contextmanager
def on_demand(address: str, quiet: bool) -> Iterator[Door]:
    """`mirrored`, from the moment that somebody asks for it."""
    say = (lambda text: None) if quiet else (lambda text: print(text, flush=True))
    ours, theirs = socket.socketpair()
    door = Door(theirs.fileno())
    with contextlib.ExitStack() as opened:

        def serve() -> None:
            if not ours.recv(1):
                return  # it was not the first one
            try:
                door.mirror = opened.enter_context(mirrored(address, say, lost=stop_training))
                reply = {"run": str(door.mirror.run)}
            except PlimsollError as problem:
                reply = {"refused": str(problem), "exit_code": problem.exit_code}
            with contextlib.suppress(OSError):  # whoever asked is gone
                ours.sendall(json.dumps(reply).encode() + b"\n")

        with ours:
            serving = threading.Thread(target=serve, name="bucket-door", daemon=True)
            serving.start()
            try:
                with theirs:
                    yield door
            finally:
                serving.join()


def asked_through(door: int) -> str:
    """The folder of the run, fetched; by the process on the other side."""
    with socket.socket(fileno=door) as asking:
        asking.sendall(b"1")
        with asking.makefile() as answers:
            reply = json.loads(answers.readline())
    if "refused" in reply:
        refusal = PlimsollError(reply["refused"])
        refusal.exit_code = reply["exit_code"]
        raise refusal
    return reply["run"]


@contextlib.contextmanager
def mirrored(address: str, say: Say, *, lost: Callable[[], None] = lambda: None) -> Iterator[Mirrored]:
    """Until the end of the block what is saved in `.run` is sent to `address`; `.behind` says afterwards if it was not.

    `lost` is called, in another thread, where another machine has taken the address over.
    """
    place = Place.of(address)
    with place.held() as ours:
        if not ours:
            raise RunError(
                f"{address} is being trained or fetched by another process on this machine ({place.run}): wait for it,"
                " stop it, or name another --run"
            )
        _require_quiet(place.run, say)
        mirror = Mirrored(address, place, say, lost)
        mirror.open()
        try:
            yield mirror
        finally:
            mirror.close()


def _require_quiet(run: Path, say: Say) -> None:
    """A training process may outlive whoever started it by the time that a save takes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    if RunFolder(run).is_trained_now():
        say(f"{run} is still being saved by a process of before: waiting for it")
    while RunFolder(run).is_trained_now():
        if time.monotonic() > deadline:
            os.close(RunFolder(run).lock())  # says who holds it
        time.sleep(0.2)
