"""Loader of `--no-streaming`: the tokens are read once into one array, and windows of all of it are sampled at random.

2 bytes a token (4 for vocabularies above 65,536), no shuffle buffer; the order of an epoch is computed index
by index, not kept. Use it where the tokens fit into the budget: `TextLoader.held_bytes` says how many bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plimsoll.data.permuted import Permuted
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.loader import TextLoader, batched
from plimsoll.data.text.survey import count_windows
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.data.text.windows import token_blocks
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import MIB


def load_tokens(documents: Documents, tokenizer: TextTokenizer, *, held_out: bool | None = False) -> np.ndarray:
    """Returns one array of the ids, in `tokenizer.dtype`. It grows in place: its peak is its size and an eighth."""
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


class _Windows(Sequence[np.ndarray]):
    """Windows of `seq_len + 1` ids, views of one array."""

    def __init__(self, tokens: np.ndarray, *, seq_len: int, stride: int) -> None:
        self._tokens, self._seq_len, self._stride = tokens, seq_len, stride
        self._count = count_windows(len(tokens), seq_len=seq_len, stride=stride)
        if not self._count:
            raise DataError(
                f"the data set has {len(tokens)} tokens, fewer than the {seq_len + 1} of one window: use a "
                "smaller --seq-len, or more text."
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        start = index * self._stride
        return self._tokens[start : start + self._seq_len + 1]


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
    """Builds a loader whose every epoch is one permutation of all windows, another for every epoch."""
    stride = seq_len if stride is None else stride
    for name, value in (("--seq-len", seq_len), ("--stride", stride), ("--batch-size", batch_size)):
        if value < 1:
            raise RecipeError(f"{name} must be 1 or more, got {value}")
    tokens = load_tokens(documents, tokenizer, held_out=held_out)
    windows = _Windows(tokens, seq_len=seq_len, stride=stride)
    order = Permuted(windows, size={"tokens": len(tokens)}, seed=seed if shuffle else None, epochs=epochs)
    batches = batched(order, batch_size=batch_size, seq_len=seq_len, prefetch=prefetch)
    return TextLoader(batches, held_bytes=tokens.nbytes)
