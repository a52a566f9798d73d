"""Training data of packed text, which `plimsoll prepare longcontext` has tokenised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from plimsoll.data import model_rows
from plimsoll.errors import DataError
from plimsoll.files.facts import Facts, facts_of
from plimsoll.options import Count, FolderPath, Interval, NonNegativeCount, NonNegativeInt, PositiveCount
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import TokenSpec
from plimsoll.types import Source

if TYPE_CHECKING:
    from plimsoll.data.packed.packed import Packed as PackedFolder

GPT2_VOCABULARY = 50_257
LARGEST_VOCABULARY = 2**31
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class Packed(Data):
    """Windows of text that `plimsoll prepare longcontext` has tokenised and packed."""

    name = "packed"
    gives = TokenSpec
    missing = "name a packed folder. `plimsoll prepare longcontext --dataset-id TEXT --out packed/` makes one"
    no_validation = (
        "its held-out documents have fewer tokens than one window, or --validation-tokens is 0. Pack more text, or take"
        " a smaller --seq-len"
    )

    data: FolderPath = ""
    """Folder with packed tokens, which `plimsoll prepare longcontext` writes. Planning needs none."""
    vocab_size: Annotated[Count | None, Interval(ge=1, le=LARGEST_VOCABULARY)] = None
    """Rows of the embedding. By default the vocabulary of --data; 50,257 (GPT-2) to plan without data."""
    seq_len: PositiveCount = 1024
    """Tokens of a training sequence."""
    validation_tokens: NonNegativeCount = 1_000_000
    """Most held-out tokens to evaluate on, in complete sequences, at least one. 0 for none."""
    workers: NonNegativeInt = 0
    """Threads that read data in parallel."""

    @cached_property
    def packed(self) -> PackedFolder:
        """The opened folder of packed text."""
        from plimsoll.data.packed.packed import open_packed

        return open_packed(self.data)

    @property
    def vocab(self) -> int:
        """Vocabulary size of a model for this data."""
        if not self.data:
            return self.vocab_size or GPT2_VOCABULARY
        return model_rows(self.vocab_size, self.packed.vocab_size, name=self.data)

    @property
    def dtype(self) -> str:
        """NumPy type of the token ids. Without data it is uint16 if that holds them, else uint32."""
        if self.data:
            return self.packed.dtype
        return "uint16" if self.vocab <= 2**16 else "uint32"

    def spec(self, needs: Needs) -> TokenSpec:
        return TokenSpec(
            arrays={"tokens": ((self.seq_len + 1,), self.dtype)},
            tokens=self.seq_len,
            filled=True,
            vocab=self.vocab,
            length=self.seq_len,
        )

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        from plimsoll.data.loader_bytes import READ_PACKED, order_bytes

        windows = self.packed.windows(self.seq_len) if self.data else 0
        read = order_bytes(windows) + self.in_flight(reading, prefetch)
        return HostMemory(bytes=READ_PACKED + read, advice="a smaller --batch-size")

    def facts(self) -> Facts:
        return facts_of(self.packed.files, vocab_size=self.packed.vocab_size)

    def with_vocabulary_of(self, run: Path, prepared: Prepared) -> Packed:
        if (self.packed.folder / TOKENIZER).read_bytes() != (run / TOKENIZER).read_bytes():
            raise DataError(
                f"{self.data} was packed with another tokenizer than that of {run}, so its ids mean other tokens: pack"
                f" it with `plimsoll prepare longcontext --tokenizer {run / TOKENIZER}`, or start a new --run"
            )
        return self

    def prepare(self, reading: Reading, say: Say) -> Prepared:
        packed = self.packed
        windows = packed.windows(self.seq_len)

        # A run on text keeps a copy of its tokenizer.
        (reading.folder / TOKENIZER).write_bytes((packed.folder / TOKENIZER).read_bytes())

        description = (
            f"{packed.tokens:,} tokens of {packed.documents:,} documents ({packed.source}) in {self.data};"
            f" {windows:,} windows of {self.seq_len:,}, {self.validation_windows:,} held out"
        )
        if not self.validation_windows and self.validation_tokens:
            say("validation: none, the held-out documents have fewer tokens than one window")
        return reading.length.prepared_for(
            windows,
            data=f"{self.data} of {packed.tokens:,} tokens",
            facts={"description": description},
            seq_len=self.seq_len,
        )

    def source(self, reading: Reading, *, prefetch: int) -> Source:
        from plimsoll.data.packed.windows import packed_loader

        return packed_loader(
            self.data,
            seq_len=self.seq_len,
            batch_size=reading.batch_size,
            seed=reading.seed,
            prefetch=prefetch,
            workers=self.workers,
        )

    @property
    def validation_windows(self) -> int:
        """Number of windows to evaluate on."""
        if not self.validation_tokens:
            return 0
        windows = max(0, self.packed.validation_tokens - 1) // self.seq_len
        return min(windows, max(1, self.validation_tokens // self.seq_len))

    def validation(self, reading: Reading, *, examples: int) -> Iterator[Batch]:
        from plimsoll.data.packed.windows import packed_validation

        return packed_validation(self.data, seq_len=self.seq_len, batch_size=examples, most=self.validation_windows)
