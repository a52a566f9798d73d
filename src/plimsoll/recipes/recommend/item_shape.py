"""Sizes of item table, adapter and softmax. Imports no JAX, because recipes use it.

Items are numbered from 1, as in recipes/recommend/interactions.py; row 0 of every table is padding.
"""

from dataclasses import dataclass

from plimsoll.errors import RecipeError

EARLIER = "earlier"
"""Name of an array of validation batches: the items that each user took before those in the array `items`."""


@dataclass(frozen=True, kw_only=True)
class ItemShape:
    """Sizes of an item table and its adapter.

    An item is a table row of `item_width` numbers; an adapter maps it to the `width` of the language model.
    """

    items: int
    """Number of items without padding."""
    item_width: int
    inner: int
    """Width of the adapter's hidden layer; 0 for no adapter: `item_width` must then equal `width`."""
    width: int
    two_level: bool = True
    """True if the softmax has two levels: over clusters, then over the items of one."""
    clusters: int = 1
    largest_cluster: int = 1
    """Number of items in the largest cluster."""
    direct: bool = False
    """True if the output is compared with rows of the item table: the adapter is then used for the input only."""
    dropout: float = 0.0
    """Dropout rate of the language model's input."""

    def __post_init__(self) -> None:
        if not self.inner and self.item_width != self.width:
            raise RecipeError(
                f"--adapter-inner 0 puts items of --item-embedding-dim {self.item_width} straight into a model of width"
                f" {self.width}: make the two the same, or give the adapter a hidden layer"
            )
