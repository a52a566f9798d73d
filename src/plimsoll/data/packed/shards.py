"""Tokenises text into shards: folders of about 256 MiB of ids. A shard is complete or absent.

shard_00012/tokens.bin      ids for training, end-of-text after each document
shard_00012/validation.bin  ids of the held-out documents
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.packed.encoding import Encoder, encoded
from plimsoll.data.text.documents import Documents, Piece
from plimsoll.files.facts import Facts
from plimsoll.files.folder import made, opened
from plimsoll.units import MIB

TOKENS, VALIDATION = "tokens.bin", "validation.bin"
SHARD_BYTES = 256 * MIB
PROGRESS_SECONDS = 2.0

Progress = Callable[[float | None, str], None]
"""Function that reports the completed share (None if unknown) and a text."""
Blocks = Iterator[tuple[list[Piece], np.ndarray, np.ndarray]]
"""Iterator over blocks: pieces of text, their ids, and the number of ids of each piece."""


@dataclass(kw_only=True)
class Shard:
    """Counts of a shard. A document counts in the shard in which it ends."""

    tokens: int = 0
    validation_tokens: int = 0
    documents: int = 0
    validation_documents: int = 0
    characters: int = 0
    position: dict[str, Any] | None = None
    """Position in the text after the last piece; None if there is no piece."""
    last: bool = False
    """True if the text ends with this shard."""

    def add(self, pieces: list[Piece], tokens: int, validation_tokens: int) -> None:
        self.tokens += tokens
        self.validation_tokens += validation_tokens
        held_out = [piece.held_out for piece in pieces if piece.last]
        self.documents += held_out.count(False)
        self.validation_documents += held_out.count(True)
        self.characters += sum(len(piece.text) for piece in pieces)
        self.position = pieces[-1].position


@dataclass(kw_only=True)
class Packing:
    """Tokenises a text into the shards of a folder. Existing shards are kept, and missing ones added."""

    folder: Path
    made_with: Facts
    documents: Documents
    encoder: Encoder
    dtype: np.dtype
    progress: Progress

    def __post_init__(self) -> None:
        self.shards: list[Shard] = []
        self.tokens_before = 0
        """Number of training tokens in shards that existed before this run."""
        self._blocks: Blocks | None = None
        self._told = time.monotonic()

    @property
    def words(self) -> str:
        """Text with the numbers of tokens and documents in all shards."""
        tokens = sum(shard.tokens for shard in self.shards)
        documents = sum(shard.documents for shard in self.shards)
        return f"{tokens:,} tokens of {documents:,} documents"

    def run(self) -> None:
        """Makes all missing shards."""
        while not self.shards or not self.shards[-1].last:
            path = self.folder / f"shard_{len(self.shards):05}"
            was_there = opened(path) is not None
            shard = Shard(**made(path, self.made_with, self._write).counts)
            if was_there:
                self.tokens_before += shard.tokens
                self._blocks = None
            self.shards.append(shard)

    def _write(self, folder: Path) -> dict[str, Any]:
        """Writes the next blocks until the shard is full, or the text ends."""
        if self._blocks is None:
            position = self.shards[-1].position if self.shards else None
            self._blocks = encoded(self.documents.pieces(position), self.encoder)

        shard = Shard()
        with (folder / TOKENS).open("wb") as tokens, (folder / VALIDATION).open("wb") as validation:
            for pieces, ids, lengths in self._blocks:
                held_out = np.repeat([piece.held_out for piece in pieces], lengths)
                ids = ids.astype(self.dtype)
                count = tokens.write(ids[~held_out].data)
                others = validation.write(ids[held_out].data)
                shard.add(pieces, count // ids.itemsize, others // ids.itemsize)
                self._tell(shard)
                if tokens.tell() + validation.tell() >= SHARD_BYTES:
                    return asdict(shard)
        shard.last = True
        return asdict(shard)

    def _tell(self, shard: Shard) -> None:
        if time.monotonic() - self._told > PROGRESS_SECONDS:
            self._told = time.monotonic()
            tokens = sum(done.tokens for done in self.shards) + shard.tokens
            self.progress(self.documents.share(shard.position), f"{tokens:,} tokens")
