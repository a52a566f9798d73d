"""How much of a text has been read, from a position in it: for a time left, and for the room that all of it takes."""

from __future__ import annotations

from itertools import accumulate

from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import File
from plimsoll.data.text.streams import COMPRESSED

PACKED_TO = 4
"""Bytes of text for a byte of a compressed file, about: its offsets count bytes of text."""


class Extent:
    """By the bytes of files, or by the documents of --max-examples and of Parquet files, whichever is further."""

    def __init__(self, documents: Documents) -> None:
        self._count = documents.count_hint
        files = [file for file in documents.files if isinstance(file, File)]
        self._files = files if len(files) == len(documents.files) else []
        self._ends = list(accumulate(file.size() for file in self._files))

    def share(self, position: dict | None) -> float | None:
        """From 0 to 1; None for a stream, whose length nobody knows."""
        if position is None:
            return 0.0
        shares = [position["documents"] / self._count] if self._count else []
        if self._ends and self._ends[-1]:
            shares.append(self._bytes_read(position) / self._ends[-1])
        return min(1.0, max(shares)) if shares else None

    def _bytes_read(self, position: dict) -> int:
        file, offset = self._files[position["file"]], position["at"].get("offset", 0)
        if file.path.suffix.lower() in COMPRESSED:
            offset //= PACKED_TO
        return self._ends[position["file"]] - file.size() + min(offset, file.size())
