"""Passes over a text: counts for `--epochs`, facts for `plimsoll inspect`, and the held-out tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.data.text.documents import HELD_OUT_SHARE, Documents, Piece
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Counts of the training documents of a text. Tokens include end-of-text."""

    documents: int
    tokens: int
    windows: int


def count_windows(tokens: int, *, seq_len: int, stride: int) -> int:
    """Returns the number of windows of `seq_len + 1` ids in `tokens` ids. A tail shorter than a window is dropped."""
    return max(0, (tokens - seq_len - 1) // stride + 1)


def survey(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    seq_len: int,
    stride: int | None = None,
    enough: int | None = None,
    expected: int | None = None,
) -> Survey:
    """Counts documents, tokens and windows by encoding the text, with a thread per core. Keeps no tokens.

    On two cores, 100 million tokens take half a minute.

    Args:
        documents: The text.
        tokenizer: The text's tokenizer.
        seq_len: Tokens of a window.
        stride: Tokens from one window to the next; by default `seq_len`.
        enough: Number of windows at which counting ends; None to count all.
        expected: Number of documents for which the counts are extrapolated; None for exact counts.
    """
    from plimsoll.data.packed.encoding import encoded, in_threads

    ended = tokens = windows = 0

    def training() -> Iterator[Piece]:
        nonlocal ended
        for piece in documents.pieces():
            if not piece.held_out:
                ended += piece.last
                yield piece

    with in_threads(tokenizer, workers=None) as encoder:
        for _, ids, _ in encoded(training(), encoder):
            tokens += len(ids)
            windows = count_windows(tokens, seq_len=seq_len, stride=stride or seq_len)
            if enough is not None and windows >= enough:
                break
    counts = Survey(documents=ended, tokens=tokens, windows=windows)
    return counts if expected is None else expected_counts(counts, expected)


def expected_counts(beginning: Survey, documents: int) -> Survey:
    """Returns the counts of the complete text, extrapolated from its beginning.

    Args:
        beginning: Counts of the text's first documents.
        documents: Number of all documents of the text, including those held out.
    """
    for_training = round((1 - HELD_OUT_SHARE) * documents)
    times = max(1.0, for_training / max(1, beginning.documents))
    return Survey(
        documents=for_training, tokens=round(times * beginning.tokens), windows=round(times * beginning.windows)
    )


def describe_text(documents: Documents, *, scan_bytes: int = 8 * MIB) -> dict[str, Any]:
    """Returns the facts that `plimsoll inspect PATH` prints, from the first `scan_bytes` characters."""
    read = ended = longest = length = held_out = 0
    samples: list[str] = []
    complete, at_start = True, True
    for piece in documents.pieces():
        if at_start and len(samples) < 3:
            samples.append(piece.text[:200])
        at_start = piece.last
        read, length = read + len(piece.text), length + len(piece.text)
        if piece.last:
            ended, held_out, longest, length = ended + 1, held_out + piece.held_out, max(longest, length), 0
        if read >= scan_bytes:
            complete = False
            break
    return {
        "name": documents.name,
        "description": documents.describe(),
        "files": len(documents.files),
        "bytes": documents.bytes,
        "columns": documents.files[0].columns() if documents.files else None,
        "scanned_characters": read,
        "scanned_documents": ended,
        "scanned_held_out_documents": held_out,
        "scan_complete": complete,
        "mean_characters": round(read / ended) if ended else None,
        "longest_characters": max(longest, length),
        "samples": samples,
    }


def collect_held_out(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    seq_len: int,
    max_tokens: int = 1_000_000,
    scan_bytes: int = 256 * MIB,
) -> np.ndarray:
    """Returns the tokens of the held-out documents, each followed by end-of-text: one array of at most `max_tokens`.

    Reads about `scan_bytes` characters at most. The array is empty if no document is held out (as in small data sets),
    or if the held-out documents have fewer than `seq_len + 1` tokens; the caller must report this.
    """
    kept, tokens, characters = [], 0, 0
    for piece in documents.pieces():
        characters += len(piece.text)
        if piece.held_out:
            kept.append(tokenizer.encode_pieces([piece]))
            tokens += len(kept[-1])
        if tokens >= max_tokens or characters >= scan_bytes:
            break
    if tokens < seq_len + 1:
        return np.empty(0, np.int32)
    return np.concatenate(kept)[:max_tokens]
