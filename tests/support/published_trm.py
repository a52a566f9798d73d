"""Weights of the published Tiny Recursive Model by their names, and their places in our parameters.

A Linear is stored (out, in) there and (in, out) here.
"""

import jax
import numpy as np

from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.specs import PuzzleSpec

TABLE = "inner.puzzle_emb.weights"


def model_of(config):
    """The options of a published configuration."""
    return Trm(
        variant="mlp" if config["mlp_t"] else "attention",
        width=config["hidden_size"],
        heads=config["num_heads"],
        layers=config["L_layers"],
        high_cycles=config["H_cycles"],
        low_cycles=config["L_cycles"],
        puzzle_positions=config["puzzle_emb_len"],
        halt_max_steps=config["halt_max_steps"],
        halt_exploration=config["halt_exploration_prob"],
    )


def spec_of(config):
    """The puzzles of a published configuration."""
    return PuzzleSpec(
        arrays={},
        vocab=config["vocab_size"],
        length=config["seq_len"],
        identifiers=config["num_puzzle_identifiers"],
    )


def names(model):
    """For each published name, the path in our parameters and whether the matrix is transposed."""
    places = {
        "inner.embed_tokens.embedding_weight": (("trainable", "embedding"), False),
        "inner.lm_head.weight": (("trainable", "head"), True),
        "inner.q_head.weight": (("trainable", "halt", "kernel"), True),
        "inner.q_head.bias": (("trainable", "halt", "bias"), False),
        "inner.H_init": (("frozen", "high"), False),
        "inner.L_init": (("frozen", "low"), False),
        TABLE: (("tables", "puzzles"), False),
    }
    mixing = (
        {"self_attn.qkv_proj": "qkv", "self_attn.o_proj": "out"}
        if model.variant == "attention"
        else {"mlp_t.gate_up_proj": "mix_gate_up", "mlp_t.down_proj": "mix_down"}
    )
    for layer in range(model.layers):
        for theirs, ours in (mixing | {"mlp.gate_up_proj": "gate_up", "mlp.down_proj": "down"}).items():
            places[f"inner.L_level.layers.{layer}.{theirs}.weight"] = (("trainable", "blocks", layer, ours), True)
    return places


def placed(tensors, params, model):
    """`params` (arrays or shapes) with the published tensors; each must have the shape of the one it replaces."""
    params = jax.tree.map(lambda leaf: leaf, params)  # containers of its own
    places = names(model)
    assert places.keys() == tensors.keys()
    for name, tensor in tensors.items():
        place, turned = places[name]
        holder = params
        for step in place[:-1]:
            holder = holder[step]
        value = np.ascontiguousarray(tensor.T if turned else tensor)
        assert value.shape == tuple(holder[place[-1]].shape), name
        holder[place[-1]] = value
    return params
