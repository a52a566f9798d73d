"""Fields of published config.json beside transformers: the tables' rows, and logits of odd configurations.

Part of finetune_beside_peft.py: `python benchmarks/finetune_beside_peft.py fields`.

First every field of the installed configuration classes is looked up in models/pretrained/fields.toml: it has to be in
the family's table, with the class's default. Then models of random weights, each with one odd field in its config.json,
are computed by transformers and by plimsoll: the logits agree, or plimsoll refuses the field by its name. What
transformers refuses itself may be either.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measuring import write
from peers.environment import PEFT, SIDE_PROGRAM, peer_python

from plimsoll.errors import DataError
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.families import REQUIRED, Family, tables
from plimsoll.models.pretrained.model import Pretrained
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.models.pretrained.weights import load
from plimsoll.types import Compute

CLOSE = 1e-5
"""Largest difference of logits, over the largest logit: their own rounding is some 1e-6 of weights this large."""
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
GEMMA = {"query_pre_attn_scalar": 8, "sliding_window": 8}
BASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "gemma": {},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
BY_LAYER = {"full_attention": LINEAR | {"rope_theta": 5e3}, "sliding_attention": {"rope_theta": 700.0}}
EVERY: list[dict[str, Any]] = [
    {},
    {"rope_theta": 500.0},
    {"rope_scaling": LINEAR},
    {"rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": 900.0},
    {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_parameters": LINEAR | {"rope_theta": 500.0}},
    {"rope_parameters": LINEAR, "rope_theta": 500.0},
    {"rope_parameters": {"rope_type": "linear", "type": "default", "factor": 2.0}},
    {"rope_parameters": {"rope_type": "default", "factor": 2.0, "rope_theta": 500.0}},
    {"rope_parameters": BY_LAYER},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1]}},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32}},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    {"partial_rotary_factor": 0.5},
    {"hidden_act": "gelu"},
    {"hidden_act": "relu"},
    {"hidden_activation": "gelu"},
    {"hidden_activation": "relu"},
    {"sliding_window": 3},
    {"sliding_window": None},
    {"use_sliding_window": False},
    {"max_window_layers": 0},
    {"layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]},
    {"layer_types": ["full_attention"] * 4},
    {"sliding_window_pattern": 2},
    {"sliding_window_pattern": 3},
    {"_sliding_window_pattern": 3},
    {"attn_logit_softcapping": 1.0},
    {"final_logit_softcapping": 2.0},
    {"query_pre_attn_scalar": 3},
    {"rope_local_base_freq": 300.0},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"attention_dropout": 0.5},
    {"use_bidirectional_attention": True},
    {"is_causal": False},
    {"num_key_value_heads": None},
    {"head_dim": None},
    {"head_dim": 16},
    {"rms_norm_eps": 1e-2},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": False},
    {"pretraining_tp": 2},
    {"per_layer_config": {"0": {"head_dim": 16}}},
    {"attention_multiplier": 3.0},
    {"chunk_size_feed_forward": 4},
    {"pad_token_id": 3},
]
"""Fields that are added to every family's configuration."""
PICTURES: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": False},
    {"text_config": {"tie_word_embeddings": False}},
    {"text_config": {"final_logit_softcapping": 2.0}},
    {"text_config": {"hidden_activation": "gelu"}},
    {"rope_scaling": LINEAR},
    {"mm_tokens_per_image": 16},
]
"""The same of a Gemma 3 that sees pictures; what `text_config` holds goes into its own."""
SIGHT = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8, "model_type": "siglip_vision_model",
}  # fmt: skip


def fields(options: argparse.Namespace) -> int:
    """Compares, and returns 1 where a line is wrong."""
    python = options.peer_environment / "bin/python"
    if not python.exists():
        python = peer_python(options.peer_environment, PEFT)
    installed = json.loads(peer(python, "fields"))
    print(f"transformers {installed['transformers']}, tables from {tables().transformers}")
    differences = [words for kind, found in installed["families"].items() for words in compared(kind, found)]
    print(*differences or ["tables: every field is there, with its default"], sep="\n")
    with tempfile.TemporaryDirectory() as name:
        rows = []
        for row in beside(python, Path(name), cases()):
            print(f"{row['verdict']:9} {row['name']:60} {row['words']}", flush=True)
            rows.append(row)
    wrong = [row["name"] for row in rows if row["verdict"] == "WRONG"]
    largest = max(row["difference"] for row in rows if "difference" in row)
    counts = {
        verdict: sum(row["verdict"] == verdict for row in rows) for verdict in ("same", "refused", "lenient", "WRONG")
    }
    print(f"{len(rows)} configurations: {counts}, largest difference {largest:.1e} of the largest logit")
    facts = {"transformers": installed["transformers"], "tables": differences, "counts": counts, "rows": rows}
    write(options.out, facts | {"largest_difference": largest})
    return 1 if wrong or differences else 0


