"""A training run in a bucket (object store). It is trained in a local cache folder, which is uploaded to the bucket.

    gs://bucket/run/owner.json                  the local folder that uploads, and the time of its latest heartbeat
    gs://bucket/run/metrics.jsonl, plan.json    small files (all outside checkpoints), uploaded again after a change
    gs://bucket/run/checkpoints/step-00000600/  checkpoints, which never change; the manifest is uploaded last

At any moment the run in the bucket can be continued. After an interrupted upload, metrics may have rows of steps after
the newest checkpoint.
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
"""A file's time of modification in nanoseconds, and its size in bytes."""

OWNER = "owner.json"
"""Name of the file in the bucket with the run's `Owner`."""
SIGN_SECONDS = 60
"""Seconds between heartbeats: the uploading process writes the time into owner.json."""
FRESH_SECONDS = 300
"""Seconds without a heartbeat after which another folder may take the run over."""
DRIVERS = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
}  # fmt: skip
"""Map from protocol to fsspec driver package. Stores of these protocols replace an object atomically."""
PIECE = {"chunksize": 8 * MIB}
"""Driver option with the largest size in bytes of one piece of an upload."""
PIECES = {"s3fs": PIECE | {"max_concurrency": 2}, "gcsfs": PIECE}
"""Map from driver package to options that limit the driver's memory during the upload of a large file."""
CHECKPOINT = re.compile(r"checkpoints/step-\d+")
"""Pattern of a checkpoint's path, relative to the run folder."""


def is_address(run: str | Path | None) -> bool:
    """Returns True for an address like `s3://bucket/run`, False for the path of a folder."""
    return isinstance(run, str) and re.match(r"[a-z][a-z0-9+.-]*://", run) is not None


def folder_of(address: str) -> Path:
    """Returns the cache folder for the run at an address. The folder has the name of the last part of the address."""
    address = address.rstrip("/")
    digest = hashlib.sha256(address.encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "-", address.rpartition("/")[2]).lstrip(".")
    return cache_folder() / "runs" / digest / (name or "run")


def fetched(run: str) -> str:
    """Returns the local folder of a run, for a command that only reads. Downloads the run first if it is in a bucket.

    Args:
        run: Path of a folder, or an address like `s3://bucket/run`.

    Raises:
        RunError: There is no run at the address, or another process is downloading it.
    """
    if not is_address(run):
        return run
    bucket = Bucket(run)
    with bucket.lock() as is_free:
        if is_free:
            bucket.follow(lambda text: print(text, file=sys.stderr, flush=True))
    if RunFolder(bucket.folder).exists():
        return str(bucket.folder)
    if not is_free:
        raise RunError(f"another process on this machine is downloading {run}: try again when it has finished")
    raise RunError(f"there is no run at {run}: `plimsoll train RECIPE --run {run}` makes one")


class BucketError(RunError):
    """Error of a bucket that cannot be reached, read or written to."""


class TakenError(StoppedError):
    """Error of training a run that another machine has taken over."""


@dataclass(frozen=True)
class Owner:
    """Owner of a run in a bucket: the local folder that uploads the run, and the machine with this folder."""

    folder: str
    """Random identifier of the local folder."""
    host: str
    """Name of the machine with the local folder."""
    at: float
    """Time of the latest heartbeat in seconds since 1970; 0 after the run was released for other machines."""


