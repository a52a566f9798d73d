"""How much of a text was read, and how many bytes of ids it has, as far as its files and its beginning tell."""

from __future__ import annotations

from itertools import accumulate

from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import File
from plimsoll.data.text.streams import COMPRESSED, PACKED_TO
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.units import MIB

LOOKED_AT = MIB
"""Characters that are encoded to estimate how much room all of it takes."""


class Extent:
    """The share of a text that was read, by the bytes of files or by documents, whichever is further.

    Documents count where `--max-examples` or Parquet files say how many there are.
    """

    def __init__(self, documents: Documents) -> None:
        self._count = documents.count_hint
        files = [file for file in documents.files if isinstance(file, File)]
        self._files = files if len(files) == len(documents.files) else []
        self._ends = list(accumulate(file.size() for file in self._files))

    def share(self, position: dict | None) -> float | None:
        """Returns the share from 0 to 1 at a position; None for a stream, whose length is unknown."""
        if position is None:
            return 0.0
        shares = [position["documents"] / self._count] if self._count else []
        if self._ends and self._ends[-1]:
            file, offset = self._files[position["file"]], position["at"].get("offset", 0)
            if file.path.suffix.lower() in COMPRESSED:
                offset //= PACKED_TO
            read = self._ends[position["file"]] - file.size() + min(offset, file.size())
            shares.append(read / self._ends[-1])
        return min(1.0, max(shares)) if shares else None


def expected_bytes(documents: Documents, tokenizer: TextTokenizer) -> int | None:
    """Returns about how many bytes of ids the text has, as far as its beginning tells; None where nothing does."""
    texts, characters, share, extent = [], 0, None, Extent(documents)
    for piece in documents.pieces():
        texts.append(piece.text)
        characters += len(piece.text)
        share = extent.share(piece.position)
        if share is None:
            return None
        if characters >= LOOKED_AT:
            break
    if not share:
        return None
    _, lengths = tokenizer.encode_each(texts)
    return round(int(lengths.sum()) / share) * (2 if tokenizer.size <= 2**16 else 4)
