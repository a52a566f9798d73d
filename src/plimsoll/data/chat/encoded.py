"""Examples that were encoded once: a folder in the cache, and what is read of it.

    train.tokens.bin    the documents one after another: little-endian uint16, or uint32 where the vocabulary is larger
                        than 65,536
    train.learned.bin   a byte for each token: 1 where it is to be learned
    train.starts.npy    int64, where each document starts, and where the last one ends
    train.first.npy     int32, the first token of each document that is to be learned and has one before it; NEVER for
                        none
    validation.*        the same of the held-out documents
    meta.json           sizes, and what all of it follows from; written last

Documents are read as they are needed, and nothing of the tokens stays in memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.disk import read_json
from plimsoll.data.token_table import loaded
from plimsoll.data.unchanged import opened
from plimsoll.errors import DataError

FORMAT = 1
META = "meta.json"
TRAIN, VALIDATION = "train", "validation"
PARTS = ("tokens.bin", "learned.bin", "starts.npy", "first.npy")
FILES = tuple(f"{side}.{part}" for side in (TRAIN, VALIDATION) for part in PARTS)
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
        width, rows = np.dtype(self.dtype).itemsize, []
        with (
            open(self.folder / f"{self.side}.tokens.bin", "rb", buffering=0) as tokens,
            open(self.folder / f"{self.side}.learned.bin", "rb", buffering=0) as learned,
        ):
            for document in documents:
                start, end = self.starts[document : document + 2].tolist()
                count = min(end - start, longest)
                ids = os.pread(tokens.fileno(), count * width, start * width)
                flags = os.pread(learned.fileno(), count, start)
                if len(ids) != count * width or len(flags) != count:
                    raise DataError(
                        f"{self.folder} ends before token {start + count:,} of {self.side}: it was changed while it"
                        " was read. Run the same command again"
                    )
                rows.append((np.frombuffer(ids, np.dtype(self.dtype).newbyteorder("<")), np.frombuffer(flags, bool)))
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
    about: Mapping[str, Any] = field(repr=False, compare=False)
    """All of meta.json."""

    @property
    def name(self) -> str:
        """Name of the folder: a digest of what its content follows from, and so the same for the same data."""
        return self.folder.name


def open_encoded(folder: Path) -> Encoded:
    """Opens a folder of examples.

    Raises:
        DataError: A file of it is missing, cut short, or not of the others' sizes.
    """
    damaged = "It is damaged: remove the folder, and run the same command again"
    meta = read_json(folder / META, absent=f"there is no {folder / META}. {damaged}", again=damaged)
    try:
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}")
        sides = {side: _side(folder, side, meta) for side in (TRAIN, VALIDATION)}
        return Encoded(
            folder=folder,
            **sides,
            vocab_size=meta["vocab_size"],
            kind=meta["kind"],
            conversations=meta["conversations"],
            empty=meta["empty"],
            day=meta["made_with"]["day"],
            about=meta,
        )
    except (KeyError, TypeError, ValueError, OSError) as problem:
        raise DataError(
            f"{folder} is no folder of examples that is whole ({type(problem).__name__}: {problem}). {damaged}"
        ) from None


def open_kept(folder: Path) -> Encoded | None:
    """Opens a folder of the cache, and notes its use; returns None if there is none.

    Raises:
        DataError: It is damaged.
    """
    return opened(folder, META, open_encoded)


def _side(folder: Path, side: str, meta: Mapping[str, Any]) -> EncodedDocuments:
    counts = meta[side]
    starts, first = (loaded(folder / f"{side}.{name}.npy", mapped=False) for name in ("starts", "first"))
    sizes = [(folder / f"{side}.{name}").stat().st_size for name in ("tokens.bin", "learned.bin")]
    expected = [counts["tokens"] * np.dtype(meta["dtype"]).itemsize, counts["tokens"]]
    if sizes != expected or len(starts) != len(first) + 1 or starts[-1] != counts["tokens"]:
        raise ValueError(f"{side} has files of {sizes} bytes, and {expected} were expected")
    return EncodedDocuments(
        folder=folder,
        side=side,
        dtype=meta["dtype"],
        end_of_text=meta["end_of_text"],
        tokens=counts["tokens"],
        learned=counts["learned"],
        starts=starts,
        first=first,
    )
