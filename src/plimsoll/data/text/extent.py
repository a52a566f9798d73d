"""How much of a text was read, and how many bytes of ids it has, as far as its files tell."""

from __future__ import annotations

from itertools import accumulate

from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import File
from plimsoll.data.text.opening import BYTES_A_TOKEN, text_bytes
from plimsoll.data.text.streams import COMPRESSED, PACKED_TO
from plimsoll.data.text.tokenizer import TextTokenizer


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


def expected_bytes(documents: Documents, tokenizer: TextTokenizer) -> int:
    """Returns about how many bytes of ids the text has, by the sizes of its files; 0 where these do not say it."""
    if documents.max_examples is not None:
        return 0
    return text_bytes(documents) // BYTES_A_TOKEN * tokenizer.dtype.itemsize
