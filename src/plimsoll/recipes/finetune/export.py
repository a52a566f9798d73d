"""A tuned model as folders that others load: a PEFT adapter, or the whole model with it merged. Imports JAX."""

from __future__ import annotations

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
from plimsoll.errors import RecipeError
from plimsoll.levers.weight_bits import readable
from plimsoll.models.pretrained.adapters import PATHS, write_adapter
from plimsoll.models.pretrained.find import find_folder
from plimsoll.models.pretrained.safetensors_folder import EMBEDDING, HEAD, PIECE, SINGLE, Tensor, checked, pieces_of
from plimsoll.recipes.finetune.data import TOKENIZER
from plimsoll.recipes.writing import new_folder
from plimsoll.types import TrainedRun

NAMES = {"F32": "F32", "F16": "F32", "BF16": "BF16"}
"""Type of a tensor in a file to the one it is written in: a float16 may not hold what was learned."""


def export(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the folder `request["out"]`, whole or not at all.

    With adapters it is what `peft.PeftModel.from_pretrained` takes; with `request["merged"]`, or where the whole model
    was learned, it is a Hugging Face model.

    Raises:
        DataError: The model is not that of the run any more.
        RecipeError: The folder exists and is not empty, or there are no adapters to merge.
    """
    recipe, own = trained.recipe, readable(trained.params(given=False)["trainable"])
    learned = None
    if recipe.lora_rank:
        learned = jax.tree.map(lambda matrix: np.asarray(matrix, np.float32), own)
    merged = request.get("merged", False)
    if merged and learned is None:
        raise RecipeError("--merged is for adapters, and this run learned the whole model: leave it out")
    adapter = learned is not None and not merged
    if not adapter:
        recipe.data_changed(trained.prepared)
    with new_folder(request["out"]) as folder:
        if adapter and learned is not None:
            write_adapter(folder, learned, recipe.adapter)
            count = sum(matrix.size for pair in learned.values() for matrix in pair.values())
        else:
            count = _write_model(folder, recipe, own, learned)
        save_chat_tokenizer(Path(trained.run).expanduser() / TOKENIZER, folder)
    out = Path(request["out"]).expanduser().absolute()
    size = sum(path.stat().st_size for path in out.iterdir())
    answer = {"run": trained.run, "step": trained.step, "out": str(out), "parameters": count, "bytes": size}
    return answer | {"adapter": adapter}


def _write_model(folder: Path, recipe: Any, own: Any, learned: Any) -> int:
    """Writes config and weights, a piece of a tensor in memory at a time; returns the number of weights."""
    base = find_folder(recipe.pretrained)
    tensors = checked(base, recipe.shape)
    (folder / "config.json").write_text(json.dumps(_config(base), indent=2) + "\n")
    if (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", folder / "generation_config.json")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        kind = NAMES[tensor.kind]
        begin, end = end, end + math.prod(tensor.shape) * (2 if kind == "BF16" else 4)
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    with open(folder / SINGLE, "wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for name, tensor in tensors.items():
            for rows in _pieces(name, tensor, recipe, own, learned):
                file.write((rows.astype(jnp.bfloat16) if NAMES[tensor.kind] == "BF16" else rows).tobytes())
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


def _config(base: Path) -> dict[str, Any]:
    """Returns the settings of the text model alone: of one that also sees pictures only that is written."""
    config = json.loads((base / "config.json").read_text("utf-8"))
    if "text_config" not in config:
        return config
    text = {"model_type": "gemma3_text", **config["text_config"], "architectures": ["Gemma3ForCausalLM"]}
    return {name: config[name] for name in ("tie_word_embeddings",) if name in config} | text


def _pieces(name: str, tensor: Tensor, recipe: Any, own: Any, learned: Any) -> Iterator[np.ndarray]:
    """Yields the rows of a published tensor as they were learned, in float32."""
    if learned is None:
        whole = np.asarray(_own(name, recipe.shape, own), np.float32)
        yield np.ascontiguousarray(whole.reshape(tensor.shape))
        return
    added = None
    for path, published in PATHS.items():
        if path in learned and name.endswith(f".{published}.weight"):
            layer = int(name.split(".")[2])
            pair = learned[path]
            added = recipe.adapter.scale * (pair["a"][layer] @ pair["b"][layer]).T
    for first, last in pieces_of(tensor.shape, PIECE):
        rows = tensor.rows(first, last)
        rows = (rows.view(jnp.bfloat16) if tensor.kind == "BF16" else rows).astype(np.float32)
        yield rows if added is None else rows + added[first:last]


def _own(name: str, shape: Any, params: Any) -> Any:
    """Returns a tensor of the whole model that was learned, (out, in) as it is published."""
    if name == EMBEDDING:
        return params["embedding"]
    if name == HEAD:
        return params["head"].T
    if name == "model.norm.weight":
        return params["norm"]
    _, _, layer, theirs = name.split(".", 3)
    ours, leaf = next(place for place, (published, _) in shape.block_tensors().items() if published == theirs)
    own = params["blocks"][ours][leaf][int(layer)]
    return own.T if leaf == "kernel" else own
