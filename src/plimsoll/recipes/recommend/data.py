"""Training data of `recommend`: users' histories of items, in a folder that `plimsoll prepare recommend` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, facts_of
from plimsoll.options import FolderPath, NonNegativeCount, PositiveCount, PositiveFloat
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.recommend.item_shape import EARLIER
from plimsoll.recipes.specs import ItemSpec
from plimsoll.types import Source
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.recommend.interactions import Interactions as Folder
    from plimsoll.recipes.recommend.rows import TrainingRows

PLANNED_ITEMS = 3_260
"""Number of items that a plan assumes without a data set: that of MovieLens-1M in the Flax port of EfficientIDs."""
READER_BYTES = 6 * MIB
"""Host memory in bytes of NumPy's generators and small arrays, in addition to the data set and batches."""
UNEVEN = 2
"""Size of the largest cluster that a plan assumes without a data set, as a multiple of the mean size."""


@dataclass(frozen=True, kw_only=True)
class Interactions(Data):
    """Histories of users: the items that each took, in the order of time."""

    name = "interactions"
    gives = ItemSpec
    missing = "name a prepared folder. `plimsoll prepare recommend --interactions FILE --out data/` makes one"
    no_validation = (
        "no user of its data set has three items, or --validation-users is 0. Prepare one from longer sequences, or"
        " leave this out"
    )

    data: FolderPath = ""
    """Folder with interactions, which `plimsoll prepare recommend` writes. Planning needs none."""
    num_items: PositiveCount | None = None
    """Items of the catalogue, to plan without --data. By default 3,260."""
    seq_len: PositiveCount = 32
    """Items of a user's history in a training row; longer histories become several rows."""
    validation_users: NonNegativeCount | None = None
    """Users to evaluate on while training. By default all; `plimsoll evaluate` always takes all."""
    eval_interval: PositiveFloat = 5.0
    """Epochs between evaluations."""

    @cached_property
    def interactions(self) -> Folder:
        """The data set in the folder `data`."""
        from plimsoll.recipes.recommend.interactions import Interactions as Folder

        return Folder(self.data)

    @cached_property
    def rows(self) -> TrainingRows:
        from plimsoll.recipes.recommend.rows import TrainingRows

        return TrainingRows(self.interactions, length=self.seq_len)

    @property
    def validated(self) -> Any:
        """Indices of the users to evaluate on while training."""
        return self.interactions.evaluated[: self.validation_users]

    @property
    def longest_earlier(self) -> int:
        """Largest number of items that a validation user took before the `seq_len` items that the model reads."""
        if not self.data or not len(self.validated):
            return 0
        data = self.interactions
        lengths = (data.ends["validation"] - data.offsets[:-1])[self.validated]
        return max(0, int(lengths.max()) - self.seq_len)

    def spec(self, needs: Needs) -> ItemSpec:
        needs.require_readable(self.seq_len)
        items = self.num_items or PLANNED_ITEMS
        clusters = round(items**0.5)
        largest = min(items, UNEVEN * -(-items // clusters))
        width = None
        if self.data:
            data = self.interactions
            if self.num_items not in (None, data.items):
                raise RecipeError(
                    f"--num-items {self.num_items:,} is for planning without data, and {self.data} has {data.items:,}"
                    " items: leave it out"
                )
            items = data.items
            clusters = data.clusters
            largest = data.about["largest_cluster"]
            width = data.about["embedding_size"]
        earlier = self.longest_earlier
        return ItemSpec(
            arrays={"items": ((self.seq_len + 1,), "int32")},
            further={EARLIER: ((earlier,), "int32")} if earlier else {},
            filled=True,
            items=items,
            length=self.seq_len,
            embedding_size=width,
            clusters=clusters,
            largest_cluster=largest,
        )

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        """Returns the host bytes of the data set (0 without --data), the batches, and small arrays."""
        held = self.rows.held_bytes() if self.data else 0
        return HostMemory(
            bytes=READER_BYTES + held + self.in_flight(reading, prefetch),
            advice="a smaller --batch-size",
        )

    def facts(self) -> Facts:
        return facts_of(self.interactions.files)

    def with_vocabulary_of(self, run: Path, prepared: Prepared) -> Interactions:
        now = facts_of(self.interactions.catalogue)
        if difference := Facts.from_json(prepared.facts["catalogue"]).difference(now):
            raise DataError(
                f"{self.data} has other items or clusters than those whose embeddings {run} has learned: {difference}."
                " Prepare it with the same items, or start a new --run"
            )
        return self

    def prepare(self, reading: Reading, say: Say) -> Prepared:
        folder, rows = self.interactions, self.rows
        folder.check()
        description = (
            f"{folder.users:,} users, {folder.items:,} items, {len(folder):,} interactions in {self.data};"
            f" {rows.labels:,} items to predict in {len(rows):,} rows"
        )
        facts = {"description": description, "catalogue": facts_of(folder.catalogue).to_json()}
        prepared = reading.length.prepared_for(len(rows), data=self.data, facts=facts)
        per_epoch = len(rows) / reading.batch_size
        return replace(prepared, evaluate_every=max(1.0, per_epoch * self.eval_interval))

    def source(self, reading: Reading, *, prefetch: int) -> Source:
        from plimsoll.recipes.recommend.rows import interaction_loader

        return interaction_loader(self.rows, batch_size=reading.batch_size, seed=reading.seed, prefetch=prefetch)

    def validation(self, reading: Reading, *, examples: int) -> Iterator[Batch]:
        """Yields batches of histories that end with the item to predict. The last batch is filled up to full size."""
        from plimsoll.data.examples import filled_up
        from plimsoll.recipes.recommend.rows import padded

        users, earlier = self.validated, self.longest_earlier
        length = self.seq_len + 1
        for first in range(0, len(users), examples):
            # The history before the test item ends with the validation item, which is to be predicted.
            chosen = users[first : first + examples]
            taken = [self.interactions.history(user, "test") for user in chosen.tolist()]
            batch = {"items": padded(taken, length=length)}
            if earlier:
                batch[EARLIER] = padded([items[:-length] for items in taken], length=earlier)
            yield filled_up(batch, len(chosen), examples)


def history_of(recipe: Recipe, run: str, text: str) -> dict[str, list[int]]:
    """Returns `{"history": ids}` for the request of `rank.rank`, from names of items.

    Args:
        recipe: Recipe of the run.
        run: Folder of the run; not needed here.
        text: Names of items in the file that was prepared, oldest first, separated by commas.

    Raises:
        DataError: The data set has no item of such a name.
    """
    data = recipe.data
    assert isinstance(data, Interactions)
    names = data.interactions.names
    words = [word.strip() for word in text.split(",")]
    ids = {original: number for number, original in enumerate(names, 1)}
    if unknown := [word for word in words if word not in ids]:
        raise DataError(
            f"--history has {len(unknown):,} items like {unknown[0]!r}, which {data.data} does not know: its"
            f" {len(ids):,} items have the names of the prepared file (items.jsonl lists them), without those that too"
            " few users took. Leave the unknown items out, or correct them"
        )
    return {"history": [ids[word] for word in words]}
