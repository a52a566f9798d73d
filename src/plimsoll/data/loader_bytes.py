"""Host memory of a text loader, known before the loader exists and without importing it."""

from plimsoll.units import KIB, MIB

_ELEMENT = 160
"""Bytes of a window in the shuffle buffer besides its ids: the array object and two list entries."""
TEXT_IN_FLIGHT = 8 * MIB
"""Bytes of text, its encodings and the tokenizer's code while the loader runs (docs/log.md, "Components")."""
ENCODED_BEFORE = 2 * MIB
"""Bytes instead of these where the whole set was encoded before the first step."""
SOURCE_FILES = 5 * MIB
"""Further bytes of text that is read from thousands of files: their paths, and what opening them leaves."""
RUN_BYTES, RUNS_MIXED = 64 * KIB, 64
"""Bytes of a packed file that are read at once, and how many such runs are mixed."""


def tokenizer_bytes(vocab_size: int) -> int:
    """Returns the bytes of a loaded byte-level BPE: 5 MiB at 4,096 tokens, 30 MiB at 50,257 (measured)."""
    return 3 * MIB + 600 * vocab_size


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
