"""Objects below one address that fsspec knows (`s3://`, `gs://`, `abfs://`, `file://`).

Every error of a library, a permission or a network becomes a BucketError of one paragraph. fsspec and its drivers are
imported by the first Store, so a run in a folder never loads them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from plimsoll.errors import RunError
from plimsoll.units import MIB

DRIVERS = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
}  # fmt: skip
"""Package that fsspec needs for each protocol, by the name that pip installs."""

AT_A_TIME = 8
"""Objects under way at once. With the pieces below it bounds the memory of a driver, which no budget counts."""
CHUNK = {"chunksize": 8 * MIB}
FETCHED_IN = {"s3": CHUNK | {"max_concurrency": 2}, "s3a": CHUNK | {"max_concurrency": 2}}
SENT_IN = FETCHED_IN | {"gs": CHUNK, "gcs": CHUNK}


def is_address(run: str | Path | None) -> bool:
    """Returns whether a run is named by an address like `s3://bucket/run`, not by a folder."""
    return isinstance(run, str) and re.match(r"[a-z][a-z0-9+.-]*://", run) is not None


class BucketError(RunError):
    """An address cannot be reached, read or written to."""


class Store:
    """Objects of one run. Names are relative to the address, with `/` between their parts."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.protocol = address.partition("://")[0]
        self._is_local = self.protocol in ("file", "local")
        if self.protocol == "memory":
            raise BucketError(f"--run {address} would end with its process: name a folder or a bucket")
        with self._refusing("reached"):
            try:
                from fsspec.core import url_to_fs

                folders = {"auto_mkdir": True} if self._is_local else {}
                self._files, root = url_to_fs(self.address, use_listings_cache=False, **folders)
            except ImportError as problem:
                package = DRIVERS.get(self.protocol)
                how = f"`pip install {package}` brings it" if package else "install the package that it names"
                raise BucketError(
                    f"{address} needs a driver that is not here ({_reason(problem)}): {how}, and the same command goes"
                    " on"
                ) from None
        self._root = root.rstrip("/")

    def read(self, name: str) -> bytes | None:
        """Returns the content of an object; None if there is no such object."""
        with self._refusing("read"):
            try:
                return self._files.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Replaces an object as a whole: a kill leaves its old content or the new one."""
        with self._refusing("written to"):
            if not self._is_local:  # object stores replace objects whole
                self._files.pipe_file(self._path(name), content)
                return
            incoming = self._path(f"{name}.new")
            self._files.pipe_file(incoming, content)
            self._files.mv(incoming, self._path(name))

    def create(self, name: str, content: bytes) -> bool:
        """Makes an object if there is none. Returns False if there is one, or if the store has no such operation."""
        try:
            self._files.pipe_file(self._path(name), content, mode="create")
        except Exception:  # each driver has its own for "it exists", and for "unknown mode"
            return False
        return True

    def send(self, files: Mapping[str, Path]) -> None:
        """Writes each file as the object of that name, several at a time: most are small, and each is a round trip."""
        with self._refusing("written to"):
            names, paths = [self._path(name) for name in files], [str(path) for path in files.values()]
            self._files.put(paths, names, batch_size=AT_A_TIME, **SENT_IN.get(self.protocol, {}))

    def fetch(self, files: Mapping[str, Path]) -> None:
        """Reads each object into that file. An object that does not exist leaves no file."""
        names, paths = [self._path(name) for name in files], [str(path) for path in files.values()]
        with self._refusing("read"):
            try:
                self._files.get(names, paths, batch_size=AT_A_TIME, **FETCHED_IN.get(self.protocol, {}))
            except FileNotFoundError:  # which does not say of which one
                for name, path in zip(names, paths, strict=True):
                    try:
                        self._files.get_file(name, path)
                    except FileNotFoundError:
                        Path(path).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Removes an object, if there is one."""
        with self._refusing("cleaned up"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))
        if self._is_local:  # a bucket has no folders that could be left empty
            with contextlib.suppress(OSError):  # the first folder that is not empty
                for folder in list(PurePosixPath(name).parents)[:-1]:
                    Path(self._path(str(folder))).rmdir()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Raises whatever the block raises as a BucketError that says what the address could not be: `what`."""
        try:
            yield
        except BucketError:
            raise
        except Exception as problem:
            if isinstance(problem, FileNotFoundError):
                reason = "there is no such bucket"
            elif isinstance(problem, PermissionError):
                reason = f"permission denied: {_reason(problem)}"
            else:
                reason = f"{type(problem).__name__}: {_reason(problem)}"
            driver = DRIVERS.get(self.protocol, "fsspec")
            raise BucketError(
                f"{self.address} cannot be {what} ({reason}). A run there needs to list, read, write and delete"
                f" objects: check the name, the network, and the credentials that {driver} finds on this machine"
            ) from problem


def _reason(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:200] or type(problem).__name__
