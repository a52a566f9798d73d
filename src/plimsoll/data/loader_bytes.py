"""Host memory of a text loader, known before the loader exists and without importing it.

`estimate_memory_usage` compares it with the published guide's estimate, which counts two arrays of ids, inputs and
labels, of the whole set or of one batch. A loader holds more than one batch: a shuffle buffer, batches in flight, the
tokenizer and the text it works on.
"""

from plimsoll.errors import RecipeError
from plimsoll.units import MIB

_ELEMENT = 160
"""Bytes of a window in the shuffle buffer besides its ids: the array object and two list entries."""
TEXT_IN_FLIGHT = 6 * MIB
"""Bytes of text, its encodings and the tokenizer's code while the loader runs (notes, "Text in flight")."""
MOST_THREADS = 8
"""Threads that encode a stream at most."""
THREAD_BYTES = 8 * MIB
"""Bytes of each further thread that encodes (measured: 9 MiB for the second, 6 for the third and the fourth)."""
ENCODED_BEFORE = 2 * MIB
"""Bytes instead of these where the whole set was encoded before the first step."""
READ_FROM_CACHE = 7 * MIB
"""Bytes instead of these where windows are read from a file of tokens: code of Grain and NumPy that comes back with the
first batch (6.2 to 6.7 MiB measured, batches included: notes, "Allowances, measured again")."""
READ_PACKED = 3 * MIB
"""Bytes of the same code that windows of a packed file bring back beside their own (3 to 6.5 MiB measured, notes,
"Allowances, measured again")."""
SOURCE_FILES = 2 * MIB
"""Further bytes when the standard library's source files are streamed: their paths, and what opening them leaves. The
paths of 734 files keep 0.5 MiB (notes, "Text in flight")."""

CHUNKS = (1_000, 5_000, 10_000, 50_000)
"""Sequences of a chunk in the guide's chunked loader."""


def tokenizer_bytes(vocab_size: int) -> int:
    """Returns the bytes of a byte-level BPE once what loading it left is given back.

    Measured: 1.6 MiB at 4,096 tokens, 5.5 at 16,384, 13.7 at 50,257 (notes, "A tokenizer in memory").
    """
    return 2 * MIB + 340 * vocab_size


def order_bytes(examples: int) -> int:
    """Returns the host bytes of the permutation of an epoch, and of the one before where another begins."""
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
    """Returns the host bytes of a loader: shuffle buffer, batches in flight, and tokens that stay in memory.

    In flight are the prefetched batches, one that waits to enter the queue, and one that the consumer holds,
    with the windows of one that is being built. Ids are kept in 2 bytes where `vocab_size` is known
    and at most 65,536. The tokenizer, its text and the libraries belong to the floor of the process.
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
        A dict of two estimates, all in MiB. The first is of plain NumPy arrays of inputs and labels with this `dtype`:
        `full_load_mb` for the whole data set, and `streaming_mb` for one batch. `chunk_1000`, `chunk_5000`,
        `chunk_10000` and `chunk_50000` are for that many sequences. `memory_savings` is the share that streaming
        saves, as text like "99.9%". The second is of plimsoll's loader with its buffers, which ignores `dtype`:
        `plimsoll_streaming_mb` if it reads tokens from disk, and `plimsoll_full_load_mb` if it holds all in memory.

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
