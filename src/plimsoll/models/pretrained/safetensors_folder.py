"""Finds the tensors of a Hugging Face folder in their files, checks their shapes, and reads a few rows at a time.

The safetensors library checks a file's header. Rows are then read, not memory-mapped: mapped pages count as resident,
so a model would be in memory twice. Pickled weights are rejected, because they can run code. Imports no JAX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.models.shape import DecoderShape

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
READ = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""NumPy types of supported types; bfloat16 is read as its bits."""
PIECE = 2**20
"""Elements of a tensor that are read at a time: 4 MiB of float32."""
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
BESIDE_TEXT = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
"""Prefixes of tensors of a Gemma 3's vision part."""
PREFIXES = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model."}
"""Dict from the old and new name prefixes in a Gemma 3 that sees pictures to those in a Gemma 3 of text alone."""
LISTED = 8
"""Largest number of names that an error message lists."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file."""

    name: str
    path: Path
    kind: str
    """Type: `F32`, `F16`, `BF16`, or another that is not supported."""
    shape: tuple[int, ...]
    start: int
    """Offset of the tensor's first byte in the file."""

    def rows(self, first: int, last: int) -> np.ndarray:
        """Returns rows `first` to `last` - 1 of the first axis as they are stored; bfloat16 as its bits.

        Raises DataError if an element is not finite.
        """
        kind = READ[self.kind]
        shape = (last - first, *self.shape[1:])
        with open(self.path, "rb") as file:
            file.seek(self.start + first * kind.itemsize * math.prod(self.shape[1:]))
            values: np.ndarray = np.fromfile(file, kind, math.prod(shape))
        is_finite = (values & 0x7F80) != 0x7F80 if self.kind == "BF16" else np.isfinite(values)
        if not is_finite.all():
            raise DataError(
                f"{self.name} in {self.path} holds numbers that are not finite, so the model cannot be used:"
                " copy it again, or take an earlier checkpoint of it"
            )
        return values.reshape(shape)


def tensors_of(folder: str | Path) -> dict[str, Tensor]:
    """Returns every tensor of a folder's safetensors files, by its published name. Only headers are read."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name one with a config.json and .safetensors files in it")
    if (folder / SINGLE).is_file():
        return header(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise DataError(
            f"{folder} has its weights as {', '.join(pickled[:3])}: pickles, which can run code, and are never loaded."
            " Take the model's .safetensors files, or convert it if you trust it:"
            " `AutoModelForCausalLM.from_pretrained(IN).save_pretrained(OUT, safe_serialization=True)`"
        )
    raise DataError(f"{folder} has neither {SINGLE} nor {INDEX}: name the folder of a Hugging Face model")


def checked(folder: str | Path, shape: DecoderShape) -> dict[str, Tensor]:
    """Returns the folder's tensors. Raises DataError if they do not match the shape.

    Some models with a tied embedding save it only as `lm_head`; if both exist, the embedding is used. Rotary
    frequencies in old Llamas are ignored, because they follow from the configuration. Of a Gemma 3 that sees pictures
    only the language model is returned, with the names of a Gemma 3 of text alone.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in tensors_of(folder).items():
        if name.endswith(".rotary_emb.inv_freq"):
            continue
        if shape.architecture == "gemma3":
            if name.startswith(BESIDE_TEXT):
                continue
            prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
            name = PREFIXES.get(prefix, "") + name.removeprefix(prefix)
        tensors[name] = tensor
    if shape.tied and HEAD in tensors:
        head = tensors.pop(HEAD)
        tensors.setdefault(EMBEDDING, head)
    require(tensors, shape.tensors(), source=str(folder))
    return tensors


def pieces_of(shape: tuple[int, ...], numbers: int) -> list[tuple[int, int]]:
    """Splits an array's rows into ranges (begin, end). Each range has one row, or at most `numbers` elements."""
    many = max(1, numbers // math.prod(shape[1:]))
    return [(first, min(first + many, shape[0])) for first in range(0, shape[0], many)]


def differences(shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> str:
    """Returns a text that lists missing, unexpected and differently shaped tensors; empty if there are none."""
    names = [name for name in {**wanted, **shapes} if wanted.get(name) != shapes.get(name)]
    listed = _listed([f"{name} {_sides(shapes.get(name))} instead of {_sides(wanted.get(name))}" for name in names])
    return f"{len(names):,} of them differ: {listed}" if names else ""


def require(tensors: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], *, source: str) -> None:
    """Raises DataError, with names and shapes, if tensors are missing, unexpected, or of another shape or type."""
    wrong = differences({name: tensor.shape for name, tensor in tensors.items()}, wanted)
    if wrong:
        raise DataError(
            f"the tensors of {source} are not those that its config.json describes, {wrong}. Copy the folder again, or"
            " the config.json that belongs to these files"
        )
    unread = [f"{name} ({tensors[name].kind})" for name in wanted if tensors[name].kind not in READ]
    if unread:
        raise DataError(
            f"{source} has {len(unread)} tensors of unsupported types: {_listed(unread)}. Take the model in float32,"
            " bfloat16 or float16, and let plimsoll store it in fewer bits"
        )


def _sharded(folder: Path) -> dict[str, Tensor]:
    path = folder / INDEX
    try:
        files = sorted(set(json.loads(path.read_text("utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError) as problem:
        raise DataError(
            f"{path} is not an index of safetensors ({type(problem).__name__}: {str(problem)[:120]}): it maps tensors"
            " to files under weight_map. Copy it again"
        ) from None

    # Accept only names, no paths, so that an index cannot refer to a file outside the folder.
    absent = [name for name in files if Path(name).name != name or not (folder / name).is_file()]
    if absent:
        raise DataError(
            f"{path} names {len(files)} files, and {len(absent)} of them do not lie beside it: {_listed(absent)}. Copy"
            " them there"
        )
    return {name: tensor for file in files for name, tensor in header(folder / file).items()}


def header(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of one file, by name. Raises DataError if it is no safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass  # opening checks offsets and sizes, and that there are no bytes between or after the tensors
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        return {
            name: Tensor(name, path, about["dtype"], tuple(about["shape"]), 8 + size + about["data_offsets"][0])
            for name, about in header.items()
            if name != "__metadata__"
        }
    except (SafetensorError, OSError, ValueError) as problem:
        raise DataError(
            f"{path} cannot be read as safetensors ({' '.join(str(problem).split())[:160]}): it is cut off, damaged or"
            " of another kind. Copy it again"
        ) from None


def _sides(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"({', '.join(map(str, shape))})"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
