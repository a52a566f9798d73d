"""A small language model, sized by a number of parameters, on streamed text.

    plimsoll plan  stories --memory 1GiB
    plimsoll train stories --dataset-id my-texts/ --memory 1GiB --run runs/mine

Defaults are those of the published guide for this recipe, where they were sound; docs/from-the-guides.md
translates its commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plimsoll.errors import DataError, RecipeError
from plimsoll.models.sizing import DecoderShape, inner_width, sized
from plimsoll.optimizers.adamw import AdamW
from plimsoll.recipes.base import Count, Prepared, Recipe, Say
from plimsoll.types import Compute, Source, Task

if TYPE_CHECKING:
    import numpy as np
    import optax

STANDARD_LIBRARY = "python:standard-library"
"""The `--dataset-id` of the Python source that every machine with Python has."""


@dataclass(frozen=True, kw_only=True)
class Text(Recipe):
    """A Llama-like decoder on the windows of a token stream."""

    kind: ClassVar[str] = "stories"
    rate_unit: ClassVar[str] = "tokens"

    dataset_id: str = "skeskinen/TinyStories-Instruct-hf"
    """A file or folder (.txt, .jsonl, .parquet, gzip or zstd too), or a Hugging Face hub id, which is streamed."""
    dataset_config: str | None = None
    """Configuration of a hub data set."""
    split: str = "train"
    """Split of a hub data set."""
    text_column: str = "text"
    """Column of .jsonl, .parquet and hub data sets."""
    use_streaming: bool = True
    """Read as training goes; --no-streaming loads all tokens into memory once, and the ledger counts them."""
    max_examples: Count | None = None
    """Documents to use at most."""
    shuffle_buffer_size: Count = 10_000
    """Windows shuffled at a time; 0 keeps the order of the text."""
    validation_tokens: Count = 1_000_000
    """Held-out tokens to evaluate on, at most; documents are held out by their hash, 1 in 100."""

    tokenizer: str | None = None
    """A Hugging Face tokenizer.json; by default a byte-level BPE is trained on the beginning of the text."""
    vocab_size: Count | None = None
    """Of the trained tokenizer; default 4,096 below 20M parameters, 32,768 below 200M, else 50,257."""
    seq_len: int = 128
    """Tokens of a window."""
    stride: int | None = None
    """Tokens from one window to the next; default --seq-len, no overlap."""

    target_params: Count = 1_000_000
    """Size of the model; --width, --layers and --heads say it exactly instead."""
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    tied: bool = True
    """The output layer uses the token embedding's weights."""

    learning_rate: float = 5e-4
    """Peak, when warm-up ends."""
    warmup_steps: int = 100
    """Optimizer steps, not micro-batches."""
    weight_decay: float = 0.01
    beta2: float = 0.999
    clip_norm: float = 1.0
    """Global norm of the gradient of the effective batch; 0 for no clipping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("seq_len", "max_examples", "stride", "vocab_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f"--{name.replace('_', '-')} must be 1 or more, got {value}")
        if self.shuffle_buffer_size < 0:
            raise RecipeError(f"--shuffle-buffer-size must be 0 or more, got {self.shuffle_buffer_size}")
        given = [self.width, self.layers, self.heads]
        if any(given) and not all(given):
            raise RecipeError(
                f"--width, --layers and --heads say the model's shape together, got {self.width}, {self.layers} and"
                f" {self.heads}: give all three, or --target-params alone"
            )
        _ = self.adamw  # its own checks

    @property
    def rate_per_example(self) -> int:
        return self.seq_len

    @property
    def window_stride(self) -> int:
        return self.stride or self.seq_len

    @cached_property
    def vocab(self) -> int:
        """Rows of the embedding: the given tokenizer's, or the size that the trained one is asked for."""
        if self.tokenizer is None:
            return self.vocab_size or _default_vocabulary(self.target_params if not self.width else self._rough_size())
        from plimsoll.data.tokenizer import tokenizer_vocab_size

        size = tokenizer_vocab_size(self.tokenizer)
        if self.vocab_size is not None and self.vocab_size < size:
            raise RecipeError(
                f"--tokenizer {self.tokenizer} has ids up to {size - 1:,}, but --vocab-size {self.vocab_size:,} gives"
                f" the model only {self.vocab_size:,} rows: leave --vocab-size out, or make it at least {size:,}"
            )
        return self.vocab_size or size

    @cached_property
    def shape(self) -> DecoderShape:
        if self.width and self.layers and self.heads:
            return DecoderShape(
                vocab=self.vocab,
                width=self.width,
                layers=self.layers,
                heads=self.heads,
                inner=inner_width(self.width),
                tied=self.tied,
            )
        return sized(self.target_params, vocab=self.vocab, tied=self.tied)

    @property
    def adamw(self) -> AdamW:
        return AdamW(
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            beta2=self.beta2,
            clip_norm=self.clip_norm or None,
        )

    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return {name: ((examples, self.seq_len), "int32") for name in ("input_ids", "labels")}

    def task(self, compute: Compute) -> Task:
        from plimsoll.models.language import NextToken

        return NextToken(self.shape, compute)

    def optimizer(self, steps: int) -> optax.GradientTransformation:
        return self.adamw.build(steps)

    def _rough_size(self) -> int:
        assert self.width and self.layers
        return 12 * self.layers * self.width**2


def _default_vocabulary(parameters: int) -> int:
    if parameters < 20_000_000:
        return 4_096
    return 32_768 if parameters < 200_000_000 else 50_257
