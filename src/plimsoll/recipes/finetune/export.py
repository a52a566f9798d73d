"""Export of a tuned model as a PEFT adapter or a Hugging Face folder. Imports JAX."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.data.chat.tokenizer import save_chat_tokenizer
from plimsoll.models.pretrained.adapters import PATHS, write_adapter
from plimsoll.models.pretrained.config import read_config, read_shape, sees_pictures, text_settings
from plimsoll.models.pretrained.find import find_folder
from plimsoll.models.pretrained.safetensors_folder import PIECE, SINGLE, Tensor, checked, pieces_of
from plimsoll.models.pretrained.weights import published_tensor
from plimsoll.recipes.exported import exported, require_written
from plimsoll.recipes.finetune.data import TOKENIZER
from plimsoll.recipes.finetune.model import Pretrained
from plimsoll.types import TrainedRun

WRITTEN = {"F32": np.dtype("<f4"), "BF16": np.dtype(jnp.bfloat16)}
"""NumPy type of exported tensors, by their safetensors type."""
NAMES = {"F32": "F32", "F16": "F32", "BF16": "BF16"}
"""Type of an exported tensor, by its type in the base model's files: float16 may not hold trained values."""


def export(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the requested forms, and returns the answer of `recipes.exported.exported`.

    Args:
        trained: The run.
        request: Paths to write: `adapter`, the folder that `peft.PeftModel.from_pretrained` takes; `merged`, a Hugging
            Face folder of the whole model.

    Raises:
        DataError: The model's files have changed since the run began.
        RecipeError: A folder is not empty, or the run has no adapters.
    """
    model: Pretrained = trained.recipe.model
    weights = trained.params(given=False)["trainable"]
    if model.lora_rank:
        weights = jax.tree.map(lambda matrix: np.asarray(matrix, np.float32), weights)
    run_tokenizer = trained.path / TOKENIZER
    base = find_folder(model.pretrained)

    def adapter(folder: Path) -> int:
        write_adapter(folder, weights, model.adapter, pictures=sees_pictures(read_config(base)[0]))
        save_chat_tokenizer(run_tokenizer, folder)
        return sum(matrix.size for matrix in jax.tree.leaves(weights))

    def merged(folder: Path) -> int:
        count = _write_model(folder, base, model, weights)
        require_written(folder, read_shape(base))
        save_chat_tokenizer(run_tokenizer, folder)
        return count

    writers = {"merged": merged}
    if model.lora_rank:
        writers["adapter"] = adapter
    if request.get("merged"):
        _ = trained.data  # raises if the model's files have changed
    return exported(trained, request, writers)


def _write_model(folder: Path, base: Path, model: Pretrained, weights: Any) -> int:
    """Writes config and weights, with one piece of a tensor in memory at a time. Returns the number of weights."""
    tensors = checked(base, model.shape)
    (folder / "config.json").write_text(json.dumps(_config(base), indent=2) + "\n")
    if (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", folder / "generation_config.json")

    # Make the file's header: types, shapes and offsets of the tensors.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        kind = NAMES[tensor.kind]
        begin = end
        end += math.prod(tensor.shape) * WRITTEN[kind].itemsize
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)

    with open(folder / SINGLE, "wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for name, tensor in tensors.items():
            for rows in _pieces(name, tensor, model, weights):
                file.write(rows.astype(WRITTEN[NAMES[tensor.kind]]).tobytes())
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


def _config(base: Path) -> dict[str, Any]:
    """Returns the settings of the text model. Of a model that also sees pictures, only this part is exported."""
    config, _ = read_config(base)
    return text_settings(config) | ({"architectures": ["Gemma3ForCausalLM"]} if sees_pictures(config) else {})


def _pieces(name: str, tensor: Tensor, model: Pretrained, weights: Any) -> Iterator[np.ndarray]:
    """Yields a published tensor with its trained values, some rows at a time, in float32."""
    if not model.lora_rank:
        whole = np.asarray(published_tensor(weights, model.shape, name), np.float32)
        yield whole.reshape(tensor.shape)
        return
    added = None
    for path, published in PATHS.items():
        if path in weights and name.endswith(f".{published}.weight"):
            layer = int(name.split(".")[2])
            pair = weights[path]
            added = model.adapter.scale * (pair["a"][layer] @ pair["b"][layer]).T
    for first, last in pieces_of(tensor.shape, PIECE):
        rows = tensor.rows(first, last)
        rows = (rows.view(jnp.bfloat16) if tensor.kind == "BF16" else rows).astype(np.float32)
        yield rows if added is None else rows + added[first:last]
