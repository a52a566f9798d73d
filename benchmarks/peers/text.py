"""What both sides of a text comparison start from: tokens, the order of their windows, weights."""

from collections.abc import Mapping

import numpy as np
from tokenizers import ByteLevelBPETokenizer


def encode(text: str, *, vocab_size: int) -> np.ndarray:
    """The whole text as one stream of tokens of a byte-level BPE learned from it."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False)
    return np.array(tokenizer.encode(text).ids, dtype=np.int32)


def order_of_windows(windows: int, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Every window once, shuffled, then again in another order, until the steps are filled."""
    count = shape[0] * shape[1]
    epochs = [random.permutation(windows) for _ in range(-(-count // windows))]
    return np.concatenate(epochs)[:count].reshape(shape)


def initial_weights(model: Mapping, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Normal with deviation 0.02, norms 1; named as in LlamaForCausalLM, (out, in), the head tied."""
    width, inner = model["hidden_size"], model["intermediate_size"]
    shapes = {"model.embed_tokens": (model["vocab_size"], width), "model.norm": (width,)}
    for layer in (f"model.layers.{index}" for index in range(model["layers"])):
        shapes |= {f"{layer}.self_attn.{part}_proj": (width, width) for part in "qkvo"}
        shapes |= {f"{layer}.mlp.{part}_proj": (inner, width) for part in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (width, inner)}
        shapes |= {f"{layer}.{norm}_layernorm": (width,) for norm in ("input", "post_attention")}
    return {
        f"{name}.weight": np.ones(shape, np.float32)
        if len(shape) == 1
        else random.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
