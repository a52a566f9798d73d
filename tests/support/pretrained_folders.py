"""Small Hugging Face folders of random weights, written as others write them."""

import json

import numpy as np
from safetensors.numpy import save_file

from plimsoll.models.shape import DecoderShape, Rotary

LLAMA = DecoderShape(
    architecture="llama",
    vocab=90,
    width=32,
    layers=3,
    heads=4,
    key_heads=2,
    head_width=8,
    inner=72,
    norm_epsilon=1e-5,
    rotary=Rotary(theta=500_000.0, kind="llama3", factor=8.0, original=64),
    tied=False,
    positions=256,
)


SIZES = {
    "vocab": 90,
    "width": 32,
    "layers": 3,
    "heads": 4,
    "key_heads": 2,
    "head_width": 8,
    "inner": 72,
    "norm_epsilon": 1e-6,
}
QWEN = DecoderShape(architecture="qwen2", **SIZES)
GEMMA_3 = DecoderShape(architecture="gemma3", windowed=(True, False, True), window=4, score_scale=0.25, **SIZES)
"""The two with the most tensors besides a Llama's: biases, norms of heads, norms after."""


def config_of(shape, **changed):
    return {
        "model_type": "gemma3_text" if shape.architecture == "gemma3" else shape.architecture,
        "hidden_act": "gelu_pytorch_tanh" if shape.form.gemma else "silu",
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_width,
        "intermediate_size": shape.inner,
        "rms_norm_eps": shape.norm_epsilon,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": shape.tied,
        "rope_theta": shape.rotary.theta,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": shape.rotary.factor,
            "low_freq_factor": shape.rotary.low,
            "high_freq_factor": shape.rotary.high,
            "original_max_position_embeddings": shape.rotary.original,
        },
    } | changed


def drawn(shape, seed=0):
    draw = np.random.default_rng(seed)
    return {name: 0.1 * draw.standard_normal(sides, np.float32) for name, sides in shape.tensors().items()}


def write(folder, shape, tensors=None, **changed):
    """One file; `changed` settings of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape, **changed)))
    save_file(drawn(shape) if tensors is None else tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_sharded(folder, shape, tensors=None, *, files=3):
    """As `save_pretrained` cuts it: files numbered from 1, and an index."""
    tensors = drawn(shape) if tensors is None else tensors
    write(folder, shape, {})
    (folder / "model.safetensors").unlink()
    names = {name: f"model-{1 + n % files:05}-of-{files:05}.safetensors" for n, name in enumerate(tensors)}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in tensors if names[name] == file}, folder / file)
    index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
