"""A packed folder: text that was tokenised once, as one flat file of ids. `plimsoll prepare longcontext` makes it.

    tokens.bin       the documents one after another, end-of-text after each: little-endian uint16, or uint32 where the
                     vocabulary is larger than 65,536
    validation.bin   the same of the held-out documents (`documents.is_held_out`)
    documents.npy    int64, where each document starts in tokens.bin
    tokenizer.json   what made the ids
    meta.json        the sizes of all of them; written last, so a folder without it is not finished

Opening it reads some kilobytes. Windows are read as they are needed (windows.py), and nothing of the file stays in
memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.disk import read_json
from plimsoll.data.loader_bytes import RUN_BYTES, RUNS_MIXED
from plimsoll.data.text.survey import count_windows
from plimsoll.data.token_table import loaded
from plimsoll.errors import DataError
from plimsoll.units import KIB

FORMAT = 1
META, TOKENIZER = "meta.json", "tokenizer.json"
TOKENS, VALIDATION, DOCUMENTS = "tokens.bin", "validation.bin", "documents.npy"
WIDEST = {"uint16": 2**16, "uint32": 2**31}
"""Types of an id, and the largest vocabulary of each: JAX indexes with int32."""
SAMPLES, SAMPLE_BYTES = 64, 4 * KIB
"""Places of the file whose ids are checked when it is opened, and bytes of each."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A packed folder, by its meta.json. Counts of tokens include end-of-text."""

    folder: Path
    dtype: str
    """Type of an id: uint16 or uint32."""
    vocab_size: int
    end_of_text: int
    """The id after every document."""
    tokens: int
    """Tokens to train on."""
    validation_tokens: int
    documents: int
    """Documents to train on."""
    source: str
    """Description of what was packed."""
    tokenizer_sha256: str | None = None
    """Digest of tokenizer.json, which may be exchanged by mistake; None for a folder that was made by hand."""

    @property
    def on_disk(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")

    def windows(self, seq_len: int) -> int:
        """Returns the windows of `seq_len + 1` ids, `seq_len` apart: what is left at the end is dropped."""
        return count_windows(self.tokens, seq_len=seq_len, stride=seq_len)

    def length(self, name: str) -> int:
        """Returns the tokens of `tokens.bin` or `validation.bin`."""
        return self.tokens if name == TOKENS else self.validation_tokens

    def starts(self) -> np.ndarray:
        """Returns where the documents start, memory-mapped."""
        starts = loaded(self.folder / DOCUMENTS, mapped=True)
        if starts.shape != (self.documents,) or starts.dtype != np.int64:
            raise DataError(
                f"{self.folder / DOCUMENTS} holds {starts.dtype} of shape {starts.shape}, and {META} says"
                f" {self.documents:,} documents: they are not of the same folder. Prepare it again"
            )
        return starts

    def read(self, name: str, first: int, count: int) -> np.ndarray:
        """Returns at most `count` ids of `tokens.bin` or `validation.bin`, from token `first` on."""
        ids = np.fromfile(self.folder / name, self.on_disk, count, offset=first * self.on_disk.itemsize)
        return ids.astype(self.dtype, copy=False)

    def require_ids(self, ids: np.ndarray, *, name: str, at: int) -> None:
        """Raises DataError where an id is outside of the vocabulary; `at` is the place of the first id in the file."""
        if ids.size and int(ids.max()) >= self.vocab_size:
            wrong = int(np.argmax(ids >= self.vocab_size))
            raise DataError(
                f"{self.folder / name} has the id {int(ids[wrong]):,} at token {at + wrong:,}, and the vocabulary of"
                f" {META} has {self.vocab_size:,} (0 to {self.vocab_size - 1:,}): it was packed with another tokenizer,"
                " or is damaged. Prepare it again"
            )


def open_packed(folder: str | Path) -> Packed:
    """Opens a packed folder.

    Raises:
        DataError: It is none, not finished, cut short, or has ids outside of its vocabulary or another's tokenizer.
    """
    folder = Path(folder).expanduser()
    packed = _described(folder, _meta(folder))
    for name in (TOKENS, VALIDATION):
        path, tokens = folder / name, packed.length(name)
        if not path.is_file():
            raise DataError(f"there is no {name} in {folder}: the folder is not whole. Prepare it again")
        size, expected = path.stat().st_size, tokens * packed.on_disk.itemsize
        if size != expected:
            what = "it was cut short" if size < expected else f"more was written to it than {META} knows of"
            raise DataError(
                f"{path} has {size:,} bytes, and {META} says {tokens:,} tokens of {packed.dtype}, {expected:,} bytes:"
                f" {what}. Copy the folder again, or prepare it again"
            )
        for first, ids in sampled(packed, name):
            packed.require_ids(ids, name=name, at=first)
    packed.starts()
    path = folder / TOKENIZER
    if not path.is_file():
        raise DataError(f"there is no {TOKENIZER} in {folder}: nobody could read its ids. Prepare it again")
    expected = packed.tokenizer_sha256
    if expected is not None and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise DataError(
            f"{path} is not the tokenizer that {folder} was packed with: its SHA-256 is another than in {META}."
            " Put the old one back, or prepare the folder again with this one"
        )
    return packed


def sampled(packed: Packed, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yields places in a file and the ids from there on: the beginning and the end are among them."""
    count = SAMPLE_BYTES // packed.on_disk.itemsize
    last = max(0, packed.length(name) - count)
    for first in sorted({last * place // (SAMPLES - 1) for place in range(SAMPLES)}):
        yield first, packed.read(name, first, count)


def is_packed(folder: str | Path) -> bool:
    """Tells whether a folder looks like a packed one, finished or not."""
    folder = Path(folder).expanduser()
    return (folder / META).is_file() or (folder / TOKENS).is_file()


def packed_bytes(*, seq_len: int, batch_size: int, prefetch: int, itemsize: int) -> int:
    """Returns the host bytes of the loader, whatever the size of the file: runs that are mixed, and batches in flight.

    In flight are the prefetched batches, one that waits to enter the queue, one that the consumer holds and one that is
    being built.
    """
    run = run_windows(seq_len, itemsize)
    pool = RUNS_MIXED * (run * seq_len + 1) * itemsize if run > 1 else 0  # one window is read into the batch
    return pool + (prefetch + 3) * batch_size * (seq_len + 1) * itemsize


def run_windows(seq_len: int, itemsize: int) -> int:
    """Returns how many neighbouring windows are read at once."""
    return max(1, RUN_BYTES // (seq_len * itemsize))


def _meta(folder: Path) -> dict[str, Any]:
    """Returns what meta.json holds. Where there is none, the DataError says how far the folder is from being one."""
    absent = (
        f"{folder} is no packed folder: it has no {META}. `plimsoll prepare longcontext --dataset-id TEXT --out"
        " packed/` makes one of a text"
    )
    if not folder.exists():
        absent = f"there is no folder {folder}: `plimsoll prepare longcontext --out {folder}` makes one"
    elif (folder / TOKENS).exists():
        absent = (
            f"{folder} is not finished: it has no {META}, which is written last. Run the same `plimsoll prepare"
            " longcontext` again to complete it"
        )
    meta = read_json(folder / META, absent=absent, again="It is damaged: prepare the folder again")
    if not isinstance(meta, dict):
        raise DataError(
            f"{folder / META} holds a {type(meta).__name__}, not an object: it is damaged. Prepare it again"
        )
    return meta


def _described(folder: Path, meta: dict[str, Any]) -> Packed:
    """Builds the description from meta.json; a field that was typed by hand or cut short is refused by its name."""

    def wrong(name: str, expected: str) -> DataError:
        given = repr(meta.get(name))
        given = given if len(given) <= 60 else given[:60] + "..."
        return DataError(f"{folder / META}: {name} is {given}, and {expected} was expected. Prepare the folder again")

    def whole(name: str, least: int, most: int) -> int:
        value = meta.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise wrong(name, f"a whole number from {least:,} to {most:,}")
        return value

    if meta.get("format") != FORMAT or isinstance(meta["format"], bool):
        raise wrong("format", f"{FORMAT}, the one this version of plimsoll reads,")
    dtype = meta.get("dtype")
    if not isinstance(dtype, str) or dtype not in WIDEST:
        raise wrong("dtype", " or ".join(WIDEST))
    for name in ("source", "tokenizer_sha256"):
        if not isinstance(meta.get(name, "" if name == "tokenizer_sha256" else None), str):
            raise wrong(name, "text")
    vocab_size = whole("vocab_size", 1, WIDEST[dtype])
    tokens = whole("tokens", 1, 2**62)
    return Packed(
        folder=folder,
        dtype=dtype,
        vocab_size=vocab_size,
        end_of_text=whole("end_of_text", 0, vocab_size - 1),
        tokens=tokens,
        validation_tokens=whole("validation_tokens", 0, 2**62),
        documents=whole("documents", 1, tokens),
        source=meta["source"],
        tokenizer_sha256=meta.get("tokenizer_sha256"),
    )
