"""A run in a bucket, and its folder in the cache, in which it is trained.

    gs://bucket/run/owner.json                  which folder sends, and when it last did
    gs://bucket/run/metrics.jsonl, plan.json    small files, sent whole when they have changed
    gs://bucket/run/checkpoints/step-00000600/  checkpoints, which never change; the manifest is sent last

Whoever reads finds what a kill at that moment would have left on a disk: rows of steps after the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from operator import itemgetter
from pathlib import Path

from plimsoll.errors import PlimsollError, RunError, StoppedError, as_written
from plimsoll.files import manifest
from plimsoll.files.manifest import MANIFEST, replace_file
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.cache import cache_folder
from plimsoll.units import MIB, format_seconds

Say = Callable[[str], None]
State = list[int]
"""Time of the last change of a file, in nanoseconds, and its size."""

OWNER = "owner.json"
SIGN_SECONDS = 60
FRESH_SECONDS = 300
"""Time after its last sign at which a machine does not own a run any more."""
DRIVERS = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
}  # fmt: skip
"""Packages, by the names that pip installs, for the protocols whose stores replace an object as a whole."""
PIECE = {"chunksize": 8 * MIB}
PIECES = {"s3fs": PIECE | {"max_concurrency": 2}, "gcsfs": PIECE}
"""Options that bound the memory of a driver while it sends a large file."""
CHECKPOINT = re.compile(r"checkpoints/step-\d+")


def is_address(run: str | Path | None) -> bool:
    """Returns whether a run is named by an address like `s3://bucket/run`, not by a folder."""
    return isinstance(run, str) and re.match(r"[a-z][a-z0-9+.-]*://", run) is not None


def folder_of(address: str) -> Path:
    """Returns the folder here of the run at an address. It has the last part of the address as its name."""
    address = address.rstrip("/")
    digest = hashlib.sha256(address.encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "-", address.rpartition("/")[2]).lstrip(".")
    return cache_folder() / "runs" / digest / (name or "run")


def fetched(run: str) -> str:
    """Returns the folder of a run, for a command that reads it. If `run` is an address, it is fetched before."""
    if not is_address(run):
        return run
    bucket = Bucket(run)
    with bucket.lock() as is_free:
        if is_free:
            bucket.follow(lambda text: print(text, file=sys.stderr, flush=True))
    if RunFolder(bucket.folder).exists():
        return str(bucket.folder)
    if not is_free:
        raise RunError(f"{run} is just being fetched by another process on this machine: try again when it is here")
    raise RunError(f"there is no run at {run}: `plimsoll train RECIPE --run {run}` makes one")


class BucketError(RunError):
    """An address cannot be reached, read or written to."""


class TakenError(StoppedError):
    """Another machine trains the run now."""


@dataclass(frozen=True)
class Owner:
    """Who sends a run."""

    folder: str
    """Random name of the local folder."""
    host: str
    at: float
    """Time of the last sign; 0 after the end."""


class Store:
    """Files below an address that fsspec knows. Each method is one operation, which may be cut off."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        protocol = self.address.partition("://")[0]
        self.driver = DRIVERS.get(protocol)
        if protocol == "memory":
            raise BucketError(f"--run {address} would end with its process: name a folder or a bucket")
        with self.refusing():
            from fsspec.core import url_to_fs

            options = {"auto_mkdir": True} if protocol in ("file", "local") else {}
            self.files, root = url_to_fs(self.address, use_listings_cache=False, **options)
            self.root = root.rstrip("/")

    def names(self, below: str = "") -> list[str]:
        """Returns the names of the run's files in a folder there."""
        try:
            paths = self.files.find(f"{self.root}/{below}".rstrip("/"))
        except FileNotFoundError:
            return []
        names = [path.removeprefix(f"{self.root}/") for path in paths]
        return [name for name in names if _is_ours(name)]

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        try:
            return self.files.cat_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return None

    def put(self, path: Path, name: str) -> None:
        """Sends a file. What is there under its name is whole at any moment."""
        target = f"{self.root}/{name}"
        if self.driver is not None:
            self.files.put_file(str(path), target, **PIECES.get(self.driver, {}))
            return
        self.files.put_file(str(path), f"{target}.new")
        self.files.mv(f"{target}.new", target)

    def get(self, name: str, target: Path) -> bool:
        """Fetches a file. Returns whether it was there."""
        if not _is_ours(name):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.files.get_file(f"{self.root}/{name}", str(target))
        except FileNotFoundError:
            target.unlink(missing_ok=True)
            return False
        return True

    def remove(self, name: str) -> None:
        """Removes a file, or a checkpoint with its manifest first."""
        for path in (f"{self.root}/{name}/{MANIFEST}", f"{self.root}/{name}"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self.files.rm(path, recursive=True)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Raises what a driver raises in the block as an error of one paragraph."""
        try:
            yield
        except PlimsollError:
            raise
        except Exception as problem:
            driver = self.driver or "fsspec"
            words = " ".join(str(problem).split())[:200]
            raise BucketError(
                f"{self.address} cannot be used ({type(problem).__name__}: {words}). A run there needs to list, read,"
                f" write and delete objects: check the name, the network, the disk here, that {driver} is installed"
                f" (`pip install {driver}`), and the credentials that it finds"
            ) from problem


class Bucket:
    """A run at an address, and its folder on this machine."""

    def __init__(self, address: str) -> None:
        self.store = Store(address)
        self.address = self.store.address
        self.folder = folder_of(address)
        self.name = ""
        """Random name of the folder here; empty unless it was trained, or fetched to the end."""
        self.sent: dict[str, State] = {}
        """Small files and checkpoints that are there as they were here in that state."""
        self._last_sign = 0.0

        self._notes = self.folder / ".bucket.json"
        if self._notes.exists():
            notes = json.loads(self._notes.read_text())
            self.name = notes["name"]
            self.sent = notes["sent"]

    # Who may send.

    def take(self, say: Say) -> None:
        """Makes the folder here the one that sends, after fetching what another one has sent.

        Raises:
            RunError: Another machine trains the run, or the address cannot be used.
        """
        with self.store.refusing():
            owner = self._owner()
            if owner is not None and owner.folder != self.name:
                age = max(0.0, time.time() - owner.at)
                if age < FRESH_SECONDS:
                    raise RunError(
                        f"{self.address} is being trained on {owner.host}, which gave a sign {format_seconds(age)} ago:"
                        " wait for it, stop it, or name another --run. If it is gone, the address is free"
                        f" {format_seconds(FRESH_SECONDS)} after its last sign"
                    )
            self._follow(owner, say)
            self.name = self.name or secrets.token_hex(8)
            self._keep_notes()
            self._sign(time.time())

    def renew(self) -> None:
        """Gives a sign. Raises TakenError if another machine has taken the run over."""
        with self.store.refusing():
            owner = self._owner()
            if owner is None:  # the address was emptied
                self.sent.clear()
            elif owner.folder != self.name:
                raise TakenError(
                    f"{self.address} was taken over by {owner.host}, as any machine may when nothing was heard of this"
                    f" one for {format_seconds(FRESH_SECONDS)}: nothing more is sent there from here"
                )
            self._sign(time.time())

    def release(self) -> None:
        """Frees the address for any machine."""
        with self.store.refusing():
            self._sign(0.0)

    def _sign(self, at: float) -> None:
        owner = Owner(self.name, socket.gethostname(), at)
        path = self.folder / f".{OWNER}"
        replace_file(path, json.dumps(asdict(owner)))
        self.store.put(path, OWNER)
        self._last_sign = time.time()

    def _owner(self) -> Owner | None:
        text = self.store.read(OWNER)
        if text is None:
            return None
        with as_written(f"{self.address}/{OWNER}"):
            return Owner(**json.loads(text))

    # What is sent.

    def send(self) -> None:
        """Sends what has changed. Cut off anywhere in it, the address holds a run that goes on.

        Raises:
            TakenError: Another machine has taken the run over.
            BucketError: The address cannot be used.
        """
        with self.store.refusing():
            self.renew()
            here = self._here()
            there = self._checkpoints_there()

            # Small files first: their rows reach at least to the newest checkpoint.
            for name, state in here.items():
                if self.sent.get(name) == state:
                    continue
                if name in there:  # a part of it, or what it was before training went back behind it
                    self.store.remove(name)
                if CHECKPOINT.match(name):
                    self._send_checkpoint(name)
                else:
                    self._send_small(name)
                self.sent[name] = state

            # Then what is no longer here.
            for name in (there | self.sent.keys()) - here.keys():
                self.store.remove(name)
                self.sent.pop(name, None)
            self._keep_notes()

    def is_behind(self) -> bool:
        """Returns whether the folder here has anything that was never sent."""
        return any(self.sent.get(name) != state for name, state in self._here().items())

    def _here(self) -> dict[str, State]:
        """Returns the state of the small files, the oldest first, and that of the manifests of whole checkpoints."""
        small = {}
        whole = {}
        for place, _, names in os.walk(self.folder):
            folder = Path(place).relative_to(self.folder).as_posix()
            for name in names:
                path = f"{folder}/{name}".removeprefix("./")
                with contextlib.suppress(FileNotFoundError):  # it was just removed
                    facts = (self.folder / path).lstat()
                    state = [facts.st_mtime_ns, facts.st_size]
                    if CHECKPOINT.fullmatch(folder) and name == MANIFEST:
                        whole[folder] = state
                    elif _is_small(path) and stat.S_ISREG(facts.st_mode):
                        small[path] = state
        return dict(sorted(small.items(), key=itemgetter(1))) | dict(sorted(whole.items()))

    def _put(self, path: Path, name: str) -> None:
        """Sends a file. Gives a sign before, if the last one was long ago."""
        if time.time() - self._last_sign > SIGN_SECONDS:
            self.renew()
        self.store.put(path, name)

    def _send_small(self, name: str) -> None:
        """Sends a file as it is now: not every driver can send one that grows."""
        copy = self.folder / ".sending"
        try:
            shutil.copyfile(self.folder / name, copy)
        except FileNotFoundError:  # it was just removed: the next send removes it there
            return
        self._put(copy, name)

    def _send_checkpoint(self, name: str) -> None:
        folder = self.folder / name
        try:
            files = json.loads((folder / MANIFEST).read_text())
            for file in [*files, MANIFEST]:
                self._put(folder / file, f"{name}/{file}")
        except FileNotFoundError:
            if manifest.is_finished(folder):
                raise
            # Training has just removed it: the next send removes it there.

    # What is fetched.

    def follow(self, say: Say) -> None:
        """Makes the folder here as new as the address, unless it is the one that sends."""
        with self.store.refusing():
            self._follow(self._owner(), say)

    def _follow(self, owner: Owner | None, say: Say) -> None:
        if owner is not None and owner.folder == self.name:
            return
        if self.store.read("recipe.json") is None:
            self.sent.clear()
            return
        if RunFolder(self.folder).is_trained_now():
            raise RunError(
                f"{self.folder} is still being trained by a process of this machine: wait for it, or stop it"
            )

        # What was never sent stays, beside it. A folder without a name has only what was fetched.
        if self.name and self.is_behind():
            numbered = (self.folder.with_name(f"{self.folder.name}.aside-{number}") for number in count(1))
            aside = next(path for path in numbered if not path.exists())
            self.folder.rename(aside)
            say(
                f"{self.address} was continued elsewhere, and {self.folder} has what was never sent there: that is set"
                f" aside as {aside}"
            )

        # Cut off from here on, the folder has no name, and all of it is fetched again.
        self._notes.unlink(missing_ok=True)
        self._fetch()
        self.name = secrets.token_hex(8)
        self.sent = self._here()
        self._keep_notes()
        say(f"fetched {self.address}" + ("" if owner is None else f", last sent by {owner.host}"))

    def _fetch(self) -> None:
        """Makes the folder here the same as the address."""
        # Checkpoints first: files beside them may be newer, as after a kill, and never older.
        there = self._checkpoints_there()
        for name in sorted(there):
            self._fetch_checkpoint(name)
        small = {name for name in self.store.names() if _is_small(name)}
        for name in small:
            self.store.get(name, self.folder / name)

        # Then what is no longer there.
        for name in self._here().keys() - there - small:
            path = self.folder / name
            if path.is_dir():
                manifest.remove(path)
            else:
                path.unlink()

    def _fetch_checkpoint(self, name: str) -> None:
        """Fetches a checkpoint, its manifest last, unless it is here or was never sent to its end."""
        folder = self.folder / name
        text = self.store.read(f"{name}/{MANIFEST}")
        if text is not None and manifest.is_finished(folder) and (folder / MANIFEST).read_bytes() == text:
            return
        manifest.remove(folder)
        if text is not None and all(self.store.get(f"{name}/{file}", folder / file) for file in json.loads(text)):
            replace_file(folder / MANIFEST, text.decode())

    def _checkpoints_there(self) -> set[str]:
        """Returns the folders of checkpoints, whole or not."""
        found = [CHECKPOINT.match(name) for name in self.store.names("checkpoints")]
        return {match[0] for match in found if match is not None}

    # This machine.

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Locks the folder, so that one process of this machine sends or fetches. Yields False if another one does."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(self.folder.with_name("lock"), "ab") as file:
            is_free = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
            yield is_free

    def _keep_notes(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._notes, json.dumps({"name": self.name, "sent": self.sent}))


def _is_small(name: str) -> bool:
    """Returns whether a file is sent whole: all of a run but checkpoints, whole, unfinished or set aside."""
    return _is_ours(name) and not re.match("checkpoints/.*/", name)


def _is_ours(name: str) -> bool:
    """Returns whether a name is of a file of a run: none that is hidden or being written, and none outside."""
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and not name.startswith("/") and not name.endswith(".new") and name != OWNER
