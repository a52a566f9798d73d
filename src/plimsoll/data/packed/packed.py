"""A packed folder: tokenised text as a stream of ids, made by `plimsoll prepare longcontext`.

    shard_00000/     the first 256 MiB of ids, and so on (shards.py)
    tokenizer.json   the tokenizer that made the ids
    meta.json        sizes of all shards

An id is a little-endian uint16, or uint32 if the vocabulary is larger than 65,536. Opening a folder reads some
kilobytes. Windows are read on demand (windows.py), and nothing of the files stays in memory.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.packed.shards import TOKENS, VALIDATION, Shard
from plimsoll.data.text.survey import count_windows
from plimsoll.data.token_table import fill
from plimsoll.errors import DataError
from plimsoll.files.folder import META, opened, partial_of

TOKENIZER = "tokenizer.json"
WIDEST = {"uint16": 2**16, "uint32": 2**31}
"""Largest vocabulary for each type of id. It is 2^31 for uint32, because JAX indexes with int32."""
WORDS = 120
"""Number of tokens in the sample that `plimsoll inspect` prints."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A folder of tokenised text, as described by its meta.json. Counts of tokens include end-of-text."""

    folder: Path
    dtype: str
    """NumPy type of the stored ids: uint16 or uint32."""
    vocab_size: int
    end_of_text: int
    """Id of end-of-text, which follows every document."""
    source: str
    """Description of the packed text."""
    shards: tuple[Shard, ...]

    @cached_property
    def tokens(self) -> int:
        """Number of tokens for training."""
        return self._ends[TOKENS][-1]

    @cached_property
    def validation_tokens(self) -> int:
        return self._ends[VALIDATION][-1]

    @property
    def documents(self) -> int:
        """Number of documents for training."""
        return sum(shard.documents for shard in self.shards)

    @property
    def validation_documents(self) -> int:
        return sum(shard.validation_documents for shard in self.shards)

    @property
    def characters(self) -> int:
        return sum(shard.characters for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def sizes(self) -> dict[str, Any]:
        """Returns the sizes that `prepare --json` and `inspect` print."""
        return {
            "path": str(self.folder),
            "bytes": self.bytes,
            "tokens": self.tokens,
            "documents": self.documents,
            "validation_tokens": self.validation_tokens,
            "validation_documents": self.validation_documents,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
        }

    @property
    def files(self) -> list[Path]:
        """Paths of the files with ids, and of tokenizer.json."""
        return [*sorted(self.folder.rglob("*.bin")), self.folder / TOKENIZER]

    @cached_property
    def on_disk(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")

    def windows(self, seq_len: int) -> int:
        """Returns the number of windows of `seq_len + 1` ids, `seq_len` apart. Ids left at the end are dropped."""
        return count_windows(self.tokens, seq_len=seq_len, stride=seq_len)

    def path(self, shard: int, name: str) -> Path:
        return self.folder / f"shard_{shard:05}" / name

    def read(self, name: str, first: int, count: int) -> np.ndarray:
        """Returns at most `count` ids of `tokens.bin` or `validation.bin`, from token `first`."""
        ids = np.empty(min(count, self._ends[name][-1] - first), self.on_disk)
        self.fill(ids, name, first)
        return ids.astype(self.dtype, copy=False)

    def held_out(self, *, seq_len: int, max_tokens: int) -> np.ndarray:
        """Returns at most `max_tokens` ids of the held-out documents, int32; none if they do not fill one window."""
        if self.validation_tokens < seq_len + 1:
            return np.empty(0, np.int32)
        return self.read(VALIDATION, 0, max_tokens).astype(np.int32)

    def rows(self, indices: np.ndarray, *, length: int, stride: int, workers: int = 0) -> np.ndarray:
        """Returns windows of training ids, (windows, length).

        Args:
            indices: Indices of the windows.
            length: Ids per window.
            stride: Ids from the beginning of a window to the next.
            workers: Threads that read at the same time, which helps with a disk of high latency.
        """
        rows = np.empty((len(indices), length), self.on_disk)

        def read(row: np.ndarray, index: int) -> None:
            self.fill(row, TOKENS, index * stride)

        if workers > 1:
            with ThreadPoolExecutor(workers) as threads:
                list(threads.map(read, rows, indices.tolist()))
        else:
            for row, index in zip(rows, indices.tolist(), strict=True):
                read(row, index)
        return rows.astype(self.dtype, copy=False)

    def fill(self, place: np.ndarray, name: str, first: int) -> None:
        """Fills `place` with the ids from token `first`, from one or more shards.

        Raises:
            DataError: A file became shorter, or has an id outside the vocabulary.
        """
        ends = self._ends[name]
        shard = bisect_right(ends, first)
        while len(place):
            begin = ends[shard - 1] if shard else 0
            part = place[: ends[shard] - first]
            path = self._paths[name][shard]
            with open(path, "rb", buffering=0) as file:
                fill(file, part, (first - begin) * part.itemsize)
            self._require_ids(part, path, first - begin)
            place = place[len(part) :]
            first += len(part)
            shard += 1

    @cached_property
    def _ends(self) -> dict[str, list[int]]:
        """Cumulative number of ids at the end of each shard, by file name: tokens.bin or validation.bin."""
        tokens = accumulate(shard.tokens for shard in self.shards)
        validation = accumulate(shard.validation_tokens for shard in self.shards)
        return {TOKENS: list(tokens), VALIDATION: list(validation)}

    @cached_property
    def _paths(self) -> dict[str, list[str]]:
        """Path of each shard's file, by file name. As strings: building a `Path` takes longer than opening a file."""
        shards = range(len(self.shards))
        return {name: [str(self.path(shard, name)) for shard in shards] for name in (TOKENS, VALIDATION)}

    def _require_ids(self, ids: np.ndarray, path: str, at: int) -> None:
        """Raises DataError if an id is outside the vocabulary. `at` is the index of the first id in the file."""
        if ids.size and int(ids.max()) >= self.vocab_size:
            wrong = int(np.argmax(ids >= self.vocab_size))
            raise DataError(
                f"{path} has the id {int(ids[wrong]):,} at token {at + wrong:,}, and the vocabulary of {META} has"
                f" {self.vocab_size:,} (0 to {self.vocab_size - 1:,}): it was packed with another tokenizer, or is"
                " damaged. Prepare it again"
            )


def open_packed(folder: str | Path) -> Packed:
    """Opens a packed folder, which holds tokenised text.

    Raises:
        DataError: The folder is not a packed folder, is unfinished, or has a damaged meta.json.
    """
    folder = Path(folder).expanduser()
    contents = opened(folder)
    known = {field.name for field in dataclasses.fields(Packed)} - {"folder"}
    if contents is None or contents.counts.keys() != known:
        unfinished = f"; {partial_of(folder)} is not finished" if partial_of(folder).exists() else ""
        raise DataError(
            f"{folder} is no packed folder{unfinished}: `plimsoll prepare longcontext --dataset-id TEXT --out {folder}`"
            " makes or completes one"
        )
    shards = tuple(Shard(**shard) for shard in contents.counts["shards"])
    return Packed(folder=folder, **{**contents.counts, "shards": shards})


def id_type(vocab_size: int) -> np.dtype:
    """Returns the smallest NumPy type for storage that holds all ids of a vocabulary."""
    name = next(name for name, most in WIDEST.items() if vocab_size <= most)
    return np.dtype(name).newbyteorder("<")


def is_packed(folder: str | Path) -> bool:
    """Returns True if a folder has a shard of token ids, finished or not."""
    folder = Path(folder).expanduser()
    return any((place / "shard_00000").is_dir() for place in (folder, partial_of(folder)))


def describe_packed(folder: Path | str) -> dict[str, Any]:
    """Returns the facts that `plimsoll inspect` prints. Raises DataError if the folder is unfinished."""
    from plimsoll.data.text.tokenizer import load_tokenizer

    packed = open_packed(folder)
    tokenizer = load_tokenizer(packed.folder)
    all_tokens = packed.tokens + packed.validation_tokens
    return packed.sizes() | {
        "source": packed.source,
        "held_out_share": packed.validation_tokens / all_tokens,
        "document_tokens": packed.tokens / packed.documents,
        "tokenizer_vocab_size": tokenizer.size,
        "end_of_text": packed.end_of_text,
        "characters_per_token": packed.characters / all_tokens,
        "sample": tokenizer.decode(packed.read(TOKENS, 0, WORDS)),
    }
