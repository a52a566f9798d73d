"""A language model that reads 32,768 tokens at the price per token of 2,048: linear recurrences over packed text.

    plimsoll prepare longcontext --dataset-id python:standard-library --out packed/
    plimsoll train longcontext --data packed/ --memory 1GiB --run runs/long
    plimsoll plan  longcontext-small-32k --chip h200

Defaults are a model for a laptop; `presets.py` has the published sizes, docs/longcontext.md what to expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plimsoll.data import require_sizes
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, facts_of, require_same
from plimsoll.models.sizing import HEAD_WIDTHS
from plimsoll.optimizers.adamw import AdamW
from plimsoll.recipes.base import AdamWRecipe, Count, Prepared, Say
from plimsoll.recipes.longcontext.eigen_shape import EigenShape, Mixing, eigen_inner
from plimsoll.recipes.longcontext.positions import BY_POSITION, PREFIX, by_position
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import COUNTED, Compute, Source, Task

if TYPE_CHECKING:
    from plimsoll.data.packed.packed import Packed

GPT2_VOCABULARY = 50_257
LARGEST_VOCABULARY = 2**31
DEFAULT_EPOCHS = 1.0
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class LongContext(AdamWRecipe):
    """Diagonal complex linear recurrences between SwiGLUs, without a table of positions, on windows of packed text."""

    kind: ClassVar[str] = "longcontext"
    rate_unit: ClassVar[str] = "tokens"
    verbs: ClassVar[Mapping[str, Verb]] = {
        "evaluate": Verb(text="plimsoll.recipes.longcontext.tables:evaluation"),
        "sample": Verb(answer="plimsoll.recipes.longcontext.streaming:sample"),
    }
    shown: ClassVar[tuple[Shown, ...]] = (
        Shown(
            words="what it writes",
            make="plimsoll.recipes.longcontext.streaming:shown",
            command="plimsoll sample {run}",
        ),
    )
    without_validation: ClassVar[str] = (
        "its held-out documents have fewer tokens than one window, or --validation-tokens is 0. Pack more text, or take"
        " a smaller --seq-len"
    )
    supported: ClassVar[tuple[str, ...]] = (
        "precision",
        "activations",
        "unroll",
        "remat",
        "remat_offload",
        "loss_chunk",
        "layerwise",
    )
    loss_chunks: ClassVar[tuple[int, ...]] = (2048, 256)
    loss_whole: ClassVar[bool] = False

    data: str = ""
    """Folder with packed tokens, which `plimsoll prepare longcontext` writes. Planning needs none."""
    vocab_size: Count | None = None
    """Rows of the embedding. By default what --data was packed with; 50,257 (GPT-2) to plan without data."""
    seq_len: Count = 1024
    """Tokens of a training sequence."""
    validation_tokens: Count = 1_000_000
    """Most held-out tokens to evaluate on, in whole sequences, at least one. 0 for none."""
    workers: int = 0
    """Threads that read data in parallel."""

    width: int = 128
    """Width of the hidden states."""
    layers: int = 4
    """Number of blocks: a recurrence, or attention, and a SwiGLU."""
    states: int = 64
    """Complex numbers in the recurrent state of a layer."""
    inner: int | None = None
    """Width of the SwiGLU. By default 7/3 of --width, which with its gate costs as much as a plain part of 4 x
    --width."""
    tied: bool = True
    """Use the token embedding's weights for the output layer, too."""
    r_min: float = 0.9
    """Least share of a recurrent state that a token leaves, at initialisation; see --r-max."""
    r_max: float = 0.9999
    """Largest share of a recurrent state that a token leaves, at initialisation: after n tokens r^n is left. r^2 is
    spread evenly from --r-min^2 to --r-max^2."""
    max_phase: float = 2 * math.pi
    """Largest angle, in radians, by which a token turns a state at initialisation; they are spread evenly from 0."""
    attention_every: int = 0
    """Every how many layers one is attention instead of a recurrence; 0 for none."""
    attention_window: Count = 0
    """Tokens that an attention layer sees, its own included; 0 for all before it, whose cost grows with --seq-len."""
    heads: int | None = None
    """Number of heads in attention layers. By default --width / 64."""
    form: Mixing = "auto"
    """Algorithm that computes the recurrence; results differ by rounding. auto: steps on a CPU, matmul elsewhere."""
    chunk_size: int = 256
    """Tokens that are computed side by side. Affects only speed and memory."""

    batch_size: int = 8
    epochs: float | None = None
    """Passes over the data, instead of --steps. By default 1."""
    learning_rate: float = 3e-4
    warmup_steps: int | None = 0
    """Optimizer steps over which the learning rate rises from 0 to its peak; 0 for --warmup-fraction of the run."""
    default_warmup_steps: int | None = None
    """Most optimizer steps of the warm-up, if --warmup-steps is not given. By default only --warmup-fraction counts."""
    warmup_fraction: float = 0.1
    """Share of the run that is warm-up; afterwards a cosine decays to zero."""

    seed: int = 0
    """Seed for the initial parameters and the order of the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data:  # a run is continued and evaluated from other folders, too
            object.__setattr__(self, "data", str(Path(self.data).expanduser().absolute()))
        require_sizes(seq_len=self.seq_len)
        require_sizes(least=0, validation_tokens=self.validation_tokens, workers=self.workers)
        if self.vocab_size is not None and not 1 <= self.vocab_size <= LARGEST_VOCABULARY:
            raise RecipeError(f"--vocab-size must be from 1 to {LARGEST_VOCABULARY:,}, got {self.vocab_size:,}")
        _ = self._shape(1)  # its own checks
        if self.heads is not None and not self.attention_every:
            raise RecipeError(
                f"--heads {self.heads} is of layers that attend, and there are none: give --attention-every, or leave"
                " it out"
            )

    @property
    def supported_levers(self) -> tuple[str, ...]:
        return (*super().supported_levers, "attention_chunk") if self.attention_every else super().supported_levers

    @property
    def attention_chunks(self) -> tuple[int, ...]:
        return (256,) if self.attention_every and self.seq_len > 512 else ()

    def optimizer(self, steps: int) -> AdamW:
        """Returns AdamW with a one-cycle schedule: warm-up for a tenth of the run, then a cosine to zero."""
        return replace(
            super().optimizer(steps),
            warmup_steps=self.warmup_steps or None,
            warmup_fraction=self.warmup_fraction,
            final_fraction=0.0,
        )

    @property
    def rate_per_example(self) -> int:
        return self.seq_len

    @cached_property
    def packed(self) -> Packed:
        """The opened folder of packed text."""
        if not self.data:
            raise RecipeError(
                "--data is missing: name a packed folder. `plimsoll prepare longcontext --dataset-id TEXT --out"
                " packed/` makes one"
            )
        from plimsoll.data.packed.packed import open_packed

        return open_packed(self.data)

    @cached_property
    def shape(self) -> EigenShape:
        if not self.data:
            return self._shape(self.vocab_size or GPT2_VOCABULARY)
        packed = self.packed.vocab_size
        if self.vocab_size is not None and self.vocab_size < packed:
            raise RecipeError(
                f"{self.data} was packed with a vocabulary of {packed:,}, but --vocab-size {self.vocab_size:,} gives"
                f" the model only {self.vocab_size:,} rows: leave --vocab-size out, or make it at least {packed:,}"
            )
        return self._shape(self.vocab_size or packed)

    def _shape(self, vocab: int) -> EigenShape:
        head_width = next((size for size in HEAD_WIDTHS if self.width % size == 0), self.width)
        return EigenShape(
            vocab=vocab,
            width=self.width,
            layers=self.layers,
            heads=self.heads or self.width // head_width,
            inner=self.inner or eigen_inner(self.width),
            tied=self.tied,
            window=self.attention_window,
            states=self.states,
            r_min=self.r_min,
            r_max=self.r_max,
            max_phase=self.max_phase,
            attention_every=self.attention_every,
            mixing=self.form,
            chunk_size=self.chunk_size,
        )

    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        smallest = "uint16" if self.shape.vocab <= 2**16 else "uint32"
        return {"tokens": ((examples, self.seq_len + 1), self.packed.dtype if self.data else smallest)}

    def evaluation_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return self.batch_spec(examples) | {COUNTED: ((examples,), "bool")}

    def task(self, compute: Compute) -> Task:
        from plimsoll.recipes.longcontext.task import LongTokens

        return LongTokens(self.shape, compute)

    def prepare(self, folder: Path, say: Say) -> Prepared:
        packed = self.packed
        _ = self.shape  # whether its vocabulary is enough
        windows = packed.windows(self.seq_len)
        per_epoch = windows / self.effective_batch
        if per_epoch < 1:
            raise DataError(
                f"{self.data} has {packed.tokens:,} tokens to train on, {windows:,} windows of {self.seq_len:,}: fewer"
                f" than the {self.effective_batch:,} of one batch. Lower --seq-len or --batch-size, or pack more text"
            )
        (folder / TOKENIZER).write_bytes((packed.folder / TOKENIZER).read_bytes())  # as every run has it
        steps = self.steps or max(1, int((self.epochs or DEFAULT_EPOCHS) * per_epoch))
        description = f"{packed.tokens:,} tokens of {packed.documents:,} documents ({packed.source}) in {self.data}"
        held_out = self._held_out_windows
        say(
            f"data: {description}; {windows:,} windows of {self.seq_len:,}, {held_out:,} held out; {steps:,} steps are"
            f" {steps / per_epoch:.3g} epochs"
        )
        if not held_out and self.validation_tokens:
            say("validation: none, the held-out documents have fewer tokens than one window")
        facts = {"description": description, "packed": self._facts().to_json()}
        return Prepared(steps=steps, steps_per_epoch=per_epoch, facts=facts)

    def data_changed(self, prepared: Prepared) -> None:
        require_same(self.data, prepared.facts["packed"], self._facts())

    def _facts(self) -> Facts:
        return facts_of(self.packed.files, vocab_size=self.packed.vocab_size)

    def without_data(self, prepared: Prepared) -> LongContext:
        return replace(self, data="", vocab_size=self.vocab_size or prepared.facts["packed"]["options"]["vocab_size"])

    def source(self, folder: Path, *, prefetch: int) -> Source:
        from plimsoll.data.packed.windows import packed_loader

        return packed_loader(
            self.data,
            seq_len=self.seq_len,
            batch_size=self.effective_batch,
            seed=self.seed,
            prefetch=prefetch,
            workers=self.workers,
        )

    @property
    def _held_out_windows(self) -> int:
        windows = max(0, self.packed.validation_tokens - 1) // self.seq_len
        return min(windows, max(1, self.validation_tokens // self.seq_len)) if self.validation_tokens else 0

    def validation(self, folder: Path, *, examples: int) -> Iterator[dict[str, Any]]:
        import numpy as np

        from plimsoll.data.packed.windows import packed_validation

        windows = self._held_out_windows
        batches = packed_validation(self.data, seq_len=self.seq_len, batch_size=examples)
        for number, batch in enumerate(islice(batches, -(-windows // examples))):
            wanted = np.arange(examples) < windows - number * examples
            yield batch | {COUNTED: batch[COUNTED] & wanted}

    def reported(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the loss, and a table of it by position."""
        rest = {name: value for name, value in metrics.items() if not name.startswith(PREFIX)}
        return rest | {BY_POSITION: by_position(metrics, self.seq_len)}

    def exhibits(self, metrics: Mapping[str, float], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        losses = by_position(metrics, self.seq_len)
        if len(losses) < 2:
            return []
        return [
            {
                "kind": "curves",
                "title": "Loss by position",
                "caption": "Does a token gain from what lies far before it? Where the curve still falls, it does. Means"
                " over stretches of positions, at the last evaluation.",
                "x_label": "position in the window, counted from 1 (logarithmic)",
                "y_label": "loss, nats per token",
                "x": [int(stretch.split(" to ")[0]) + 1 for stretch in losses],
                "y": {"held-out documents": list(losses.values())},
                "logarithmic": True,
            }
        ]

    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        from plimsoll.data.loader_bytes import READ_PACKED
        from plimsoll.data.packed.packed import packed_bytes

        _, dtype = self.batch_spec(1)["tokens"]
        itemsize = {"uint16": 2, "uint32": 4}[dtype]
        sizes = {"seq_len": self.seq_len, "batch_size": self.effective_batch, "itemsize": itemsize}
        windows = self.packed.windows(self.seq_len) if self.data else 0
        return {"data": READ_PACKED + packed_bytes(windows=windows, **sizes, prefetch=prefetch)}

    def data_advice(self) -> str:
        return "a smaller --batch-size"
