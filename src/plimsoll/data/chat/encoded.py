"""Reads a folder of encoded examples in the cache.

    train.tokens.bin    ids of all documents, concatenated: little-endian uint16, or uint32 if the vocabulary is larger
                        than 65,536
    train.learned.bin   a byte for each token: 1 if the token is to be learned
    train.starts.npy    int64, the start of each document in tokens, and the end of the last one
    train.first.npy     int32, index in each document of the first token to be learned (1 or more); NEVER if none is
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
"""Value in `first` for a document without a token to be learned."""


@dataclass(frozen=True, kw_only=True)
class EncodedDocuments:
    """The documents of one side of the folder: for training, or for validation."""

    folder: Path
    side: str
    dtype: str
    """Type of an id: uint16 or uint32."""
    end_of_text: int
    tokens: int
    learned: int
    """Number of tokens that are to be learned."""
    starts: np.ndarray = field(repr=False, compare=False)
    """int64, the start of each document in tokens, and the end of the last one."""
    first: np.ndarray = field(repr=False, compare=False)
    """int32, index in each document of the first token to be learned, or NEVER."""

    @property
    def count(self) -> int:
        """Number of documents."""
        return len(self.first)

    def read(self, documents: Sequence[int], longest: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids of some documents, each with booleans that are True for tokens to be learned.

        Args:
            documents: Numbers of the documents, from 0.
            longest: Number of tokens to read of each document at most.

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
    """A folder of examples, by its meta.json."""

    folder: Path
    train: EncodedDocuments
    validation: EncodedDocuments
    vocab_size: int
    kind: str
    """Kind of the records: a key of `records.KINDS`."""
    conversations: bool
    """Whether the chat template rendered the records: `messages`, or a prompt and completion of messages."""
    empty: int
    """Number of records of white space alone, which are on neither side."""
    day: str | None
    """Day, like 2026-11-25, that the chat template was given; None if it uses no date."""
    source: str
    """Description of the records."""
    made_with: Facts
    """Facts that determine the content."""

    @property
    def name(self) -> str:
        """Name of the folder: a digest of `made_with`, so the same data has the same name."""
        return self.folder.name


def open_encoded(folder: Path) -> Encoded:
    """Opens a folder of examples.

    Raises:
        DataError: The folder is incomplete or of another kind, or a file is missing.
    """
    contents = opened(folder)
    if contents is None:
        raise DataError(f"{folder} is no complete folder of examples: run the same command again")
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
