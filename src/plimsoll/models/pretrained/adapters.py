"""Writes and reads LoRA adapters of a published model in PEFT's format: a folder of two files.

`adapter_config.json` names rank, scale and kernels; `adapter_model.safetensors` holds two float32 matrices for each
kernel of each layer, `lora_A` of (rank, in) and `lora_B` of (out, rank). plimsoll stacks them over layers, transposed:
`a` of (layers, in, rank), `b` of (layers, rank, out), by the kernel's path in the parameters (levers/lora.py).
https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.levers.lora_targets import named
from plimsoll.models.pretrained.safetensors_folder import READ, Tensor, differences, header
from plimsoll.models.shape import KERNELS, DecoderShape

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
INSIDE = {False: "model.", True: "model.language_model."}
"""Prefix of `layers` in names of tensors, by whether the model also sees pictures."""
NAME = re.compile(
    re.escape(PREFIX)
    + r"(?:model|model\.language_model|language_model\.model)\.layers\.(\d+)\.(.+)\.lora_([AB])(?:\.default)?\.weight"
)
"""Name of a matrix. Groups: layer index, published name of the kernel, and A or B. Older names have `.default`, or
another prefix of the language model in a model that sees pictures."""
PATHS = {f"blocks/{ours}/kernel": published for ours, published in KERNELS.items()}
"""Published names of kernels within a layer, by path in plimsoll's parameters."""
ELSEWISE = (
    "use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save", "rank_pattern",
    "alpha_pattern", "layers_to_transform", "layer_replication", "target_parameters", "trainable_token_indices",
)  # fmt: skip
"""Unsupported settings of PEFT that change an adapter's results."""


@dataclass(frozen=True, kw_only=True)
class AdapterSettings:
    """Settings of an adapter."""

    rank: int
    alpha: float
    """LoRA's alpha: the product of the two matrices is multiplied by alpha / rank."""
    rslora: bool = False
    """Whether the factor is alpha / sqrt(rank) instead (rank-stabilised LoRA)."""
    dropout: float = 0.0
    base: str = ""
    """Hub id or folder of the adapter's model; empty if unknown."""

    @property
    def scale(self) -> float:
        """Factor by which the product of the two matrices is multiplied."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


Learned = Mapping[str, Mapping[str, Any]]
"""Trained matrices of `levers.lora.LoRA`: `a` and `b`, stacked over layers, by the kernel's path in the parameters."""


def write_adapter(folder: str | Path, learned: Learned, settings: AdapterSettings, *, pictures: bool = False) -> None:
    """Writes a folder for `peft.PeftModel.from_pretrained`.

    Args:
        folder: Folder, made if it does not exist. Files of an earlier adapter are overwritten.
        learned: The two matrices of every kernel.
        settings: Settings of the adapter.
        pictures: Whether the model also sees pictures. The adapter then belongs to its language model.
    """
    from safetensors.numpy import save_file

    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for path, pair in learned.items():
        for ours, theirs in (("a", "A"), ("b", "B")):
            for layer, matrix in enumerate(np.asarray(pair[ours], np.float32)):
                name = f"{PREFIX}{INSIDE[pictures]}layers.{layer}.{PATHS[path]}.lora_{theirs}.weight"
                tensors[name] = np.ascontiguousarray(matrix.T)
    kernels = sorted(PATHS[path].rpartition(".")[2] for path in learned)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": settings.base or None,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "use_rslora": settings.rslora,
        # By names alone PEFT would also match kernels of the vision part.
        "target_modules": rf".*\.language_model\..*\.({'|'.join(kernels)})" if pictures else kernels,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def read_adapter(
    folder: str | Path, shape: DecoderShape, *, rank: int | None = None, targets: Collection[str] | None = None
) -> tuple[dict[str, dict[str, np.ndarray]], AdapterSettings]:
    """Returns the matrices of a PEFT folder, in the layout of `levers.lora.LoRA`, and the adapter's settings.

    Args:
        folder: Folder with the two files.
        shape: Shape of the adapter's model.
        rank: Required rank; None for any.
        targets: Paths of the required kernels; None for any.

    Raises:
        DataError: The adapter cannot be read, is not plain LoRA, or is for another model, rank or kernels.
    """
    folder = Path(folder).expanduser()
    settings = read_settings(folder)
    if rank is not None and rank != settings.rank:
        raise DataError(
            f"the adapter in {folder} is of rank {settings.rank}, and --lora-rank is {rank}: give --lora-rank"
            f" {settings.rank}"
        )
    pairs = _pairs(folder)
    paths = [path for path, published in PATHS.items() if any(key[1] == published for key in pairs)]
    if targets is not None and set(targets) != set(paths):
        raise DataError(
            f"the adapter in {folder} has the kernels {named(sorted(paths))}, and the requested ones are"
            f" {named(sorted(targets))}: give --lora-targets {named(sorted(paths))}"
        )
    _require(folder, pairs, shape, settings.rank, paths)
    learned: dict[str, dict[str, np.ndarray]] = {}
    for path in paths:
        learned[path] = {
            ours: np.stack([_matrix(pairs[layer, PATHS[path], theirs]) for layer in range(shape.layers)])
            for ours, theirs in (("a", "A"), ("b", "B"))
        }
    return learned, settings


