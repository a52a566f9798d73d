"""Fine-tune a published language model: on chats, on prompts with completions, or on texts.

    plimsoll plan  finetune --pretrained meta-llama/Llama-3.1-8B --frozen-bits 4 --seq-len 8192 --chip rtx4090
    plimsoll train finetune --pretrained FOLDER --dataset-id chats.jsonl --memory 20GiB --run runs/tuned

By default adapters of rank 16 beside every kernel are trained (levers/lora.py), and the model's own weights stay
frozen, in --frozen-bits bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import facts_of, require_same
from plimsoll.levers.lora_targets import kernels_to_adapt, patterns_of
from plimsoll.levers.records.blocks import attention_blocks_of
from plimsoll.levers.records.mlp_chunk import chunks_of
from plimsoll.models.pretrained.find import HUB_ID, find_folder, find_shape
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers.settings import Optimizer
from plimsoll.options import FolderPath, NonNegativeInt, PositiveFloat, Share
from plimsoll.recipes.finetune.ladder import finetune_rungs
from plimsoll.recipes.parts import Hints, Length, Model, Needs, OwnRung, Say, Uses
from plimsoll.recipes.specs import DocumentSpec
from plimsoll.recipes.verbs import Shown, Verb

if TYPE_CHECKING:
    from plimsoll.models.pretrained.adapters import AdapterSettings

OF_ADAPTERS = ("lora_alpha", "lora_targets", "lora_dropout", "rslora", "init_from")
"""Options of adapters, which have no meaning if all weights are trained."""
LEVERS = (
    "precision",
    "activations",
    "remat",
    "remat_offload",
    "loss_chunk",
    "mlp_chunk",
    "attention_chunk",
)


@dataclass(frozen=True, kw_only=True)
class Pretrained(Model):
    """A published decoder: frozen beside trained adapters, or trained completely."""

    name = "pretrained"
    reads = DocumentSpec
    implementation = "plimsoll.recipes.finetune.task:tuned"
    uses = Uses(
        verbs={
            "evaluate": Verb(answer="plimsoll.recipes.finetune.use:evaluate"),
            "sample": Verb(answer="plimsoll.recipes.finetune.use:sample"),
            "export": Verb(answer="plimsoll.recipes.finetune.export:export"),
        },
        shown=(
            Shown(words="what it writes", make="plimsoll.recipes.finetune.use:shown", command="plimsoll sample {run}"),
        ),
    )

    pretrained: FolderPath = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """Model to fine-tune: folder of a Llama, Mistral, Qwen or Gemma (config.json, .safetensors, tokenizer.json), or its
    Hugging Face id. Planning needs no download for many ids."""
    lora_rank: NonNegativeInt = 16
    """Rank of the LoRA adapters; 0 trains the whole model."""
    lora_alpha: PositiveFloat | None = None
    """LoRA's alpha: adapters are scaled by alpha / rank. By default twice the rank."""
    lora_targets: str = "all-linear"
    """Kernels that get adapters: a list from q,k,v,o,gate,up,down; all-linear; or a regular expression of paths like
    blocks/query/kernel."""
    lora_dropout: Share = 0.0
    """Share of an adapter's input that is dropped in training."""
    rslora: bool = False
    """Scale adapters by alpha / sqrt(rank) instead of alpha / rank (rsLoRA)."""
    init_from: FolderPath | None = None
    """Folder of a PEFT adapter from whose weights training starts. By default new adapters, which change nothing at
    first."""

    def check_options(self) -> None:
        if self.lora_rank:
            return
        changed = [name for name in OF_ADAPTERS if getattr(self, name) != getattr(Pretrained, name)]
        if changed:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            raise RecipeError(
                f"--lora-rank 0 trains the whole model, and {flags} are for adapters: leave them out, or give a rank"
            )

    @cached_property
    def shape(self) -> DecoderShape:
        """Shape of the published model, after a check of the adapters' options."""
        shape = find_shape(self.pretrained)
        if self.lora_rank:
            self.kernels(self.lora_rank)  # raises if the targets or the rank do not fit
        return shape

    def kernels(self, rank: int) -> Mapping[str, tuple[int, ...]]:
        """Returns the shapes, by path, of the kernels that get adapters of this rank."""
        leaves = find_shape(self.pretrained).leaves()
        return kernels_to_adapt(leaves, patterns_of(self.lora_targets), rank)

    @property
    def adapter(self) -> AdapterSettings:
        """Settings of the adapters, as PEFT names them."""
        from plimsoll.models.pretrained.adapters import AdapterSettings

        alpha = 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha
        return AdapterSettings(
            rank=self.lora_rank,
            alpha=alpha,
            rslora=self.rslora,
            dropout=self.lora_dropout,
            base=self.pretrained,
        )

    def needs(self) -> Needs:
        shape = find_shape(self.pretrained)
        return Needs(vocabulary=shape.vocab, tokenizer=self.pretrained, longest=shape.positions)

    def hints(self, spec: DocumentSpec) -> Hints:
        is_whole = self.lora_rank == 0
        further = ("layerwise", "unroll") if is_whole else ("frozen_bits", "embedding_bits")
        return Hints(
            levers=(*LEVERS, *further),
            loss_chunks=(512, 128),
            attention_chunks=attention_blocks_of(spec.length),
            mlp_chunks=chunks_of(spec.length),
            head_width=self.shape.head_width,
            begins_with="--pretrained" if self.init_from is None else "--pretrained, --init-from",
            frozen_given=not is_whole,
        )

    def most(self, option: str) -> tuple[int, str] | None:
        if option == "seq_len":
            return find_shape(self.pretrained).positions, f"the tokens that {self.pretrained} was made to read at once"
        if option == "lora_rank":
            narrowest = min(min(sides[-2:]) for sides in self.kernels(rank=1).values())
            return narrowest, "the narrowest side of the kernels of --lora-targets"
        return None

    def ladder(self, spec: DocumentSpec, length: Length, optimizer: Optimizer) -> tuple[OwnRung, ...]:
        whole = {"lora_rank": 0} | {name: getattr(Pretrained, name) for name in OF_ADAPTERS}
        tokens = length.effective_batch * spec.length
        return finetune_rungs(whole, rank=self.lora_rank, tokens=tokens, needs_norm=optimizer.needs_norm)

    def load(self, params: Any, spec: DocumentSpec, data: Any) -> Any:
        from plimsoll.models.pretrained.adapters import read_adapter
        from plimsoll.models.pretrained.weights import load_over

        if not self.lora_rank:
            folder = find_folder(self.pretrained)
            return params | {"trainable": load_over(params["trainable"], folder, self.shape)}
        params = params | {"frozen": self.load_frozen(params["frozen"], spec, data)}
        if self.init_from is None:
            return params
        kernels = self.kernels(self.lora_rank)
        adapter, _ = read_adapter(self.init_from, self.shape, rank=self.lora_rank, targets=kernels)
        return params | {"trainable": adapter}

    def load_frozen(self, frozen: Any, spec: DocumentSpec, data: Any) -> Any:
        from plimsoll.models.pretrained.weights import load_over

        folder = find_folder(self.pretrained)
        return frozen | {"base": load_over(frozen["base"], folder, self.shape)}

    def check(self, spec: DocumentSpec, say: Say) -> Mapping[str, Any]:
        from plimsoll.models.pretrained.safetensors_folder import checked

        folder = find_folder(self.pretrained)
        checked(folder, self.shape)
        self._require_adapter()
        return facts_of(weight_files(folder)).to_json()

    def require_same(self, facts: Mapping[str, Any]) -> None:
        require_same(self.pretrained, facts, facts_of(weight_files(find_folder(self.pretrained))))

    def _require_adapter(self) -> None:
        """Raises DataError if --init-from is not an adapter for this model with these settings."""
        if self.init_from is None:
            return
        from plimsoll.models.pretrained.adapters import read_adapter

        kernels = self.kernels(self.lora_rank)
        _, settings = read_adapter(self.init_from, self.shape, rank=self.lora_rank, targets=kernels)
        bases = settings.base, self.pretrained
        are_ids = all(HUB_ID.fullmatch(name) and not Path(name).exists() for name in bases)
        if are_ids and bases[0].lower() != bases[1].lower():
            raise DataError(
                f"the adapter in {self.init_from} says that it belongs to {settings.base}, and --pretrained is"
                f" {self.pretrained}: name its own model, or, if they are the same, correct base_model_name_or_path"
                " in its adapter_config.json"
            )
        scale = self.adapter.scale
        if abs(settings.scale - scale) > 1e-6 * scale:
            rslora = " --rslora" if settings.rslora else " --no-rslora" if self.rslora else ""
            raise DataError(
                f"the adapter in {self.init_from} is scaled by {settings.scale:g}, and this run's by {scale:g}: give"
                f" --lora-alpha {settings.alpha:g}{rslora}"
            )


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of a model that determine its outputs: config and weights."""
    return [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
