"""Description of a packed folder for `plimsoll inspect`.

Ids are read in 64 places; the lengths are those of all documents, a slice of their starts at a time.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.packed.packed import META, TOKENS, VALIDATION, Packed, open_packed, sampled
from plimsoll.data.text.tokenizer import load_tokenizer

SLICE = 2**18
"""Starts of documents that are read at a time."""
SHOWN, WORDS = 3, 40
"""Documents whose beginnings are shown, and tokens of each."""


def describe_packed(folder: Path | str) -> dict[str, Any]:
    """Returns what `plimsoll inspect` prints. Refuses what is not whole, as a run would."""
    packed = open_packed(folder)
    meta = json.loads((packed.folder / META).read_text("utf-8"))
    tokenizer = load_tokenizer(packed.folder)
    seen = np.unique(np.concatenate([ids for _, ids in sampled(packed, TOKENS)]))
    all_tokens, characters = packed.tokens + packed.validation_tokens, meta.get("characters")
    ends = [*packed.starts()[: SHOWN + 1].tolist(), packed.tokens]
    shown = [(first, min(end - first, WORDS)) for first, end in pairwise(ends)][:SHOWN]
    return {
        "path": str(packed.folder),
        "bytes": sum(path.stat().st_size for path in packed.folder.iterdir() if path.is_file()),
        "source": packed.source,
        "tokens": packed.tokens,
        "documents": packed.documents,
        "validation_tokens": packed.validation_tokens,
        "validation_documents": meta.get("validation_documents"),
        "held_out_share": packed.validation_tokens / all_tokens,
        "document_tokens": _lengths(packed),
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


def _lengths(packed: Packed) -> dict[str, float]:
    """Returns the lengths of the documents in tokens, end-of-text included."""
    starts, shortest, longest = packed.starts(), packed.tokens, 0
    for first in range(0, len(starts), SLICE):
        ends = np.append(starts[first + 1 : first + SLICE + 1], packed.tokens)[: len(starts[first : first + SLICE])]
        lengths = ends - starts[first : first + SLICE]
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
    return {"shortest": shortest, "mean": packed.tokens / packed.documents, "longest": longest}
