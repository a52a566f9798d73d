"""A run folder and its copy at an address, either of which a kill leaves whole.

In the bucket every file is an object that is named after its content, `log.txt.3fa9c1d2e4b5a697`, and never changes;
`mirror.json` lists which of them are the run, and is written last. A push that is cut off leaves the list of before,
and everything on it. What two sides have is told apart by that list: the one that was fetched or sent last is kept
here, so that a folder that went on is known from one that was left behind.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from plimsoll.errors import RunError
from plimsoll.runs.contents import LINKED, Content, Files, Seen, content_of, contents, duplicate, names, stat_of
from plimsoll.runs.folder import replace_file
from plimsoll.runs.store import BucketError, Store
from plimsoll.units import format_bytes

INDEX = "mirror.json"
FORMAT = 1
GROUP = 32


@dataclass(frozen=True)
class Index:
    """What an address holds: the list that is written last."""

    files: Files
    generation: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=socket.gethostname)

    def objects(self) -> set[str]:
        return {object_name(name, content) for name, content in self.files.items()}

    def to_json(self) -> dict[str, Any]:
        files = {name: asdict(content) for name, content in self.files.items()}
        return {"format": FORMAT, "generation": self.generation, "host": self.host, "files": files}

    @classmethod
    def from_json(cls, found: Any, *, where: str) -> Index:
        try:
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']!r}")
            files = {
                _inside(name): Content(int(one["bytes"]), _checksum(one["sha256"]))
                for name, one in found["files"].items()
            }
            return cls(files, str(found["generation"]), str(found["host"]))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
            raise RunError(
                f"{where}/{INDEX} is not as plimsoll writes it ({type(problem).__name__}: {problem}): put a copy of it"
                " back, or name another --run"
            ) from None


NOTHING = Index({}, generation="", host="")
"""Of an address that nothing was sent to."""


def object_name(name: str, content: Content) -> str:
    return f"{name}.{content.sha256[:16]}"


def _inside(name: str) -> str:
    """A name from a bucket: no file outside the run folder is written for its sake."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    if not path.parts or path.is_absolute() or str(path) != name or hidden or "\0" in name:
        raise ValueError(f"no name of a file of a run: {name[:80]!r}")
    return name


