"""The published guide's estimate of the memory that its data takes, and what our loaders really hold.

The guide counts two arrays of ids, inputs and labels, of the whole set or of one batch. A loader holds more than one
batch: a shuffle buffer, batches in flight, the tokenizer and the text it works on (loader_bytes.py).
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from plimsoll.data.loader_bytes import TEXT_IN_FLIGHT, loader_bytes, tokenizer_bytes
from plimsoll.errors import RecipeError
from plimsoll.units import MIB

CHUNKS = (1_000, 5_000, 10_000, 50_000)
"""Sequences of a chunk in the guide's chunked loader."""


def estimate_memory_usage(
    num_sequences: int,
    seq_len: int,
    batch_size: int,
    dtype: str = "int32",
    *,
    shuffle_buffer_size: int = 10_000,
    prefetch: int = 2,
    vocab_size: int = 10_000,
) -> dict[str, float | str]:
    """Returns the guide's estimates under its keys, for its arguments, and two of ours. `_mb` are MiB, as there.

    `full_load_mb`, `streaming_mb`, `memory_savings` (a string like `99.9%`) and `chunk_N` (MiB of N sequences) are the
    guide's. `plimsoll_streaming_mb` and `plimsoll_full_load_mb` are the host memory of our loader, streaming or with
    `--no-streaming`, under the last three arguments; ids are kept there as the vocabulary allows, whatever `dtype`.

    Raises RecipeError for what no loader could hold: counts that are not whole or too small, a `dtype` that holds no
    ids, a batch larger than the set.

    >>> estimate_memory_usage(100_000, 128, 32)["full_load_mb"]
    97.65625
    """
    counts = {"num_sequences": num_sequences, "seq_len": seq_len, "batch_size": batch_size, "vocab_size": vocab_size}
    for name, value in {**counts, "shuffle_buffer_size": shuffle_buffer_size, "prefetch": prefetch}.items():
        least = 1 if name in counts else 0
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
            raise RecipeError(f"estimate_memory_usage: {name} must be a whole number, {least} or more, got {value!r}")
    if batch_size > num_sequences:
        raise RecipeError(
            f"estimate_memory_usage: batch_size {batch_size} is more than the {num_sequences} sequences of the set: no"
            " batch can be filled, and `plimsoll train` refuses it too. Lower batch_size"
        )
    sequence = 2 * seq_len * _id_bytes(dtype)
    full, streaming = num_sequences * sequence, batch_size * sequence
    options = {"seq_len": seq_len, "batch_size": batch_size, "prefetch": prefetch, "vocab_size": vocab_size}
    ours = TEXT_IN_FLIGHT + tokenizer_bytes(vocab_size)
    buffered = min(shuffle_buffer_size, num_sequences)
    tokens = num_sequences * seq_len
    return {
        "full_load_mb": full / MIB,
        "streaming_mb": streaming / MIB,
        "memory_savings": f"{(1 - streaming / full) * 100:.1f}%",
        **{f"chunk_{size}": size * sequence / MIB for size in CHUNKS},
        "plimsoll_streaming_mb": (ours + loader_bytes(shuffle_buffer_size=buffered, **options)) / MIB,
        "plimsoll_full_load_mb": (ours + loader_bytes(shuffle_buffer_size=0, resident_tokens=tokens, **options)) / MIB,
    }


def _id_bytes(dtype: Any) -> int:
    import numpy as np

    try:
        ids = np.dtype(dtype)
    except TypeError:
        ids = None
    if ids is None or ids.kind not in "iu":
        raise RecipeError(
            f"estimate_memory_usage: dtype must name whole numbers of NumPy's, like int32 or uint16, got {dtype!r}"
        )
    return ids.itemsize
