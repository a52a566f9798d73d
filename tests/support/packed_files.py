"""Packed folders for tests, written by NumPy alone: what the format says, and nothing of the code that makes them."""

import json
import shutil

import numpy as np

from plimsoll.files.manifest import finish


def write_packed(
    folder,
    tokens,
    *,
    validation=(),
    vocab_size=300,
    end_of_text=256,
    dtype="uint16",
    shard_tokens=None,
    characters=0,
    tokenizer=b"{}",
):
    """`tokens` as given, in shards of `shard_tokens`; a document ends where they have end-of-text, or at their end."""
    shutil.rmtree(folder, ignore_errors=True)
    tokens = np.asarray(tokens, np.int64)
    validation = np.asarray(validation, np.int64)
    cuts = range(shard_tokens, len(tokens), shard_tokens) if shard_tokens else []
    shards = []
    for number, part in enumerate(np.split(tokens, list(cuts))):
        place = folder / f"shard_{number:05}"
        place.mkdir(parents=True)
        held_out = validation if number == 0 else validation[:0]
        for name, ids in (("tokens", part), ("validation", held_out)):
            ids.astype(np.dtype(dtype).newbyteorder("<")).tofile(place / f"{name}.bin")
        shards.append({"tokens": len(part), "validation_tokens": len(held_out)})
    shards[0]["characters"] = characters
    shards[0]["documents"] = 1 + int((tokens[:-1] == end_of_text).sum())
    (folder / "tokenizer.json").write_bytes(tokenizer)
    counts = {
        "dtype": dtype,
        "vocab_size": vocab_size,
        "end_of_text": end_of_text,
        "source": "a test",
        "shards": shards,
    }
    meta = {"made_with": {"files": {}, "options": {}}, "counts": counts}
    (folder / "meta.json").write_text(json.dumps(meta))
    finish(folder)
    return folder
