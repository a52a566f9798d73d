"""Fine-tune a published language model: on chats, on prompts with completions, or on texts.

    plimsoll plan  finetune --pretrained meta-llama/Llama-3.1-8B --frozen-bits 4 --seq-len 8192 --chip rtx4090
    plimsoll train finetune --pretrained FOLDER --dataset-id chats.jsonl --memory 20GiB --run runs/tuned

By default adapters of rank 16 beside every kernel are learned (levers/lora.py), and the model's own weights stay as
they are, in as many bits as --frozen-bits says. Documents are packed into rows, and attention stays within each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plimsoll.data import require_sizes
from plimsoll.errors import RecipeError
from plimsoll.files.facts import facts_of, require_same
from plimsoll.levers.lora_targets import kernels_to_adapt, patterns_of
from plimsoll.levers.records.mlp_chunk import chunks_of
from plimsoll.models.pretrained.find import find_folder, find_shape
from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.base import AdamWRecipe, Count, OwnRung, Prepared, Say
from plimsoll.recipes.finetune import data
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import Compute, Source, Task
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.chat.encoded import Encoded
    from plimsoll.data.chat.rows import PackedRows
    from plimsoll.models.pretrained.adapters import AdapterSettings

DEFAULT_EPOCHS = 1.0
PATHS = ("pretrained", "dataset_id", "validation_id", "chat_template", "init_from")
"""Fields that may name a file or a folder."""
PLANNED_DOCUMENTS = 100_000
"""Documents of a data set that nobody has named yet."""
PLANNED_TOKENS = 300
"""Tokens of one of them."""
READER_BYTES = 4 * MIB
"""What reading the encoded examples leaves in the heap."""


@dataclass(frozen=True, kw_only=True)
class Finetune(AdamWRecipe):
    """A published decoder, frozen beside adapters that are learned, or learned whole."""

    kind: ClassVar[str] = "finetune"
    rate_unit: ClassVar[str] = "tokens"
    without_validation: ClassVar[str] = (
        "no record was held out of a data set this small (1 in 100 is). Name one with --validation-id"
    )
    verbs: ClassVar[Mapping[str, Verb]] = {
        "evaluate": Verb(answer="plimsoll.recipes.finetune.use:evaluate"),
        "sample": Verb(answer="plimsoll.recipes.finetune.use:sample"),
        "export": Verb(answer="plimsoll.recipes.finetune.export:export"),
    }
    shown: ClassVar[tuple[Shown, ...]] = (
        Shown(words="what it writes", make="plimsoll.recipes.finetune.use:shown", command="plimsoll sample {run}"),
    )
    supported: ClassVar[tuple[str, ...]] = (
        "precision",
        "activations",
        "remat",
        "remat_offload",
        "loss_chunk",
        "mlp_chunk",
        "attention_chunk",
    )
    loss_chunks: ClassVar[tuple[int, ...]] = (512, 128)

    pretrained: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """Model to fine-tune: folder of a Llama, Mistral, Qwen or Gemma (config.json, .safetensors, tokenizer.json), or its
    Hugging Face id. Planning needs no download for many ids."""
    dataset_id: str = ""
    """Records to learn from: a .jsonl, .json or .parquet file, a folder of them, or a Hugging Face data set. Each
    record has `messages`, `prompt` and `completion`, or `text`. Planning needs none."""
    dataset_config: str | None = None
    """Configuration of a Hugging Face data set. By default its own default."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    validation_id: str | None = None
    """Records to evaluate on. By default 1 in 100 of those in --dataset-id."""
    max_examples: Count | None = None
    """Most records to use. By default all."""
    validation_tokens: Count = 200_000
    """Most held-out tokens to evaluate on."""
    loss_on: Literal["assistant", "all"] = "assistant"
    """Tokens that count in the loss: those of the assistant or the completion, or all. In a `text` all count."""
    chat_template: str | None = None
    """File with a chat template (jinja). By default the tokenizer's own."""
    seq_len: Count = 2048
    """Tokens of a training sequence, into which as many records are packed as fit."""
    truncate: bool = True
    """Cut records that are longer than a sequence. --no-truncate refuses them."""

    lora_rank: int = 16
    """Rank of the LoRA adapters; 0 trains the whole model."""
    lora_alpha: float | None = None
    """LoRA's alpha: adapters are scaled by alpha / rank. By default twice the rank."""
    lora_targets: str = "all-linear"
    """Kernels that get adapters: some of q,k,v,o,gate,up,down; all-linear; or a regular expression of paths like
    blocks/query/kernel."""
    lora_dropout: float = 0.0
    """Share of an adapter's input that is dropped in training."""
    rslora: bool = False
    """Scale adapters by alpha / sqrt(rank) instead of alpha / rank (rsLoRA)."""
    init_from: str | None = None
    """Folder of a PEFT adapter whose weights training starts from. By default new adapters, which change nothing at
    first."""

    batch_size: int = 8
    learning_rate: float = 2e-4
    default_warmup_steps: int | None = 10
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pretrained.strip():
            raise RecipeError("--pretrained is empty: name a model's folder, or its id like org/name")
        for name in PATHS:  # a run is continued from elsewhere, too
            value = getattr(self, name)
            if value and (path := Path(value).expanduser()).exists():
                object.__setattr__(self, name, str(path.absolute()))
        require_sizes(least=2, seq_len=self.seq_len)
        require_sizes(max_examples=self.max_examples, validation_tokens=self.validation_tokens)
        if self.lora_rank < 0:
            raise RecipeError(f"--lora-rank must be 0 (the whole model is learned) or more, got {self.lora_rank}")
        if not 0 <= self.lora_dropout < 1:
            raise RecipeError(f"--lora-dropout must be from 0 to below 1, got {self.lora_dropout:g}")
        if self.lora_alpha is not None and not 0 < self.lora_alpha < math.inf:
            raise RecipeError(f"--lora-alpha must be above 0 and finite, got {self.lora_alpha:g}")
        given = [
            f"--{name.replace('_', '-')}"
            for name in ("lora_alpha", "lora_targets", "lora_dropout", "rslora", "init_from")
            if getattr(self, name) != type(self).__dataclass_fields__[name].default
        ]
        if not self.lora_rank and given:
            raise RecipeError(
                f"--lora-rank 0 learns the whole model, and {', '.join(given)} are of adapters: leave them out, or give"
                " a rank"
            )

    @property
    def rate_per_example(self) -> int:
        return self.seq_len

    @property
    def supported_levers(self) -> tuple[str, ...]:
        further = ("frozen_bits", "embedding_bits") if self.lora_rank else ("layerwise", "unroll")
        return (*super().supported_levers, *further)

    @property
    def attention_chunks(self) -> tuple[int, ...]:
        """Scores of fewer positions are small beside the rest (notes, "Attention in blocks")."""
        return (256,) if self.seq_len > 512 else ()

    @property
    def mlp_chunks(self) -> tuple[int, ...]:
        return chunks_of(self.seq_len)

    @property
    def ladder(self) -> tuple[OwnRung, ...]:
        from plimsoll.recipes.finetune.ladder import finetune_rungs

        return finetune_rungs(self)

    @property
    def head_columns(self) -> int:
        return self.shape.head_width

    @property
    def adapter(self) -> AdapterSettings:
        """Settings of the adapters, as PEFT names them."""
        from plimsoll.models.pretrained.adapters import AdapterSettings

        alpha = 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha
        return AdapterSettings(
            rank=self.lora_rank, alpha=alpha, rslora=self.rslora, dropout=self.lora_dropout, base=self.pretrained
        )

    @cached_property
    def shape(self) -> DecoderShape:
        """Shape of the published model, which the options fit."""
        shape = find_shape(self.pretrained)
        if self.seq_len > shape.positions:
            raise RecipeError(
                f"--seq-len {self.seq_len:,} is more than the {shape.positions:,} tokens that {self.pretrained} was"
                " made to read at once: lower it to that, or name a model that reads more"
            )
        if self.lora_rank:
            kernels_to_adapt(shape.leaves(), patterns_of(self.lora_targets), self.lora_rank)
        return shape

    @property
    def adapted(self) -> tuple[str, ...]:
        """Paths of the kernels beside which adapters are learned."""
        return tuple(kernels_to_adapt(self.shape.leaves(), patterns_of(self.lora_targets), self.lora_rank))

    def most(self, option: str) -> tuple[int, str] | None:
        if option == "seq_len":
            return find_shape(self.pretrained).positions, f"the tokens that {self.pretrained} was made to read at once"
        if option == "lora_rank":
            leaves = find_shape(self.pretrained).leaves()
            kernels = kernels_to_adapt(leaves, patterns_of(self.lora_targets), rank=1)
            narrowest = min(min(sides[-2:]) for sides in kernels.values())
            return narrowest, "the narrowest side of the kernels of --lora-targets"
        return super().most(option)

    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        from plimsoll.data.chat.row_bytes import DTYPES

        return {name: ((examples, self.seq_len), dtype) for name, dtype in DTYPES.items()}

    def task(self, compute: Compute) -> Task:
        from plimsoll.levers.lora import LoRA
        from plimsoll.recipes.finetune.task import Blank

        if not self.lora_rank:
            return Blank(self.shape, compute)
        adapter = self.adapter
        return LoRA(
            Blank(self.shape, compute, frozen=True),
            self.lora_targets,
            rank=adapter.rank,
            alpha=adapter.alpha,
            rslora=adapter.rslora,
            dropout=adapter.dropout,
        )

    def begin(self, params: Any) -> Any:
        """Returns the parameters with the published weights, and the adapter of --init-from."""
        from plimsoll.recipes.finetune.task import whole_of

        if not self.lora_rank:
            return whole_of(params, find_folder(self.pretrained), self.shape)
        params = params | {"frozen": self.given_frozen(params["frozen"])}
        if self.init_from is None:
            return params
        from plimsoll.models.pretrained.adapters import read_adapter

        learned, _ = read_adapter(self.init_from, self.shape, rank=self.lora_rank, targets=params["trainable"].keys())
        return params | {"trainable": learned}

    @property
    def frozen_is_given(self) -> bool:
        return self.lora_rank > 0

    def given_frozen(self, frozen: Any) -> Any:
        from plimsoll.recipes.finetune.task import base_of

        return base_of(frozen, find_folder(self.pretrained), self.shape)

    @property
    def begins_with(self) -> str:
        return "--pretrained" + ("" if self.init_from is None else ", --init-from")

    def prepare(self, folder: Path, say: Say) -> Prepared:
        from plimsoll.data.chat.tokenizer import save_chat_tokenizer
        from plimsoll.models.pretrained.safetensors_folder import checked

        data.records(self)  # refused before what takes longer, like all that follows
        model = find_folder(self.pretrained)
        checked(model, self.shape)
        data.require_adapter(self)
        tokenizer = data.tokenizer_of_model(self, model)
        save_chat_tokenizer(model, folder / data.TOKENIZER, chat_template=self.chat_template)
        encoded = {part: data.encoded(self, part, tokenizer, say) for part in data.parts(self)}
        learned = encoded["data"]
        rows = self._rows(learned)
        packing = rows.packing()
        for line in packing.lines():
            say(line)
        data.require_batch(self, packing)
        held_out = encoded["validation"].train if "validation" in encoded else learned.validation
        if not held_out.count:
            say(f"validation: none, and `plimsoll evaluate` will refuse this run: {self.without_validation}")
        facts = {
            "description": f"{packing.documents:,} documents, {packing.tokens:,} tokens in {self.dataset_id}",
            "packing": asdict(packing),
            "model": facts_of(data.weight_files(model)).to_json(),
            **{part: examples.made_with.to_json() for part, examples in encoded.items()},
            "conversations": learned.conversations,
            "day": learned.day,
        }
        epochs = self.epochs or DEFAULT_EPOCHS
        steps = self.steps or max(1, int(rows.rows_of(epochs) / self.effective_batch))
        # Each epoch packs its rows anew, in a few more or fewer than another.
        per_epoch = packing.rows if self.steps else rows.rows_of(epochs) / epochs or packing.rows
        return Prepared(steps=steps, steps_per_epoch=per_epoch / self.effective_batch, facts=facts)

    def data_changed(self, prepared: Prepared) -> None:
        files = data.weight_files(find_folder(self.pretrained))
        require_same(self.pretrained, prepared.facts["model"], facts_of(files))

    def training_data_changed(self, prepared: Prepared) -> None:
        self.data_changed(prepared)
        data.require_same_examples(self, prepared.facts)

    def source(self, folder: Path, *, prefetch: int) -> Source:
        from plimsoll.data.loader import Loader

        return Loader(self._rows(data.encoded_of_run(self, folder, "data")), prefetch=prefetch)

    def validation(self, folder: Path, *, examples: int) -> Iterable[dict[str, Any]]:
        from plimsoll.data.chat.rows import validation_rows

        documents = data.held_out_of_run(self, folder)
        return validation_rows(documents, seq_len=self.seq_len, batch_size=examples, max_tokens=self.validation_tokens)

    def _rows(self, encoded: Encoded) -> PackedRows:
        from plimsoll.data.chat.rows import PackedRows

        return PackedRows(
            encoded.train,
            seq_len=self.seq_len,
            batch_size=self.effective_batch,
            seed=self.seed,
            truncate=self.truncate,
            name=self.dataset_id,
        )

    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        from plimsoll.data.chat.row_bytes import rows_bytes

        known = {} if prepared is None else prepared.facts["packing"]
        rows = rows_bytes(
            documents=known.get("documents", PLANNED_DOCUMENTS),
            tokens=known.get("tokens", PLANNED_DOCUMENTS * PLANNED_TOKENS),
            seq_len=self.seq_len,
            batch_size=self.effective_batch,
            prefetch=prefetch,
        )
        return {"data": rows + READER_BYTES}

    def data_advice(self) -> str:
        return "a smaller --batch-size"

    def imports(self) -> tuple[str, ...]:
        return ("plimsoll.data.chat.rows",)
