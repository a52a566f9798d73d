"""Batches of `input_ids` and `labels`, shuffled and prefetched, with the position of the consumer in JSON.

Streamed (`text_loader`), memory holds the shuffle buffer and the prefetched batches, and nothing of the data
set (loader_bytes.py). Grain shuffles, batches and prefetches; a batch that was prefetched and not yet taken is
read again after `restore`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset, WindowShuffleIterDataset

from plimsoll.data.batch_source import BatchSource
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.data.text.windows import TokenWindows
from plimsoll.errors import DataError, RecipeError
from plimsoll.types import IGNORE


def make_batch(windows: Sequence[np.ndarray], *, batch_size: int, seq_len: int) -> dict[str, np.ndarray]:
    """Builds a batch of the full shape: rows that the end of the data leaves empty have labels IGNORE."""
    inputs = np.zeros((batch_size, seq_len), np.int32)
    labels = np.full((batch_size, seq_len), IGNORE, np.int32)
    for row, window in enumerate(windows):
        inputs[row], labels[row] = window[:-1], window[1:]
    return {"input_ids": inputs, "labels": labels}


class TextLoader(BatchSource):
    """A source of the batches of a text."""

    other_kind = "a stream and --no-streaming differ, and so do shuffled and not"

    def __init__(self, batches: grain.IterDataset, *, held_bytes: int = 0) -> None:
        super().__init__(batches)
        self.held_bytes = held_bytes
        """Bytes of tokens that stay in memory; 0 for a stream."""


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
    held_out: bool | None = False,
) -> TextLoader:
    """Builds a loader that streams the training documents, the held-out ones if `held_out`, or all if it is None.

    `shuffle_buffer_size` is in windows, 0 or 1 for none; `prefetch` in batches.
    """
    if batch_size < 1:
        raise RecipeError(f"--batch-size must be 1 or more, got {batch_size}")
    counts = {"shuffle-buffer-size": shuffle_buffer_size, "prefetch": prefetch, "seed": seed}
    for name, value in counts.items():
        if value < 0:
            raise RecipeError(f"--{name} must be 0 or more, got {value}")
    windows: grain.IterDataset = TokenWindows(
        documents, tokenizer, seq_len=seq_len, stride=stride, epochs=epochs, held_out=held_out
    )
    if shuffle_buffer_size > 1:
        windows = WindowShuffleIterDataset(windows, window_size=shuffle_buffer_size, seed=seed % 2**31)
    return TextLoader(batched(windows, batch_size=batch_size, seq_len=seq_len, prefetch=prefetch))


def batched(windows: grain.IterDataset, *, batch_size: int, seq_len: int, prefetch: int) -> grain.IterDataset:
    """Builds batches of windows, `prefetch` of them made ready in a thread."""
    build = partial(make_batch, batch_size=batch_size, seq_len=seq_len)
    batches = windows.batch(batch_size, drop_remainder=False, batch_fn=build)
    return ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch) if prefetch else batches


def windows_from_array(tokens: np.ndarray, *, seq_len: int, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of the full shape; every token of the 1-D array but the first is a label exactly once."""
    if len(tokens) < 2:
        raise DataError(
            f"validation has {len(tokens)} tokens, and a label needs the token before it: no document was "
            "held out. Use a data set of some hundred documents or more, or train without validation."
        )
    starts = range(0, len(tokens) - 1, seq_len)
    for first in range(0, len(starts), batch_size):
        inputs = np.zeros((batch_size, seq_len), np.int32)
        labels = np.full((batch_size, seq_len), IGNORE, np.int32)
        for row, start in enumerate(starts[first : first + batch_size]):
            label = tokens[start + 1 : start + 1 + seq_len]
            labels[row, : len(label)] = label
            inputs[row, : len(label)] = tokens[start : start + len(label)]
        yield {"input_ids": inputs, "labels": labels}
