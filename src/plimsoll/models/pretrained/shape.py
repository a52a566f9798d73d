"""Shapes of published decoders: widths, counts and positions, and in what the architectures differ from a Llama.

All of them are one decoder (model.py). An architecture is a name in `FORMS` with what it computes besides; a shape adds
the numbers, and from both follow the published tensors. `config.py` reads a shape from a `config.json`. No JAX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32

Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"]

KERNELS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Name in our tree to the published name, within a layer."""
NORMS = {"attention_norm": "input_layernorm", "feed_norm": "post_attention_layernorm"}
NORMS_ON_BOTH_SIDES = {
    "attention_norm": "input_layernorm",
    "attention_after_norm": "post_attention_layernorm",
    "feed_norm": "pre_feedforward_layernorm",
    "feed_after_norm": "post_feedforward_layernorm",
}
HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}


@dataclass(frozen=True)
class Form:
    """Differences of an architecture from a Llama's decoder."""

    title: str
    """Models of the architecture, in words."""
    gemma: bool = False
    """Norms multiply by 1 + weight, the embedding is scaled by sqrt(width), and the gate is GELU instead of SiLU."""
    biases: tuple[str, ...] = ()
    """Kernels with a bias."""
    norms_after: bool = False
    """Attention and feed-forward part have a norm after them, too, before they are added to the stream."""
    head_norms: bool = False
    """Queries and keys have a norm over the columns of a head."""


FORMS: Mapping[Architecture, Form] = {
    "llama": Form("Llama 2 to 3.x"),
    "mistral": Form("Mistral"),
    "qwen2": Form("Qwen2 and 2.5", biases=("query", "key", "value")),
    "qwen3": Form("Qwen3", head_norms=True),
    "gemma": Form("Gemma 1", gemma=True),
    "gemma2": Form("Gemma 2", gemma=True, norms_after=True),
    "gemma3": Form("Gemma 3 of text", gemma=True, norms_after=True, head_norms=True),
}
"""`model_type` of a configuration (of Gemma 3 also `gemma3_text`) to what is computed."""


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
        """Returns radians per position, for each pair of a head of that width."""
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
    """Widths and counts of a published decoder."""

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
    windowed: tuple[bool, ...] = ()
    """For each layer, whether a query sees the last `window` positions alone; empty where none does."""
    window: int = 0
    """Positions that a query of such a layer sees, its own included."""
    window_rotary: Rotary | None = None
    """Positions of those layers, where they are not `rotary`."""
    score_scale: float | None = None
    """Factor of attention's scores; None for 1 / sqrt(head_width)."""
    score_cap: float = 0.0
    """Scores s become cap * tanh(s / cap); 0 for no cap."""
    logit_cap: float = 0.0
    """The same of logits."""
    exact_gelu: bool = False
    """The gate of a Gemma is GELU itself, not its approximation by tanh."""

    @property
    def form(self) -> Form:
        return FORMS[self.architecture]

    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.tensors().values())

    def block_tensors(self) -> dict[tuple[str, str], tuple[str, tuple[int, ...]]]:
        """Returns name and leaf in our tree to published name and shape, within a layer. A kernel's is (out, in)."""
        d, queries, keys, inner = self.width, self.heads * self.head_width, self.key_heads * self.head_width, self.inner
        sides = {
            "query": (queries, d),
            "key": (keys, d),
            "value": (keys, d),
            "out": (d, queries),
            "gate": (inner, d),
            "up": (inner, d),
            "down": (d, inner),
        }
        found: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {
            (ours, "kernel"): (f"{KERNELS[ours]}.weight", shape) for ours, shape in sides.items()
        }
        for ours in self.form.biases:
            found[ours, "bias"] = f"{KERNELS[ours]}.bias", sides[ours][:1]
        for ours, name in (NORMS_ON_BOTH_SIDES if self.form.norms_after else NORMS).items():
            found[ours, "scale"] = f"{name}.weight", (d,)
        for ours, name in HEAD_NORMS.items() if self.form.head_norms else ():
            found[ours, "scale"] = f"{name}.weight", (self.head_width,)
        return found

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Returns published name to published shape, (out, in) of a kernel; without `lm_head` where it is tied."""
        tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.width)}
        for number in range(self.layers):
            tensors |= {f"model.layers.{number}.{name}": shape for name, shape in self.block_tensors().values()}
        tensors["model.norm.weight"] = (self.width,)
        return tensors if self.tied else tensors | {"lm_head.weight": (self.vocab, self.width)}

    def leaves(self) -> dict[str, tuple[int, ...]]:
        """Returns path and shape of every leaf of our tree, kernels as (layers, in, out)."""
        leaves: dict[str, tuple[int, ...]] = {"embedding": (self.vocab, self.width)}
        for (ours, leaf), (_, sides) in self.block_tensors().items():
            leaves[f"blocks/{ours}/{leaf}"] = (self.layers, *reversed(sides))
        leaves["norm"] = (self.width,)
        return leaves if self.tied else leaves | {"head": (self.width, self.vocab)}
