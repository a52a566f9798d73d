"""Batches of a text that was tokenised before, the same ones in the same order as if it were streamed.

The order of `text.loader.text_loader` needs no buffer of tokens: which window comes next is computed from its number
alone, and read from the file. So a position is one number, and a run that continues reads nothing again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import grain
import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.batch_source import BatchSource, Positioned
from plimsoll.data.packed.packed import Packed
from plimsoll.data.packed.shards import TOKENS
from plimsoll.data.text.survey import count_windows
from plimsoll.errors import DataError


class StreamOrder(Positioned):
    """Batches of `input_ids` and `labels` without end, as `text_loader` yields them from the documents."""

    start: ClassVar = {"window": 0}
    """Windows that were read before the next batch."""
    words: ClassVar = {"seq_len": "tokens of a window (--seq-len)", "stride": "tokens between windows (--stride)"}

    def __init__(
        self, packed: Packed, *, seq_len: int, stride: int, batch_size: int, shuffle_buffer_size: int, seed: int
    ) -> None:
        self.count = count_windows(packed.tokens, seq_len=seq_len, stride=stride)
        if not self.count:
            raise DataError(
                f"{packed.source} has {packed.tokens:,} tokens for training, fewer than the {seq_len + 1:,} of one"
                " window: use a smaller --seq-len, or more text"
            )
        super().__init__(size={"tokens": packed.tokens, "seq_len": seq_len, "stride": stride}, name=str(packed.folder))
        self.packed, self.seq_len, self.stride, self.batch_size = packed, seq_len, stride, batch_size
        self.shuffled = shuffle_buffer_size if shuffle_buffer_size > 1 else 0
        order = grain.MapDataset.range(self.shuffled or 1)
        self.order = (order.shuffle(seed=seed % 2**31) if self.shuffled else order).repeat()

    def window(self, number: int) -> int:
        """Returns which window of the text comes as the `number`th: a shuffle buffer is emptied from its end."""
        if not self.shuffled:
            return number % self.count
        buffers, taken = divmod(number, self.shuffled)
        place = self.order[buffers * self.shuffled + self.shuffled - 1 - taken]
        return (buffers * self.shuffled + int(place or 0)) % self.count

    def walk(self, at: dict[str, Any]) -> Iterator[dict[str, np.ndarray]]:
        room = np.empty((self.batch_size, self.seq_len + 1), self.packed.on_disk)
        while True:
            for row, ids in enumerate(room):
                self.packed.fill(ids, TOKENS, self.window(at["window"] + row) * self.stride)
            at["window"] += self.batch_size
            yield {"input_ids": room[:, :-1].astype(np.int32), "labels": room[:, 1:].astype(np.int32)}


class StreamOrderLoader(BatchSource):
    """A source of the batches of a text that was tokenised before."""

    def __init__(self, order: StreamOrder, *, prefetch: int) -> None:
        self._order = order
        super().__init__(order, prefetch=prefetch)

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`, also from that of a `text_loader` with the same options: at once."""
        number = None
        if "window_index" in state and self._order.shuffled:
            number = state["window_index"] * self._order.shuffled + state["pos_in_window"] % self._order.shuffled
        elif "windows" in state and not self._order.shuffled:
            number = state["epoch"] * self._order.count + state["windows"]
        super().restore(state if number is None else {"window": number, **self._order.size})


def stream_order_loader(packed: Packed, *, prefetch: int, **options: Any) -> StreamOrderLoader:
    """Builds a loader of `StreamOrder`, whose options these are; `prefetch` in batches."""
    require_sizes(seq_len=options["seq_len"], stride=options["stride"], batch_size=options["batch_size"])
    return StreamOrderLoader(StreamOrder(packed, **options), prefetch=prefetch)
