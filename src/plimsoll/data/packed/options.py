"""What a packed folder follows from: the options of `plimsoll prepare longcontext`.

Imports no NumPy: the command line takes its options from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.errors import RecipeError
from plimsoll.options import Count, Options, PositiveCount

DEFAULT_VOCABULARY = 8_192
VOCABULARY = 257, 2**20
"""Smallest and largest of a tokenizer that is trained: 256 bytes and an end of text are the least."""


@dataclass(frozen=True, kw_only=True)
class TextSet(Options):
    dataset_id: str
    """Text to pack: a file or folder (.txt, .jsonl, .parquet, also gzip or zstd), a Hugging Face data set, which is
    streamed, or python:standard-library."""
    dataset_config: str | None = None
    """Configuration of a Hugging Face data set. By default its own default."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""
    max_examples: PositiveCount | None = None
    """Most documents to use. By default all."""
    tokenizer: str | None = None
    """A tokenizer.json, the folder of one, or a vocab.json beside its merges.txt; by default a byte-level BPE is
    trained on the beginning of the text (8 MiB), and kept in the folder."""
    vocab_size: Count | None = None
    """Tokens of the tokenizer that is trained. By default 8,192."""

    def check_options(self) -> None:
        if not self.dataset_id.strip():
            raise RecipeError("--dataset-id is empty: name a file, a folder, or a Hugging Face id like org/name")
        if self.vocab_size is None:
            return
        if self.tokenizer is not None:
            raise RecipeError(
                f"--vocab-size {self.vocab_size:,} is for a tokenizer that is trained, and --tokenizer {self.tokenizer}"
                " names one that is there: leave one of them out"
            )
        smallest, largest = VOCABULARY
        if not smallest <= self.vocab_size <= largest:
            raise RecipeError(
                f"--vocab-size must be from {smallest} (256 bytes and an end of text) to {largest:,}, got"
                f" {self.vocab_size:,}"
            )
