"""What a set of interactions follows from: the options of `plimsoll prepare recommend`.

Imports no NumPy: the command line takes its options from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from plimsoll.errors import DataError
from plimsoll.units import require_bounds

Form = Literal["movielens-csv", "movielens-dat", "pairs", "sequences", "csv"]
Clustering = Literal["frequency", "kmeans", "spectral"]
Embeddings = Literal["factorisation", "random", "none"]


@dataclass(frozen=True, kw_only=True)
class RecommendSet:
    """Users, their items in the order of time, and what the items begin with."""

    interactions: str
    """File with interactions of users and items."""
    format: Form | None = None
    """Format of the file. By default it is recognised by its content. movielens-csv: ratings.csv with its header;
    movielens-dat: user::item::rating::time; pairs: a user and an item on each line, in the order of time; sequences: a
    user and all of their items on each line; csv: any other table, with --user-column and --item-column."""
    user_column: str | None = None
    """Column with the users, for --format csv."""
    item_column: str | None = None
    """Column with the items, for --format csv."""
    time_column: str | None = None
    """Column with times: numbers, or dates like 2024-01-31 12:00. By default the order of the rows is the order of
    time."""
    rating_column: str | None = None
    """Column with ratings, for --min-rating."""
    min_rating: float | None = None
    """Lowest rating that counts as an interaction. By default all do."""
    keep_repeats: bool = False
    """Keep an item that a user takes again. Otherwise the first time counts, so that nothing is to be found in
    testing that was trained on."""
    k_core: Annotated[int, Ge(0)] = 5
    """Users and items with fewer interactions are left out, until none is left that has fewer."""
    clusters: Annotated[int | None, "count", Ge(1)] = None
    """Clusters of items, for a two-level softmax. By default the square root of the number of items, rounded up."""
    clustering: Clustering = "kmeans"
    """kmeans and spectral put items together that the same users took; frequency deals them out in the order of how
    often they are taken. The first two need scikit-learn."""
    max_cluster_size: Annotated[int | None, Ge(1)] = None
    """Most items of a cluster; larger ones are split in two, which makes more than --clusters. By default four times
    the mean."""
    embeddings: Embeddings = "factorisation"
    """Initial embeddings of items: the singular vectors of who took what for training, or random numbers, or
    nothing."""
    embedding_size: Annotated[int, Ge(1)] = 64
    """Numbers of an embedding."""
    seed: Annotated[int, Ge(0)] = 42
    """Seed of all random choices."""

    def __post_init__(self) -> None:
        require_bounds(self, DataError)
        columns = {"--user-column": self.user_column, "--item-column": self.item_column}
        columns |= {"--time-column": self.time_column, "--rating-column": self.rating_column}
        named = [option for option, column in columns.items() if column is not None]
        if named and self.format not in (None, "csv"):
            raise DataError(f"{', '.join(named)}: columns are named with --format csv only, got --format {self.format}")
        if (named or self.format == "csv") and (self.user_column is None or self.item_column is None):
            raise DataError(
                "a CSV file of one's own needs both --user-column and --item-column, got"
                f" {', '.join(named) or 'neither'}"
            )
        if self.user_column is not None and self.user_column == self.item_column:
            raise DataError(f"--user-column and --item-column are both {self.user_column}: name two columns")
        if self.rating_column is not None and self.min_rating is None:
            raise DataError(f"--rating-column {self.rating_column} is for --min-rating, which is not given")
        if self.min_rating is not None and self.user_column is not None and self.rating_column is None:
            raise DataError(f"--min-rating {self.min_rating:g} needs --rating-column, the column that has the ratings")


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(RecommendSet):
    """Options of `plimsoll prepare recommend`."""

    out: str
    """The folder that is made."""
