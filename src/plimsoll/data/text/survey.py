"""What is in a data set: counted once for `--epochs`, and shown by `plimsoll inspect`. Nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.data.text.documents import Documents, Piece
from plimsoll.units import KIB, MIB

if TYPE_CHECKING:
    from plimsoll.data.text.tokenizer import TextTokenizer

_BLOCK = 64 * KIB


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Of one epoch. Characters, tokens (end-of-text included) and windows are those for training."""

    documents: int
    held_out_documents: int
    characters: int
    tokens: int
    windows: int


def count_windows(tokens: int, *, seq_len: int, stride: int) -> int:
    """Windows of `seq_len + 1` ids in a stream of `tokens`: a tail shorter than a window is dropped."""
    return max(0, (tokens - seq_len - 1) // stride + 1)


def survey(documents: Documents, tokenizer: TextTokenizer, *, seq_len: int, stride: int | None = None) -> Survey:
    """Encodes everything once and throws it away: about a minute per 100 million tokens."""
    tokens = characters = 0
    ended = {False: 0, True: 0}
    waiting: list[Piece] = []
    size = 0
    for piece in documents.pieces():
        ended[piece.held_out] += piece.last
        if piece.held_out:
            continue
        waiting.append(piece)
        size += len(piece.text)
        if size >= _BLOCK:
            tokens += len(tokenizer.encode_pieces(waiting))
            characters, waiting, size = characters + size, [], 0
    tokens += len(tokenizer.encode_pieces(waiting)) if waiting else 0
    step = seq_len if stride is None else stride
    return Survey(
        documents=ended[False],
        held_out_documents=ended[True],
        characters=characters + size,
        tokens=tokens,
        windows=count_windows(tokens, seq_len=seq_len, stride=step),
    )


def describe_text(documents: Documents, *, scan_bytes: int = 8 * MIB) -> dict[str, Any]:
    """The object that `plimsoll inspect PATH` prints, from the first `scan_bytes` characters of the set."""
    read = ended = longest = length = held_out = 0
    samples: list[str] = []
    complete = True
    at_start = True
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
        "columns": documents.columns(),
        "documents_at_most": documents.count_hint,
        "scanned_characters": read,
        "scanned_documents": ended,
        "scanned_held_out_documents": held_out,
        "scan_complete": complete,
        "mean_characters": round(read / ended) if ended else None,
        "longest_characters": max(longest, length),
        "samples": samples,
    }
