"""Reading a shape from a Hugging Face `config.json`, in the old and the new way of writing its settings.

What a configuration leaves out has the default of its architecture in `transformers`. Other architectures compute
something else with tensors that may have the same names, so they are refused by name, and so is every setting that is
not computed here. No JAX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError
from plimsoll.models.pretrained.shape import FORMS, Architecture, PretrainedShape, Rotary

SUPPORTED = ", ".join(f"{form.title} ({name})" for name, form in FORMS.items())
TEXT_ALONE: Mapping[str, Architecture] = {"gemma3_text": "gemma3"}
"""`model_type` of a model of text alone, to that of the model that also sees pictures, whose language model it is."""
ACTIVATIONS = {False: ("silu",), True: ("gelu", "gelu_pytorch_tanh")}
"""Names of the activation of others and of a Gemma, whose first configurations say gelu and mean gelu_pytorch_tanh."""
MOST_LAYERS = 10_000
"""Layers at most: a larger number is damage, and would make a list of names as long."""
ABSENT = {
    "attention_bias": "biases of attention",
    "mlp_bias": "biases of the feed-forward part",
    "quantization_config": "weights that another library quantised",
    "use_bidirectional_attention": "attention to later positions",
}
"""Settings that must not be there, or be false."""
QWEN = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
DEFAULTS: Mapping[Architecture, Mapping[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    "qwen2": QWEN,
    "qwen3": {**QWEN, "head_dim": 128},
    "gemma": {"max_position_embeddings": 8192, "tie_word_embeddings": True, "num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "gemma3": {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
    },
}
"""Values of settings that a configuration leaves out, where published ones do. A null stays one where it has a meaning:
no window, no cap."""


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
    """Returns the shape of a configuration.

    Args:
        config: Settings, as `config.json` has them. Of a model that also sees pictures, `text_config` is read.
        source: Where they come from, for messages.

    Raises:
        DataError: It is of a model that is not computed here, or incomplete.
    """
    kind = config.get("model_type")
    if kind == "gemma3" and isinstance(config.get("text_config"), Mapping):
        config = {"tie_word_embeddings": config.get("tie_word_embeddings"), **config["text_config"]}
        kind = config.get("model_type", "gemma3_text")
    architecture: Any = TEXT_ALONE.get(kind, kind) if isinstance(kind, str) else None
    if architecture not in FORMS:
        raise DataError(
            f"{source} is of the architecture {kind!r}, and computed here are {SUPPORTED}: name one of these"
        )
    read = _Reader(config, source, DEFAULTS[architecture])
    for name, what in ABSENT.items():
        if config.get(name):
            raise read.refused(f"it has {what} ({name}: {_short(config[name])})")
    _require_activation(architecture, read)
    width, heads = read.count("hidden_size"), read.count("num_attention_heads")
    key_heads = read.count("num_key_value_heads", heads)
    if heads % key_heads:
        raise read.refused(f"{heads} heads of queries cannot share {key_heads} of keys evenly")
    head_width = read.count("head_dim", width // heads)
    if head_width % 2 or (read.get("head_dim") is None and width % heads):
        raise read.refused(f"a width of {width} gives {heads} heads of no even width, which rotary positions turn")
    layers = read.count("num_hidden_layers", most=MOST_LAYERS)
    windowed = _windowed(architecture, layers, read)
    rotary, local = _rotaries(architecture, read)
    by_layer = any(windowed)
    return PretrainedShape(
        architecture=architecture,
        vocab=read.count("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        inner=read.count("intermediate_size"),
        norm_epsilon=read.number("rms_norm_eps", 1e-6),
        rotary=rotary,
        tied=bool(read.get("tie_word_embeddings")),
        positions=read.count("max_position_embeddings"),
        windowed=windowed if by_layer else (),
        window=read.count("sliding_window") if by_layer else 0,
        window_rotary=local if by_layer and local != rotary else None,
        score_scale=_score_scale(read),
        score_cap=_cap("attn_logit_softcapping", architecture == "gemma2", read),
        logit_cap=_cap("final_logit_softcapping", architecture in ("gemma2", "gemma3"), read),
    )


@dataclass(frozen=True)
class _Reader:
    """Settings of a configuration, and the defaults of its architecture.

    Raises DataError with the name of a wrong one.
    """

    config: Mapping[str, Any]
    source: str
    defaults: Mapping[str, Any]

    def get(self, name: str, *, null: bool = False) -> Any:
        """Returns a setting, or its default where it is left out, or null unless `null` has a meaning."""
        if self.config.get(name) is None and not (null and name in self.config):
            return self.defaults.get(name)
        return self.config[name]

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
        value = self.get(name)
        if value is None and default is None:
            raise self.refused(f"it does not say {name}")
        return default if value is None else value


def _short(value: Any) -> str:
    return repr(value)[:60]


def _require_activation(architecture: Architecture, read: _Reader) -> None:
    known = ACTIVATIONS[FORMS[architecture].gemma]
    names = ("hidden_activation", "hidden_act") if FORMS[architecture].gemma else ("hidden_act",)
    activation = next((read.config[name] for name in names if read.config.get(name) is not None), known[0])
    if activation not in known:
        raise read.refused(f"its activation is {_short(activation)}, and a {architecture}'s is {known[-1]}")


def _windowed(architecture: Architecture, layers: int, read: _Reader) -> tuple[bool, ...]:
    """Returns for each layer whether it sees a window alone."""
    if architecture in ("llama", "gemma") or read.get("sliding_window", null=True) is None:
        return (False,) * layers
    if architecture == "mistral":
        return (True,) * layers
    if architecture in ("qwen2", "qwen3") and not read.get("use_sliding_window"):
        return (False,) * layers
    kinds = read.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise read.refused(f"its layer_types are {_short(kinds)}, not one for each of {layers} layers")
        other = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
        if other:
            raise read.refused(f"it has layers of {_short(other[0])}; sliding_attention and full_attention are known")
        return tuple(kind == "sliding_attention" for kind in kinds)
    if architecture in ("qwen2", "qwen3"):
        first = read.get("max_window_layers")
        return tuple(isinstance(first, int) and layer >= first for layer in range(layers))
    name = "_sliding_window_pattern" if "_sliding_window_pattern" in read.config else "sliding_window_pattern"
    pattern = read.count(name)
    return tuple((layer + 1) % pattern != 0 for layer in range(layers))


def _score_scale(read: _Reader) -> float | None:
    known = "query_pre_attn_scalar" in read.defaults
    return read.number("query_pre_attn_scalar") ** -0.5 if known else None


def _cap(name: str, computed: bool, read: _Reader) -> float:
    if read.get(name, null=True) is None:
        return 0.0
    if not computed:
        raise read.refused(f"it has a cap that is not computed for its architecture ({name}: {_short(read.get(name))})")
    return read.number(name)


def _rotaries(architecture: Architecture, read: _Reader) -> tuple[Rotary, Rotary]:
    """Returns positions of layers that see all, and of those that see a window.

    Reads `rope_parameters`, for all layers or by their type, or its older form: `rope_theta`, and `rope_scaling` with a
    `type`.
    """
    new = _mapping(read.config.get("rope_parameters"), read)
    theta = read.get("rope_theta")
    if architecture == "gemma3":
        of_full = new.get("full_attention") if "full_attention" in new else new
        of_full = _mapping(of_full or read.config.get("rope_scaling"), read)
        of_window = _mapping(new.get("sliding_attention"), read)
        local = read.config.get("rope_local_base_freq") or 10_000.0
        return _rotary(of_full, theta, read), _rotary(of_window, local, read)
    rotary = _rotary(new or _mapping(read.config.get("rope_scaling"), read), theta, read)
    return rotary, rotary


def _rotary(rope: Mapping[str, Any], theta: Any, read: _Reader) -> Rotary:
    share = rope.get("partial_rotary_factor", read.config.get("partial_rotary_factor"))
    if share not in (None, 1):
        raise read.refused(f"only {_short(share)} of a head turns with the position (partial_rotary_factor)")
    read = _Reader(rope, read.source, {"rope_theta": theta})
    theta = read.number("rope_theta", 10_000.0)
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
