"""A packed folder: text that was tokenised once, as one flat file of ids. `plimsoll prepare longcontext` makes it.

    tokens.bin       the documents one after another, end-of-text after each: little-endian uint16, or uint32 where the
                     vocabulary is larger than 65,536
    validation.bin   the same of the held-out documents (held_out.py)
    documents.npy    int64, where each document starts in tokens.bin
    tokenizer.json   what made the ids
    meta.json        the sizes of all of them; written last, so a folder without it is not finished

Opening it reads some kilobytes. Windows are read as they are needed (packed_windows.py), and nothing of the file stays
in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.data.loader_bytes import RUN_BYTES, RUNS_MIXED
from plimsoll.data.text.survey import count_windows
from plimsoll.data.token_table import loaded
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import KIB

if TYPE_CHECKING:
    pass

FORMAT = 1
META, TOKENS, VALIDATION, DOCUMENTS, TOKENIZER = (
    "meta.json",
    "tokens.bin",
    "validation.bin",
    "documents.npy",
    "tokenizer.json",
)
WIDEST = {"uint16": 2**16, "uint32": 2**31}
"""Types of an id, and the largest vocabulary in each: JAX indexes with int32."""
SAMPLES, SAMPLE_BYTES = 64, 4 * KIB
"""Places of the file whose ids are looked at when it is opened, and how much of each."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    folder: Path
    dtype: str
    """Of an id: uint16 or uint32."""
    vocab_size: int
    end_of_text: int
    """The id after every document."""
    tokens: int
    """To train on, end-of-text included."""
    validation_tokens: int
    documents: int
    """To train on."""
    source: str
    """What was packed, in words."""
    tokenizer_sha256: str | None = None
    """Of tokenizer.json, which may be exchanged by mistake; None for a folder that was made by hand."""

    @property
    def on_disk(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")

    def windows(self, seq_len: int) -> int:
        """Of `seq_len + 1` ids, `seq_len` apart: what is left at the end is dropped."""
        return count_windows(self.tokens, seq_len=seq_len, stride=seq_len)

    def length(self, name: str) -> int:
        """In tokens, of `tokens.bin` or `validation.bin`."""
        return self.tokens if name == TOKENS else self.validation_tokens

    def starts(self) -> np.ndarray:
        """Of the documents, memory-mapped."""
        starts = loaded(self.folder / DOCUMENTS, mapped=True)
        if starts.shape != (self.documents,) or starts.dtype != np.int64:
            raise DataError(
                f"{self.folder / DOCUMENTS} holds {starts.dtype} of shape {starts.shape}, and {META} says"
                f" {self.documents:,} documents: they are not of the same folder. Prepare it again"
            )
        return starts

    def read(self, name: str, first: int, count: int) -> np.ndarray:
        """At most `count` ids of `tokens.bin` or `validation.bin`."""
        ids = np.fromfile(self.folder / name, self.on_disk, count, offset=first * self.on_disk.itemsize)
        return ids.astype(self.dtype, copy=False)

    def require_ids(self, ids: np.ndarray, *, name: str, at: int) -> None:
        """`at`: where in the file the first of them stands."""
        if ids.size and int(ids.max()) >= self.vocab_size:
            wrong = int(np.argmax(ids >= self.vocab_size))
            raise DataError(
                f"{self.folder / name} has the id {int(ids[wrong]):,} at token {at + wrong:,}, and the vocabulary of"
                f" {META} has {self.vocab_size:,} (0 to {self.vocab_size - 1:,}): it was packed with another tokenizer,"
                " or is damaged. Prepare it again"
            )


def open_packed(folder: str | Path) -> Packed:
    """DataError where the folder is none, not finished, cut short, or has ids outside of its vocabulary."""
    folder = Path(folder).expanduser()
    packed = _described(folder, _meta(folder))
    for name in (TOKENS, VALIDATION):
        _require_length(folder / name, packed.length(name), packed)
        for first, ids in sampled(packed, name):
            packed.require_ids(ids, name=name, at=first)
    packed.starts()
    _require_tokenizer(packed)
    return packed


def sampled(packed: Packed, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Where in a file, and ids from there on: the beginning and the end among them."""
    count = SAMPLE_BYTES // packed.on_disk.itemsize
    last = max(0, packed.length(name) - count)
    for first in sorted({last * place // (SAMPLES - 1) for place in range(SAMPLES)}):
        yield first, packed.read(name, first, count)


def is_packed(folder: str | Path) -> bool:
    """Whether it looks like one, finished or not."""
    folder = Path(folder).expanduser()
    return (folder / META).is_file() or (folder / TOKENS).is_file()


def packed_bytes(*, seq_len: int, batch_size: int, prefetch: int, itemsize: int) -> int:
    """Host bytes of the loader, whatever the size of the file: the runs that are mixed, and batches in flight.

    Those are the prefetched ones, one that waits to enter the queue, one that is held by the consumer and one that is
    being put together.
    """
    run = run_windows(seq_len, itemsize)
    pool = RUNS_MIXED * (run * seq_len + 1) * itemsize if run > 1 else 0  # one window is read into the batch
    return pool + (prefetch + 3) * batch_size * (seq_len + 1) * itemsize


def run_windows(seq_len: int, itemsize: int) -> int:
    """Neighbouring windows that are read at once."""
    return max(1, RUN_BYTES // (seq_len * itemsize))


def require_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        least = 0 if name in ("prefetch", "workers", "seed") else 1
        if value < least:
            raise RecipeError(f"--{name.replace('_', '-')} must be {least} or more, got {value}")


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / META
    if not path.is_file():
        if not folder.exists():
            raise DataError(f"there is no folder {folder}: `plimsoll prepare longcontext --out {folder}` makes one")
        if (folder / TOKENS).exists():
            raise DataError(
                f"{folder} is not finished: it has no {META}, which is written last. Run the same `plimsoll prepare"
                " longcontext` again to complete it"
            )
        raise DataError(
            f"{folder} is no packed folder: it has no {META}. `plimsoll prepare longcontext --dataset-id TEXT --out"
            " packed/` makes one of a text"
        )
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())[:120]
        raise DataError(f"{path} is not JSON ({reason}): it is damaged. Prepare the folder again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}, not an object: it is damaged. Prepare it again")
    return found


def _described(folder: Path, meta: dict[str, Any]) -> Packed:
    """Every field is looked at: what is typed by hand or cut short is refused by its name."""

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


def _require_length(path: Path, tokens: int, packed: Packed) -> None:
    expected = tokens * packed.on_disk.itemsize
    if not path.is_file():
        raise DataError(f"there is no {path.name} in {packed.folder}: the folder is not whole. Prepare it again")
    size = path.stat().st_size
    if size != expected:
        what = "it was cut short" if size < expected else f"more was written to it than {META} knows of"
        raise DataError(
            f"{path} has {size:,} bytes, and {META} says {tokens:,} tokens of {packed.dtype}, {expected:,} bytes:"
            f" {what}. Copy the folder again, or prepare it again"
        )


def _require_tokenizer(packed: Packed) -> None:
    path = packed.folder / TOKENIZER
    if not path.is_file():
        raise DataError(f"there is no {TOKENIZER} in {packed.folder}: nobody could read its ids. Prepare it again")
    expected = packed.tokenizer_sha256
    if expected is not None and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise DataError(
            f"{path} is not the tokenizer that {packed.folder} was packed with: its SHA-256 is another than in {META}."
            " Put the old one back, or prepare the folder again with this one"
        )
