"""A model as one GGUF file, which llama.cpp and Ollama run: names, settings and tensors in llama.cpp's form.

A tensor at a time is in memory, and of most only a piece. Of a Llama or Mistral llama.cpp turns neighbouring columns
of a head, not halves, so the rows of their query and key kernels change places; it adds nothing to the norms of a
Gemma, so the file has 1 + weight. What it has compiled in for an architecture (windows, scales, caps) is compared,
and a model that differs is refused.

Sources: `conversion/` and `src/models/` of https://github.com/ggml-org/llama.cpp, November 2026; the format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from plimsoll.errors import DataError, RecipeError
from plimsoll.models.pretrained.gguf_tokenizer import Words as Words
from plimsoll.models.pretrained.gguf_tokenizer import tokenizer_fields
from plimsoll.models.pretrained.shape import Architecture, PretrainedShape, Rotary

GgufType = Literal["bf16", "f16", "f32", "q8_0"]
Pieces = Callable[[str], Iterator[np.ndarray]]
"""From a published name to the rows of that tensor in order, float32, a piece at a time."""
BLOCK = 32
"""Columns that share a scale in q8_0: a kernel without whole blocks is written in f16, as llama.cpp does."""
TURNED_BY_PAIRS: tuple[Architecture, ...] = ("llama", "mistral")
PATTERNS: Mapping[Architecture, int] = {"gemma2": 2, "gemma3": 6}
"""Layers of which llama.cpp has the last see all positions, and the others a window."""
LARGEST: Mapping[Architecture, int] = {"gemma2": 46, "gemma3": 62}
"""Layers of the one size whose scores llama.cpp scales by width / heads instead of the width of a head."""


class Written(NamedTuple):
    """A tensor of the file."""

    name: str
    """Name there."""
    published: str
    shape: tuple[int, ...]
    kind: GgufType


def write_gguf(path: Path, shape: PretrainedShape, pieces: Pieces, *, kind: GgufType, words: Words, name: str) -> int:
    """Writes the file, and returns the number of weights.

    Args:
        path: File, new.
        shape: Shape of the model.
        pieces: Its published tensors.
        kind: Type of kernels and embeddings; norms and biases are float32.
        words: Its tokenizer.
        name: Name of the model in the file.

    Raises:
        DataError: llama.cpp computes something else with this architecture's settings, or its tokenizer.
        RecipeError: The gguf package is not installed, or a weight is too large for f16.
    """
    gguf = _package()
    _require_known(shape)
    architecture = "llama" if shape.architecture == "mistral" else shape.architecture
    tensors = _tensors(gguf, architecture, shape, kind)
    writer = gguf.GGUFWriter(None, architecture)
    for key, value in (_settings(gguf, shape, kind, name) | tokenizer_fields(words, shape.vocab)).items():
        _add(gguf, writer, key.format(arch=architecture), value)
    frequencies = _frequency_factors(shape)
    if frequencies is not None:
        writer.add_tensor_info("rope_freqs.weight", frequencies.shape, frequencies.dtype, frequencies.nbytes)
    for tensor in tensors:
        size = math.prod(tensor.shape)
        number = getattr(gguf.GGMLQuantizationType, tensor.kind.upper())
        block, block_bytes = gguf.GGML_QUANT_SIZES[number]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size // block * block_bytes, number)
    writer.write_header_to_file(path)
    try:
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        file = writer.fout[0]
        writer.write_padding(file, file.tell())
        if frequencies is not None:
            _write(writer, file, iter([frequencies]))
        for tensor in tensors:
            rows = _in_their_form(shape, tensor.published, pieces)
            _write(writer, file, (_coded(gguf, part, tensor) for part in rows))
    finally:
        writer.close()
    return sum(math.prod(tensor.shape) for tensor in tensors)


def require_writable(shape: PretrainedShape, words: Words) -> None:
    """Raises what `write_gguf` would, as far as weights do not matter."""
    _package()
    _require_known(shape)
    tokenizer_fields(words, shape.vocab)


def _package() -> Any:
    try:
        import gguf  # type: ignore[import-not-found]
    except ImportError:
        raise RecipeError(
            "--gguf needs the gguf package, which is not installed: `pip install gguf`, or export with --merged"
        ) from None
    return gguf


def _require_known(shape: PretrainedShape) -> None:
    """Raises DataError where llama.cpp would compute something else: what it has compiled in has no field."""
    kind, head = shape.architecture, shape.head_width**-0.5
    wrong = []
    if pattern := PATTERNS.get(kind):
        if shape.windowed and shape.windowed != tuple((layer + 1) % pattern != 0 for layer in range(shape.layers)):
            wrong.append(f"its layers see windows in another order than all but each {pattern}th")
        scale = (shape.width / shape.heads) ** -0.5 if shape.layers == LARGEST[kind] else head
        if not math.isclose(shape.score_scale or head, scale, rel_tol=1e-6):
            wrong.append(f"its scores are scaled by {shape.score_scale or head:g} instead of {scale:g}")
    elif shape.score_scale is not None and not math.isclose(shape.score_scale, head, rel_tol=1e-6):
        wrong.append(f"its scores are scaled by {shape.score_scale:g} instead of {head:g}")
    if kind == "gemma2" and not (shape.score_cap and shape.logit_cap):
        wrong.append("it has no caps of scores and logits, which a Gemma 2 has there")
    if kind == "gemma3" and shape.logit_cap:
        wrong.append("it caps its logits")
    if shape.exact_gelu:
        wrong.append("its gate is GELU itself, not its approximation by tanh")
    if shape.form.gemma and not shape.tied:
        wrong.append("it has an output layer of its own")
    if shape.rotary.kind == "llama3" and kind not in TURNED_BY_PAIRS:
        wrong.append("its positions are stretched as a Llama's")
    if shape.window_rotary is not None and shape.window_rotary.kind != "default":
        wrong.append("positions of its windows are stretched")
    if wrong:
        raise DataError(
            f"a {kind} of this shape cannot be written as GGUF, since llama.cpp would compute something else:"
            f" {'; '.join(wrong)}. Export with --merged"
        )


def _tensors(gguf: Any, architecture: str, shape: PretrainedShape, kind: GgufType) -> list[Written]:
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, shape.layers)
    found = []
    for published, sides in shape.tensors().items():
        of_kernel = kind if kind != "q8_0" or sides[-1] % BLOCK == 0 else "f16"
        name = names.get_name(published, try_suffixes=(".weight", ".bias"))
        found.append(Written(name, published, sides, "f32" if len(sides) == 1 else of_kernel))
    return found


def _settings(gguf: Any, shape: PretrainedShape, kind: GgufType, name: str) -> dict[str, Any]:
    """Returns the fields that describe the model, with {arch} for the architecture's name."""
    keys, file_types = gguf.Keys, gguf.LlamaFileType
    of_kind = {
        "f32": file_types.ALL_F32,
        "f16": file_types.MOSTLY_F16,
        "bf16": file_types.MOSTLY_BF16,
        "q8_0": file_types.MOSTLY_Q8_0,
    }
    windows = shape.architecture in PATTERNS
    positions = shape.positions
    if shape.window and not windows:
        positions = min(positions, shape.window)  # llama.cpp sees no windows there: up to that, it is the same
    fields = {
        keys.General.NAME: name,
        keys.General.FILE_TYPE: int(of_kind[kind]),
        keys.General.QUANTIZATION_VERSION: gguf.GGML_QUANT_VERSION,
        keys.LLM.VOCAB_SIZE: shape.vocab,
        keys.LLM.CONTEXT_LENGTH: positions,
        keys.LLM.EMBEDDING_LENGTH: shape.width,
        keys.LLM.BLOCK_COUNT: shape.layers,
        keys.LLM.FEED_FORWARD_LENGTH: shape.inner,
        keys.Attention.HEAD_COUNT: shape.heads,
        keys.Attention.HEAD_COUNT_KV: shape.key_heads,
        keys.Attention.KEY_LENGTH: shape.head_width,
        keys.Attention.VALUE_LENGTH: shape.head_width,
        keys.Attention.LAYERNORM_RMS_EPS: float(shape.norm_epsilon),
        keys.Rope.DIMENSION_COUNT: shape.head_width,
        keys.Rope.FREQ_BASE: float(shape.rotary.theta),
    }
    if shape.rotary.kind == "linear":
        fields |= {keys.Rope.SCALING_TYPE: "linear", keys.Rope.SCALING_FACTOR: float(shape.rotary.factor)}
    if windows:
        fields[keys.Attention.SLIDING_WINDOW] = shape.window or positions
    if shape.architecture == "gemma3":
        local = shape.rotary if shape.window_rotary is None else shape.window_rotary
        fields[keys.Rope.FREQ_BASE_SWA] = float(local.theta)
    if shape.score_cap:
        fields[keys.LLM.ATTN_LOGIT_SOFTCAPPING] = float(shape.score_cap)
    if shape.logit_cap:
        fields[keys.LLM.FINAL_LOGIT_SOFTCAPPING] = float(shape.logit_cap)
    return fields


