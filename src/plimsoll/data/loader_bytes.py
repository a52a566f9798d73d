"""Predicts the host memory of a text loader, without importing the loader.

`estimate_memory_usage` compares the prediction with the estimate of a published guide (docs/guide-tinystories.md). The
guide counts two arrays, inputs and labels, of the complete data set or of one batch. A loader also holds a shuffle
buffer, batches in flight, the tokenizer and text.
"""

from plimsoll.errors import RecipeError
from plimsoll.units import MIB

_ELEMENT = 160
"""Bytes per window in the shuffle buffer besides its token ids: the array object and two list entries."""
TEXT_IN_FLIGHT = 6 * MIB
"""Bytes of text, encodings and tokenizer code while a loader streams text (notes, "Text in flight")."""
MOST_THREADS = 8
"""Largest number of threads that encode a stream."""
THREAD_BYTES = 8 * MIB
"""Bytes per encoding thread after the first (measured: 9 MiB for the second, 6 for the third and the fourth)."""
ENCODED_BEFORE = 2 * MIB
"""Bytes that replace TEXT_IN_FLIGHT if all text is encoded into memory before the first step."""
READ_FROM_CACHE = 7 * MIB
"""Bytes of Grain's and NumPy's code that the first batch loads, if windows are read from a file of tokens. They replace
TEXT_IN_FLIGHT and `tokenizer_bytes` (measured with batches: 6.2 to 6.7 MiB; notes, "Allowances, measured again")."""
READ_PACKED = 3 * MIB
"""Bytes of Grain's and NumPy's code in the longcontext recipe, besides its windows (measured: 3 to 6.5 MiB; notes,
"Allowances, measured again")."""
SOURCE_FILES = 2 * MIB
"""Further bytes if the source files of Python's standard library are streamed: their paths, and heap memory left by
opening them. The paths of 734 files take 0.5 MiB (notes, "Text in flight")."""

CHUNKS = (1_000, 5_000, 10_000, 50_000)
"""Numbers of sequences for the results `chunk_1000`, `chunk_5000`, ... of `estimate_memory_usage`."""


def tokenizer_bytes(vocab_size: int) -> int:
    """Returns the bytes of a loaded byte-level BPE tokenizer, after the memory used for loading is freed.

    Measured: 1.6 MiB at 4,096 tokens, 5.5 at 16,384, 13.7 at 50,257 (notes, "A tokenizer in memory").
    """
    return 2 * MIB + 340 * vocab_size


def order_bytes(examples: int) -> int:
    """Returns the host bytes of two permutations: as an epoch starts, the previous epoch's is still in memory."""
    return 2 * 4 * examples


def loader_bytes(
    *,
    seq_len: int,
    batch_size: int,
    shuffle_buffer_size: int,
    prefetch: int,
    resident_tokens: int = 0,
    vocab_size: int | None = None,
) -> int:
    """Returns the host bytes of a loader: shuffle buffer, batches in flight, and tokens in memory.

    In flight are the prefetched batches, one that waits to enter the queue, one that the consumer holds, and the
    windows of one under construction. An id takes 2 bytes if `vocab_size` is known and at most 65,536, else 4. The
    tokenizer, text and libraries are not counted.
    """
    id_bytes = 2 if vocab_size is not None and vocab_size <= 2**16 else 4
    window = (seq_len + 1) * id_bytes + _ELEMENT
    buffered = shuffle_buffer_size if shuffle_buffer_size > 1 and not resident_tokens else 0
    batch = 2 * 4 * batch_size * seq_len
    return (buffered + batch_size) * window + (prefetch + 2) * batch + resident_tokens * id_bytes


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
    """Estimates the host memory that loading tokenised text takes, in MiB. Reads no data.

    Args:
        num_sequences: Sequences in the data set.
        seq_len: Tokens per sequence.
        batch_size: Sequences per batch.
        dtype: NumPy dtype of token ids, like "int32", for the sizes of arrays. plimsoll's loader chooses its own.
        shuffle_buffer_size: Sequences in the shuffle buffer of plimsoll's loader.
        prefetch: Batches that plimsoll's loader prepares in advance.
        vocab_size: Tokens in the vocabulary. With at most 65,536, plimsoll's loader stores an id in 2 bytes, else in 4.

    Returns:
        A dict of two estimates in MiB. The first is for plain NumPy arrays of inputs and labels with this `dtype`:
        `full_load_mb` for the complete data set, and `streaming_mb` for one batch. `chunk_1000`, `chunk_5000`,
        `chunk_10000` and `chunk_50000` are for that many sequences. `memory_savings` is the share that streaming
        saves, as text like "99.9%". The second is for plimsoll's loader with its buffers and ignores `dtype`:
        `plimsoll_streaming_mb` for streaming, and `plimsoll_full_load_mb` for all tokens in memory.

    Raises:
        RecipeError: A count is too small, or a batch is larger than the data set.

    Example:
        >>> plimsoll.estimate_memory_usage(100_000, 128, 32)["full_load_mb"]
        97.65625
    """
    import numpy as np

    smallest = min(num_sequences, seq_len, batch_size, vocab_size, shuffle_buffer_size + 1, prefetch + 1)
    if smallest < 1 or batch_size > num_sequences:
        raise RecipeError(
            f"estimate_memory_usage: sizes are 1 or more, shuffle_buffer_size and prefetch 0 or more, and batch_size"
            f" {batch_size:,} at most num_sequences {num_sequences:,}"
        )
    ids = np.dtype(dtype)
    sequence = 2 * seq_len * ids.itemsize
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
