"""Initial values of a model of items: the data's embeddings and clusters, and a published model's weights."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float, Int

from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.models.pretrained.weights import bits_of, load
from plimsoll.recipes.recommend.item_shape import ItemShape
from plimsoll.recipes.recommend.items import members_of
from plimsoll.types import Params

ROW_LENGTH = 0.8
"""Length of an item's initial row, whatever the length of its embedding. With the output of the reader's last norm, the
likeliest items then start some nats above the others."""


def with_items(params: Params, rows: Float[np.ndarray, "items_and_1 item_width"]) -> Params:
    """Returns parameters with these rows, scaled to `ROW_LENGTH`.

    Rows of zeros keep their random values. `rows` is changed.
    """
    trainable = params["trainable"]
    lengths = np.linalg.norm(rows, axis=1)
    not_zero = lengths > 0
    rows *= np.where(not_zero, ROW_LENGTH / np.where(not_zero, lengths, 1), 0).astype(np.float32)[:, None]
    rows[~not_zero] = np.asarray(trainable["items"]["embedding"])[~not_zero]
    return params | {"trainable": trainable | {"items": {"embedding": jax.device_put(rows)}}}


def with_clusters(params: Params, cluster_of: Int[np.ndarray, " items_and_1"], shape: ItemShape) -> Params:
    """Returns parameters with these clusters; rows of their own start as the means of their members' rows."""
    fixed = members_of(cluster_of, shape)
    if shape.learned_clusters:
        table = np.asarray(params["trainable"]["items"]["embedding"])[1:]
        means = np.zeros((shape.clusters, shape.item_width), np.float32)
        np.add.at(means, cluster_of[1:], table)
        means /= np.maximum(np.bincount(cluster_of[1:], minlength=shape.clusters), 1)[:, None]
        trainable = params["trainable"] | {"clusters": {"embedding": jax.device_put(means)}}
        params = params | {"trainable": trainable}
    return params | {"frozen": params["frozen"] | {"clusters": jax.device_put(fixed)}}


def with_weights(params: Params, folder: Path, shape: PretrainedShape) -> Params:
    """Returns parameters with the model's weights, stored in as many bits as before.

    The old weights are deleted first, so that two copies are never in memory.
    """
    part = "frozen" if "model" in params.get("frozen", {}) else "trainable"
    bits = bits_of(params[part]["model"])
    for leaf in jax.tree.leaves(params[part]["model"]):
        leaf.delete()
    return params | {part: params[part] | {"model": load(folder, shape, bits=bits, words=False)}}
