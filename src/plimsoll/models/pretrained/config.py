"""Reads a decoder's shape from a Hugging Face `config.json`, with old or new names of fields.

Every field is read, known to have no effect, or rejected by name (families.py). A missing field has the default of its
class in `transformers`. If two fields conflict, the field that `transformers` uses counts. Other architectures are
rejected, because they compute something else with tensors that may have the same names. Imports no JAX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError
from plimsoll.models.pretrained.families import Family, tables
from plimsoll.models.shape import FORMS, DecoderShape, Rotary

PICTURES, TEXT = "gemma3", "gemma3_text"
"""`model_type` of a model that also sees pictures, and of the language model in its `text_config`."""
SUPPORTED = ", ".join(f"{form.title} ({name})" for name, form in FORMS.items())
INSTEAD = f"use --pretrained with a model that is: {SUPPORTED}"
PUBLISHED = "Take the config.json that was published with these weights"
SILU = ("silu", "swish")
TANH, EXACT = "gelu_pytorch_tanh", "gelu"
"""Names of the GELU approximated by tanh, and of the exact GELU. In a Gemma 1, `gelu` means the approximation, too."""
ROPE = {
    "factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings", "partial_rotary_factor",
    "rope_theta", "rope_type", "type",
}  # fmt: skip
"""Supported settings of rotary positions."""


def read_shape(folder: str | Path) -> DecoderShape:
    """Returns the shape in a folder's `config.json`. Raises DataError if it is missing or not supported."""
    config, source = read_config(folder)
    return shape_of(config, source=source)


def read_config(folder: str | Path) -> tuple[dict[str, Any], str]:
    """Returns a folder's `config.json` and its path. Raises DataError if the file is missing or is not JSON."""
    path = Path(folder).expanduser() / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no config.json: name the folder of a Hugging Face model, with its config.json and its"
            " .safetensors files"
        ) from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read as JSON ({str(problem)[:160]}): copy it again") from None
    return config, str(path)


def sees_pictures(config: Mapping[str, Any]) -> bool:
    """Returns True if the model has a vision part besides its language model."""
    return config.get("model_type") == PICTURES


def text_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the language model, without those of a vision part."""
    if not sees_pictures(config):
        return dict(config)
    # The output layer belongs to the outer model, whose setting decides if it is tied.
    tied = config.get("tie_word_embeddings")
    return {**(config.get("text_config") or {}), "model_type": TEXT, "tie_word_embeddings": tied is None or tied}


def shape_of(config: Mapping[str, Any], *, source: str) -> DecoderShape:
    """Returns the shape of a configuration.

    Args:
        config: Content of a `config.json`. For a model that also sees pictures, `text_config` is read.
        source: Path or id of the configuration, for messages.

    Raises:
        DataError: The configuration is incomplete, or its model is not supported.
    """
    read = _reader(config, source)
    width = read.count("hidden_size")
    heads, key_heads, head_width = _heads(width, read)
    layers = read.count("num_hidden_layers")
    windowed = _windowed(layers, read)
    rotary, local = _rotaries(read)
    has_window = any(windowed)
    if all(windowed):
        rotary = local
        windowed = ()
    return DecoderShape(
        architecture=read.family.architecture,
        vocab=read.count("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        inner=read.count("intermediate_size"),
        norm_epsilon=read.number("rms_norm_eps"),
        rotary=rotary,
        tied=read.flag("tie_word_embeddings"),
        positions=read.count("max_position_embeddings"),
        window=read.count("sliding_window") if has_window else 0,
        windowed=windowed if has_window else (),
        window_rotary=local if has_window and local != rotary else None,
        score_scale=read.number("query_pre_attn_scalar") ** -0.5 if read.has("query_pre_attn_scalar") else None,
        score_cap=read.number_or_none("attn_logit_softcapping"),
        logit_cap=read.number_or_none("final_logit_softcapping"),
        exact_gelu=_exact_gelu(read),
    )


def _reader(config: Mapping[str, Any], source: str) -> _Reader:
    """Returns a reader of the language model's settings. Raises DataError for a field with an unsupported value."""
    kind = str(config.get("model_type"))
    if kind not in tables().families:
        raise DataError(f"{source} is of the architecture {kind!r}, which plimsoll does not support: {INSTEAD}")
    read = _Reader(config, source, tables().families[kind])
    read.require_known()
    if not sees_pictures(config):
        return read
    inner = _reader(text_settings(config), source)
    cap = inner.config.get("final_logit_softcapping")
    if cap is not None:
        raise inner.refused("final_logit_softcapping", cap)
    return inner