class Store:
    """File operations on a run in a bucket, by fsspec. Each method is one operation, which may be interrupted."""

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
        """Returns the paths, relative to the address, of the run's files below a folder."""
        try:
            paths = self.files.find(f"{self.root}/{below}".rstrip("/"))
        except FileNotFoundError:
            return []
        names = [path.removeprefix(f"{self.root}/") for path in paths]
        return [name for name in names if _is_ours(name)]

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if the file does not exist."""
        try:
            return self.files.cat_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return None

    def put(self, path: Path, name: str) -> None:
        """Uploads a file. An existing file is replaced atomically."""
        target = f"{self.root}/{name}"
        if self.driver is not None:
            self.files.put_file(str(path), target, **PIECES.get(self.driver, {}))
            return
        self.files.put_file(str(path), f"{target}.new")
        self.files.mv(f"{target}.new", target)

    def get(self, name: str, target: Path) -> bool:
        """Downloads a file. Returns False if it does not exist."""
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
        """Removes a file or a checkpoint. Removes a checkpoint's manifest first."""
        for path in (f"{self.root}/{name}/{MANIFEST}", f"{self.root}/{name}"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self.files.rm(path, recursive=True)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Context manager that converts errors of the driver to a BucketError with advice."""
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
    """A run in a bucket, and its local folder."""

    def __init__(self, address: str) -> None:
        self.store = Store(address)
        self.address = self.store.address
        self.folder = folder_of(address)
        self.name = ""
        """Random identifier of the local folder; empty until the folder owns the run or has downloaded all of it."""
        self.sent: dict[str, State] = {}
        """Map from the path of a file or checkpoint to the `State` of its local copy at the latest upload."""
        self._last_sign = 0.0
        """Time of this folder's latest heartbeat in seconds since 1970."""

        self._notes = self.folder / ".bucket.json"
        if self._notes.exists():
            notes = json.loads(self._notes.read_text())
            self.name = notes["name"]
            self.sent = notes["sent"]

    # Ownership of the run.

    def take(self, say: Say) -> None:
        """Makes the local folder the owner of the run. First downloads what another owner has uploaded.

        Args:
            say: Called with messages for the user.

        Raises:
            RunError: Another machine trains the run, or the address cannot be used.
        """
        with self.store.refusing():
            owner = self._owner()
            if owner is not None and owner.folder != self.name:
                age = max(0.0, time.time() - owner.at)
                if age < FRESH_SECONDS:
                    raise RunError(
                        f"{self.address} is being trained on {owner.host}, which last reported {format_seconds(age)}"
                        f" ago: wait until {owner.host} ends, stop it, or name another --run. If it is gone, the"
                        f" address is free {format_seconds(FRESH_SECONDS)} after its last report"
                    )
            self._follow(owner, say)
            self.name = self.name or secrets.token_hex(8)
            self._keep_notes()
            self._sign(time.time())

    def renew(self) -> None:
        """Uploads a heartbeat. Raises TakenError if another machine has taken the run over."""
        with self.store.refusing():
            owner = self._owner()
            if owner is None:  # the address was emptied
                self.sent.clear()
            elif owner.folder != self.name:
                raise TakenError(
                    f"{self.address} was taken over by {owner.host}, because this machine had not reported for"
                    f" {format_seconds(FRESH_SECONDS)}: this machine uploads nothing more to it"
                )
            self._sign(time.time())

    def release(self) -> None:
        """Releases the run, so that any machine may take it over at once."""
        with self.store.refusing():
            self._sign(0.0)

    def _sign(self, at: float) -> None:
        """Uploads owner.json with this folder as the owner.

        Args:
            at: Time of the heartbeat in seconds since 1970; 0 to release the run.
        """
        owner = Owner(self.name, socket.gethostname(), at)
        path = self.folder / f".{OWNER}"
        replace_file(path, json.dumps(asdict(owner)))
        self.store.put(path, OWNER)
        self._last_sign = time.time()

    def _owner(self) -> Owner | None:
        """Returns the owner that owner.json in the bucket names; None without this file."""
        text = self.store.read(OWNER)
        if text is None:
            return None
        with as_written(f"{self.address}/{OWNER}"):
            return Owner(**json.loads(text))

    # Uploads.

    def send(self) -> None:
        """Uploads all changes of the local folder. The run in the bucket can be continued even after an interruption.

        Raises:
            TakenError: Another machine has taken the run over.
            BucketError: The address cannot be used.
        """
        with self.store.refusing():
            self.renew()
            here = self._here()
            there = self._checkpoints_there()

            # Upload small files before checkpoints, so that the metrics have rows up to the step of each checkpoint.
            for name, state in here.items():
                if self.sent.get(name) == state:
                    continue
                if name in there:  # an incomplete upload, or another checkpoint of the same step
                    self.store.remove(name)
                if CHECKPOINT.match(name):
                    self._send_checkpoint(name)
                else:
                    self._send_small(name)
                self.sent[name] = state

            # Remove files and checkpoints that were removed locally.
            for name in (there | self.sent.keys()) - here.keys():
                self.store.remove(name)
                self.sent.pop(name, None)
            self._keep_notes()

    def is_behind(self) -> bool:
        """Returns True if the local folder has new or changed files that were not uploaded."""
        return any(self.sent.get(name) != state for name, state in self._here().items())

    def _here(self) -> dict[str, State]:
        """Returns the `State` of local files outside checkpoints, oldest first, and then of complete checkpoints."""
        small = {}
        whole = {}
        for place, _, names in os.walk(self.folder):
            folder = Path(place).relative_to(self.folder).as_posix()
            for name in names:
                path = f"{folder}/{name}".removeprefix("./")
                with contextlib.suppress(FileNotFoundError):  # the file was just removed
                    facts = (self.folder / path).lstat()
                    state = [facts.st_mtime_ns, facts.st_size]
                    if CHECKPOINT.fullmatch(folder) and name == MANIFEST:
                        whole[folder] = state
                    elif _is_small(path) and stat.S_ISREG(facts.st_mode):
                        small[path] = state
        return dict(sorted(small.items(), key=itemgetter(1))) | dict(sorted(whole.items()))

    def _put(self, path: Path, name: str) -> None:
        """Uploads a file. Uploads a heartbeat first, if the latest one is older than SIGN_SECONDS."""
        if time.time() - self._last_sign > SIGN_SECONDS:
            self.renew()
        self.store.put(path, name)

    def _send_small(self, name: str) -> None:
        """Uploads a copy of a file, because not every driver can upload a growing file."""
        copy = self.folder / ".sending"
        try:
            shutil.copyfile(self.folder / name, copy)
        except FileNotFoundError:  # just removed locally: the next `send` removes it in the bucket
            return
        self._put(copy, name)

    def _send_checkpoint(self, name: str) -> None:
        """Uploads a checkpoint, its manifest last."""
        folder = self.folder / name
        try:
            files = json.loads((folder / MANIFEST).read_text())
            for file in [*files, MANIFEST]:
                self._put(folder / file, f"{name}/{file}")
        except FileNotFoundError:
            if manifest.is_finished(folder):
                raise
            # Training has just removed the checkpoint: the next `send` removes it in the bucket.

    # Downloads.

    def follow(self, say: Say) -> None:
        """Updates the local folder from the bucket, unless the local folder is the run's owner."""
        with self.store.refusing():
            self._follow(self._owner(), say)

    def _follow(self, owner: Owner | None, say: Say) -> None:
        """Updates the local folder from the bucket, unless `owner` is this folder."""
        if owner is not None and owner.folder == self.name:
            return
        if self.store.read("recipe.json") is None:
            self.sent.clear()
            return
        if RunFolder(self.folder).is_trained_now():
            raise RunError(
                f"{self.folder} is still being trained by a process of this machine: wait for it, or stop it"
            )

        # Set aside a folder with changes that were never uploaded. A folder without identifier has only downloads.
        if self.name and self.is_behind():
            numbered = (self.folder.with_name(f"{self.folder.name}.aside-{number}") for number in count(1))
            aside = next(path for path in numbered if not path.exists())
            self.folder.rename(aside)
            say(
                f"{self.address} was continued on another machine, and {self.folder} has changes that were never"
                f" uploaded: the folder is set aside as {aside}"
            )

        # Download. After an interruption the folder has no identifier, and everything is downloaded again.
        self._notes.unlink(missing_ok=True)
        self._fetch()
        self.name = secrets.token_hex(8)
        self.sent = self._here()
        self._keep_notes()
        say(f"fetched {self.address}" + ("" if owner is None else f", last sent by {owner.host}"))

    def _fetch(self) -> None:
        """Downloads the run, and removes local files that the bucket does not have."""
        # Download checkpoints before small files: small files may be newer than the checkpoints, but not older.
        there = self._checkpoints_there()
        for name in sorted(there):
            self._fetch_checkpoint(name)
        small = {name for name in self.store.names() if _is_small(name)}
        for name in small:
            self.store.get(name, self.folder / name)

        # Remove local files and checkpoints that are not in the bucket.
        for name in self._here().keys() - there - small:
            path = self.folder / name
            if path.is_dir():
                manifest.remove(path)
            else:
                path.unlink()

    def _fetch_checkpoint(self, name: str) -> None:
        """Downloads a checkpoint, its manifest last. Skips a checkpoint that exists locally, or has no manifest."""
        folder = self.folder / name
        text = self.store.read(f"{name}/{MANIFEST}")
        if text is not None and manifest.is_finished(folder) and (folder / MANIFEST).read_bytes() == text:
            return
        manifest.remove(folder)
        if text is not None and all(self.store.get(f"{name}/{file}", folder / file) for file in json.loads(text)):
            replace_file(folder / MANIFEST, text.decode())

    def _checkpoints_there(self) -> set[str]:
        """Returns the paths of all checkpoints in the bucket, complete or not."""
        found = [CHECKPOINT.match(name) for name in self.store.names("checkpoints")]
        return {match[0] for match in found if match is not None}

    # Lock and notes of the local folder.

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Locks the local folder for uploads and downloads. Yields False if another process has locked it."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(self.folder.with_name("lock"), "ab") as file:
            is_free = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
            yield is_free

    def _keep_notes(self) -> None:
        """Saves the local folder's random identifier, and the states of uploaded files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._notes, json.dumps({"name": self.name, "sent": self.sent}))


def _is_small(name: str) -> bool:
    """Returns True for a small file: one that belongs to the run and is outside checkpoints."""
    return _is_ours(name) and not re.match("checkpoints/.*/", name)


def _is_ours(name: str) -> bool:
    """Returns True if a file belongs to the run. Hidden and unfinished files, files elsewhere and owner.json do not."""
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and not name.startswith("/") and not name.endswith(".new") and name != OWNER
