"""Reads the tokens of the held-out documents, which `split.py` chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.text.documents import Documents
    from plimsoll.data.text.tokenizer import TextTokenizer


def collect_held_out(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    seq_len: int,
    max_tokens: int = 1_000_000,
    scan_bytes: int = 256 * MIB,
) -> np.ndarray:
    """Tokens of the held-out documents, each followed by end-of-text: one array of at most `max_tokens`.

    At most `scan_bytes` characters are read for it. The array is empty if no document is held out (a set of
    few documents), or if they have fewer than `seq_len + 1` tokens; the caller says so.
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
