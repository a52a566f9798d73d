"""Batches of `input_ids` and `labels`, shuffled and prefetched, with the position of the consumer in JSON.

Streamed (`text_loader`), memory holds the shuffle buffer and the prefetched batches, and nothing of the data
set (loader_bytes.py). Grain batches and prefetches; a batch that was prefetched and not yet taken is
read again after `restore`.

With `--no-streaming` (`memory_loader`) the tokens are read once into one array, and windows of all of it are sampled at
random: 2 bytes a token (4 for vocabularies above 65,536), no shuffle buffer. Use it where the tokens fit into the
budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import grain
import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.batch_source import BatchSource, Permuted
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.shuffle import BufferShuffle
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.data.text.windows import TokenWindows, token_blocks
from plimsoll.errors import DataError
from plimsoll.types import IGNORE
from plimsoll.units import MIB


class TextLoader(BatchSource):
    """A source of the batches of a text."""

    other_kind = "a stream and --no-streaming differ, and so do shuffled and not"


def make_batch(windows: Sequence[np.ndarray], *, batch_size: int, seq_len: int) -> dict[str, np.ndarray]:
    """Builds a batch of the full shape: what the windows leave empty, at the end of the data, has labels IGNORE."""
    inputs = np.zeros((batch_size, seq_len), np.int32)
    labels = np.full((batch_size, seq_len), IGNORE, np.int32)
    for row, window in enumerate(windows):
        inputs[row, : len(window) - 1], labels[row, : len(window) - 1] = window[:-1], window[1:]
    return {"input_ids": inputs, "labels": labels}


def batched(windows: grain.IterDataset, *, batch_size: int, seq_len: int) -> grain.IterDataset:
    """Builds batches of windows."""
    build = partial(make_batch, batch_size=batch_size, seq_len=seq_len)
    return windows.batch(batch_size, drop_remainder=False, batch_fn=build)


def text_loader(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    seq_len: int,
    batch_size: int,
    stride: int | None = None,
    shuffle_buffer_size: int = 10_000,
    seed: int = 42,
    prefetch: int = 2,
    epochs: int | None = None,
    threads: int = 1,
) -> TextLoader:
    """Builds a loader that streams the training documents.

    `shuffle_buffer_size` is in windows, 0 or 1 for none; `prefetch` in batches; `threads` encode at the same time.
    """
    require_sizes(batch_size=batch_size)
    require_sizes(least=0, shuffle_buffer_size=shuffle_buffer_size, prefetch=prefetch, seed=seed)
    windows: grain.IterDataset = TokenWindows(
        documents, tokenizer, seq_len=seq_len, stride=stride, epochs=epochs, threads=threads
    )
    if shuffle_buffer_size > 1:
        windows = BufferShuffle(windows, size=shuffle_buffer_size, seed=seed % 2**31)
    return TextLoader(batched(windows, batch_size=batch_size, seq_len=seq_len), prefetch=prefetch)


def load_tokens(documents: Documents, tokenizer: TextTokenizer) -> np.ndarray:
    """Returns one array of the ids, in `tokenizer.dtype`. It grows in place: its peak is its size and an eighth."""
    tokens = np.empty(MIB // tokenizer.dtype.itemsize, tokenizer.dtype)
    count = 0
    for block in token_blocks(documents, tokenizer):
        needed = count + len(block.ids)
        if needed > len(tokens):
            tokens.resize(max(needed, len(tokens) + len(tokens) // 8), refcheck=False)
        tokens[count:needed] = block.ids
        count = needed
    tokens.resize(count, refcheck=False)
    return tokens


def memory_loader(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    seq_len: int,
    batch_size: int,
    stride: int | None = None,
    shuffle: bool = True,
    seed: int = 42,
    prefetch: int = 2,
    epochs: int | None = None,
) -> TextLoader:
    """Builds a loader whose every epoch is one permutation of all windows, another for every epoch."""
    require_sizes(seq_len=seq_len, stride=stride, batch_size=batch_size)
    tokens = load_tokens(documents, tokenizer)
    if len(tokens) <= seq_len:
        raise DataError(
            f"the data set has {len(tokens)} tokens, fewer than the {seq_len + 1} of one window: use a smaller"
            " --seq-len, or more text."
        )
    windows = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)[:: stride or seq_len]  # views, no copies
    items = cast(Sequence[Any], windows)
    order = Permuted(items, size={"tokens": len(tokens)}, seed=seed if shuffle else None, epochs=epochs)
    return TextLoader(batched(order, batch_size=batch_size, seq_len=seq_len), prefetch=prefetch)


def windows_from_array(tokens: np.ndarray, *, seq_len: int, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of the full shape; every token of the 1-D array but the first is a label exactly once."""
    if len(tokens) < 2:
        raise DataError(
            f"validation has {len(tokens)} tokens, and a label needs the token before it: no document was "
            "held out. Use a data set of some hundred documents or more, or train without validation."
        )
    starts = range(0, len(tokens) - 1, seq_len)
    for first in range(0, len(starts), batch_size):
        windows = [tokens[start : start + seq_len + 1] for start in starts[first : first + batch_size]]
        yield make_batch(windows, batch_size=batch_size, seq_len=seq_len)
