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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
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

SLICE = 2**18
"""Starts of documents that are read at a time, where all of them are."""
SHOWN, WORDS = 3, 40
"""Documents whose beginnings are shown, and tokens of each."""


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
    about: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All of meta.json: a folder that was made by hand may leave out the rest."""

    @property
    def on_disk(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")

    def windows(self, seq_len: int) -> int:
        """Returns the windows of `seq_len + 1` ids, `seq_len` apart: what is left at the end is dropped."""
        return count_windows(self.tokens, seq_len=seq_len, stride=seq_len)

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
    packed = _described(folder)
    for name, tokens in ((TOKENS, packed.tokens), (VALIDATION, packed.validation_tokens)):
        path = folder / name
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
    last = max(0, (packed.tokens if name == TOKENS else packed.validation_tokens) - count)
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


def _described(folder: Path) -> Packed:
    """Reads meta.json; a field that was typed by hand or cut short is refused by its name.

    Where there is none, the DataError says how far the folder is from being a packed one.
    """
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
        about=meta,
    )


def describe_packed(folder: Path | str) -> dict[str, Any]:
    """Returns what `plimsoll inspect` prints. Refuses what is not whole, as a run would.

    Ids are read in `SAMPLES` places; the lengths are those of all documents, a slice of their starts at a time.
    """
    from plimsoll.data.text.tokenizer import load_tokenizer

    packed = open_packed(folder)
    tokenizer = load_tokenizer(packed.folder)
    seen = np.unique(np.concatenate([ids for _, ids in sampled(packed, TOKENS)]))
    all_tokens, characters = packed.tokens + packed.validation_tokens, packed.about.get("characters")
    starts, shortest, longest = packed.starts(), packed.tokens, 0
    ends = [*starts[: SHOWN + 1].tolist(), packed.tokens]
    shown = [(first, min(end - first, WORDS)) for first, end in pairwise(ends)][:SHOWN]
    for first in range(0, len(starts), SLICE):
        end = [packed.tokens] if first + SLICE >= len(starts) else []
        lengths = np.diff(starts[first : first + SLICE + 1], append=end)
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
    return {
        "path": str(packed.folder),
        "bytes": sum(path.stat().st_size for path in packed.folder.iterdir() if path.is_file()),
        "source": packed.source,
        "tokens": packed.tokens,
        "documents": packed.documents,
        "validation_tokens": packed.validation_tokens,
        "validation_documents": packed.about.get("validation_documents"),
        "held_out_share": packed.validation_tokens / all_tokens,
        "document_tokens": {
            "shortest": shortest,
            "mean": packed.tokens / packed.documents,
            "longest": longest,
        },
        "dtype": packed.dtype,
        "vocab_size": packed.vocab_size,
        "tokenizer_vocab_size": tokenizer.size,
        "end_of_text": packed.end_of_text,
        "characters_per_token": characters / all_tokens if isinstance(characters, int) else None,
        "sampled_tokens": sum(len(ids) for name in (TOKENS, VALIDATION) for _, ids in sampled(packed, name)),
        "sampled_different_ids": len(seen),
        "sampled_largest_id": int(seen[-1]),
        "samples": [tokenizer.decode(packed.read(TOKENS, first, count)) for first, count in shown],
    }
