"""Reads documents from a list of files in order. Reading continues exactly from a saved position.

A document longer than 64 KiB is read in pieces, so memory does not depend on the files' content. `opening.py` chooses
the files. 1 % of the documents are held out for validation, chosen by a hash of their content. The choice is the same
in every run, whatever the order of files, the epochs and the batch size. Copies of a document are in the same split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

from plimsoll.data.hub import HubStream
from plimsoll.data.text.formats import File
from plimsoll.data.text.streams import COMPRESSED, PACKED_TO
from plimsoll.errors import DataError
from plimsoll.files.facts import Facts, facts_of

HELD_OUT_SHARE = 0.01
METHOD = 3
"""Version of the rules for splitting, holding out and packing documents, and of a packed folder's meta.json."""


class Piece(NamedTuple):
    """A document of at most 64 KiB, or a part of a longer one."""

    text: str
    position: dict
    """JSON below 1 KiB: `Documents.pieces(position)` continues after this piece."""
    last: bool
    """True if the document ends with this piece."""
    held_out: bool
    """True if the document is for validation; training skips it."""


@dataclass(eq=False)
class Documents:
    """The documents of a data set in the order of its files. Keeps no file open between reads."""

    files: Sequence[File | HubStream]
    name: str
    description: str
    contents: InitVar[str]
    """Text with names and sizes of the files. A saved position is valid for these files only."""
    max_examples: int | None = None

    def __post_init__(self, contents: str) -> None:
        self._sizes = [file.size() for file in self.files]
        self.bytes = None if None in self._sizes else sum(size or 0 for size in self._sizes)
        """Size of the files on disk, in bytes, before decompression; None for a stream."""
        paths = [file.path for file in self.files if isinstance(file, File)]
        self.paths = paths if len(paths) == len(self.files) else None
        """Paths of the files; None for a stream."""
        self.digest = hashlib.blake2b(contents.encode(), digest_size=4).hexdigest()
        """Digest of the names and sizes of the files."""

    def facts(self, *, exact: bool = False, **options: Any) -> Facts:
        """Returns facts that determine the pieces, and `options`. `exact` adds modification times of large files."""
        formats = {f"{file.format} {file.column}" for file in self.files if isinstance(file, File)}
        return facts_of(
            self.paths or [],
            exact=exact,
            method=METHOD,
            formats=sorted(formats),
            **{"max_examples": self.max_examples, **options},
        )

    def imports(self) -> tuple[str, ...]:
        """Returns the names of modules that reading imports. A plan counts their memory."""
        return tuple(dict.fromkeys(name for file in self.files for name in file.imports()))

    def describe(self) -> str:
        """Returns one line: files, formats, and the rule that splits them into documents."""
        limit = f", the first {self.max_examples:,} documents" if self.max_examples is not None else ""
        return self.description + limit

    def share(self, position: dict | None) -> float | None:
        """Returns the share of the data before a position, by `max_examples` or the files' bytes; None if unknown."""
        position = position or {"file": 0, "at": {}, "documents": 0}
        if self.max_examples is not None:
            return position["documents"] / self.max_examples
        if not self.bytes or self.paths is None:
            return None
        number = position["file"]
        offset = position["at"].get("offset", 0)
        if self.paths[number].suffix.lower() in COMPRESSED:
            offset //= PACKED_TO
        sizes = [size or 0 for size in self._sizes]
        return (sum(sizes[:number]) + min(offset, sizes[number])) / self.bytes

    def pieces(self, position: dict | None = None) -> Iterator[Piece]:
        """Yields all pieces, or those after the piece with this position.

        Raises:
            DataError: The position belongs to other files, a file changes meanwhile (the epoch would end early
                unnoticed), or there is no document.
        """
        position = position or {"of": self.digest, "file": 0, "at": {}, "documents": 0, "held_out": None}
        if position["of"] != self.digest:
            raise DataError(
                f"the position belongs to other files than those of {self.name}: names or sizes changed "
                "since it was saved. Put the old files back, or start a new run."
            )
        documents = position["documents"]
        of_document = position["held_out"]  # None between two documents
        at = position["at"]
        for index in range(position["file"], len(self.files)):
            if of_document is None and documents == self.max_examples:
                return
            for part in self.files[index].read(at):
                held_out = is_held_out(part.text) if of_document is None else of_document
                of_document = None if part.last else held_out
                documents += part.last
                here = {"of": self.digest, "file": index, "at": part.at, "documents": documents}
                yield Piece(part.text, here | {"held_out": of_document}, part.last, held_out)
                if part.last and documents == self.max_examples:
                    return
            self._require_unchanged(index)
            at = {}
        if not documents:
            raise DataError(
                f"{self.name} holds no documents ({self.describe()}): nothing but white space. "
                "Name a data set with text in it."
            )

    def _require_unchanged(self, index: int) -> None:
        file = self.files[index]
        try:
            size = file.size()
        except OSError:
            size = "none any more"
        if size != self._sizes[index]:
            raise DataError(
                f"{file.name} changed while it was being read: it had {self._sizes[index]} bytes when it was opened,"
                f" and has {size}. Put the old file back, and run the same command again"
            )


def is_held_out(text: str) -> bool:
    """Returns True if a document is for validation, by a hash of its text, or of a long document's first piece."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64
