"""Batches of `input_ids` and `labels` of text, shuffled and prefetched. A position in the data is JSON.

`text_loader` streams: memory holds only the shuffle buffer and the prefetched batches (loader_bytes.py). After
`restore`, batches that were prefetched but not consumed are read again.

`packed_text_loader` reads text that was tokenised before. `memory_loader` holds all tokens in memory for
`--no-streaming`: 2 bytes a token, 4 for vocabularies above 65,536. Both permute all windows, without a shuffle buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.loader import Batch, Loader, Read, Stream, permuted
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.survey import count_windows
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.data.text.windows import TokenWindows, no_window, token_blocks
from plimsoll.errors import DataError
from plimsoll.types import IGNORE
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.packed.packed import Packed


def batch_of(windows: np.ndarray) -> Batch:
    """Returns `input_ids` and `labels` of `windows`, ids of shape (batch, seq_len + 1)."""
    return {"input_ids": windows[:, :-1].astype(np.int32), "labels": windows[:, 1:].astype(np.int32)}


class ShuffledWindows(Stream):
    """Batches of a text's windows. Each group of `buffer` consecutive windows is permuted.

    Each window that leaves the buffer is replaced by one of the next group, so one buffer holds the end of a group and
    the beginning of the next.
    """

    start: ClassVar = {"windows": TokenWindows.start, "buffer": 0, "taken": 0}
    """`windows` is the position before the first window of a group, `buffer` the index of the group, and `taken` the
    number of its windows that were yielded."""

    def __init__(self, windows: TokenWindows, *, batch_size: int, buffer: int, seed: int) -> None:
        facts = {"seq_len": windows.seq_len, "stride": windows.stride, "shuffle_buffer_size": buffer}
        super().__init__(facts=facts, name=windows.documents.name)
        self.windows = windows
        self.batch_size = batch_size
        self.buffer = max(1, buffer)
        self.order_seed = seed

    def walk(self, at: dict[str, Any]) -> Iterator[Batch]:
        position = dict(at["windows"])
        windows = self.windows.walk(position)
        here = dict(at)
        coming: list[np.ndarray] = []
        batch: list[np.ndarray] = []
        while True:
            # Fill the buffer. `leaving` holds the group's remaining windows in reverse order: `pop` takes the next.
            while len(coming) < self.buffer:
                coming.append(next(windows))
            order = np.random.default_rng([self.order_seed, here["buffer"]]).permutation(self.buffer)
            leaving = [coming[place] for place in reversed(order[here["taken"] :])]
            coming = []
            next_buffer = {"windows": dict(position), "buffer": here["buffer"] + 1, "taken": 0}

            # Read one window for each window that leaves.
            while leaving:
                batch.append(leaving.pop())
                coming.append(next(windows))
                here["taken"] += 1
                if len(batch) == self.batch_size:
                    at.update(here)
                    yield batch_of(np.stack(batch))
                    batch = []
            here = next_buffer


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
    threads: int = 1,
) -> Loader:
    """Builds a loader that streams the training documents.

    `shuffle_buffer_size` counts windows (0 or 1: no shuffling), `prefetch` batches, and `threads` encoding threads.
    """
    require_sizes(batch_size=batch_size)
    require_sizes(least=0, shuffle_buffer_size=shuffle_buffer_size, prefetch=prefetch, seed=seed)
    windows = TokenWindows(documents, tokenizer, seq_len=seq_len, stride=stride, threads=threads)
    stream = ShuffledWindows(windows, batch_size=batch_size, buffer=shuffle_buffer_size, seed=seed)
    return Loader(stream, prefetch=prefetch)


def packed_text_loader(packed: Packed, *, seq_len: int, stride: int, **options: Any) -> Loader:
    """Builds a loader of a text that was tokenised before, with the options of `data.loader.permuted`.

    Each epoch permutes all windows anew. Without a `seed`, windows are in the order of the text.
    """

    def read(indices: np.ndarray) -> Batch:
        return batch_of(packed.rows(indices, length=seq_len + 1, stride=stride))

    return _permuted_windows(read, packed.tokens, packed.source, seq_len=seq_len, stride=stride, **options)


def memory_loader(
    documents: Documents, tokenizer: TextTokenizer, *, seq_len: int, stride: int | None = None, **options: Any
) -> Loader:
    """Builds a loader that holds all tokens in memory. Options and order are as for `packed_text_loader`."""
    require_sizes(seq_len=seq_len, stride=stride)
    stride = stride or seq_len
    tokens = load_tokens(documents, tokenizer)

    def read(indices: np.ndarray) -> Batch:
        windows = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)[::stride]  # views, no copies
        return batch_of(windows[indices])

    return _permuted_windows(read, len(tokens), documents.name, seq_len=seq_len, stride=stride, **options)


def _permuted_windows(read: Read, tokens: int, name: str, *, seq_len: int, stride: int, **options: Any) -> Loader:
    count = count_windows(tokens, seq_len=seq_len, stride=stride)
    if not count:
        raise no_window(name, tokens, seq_len)
    return permuted(read, count, facts={"tokens": tokens, "seq_len": seq_len, "stride": stride}, **options)


def load_tokens(documents: Documents, tokenizer: TextTokenizer) -> np.ndarray:
    """Returns all training ids in one array of `tokenizer.dtype`.

    The array grows in place by an eighth at a time, and is cut to its size at the end.
    """
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


def windows_from_array(tokens: np.ndarray, *, seq_len: int, batch_size: int) -> Iterator[Batch]:
    """Yields full batches. Every token of the 1-D array `tokens` except the first is a label exactly once.

    Labels that pad the last batch are IGNORE (-1).
    """
    if len(tokens) < 2:
        raise DataError(
            f"validation has {len(tokens)} tokens, and a label needs the token before it: no document was "
            "held out. Use a data set of some hundred documents or more, or train without validation."
        )
    size = batch_size * seq_len
    for first in range(0, len(tokens) - 1, size):
        ids = tokens[first : first + size + 1]
        inputs = np.zeros(size, np.int32)
        labels = np.full(size, IGNORE, np.int32)
        inputs[: len(ids) - 1] = ids[:-1]
        labels[: len(ids) - 1] = ids[1:]
        shape = batch_size, seq_len
        yield {"input_ids": inputs.reshape(shape), "labels": labels.reshape(shape)}
