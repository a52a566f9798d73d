"""Documents one after another out of a list of files, with a position from which reading continues exactly.

A document longer than 64 KiB comes in pieces, so memory does not depend on what is in the files. Where the
files come from is decided in `opening.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from plimsoll.data.text.formats import File
from plimsoll.data.text.pieces import Part
from plimsoll.data.text.split import is_held_out
from plimsoll.errors import DataError


class Piece(NamedTuple):
    """A document, or at most 64 KiB of one."""

    text: str
    position: dict
    """JSON, below 1 KiB: `Documents.pieces(position)` continues after this piece."""
    last: bool
    """The document ends with it."""
    held_out: bool
    """The document is for validation; training skips it."""


class Readable(Protocol):
    """A file, or a stream that is read like one."""

    @property
    def name(self) -> str: ...
    def read(self, at: dict) -> Iterator[Part]: ...
    def rows(self) -> int | None: ...
    def size(self) -> int | None: ...
    def columns(self) -> list[str] | None: ...
    def imports(self) -> tuple[str, ...]: ...


class Documents:
    """The documents of a data set, in its own order. Holds no file open between reads."""

    def __init__(
        self,
        files: Sequence[Readable],
        *,
        name: str,
        description: str,
        contents: str,
        max_examples: int | None = None,
    ) -> None:
        self.files = files
        self.name = name
        self._description = description
        self._max_examples = max_examples
        self._sizes = [file.size() for file in files]
        self._digest = hashlib.blake2b(contents.encode(), digest_size=4).hexdigest()

    def imports(self) -> tuple[str, ...]:
        """Modules that reading brings into the process: some are large."""
        return tuple(dict.fromkeys(name for file in self.files for name in file.imports()))

    def describe(self) -> str:
        """One line: files, format, and how they were split into documents."""
        limit = f", the first {self._max_examples:,} documents" if self._max_examples is not None else ""
        return self._description + limit

    @property
    def count_hint(self) -> int | None:
        """Documents at most, where the files say so without being read; None elsewhere."""
        rows = [file.rows() for file in self.files[:1000]]
        known = None if None in rows or len(self.files) > len(rows) else sum(row or 0 for row in rows)
        return min((count for count in (known, self._max_examples) if count is not None), default=None)

    @property
    def bytes(self) -> int | None:
        """On disk, compressed as they are; None for a stream."""
        sizes = [file.size() for file in self.files]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def paths(self) -> list[Path] | None:
        """Of the files; None for a stream."""
        found = [path for file in self.files if (path := getattr(file, "path", None)) is not None]
        return found if len(found) == len(self.files) else None

    def columns(self) -> list[str] | None:
        """Of the first file; None for plain text."""
        return self.files[0].columns() if self.files else None

    def read(self, position: dict | None = None) -> Iterator[tuple[str, dict]]:
        """`(text, position after it)` of every piece."""
        return ((piece.text, piece.position) for piece in self.pieces(position))

    def pieces(self, position: dict | None = None) -> Iterator[Piece]:
        """From the beginning, or from after the piece whose position it is."""
        position = position or {"of": self._digest, "file": 0, "at": {}, "documents": 0, "held_out": None}
        self._check(position)
        first, documents, held_out = position["file"], position["documents"], position["held_out"]
        for index in range(first, len(self.files)):
            if held_out is None and documents == self._max_examples:
                return
            for part in self.files[index].read(position["at"] if index == first else {}):
                if held_out is None:
                    held_out = is_held_out(part.text)
                documents += part.last
                here = {"of": self._digest, "file": index, "at": part.at, "documents": documents}
                yield Piece(part.text, here | {"held_out": None if part.last else held_out}, part.last, held_out)
                held_out = None if part.last else held_out
                if part.last and documents == self._max_examples:
                    return
            self._require_unchanged(index)
        if not documents:
            raise DataError(
                f"{self.name} holds no documents ({self.describe()}): nothing but white space. "
                "Name a data set with text in it."
            )

    def _require_unchanged(self, index: int) -> None:
        """At its end: a file that was cut short meanwhile would end the epoch early, and nobody would know."""
        file, before = self.files[index], self._sizes[index]
        try:
            now = file.size()
        except OSError:
            now = "none any more"
        if now != before:
            raise DataError(
                f"{file.name} changed while it was being read: it had {before} bytes when it was opened, and has {now}."
                " Put the old file back, and run the same command again"
            )

    def _check(self, position: dict) -> None:
        if position["of"] != self._digest:
            raise DataError(
                f"the position belongs to other files than those of {self.name}: names or sizes changed "
                "since it was saved. Put the old files back, or start a new run."
            )


def contents_of(files: Sequence[File], root: Path) -> str:
    """Names and sizes, so that a position of other files is refused."""
    return "\n".join(f"{file.path.relative_to(root)} {file.path.stat().st_size}" for file in files)
