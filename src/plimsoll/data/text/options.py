"""Options that name a text and its tokenizer, for training and for tokenising.

Imports no NumPy, since the command line reads its options from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.errors import RecipeError
from plimsoll.options import Count, Options, PositiveCount

if TYPE_CHECKING:
    from plimsoll.data.text.documents import Documents

DEFAULT_VOCABULARY = 8_192
VOCABULARY = 257, 2**20
"""Smallest and largest vocabulary of a trained tokenizer. The smallest has 256 bytes and an end-of-text token."""


@dataclass(frozen=True, kw_only=True)
class NamedText(Options):
    """A text and its tokenizer."""

    dataset_id: str
    """Text: a file or folder (.txt, .jsonl, .parquet, also gzip or zstd), or a Hugging Face data set, which is
    streamed."""
    dataset_config: str | None = None
    """Configuration of a Hugging Face data set. Without it, the data set's default."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""
    max_examples: PositiveCount | None = None
    """Largest number of documents to use. By default all."""
    tokenizer: str | None = None
    """A tokenizer.json. By default a byte-level BPE is trained on the beginning of the text."""
    vocab_size: Count | None = None
    """Vocabulary size of the tokenizer that is trained."""

    def check_options(self) -> None:
        if not self.dataset_id.strip():
            raise RecipeError("--dataset-id is empty: name a file, a folder, or a Hugging Face id like org/name")
        smallest, largest = VOCABULARY
        size = self.vocab_size if self.tokenizer is None else None
        if size is not None and not smallest <= size <= largest:
            raise RecipeError(
                f"--vocab-size must be from {smallest} (256 bytes and an end of text) to {largest:,} for a tokenizer"
                f" that is trained here, got {size:,}"
            )

    @property
    def documents(self) -> Documents:
        """The opened text."""
        from plimsoll.data.text.opening import open_documents

        return open_documents(
            self.dataset_id,
            config=self.dataset_config,
            split=self.split,
            text_column=self.text_column,
            max_examples=self.max_examples,
        )


@dataclass(frozen=True, kw_only=True)
class TextSet(NamedText):
    """Options of `plimsoll prepare longcontext` that determine the written tokens."""

    dataset_id: str
    """Text to pack: a file or folder (.txt, .jsonl, .parquet, also gzip or zstd), a Hugging Face data set, which is
    streamed, or python:standard-library."""
    tokenizer: str | None = None
    """A tokenizer.json, the folder of one, or a vocab.json beside its merges.txt; by default a byte-level BPE is
    trained on the beginning of the text (8 MiB), and kept in the folder."""
    vocab_size: Count | None = None
    """Vocabulary size of the tokenizer that is trained. By default 8,192."""

    def check_options(self) -> None:
        super().check_options()
        if self.vocab_size is not None and self.tokenizer is not None:
            raise RecipeError(
                f"--vocab-size {self.vocab_size:,} is for a tokenizer that is trained, and --tokenizer {self.tokenizer}"
                " names an existing one: leave one of them out"
            )