def read_settings(folder: Path) -> AdapterSettings:
    """Returns the settings in a folder's `adapter_config.json`.

    Raises:
        DataError: The file is missing or unreadable, or the adapter is not supported.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text("utf-8"))
        settings = AdapterSettings(
            rank=int(config["r"]),
            alpha=float(config["lora_alpha"]),
            rslora=bool(config.get("use_rslora")),
            dropout=float(config.get("lora_dropout") or 0),
            base=str(config.get("base_model_name_or_path") or ""),
        )
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no {CONFIG}: name the folder of a PEFT adapter, with {CONFIG} and {WEIGHTS} in it"
        ) from None
    except (OSError, ValueError, KeyError) as problem:
        raise DataError(
            f"{path} is not the configuration of a LoRA adapter ({type(problem).__name__}: {str(problem)[:120]}), which"
            " has r and lora_alpha. Copy it again"
        ) from None
    others = [name for name in ELSEWISE if config.get(name)]
    if config.get("bias", "none") != "none":
        others.append("bias")
    if config.get("peft_type") != "LORA":
        others.append("peft_type")
    if others:
        raise DataError(
            f"{path} sets {', '.join(others)}, and only plain LoRA is supported (peft_type LORA, rsLoRA included):"
            " merge it into its model with PEFT, and name that model"
        )
    return settings


Pairs = dict[tuple[int, str, str], Tensor]
"""Tensors by layer index, the kernel's published name, and A or B."""


def _pairs(folder: Path) -> Pairs:
    if not (folder / WEIGHTS).is_file():
        raise DataError(
            f"{folder} has no {WEIGHTS}: copy it there. Pickled adapters (adapter_model.bin) can run code and are never"
            " loaded; PEFT saves the other form with `save_pretrained(OUT, safe_serialization=True)`"
        )
    pairs: Pairs = {}
    for name, tensor in header(folder / WEIGHTS).items():
        match = NAME.fullmatch(name)
        if match is None or tensor.kind not in READ:
            raise DataError(
                f"{folder / WEIGHTS} holds {name} ({tensor.kind}), which is no matrix of a LoRA adapter of a decoder"
                " (lora_A and lora_B of its layers, in float32, bfloat16 or float16): copy it again"
            )
        pairs[int(match[1]), match[2], match[3]] = tensor
    return pairs


def _require(folder: Path, pairs: Pairs, shape: DecoderShape, rank: int, paths: list[str]) -> None:
    """Raises DataError if matrices are missing, unexpected, or of another model's shape."""
    kernels = shape.tensors()
    wanted: dict[str, tuple[int, ...]] = {}
    for layer in range(shape.layers):
        for path in paths:
            name = f"layers.{layer}.{PATHS[path]}"
            out, inner = kernels[f"model.{name}.weight"]
            wanted |= {f"{name}.lora_A": (rank, inner), f"{name}.lora_B": (out, rank)}
    shapes = {f"layers.{layer}.{name}.lora_{which}": tensor.shape for (layer, name, which), tensor in pairs.items()}
    if wrong := differences(shapes, wanted):
        raise DataError(
            f"the adapter in {folder} is not for this model, {shape.layers} layers of width {shape.width}: its matrices"
            f" do not fit, {wrong}. Name the model that it was trained on, or another adapter"
        )


def _matrix(tensor: Tensor) -> np.ndarray:
    """Returns a matrix in float32, transposed to plimsoll's layout."""
    rows = tensor.rows(0, tensor.shape[0])
    if tensor.kind == "BF16":
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(rows.astype(np.float32).T)
