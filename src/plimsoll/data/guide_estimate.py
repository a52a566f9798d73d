"""The published guide's estimate of the memory that its data takes, and beside it what our loaders really hold.

The guide counts two arrays of ids, inputs and labels, of the whole set or of one batch. A loader holds more than one
batch: a shuffle buffer, batches in flight, the tokenizer and the text it works on (loader_bytes.py).
"""

from __future__ import annotations

from plimsoll.data.loader_bytes import TEXT_IN_FLIGHT, loader_bytes, tokenizer_bytes
from plimsoll.errors import RecipeError
from plimsoll.units import MIB

CHUNKS = (1_000, 5_000, 10_000, 50_000)
"""Sequences, of the guide's chunked loader."""


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
    """The guide's function: the same arguments, the same keys, and two of ours. `_mb` are MiB, as there.

    `full_load_mb`, `streaming_mb`, `memory_savings` (a string like `99.9%`) and `chunk_N` (MiB of N sequences) are the
    guide's. `plimsoll_streaming_mb` and `plimsoll_full_load_mb` are the host memory of our loader, streaming or with
    `--no-streaming`, under the last three arguments; ids are kept there as the vocabulary allows, whatever `dtype`.

    >>> estimate_memory_usage(100_000, 128, 32)["full_load_mb"]
    97.65625
    """
    import numpy as np

    for name, value in {"num_sequences": num_sequences, "seq_len": seq_len, "batch_size": batch_size}.items():
        if value < 1:
            raise RecipeError(f"estimate_memory_usage: {name} must be 1 or more, got {value}")
    sequence = 2 * seq_len * np.dtype(dtype).itemsize
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