def _add(gguf: Any, writer: Any, key: str, value: Any) -> None:
    kinds = gguf.GGUFValueType
    of = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING, list: kinds.ARRAY}
    writer.add_key_value(key, value, of[type(value)])


def _frequency_factors(shape: PretrainedShape) -> np.ndarray | None:
    """Returns by what llama.cpp divides the frequency of each pair of a Llama 3's positions; None where it need not."""
    if shape.rotary.kind != "llama3":
        return None
    plain = Rotary(theta=shape.rotary.theta).frequencies(shape.head_width)
    return (plain / shape.rotary.frequencies(shape.head_width)).astype(np.float32)


def _in_their_form(shape: PretrainedShape, published: str, pieces: Pieces) -> Iterator[np.ndarray]:
    """Yields the rows of a tensor as llama.cpp has them."""
    norms = shape.form.gemma and published.endswith("norm.weight")
    turned = published.endswith((".q_proj.weight", ".k_proj.weight")) and shape.architecture in TURNED_BY_PAIRS
    if not turned:
        yield from (part + 1 if norms else part for part in pieces(published))
        return
    rows = np.concatenate(list(pieces(published)))
    heads = rows.reshape(-1, 2, shape.head_width // 2, rows.shape[1])
    yield heads.swapaxes(1, 2).reshape(rows.shape)


def _coded(gguf: Any, rows: np.ndarray, tensor: Written) -> np.ndarray:
    if tensor.kind == "f16" and np.abs(rows).max(initial=0) > np.finfo(np.float16).max:
        raise RecipeError(
            f"{tensor.published} has weights beyond 65,504, the largest number of f16: give --gguf-type bf16 or f32"
        )
    return gguf.quants.quantize(np.ascontiguousarray(rows), getattr(gguf.GGMLQuantizationType, tensor.kind.upper()))


def _write(writer: Any, file: Any, parts: Iterator[np.ndarray]) -> None:
    written = 0
    for part in parts:
        file.write(part.tobytes())
        written += part.nbytes
    writer.write_padding(file, written)
