"""Examples that were encoded once: a folder in the cache, and what is read of it.

    train.tokens.bin    the documents one after another: little-endian uint16, or uint32 where the vocabulary is larger
                        than 65,536
    train.learned.bin   a byte for each token: 1 where it is to be learned
    train.starts.npy    int64, where each document starts, and where the last one ends
    train.first.npy     int32, the first token of each document that is to be learned and has one before it; NEVER for
                        none
    validation.*        the same of the held-out documents
    meta.json           sizes, and what all of it follows from

Documents are read as they are needed, and nothing of the tokens stays in memory.
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
"""First token to be learned of a document that has none."""


@dataclass(frozen=True, kw_only=True)
class EncodedDocuments:
    """One side of the folder: those to train on, or those for validation."""

    folder: Path
    side: str
    dtype: str
    """Type of an id: uint16 or uint32."""
    end_of_text: int
    tokens: int
    learned: int
    """Tokens that are to be learned."""
    starts: np.ndarray = field(repr=False, compare=False)
    """int64, one more than documents."""
    first: np.ndarray = field(repr=False, compare=False)
    """int32, the first token to be learned."""

    @property
    def count(self) -> int:
        """Number of documents."""
        return len(self.first)

    def read(self, documents: Sequence[int], longest: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and what is to be learned of these documents, the first `longest` tokens of each.

        Args:
            documents: Numbers from 0.
            longest: Tokens.

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
    """Whether the chat template wrote them as text: `messages`, or a prompt and completion of messages."""
    empty: int
    """Records that hold nothing but white space, and are in neither side."""
    day: str | None
    """Day, like 2026-11-25, that the chat template was told; None if it asks for none."""
    source: str
    """Description of the records."""
    made_with: Facts
    """All that it follows from."""

    @property
    def name(self) -> str:
        """Name of the folder: a digest of what its content follows from, and so the same for the same data."""
        return self.folder.name


def open_encoded(folder: Path) -> Encoded:
    """Opens a folder of examples.

    Raises:
        DataError: It is no such folder, or a file of it is missing.
    """
    contents = opened(folder)
    if contents is None:
        raise DataError(f"{folder} is no folder of examples that is complete: run the same command again")
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
