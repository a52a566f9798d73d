"""`--no-streaming`: the tokens are read once into one array, and windows are drawn from all of it at random.

2 bytes a token (4 for vocabularies above 65,536), no shuffle buffer; the order of an epoch is computed index
by index, not kept. Use it where the tokens fit into the budget: `TextLoader.held_bytes` says how many bytes.
"""

from __future__ import annotations

from typing import Any

import grain
import numpy as np

from plimsoll.data.documents import Documents
from plimsoll.data.loader import TextLoader, batched
from plimsoll.data.survey import count_windows
from plimsoll.data.tokenizer import TextTokenizer
from plimsoll.data.windows import token_blocks
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import MIB


def load_tokens(documents: Documents, tokenizer: TextTokenizer, *, held_out: bool | None = False) -> np.ndarray:
    """One array of the ids, in `tokenizer.dtype`. It grows in place: its peak is its size and an eighth."""
    tokens = np.empty(MIB // tokenizer.dtype.itemsize, tokenizer.dtype)
    count = 0
    for block in token_blocks(documents, tokenizer, held_out=held_out):
        needed = count + len(block.ids)
        if needed > len(tokens):
            tokens.resize(max(needed, len(tokens) + len(tokens) // 8), refcheck=False)
        tokens[count:needed] = block.ids
        count = needed
    tokens.resize(count, refcheck=False)
    return tokens


class _ArrayWindows(grain.IterDataset):
    def __init__(self, tokens: np.ndarray, *, seq_len: int, stride: int, seed: int | None, epochs: int | None) -> None:
        super().__init__()
        self.tokens, self.seq_len, self.stride, self.epochs = tokens, seq_len, stride, epochs
        self.count = count_windows(len(tokens), seq_len=seq_len, stride=stride)
        if not self.count:
            raise DataError(
                f"the data set has {len(tokens)} tokens, fewer than the {seq_len + 1} of one window: use a "
                "smaller --seq-len, or more text."
            )
        order = grain.MapDataset.range(self.count)
        # A bijection computed per index: the permutation itself would take 8 bytes a window.
        self.order = (order if seed is None else order.shuffle(seed=seed % 2**31)).repeat()

    def __iter__(self) -> grain.DatasetIterator:
        return _ArrayIterator(self)


class _ArrayIterator(grain.DatasetIterator):
    def __init__(self, windows: _ArrayWindows) -> None:
        super().__init__()
        self._of = windows
        self._drawn = 0

    def __next__(self) -> np.ndarray:
        self._assert_not_closed()
        of = self._of
        if of.epochs is not None and self._drawn >= of.epochs * of.count:
            raise StopIteration
        start = int(of.order[self._drawn] or 0) * of.stride
        self._drawn += 1
        return of.tokens[start : start + of.seq_len + 1]

    def get_state(self) -> dict[str, Any]:
        epoch, index = divmod(self._drawn, self._of.count)
        return {"epoch": epoch, "index": index, "tokens": len(self._of.tokens)}

    def set_state(self, state: dict[str, Any]) -> None:
        if state["tokens"] != len(self._of.tokens):
            raise DataError(
                f"the data position was saved for {state['tokens']:,} tokens, and the data set has "
                f"{len(self._of.tokens):,}: it changed. Put the old files back, or start a new run."
            )
        self._drawn = state["epoch"] * self._of.count + state["index"]


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
    held_out: bool | None = False,
) -> TextLoader:
    """Every epoch is one permutation of all windows, another for every epoch."""
    stride = seq_len if stride is None else stride
    for name, value in (("--seq-len", seq_len), ("--stride", stride), ("--batch-size", batch_size)):
        if value < 1:
            raise RecipeError(f"{name} must be 1 or more, got {value}")
    tokens = load_tokens(documents, tokenizer, held_out=held_out)
    windows = _ArrayWindows(tokens, seq_len=seq_len, stride=stride, seed=seed if shuffle else None, epochs=epochs)
    batches = batched(windows, batch_size=batch_size, seq_len=seq_len, prefetch=prefetch)
    return TextLoader(batches, held_bytes=tokens.nbytes)
