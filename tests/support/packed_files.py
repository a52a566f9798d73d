"""Packed folders for tests, written by NumPy alone: what the format says, and nothing of the code that makes them."""

import json

import numpy as np


def write_packed(folder, tokens, *, validation=(), vocab_size=300, end_of_text=256, dtype="uint16", **others):
    """`tokens` as given; a document ends where they have end-of-text, or at their end."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.asarray(tokens)
    for name, ids in (("tokens", tokens), ("validation", np.asarray(validation, int))):
        ids.astype(np.dtype(dtype).newbyteorder("<")).tofile(folder / f"{name}.bin")
    ends = np.flatnonzero(tokens[:-1] == end_of_text) + 1
    starts = np.concatenate([[0], ends]).astype(np.int64)
    np.save(folder / "documents.npy", starts)
    (folder / "tokenizer.json").write_text("{}")
    meta = {
        "format": 1,
        "dtype": dtype,
        "vocab_size": vocab_size,
        "end_of_text": end_of_text,
        "tokens": len(tokens),
        "validation_tokens": len(validation),
        "documents": len(starts),
        "source": "a test",
    }
    (folder / "meta.json").write_text(json.dumps(meta | others))
    return folder
