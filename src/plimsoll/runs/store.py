"""Objects below one address that fsspec knows (`s3://`, `gs://`, `abfs://`, `file://`).

Whatever a library, a permission or a network does there becomes one paragraph. fsspec and its drivers are imported by
the first Store: a run in a folder never sees them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from plimsoll.errors import RunError
from plimsoll.units import MIB

DRIVERS = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
}  # fmt: skip
"""The package that fsspec needs for each, as pip calls it."""

AT_A_TIME = 8
CHUNK = {"chunksize": 8 * MIB}
FETCHED_IN = {"s3": CHUNK | {"max_concurrency": 2}, "s3a": CHUNK | {"max_concurrency": 2}}
SENT_IN = FETCHED_IN | {"gs": CHUNK, "gcs": CHUNK}
"""Objects under way, and pieces of each: what a driver holds in memory is beside the budget of the run."""


class BucketError(RunError):
    """What is at an address cannot be reached, read or written."""


class Store:
    """The objects of one run. Names are relative to the address, with `/` between their parts."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.protocol = address.partition("://")[0]
        if self.protocol == "memory":
            raise BucketError(f"--run {address} would end with its process: name a folder or a bucket")
        try:
            self._files, self._root = _opened(self.address, self.protocol)
        except ImportError as problem:
            package = DRIVERS.get(self.protocol)
            how = f"`pip install {package}` brings it" if package else "install the package that it names"
            raise BucketError(
                f"{address} needs a driver that is not here ({_reason(problem)}): {how}, and the same command goes on"
            ) from None
        except Exception as problem:
            raise self._refusal("reached", problem) from problem

    def read(self, name: str) -> bytes | None:
        """None where there is no such object."""
        with self._refusing("read"):
            try:
                return self._files.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """The old content or the new one, never half of it: object stores replace objects whole."""
        with self._refusing("written to"):
            if not self._is_local:
                self._files.pipe_file(self._path(name), content)
                return
            beside = self._path(f"{name}.new")
            self._files.pipe_file(beside, content)
            self._files.mv(beside, self._path(name))

    def create(self, name: str, content: bytes) -> bool:
        """False where the object is there already, or the store does not know how to ask for that."""
        try:
            self._files.pipe_file(self._path(name), content, mode="create")
        except Exception:  # each store has its own for "it is there", and for "I do not know how"
            return False
        return True

    def send(self, files: Mapping[str, Path]) -> None:
        """Each as the object of that name, some at a time: most of them are small, and each one is a round trip."""
        with self._refusing("written to"):
            names, paths = [self._path(name) for name in files], [str(path) for path in files.values()]
            self._files.put(paths, names, batch_size=AT_A_TIME, **SENT_IN.get(self.protocol, {}))

    def fetch(self, files: Mapping[str, Path]) -> None:
        """Each object into that file; what is not there leaves no file."""
        names, paths = [self._path(name) for name in files], [str(path) for path in files.values()]
        with self._refusing("read"):
            try:
                self._files.get(names, paths, batch_size=AT_A_TIME, **FETCHED_IN.get(self.protocol, {}))
            except FileNotFoundError:  # of which one is not said
                for name, path in zip(names, paths, strict=True):
                    try:
                        self._files.get_file(name, path)
                    except FileNotFoundError:
                        Path(path).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        with self._refusing("cleaned up"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))
        if self._is_local:  # a bucket has no folders that could be left empty
            with contextlib.suppress(OSError):  # until one is not
                for folder in list(PurePosixPath(name).parents)[:-1]:
                    Path(self._path(str(folder))).rmdir()

    @property
    def _is_local(self) -> bool:
        return self.protocol in ("file", "local")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            raise self._refusal(what, problem) from problem

    def _refusal(self, what: str, problem: Exception) -> BucketError:
        if isinstance(problem, FileNotFoundError):
            reason = "there is no such bucket"
        elif isinstance(problem, PermissionError):
            reason = f"permission denied: {_reason(problem)}"
        else:
            reason = f"{type(problem).__name__}: {_reason(problem)}"
        driver = DRIVERS.get(self.protocol, "fsspec")
        return BucketError(
            f"{self.address} cannot be {what} ({reason}). A run there needs to list, read, write and delete objects:"
            f" check the name, the network, and the credentials that {driver} finds on this machine"
        )


def _opened(address: str, protocol: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    making_folders = {"auto_mkdir": True} if protocol in ("file", "local") else {}
    files, root = url_to_fs(address, use_listings_cache=False, **making_folders)
    return files, root.rstrip("/")


def _reason(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:200] or type(problem).__name__