def peer(python: Path, *words: str) -> str:
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(python), SIDE_PROGRAM, "peers.config_side", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def compared(kind: str, found: dict[str, Any]) -> list[str]:
    """Returns where a family's table and its class differ."""
    family = tables().families[kind]
    wrong = [] if found["class"] == family.config_class else [f"{kind}: its class is {found['class']}"]
    for name, default in found["defaults"].items():
        wrong += [f"{kind}.{name}: {words}" for words in field_compared(family, name, default)]
    theta = found["theta"]
    thetas = {"rope_theta": theta} if not isinstance(theta, dict) else {
        "rope_theta": theta["global"], "rope_local_base_freq": theta["local"]
    }  # fmt: skip
    wrong += [
        f"{kind}.{name}: {family.fields[name].value} here, {value} there"
        for name, value in thetas.items()
        if name in family.fields and family.fields[name].value != value
    ]
    return wrong


def field_compared(family: Family, name: str, default: Any) -> list[str]:
    field = family.fields.get(name)
    if field is None:
        return ["in no table"]
    if field.kind == "no_effect" or field.value == REQUIRED or field.value == default:
        return []
    return [f"{field.value} here, {default} there"]


def cases() -> dict[str, dict[str, Any]]:
    """Returns configurations by their names."""
    found: dict[str, dict[str, Any]] = {}
    for kind, base in BASES.items():
        for odd in EVERY:
            name = f"{kind} {json.dumps(odd)[1:-1].replace('/', '')}"[:200]
            found[name] = {"model_type": kind, **SIZES, **base, **odd}
    for odd in PICTURES:
        text = {"model_type": "gemma3_text", **SIZES, **GEMMA, **odd.get("text_config", {})}
        outer = {"model_type": "gemma3", "vision_config": SIGHT, "mm_tokens_per_image": 4, "image_token_index": 63}
        found[f"gemma3 {json.dumps(odd)[1:-1]}"] = {**outer, **odd, "text_config": text}
    return found


def beside(python: Path, folder: Path, found: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row for each case: both sides' logits compared."""
    numbered = {f"{number:04}": config for number, config in enumerate(found.values())}
    (folder / "cases.json").write_text(json.dumps(numbered))
    peer(python, "models", str(folder / "cases.json"), str(folder))
    theirs = json.loads((folder / "logits.json").read_text())
    for name, number in zip(found, numbered, strict=True):
        yield {"name": name, **verdict(folder / number, theirs[number])}


def verdict(folder: Path, theirs: dict[str, Any]) -> dict[str, Any]:
    refused = theirs.get("refused")
    try:
        shape = read_shape(folder)
        if refused:
            return {"verdict": "lenient", "words": f"read here; transformers: {refused[:100]}"}
        params = load(folder, shape)
    except DataError as problem:
        both = ", by transformers, too" if refused else ""
        return {"verdict": "refused", "words": str(problem).replace(str(folder), "")[:150] + both}
    logits = computed(shape)(params, np.asarray(theirs["ids"], np.int32))
    expected = np.asarray(theirs["logits"])
    difference = float(np.abs(np.asarray(logits) - expected).max() / np.abs(expected).max())
    words = f"{difference:.1e} of the largest logit"
    return {"verdict": "same" if difference <= CLOSE else "WRONG", "words": words, "difference": difference}


@cache
def computed(shape: PretrainedShape) -> Any:
    """Returns a model's logits as a function: many configurations are of one shape, which is compiled once."""
    model = Pretrained(shape, Compute())
    return jax.jit(lambda params, ids: model.logits(params, model.hidden(params, ids)[0]))