def _heads(width: int, read: _Reader) -> tuple[int, int, int]:
    """Returns the number of query heads, the number of key-value heads, and the columns per head."""
    heads = read.count("num_attention_heads")
    key_heads = heads if read.get("num_key_value_heads", null=True) is None else read.count("num_key_value_heads")
    if heads % key_heads:
        raise read.wrong(f"{heads} query heads cannot share {key_heads} key-value heads evenly")
    is_derived = read.get("head_dim") is None
    head_width = width // heads if is_derived else read.count("head_dim")
    if head_width % 2 or (is_derived and width % heads):
        raise read.wrong(
            f"its {heads} heads have no even width (model width {width}), and rotary positions turn pairs of columns"
        )
    return heads, key_heads, head_width


@dataclass(frozen=True)
class _Reader:
    """Reads the settings in a `config.json`, by the table of fields of its `model_type`.

    Methods raise DataError with the name of a wrong setting.
    """

    config: Mapping[str, Any]
    source: str
    family: Family

    def require_known(self) -> None:
        """Raises DataError for a field with an unsupported value."""
        for name, value in self.config.items():
            field = self.family.fields.get(name)
            if field is None:
                is_refused = value and not name.startswith(tables().programs)
            elif field.kind == "only":
                is_empty = not value and not field.value  # null, false and 0 mean the same
                is_refused = value != field.value and not is_empty
            else:
                is_refused = False
            if is_refused:
                raise self.refused(name, value)

    def has(self, name: str) -> bool:
        """Returns True if the field `name` changes the computation of the family's models."""
        field = self.family.fields.get(name)
        return field is not None and field.kind == "computed"

    def get(self, name: str, *, null: bool = False) -> Any:
        """Returns a setting, or its default if it is missing; None for a field without effect.

        Args:
            name: Name of the field.
            null: Whether a null is returned as None. Otherwise it stands for the default.
        """
        field = self.family.fields.get(name)
        if field is None or field.kind == "no_effect":
            return None
        if null and name in self.config:
            return self.config[name]
        value = self.config.get(name)
        return field.value if value is None else value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.wrong(f"{name} is {_short(value)}, not true or false")
        return value

    def count(self, name: str, value: Any = None) -> int:
        """Returns the field `name`, or `value` if given. Raises DataError unless it is a whole number above 0."""
        value = self.get(name) if value is None else value
        if type(value) is not int or value < 1:
            raise self.wrong(f"{name} is {_short(value)}, not a whole number above 0")
        return value

    def number(self, name: str, value: Any = None) -> float:
        """Returns the field `name`, or `value` if given, as a float. Raises DataError unless it is a number above 0."""
        value = self.get(name) if value is None else value
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.wrong(f"{name} is {_short(value)}, not a number above 0")
        return float(value)

    def number_or_none(self, name: str) -> float:
        """Returns the field as a number above 0, or 0 if it is null."""
        return 0.0 if self.get(name, null=True) is None else self.number(name)

    def wrong(self, why: str) -> DataError:
        """Returns the error for inconsistent settings."""
        return DataError(f"{self.source} cannot be used: {why}. {PUBLISHED}")

    def refused(self, name: str, value: Any) -> DataError:
        """Returns the error for an unsupported setting."""
        setting = f"{name}: {_short(value)}"
        field = self.family.fields.get(name)
        reason = tables().reasons.get(name)
        if field is None:
            known = f"no field of {self.family.config_class} in transformers {tables().transformers}"
            why = f"it says {setting}, which is {known}, and may ask for anything"
        elif reason is not None:
            why = f"it has {reason} ({setting})"
        else:
            why = f"it says {setting}, not {field.value}"
        return self.not_computed(why, name)

    def not_computed(self, why: str, name: str, value: str = "removed") -> DataError:
        """Returns the error for an unsupported model. `name` and `value` end its advice: "rope_scaling removed"."""
        if name == "quantization_config":
            advice = "Use --pretrained with the model that it was made from: --frozen-bits stores that in few bits"
        else:
            advice = f"If its weights do without, export it with {name} {value}; else {INSTEAD}"
        return DataError(f"{self.source} is of a model that plimsoll does not support: {why}. {advice}")


def _short(value: Any) -> str:
    return repr(value)[:60]


