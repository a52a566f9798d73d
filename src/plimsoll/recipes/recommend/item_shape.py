"""Sizes of a model of items, and what of it is trained. Imports no JAX, because recipes use it.

Items are numbered from 1, as in recipes/recommend/interactions.py; row 0 of every table is padding.
"""

from dataclasses import dataclass

from plimsoll.errors import RecipeError

EARLIER = "earlier"
"""Name of the array of a batch of validation: what each user took before the row of `items`."""


@dataclass(frozen=True, kw_only=True)
class ItemShape:
    """Sizes of a model.

    An item is a row of `item_width` numbers; an adapter maps it to the `width` of the language model.
    """

    items: int
    """Number of items without padding."""
    item_width: int
    inner: int
    """Width of the adapter's hidden layer; 0 for no adapter, if the two widths are equal."""
    width: int
    two_level: bool = True
    """Whether a cluster is predicted, and then an item in it."""
    clusters: int = 1
    largest_cluster: int = 1
    """Number of items in the largest cluster."""
    direct: bool = False
    """The output is compared with the rows themselves: the adapter is for the language model's input alone."""
    dropout: float = 0.0
    """Dropout of the language model's input, and of what each of its layers adds if it is trained too."""

    def __post_init__(self) -> None:
        if not self.inner and self.item_width != self.width:
            raise RecipeError(
                f"--adapter-inner 0 puts items of --item-embedding-dim {self.item_width} straight into a model of width"
                f" {self.width}: make the two the same, or give the adapter a hidden layer"
            )
