"""Which documents are for validation: 1 % of them, chosen by their content and so the same in every run.

The order of the files, the number of epochs and the batch size do not matter, and two copies of a document
are on the same side. A document longer than a piece (64 KiB) is judged by its first piece, all of it alike.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.text.documents import Documents
    from plimsoll.data.text.tokenizer import TextTokenizer

HELD_OUT_SHARE = 0.01


def is_held_out(text: str) -> bool:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64


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
