"""Facts that identify training data: size and hash of each file, and options.

Facts are stored as JSON, in the `meta.json` of a folder of prepared data and in the `data.json` of a training run.
`Facts.difference` compares them with the current data.

Files of up to WHOLE_BYTES together are hashed completely. Of larger files only SAMPLES pieces are hashed: a change
between these pieces is not noticed if the file keeps its size. Modification times are usually not compared, because
a copy of a file has another time.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError
from plimsoll.files.manifest import checksum
from plimsoll.units import KIB, MIB

WHOLE_BYTES = 64 * MIB
"""Largest total size of files that are hashed completely."""
SAMPLES, SAMPLE_BYTES = 64, 64 * KIB
"""Number of pieces that are hashed of larger files, and the size of a piece in bytes."""
MOST_FILES = 1_000
"""Largest number of files with separate entries in `Facts.files`. More files share one entry."""
SHOWN = 3
"""Largest number of differences that a message lists one by one."""


@dataclass(frozen=True)
class FileFacts:
    """Size and hash of a file."""

    size: int
    """Bytes of the file."""
    sha256: str | None
    """SHA-256 of the whole file or of its sampled pieces; None if no piece of the file was sampled."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Files and options that identify training data. Equal facts mean equal data; a single file's name is ignored."""

    files: Mapping[str, FileFacts] = field(default_factory=dict)
    """Map from the path of a file, relative to the files' common folder, to its size and hash."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that the data depend on, serializable as JSON."""

    @property
    def digest(self) -> str:
        """Hash of the facts, used as the name of a folder with data made from them."""
        text = json.dumps(asdict(self._renamed("")), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        """Returns the facts as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        """Returns the facts of a JSON object from `to_json`."""
        files = {name: FileFacts(**file) for name, file in values["files"].items()}
        return cls(files=files, options=values["options"])

    def difference(self, now: Facts) -> str:
        """Returns a description of what differs in the current facts `now`; empty if they equal these earlier facts."""
        differences = []
        files = self._renamed(*now.files).files if len(now.files) == 1 else self.files
        for name in sorted(files.keys() | now.files.keys()):
            if files.get(name) != now.files.get(name):
                differences.append(_file_difference(name, files.get(name), now.files.get(name)))
        for name in {**self.options, **now.options}:
            before, today = self.options.get(name), now.options.get(name)
            if before != today:
                differences.append(f"{name} was {_in_short(before)} and is {_in_short(today)}")

        if len(differences) > SHOWN:
            differences[SHOWN:] = [f"{len(differences) - SHOWN:,} more"]
        return "; ".join(differences)

    def _renamed(self, name: str) -> Facts:
        """Returns a copy in which the only file is called `name`; the same facts if there is not exactly one file."""
        if len(self.files) != 1:
            return self
        (file,) = self.files.values()
        return replace(self, files={name: file})


def facts_of(paths: Sequence[Path], *, exact: bool = False, **options: Any) -> Facts:
    """Returns the current facts of files.

    Args:
        paths: The files. Their names in the facts are relative to their common folder.
        exact: True to include modification times if the files are too large to be hashed completely.
        options: Options that the data depend on, serializable as JSON.

    Raises:
        DataError: A file cannot be read.
    """
    try:
        sizes = [path.stat().st_size for path in paths]
        digests = _digests(paths, sizes)
        if exact and sum(sizes) > WHOLE_BYTES:
            options["written"] = [path.stat().st_mtime_ns for path in paths]
    except OSError as problem:
        raise DataError(
            f"{problem.filename} cannot be read ({problem.strerror}): put it back, or start a new --run"
        ) from None

    folder = os.path.commonpath([path.absolute().parent for path in paths]) if paths else ""
    names = [path.absolute().relative_to(folder).as_posix() for path in paths]
    facts = map(FileFacts, sizes, digests)
    files = dict(zip(names, facts, strict=True))
    if len(files) > MOST_FILES:
        whole = Facts(files=files)
        options["files"] = len(files)
        files = {"the folder": FileFacts(sum(sizes), whole.digest)}
    return Facts(files=files, options=json.loads(json.dumps(options)))


def require_same(name: str, then: Mapping[str, Any], now: Facts) -> None:
    """Raises DataError if a run's data have changed since its start.

    Args:
        name: Name of the data, for the message.
        then: `Facts` at the start of the run, as JSON.
        now: Current facts.
    """
    difference = Facts.from_json(then).difference(now)
    if difference:
        raise DataError(
            f"{name} is not the data of this run any more: {difference}. Put the old data back, or start a new --run"
        )


def _digests(paths: Sequence[Path], sizes: Sequence[int]) -> list[str | None]:
    """Returns the SHA-256 of each file or of its sampled pieces; None for a file without a sampled piece."""
    if sum(sizes) <= WHOLE_BYTES:
        return [checksum(path) for path in paths]

    # Sample pieces at equal distances over all files together, including the first and the last byte.
    ends = list(accumulate(sizes))
    digests: dict[int, Any] = {}
    for sample in range(SAMPLES):
        place = (ends[-1] - 1) * sample // (SAMPLES - 1)
        number = bisect_right(ends, place)
        begin = ends[number] - sizes[number]
        with paths[number].open("rb") as file:
            file.seek(min(place - begin, max(0, sizes[number] - SAMPLE_BYTES)))
            digest = digests.setdefault(number, hashlib.sha256())
            digest.update(file.read(SAMPLE_BYTES))
    return [digests[number].hexdigest() if number in digests else None for number in range(len(paths))]


def _file_difference(name: str, before: FileFacts | None, now: FileFacts | None) -> str:
    if before is None:
        return f"{name} is new"
    if now is None:
        return f"{name} is missing"
    if now.size > before.size:
        return f"{name} has {now.size - before.size:,} more bytes"
    if now.size < before.size:
        return f"{name} has {before.size - now.size:,} fewer bytes"
    return f"{name} has other content"


def _in_short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
