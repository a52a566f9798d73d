"""Shape of a Llama (2 to 3.x) or a Gemma 1 from its Hugging Face `config.json`: widths, counts, rotary positions.

Other architectures compute something else with tensors that may have the same names, so they are refused by name, and
so is every setting of these two that is not computed here. Some shapes are known without a file, to plan with. No JAX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

from plimsoll.errors import DataError

Architecture = Literal["llama", "gemma"]
SUPPORTED = "Llama 2 to 3.x (model_type llama) and Gemma 1 (gemma)"
ACTIVATIONS = {"llama": ("silu",), "gemma": ("gelu", "gelu_pytorch_tanh")}
"""Names of each activation. Gemma's first configurations have gelu, and mean its approximation by tanh."""
MOST_LAYERS = 10_000
"""Layers at most: a larger number is damage, and would make a list of names as long."""
ABSENT = {
    "attention_bias": "biases of attention",
    "mlp_bias": "biases of the feed-forward part",
    "quantization_config": "weights that another library quantised",
    "use_bidirectional_attention": "attention to later positions",
}
"""Settings that must not be there, or be false."""


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions of queries and keys: frequencies theta^(-2i / width), and how they were stretched."""

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    """Length read, as a multiple of the length in training."""
    low: float = 1.0
    high: float = 4.0
    """llama3: rotations within `original` up to which a frequency is divided by `factor`, and from which it is not."""
    original: int = 8192
    """llama3: positions before the stretch."""

    def frequencies(self, width: int) -> Float32[np.ndarray, " half"]:
        """Radians per position, for each pair of a head of that width."""
        plain = self.theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
        if self.kind == "linear":
            plain = plain / self.factor
        elif self.kind == "llama3":
            turns = self.original * plain / (2 * math.pi)
            kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)  # 1: as it was, 0: slowed by the factor
            plain = kept * plain + (1 - kept) * plain / self.factor
        return plain.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class PretrainedShape:
    """Widths and counts of a Llama or a Gemma 1; no biases anywhere."""

    architecture: Architecture
    vocab: int
    width: int
    layers: int
    heads: int
    key_heads: int
    """Heads of keys and values: each serves heads / key_heads queries."""
    head_width: int
    inner: int
    norm_epsilon: float
    rotary: Rotary = Rotary()
    tied: bool = True
    """The output layer uses the token embedding's weights."""
    positions: int = 8192
    """Longest input in training, in tokens."""

    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.tensors().values())

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Returns published name to published shape, (out, in) of a kernel; without `lm_head` where it is tied."""
        d, queries, keys = self.width, self.heads * self.head_width, self.key_heads * self.head_width
        layer = {
            "input_layernorm": (d,),
            "self_attn.q_proj": (queries, d),
            "self_attn.k_proj": (keys, d),
            "self_attn.v_proj": (keys, d),
            "self_attn.o_proj": (d, queries),
            "post_attention_layernorm": (d,),
            "mlp.gate_proj": (self.inner, d),
            "mlp.up_proj": (self.inner, d),
            "mlp.down_proj": (d, self.inner),
        }
        tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, d)}
        for number in range(self.layers):
            tensors |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        tensors["model.norm.weight"] = (d,)
        return tensors if self.tied else tensors | {"lm_head.weight": (self.vocab, d)}


LLAMA_3_2_1B = PretrainedShape(
    architecture="llama",
    vocab=128_256,
    width=2048,
    layers=16,
    heads=32,
    key_heads=8,
    head_width=64,
    inner=8192,
    norm_epsilon=1e-5,
    rotary=Rotary(theta=500_000.0, kind="llama3", factor=32.0),
    positions=131_072,
)
GEMMA_2B = PretrainedShape(
    architecture="gemma",
    vocab=256_000,
    width=2048,
    layers=18,
    heads=8,
    key_heads=1,
    head_width=256,
    inner=16_384,
    norm_epsilon=1e-6,
)
KNOWN = {"gemma-2b": GEMMA_2B, "llama-3.2-1b": LLAMA_3_2_1B}
"""Shapes to plan with, of which no weights are needed."""


def read_shape(folder: str | Path) -> PretrainedShape:
    """Returns the shape in a folder's `config.json`. Raises DataError if it is missing or not computed here."""
    path = Path(folder).expanduser() / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no config.json: name the folder of a Hugging Face model, with its config.json and its"
            " .safetensors files"
        ) from None
    except (OSError, ValueError, RecursionError) as problem:
        raise DataError(f"{path} cannot be read as JSON ({str(problem)[:160]}): copy it again") from None
    if not isinstance(config, dict):
        raise DataError(f"{path} holds {type(config).__name__}, not the settings of a model: copy it again")
    return shape_of(config, source=str(path))


