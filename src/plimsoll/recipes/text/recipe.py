"""A small language model, sized by a number of parameters, on streamed text.

    plimsoll plan  stories --memory 1GiB
    plimsoll train stories --dataset-id my-texts/ --memory 1GiB --run runs/mine

Defaults are those of the published guide for this recipe, where they were sound; docs/from-the-guides.md
translates its commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plimsoll.data import STANDARD_LIBRARY, require_sizes
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import facts_of, require_same
from plimsoll.models.shape import DecoderShape
from plimsoll.models.sizing import inner_width, sized
from plimsoll.recipes.base import AdamWRecipe, Count, Prepared, Say
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import Compute, Source, Task

if TYPE_CHECKING:
    from plimsoll.data.packed.packed import Packed
    from plimsoll.data.text.documents import Documents
    from plimsoll.data.text.tokenizer import TextTokenizer

DEFAULT_EPOCHS = 3.0
TOKENIZER, VALIDATION = "tokenizer.json", "validation.npy"
KEPT = "tokens_in_cache"
"""Fact of a run whose text was tokenised before it began: the folder's name in the cache. A run without it streams."""
WINDOWS = "windows"
"""Fact of a run whose windows are permuted: how many an epoch has."""
TARGET_PARAMS = 1_000_000
DEFAULT_VOCABULARIES = (20_000_000, 4_096), (200_000_000, 32_768), (math.inf, 50_257)
"""Sizes of a tokenizer that is trained here, each for models of fewer parameters than the number before it."""
VOCABULARY = 257, 2**20
"""Smallest and largest of a tokenizer that is trained here."""


