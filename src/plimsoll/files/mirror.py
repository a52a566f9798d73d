"""Mirror of a run folder at an address. A kill at any moment leaves both sides whole.

In the bucket every file is an object that is named after its content, `log.txt.3fa9c1d2e4b5a697`, and never changes.
`mirror.json` lists the objects that make up the run, and is written last, so a push that is cut off leaves the previous
list with everything on it. The list that was fetched or sent last is also kept on this machine: by it, a folder that
was trained further is told from one that the address has left behind.
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
from plimsoll.files.contents import IMMUTABLE, Content, Files, Seen, content_of, contents, duplicate, names, stat_of
from plimsoll.files.manifest import replace_file
from plimsoll.files.store import BucketError, Store
from plimsoll.units import format_bytes

INDEX = "mirror.json"
FORMAT = 1
GROUP = 32
"""Files per transfer. One that is cut off is repeated, and no more than that."""


@dataclass(frozen=True)
class Index:
    """List of the files of a run at an address, which is written last."""

    files: Files
    generation: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=socket.gethostname)

    def objects(self) -> set[str]:
        """Returns the names of the objects on the list."""
        return {object_name(name, content) for name, content in self.files.items()}

    def to_json(self) -> dict[str, Any]:
        """Returns the list as `from_json` reads it."""
        files = {name: asdict(content) for name, content in self.files.items()}
        return {"format": FORMAT, "generation": self.generation, "host": self.host, "files": files}

    @classmethod
    def from_json(cls, saved: Any, *, where: str) -> Index:
        """Returns a list from its JSON, as bytes or read. Raises RunError, which names `where`, if it is not ours."""
        try:
            saved = json.loads(saved) if isinstance(saved, bytes) else saved
            if saved["format"] != FORMAT:
                raise ValueError(f"format {saved['format']!r}")
            files = {}
            for name, content in saved["files"].items():
                path, checksum = PurePosixPath(name), content["sha256"]
                hidden = any(part.startswith(".") for part in path.parts)
                if not path.parts or path.is_absolute() or str(path) != name or hidden or "\0" in name:
                    # No list may make us write outside the run folder.
                    raise ValueError(f"no name of a file of a run: {name[:80]!r}")
                if len(checksum) != 64 or set(checksum) - set("0123456789abcdef"):
                    raise ValueError(f"no SHA-256: {checksum[:80]!r}")
                files[name] = Content(int(content["bytes"]), checksum)
            return cls(files, str(saved["generation"]), str(saved["host"]))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as problem:
            raise RunError(
                f"{where}/{INDEX} is not as plimsoll writes it ({type(problem).__name__}: {problem}): put a copy of it"
                " back, or name another --run"
            ) from None


NOTHING = Index({}, generation="", host="")
"""Index of an address that nothing was sent to."""


def object_name(name: str, content: Content) -> str:
    """Returns the name of the object that holds this content of the file `name`."""
    return f"{name}.{content.sha256[:16]}"


@dataclass(frozen=True)
class Sent:
    """Size of one push."""

    objects: int
    bytes: int


class Mirror:
    """Run folder `run` on this machine and its copy in `store`; notes about that copy are kept in `home`."""

    def __init__(self, store: Store, home: Path, run: Path) -> None:
        self.store, self.home, self.run = store, home, run
        self.passing: set[str] = set()
        """Objects that a push may have left without being on the list."""
        self.unremoved: str | None = None
        """Reason why objects that are on no list any more could not be removed."""
        self._notes = home / INDEX
        self._held, self._written, self._seen = self._read_notes()
        self._sent: set[str] = set()
        """Objects that this process has sent, and that are on no list yet."""

    def bring(self) -> list[str]:
        """Makes the run folder as new as the address, if it is not newer, and returns messages about what was done.

        A folder that was trained further than it was sent, while the address was continued elsewhere, is set aside.
        """
        listed = self.store.read(INDEX)
        if listed is None:
            if self.store.read("recipe.json") is not None:
                raise RunError(
                    f"{self.store.address} holds a run folder that was copied there, and no {INDEX}: copy it back into"
                    " a folder and train that, or name another --run"
                )
            self._keep(NOTHING)
            return []
        remote = Index.from_json(listed, where=self.store.address)
        local, ours = contents(self.run, self._seen), (self._held, self._written or self._held)
        sent_here = remote.generation in [index.generation for index in ours]
        if (sent_here and local) or local == remote.files:  # the address was not continued elsewhere
            self._keep(remote)
            return []
        messages = []
        aside = None
        if local and all(local != index.files for index in ours):
            numbered = (self.run.with_name(f"{self.run.name}.aside-{number}") for number in range(1, 10_000))
            aside = next(path for path in numbered if not path.exists())
            messages.append(
                f"{self.store.address} was continued elsewhere ({remote.host}), and {self.run} has what was never sent"
                f" there: that is set aside as {aside}"
            )
        size, damaged = self._fetch(remote, local, aside)
        messages.append(f"fetched {format_bytes(size)} of {self.store.address}, last sent by {remote.host}")
        messages += [f"{checkpoint} at {self.store.address} is damaged, and left out" for checkpoint in damaged]
        self._keep(remote)
        return messages

    def push(self, announce: Callable[[set[str]], None]) -> Sent | None:
        """Sends what changed since the last push. Returns None if nothing did.

        Args:
            announce: Called with all objects that may end up on no list, before any of them is sent, before the list
                is written, and when they are gone. An exception from it ends the push.
        """
        with self._snapshot() as (files, paths):
            before, index = self._held, Index(files)
            if files == before.files:
                return None
            new = {object_name(name, files[name]): path for name, path in paths.items()}
            new = {name: path for name, path in new.items() if name not in before.objects()}
            self.passing |= {*new, *(before.objects() - index.objects())}
            announce(self.passing)
            unsent = [name for name in new if name not in self._sent]
            for group in _groups(unsent):
                self.store.send({name: new[name] for name in group})
                self._sent.update(group)
            announce(self.passing)
            self._keep(before, writing=index)
            self.store.write(INDEX, (json.dumps(index.to_json(), indent=1) + "\n").encode())
            self._keep(index)
            self._sent.clear()
            size = sum(new[name].stat().st_size for name in unsent)
        try:
            for name in sorted(self.passing - index.objects()):
                self.store.remove(name)
        except BucketError as problem:  # the list is whole: old objects only take up room
            self.unremoved = str(problem)
            self.passing -= index.objects()
        else:
            self.passing = set()
        announce(self.passing)
        return Sent(len(unsent), size)

    def is_behind(self) -> bool:
        """Returns whether the run folder has anything that was never sent."""
        return contents(self.run, self._seen) != self._held.files

    def _fetch(self, remote: Index, local: Files, aside: Path | None) -> tuple[int, list[str]]:
        """Fetches a run into a new folder, which then replaces the run folder; that becomes `aside`, or is removed.

        What an interrupted fetch has fetched, and what the run folder has already, is not fetched again. Returns the
        number of bytes that were, and the damaged checkpoints that are left out.
        """
        incoming, old = self.home / "fetching", self.home / "old"
        already, wanted, damaged, size = contents(incoming, {}), [], set(), 0
        for name, content in remote.files.items():
            path = incoming / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if already.get(name) == content:
                continue
            if local.get(name) == content:
                duplicate(self.run / name, path, name)
            else:
                wanted.append(name)
        for group in _groups(wanted):
            partial = {name: (incoming / name).with_name(f".{PurePosixPath(name).name}.part") for name in group}
            self.store.fetch({object_name(name, remote.files[name]): path for name, path in partial.items()})
            for name, path in partial.items():
                if path.exists() and content_of(path) == remote.files[name]:
                    path.replace(incoming / name)
                    size += remote.files[name].bytes
                    continue
                path.unlink(missing_ok=True)
                if not name.startswith(IMMUTABLE):  # without anything but a checkpoint there is no run
                    raise RunError(
                        f"{name} at {self.store.address} is missing, or is not what {INDEX} there says: put a copy of"
                        " it back, or name another --run"
                    )
                damaged.add(_checkpoint_of(name))
        for checkpoint in damaged:
            shutil.rmtree(incoming / checkpoint)
        for name in already.keys() - remote.files.keys():
            (incoming / name).unlink(missing_ok=True)
        (incoming / "checkpoints").mkdir(parents=True, exist_ok=True)
        shutil.rmtree(old, ignore_errors=True)
        if self.run.exists():
            self.run.rename(aside or old)
        incoming.rename(self.run)
        shutil.rmtree(old, ignore_errors=True)
        return size, sorted(damaged)

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[tuple[Files, dict[str, Path]]]:
        """Yields the run as a kill at this moment would leave it, while training goes on.

        First all of its files; then, for those that changed since the last push, a path where each can be read until
        the end of the block.
        """
        folder = self.home / "sending"
        shutil.rmtree(folder, ignore_errors=True)
        files, paths = {}, {}
        # Checkpoints first: files beside them may be newer, as after a kill, and never older.
        for name in sorted(names(self.run), key=lambda name: not name.startswith(IMMUTABLE)):
            with contextlib.suppress(FileNotFoundError):  # of a checkpoint that is just being removed
                stat = stat_of(self.run / name)
                if name in self._seen and self._seen[name] == (stat, self._held.files.get(name)):
                    files[name] = self._held.files[name]
                    continue
                copy = folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                duplicate(self.run / name, copy, name)
                files[name], paths[name] = content_of(copy), copy
                self._seen[name] = (stat, files[name])
        for checkpoint in {_checkpoint_of(name) for name in files if name.startswith(IMMUTABLE)}:
            if not self._is_whole(checkpoint, folder, files):
                files = {name: content for name, content in files.items() if _checkpoint_of(name) != checkpoint}
        paths = {name: path for name, path in paths.items() if name in files}
        self._seen = {name: read for name, read in self._seen.items() if name in files}
        try:
            yield files, paths
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _is_whole(self, checkpoint: str, copies: Path, files: Files) -> bool:
        """Returns whether `files` has all that the checkpoint's manifest lists; not if it was removed meanwhile."""
        folder = copies if (copies / checkpoint / "manifest.json").exists() else self.run
        try:
            listed = json.loads((folder / checkpoint / "manifest.json").read_text())
            return all(f"{checkpoint}/{name}" in files for name in [*listed, "manifest.json"])
        except (OSError, ValueError, TypeError, RecursionError):
            return False

    def _read_notes(self) -> tuple[Index, Index | None, Seen]:
        try:
            notes = json.loads(self._notes.read_text())
            held, writing = (saved and Index.from_json(saved, where=str(self.home)) for saved in notes["lists"])
            seen = {name: (read["stat"], Content(**read["content"])) for name, read in notes["seen"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, RunError):
            return NOTHING, None, {}  # none yet, or damaged: every file is read again, and compared with the address
        return held or NOTHING, writing, seen

    def _keep(self, held: Index, *, writing: Index | None = None) -> None:
        """Notes the list that the address holds, and the list it may hold instead if we are killed now."""
        self._held, self._written = held, writing
        seen = {name: {"stat": stat, "content": asdict(content)} for name, (stat, content) in self._seen.items()}
        lists = [index and index.to_json() for index in (held, writing)]
        replace_file(self._notes, json.dumps({"lists": lists, "seen": seen}))


def _groups(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + GROUP] for start in range(0, len(names), GROUP))


def _checkpoint_of(name: str) -> str:
    """Returns the folder of the checkpoint that a file in it belongs to."""
    return "/".join(name.split("/")[:2])
