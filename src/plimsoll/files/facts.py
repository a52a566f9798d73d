"""Facts: what a folder was made with, or a run began with. Files by size and content, and the options that matter.

They are JSON, in a folder's `meta.json` and in a run's `data.json`, and `difference` says what is not the same today.

Files of up to WHOLE_BYTES together are read whole. Of larger ones SAMPLES places are: a change between these, in a file
that keeps its size, is not noticed. Times of writing say nothing, since a copy has another one.
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
SAMPLES, SAMPLE_BYTES = 64, 64 * KIB
MOST_FILES = 1_000
"""Files that are noted one by one. Of more, all together are one entry."""
SHOWN = 3
"""Differences that are told."""


@dataclass(frozen=True)
class FileFacts:
    """A file by its size and content."""

    size: int
    sha256: str | None
    """Of all of it, or of its samples; None for a file that has no sample."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Files by name, and options. Two without a difference make the same data. The name of a single file is none."""

    files: Mapping[str, FileFacts] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """JSON."""

    @property
    def digest(self) -> str:
        """Name for a folder that is made with them."""
        text = json.dumps(asdict(self._renamed("")), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        files = {name: FileFacts(**file) for name, file in values["files"].items()}
        return cls(files=files, options=values["options"])

    def difference(self, now: Facts) -> str:
        """Returns in words what is not as it was; empty if nothing."""
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
        """Returns the same facts, with another name for a single file."""
        if len(self.files) != 1:
            return self
        (file,) = self.files.values()
        return replace(self, files={name: file})


def facts_of(paths: Sequence[Path], *, exact: bool = False, **options: Any) -> Facts:
    """Returns the facts of files as they are now.

    Args:
        paths: The files. Their names count from the folder that all of them are in.
        exact: Whether, of files that are too large to be read whole, the times of writing count, too.
        options: Values that JSON has.

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
    """Raises DataError where data are not what a run began with.

    Args:
        name: What the user calls the data.
        then: `Facts` of the start of the run, as JSON.
        now: Facts of today.
    """
    difference = Facts.from_json(then).difference(now)
    if difference:
        raise DataError(
            f"{name} is not the data of this run any more: {difference}. Put the old data back, or start a new --run"
        )


def _digests(paths: Sequence[Path], sizes: Sequence[int]) -> list[str | None]:
    if sum(sizes) <= WHOLE_BYTES:
        return [checksum(path) for path in paths]

    # Places from all over the files, as if they were one; the first and the last byte are among them.
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