def _checksum(text: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ValueError(f"no SHA-256: {text[:80]!r}")
    return text


@dataclass(frozen=True)
class Sent:
    """What one push took."""

    objects: int
    bytes: int


class Mirror:
    """`run` is the folder here; `home` is where it lies, with what is noted about it."""

    def __init__(self, store: Store, home: Path, run: Path) -> None:
        self.store, self.home, self.run = store, home, run
        self.passing: set[str] = set()
        """Objects that a push cut off may have left: none of them is on the list."""
        self.unremoved: str | None = None
        """Why objects that are on no list any more are still there."""
        self._notes = home / INDEX
        self._held, self._written, self._seen = self._read_notes()
        self._there: set[str] = set()
        """Objects that this process has sent, and that are on no list yet."""

    def bring(self) -> list[str]:
        """Makes the folder here as new as the address, where it is not newer; what was done, in words."""
        there = self._index()
        if there is None:
            if self.store.read("recipe.json") is not None:
                raise RunError(
                    f"{self.store.address} holds a run folder that was copied there, and no {INDEX}: copy it back into"
                    " a folder and train that, or name another --run"
                )
            self._keep(NOTHING)
            return []
        here, ours = contents(self.run, self._seen), (self._held, self._written or self._held)
        from_here = there.generation in [one.generation for one in ours]
        if (from_here and here) or here == there.files:  # nobody went on there since
            self._keep(there)
            return []
        words = []
        aside = None
        if here and all(here != one.files for one in ours):
            aside = _free_name(self.run)
            words.append(
                f"{self.store.address} was continued elsewhere ({there.host}), and {self.run} has what was never sent"
                f" there: that is set aside as {aside}"
            )
        fetched, without = self._fetch(there, here, aside)
        words.append(f"fetched {format_bytes(fetched)} of {self.store.address}, last sent by {there.host}")
        words += [f"{one} at {self.store.address} is damaged, and left out" for one in without]
        self._keep(there)
        return words

    def push(self, announce: Callable[[set[str]], None]) -> Sent | None:
        """Sends what changed since the last time; None where nothing did.

        `announce` is told every object that may come to be on no list, before it is sent and when it is gone; what it
        raises ends the push.
        """
        with self._snapshot() as (files, paths):
            before, index = self._held, Index(files)
            if files == before.files:
                return None
            new = {object_name(name, files[name]): path for name, path in paths.items()}
            new = {name: path for name, path in new.items() if name not in before.objects()}
            self.passing |= {*new, *(before.objects() - index.objects())}
            announce(self.passing)
            left = [name for name in new if name not in self._there]
            for group in _groups(left):
                self.store.send({name: new[name] for name in group})
                self._there.update(group)
            announce(self.passing)
            self._keep(before, writing=index)
            self.store.write(INDEX, (json.dumps(index.to_json(), indent=1) + "\n").encode())
            self._keep(index)
            self._there.clear()
            size = sum(new[name].stat().st_size for name in left)
        self._clean(index)
        announce(self.passing)
        return Sent(len(left), size)

    def is_behind(self) -> bool:
        """Whether something here was never sent."""
        return contents(self.run, self._seen) != self._held.files

    def _clean(self, index: Index) -> None:
        try:
            for name in sorted(self.passing - index.objects()):
                self.store.remove(name)
        except BucketError as problem:  # what was sent is whole: old objects cost room, and nothing else
            self.unremoved = str(problem)
            self.passing -= index.objects()
        else:
            self.passing = set()

    def _index(self) -> Index | None:
        found = self.store.read(INDEX)
        if found is None:
            return None
        try:
            return Index.from_json(json.loads(found), where=self.store.address)
        except (ValueError, RecursionError) as problem:
            raise RunError(
                f"{self.store.address}/{INDEX} is no JSON ({problem}): put a copy of it back, or name another --run"
            ) from None

    def _fetch(self, there: Index, here: Files, aside: Path | None) -> tuple[int, list[str]]:
        """Into a folder beside, which then takes the place of this one. What an earlier try fetched is not again."""
        beside = self.home / "fetching"
        have, fetched, without, wanted = contents(beside, {}), 0, set(), []
        for name, content in there.files.items():
            path = beside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if have.get(name) == content:
                continue
            if here.get(name) == content:
                duplicate(self.run / name, path, name)
                continue
            wanted.append(name)
        for group in _groups(wanted):
            partial = {name: (beside / name).with_name(f".{PurePosixPath(name).name}.part") for name in group}
            self.store.fetch({object_name(name, there.files[name]): path for name, path in partial.items()})
            for name, path in partial.items():
                if path.exists() and content_of(path) == there.files[name]:
                    path.replace(beside / name)
                    fetched += there.files[name].bytes
                else:
                    path.unlink(missing_ok=True)
                    without.add(_whole_of(name, self.store.address))
        for name in without:
            shutil.rmtree(beside / name)
        for name in have.keys() - there.files.keys():
            (beside / name).unlink(missing_ok=True)
        (beside / "checkpoints").mkdir(parents=True, exist_ok=True)
        old = aside or self.home / "old"
        shutil.rmtree(self.home / "old", ignore_errors=True)
        if self.run.exists():
            self.run.rename(old)
        beside.rename(self.run)
        shutil.rmtree(self.home / "old", ignore_errors=True)
        return fetched, sorted(without)

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[tuple[Files, dict[str, Path]]]:
        """The run as a kill at this moment would leave it, while training goes on: what it holds, and where each file
        that changed can be read until the end of the block."""
        folder = self.home / "sending"
        shutil.rmtree(folder, ignore_errors=True)
        files, paths = {}, {}
        # Checkpoints first: what lies beside them may be newer, as a kill would have it, and never older.
        for name in sorted(names(self.run), key=lambda name: not name.startswith(LINKED)):
            with contextlib.suppress(FileNotFoundError):  # a checkpoint that is just being forgotten
                stat = stat_of(self.run / name)
                if name in self._seen and self._seen[name] == (stat, self._held.files.get(name)):
                    files[name] = self._held.files[name]
                    continue
                copy = folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                duplicate(self.run / name, copy, name)
                files[name], paths[name] = content_of(copy), copy
                self._seen[name] = (stat, files[name])
        for name in _of_partial_checkpoints(self.run, folder, files):
            del files[name]
            paths.pop(name, None)
        self._seen = {name: found for name, found in self._seen.items() if name in files}
        try:
            yield files, paths
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read_notes(self) -> tuple[Index, Index | None, Seen]:
        try:
            found = json.loads(self._notes.read_text())
            held, writing = (one and Index.from_json(one, where=str(self.home)) for one in found["lists"])
            seen = {name: (one["stat"], Content(**one["content"])) for name, one in found["seen"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, RunError):
            return NOTHING, None, {}  # none yet, or damaged: every file is read again, and compared with the address
        return held or NOTHING, writing, seen

    def _keep(self, held: Index, *, writing: Index | None = None) -> None:
        """Notes which list the address holds, and which one it may hold instead if we are killed now."""
        self._held, self._written = held, writing
        seen = {name: {"stat": stat, "content": asdict(content)} for name, (stat, content) in self._seen.items()}
        lists = [one and one.to_json() for one in (held, writing)]
        replace_file(self._notes, json.dumps({"lists": lists, "seen": seen}))


def _groups(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """What is cut off in one of them is sent or fetched again, and no more than that."""
    return (names[start : start + GROUP] for start in range(0, len(names), GROUP))


def _of_partial_checkpoints(run: Path, folder: Path, files: Files) -> list[str]:
    """Names of checkpoints that are not whole any more, since they were forgotten while they were looked at."""
    steps = {"/".join(name.split("/")[:2]) for name in files if name.startswith(LINKED)}
    partial = set()
    for step in steps:
        try:
            where = folder if (folder / step / "manifest.json").exists() else run
            listed = json.loads((where / step / "manifest.json").read_text())
            whole = all(f"{step}/{name}" in files for name in [*listed, "manifest.json"])
        except (OSError, ValueError, TypeError, RecursionError):
            whole = False
        if not whole:
            partial.add(step)
    return [name for name in files if "/".join(name.split("/")[:2]) in partial]


def _whole_of(name: str, address: str) -> str:
    """What must be left out with a damaged file: its checkpoint. Without anything else there is no run."""
    if not name.startswith(LINKED):
        raise RunError(
            f"{name} at {address} is missing, or is not what {INDEX} there says: put a copy of it back, or name"
            " another --run"
        )
    return "/".join(name.split("/")[:2])


def _free_name(run: Path) -> Path:
    numbers = (run.with_name(f"{run.name}.aside-{number}") for number in range(1, 10_000))
    return next(path for path in numbers if not path.exists())
