"""Weights of the published Tiny Recursive Models, converted to ours by name.

Their checkpoints are PyTorch pickles, which are never loaded here; a safetensors file of the same state dict is. A
Linear is stored (out, in) there and (in, out) here. What precedes `inner.` (compiled models have a prefix) is cut off.
A tensor that is not a weight of the model is refused by name, before JAX is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.trm_shape import TRMShape

Place = tuple[str | int, ...]
TABLE = "inner.puzzle_emb.weights"
CONVERT = (
    "a PyTorch checkpoint is a pickle, which can run code, so it is not loaded. Convert it once, where you trust it:"
    " `python -c \"import torch, safetensors.torch as s; s.save_file({k: v.contiguous() for k, v in torch.load('IN',"
    " map_location='cpu', weights_only=True).items()}, 'OUT.safetensors')\"`"
)


def shape_of(config: Mapping[str, Any]) -> TRMShape:
    """Returns the sizes of a published configuration."""
    return TRMShape(
        vocab=config["vocab_size"],
        length=config["seq_len"],
        identifiers=config["num_puzzle_identifiers"],
        variant="mlp" if config["mlp_t"] else "attention",
        positions=config["pos_encodings"],
        width=config["hidden_size"],
        heads=config["num_heads"],
        layers=config["L_layers"],
        expansion=config["expansion"],
        high_cycles=config["H_cycles"],
        low_cycles=config["L_cycles"],
        puzzle_positions=config["puzzle_emb_len"],
        puzzle_width=config["puzzle_emb_ndim"],
    )


def names(shape: TRMShape) -> dict[str, tuple[Place, bool]]:
    """Returns, for each published name, the path in our parameters and whether the matrix is transposed."""
    places: dict[str, tuple[Place, bool]] = {
        "inner.embed_tokens.embedding_weight": (("trainable", "embedding"), False),
        "inner.lm_head.weight": (("trainable", "head"), True),
        "inner.q_head.weight": (("trainable", "halt", "kernel"), True),
        "inner.q_head.bias": (("trainable", "halt", "bias"), False),
        "inner.H_init": (("frozen", "high"), False),
        "inner.L_init": (("frozen", "low"), False),
        TABLE: (("tables", "puzzles"), False),
    }
    if shape.positions == "learned":
        places["inner.embed_pos.embedding_weight"] = (("trainable", "positions"), False)
    mixing = (
        {"self_attn.qkv_proj": "qkv", "self_attn.o_proj": "out"}
        if shape.variant == "attention"
        else {"mlp_t.gate_up_proj": "mix_gate_up", "mlp_t.down_proj": "mix_down"}
    )
    for layer in range(shape.layers):
        for theirs, ours in (mixing | {"mlp.gate_up_proj": "gate_up", "mlp.down_proj": "down"}).items():
            place: Place = ("trainable", "blocks", layer, ours)
            places[f"inner.L_level.layers.{layer}.{theirs}.weight"] = (place, True)
    return places


def require_names(path: str | Path, shape: TRMShape) -> None:
    """Raises DataError if the file cannot be read, or if the names in its header are those of another model."""
    with _opened(path) as (_, stored_as):
        given = stored_as.keys()
    _require_same_names(given, shape, source=str(path))


def read(path: str | Path) -> dict[str, np.ndarray]:
    """Returns every tensor of a safetensors file by its published name, in float32.

    Raises DataError for another file.
    """
    with _opened(path) as (file, stored_as):
        return {name: file.get_tensor(stored).astype(np.float32) for name, stored in stored_as.items()}


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yields the file, and the name in it of each tensor by its published name."""
    from safetensors import SafetensorError, safe_open

    path = Path(path).expanduser()
    if not path.is_file():
        raise DataError(f"--init-from {path} is not a file: name the .safetensors file of a published model")
    if path.suffix != ".safetensors":
        raise DataError(f"--init-from {path} is not a .safetensors file: {CONVERT}")
    try:
        with safe_open(path, framework="numpy") as file:
            yield file, {f"inner.{stored.rpartition('inner.')[2]}": stored for stored in list(file.keys())}
    except (SafetensorError, ValueError, TypeError) as problem:
        raise DataError(
            f"--init-from {path} cannot be read as safetensors ({problem}): copy it or convert it again"
        ) from None


def _require_same_names(given: Set[str], shape: TRMShape, *, source: str) -> None:
    expected = names(shape).keys()
    missing, unknown = sorted(expected - given - {TABLE}), sorted(given - expected)
    if missing or unknown:
        words = [f"it has no {missing[0]}"] if missing else []
        words += [f"it has {unknown[0]}, which this model has not"] if unknown else []
        raise DataError(
            f"--init-from {source} is of another model: {' and '.join(words)} ({len(missing)} missing, {len(unknown)}"
            f" unknown). This one is --variant {shape.variant} --layers {shape.layers} --positions {shape.positions}"
        )


def placed(tensors: Mapping[str, np.ndarray], params: Any, shape: TRMShape, *, source: str) -> Any:
    """Returns `params` (arrays or shapes) with the published tensors.

    The table of puzzles stays as it is in `params` if it is another data set's: its rows mean other puzzles. Raises
    DataError if a weight is missing, unknown or of another shape.
    """
    import jax

    expected = names(shape)
    _require_same_names(tensors.keys(), shape, source=source)
    params = jax.tree.map(lambda leaf: leaf, params)  # containers of its own
    for name, tensor in tensors.items():
        place, turned = expected[name]
        holder = params
        for step in place[:-1]:
            holder = holder[step]
        value = np.ascontiguousarray(tensor.T if turned else tensor)
        wanted = tuple(holder[place[-1]].shape)
        if value.shape == wanted:
            holder[place[-1]] = value
        elif name != TABLE:
            raise DataError(
                f"--init-from {source} is of another size: {name} is {tuple(tensor.shape)}, and this model's is"
                f" {wanted[::-1] if turned else wanted}. --width, --seq-len, --vocab-size and --puzzle-positions say it"
            )
    return params
