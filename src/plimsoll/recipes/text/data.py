"""Training data of text windows, from files, folders, or a streamed Hugging Face data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from plimsoll.data import EMBEDDED, STANDARD_LIBRARY, model_rows
from plimsoll.data.text.options import NamedText
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, facts_of
from plimsoll.options import IS_PATH, FilePath, Metavar, NonNegativeCount, PositiveCount, PositiveInt
from plimsoll.recipes.parts import Batch, Data, HostMemory, Length, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import TokenSpec
from plimsoll.types import Source

if TYPE_CHECKING:
    from plimsoll.data.packed.packed import Packed as PackedFolder
    from plimsoll.data.text.documents import Documents
    from plimsoll.data.text.tokenizer import TextTokenizer

TOKENIZER, VALIDATION = "tokenizer.json", "validation.npy"
KEPT = "tokens_in_cache"
"""Key in `Prepared.facts`: name of the cache folder with the text's tokens, if they were made before training."""
WINDOWS = "windows"
"""Key in `Prepared.facts`: number of windows in an epoch, if they were counted."""
WINDOWS_OF_A_STREAM = 20_000
"""Number of windows at the beginning of a stream, from which the size of the whole stream is estimated."""
VOCABULARY = 4_096
"""Default vocabulary size of a trained tokenizer, if the model sets none."""