def shape_of(config: Mapping[str, Any], *, source: str) -> PretrainedShape:
    """Raises DataError where the configuration is of a model that is not computed here, or incomplete."""
    kind = config.get("model_type")
    architecture: Architecture
    if kind == "llama" or kind == "gemma":
        architecture = kind
    else:
        raise DataError(
            f"{source} is of the architecture {kind!r}, and {SUPPORTED} are computed here: name one of these"
        )
    read = _Reader(config, source)
    for name, what in ABSENT.items():
        if config.get(name):
            raise read.refused(f"it has {what} ({name}: {_short(config[name])})")
    names = ("hidden_activation", "hidden_act") if architecture == "gemma" else ("hidden_act",)
    known = ACTIVATIONS[architecture]
    activation = next((config[name] for name in names if config.get(name) is not None), known[0])
    if activation not in known:
        raise read.refused(f"its activation is {_short(activation)}, and a {architecture}'s is {known[-1]}")
    width, heads = read.count("hidden_size"), read.count("num_attention_heads")
    key_heads = read.count("num_key_value_heads", heads)
    if heads % key_heads:
        raise read.refused(f"{heads} heads of queries cannot share {key_heads} of keys evenly")
    head_width = read.count("head_dim", width // heads)
    if head_width % 2 or ("head_dim" not in config and width % heads):
        raise read.refused(f"a width of {width} gives {heads} heads of no even width, which rotary positions turn")
    return PretrainedShape(
        architecture=architecture,
        vocab=read.count("vocab_size"),
        width=width,
        layers=read.count("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        inner=read.count("intermediate_size"),
        norm_epsilon=read.number("rms_norm_eps", 1e-6),
        rotary=_rotary(config, read),
        tied=architecture == "gemma" if (tied := config.get("tie_word_embeddings")) is None else bool(tied),
        positions=read.count("max_position_embeddings", 2048 if architecture == "llama" else 8192),
    )


@dataclass(frozen=True)
class _Reader:
    """Numbers of a configuration. Raises DataError with name and source of a wrong one."""

    config: Mapping[str, Any]
    source: str

    def count(self, name: str, default: int | None = None, *, most: int = 2**31 - 1) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.refused(f"{name} is {_short(value)}, not a whole number of 1 to {most:,}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refused(f"{name} is {_short(value)}, not a number above 0")
        return float(value)

    def refused(self, why: str) -> DataError:
        return DataError(
            f"{self.source} cannot be used: {why}. {SUPPORTED} are computed here; copy it again, or name one"
        )

    def _value(self, name: str, default: Any) -> Any:
        value = self.config.get(name)
        if value is None and default is None:
            raise self.refused(f"it does not say {name}")
        return default if value is None else value


def _short(value: Any) -> str:
    return repr(value)[:60]


def _rotary(config: Mapping[str, Any], read: _Reader) -> Rotary:
    """Reads `rope_parameters`, or its older form: `rope_theta`, and `rope_scaling` with a `type`."""
    rope = config.get("rope_parameters") or {}
    rope = rope or {"rope_theta": config.get("rope_theta"), **(_mapping(config.get("rope_scaling"), read))}
    rope = _mapping(rope, read)
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share not in (None, 1):
        raise read.refused(f"only {_short(share)} of a head turns with the position (partial_rotary_factor)")
    read = _Reader(rope, read.source)
    theta = read.number("rope_theta", config.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind == "default":
        return Rotary(theta=theta)
    if kind == "linear":
        return Rotary(theta=theta, kind="linear", factor=read.number("factor"))
    if kind != "llama3":
        raise read.refused(f"its positions are stretched by {_short(kind)}; default, linear and llama3 are known")
    low, high = read.number("low_freq_factor"), read.number("high_freq_factor")
    if high <= low:
        raise read.refused(f"high_freq_factor {high:g} is not above low_freq_factor {low:g}")
    original = read.number("original_max_position_embeddings")
    factor = read.number("factor")
    return Rotary(theta=theta, kind="llama3", factor=factor, low=low, high=high, original=round(original))


def _mapping(value: Any, read: _Reader) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise read.refused(f"its rope settings are {_short(value)}, not names and numbers")
    return value
