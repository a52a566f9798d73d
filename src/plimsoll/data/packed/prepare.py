"""`plimsoll prepare longcontext`: text tokenised once, into a packed folder (data/packed/packed.py).

Documents are read by one thread, encoded by all cores or a cluster, and written in their order. Memory holds the blocks
on their way. What was interrupted continues after the last mark: the same documents give the same folder, byte for
byte.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

from plimsoll.data.disk import free_bytes
from plimsoll.data.packed.encoding import Encoder, encoded, in_threads, on_ray, require_reachable
from plimsoll.data.packed.options import DEFAULT_VOCABULARY, TextSet
from plimsoll.data.packed.packed import META, TOKENS, WIDEST, open_packed
from plimsoll.data.packed.writer import PROGRESS, TextFolder, require_same
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import File
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.streams import COMPRESSED, PACKED_TO
from plimsoll.data.text.tokenizer import TextTokenizer, load_tokenizer, tokenizer_vocab_size, train_byte_bpe
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import MIB, format_bytes

METHOD = 1
"""Version of splitting, holding out and packing: a folder of another one is not continued."""
MARK_SECONDS = 2.0
LOOKED_AT = MIB
"""Characters that are encoded to estimate how much room all of it takes."""

Progress = Callable[[float | None, str], None]
"""Called with the share that is done, None where it is unknown, and with words."""
Say = Callable[[str], None]


def build(
    options: TextSet,
    out: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    progress: Progress = lambda share, words: None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Packs the text, or what of it is missing, and returns what `prepare --json` prints."""
    if workers is not None and workers < 1:
        raise RecipeError(f"--workers must be 1 or more, got {workers}")
    started, made_with = time.perf_counter(), _made_with(options)
    out = out.expanduser().absolute()
    if (out / META).is_file():
        require_same(out, open_packed(out).about.get("made_with") or {}, made_with)
        (out / PROGRESS).unlink(missing_ok=True)
        return _summary(out, tokens_before=None, seconds=0.0)
    if ray is not None:
        require_reachable(ray)
    documents = open_documents(
        options.dataset_id,
        config=options.dataset_config,
        split=options.split,
        text_column=options.text_column,
        max_examples=options.max_examples,
    )
    say(f"data: {documents.describe()}")
    with TextFolder(out, made_with) as folder:
        tokenizer = folder.kept_tokenizer
        if tokenizer is None and options.tokenizer is not None:
            tokenizer = load_tokenizer(options.tokenizer)
        elif tokenizer is None:
            tokenizer = train_byte_bpe(documents, options.vocab_size or DEFAULT_VOCABULARY)
            say(f"tokenizer: byte-level BPE of {tokenizer.size:,} tokens, trained on the beginning of the text")
        require_room(documents, tokenizer, folder)
        folder.begin(tokenizer)
        tokens_before = folder.counts.tokens
        if tokens_before:
            say(f"continued after {folder.counts.documents:,} documents, {tokens_before:,} tokens")
        if ray is None:
            encoding = in_threads(tokenizer, workers=workers)
        else:
            encoding = on_ray(tokenizer, address=ray, workers=workers)
        with encoding as encoder:
            fill(folder, documents, encoder, progress)
        folder.finish(source=f"{documents.name}: {documents.describe()}")
    return _summary(out, tokens_before=tokens_before, seconds=time.perf_counter() - started)


def fill(folder: TextFolder, documents: Documents, encoder: Encoder, progress: Progress) -> None:
    """Appends what the folder lacks of the documents, with a mark every few seconds."""
    started = marked = time.perf_counter()
    extent = Extent(documents)
    for pieces, ids, lengths in encoded(documents.pieces(folder.position), encoder):
        folder.append(pieces, ids, lengths)
        if (now := time.perf_counter()) - marked > MARK_SECONDS:
            folder.mark(seconds=now - started)
            marked = now
            words = f"{folder.counts.tokens:,} tokens of {folder.counts.documents:,} documents"
            progress(extent.share(folder.position), words)


def _made_with(options: TextSet) -> dict[str, Any]:
    """Returns what the folder follows from; a tokenizer is known by its content, not by the name of its file."""
    made_with = dataclasses.asdict(options) | {"vocab_size": options.vocab_size or DEFAULT_VOCABULARY, "method": METHOD}
    if options.tokenizer is not None:
        size, largest = tokenizer_vocab_size(options.tokenizer), max(WIDEST.values())
        if size > largest:  # before it is loaded: the library takes minutes over such ids
            raise DataError(
                f"--tokenizer {options.tokenizer} has ids up to {size - 1:,}, and the largest vocabulary that is packed"
                f" has {largest:,}: choose another"
            )
        content = load_tokenizer(options.tokenizer).to_json()
        made_with |= {"tokenizer": hashlib.sha256(content.encode()).hexdigest(), "vocab_size": None}
    return made_with


def require_room(documents: Documents, tokenizer: TextTokenizer, folder: TextFolder) -> None:
    """Raises DataError where the disk has no room for the text, as far as its beginning tells."""
    expected = expected_bytes(documents, tokenizer)
    itemsize = 2 if tokenizer.size <= 2**16 else 4
    written = (folder.counts.tokens + folder.counts.validation_tokens) * itemsize
    free = free_bytes(folder.out / TOKENS)
    if expected is not None and expected - written > free:
        raise DataError(
            f"{documents.name} takes about {format_bytes(expected - written)} of ids, and {format_bytes(free)} are free"
            f" at {folder.out.parent}: name an --out on another disk, or take less of it with --max-examples"
        )


def expected_bytes(documents: Documents, tokenizer: TextTokenizer) -> int | None:
    """Returns about how many bytes of ids the text has, as far as its beginning tells; None where nothing does."""
    texts, characters, share, extent = [], 0, None, Extent(documents)
    for piece in documents.pieces():
        texts.append(piece.text)
        characters += len(piece.text)
        share = extent.share(piece.position)
        if share is None:
            return None
        if characters >= LOOKED_AT:
            break
    if not share:
        return None
    _, lengths = tokenizer.encode_each(texts)
    return round(int(lengths.sum()) / share) * (2 if tokenizer.size <= 2**16 else 4)


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


def _summary(out: Path, *, tokens_before: int | None, seconds: float) -> dict[str, Any]:
    packed = open_packed(out)
    added = 0 if tokens_before is None else packed.tokens - tokens_before
    return {
        "path": str(out),
        "examples": packed.documents + packed.about["validation_documents"],
        "tokens": packed.tokens,
        "tokens_before": packed.tokens if tokens_before is None else tokens_before,
        "finished_before": tokens_before is None,
        "validation_tokens": packed.validation_tokens,
        "documents": packed.documents,
        "validation_documents": packed.about["validation_documents"],
        "characters": packed.about["characters"],
        "vocab_size": packed.vocab_size,
        "dtype": packed.dtype,
        "seconds": seconds,
        "tokens_per_second": added / seconds if seconds else None,
        "bytes": sum(entry.stat().st_size for entry in os.scandir(out)),
    }
