"""Shapes of decoders: widths, counts and positions, and differences of published architectures from Llama.

One decoder (decoder.py) computes all architectures. `FORMS` has the differences of each architecture, a shape has the
numbers; both determine the tensors. `sizing.py` finds the shape for a number of parameters, and `pretrained/config.py`
reads one from a `config.json`. Imports no JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plimsoll.errors import RecipeError

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
"""Published names of a layer's kernels, by plimsoll's names."""
NORMS = {"attention_norm": "input_layernorm", "feed_norm": "post_attention_layernorm"}
NORMS_ON_BOTH_SIDES = {
    "attention_norm": "input_layernorm",
    "attention_after_norm": "post_attention_layernorm",
    "feed_norm": "pre_feedforward_layernorm",
    "feed_after_norm": "post_feedforward_layernorm",
}
HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
"""Published names of the norms of query and key heads, by plimsoll's names."""


@dataclass(frozen=True)
class Form:
    """Differences of an architecture from Llama."""

    title: str
    """Names of models with the architecture, for messages."""
    norms: Mapping[str, str]
    """Published names of a layer's norms, by plimsoll's names."""
    gemma: bool = False
    """If True, norms multiply by 1 + weight, embeddings are scaled by sqrt(width), and GELU replaces SiLU."""
    biases: tuple[str, ...] = ()
    """Names of kernels that have a bias."""

    @property
    def norm_start(self) -> float:
        """Initial weight of norms, with which they multiply by 1."""
        return 0.0 if self.gemma else 1.0


FORMS: Mapping[Architecture, Form] = {
    "llama": Form("Llama 2 to 3.x", NORMS),
    "mistral": Form("Mistral", NORMS),
    "qwen2": Form("Qwen2 and 2.5", NORMS, biases=("query", "key", "value")),
    "qwen3": Form("Qwen3", NORMS | HEAD_NORMS),
    "gemma": Form("Gemma 1", NORMS, gemma=True),
    "gemma2": Form("Gemma 2", NORMS_ON_BOTH_SIDES, gemma=True),
    "gemma3": Form("Gemma 3 of text", NORMS_ON_BOTH_SIDES | HEAD_NORMS, gemma=True),
}
"""Forms by `model_type` of a `config.json`. `gemma3` also stands for `gemma3_text`."""


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions of queries and keys: frequencies theta^(-2i / head width), and scaling for longer inputs."""

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    """Longest input, as a multiple of the longest input before scaling."""
    low: float = 1.0
    """llama3: frequencies with at most `low` rotations in `original` positions are divided by `factor`."""
    high: float = 4.0
    """llama3: frequencies with at least `high` rotations in `original` positions are unchanged."""
    original: int = 8192
    """llama3: longest input before scaling, in positions."""


def require_pairs(width: int, heads: int) -> None:
    """Raises RecipeError unless width / heads is an even integer: rotary positions rotate pairs of columns."""
    if width % heads or (width // heads) % 2:
        raise RecipeError(
            f"--width {width} cannot be split over --heads {heads}: width / heads must be an even whole number (rotary"
            f" embedding turns pairs), for example --heads {max(1, width // 32)}"
        )


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Widths and counts of a decoder; by default of a plain Llama."""

    vocab: int
    width: int
    layers: int
    heads: int
    inner: int
    """Width of the feed-forward part."""
    key_heads: int = 0
    """Number of key-value heads, each shared by heads / key_heads query heads. 0 stands for `heads`."""
    head_width: int = 0
    """Columns of a head. 0 stands for width / heads."""
    architecture: Architecture = "llama"
    norm_epsilon: float = 1e-6
    rotary: Rotary = Rotary()
    tied: bool = True
    """Whether the output layer uses the token embedding's weights."""
    positions: int = 8192
    """Longest input in training, in tokens."""
    window: int = 0
    """Positions that a query sees in a sliding window, its own included; 0 for all up to its own."""
    windowed: tuple[bool, ...] = ()
    """For each layer, whether `window` applies; empty if it applies to all layers."""
    window_rotary: Rotary | None = None
    """Rotary positions of layers with a sliding window; None if these use `rotary`."""
    score_scale: float | None = None
    """Factor of attention's scores; None for 1 / sqrt(head_width)."""
    score_cap: float = 0.0
    """Attention scores s become cap * tanh(s / cap); 0 for no cap."""
    logit_cap: float = 0.0
    """Logits s become cap * tanh(s / cap); 0 for no cap."""
    exact_gelu: bool = False
    """Whether the gate of a Gemma uses the exact GELU instead of its approximation by tanh."""

    def __post_init__(self) -> None:
        if not self.head_width:
            require_pairs(self.width, self.heads)
            object.__setattr__(self, "head_width", self.width // self.heads)
        if not self.key_heads:
            object.__setattr__(self, "key_heads", self.heads)

    @property
    def form(self) -> Form:
        return FORMS[self.architecture]

    def block_tensors(self) -> dict[tuple[str, str], tuple[str, tuple[int, ...]]]:
        """Returns published name and shape of each tensor of a layer, by plimsoll's name; (out, in) for kernels."""
        width = self.width
        queries = self.heads * self.head_width
        keys = self.key_heads * self.head_width
        sides = {
            "query": (queries, width),
            "key": (keys, width),
            "value": (keys, width),
            "out": (width, queries),
            "gate": (self.inner, width),
            "up": (self.inner, width),
            "down": (width, self.inner),
        }
        tensors: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
        tensors |= {(name, "kernel"): (f"{KERNELS[name]}.weight", shape) for name, shape in sides.items()}
        tensors |= {(name, "bias"): (f"{KERNELS[name]}.bias", sides[name][:1]) for name in self.form.biases}
        for name, published in self.form.norms.items():
            columns = self.head_width if name in HEAD_NORMS else width
            tensors[name, "scale"] = f"{published}.weight", (columns,)
        return tensors

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each tensor by published name; (out, in) for kernels, and no `lm_head` if tied."""
        tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.width)}
        for number in range(self.layers):
            tensors |= {f"model.layers.{number}.{name}": shape for name, shape in self.block_tensors().values()}
        tensors["model.norm.weight"] = (self.width,)
        return tensors if self.tied else tensors | {"lm_head.weight": (self.vocab, self.width)}

    def leaves(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each array of plimsoll's parameters, by path; (layers, in, out) for kernels."""
        leaves: dict[str, tuple[int, ...]] = {"embedding": (self.vocab, self.width)}
        for (ours, leaf), (_, sides) in self.block_tensors().items():
            leaves[f"blocks/{ours}/{leaf}"] = (self.layers, *reversed(sides))
        leaves["norm"] = (self.width,)
        return leaves if self.tied else leaves | {"head": (self.width, self.vocab)}
