"""Tokenises text into a packed folder, for `plimsoll prepare longcontext` and for the cache.

One thread reads the documents, all cores or a Ray cluster encode them, and the ids are written in order. Memory holds
only the blocks in progress. Interrupted work continues after the last complete shard. The same documents give the same
folder, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from plimsoll.data.packed.encoding import Encoder, in_threads, on_ray, require_reachable
from plimsoll.data.packed.packed import TOKENIZER, id_type, open_packed
from plimsoll.data.packed.shards import Packing, Progress
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.kept import trained_tokenizer
from plimsoll.data.text.opening import expected_bytes
from plimsoll.data.text.options import DEFAULT_VOCABULARY, TextSet
from plimsoll.data.text.tokenizer import TextTokenizer, load_tokenizer
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, facts_of
from plimsoll.files.folder import free_bytes, made, partial_of
from plimsoll.units import format_bytes

CONFIG = "tokenizer_config.json"
"""File from which `transformers` reads the end-of-text token."""
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
    """Tokenises the text, or its missing shards, into `out`. Returns the facts that `prepare --json` prints."""
    if workers is not None and workers < 1:
        raise RecipeError(f"--workers must be 1 or more, got {workers}")
    if ray is not None:
        require_reachable(ray)
    started = time.perf_counter()
    out = out.expanduser().absolute()

    # Open the tokenizer and the text.
    tokenizer = None if options.tokenizer is None else load_tokenizer(options.tokenizer)
    documents = options.documents
    say(f"data: {documents.describe()}")
    if tokenizer is None:
        tokenizer = trained_tokenizer(documents, options.vocab_size or DEFAULT_VOCABULARY, say)
    made_with = tokens_of(documents, tokenizer, options=options)

    # Tokenise the missing shards.
    packing = None

    def make(folder: Path) -> dict[str, Any]:
        nonlocal packing
        _require_room(documents, tokenizer, out)
        encoding = in_threads(tokenizer, workers=workers) if ray is None else on_ray(tokenizer, ray, workers=workers)
        packing = pack(folder, documents, tokenizer, made_with, encoding, progress)
        return counts_of(packing, tokenizer)

    made(out, made_with, make, continues=True, say=say)
    return _summary(out, packing, seconds=time.perf_counter() - started)


def tokens_of(
    documents: Documents, tokenizer: TextTokenizer, *, options: TextSet | None = None, exact: bool = False
) -> Facts:
    """Returns the facts that determine the ids of a text: its files, the tokenizer and `options`.

    The facts identify the folder of ids. With `exact`, they include modification times of large files.
    """
    named = {} if options is None else asdict(replace(options, tokenizer=None))
    return documents.facts(
        exact=exact,
        tokenizer_sha256=_sha256(tokenizer),
        end_of_text=tokenizer.end_of_text,
        **named,
    )


def pack(
    folder: Path,
    documents: Documents,
    tokenizer: TextTokenizer,
    made_with: Facts,
    encoding: AbstractContextManager[Encoder],
    progress: Progress,
) -> Packing:
    """Fills a folder with shards of token ids. Complete shards are kept.

    Raises:
        DataError: The text changed meanwhile, or no document is left for training.
        StoppedError: The disk became full.
    """
    tokenizer.save(folder / TOKENIZER)
    (folder / CONFIG).write_text(json.dumps({"eos_token": tokenizer.end_of_text_token}), "utf-8")
    with encoding as encoder:
        packing = Packing(
            folder=folder,
            made_with=made_with,
            documents=documents,
            encoder=encoder,
            dtype=id_type(tokenizer.size),
            progress=progress,
        )
        packing.run()

    now = facts_of(documents.paths or [])
    if now.files != made_with.files:
        changes = Facts(files=made_with.files).difference(Facts(files=now.files))
        raise DataError(
            f"{documents.name} changed while it was tokenised, {changes}. Run the same command again when nothing"
            f" writes there; if that fails, remove {folder} first"
        )
    if not sum(shard.tokens for shard in packing.shards):
        held_out = sum(shard.validation_documents for shard in packing.shards)
        raise DataError(
            f"{documents.name}: none of its {held_out:,} documents is left to train on, all are held out for"
            " validation. Name a larger data set"
        )
    return packing


def counts_of(packing: Packing, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Returns the entries of meta.json for a packed folder."""
    documents = packing.documents
    return {
        "dtype": packing.dtype.name,
        "vocab_size": tokenizer.size,
        "end_of_text": tokenizer.end_of_text,
        "source": f"{documents.name}: {documents.describe()}",
        "shards": [asdict(shard) for shard in packing.shards],
    }


def _require_room(documents: Documents, tokenizer: TextTokenizer, out: Path) -> None:
    """Raises DataError if the disk has no room for the text's ids, estimated from its size."""
    written = sum(path.stat().st_size for path in partial_of(out).rglob("*.bin"))
    missing = expected_bytes(documents, tokenizer) - written
    free = free_bytes(out)
    if missing > free:
        raise DataError(
            f"{documents.name} takes about {format_bytes(missing)} of ids, and {format_bytes(free)} are free"
            f" at {out.parent}: name an --out on another disk, or take less of it with --max-examples"
        )


def _sha256(tokenizer: TextTokenizer) -> str:
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def _summary(out: Path, packing: Packing | None, *, seconds: float) -> dict[str, Any]:
    packed = open_packed(out)
    tokens_before = packed.tokens if packing is None else packing.tokens_before
    return packed.sizes() | {
        "examples": packed.documents + packed.validation_documents,
        "tokens_before": tokens_before,
        "finished_before": packing is None,
        "characters": packed.characters,
        "seconds": seconds,
        "tokens_per_second": (packed.tokens - tokens_before) / seconds,
    }
