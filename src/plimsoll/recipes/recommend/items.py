"""Items as single tokens of a language model: input vectors, and the probability of each item to come next.

An adapter maps a row of the item table to the model's input; the same adapter maps it to the vector v that the model's
output h is compared with. If the shape is `direct`, v is the row itself. With a full softmax, p(i) is the softmax of
h.v_i over all items. With two levels, p(i) = p(c) p(i | c): first a softmax over the clusters' vectors, then one over
the members of the item's cluster. That costs `clusters + largest_cluster` products; the full softmax costs `items`.
Subbiah et al. 2025 (EfficientIDs).

Both softmaxes are distributions over the items. Padding has no probability, an empty place in a cluster has a score of
-inf, and the only member of a cluster has p(i | c) = 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from plimsoll.levers.chunked_loss import each_nats, nats_in_one_pass
from plimsoll.levers.precision import batched_dot_rows, dot, dot_rows
from plimsoll.levers.sharding import gathered
from plimsoll.recipes.recommend.item_shape import ItemShape
from plimsoll.types import IGNORE, Compute, Params

INIT_SCALE = 0.02
"""Standard deviation of initial rows that do not come from embeddings."""
ROW_LENGTH = 0.8
"""Length to which an initial row from an embedding is scaled. The reader normalises its output, so the likeliest items
then start some nats above the others."""
NO_ITEM = 0
"""Id of padding, which fills the table of clusters' members where a cluster has fewer than the largest."""


