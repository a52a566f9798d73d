"""Reads a folder of encoded examples in the cache.

    train.tokens.bin    ids of all documents, concatenated: little-endian uint16, or uint32 if the vocabulary is larger
                        than 65,536
    train.learned.bin   a byte for each token: 1 if the token counts in the loss ("is learned")
    train.starts.npy    int64, index of each document's first token among all tokens, then the number of all tokens
    train.first.npy     int32, index within each document of its first learned token (1 or more); NEVER if none is
    validation.*        the same for the held-out documents
    meta.json           sizes, and the facts that determine the content

Documents are read on demand. No tokens stay in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from plimsoll.data.token_table import fill, loaded
from plimsoll.errors import DataError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import opened

TRAIN, VALIDATION = "train", "validation"
NEVER = 2**31 - 1
"""Value in `first` for a document of which no token counts in the loss."""


@dataclass(frozen=True, kw_only=True)
class EncodedDocuments:
    """The documents of one split of the folder: the training or the validation documents."""

    folder: Path
    side: str
    dtype: str
    """NumPy type of the stored ids: uint16 or uint32."""
    end_of_text: int
    tokens: int
    learned: int
    """Number of tokens that count in the loss."""
    starts: np.ndarray = field(repr=False, compare=False)
    """int64, index of each document's first token among all tokens, then the number of all tokens."""
    first: np.ndarray = field(repr=False, compare=False)
    """int32, index within each document of its first token that counts in the loss, or NEVER."""

    @property
    def count(self) -> int:
        """Number of documents."""
        return len(self.first)

    def read(self, documents: Sequence[int], longest: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns two arrays for each document: token ids, and booleans that are True if a token counts in the loss.

        Args:
            documents: Indices of the documents.
            longest: Largest number of tokens to read from the beginning of a document.

        Raises:
            DataError: A file became shorter.
        """
        dtype = np.dtype(self.dtype).newbyteorder("<")
        rows = []
        with (
            open(self.folder / f"{self.side}.tokens.bin", "rb", buffering=0) as tokens,
            open(self.folder / f"{self.side}.learned.bin", "rb", buffering=0) as learned,
        ):
            for document in documents:
                start, end = self.starts[document : document + 2].tolist()
                count = min(end - start, longest)
                ids = np.empty(count, dtype)
                flags = np.empty(count, bool)
                fill(tokens, ids, start * dtype.itemsize)
                fill(learned, flags, start)
                rows.append((ids, flags))
        return rows


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A folder of encoded examples, as described by its meta.json."""

    folder: Path
    train: EncodedDocuments
    validation: EncodedDocuments
    vocab_size: int
    kind: str
    """Kind of the records: "messages", "prompt" or "text"."""
    conversations: bool
    """True if records are lists of messages, which the chat template rendered; False if they are plain text."""
    empty: int
    """Number of records with only white space, which are in neither split."""
    day: str | None
    """Date on which the chat template was rendered, like 2026-11-25; None if the template uses no date."""
    source: str
    """Description of the records' origin, in words."""
    made_with: Facts
    """Files, tokenizer and options that determine the folder's content."""

    @property
    def name(self) -> str:
        """Name of the folder: a digest of `made_with`, so equal data gives equal names."""
        return self.folder.name


def open_encoded(folder: Path) -> Encoded:
    """Opens a folder of encoded examples.

    Raises:
        DataError: The folder is incomplete, its meta.json is damaged, or an array cannot be read.
    """
    contents = opened(folder)
    if contents is None:
        raise DataError(f"{folder} is not a complete folder of encoded examples: run the same command again")
    counts = dict(contents.counts)
    sides = {}
    ids = {name: counts.pop(name) for name in ("dtype", "end_of_text")}
    for side in (TRAIN, VALIDATION):
        sides[side] = EncodedDocuments(
            folder=folder,
            side=side,
            starts=loaded(folder / f"{side}.starts.npy"),
            first=loaded(folder / f"{side}.first.npy"),
            **ids,
            **counts.pop(side),
        )
    return Encoded(folder=folder, made_with=contents.made_with, **sides, **counts)
