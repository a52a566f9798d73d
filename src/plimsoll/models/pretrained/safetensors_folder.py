"""Which file of a Hugging Face folder holds which tensor, where in it, and some rows of one at a time. No JAX.

The safetensors library checks a file's header. Rows are then read, not mapped: the pages of a map count as resident, so
a model would be in memory twice. Pickled weights are refused: they can run code.
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

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
READ = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""Types that are read, and how; bfloat16 as its bits."""
LISTED = 8
"""Names in a refusal, at most, of each kind."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that lies in a file."""

    name: str
    path: Path
    kind: str
    """`F32`, `F16`, `BF16`, or another that is not read."""
    shape: tuple[int, ...]
    start: int
    """Byte of the file with which it begins."""

    def rows(self, first: int, last: int) -> np.ndarray:
        """Of its first axis, as they lie there; bfloat16 as its bits. Raises DataError for what is cut off or not
        finite."""
        kind = READ[self.kind]
        shape = (last - first, *self.shape[1:])
        step = kind.itemsize * math.prod(self.shape[1:])
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start + first * step)
                found: np.ndarray = np.fromfile(file, kind, math.prod(shape))
        except OSError as problem:
            raise DataError(f"{self.path} cannot be read ({problem.strerror}): copy it again") from None
        if found.size != math.prod(shape):
            raise DataError(f"{self.path} ends in the middle of {self.name}: copy it again")
        if not (((found & 0x7F80) != 0x7F80) if self.kind == "BF16" else np.isfinite(found)).all():
            raise DataError(
                f"{self.name} in {self.path} holds numbers that are not finite, from which nothing could be computed:"
                " copy it again, or take an earlier checkpoint of it"
            )
        return found.reshape(shape)


def tensors_of(folder: str | Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors, by its published name; the headers alone are read."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name one with a config.json and .safetensors files in it")
    if (folder / SINGLE).is_file():
        return _header(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise DataError(
            f"{folder} has its weights as {', '.join(pickled[:3])}: pickles, which can run code, and are never loaded."
            " Take the model's .safetensors files, or convert it where you trust it:"
            " `AutoModelForCausalLM.from_pretrained(IN).save_pretrained(OUT, safe_serialization=True)`"
        )
    raise DataError(f"{folder} has neither {SINGLE} nor {INDEX}: name the folder of a Hugging Face model")


def require(found: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], *, source: str) -> None:
    """Raises DataError, with names and shapes, where tensors are missing, too many, or of another shape or type."""
    missing = [f"{name} {_sides(shape)}" for name, shape in wanted.items() if name not in found]
    extra = [f"{name} {_sides(tensor.shape)}" for name, tensor in found.items() if name not in wanted]
    other = [
        f"{name} {_sides(found[name].shape)} instead of {_sides(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name].shape != shape
    ]
    kinds = {"missing": missing, "not expected": extra, "of another shape": other}
    if any(kinds.values()):
        said = "; ".join(f"{len(names)} {kind}: {_listed(names)}" for kind, names in kinds.items() if names)
        raise DataError(
            f"the tensors of {source} are not those that its config.json describes: {said}. Copy the folder again, or"
            " the config.json that belongs to these files"
        )
    unread = [f"{name} ({found[name].kind})" for name in wanted if found[name].kind not in READ]
    if unread:
        raise DataError(
            f"{source} has tensors of types that are not read, {len(unread)}: {_listed(unread)}. Take the model in"
            " float32, bfloat16 or float16, and let plimsoll store it in fewer bits"
        )


def _sharded(folder: Path) -> dict[str, Tensor]:
    path = folder / INDEX
    try:
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
        files = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise DataError(
            f"{path} is not an index of safetensors ({type(problem).__name__}: {str(problem)[:120]}): it maps tensors"
            " to files under weight_map. Copy it again"
        ) from None
    # A name, not a path: an index must not make us read what lies elsewhere. Links in the folder are the user's own,
    # and what the cache of huggingface_hub consists of.
    strange = [name for name in files if not isinstance(name, str) or Path(name).name != name or "\\" in name]
    if strange:
        raise DataError(
            f"{path} names {_listed([_shown(name) for name in strange])}, outside its folder: the files of a model lie"
            " beside its index. Do not use it, unless you know why it says so"
        )
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise DataError(
            f"{path} names {len(files)} files, and {len(absent)} of them are not there: {_listed(absent)}. Copy them"
        )
    headers = {name: _header(folder / name) for name in files}
    wrong = [f"{tensor} in {name}" for tensor, name in weight_map.items() if tensor not in headers[name]]
    if wrong:
        raise DataError(
            f"{path} names {len(wrong)} tensors that are not there: {_listed(wrong)}. Copy the folder again"
        )
    everything = {name: tensor for header in headers.values() for name, tensor in header.items()}
    return everything | {name: headers[file][name] for name, file in weight_map.items()}


def _header(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass  # it was checked: offsets, sizes, and that nothing lies between or after the tensors
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        return {
            name: Tensor(name, path, about["dtype"], tuple(about["shape"]), 8 + size + about["data_offsets"][0])
            for name, about in header.items()
            if name != "__metadata__"
        }
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as problem:
        raise DataError(
            f"{path} cannot be read as safetensors ({' '.join(str(problem).split())[:160]}): it is cut off, damaged or"
            " of another kind. Copy it again"
        ) from None


def _sides(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def _shown(name: Any) -> str:
    return repr(name)[:100]