@dataclass(frozen=True, kw_only=True)
class Text(NamedText, Data):
    """Windows of text, which is tokenised before or during training."""

    name = "text"
    gives = TokenSpec
    named_by = "dataset_id"
    gives_way: ClassVar = {"tokenizer": {"vocab_size": None}}

    dataset_id: Annotated[str, IS_PATH, Metavar("TEXT")] = "skeskinen/TinyStories-Instruct-hf"
    """Text to learn from: a file or folder (.txt, .jsonl, .parquet, also gzip or zstd), or a Hugging Face data set,
    which is streamed."""
    use_streaming: bool = True
    """Read the text while training. --no-use-streaming loads all tokens into memory first; the plan counts them."""
    shuffle_buffer_size: NonNegativeCount = 10_000
    """Windows of a stream that are shuffled together; text tokenised before training is shuffled completely. 0 or 1
    keeps the order of the text."""
    validation_tokens: NonNegativeCount = 1_000_000
    """Most held-out tokens to evaluate on. One document in 100 is held out, chosen by its hash."""

    tokenizer: FilePath | None = None
    """A Hugging Face tokenizer.json. By default a byte-level BPE is trained on the beginning of the text."""
    vocab_size: PositiveCount | None = None
    """Vocabulary size of the trained tokenizer. By default 4,096 for models below 20M parameters, 32,768 below 200M,
    else 50,257."""
    seq_len: PositiveInt = 128
    """Tokens of a training sequence."""
    stride: PositiveInt | None = None
    """Tokens from the start of one sequence to the start of the next. By default --seq-len: they do not overlap."""

    def check_options(self) -> None:
        super().check_options()
        if self.window_stride > self.seq_len:
            raise RecipeError(
                f"--stride {self.stride} is longer than --seq-len {self.seq_len}: text between two windows would never"
                " be read. Give at most the length of a window; --max-examples takes less of a large set"
            )

    @property
    def window_stride(self) -> int:
        """Tokens from the start of one window to the start of the next."""
        return self.stride or self.seq_len

    def vocab(self, needs: Needs) -> int:
        """Returns the vocabulary size of --tokenizer, or of the tokenizer to train."""
        if self.tokenizer is None:
            return self.vocab_size or needs.vocabulary or VOCABULARY
        from plimsoll.data.text.tokenizer import tokenizer_vocab_size

        return model_rows(self.vocab_size, tokenizer_vocab_size(self.tokenizer), name=f"--tokenizer {self.tokenizer}")

    def spec(self, needs: Needs) -> TokenSpec:
        tokens = (self.seq_len,), "int32"
        return TokenSpec(
            arrays={"input_ids": tokens, "labels": tokens},
            tokens=self.seq_len,
            vocab=self.vocab(needs),
            length=self.seq_len,
        )

    def imports(self) -> tuple[str, ...]:
        return ("datasets",) if self.is_stream else self.documents.imports()

    @property
    def is_stream(self) -> bool:
        """True for text that is read over the network: its tokens are not all read and counted before training. Raises
        DataError if --dataset-id names neither a local text nor a possible Hugging Face data set."""
        from plimsoll.data.text.opening import require_named

        return self.dataset_id not in EMBEDDED and not require_named(self.dataset_id)

    def facts(self) -> Facts:
        if self.is_stream:
            return Facts(options={"dataset": self.dataset_id, "config": self.dataset_config, "split": self.split})
        return facts_of(self.documents.paths or ())

    def with_vocabulary_of(self, run: Path, prepared: Prepared) -> Text:
        assert isinstance(prepared.spec, TokenSpec)
        return replace(self, tokenizer=str(run / TOKENIZER), vocab_size=prepared.spec.vocab)

    def require_same(self, prepared: Prepared, reading: Reading, *, training: bool) -> None:
        if not training:  # evaluation reads the run's own copies
            return
        super().require_same(prepared, reading, training=training)
        if self.tokenizer is not None:
            from plimsoll.data.text.tokenizer import load_tokenizer

            if load_tokenizer(self.tokenizer).to_json() != (reading.folder / TOKENIZER).read_text("utf-8"):
                raise DataError(
                    f"--tokenizer {self.tokenizer} is not the tokenizer that this run began with, which is"
                    f" {reading.folder / TOKENIZER}: leave it out, or start a new --run"
                )

    def prepare(self, reading: Reading, say: Say) -> Prepared:
        import numpy as np

        from plimsoll.data.text.kept import trained_tokenizer
        from plimsoll.data.text.survey import collect_held_out, count_windows, survey
        from plimsoll.data.text.tokenizer import load_tokenizer

        length = reading.length
        documents = self.documents
        expected = None
        if self.is_stream:
            say(f"data: asking huggingface.co for {self.dataset_id}")
            expected = self._documents_expected(documents, length)

        # Get the tokenizer, and tokenise the text now if the cache should keep its tokens.
        say(f"data: {documents.describe()}")
        if self.tokenizer is None:
            tokenizer = trained_tokenizer(documents, self.vocab(reading.needs), say)
        else:
            tokenizer = load_tokenizer(self.tokenizer)
        tokenizer.save(reading.folder / TOKENIZER)
        packed = self._kept_tokens(documents, tokenizer, reading, say)

        # Collect the tokens to evaluate on.
        limits = {"seq_len": self.seq_len, "max_tokens": self.validation_tokens}
        held_out = packed.held_out(**limits) if packed else collect_held_out(documents, tokenizer, **limits)
        np.save(reading.folder / VALIDATION, held_out, allow_pickle=False)
        if not len(held_out):
            say("validation: none, no document is held out of a set this small")
        facts: dict[str, Any] = {"description": documents.describe(), "validation_tokens": len(held_out)}
        if packed is not None:
            facts[KEPT] = packed.folder.name

        # Count tokens: of one batch if --steps sets the length, of the beginning of a stream, else of all text.
        needs_all = length.steps is None or not self.use_streaming
        sizes = {"seq_len": self.seq_len, "stride": self.window_stride}
        enough = None if needs_all else reading.batch_size
        if expected is not None:
            enough = max(reading.batch_size, WINDOWS_OF_A_STREAM)
        text = packed or survey(documents, tokenizer, **sizes, enough=enough, expected=expected)
        if expected is not None:
            say(f"data: about {text.tokens:,} tokens in the {expected:,} documents that {self.dataset_id} counts")
        windows = count_windows(text.tokens, **sizes)
        if packed is not None or needs_all:
            about = "" if expected is None else "about "
            counts = f"{about}{text.documents:,} documents, {text.tokens:,} tokens, {windows:,} windows"
            facts |= {"description": f"{counts} in {self.dataset_id}", "tokens": text.tokens, WINDOWS: windows}
        data = f"{self.dataset_id} of {text.tokens:,} tokens"
        prepared = length.prepared_for(windows, data=data, facts=facts, seq_len=self.seq_len)
        return prepared if needs_all else replace(prepared, steps_per_epoch=None)

    def _documents_expected(self, documents: Documents, length: Length) -> int | None:
        """Returns the number of documents in a stream, from the data set's info; None if the run's length does not
        depend on it.

        Raises:
            RecipeError: The run's length depends on that number, and the info does not have it.
        """
        if length.steps is not None or self.max_examples is not None:
            return None
        from plimsoll.data.hub import HubStream

        (stream,) = documents.files
        assert isinstance(stream, HubStream)
        expected = stream.count_rows() if self.use_streaming else None
        if expected is None:
            raise RecipeError(
                f"--dataset-id {self.dataset_id} is read over the network while training, and its info has no count of"
                f" the split {self.split}, so the length of an epoch is unknown: give the number of steps, like"
                " `plimsoll train stories --steps 10000`, or --max-examples 100000 to use and count so many documents"
            )
        return expected

    def _kept_tokens(
        self, documents: Documents, tokenizer: TextTokenizer, reading: Reading, say: Say
    ) -> PackedFolder | None:
        """Returns the text's tokens from the cache, made if needed; None if training tokenises the text as it reads."""
        from plimsoll.data.kept import NotKept
        from plimsoll.data.packed.kept import tokenised

        if not self._is_kept(documents, reading):
            return None
        try:
            return tokenised(documents, tokenizer, say)
        except NotKept as problem:
            say(f"tokens: the text is tokenised as training reads it, and again by every run: {problem}")
            return None

    def source(self, reading: Reading, *, prefetch: int) -> Source:
        from plimsoll.data.kept import kept
        from plimsoll.data.packed.kept import tokenised
        from plimsoll.data.packed.packed import open_packed
        from plimsoll.data.text.loader import memory_loader, packed_text_loader, text_loader
        from plimsoll.data.text.tokenizer import load_tokenizer
        from plimsoll.data.text.windows import encoding_threads

        options: dict[str, Any] = {
            "seq_len": self.seq_len,
            "stride": self.window_stride,
            "batch_size": reading.batch_size,
            "prefetch": prefetch,
        }
        order_seed = reading.seed if self.shuffle_buffer_size > 1 else None

        # Read tokens from the cache, or make them again if the cache has lost them.
        name = reading.facts.get(KEPT)
        place = None if name is None else kept(name)
        if place is not None:
            return packed_text_loader(open_packed(place), seed=order_seed, **options)
        tokenizer = load_tokenizer(reading.folder / TOKENIZER)
        documents = self.documents
        if name is not None:
            packed = tokenised(documents, tokenizer, partial(print, flush=True))
            return packed_text_loader(packed, seed=order_seed, **options)

        # Read the text into memory now, or read it during training.
        if not self.use_streaming:
            return memory_loader(documents, tokenizer, seed=order_seed, **options)
        options |= {"shuffle_buffer_size": self.shuffle_buffer_size, "threads": encoding_threads()}
        return text_loader(documents, tokenizer, seed=reading.seed, **options)

    def validation(self, reading: Reading, *, examples: int) -> Iterable[Batch]:
        import numpy as np

        from plimsoll.data.text.loader import windows_from_array

        tokens = np.load(reading.folder / VALIDATION, mmap_mode="r", allow_pickle=False)
        return windows_from_array(tokens, seq_len=self.seq_len, batch_size=examples) if len(tokens) else ()

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        """Returns the host memory that reading takes; an estimate if nothing is prepared."""
        from plimsoll.data.loader_bytes import (
            ENCODED_BEFORE,
            MOST_THREADS,
            READ_FROM_CACHE,
            SOURCE_FILES,
            TEXT_IN_FLIGHT,
            THREAD_BYTES,
            loader_bytes,
            order_bytes,
            tokenizer_bytes,
        )

        vocab = self.vocab(reading.needs)
        facts = self._estimate(reading) if prepared is None else prepared.facts
        is_kept = KEPT in facts
        is_streamed = self.use_streaming and not is_kept

        # Memory of the reader, and of tokens in memory: all, or only those to evaluate on.
        windows = loader_bytes(
            seq_len=self.seq_len,
            batch_size=reading.batch_size,
            shuffle_buffer_size=self.shuffle_buffer_size if is_streamed else 0,
            prefetch=prefetch,
            resident_tokens=0 if self.use_streaming else facts["tokens"],
            vocab_size=vocab,
        )
        held_out = 4 * facts["validation_tokens"]
        order = 0 if is_streamed else order_bytes(facts[WINDOWS])

        # Memory of tokenising, or of reading from the cache.
        if is_kept:
            text = READ_FROM_CACHE
        else:
            text = tokenizer_bytes(vocab) + (TEXT_IN_FLIGHT if is_streamed else ENCODED_BEFORE)
        if is_streamed and self.dataset_id == STANDARD_LIBRARY:
            text += SOURCE_FILES
        return HostMemory(
            bytes=windows + text + order + held_out,
            beside_accelerator=(MOST_THREADS - 1) * THREAD_BYTES if is_streamed else 0,
            advice="a smaller --shuffle-buffer-size",
        )

    def _estimate(self, reading: Reading) -> Mapping[str, Any]:
        """Returns estimates of the facts that `prepare` finds, from file sizes alone. Uses no network."""
        from plimsoll.data.text.opening import BYTES_A_TOKEN, text_bytes

        facts = {"validation_tokens": self.validation_tokens, "tokens": 0, WINDOWS: 0}
        if self.is_stream:
            return facts
        documents = self.documents
        windows = text_bytes(documents) // BYTES_A_TOKEN // self.window_stride
        facts |= {"tokens": documents.bytes or 0, WINDOWS: windows}
        return facts | {KEPT: ""} if self._is_kept(documents, reading) else facts

    def _is_kept(self, documents: Documents, reading: Reading) -> bool:
        """Returns True if the text is tokenised into the cache before training, and read from there."""
        from plimsoll.data.text.opening import worth_keeping

        if not self.use_streaming:
            return False
        tokens = None
        if reading.length.steps is not None:
            windows = reading.length.steps * reading.batch_size + self.shuffle_buffer_size
            tokens = windows * self.window_stride
        return worth_keeping(documents, tokens=tokens)
