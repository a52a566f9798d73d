"""Windows of a stream of text: files, folders, or a Hugging Face data set that is streamed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from plimsoll.data import STANDARD_LIBRARY
from plimsoll.errors import DataError, RecipeError
from plimsoll.options import IS_PATH, FilePath, Metavar, NonNegativeCount, PositiveCount, PositiveInt
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import TokenSpec
from plimsoll.types import Source

if TYPE_CHECKING:
    from plimsoll.data.packed.packed import Packed
    from plimsoll.data.text.documents import Documents
    from plimsoll.data.text.tokenizer import TextTokenizer

TOKENIZER, VALIDATION = "tokenizer.json", "validation.npy"
KEPT = "tokens_in_cache"
"""Fact of a run whose text was tokenised before it began: the folder's name in the cache. A run without it streams."""
WINDOWS = "windows"
"""Fact of a run whose windows are permuted: how many an epoch has."""
SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 257, 2**20
"""Of a tokenizer that is trained here: 256 bytes and an end of text, at least."""
VOCABULARY = 4_096
"""Tokens of a tokenizer that is trained for a model that asks for none."""


@dataclass(frozen=True, kw_only=True)
class Text(Data):
    """Windows of text, tokenised before training or as it goes."""

    name = "text"
    gives = TokenSpec
    gives_way: ClassVar = {"tokenizer": {"vocab_size": None}}

    dataset_id: Annotated[str, IS_PATH, Metavar("TEXT")] = "skeskinen/TinyStories-Instruct-hf"
    """Text to learn from: a file or folder (.txt, .jsonl, .parquet, also gzip or zstd), or a Hugging Face data set,
    which is streamed."""
    dataset_config: str | None = None
    """Configuration of a Hugging Face data set. By default its own default."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""
    use_streaming: bool = True
    """Read the text while training. --no-use-streaming loads all tokens into memory first; the plan counts them."""
    max_examples: PositiveCount | None = None
    """Most documents to use. By default all."""
    shuffle_buffer_size: NonNegativeCount = 10_000
    """Windows of a stream that are shuffled together; text that was tokenised before is permuted whole. 0 or 1 keeps
    the order of the text."""
    validation_tokens: NonNegativeCount = 1_000_000
    """Most held-out tokens to evaluate on. One document in 100 is held out, chosen by its hash."""

    tokenizer: FilePath | None = None
    """A Hugging Face tokenizer.json. By default a byte-level BPE is trained on the beginning of the text."""
    vocab_size: PositiveCount | None = None
    """Tokens of the tokenizer that is trained. By default 4,096 for models below 20M parameters, 32,768 below 200M,
    else 50,257."""
    seq_len: PositiveInt = 128
    """Tokens of a training sequence."""
    stride: PositiveInt | None = None
    """Tokens from the start of one sequence to that of the next. By default --seq-len: they do not overlap."""

    def check_options(self) -> None:
        if not self.dataset_id.strip():
            raise RecipeError("--dataset-id is empty: name a file, a folder, or a Hugging Face id like org/name")
        size = self.vocab_size if self.tokenizer is None else None
        if size is not None and not SMALLEST_VOCABULARY <= size <= LARGEST_VOCABULARY:
            raise RecipeError(
                f"--vocab-size must be from {SMALLEST_VOCABULARY} (256 bytes and an end of text) to"
                f" {LARGEST_VOCABULARY:,} for a tokenizer that is trained here, got {size:,}"
            )
        if self.window_stride > self.seq_len:
            raise RecipeError(
                f"--stride {self.stride} is longer than --seq-len {self.seq_len}: what lies between two windows would"
                " never be read. At most the length of a window; --max-examples takes less of a large set"
            )

    @property
    def window_stride(self) -> int:
        """Tokens from the start of one window to that of the next."""
        return self.stride or self.seq_len

    def vocab(self, needs: Needs) -> int:
        """Returns the size of the named tokenizer, or that of the one that is trained."""
        if self.tokenizer is None:
            return self.vocab_size or needs.vocabulary or VOCABULARY
        from plimsoll.data.text.tokenizer import tokenizer_vocab_size

        size = tokenizer_vocab_size(self.tokenizer)
        if self.vocab_size is not None and self.vocab_size < size:
            raise RecipeError(
                f"--tokenizer {self.tokenizer} has ids up to {size - 1:,}, but --vocab-size {self.vocab_size:,} gives"
                f" the model only {self.vocab_size:,} rows: leave --vocab-size out, or make it at least {size:,}"
            )
        return self.vocab_size or size

    def spec(self, needs: Needs) -> TokenSpec:
        tokens = (self.seq_len,), "int32"
        return TokenSpec(
            arrays={"input_ids": tokens, "labels": tokens},
            tokens=self.seq_len,
            vocab=self.vocab(needs),
            length=self.seq_len,
        )

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        return TextDataset(self, Path(), reading).memory(prepared, prefetch=prefetch)

    def open(self, folder: Path, reading: Reading) -> TextDataset:
        return TextDataset(self, folder, reading)

    def imports(self) -> tuple[str, ...]:
        return ("datasets",) if self.is_stream else self.documents.imports()

    @property
    def is_stream(self) -> bool:
        """True for text that is read over the network: it is not counted, and its tokens are not all seen before
        training. Raises DataError where the text is neither here nor named by an id."""
        from plimsoll.data.text.opening import require_named

        return self.dataset_id != STANDARD_LIBRARY and not require_named(self.dataset_id)

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


@dataclass(frozen=True)
class TextDataset:
    """The text of one run."""

    data: Text
    folder: Path
    reading: Reading

    def prepare(self, say: Say) -> Prepared:
        import numpy as np

        from plimsoll.data.kept import NotKept
        from plimsoll.data.packed.kept import tokenised
        from plimsoll.data.text.survey import collect_held_out

        data, length = self.data, self.reading.length
        if data.is_stream and length.steps is None and data.max_examples is None:
            raise RecipeError(
                f"--dataset-id {data.dataset_id} is read over the network while training, so the length of an epoch is"
                " unknown: say how many steps to train, like `plimsoll train stories --steps 10000`, or with"
                " --max-examples 100000 use and count so many documents"
            )
        if data.is_stream:
            say(f"data: asking huggingface.co for {data.dataset_id}")

        # The tokenizer, and the text to evaluate on.
        documents = data.documents
        say(f"data: {documents.describe()}")
        tokenizer = self._make_tokenizer(documents, say)
        held_out = collect_held_out(documents, tokenizer, seq_len=data.seq_len, max_tokens=data.validation_tokens)
        np.save(self.folder / VALIDATION, held_out, allow_pickle=False)
        if not len(held_out):
            say("validation: none, no document is held out of a set this small")
        facts: dict[str, Any] = {"description": documents.describe(), "validation_tokens": len(held_out)}
        if documents.paths is not None:
            from plimsoll.files.facts import facts_of

            facts["text"] = facts_of(documents.paths).to_json()

        # The tokens, where they are worth keeping.
        packed = None
        if self._is_kept:
            try:
                packed = tokenised(documents, tokenizer, say)
                facts[KEPT] = packed.folder.name
                facts[WINDOWS] = self._windows(packed.tokens)
            except NotKept as problem:
                say(f"tokens: the text is tokenised as training reads it, and again by every run: {problem}")

        # The length of the run, for which all text is counted unless it is given in steps.
        if length.steps is None or not data.use_streaming:
            return self._counted(documents, tokenizer, packed, facts, say)
        if packed is None:
            self._require_a_batch(documents, tokenizer)
        elif facts[WINDOWS] < self.reading.batch_size:
            raise self._too_little(packed.tokens, facts[WINDOWS])
        return Prepared(steps=length.steps, steps_per_epoch=None, facts=facts)

    def require_same(self, prepared: Prepared, *, training: bool) -> None:
        from plimsoll.files.facts import facts_of, require_same

        then = prepared.facts.get("text") if training else None  # evaluation reads what the run keeps
        if then and (paths := self.data.documents.paths) is not None:
            require_same(self.data.dataset_id, then, facts_of(paths))

    def source(self, *, prefetch: int) -> Source:
        from plimsoll.data.text.loader import memory_loader, packed_text_loader, text_loader
        from plimsoll.data.text.tokenizer import load_tokenizer
        from plimsoll.data.text.windows import encoding_threads

        data, seed = self.data, self.reading.seed
        options: dict[str, Any] = {
            "seq_len": data.seq_len,
            "stride": data.window_stride,
            "batch_size": self.reading.batch_size,
            "prefetch": prefetch,
        }
        order_seed = seed if data.shuffle_buffer_size > 1 else None
        if (packed := self._packed()) is not None:
            return packed_text_loader(packed, seed=order_seed, **options)
        tokenizer = load_tokenizer(self.folder / TOKENIZER)
        if not data.use_streaming:
            return memory_loader(data.documents, tokenizer, seed=order_seed, **options)
        options |= {"shuffle_buffer_size": data.shuffle_buffer_size, "threads": encoding_threads()}
        return text_loader(data.documents, tokenizer, seed=seed, **options)

    def validation(self, *, examples: int) -> Iterable[Batch]:
        import numpy as np

        from plimsoll.data.text.loader import windows_from_array

        tokens = np.load(self.folder / VALIDATION, mmap_mode="r", allow_pickle=False)
        return windows_from_array(tokens, seq_len=self.data.seq_len, batch_size=examples) if len(tokens) else ()

    def memory(self, prepared: Prepared | None, *, prefetch: int) -> HostMemory:
        """Returns the host memory that reading takes; an estimate before anything is prepared."""
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

        data, vocab = self.data, self.data.vocab(self.reading.needs)
        is_kept = self._is_kept if prepared is None else KEPT in prepared.facts
        is_streamed = data.use_streaming and not is_kept

        # Tokens that stay in memory: those to evaluate on, and all of them where they are loaded first.
        held_out = data.validation_tokens if prepared is None else prepared.facts["validation_tokens"]
        resident = 0
        if not data.use_streaming:
            resident = prepared.facts["tokens"] if prepared is not None else data.documents.bytes or 0

        # What reads them.
        windows = loader_bytes(
            seq_len=data.seq_len,
            batch_size=self.reading.batch_size,
            shuffle_buffer_size=data.shuffle_buffer_size if is_streamed else 0,
            prefetch=prefetch,
            resident_tokens=resident,
            vocab_size=vocab,
        )
        text = READ_FROM_CACHE if is_kept else TEXT_IN_FLIGHT if is_streamed else ENCODED_BEFORE
        text += 0 if is_kept else tokenizer_bytes(vocab)
        files = SOURCE_FILES if is_streamed and data.dataset_id == STANDARD_LIBRARY else 0
        order = 0 if is_streamed else order_bytes(self._permuted_windows(prepared))
        return HostMemory(
            bytes=windows + text + files + order + 4 * held_out,
            beside_accelerator=(MOST_THREADS - 1) * THREAD_BYTES if is_streamed else 0,
            advice="a smaller --shuffle-buffer-size",
        )

    def _permuted_windows(self, prepared: Prepared | None) -> int:
        """Returns the windows of an epoch, estimated where nobody read the text."""
        from plimsoll.data.text.opening import BYTES_A_TOKEN, text_bytes

        if prepared is not None:
            return prepared.facts[WINDOWS]
        return text_bytes(self.data.documents) // BYTES_A_TOKEN // self.data.window_stride

    @cached_property
    def _is_kept(self) -> bool:
        """True if the text is tokenised before training, into the cache, and its windows are read from there."""
        from plimsoll.data.text.opening import worth_keeping

        data, steps = self.data, self.reading.length.steps
        if data.is_stream or not data.use_streaming:
            return False
        tokens = None
        if steps is not None:
            windows = steps * self.reading.batch_size + data.shuffle_buffer_size
            tokens = windows * data.window_stride
        return worth_keeping(data.documents, tokens=tokens)

    def _packed(self) -> Packed | None:
        """Returns the tokenised text of a prepared folder; None where it is read as training goes, or at once."""
        from plimsoll.data import read_json
        from plimsoll.data.kept import kept
        from plimsoll.data.packed.kept import tokenised
        from plimsoll.data.packed.packed import open_packed
        from plimsoll.data.text.tokenizer import load_tokenizer

        path = self.folder / "data.json"
        if not path.is_file():
            return None
        name = read_json(path, absent=f"there is no {path}", again="Start a new --run")["facts"].get(KEPT)
        if name is None:
            return None
        if (there := kept(name)) is not None:
            return open_packed(there)
        return tokenised(self.data.documents, load_tokenizer(self.folder / TOKENIZER), partial(print, flush=True))

    def _make_tokenizer(self, documents: Documents, say: Say) -> TextTokenizer:
        from plimsoll.data.text.tokenizer import load_tokenizer, train_byte_bpe

        if self.data.tokenizer is not None:
            tokenizer = load_tokenizer(self.data.tokenizer)
        else:
            tokenizer = train_byte_bpe(documents, self.data.vocab(self.reading.needs))
            say(f"tokenizer: byte-level BPE of {tokenizer.size:,} tokens, trained on the beginning of the text")
        tokenizer.save(self.folder / TOKENIZER)
        return tokenizer

    def _counted(
        self, documents: Documents, tokenizer: TextTokenizer, packed: Packed | None, facts: dict[str, Any], say: Say
    ) -> Prepared:
        from plimsoll.data.text.survey import Survey, survey

        # All text is counted, unless it was tokenised.
        data, batch, length = self.data, self.reading.batch_size, self.reading.length
        if packed is None:
            counted = survey(documents, tokenizer, seq_len=data.seq_len, stride=data.window_stride)
        else:
            windows = self._windows(packed.tokens)
            counted = Survey(documents=packed.documents, tokens=packed.tokens, windows=windows)
        per_epoch = counted.windows / batch
        if per_epoch < 1:
            raise self._too_little(counted.tokens, counted.windows)

        # The length of the run.
        steps, epochs = length.steps, None
        if steps is None:
            epochs = length.epochs_of(data.dataset_id)
            steps = int(epochs * per_epoch)
        if steps < 1:
            raise RecipeError(
                f"--epochs {epochs:g} of the {counted.windows:,} windows in {data.dataset_id} is less than one step of"
                f" {batch:,}: give --epochs {1.005 / per_epoch:.3g} or more, or --steps"
            )
        say(
            f"data: {counted.documents:,} documents, {counted.tokens:,} tokens, {counted.windows:,} windows;"
            f" {steps:,} steps are {steps / per_epoch:.3g} epochs"
        )
        facts |= {"tokens": counted.tokens, WINDOWS: counted.windows}
        return Prepared(steps=steps, steps_per_epoch=per_epoch, facts=facts)

    def _require_a_batch(self, documents: Documents, tokenizer: TextTokenizer) -> None:
        """Reads no further than one batch."""
        tokens = windows = 0
        for piece in documents.pieces():
            if not piece.held_out:
                tokens += len(tokenizer.encode_pieces([piece]))
            windows = self._windows(tokens)
            if windows >= self.reading.batch_size:
                return
        raise self._too_little(tokens, windows)

    def _windows(self, tokens: int) -> int:
        from plimsoll.data.text.survey import count_windows

        return count_windows(tokens, seq_len=self.data.seq_len, stride=self.data.window_stride)

    def _too_little(self, tokens: int, windows: int) -> DataError:
        return DataError(
            f"{self.data.dataset_id} has {tokens:,} tokens, {windows:,} windows of {self.data.seq_len}: fewer than the"
            f" {self.reading.batch_size:,} of one batch. Lower --batch-size or --seq-len, or point --dataset-id at more"
            " text"
        )
