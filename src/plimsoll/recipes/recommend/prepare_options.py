"""Options of `plimsoll prepare recommend`, which determine a set of interactions.

Imports no NumPy: the command line takes its options from here.
"""

from dataclasses import dataclass
from typing import Literal

from plimsoll.errors import RecipeError
from plimsoll.options import FilePath, FolderPath, NonNegativeInt, Options, PositiveCount, PositiveInt

Form = Literal["movielens-csv", "movielens-dat", "pairs", "sequences", "csv"]
Clustering = Literal["frequency", "kmeans"]
Embeddings = Literal["factorisation", "none"]


@dataclass(frozen=True, kw_only=True)
class RecommendSet(Options):
    """Options that determine the content of a set of interactions."""

    interactions: FilePath
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
    """Keep an item that a user takes again. By default only the first time counts, so that no test item is among the
    user's training items."""
    k_core: NonNegativeInt = 5
    """Users and items with fewer interactions are left out, repeatedly, until all have as many."""
    clusters: PositiveCount | None = None
    """Clusters of items, for a two-level softmax. By default the square root of the number of items, rounded up."""
    clustering: Clustering = "kmeans"
    """kmeans groups items that the same users took, and needs scikit-learn; frequency deals items out to clusters by
    popularity."""
    max_cluster_size: PositiveInt | None = None
    """Most items of a cluster; larger ones are split in two, which makes more than --clusters. By default four times
    the mean."""
    embeddings: Embeddings = "factorisation"
    """Initial embeddings of items: singular vectors of the user-item matrix of the training data, or none."""
    embedding_size: PositiveInt = 64
    """Width of the embeddings."""
    seed: NonNegativeInt = 42
    """Seed of all random choices."""

    def check_options(self) -> None:
        columns = self.user_column, self.item_column, self.time_column, self.rating_column
        is_table = self.format == "csv" or any(columns)
        if is_table and (self.format not in (None, "csv") or None in columns[:2]):
            raise RecipeError(
                "a CSV file of your own needs both --user-column and --item-column, and only --format csv has columns"
                " to name"
            )
        if is_table and (self.rating_column is None) != (self.min_rating is None):
            raise RecipeError("--min-rating and --rating-column go together for a CSV file of your own: give both")


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(RecommendSet):
    """Options of `plimsoll prepare recommend`."""

    out: FolderPath
    """New folder for the data set."""