def _exact_gelu(read: _Reader) -> bool:
    architecture = read.family.architecture
    name = "hidden_activation" if read.has("hidden_activation") else "hidden_act"
    known = (TANH, EXACT) if FORMS[architecture].gemma else SILU
    activation = read.get(name)
    if activation not in known:
        what = f"its activation is {_short(activation)}, and a {architecture}'s is {known[0]}"
        raise read.not_computed(what, f"{name} {known[0]}", "in its place")
    return activation == EXACT and architecture != "gemma"


def _windowed(layers: int, read: _Reader) -> tuple[bool, ...]:
    """Returns a boolean for each layer: True if its queries see only a sliding window."""
    window = read.get("sliding_window", null=True)
    if read.has("use_sliding_window") and not read.flag("use_sliding_window"):
        window = None
    if not read.has("layer_types"):  # all layers are alike; of these families only Mistral has windows
        return (window is not None,) * layers

    # The configuration has a type for each layer, or a rule that determines the types.
    if read.get("layer_types") is not None:
        windowed = _named_windows(layers, read)
    elif read.has("max_window_layers"):
        first = read.get("max_window_layers")
        windowed = tuple(window is not None and layer >= first for layer in range(layers))
    else:
        pattern = read.count("sliding_window_pattern")
        windowed = tuple((layer + 1) % pattern != 0 for layer in range(layers))
    if any(windowed) and window is None:
        raise read.wrong("it has layers of sliding_attention, but no sliding_window, or use_sliding_window is false")
    return windowed


def _named_windows(layers: int, read: _Reader) -> tuple[bool, ...]:
    kinds = read.get("layer_types")
    if len(kinds) != layers:
        raise read.wrong(f"its layer_types are {len(kinds)}, not one for each of {layers} layers")
    for kind in kinds:
        if kind not in ("sliding_attention", "full_attention"):
            what = f"it has layers of {_short(kind)}; sliding_attention and full_attention are known"
            raise read.not_computed(what, "layer_types")
    return tuple(kind == "sliding_attention" for kind in kinds)


def _rotaries(read: _Reader) -> tuple[Rotary, Rotary]:
    """Returns the rotary positions of layers with full attention, and of layers with a sliding window.

    `rope_scaling` replaces `rope_parameters`. A `rope_theta` outside of both is the default for both. A Gemma 3 has
    `rope_parameters` for each of the two kinds of layers. There `rope_scaling` changes the parameters of full
    attention, and only the entries `full_attention` and `sliding_attention` of `rope_parameters` are read.
    """
    scaling = read.get("rope_scaling") or {}
    parameters = read.get("rope_parameters") or {}
    theta = read.get("rope_theta")
    if not read.has("rope_local_base_freq"):
        rotary = _rotary(scaling or parameters, theta, read)
        return rotary, rotary
    full = parameters.get("full_attention") or {}
    of_window = parameters.get("sliding_attention") or {}
    if not parameters:
        full = {"rope_type": "default"}
    elif scaling and not full:
        raise read.wrong("its rope_scaling would change full_attention in rope_parameters, which is missing")
    return _rotary({**full, **scaling}, theta, read), _rotary(of_window, read.get("rope_local_base_freq"), read)


def _rotary(rope: Mapping[str, Any], theta: Any, read: _Reader) -> Rotary:
    changed = ("rope_scaling", "removed") if read.get("rope_scaling") else ("rope_parameters", "of rope_type default")
    for name in rope.keys() - ROPE:
        if rope[name] is not None:
            raise read.not_computed(f"its {changed[0]} say {name}: {_short(rope[name])}", *changed)
    share = rope.get("partial_rotary_factor", read.get("partial_rotary_factor"))
    if share not in (None, 1):
        what = f"only {_short(share)} of a head turns with the position (partial_rotary_factor)"
        raise read.not_computed(what, "partial_rotary_factor")
    theta = read.number("rope_theta", rope.get("rope_theta", theta))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return Rotary(theta=theta)
    if kind not in ("linear", "llama3"):
        what = f"its positions are stretched by {_short(kind)}; default, linear and llama3 are known"
        raise read.not_computed(what, *changed)
    factor = read.number("factor", rope.get("factor"))
    if kind == "linear":
        return Rotary(theta=theta, kind="linear", factor=factor)
    low = read.number("low_freq_factor", rope.get("low_freq_factor"))
    high = read.number("high_freq_factor", rope.get("high_freq_factor"))
    if high <= low:
        raise read.wrong(f"high_freq_factor {high:g} is not above low_freq_factor {low:g}")
    original = rope.get("original_max_position_embeddings", read.get("max_position_embeddings"))
    return Rotary(theta=theta, kind="llama3", factor=factor, low=low, high=high, original=original)
