"""Model and loss of next-item prediction: a reader of histories between two uses of the item table.

Rows of the table are the reader's input, and the reader's output is compared with them (recipes/recommend/items.py). If
the reader is frozen, rows and adapter still get a gradient through it, and a small transformer may be trained beside it
(`item_reader.Side`).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from plimsoll.levers.chunked_loss import LIFT, chunked_sum
from plimsoll.levers.frozen import FrozenBits, stored
from plimsoll.levers.sharding import in_mesh
from plimsoll.models.dropout import dropped
from plimsoll.models.pretrained.weights import blank_kept
from plimsoll.recipes.recommend.item_reader import PublishedReader, Reader, Side, SmallReader
from plimsoll.recipes.recommend.item_shape import EARLIER, ItemShape
from plimsoll.recipes.recommend.items import Items, members_of
from plimsoll.recipes.recommend.model import Items as ItemModel
from plimsoll.recipes.specs import ItemSpec
from plimsoll.types import COUNTED, IGNORE, Batch, Compute, LossSum, Metrics, Params

NEAR = 10
"""Cutoff k of the validation metrics hr@k (hit rate) and ndcg@k."""


class NextItem:
    """Model and loss (`types.Task`) for batches of `items`: int32, (batch, length + 1), padded on the right with 0.

    In training every item except the first is predicted; in evaluation only the last of each row. Evaluation batches
    can also hold `earlier`, int32, (batch, any), padded in the same way: the user's items before those in `items`.
    """

    def __init__(self, shape: ItemShape, reader: Reader, compute: Compute, *, side: Side | None = None) -> None:
        self.shape, self.reader, self.compute, self.side = shape, reader, compute, side
        self.items = Items(shape, compute)
        self.unrolled = ("model", "blocks") if reader.unrolls else ()

    def init(self, key: Array) -> Params:
        items_key, reader_key = jax.random.split(key)
        trainable, frozen = self.items.init(items_key), {}
        (frozen if self.reader.frozen else trainable)["model"] = self.reader.init(reader_key)
        if self.side is not None:
            trainable["side"] = self.side.init(jax.random.fold_in(reader_key, 1))
        if self.shape.two_level:
            # Assigns items to clusters in turn, until the clusters of a data set are loaded.
            frozen["clusters"] = members_of(np.arange(-1, self.shape.items) % self.shape.clusters, self.shape)
        return {"trainable": trainable} | ({"frozen": frozen} if frozen else {})

    def stored(self, frozen: dict, bits: FrozenBits) -> dict:
        """Returns frozen weights stored in `bits` bits, with placeholders for a published model's weights."""
        if not self.reader.frozen:
            return stored(frozen, bits)
        return frozen | {"model": blank_kept(frozen["model"], bits)}

    def hidden(
        self, params: Params, ids: Int[Array, "batch length"], keys: Array | None = None
    ) -> Float[Array, "batch length out"]:
        """Returns the output for each item of the histories, to be compared with `Items.vectors`."""
        trainable, model = params["trainable"], params["frozen" if self.reader.frozen else "trainable"]["model"]
        x = self.items.entered(trainable, ids)
        if self.side is not None:
            said = self.reader.hidden(model, self.side.entering(x, keys), None)
            return self.side.hidden(trainable["side"], self.items.rows(trainable, ids), said, keys)
        return self.reader.hidden(model, dropped(x, keys, 0, share=self.shape.dropout), keys)

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        """Returns the loss in nats, summed over the predicted items."""
        if not train:
            return self._evaluated(params, batch)
        ids, following = batch["items"][:, :-1], batch["items"][:, 1:]
        hidden = self.hidden(params, ids, keys if self.shape.dropout else None)
        labels = jnp.where(following > 0, following, IGNORE).reshape(-1)
        hidden, count = hidden.reshape(labels.size, -1), jnp.sum(labels != IGNORE, dtype=jnp.float32)
        skip = bool(self.compute.loss_chunk) and not in_mesh()  # in a mesh, sorting would move rows between devices
        if skip:
            order = jnp.argsort(labels == IGNORE, stable=True)
            hidden, labels = hidden[order], labels[order]
        fixed = params["frozen"]["clusters"] if self.shape.two_level else {}
        total = chunked_sum(
            hidden,
            self.items.vectors(params["trainable"]),
            labels,
            rule=self.items.nats,
            fixed=fixed,
            chunk=self.compute.loss_chunk,
            lift=LIFT if self.compute.precision == "float16" else 1.0,
            skip=skip,
        )
        return LossSum(total, count), None, {}

    def log_probabilities(self, params: Params, ids: Int[Array, "batch length"]) -> Float[Array, "batch items_and_1"]:
        """Returns the log probability of every item after these histories of one item or more; -inf for padding."""
        fixed = params["frozen"]["clusters"] if self.shape.two_level else {}
        vectors = self.items.vectors(params["trainable"])

        # Takes the output at the last item of each history.
        last = jnp.maximum(jnp.sum(ids > 0, axis=1) - 1, 0)
        hidden = jnp.take_along_axis(self.hidden(params, ids), last[:, None, None], axis=1)[:, 0]
        return self.items.log_probabilities(hidden, vectors, fixed)

    def _evaluated(self, params: Params, batch: Batch) -> tuple[LossSum, None, Metrics]:
        """Returns the loss in nats of each row's last item, and metrics of its rank among items not in the history.

        Ties count against the last item.
        """
        items = batch["items"]
        length = jnp.sum(items > 0, axis=1)
        counted = (batch.get(COUNTED, jnp.bool_(True)) & (length > 1)).astype(jnp.float32)
        rows, at = jnp.arange(len(items)), jnp.maximum(length - 1, 1)
        wanted = items[rows, at]
        history = jnp.where(jnp.arange(items.shape[1]) < at[:, None], items, 0)
        log_p = self.log_probabilities(params, history[:, :-1])
        own = log_p[rows, wanted]
        others = log_p.at[rows[:, None], history].set(-jnp.inf).at[rows, wanted].set(-jnp.inf)
        if EARLIER in batch:
            others = others.at[rows[:, None], batch[EARLIER]].set(-jnp.inf)
        before = jnp.sum(others >= own[:, None], axis=1)
        hit = jnp.where(before < NEAR, counted, 0)
        weight = jnp.sum(counted)
        gain = hit / jnp.log2(before.astype(jnp.float32) + 2)
        nats = jnp.where(counted > 0, -own, 0)
        metrics = {f"hr@{NEAR}": LossSum(jnp.sum(hit), weight), f"ndcg@{NEAR}": LossSum(jnp.sum(gain), weight)}
        return LossSum(jnp.sum(nats), weight), None, metrics


def next_item(model: ItemModel, spec: ItemSpec, compute: Compute) -> NextItem:
    """Returns the model and loss of a small transformer, of a published model, or of a frozen one with a `Side`."""
    shape = model.shape(spec)
    dropout = model.dropout
    published = model.published
    if published is None:
        return NextItem(shape, SmallReader(model.reader_shape(spec), compute, dropout=dropout), compute)
    side_shape = model.side_shape(spec)
    side = None
    if side_shape is not None:
        side = Side(side_shape, compute, width=published.width, dropout=dropout)
    return NextItem(shape, PublishedReader(published, compute, frozen=model.freeze), compute, side=side)