def members_of(cluster_of: Int[np.ndarray, " items_and_1"], shape: ItemShape) -> dict[str, Array]:
    """Returns device arrays: each item's `cluster`, its `place` among the members, and each cluster's `members`.

    `cluster_of` has the cluster of each id, and -1 for padding.
    """
    items = np.arange(1, shape.items + 1)
    clusters = np.asarray(cluster_of)[1:]
    order = np.argsort(clusters, kind="stable")
    sizes = np.bincount(clusters, minlength=shape.clusters)
    places = np.empty(shape.items, np.int32)
    places[order] = np.arange(shape.items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    members = np.full((shape.clusters, shape.largest_cluster), NO_ITEM, np.int32)
    members[clusters, places] = items
    cluster = np.concatenate([[0], clusters]).astype(np.int32)
    place = np.concatenate([[0], places]).astype(np.int32)
    return jax.device_put({"cluster": cluster, "place": place, "members": members})


class Items:
    """Pure functions of the parameters `items`, `adapter` and `clusters`, and of the arrays from `members_of`."""

    def __init__(self, shape: ItemShape, compute: Compute) -> None:
        self.shape = shape
        self.compute = compute
        self._nats = each_nats if compute.platform == "cpu" else nats_in_one_pass

    def init(self, key: Array) -> dict[str, Any]:
        """Returns float32 parameters. The adapter's kernels are Xavier normal."""
        shape = self.shape
        items, inner, outer, clusters = jax.random.split(key, 4)
        rows = INIT_SCALE * jax.random.normal(items, (shape.items + 1, shape.item_width))
        params: dict[str, Any] = {"items": {"embedding": rows}}
        if shape.inner:
            layers = {"inner": (inner, shape.item_width, shape.inner), "outer": (outer, shape.inner, shape.width)}
            params["adapter"] = {
                name: {
                    "kernel": (2 / (rows + cols)) ** 0.5 * jax.random.normal(layer_key, (rows, cols)),
                    "bias": jnp.zeros(cols),
                }
                for name, (layer_key, rows, cols) in layers.items()
            }
        if shape.two_level:
            rows = INIT_SCALE * jax.random.normal(clusters, (shape.clusters, shape.item_width))
            params["clusters"] = {"embedding": rows}
        return params

    def rows(self, params: dict, ids: Int[Array, "*any"]) -> Float[Array, "*any item_width"]:
        """Returns the rows of these items in the table."""
        return params["items"]["embedding"][ids].astype(jnp.float32)

    def entered(self, params: dict, ids: Int[Array, "*any"]) -> Float[Array, "*any width"]:
        """Returns the language model's input vectors for these items."""
        return self._adapted(params, self.rows(params, ids))

    def vectors(self, params: dict) -> dict[str, Float[Array, "_ width"]]:
        """Returns the vectors that outputs are compared with: of all items (row 0 is padding), and of the clusters."""
        parts = ["items", "clusters"] if self.shape.two_level else ["items"]
        tables = {part: params[part]["embedding"].astype(jnp.float32) for part in parts}
        if self.shape.direct:
            return tables
        return {part: self._adapted(params, table) for part, table in tables.items()}

    def nats(
        self, hidden: Float[Array, "tokens width"], vectors: dict, items: Int[Array, " tokens"], fixed: dict
    ) -> Float[Array, ""]:
        """Returns the sum of `-log p(item)` over tokens whose item is not `IGNORE`: the `rule` for `chunked_sum`."""
        is_counted = items != IGNORE
        if not self.shape.two_level:
            labels = jnp.where(is_counted, items - 1, IGNORE)
            return jnp.sum(self._nats(dot_rows(hidden, vectors["items"][1:], self.compute), labels))

        # Looks up each token's cluster, and its index among the members of that cluster.
        known = jnp.maximum(items, 0)
        cluster = jnp.where(is_counted, fixed["cluster"][known], IGNORE)
        place = jnp.where(is_counted, fixed["place"][known], IGNORE)
        members = fixed["members"][jnp.maximum(cluster, 0)]
        within = batched_dot_rows(hidden[:, None], vectors["items"][members], self.compute)[:, 0]
        within = jnp.where(members == NO_ITEM, -jnp.inf, within)
        return jnp.sum(self._nats(self._cluster_scores(hidden, vectors, fixed), cluster) + self._nats(within, place))

    def log_probabilities(
        self, hidden: Float[Array, "rows width"], vectors: dict, fixed: dict
    ) -> Float[Array, "rows items_and_1"]:
        """Returns the log probability of every item to come next; -inf for padding."""
        scores = dot_rows(hidden, vectors["items"][1:], self.compute)
        if self.shape.two_level:
            cluster = fixed["cluster"][1:]
            clusters = self.shape.clusters
            largest = jax.ops.segment_max(scores.T, cluster, num_segments=clusters)
            shifted = jnp.exp(scores.T - largest[cluster])
            whole = largest + jnp.log(jax.ops.segment_sum(shifted, cluster, num_segments=clusters))
            first = jax.nn.log_softmax(self._cluster_scores(hidden, vectors, fixed))
            log_p = scores + (first - whole.T)[:, cluster]
        else:
            log_p = jax.nn.log_softmax(scores)
        return jnp.pad(log_p, ((0, 0), (1, 0)), constant_values=-jnp.inf)

    def _cluster_scores(self, hidden: Array, vectors: dict, fixed: dict) -> Array:
        """Returns the scores of clusters; -inf for a cluster without members."""
        scores = dot_rows(hidden, vectors["clusters"], self.compute)
        return jnp.where(fixed["members"][:, 0] == NO_ITEM, -jnp.inf, scores)

    def _adapted(self, params: dict, rows: Float[Array, "... item_width"]) -> Float[Array, "... width"]:
        if not self.shape.inner:
            return rows
        inner = params["adapter"]["inner"]
        outer = params["adapter"]["outer"]
        hidden = jax.nn.gelu(dot(rows, inner["kernel"], self.compute) + inner["bias"])
        return dot(hidden, outer["kernel"], self.compute) + outer["bias"]


def with_items(params: Params, rows: Float[np.ndarray, "items_and_1 item_width"]) -> Params:
    """Returns parameters with these rows as the item table, each scaled to the length `ROW_LENGTH`.

    Items whose row is zero keep their random row. `rows` is changed in place.
    """
    trainable = params["trainable"]
    lengths = np.linalg.norm(rows, axis=1)
    not_zero = lengths > 0
    rows *= np.where(not_zero, ROW_LENGTH / np.where(not_zero, lengths, 1), 0).astype(np.float32)[:, None]
    rows[~not_zero] = np.asarray(gathered(trainable["items"]["embedding"]))[~not_zero]
    return params | {"trainable": trainable | {"items": {"embedding": jax.device_put(rows)}}}


def with_clusters(params: Params, cluster_of: Int[np.ndarray, " items_and_1"], shape: ItemShape) -> Params:
    """Returns parameters with these clusters. The vector of a cluster is the mean of its members' rows."""
    table = np.asarray(gathered(params["trainable"]["items"]["embedding"]))[1:]
    means = np.zeros((shape.clusters, shape.item_width), np.float32)
    np.add.at(means, cluster_of[1:], table)
    means /= np.maximum(np.bincount(cluster_of[1:], minlength=shape.clusters), 1)[:, None]
    trainable = params["trainable"] | {"clusters": {"embedding": jax.device_put(means)}}
    frozen = params["frozen"] | {"clusters": members_of(cluster_of, shape)}
    return {"trainable": trainable, "frozen": frozen}