@dataclass(frozen=True, kw_only=True)
class Text(AdamWRecipe):
    """A Llama-like decoder on the windows of a token stream."""

    kind: ClassVar[str] = "stories"
    rate_unit: ClassVar[str] = "tokens"
    verbs: ClassVar[Mapping[str, Verb]] = {
        "sample": Verb(answer="plimsoll.recipes.text.sample:sample"),
        "export": Verb(answer="plimsoll.recipes.text.export:export"),
    }
    shown: ClassVar[tuple[Shown, ...]] = (
        Shown(words="what it writes", make="plimsoll.recipes.text.sample:shown", command="plimsoll sample {run}"),
    )
    supported: ClassVar[tuple[str, ...]] = (
        "precision",
        "activations",
        "unroll",
        "remat",
        "remat_offload",
        "loss_chunk",
        "attention_chunk",
        "layerwise",
    )
    loss_chunks: ClassVar[tuple[int, ...]] = (256,)
    gives_way: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **AdamWRecipe.gives_way,
        "target_params": {"width": None, "layers": None, "heads": None},
        **{name: {"target_params": TARGET_PARAMS} for name in ("width", "layers", "heads")},
        "tokenizer": {"vocab_size": None},
    }

    dataset_id: str = "skeskinen/TinyStories-Instruct-hf"
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
    max_examples: Count | None = None
    """Most documents to use. By default all."""
    shuffle_buffer_size: Count = 10_000
    """Windows of a stream that are shuffled together; text that was tokenised before is permuted whole. 0 or 1 keeps
    the order of the text."""
    validation_tokens: Count = 1_000_000
    """Most held-out tokens to evaluate on. One document in 100 is held out, chosen by its hash."""

    tokenizer: str | None = None
    """A Hugging Face tokenizer.json. By default a byte-level BPE is trained on the beginning of the text."""
    vocab_size: Count | None = None
    """Tokens of the tokenizer that is trained. By default 4,096 for models below 20M parameters, 32,768 below 200M,
    else 50,257."""
    seq_len: int = 128
    """Tokens of a training sequence."""
    stride: int | None = None
    """Tokens from the start of one sequence to that of the next. By default --seq-len: they do not overlap."""

    target_params: Count = TARGET_PARAMS
    """Approximate number of parameters; width, layers and heads follow from it."""
    width: int | None = None
    """Width of the hidden states, a multiple of --heads. Goes with --layers and --heads. By default --target-params
    decides."""
    layers: int | None = None
    """Number of transformer blocks. By default --target-params decides."""
    heads: int | None = None
    """Number of attention heads. By default --target-params decides."""
    tied: bool = True
    """Use the token embedding's weights for the output layer, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(seq_len=self.seq_len, stride=self.stride, max_examples=self.max_examples)
        require_sizes(vocab_size=self.vocab_size, width=self.width, layers=self.layers, heads=self.heads)
        require_sizes(least=0, shuffle_buffer_size=self.shuffle_buffer_size, validation_tokens=self.validation_tokens)
        if not self.dataset_id.strip():
            raise RecipeError("--dataset-id is empty: name a file, a folder, or a Hugging Face id like org/name")
        if self.tokenizer is None and self.vocab_size is not None:
            smallest, largest = VOCABULARY
            if not smallest <= self.vocab_size <= largest:
                raise RecipeError(
                    f"--vocab-size must be from {smallest} (256 bytes and an end of text) to {largest:,} for a"
                    f" tokenizer that is trained here, got {self.vocab_size:,}"
                )
        if self.window_stride > self.seq_len:
            raise RecipeError(
                f"--stride {self.stride} is longer than --seq-len {self.seq_len}: what lies between two windows would"
                " never be read. At most the length of a window; --max-examples takes less of a large set"
            )
        given = [self.width, self.layers, self.heads]
        if any(given) and not all(given):
            raise RecipeError(
                f"--width, --layers and --heads say the model's shape together, got {self.width}, {self.layers} and"
                f" {self.heads}: give all three, or --target-params alone"
            )
        if all(given) and self.target_params != TARGET_PARAMS:
            raise RecipeError(
                f"--target-params {self.target_params:,} beside a shape of --width {self.width}, --layers {self.layers}"
                f" and --heads {self.heads}: leave one of the two out. In Python, plimsoll.preset(NAME,"
                f" target_params={self.target_params}) gives up the preset's shape"
            )

    @property
    def rate_per_example(self) -> int:
        return self.seq_len

    @property
    def attention_chunks(self) -> tuple[int, ...]:
        """Scores of fewer positions are small beside the rest (notes, "Attention in blocks")."""
        return (256,) if self.seq_len > 512 else ()

    @property
    def head_columns(self) -> int:
        return self.shape.head_width

    @property
    def window_stride(self) -> int:
        return self.stride or self.seq_len

    @cached_property
    def vocab(self) -> int:
        """Rows of the embedding: the given tokenizer's, or the size that the trained one is asked for."""
        if self.tokenizer is None:
            if self.vocab_size:
                return self.vocab_size
            parameters = self.target_params
            if self.width and self.layers:
                parameters = 12 * self.layers * self.width**2
            return next(size for most, size in DEFAULT_VOCABULARIES if parameters < most)
        from plimsoll.data.text.tokenizer import tokenizer_vocab_size

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

    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return dict.fromkeys(("input_ids", "labels"), ((examples, self.seq_len), "int32"))

    def task(self, compute: Compute) -> Task:
        from plimsoll.models.language import NextToken

        return NextToken(self.shape, compute)

    def prepare(self, folder: Path, say: Say) -> Prepared:
        import numpy as np

        from plimsoll.data.kept import NotKept
        from plimsoll.data.packed.kept import tokenised
        from plimsoll.data.text.survey import collect_held_out

        if self.is_stream and self.steps is None and self.max_examples is None:
            raise RecipeError(
                f"--dataset-id {self.dataset_id} is read over the network while training, so the length of an epoch is"
                " unknown: say how many steps to train, like `plimsoll train stories --steps 10000`, or with"
                " --max-examples 100000 use and count so many documents"
            )
        if self.is_stream:
            say(f"data: asking huggingface.co for {self.dataset_id}")
        documents = self._documents()
        say(f"data: {documents.describe()}")
        tokenizer = self._make_tokenizer(folder, documents, say)
        held_out = collect_held_out(documents, tokenizer, seq_len=self.seq_len, max_tokens=self.validation_tokens)
        np.save(folder / VALIDATION, held_out, allow_pickle=False)
        if not len(held_out):
            say("validation: none, no document is held out of a set this small")
        facts: dict[str, Any] = {"description": documents.describe(), "validation_tokens": len(held_out)}
        if documents.paths is not None:
            facts["text"] = facts_of(documents.paths).to_json()
        packed = None
        if self._kept_in_cache:
            try:
                packed = tokenised(documents, tokenizer, say)
                facts[KEPT] = packed.folder.name
                facts[WINDOWS] = self._windows(packed.tokens)
            except NotKept as problem:
                say(f"tokens: the text is tokenised as training reads it, and again by every run: {problem}")
        if self.steps is not None and self.use_streaming:
            if packed is None:
                self._require_a_batch(documents, tokenizer)
            elif facts[WINDOWS] < self.effective_batch:
                raise self._too_little(packed.tokens, facts[WINDOWS])
            return Prepared(steps=self.steps, steps_per_epoch=None, facts=facts)
        return self._counted(documents, tokenizer, packed, facts, say)

    def tokenises_while_training(self, prepared: Prepared) -> bool:
        return KEPT not in prepared.facts

    def training_data_changed(self, prepared: Prepared) -> None:
        then = prepared.facts.get("text")
        if then and (paths := self._documents().paths) is not None:
            require_same(self.dataset_id, then, facts_of(paths))

    def source(self, folder: Path, *, prefetch: int) -> Source:
        from plimsoll.data.text.loader import memory_loader, packed_text_loader, text_loader
        from plimsoll.data.text.tokenizer import load_tokenizer
        from plimsoll.data.text.windows import encoding_threads

        options: dict[str, Any] = {
            "seq_len": self.seq_len,
            "stride": self.window_stride,
            "batch_size": self.effective_batch,
            "prefetch": prefetch,
        }
        order_seed = self.seed if self.shuffle_buffer_size > 1 else None
        if (packed := self._packed(folder)) is not None:
            return packed_text_loader(packed, seed=order_seed, **options)
        tokenizer = load_tokenizer(folder / TOKENIZER)
        if not self.use_streaming:
            return memory_loader(self._documents(), tokenizer, seed=order_seed, **options)
        options |= {"shuffle_buffer_size": self.shuffle_buffer_size, "threads": encoding_threads()}
        return text_loader(self._documents(), tokenizer, seed=self.seed, **options)

    def validation(self, folder: Path, *, examples: int) -> Iterable[dict[str, Any]]:
        import numpy as np

        from plimsoll.data.text.loader import windows_from_array

        tokens = np.load(folder / VALIDATION, mmap_mode="r", allow_pickle=False)
        return windows_from_array(tokens, seq_len=self.seq_len, batch_size=examples) if len(tokens) else ()

    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        from plimsoll.data.loader_bytes import (
            ENCODED_BEFORE,
            READ_FROM_CACHE,
            SOURCE_FILES,
            TEXT_IN_FLIGHT,
            loader_bytes,
            order_bytes,
            tokenizer_bytes,
        )

        held_out = self.validation_tokens if prepared is None else prepared.facts["validation_tokens"]
        resident = 0
        if not self.use_streaming:
            resident = prepared.facts["tokens"] if prepared is not None else self._documents().bytes or 0
        kept, streamed = self._read_from_cache(prepared), self._streamed(prepared)

        data = loader_bytes(
            seq_len=self.seq_len,
            batch_size=self.effective_batch,
            shuffle_buffer_size=self.shuffle_buffer_size if streamed else 0,
            prefetch=prefetch,
            resident_tokens=resident,
            vocab_size=self.vocab,
        )
        text = READ_FROM_CACHE if kept else TEXT_IN_FLIGHT if streamed else ENCODED_BEFORE
        text += 0 if kept else tokenizer_bytes(self.vocab)
        files = SOURCE_FILES if streamed and self.dataset_id == STANDARD_LIBRARY else 0
        order = order_bytes(self._permuted_windows(prepared))
        return {"data": data + text + files + order + 4 * held_out}

    def host_bytes_beside_accelerator(self, prepared: Prepared | None) -> int:
        from plimsoll.data.loader_bytes import MOST_THREADS, THREAD_BYTES

        return (MOST_THREADS - 1) * THREAD_BYTES if self._streamed(prepared) else 0

    def _permuted_windows(self, prepared: Prepared | None) -> int:
        """Returns the windows of an epoch, estimated where nobody read the text; 0 of a stream, which has a buffer."""
        from plimsoll.data.text.opening import BYTES_A_TOKEN, text_bytes

        if self._streamed(prepared):
            return 0
        if prepared is not None:
            return prepared.facts[WINDOWS]
        return text_bytes(self._documents()) // BYTES_A_TOKEN // self.window_stride

    def _read_from_cache(self, prepared: Prepared | None) -> bool:
        return self._kept_in_cache if prepared is None else KEPT in prepared.facts

    def _streamed(self, prepared: Prepared | None) -> bool:
        return self.use_streaming and not self._read_from_cache(prepared)

    @cached_property
    def _kept_in_cache(self) -> bool:
        """True if the text is tokenised before training, into the cache, and its windows are read from there."""
        from plimsoll.data.text.opening import worth_keeping

        if self.is_stream or not self.use_streaming:
            return False
        windows = None
        if self.steps is not None:
            windows = self.steps * self.effective_batch + self.shuffle_buffer_size
        return worth_keeping(self._documents(), tokens=None if windows is None else windows * self.window_stride)

    def _packed(self, folder: Path) -> Packed | None:
        """Returns the tokenised text of a prepared folder; None where it is read as training goes, or at once."""
        from plimsoll.data import read_json
        from plimsoll.data.kept import kept
        from plimsoll.data.packed.kept import tokenised
        from plimsoll.data.packed.packed import open_packed
        from plimsoll.data.text.tokenizer import load_tokenizer

        if not (path := folder / "data.json").is_file():
            return None
        name = read_json(path, absent=f"there is no {path}", again="Start a new --run")["facts"].get(KEPT)
        if name is None:
            return None
        if (there := kept(name)) is not None:
            return open_packed(there)
        return tokenised(self._documents(), load_tokenizer(folder / TOKENIZER), partial(print, flush=True))

    def _documents(self) -> Documents:
        from plimsoll.data.text.opening import open_documents

        return open_documents(
            self.dataset_id,
            config=self.dataset_config,
            split=self.split,
            text_column=self.text_column,
            max_examples=self.max_examples,
        )

    def _make_tokenizer(self, folder: Path, documents: Documents, say: Say) -> TextTokenizer:
        from plimsoll.data.text.tokenizer import load_tokenizer, train_byte_bpe

        if self.tokenizer is not None:
            tokenizer = load_tokenizer(self.tokenizer)
        else:
            tokenizer = train_byte_bpe(documents, self.vocab)
            say(f"tokenizer: byte-level BPE of {tokenizer.size:,} tokens, trained on the beginning of the text")
        tokenizer.save(folder / TOKENIZER)
        return tokenizer

    def _counted(
        self, documents: Documents, tokenizer: TextTokenizer, packed: Packed | None, facts: dict[str, Any], say: Say
    ) -> Prepared:
        from plimsoll.data.text.survey import Survey, survey

        if packed is None:
            counted = survey(documents, tokenizer, seq_len=self.seq_len, stride=self.window_stride)
        else:
            windows = self._windows(packed.tokens)
            counted = Survey(documents=packed.documents, tokens=packed.tokens, windows=windows)
        epochs = DEFAULT_EPOCHS if self.epochs is None else self.epochs
        per_epoch = counted.windows / self.effective_batch
        steps = self.steps or int(epochs * per_epoch)
        if per_epoch < 1:
            raise self._too_little(counted.tokens, counted.windows)
        if steps < 1:
            raise RecipeError(
                f"--epochs {epochs:g} of the {counted.windows:,} windows in {self.dataset_id} is less than one step of"
                f" {self.effective_batch:,}: give --epochs {1.005 / per_epoch:.3g} or more, or --steps"
            )
        say(
            f"data: {counted.documents:,} documents, {counted.tokens:,} tokens, {counted.windows:,} windows;"
            f" {epochs:g} epochs are {steps:,} steps"
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
            if windows >= self.effective_batch:
                return
        raise self._too_little(tokens, windows)

    def _windows(self, tokens: int) -> int:
        from plimsoll.data.text.survey import count_windows

        return count_windows(tokens, seq_len=self.seq_len, stride=self.window_stride)

    def _too_little(self, tokens: int, windows: int) -> DataError:
        return DataError(
            f"{self.dataset_id} has {tokens:,} tokens, {windows:,} windows of {self.seq_len}: fewer than the"
            f" {self.effective_batch:,} of one batch. Lower --batch-size or --seq-len, or point --dataset-id at more"
            " text"
        )

    @property
    def is_stream(self) -> bool:
        """True for text that is read over the network: it is not counted, and its tokens are not all seen before
        training. Raises DataError where the text is neither here nor named by an id."""
        from plimsoll.data.text.opening import require_named

        return self.dataset_id != STANDARD_LIBRARY and not require_named(self.dataset_id)

    def data_advice(self) -> str:
        return "a smaller --shuffle-buffer-size"

    def imports(self) -> tuple[str, ...]:
        return ("datasets",) if self.is_stream else self._documents().imports()


def code() -> Text:
    """Returns a recipe that learns to write Python, from the source files that came with Python itself: the demo.

    Nothing to download: the text is the standard library, found through `sysconfig`. 128 wide, 4 layers, 1.3M
    parameters, about three minutes on two cores: notes, "The demo".
    """
    return Text(
        dataset_id=STANDARD_LIBRARY,
        width=128,
        layers=4,
        heads=4,
        vocab_size=4_096,
        batch_size=16,
        gradient_accumulation_steps=4,
        steps=600,
        learning_rate=4e-3,
        weight_decay=0.1,
        beta2=0.99,
        shuffle_buffer_size=24_000,
        validation_tokens=50_000,
    )
