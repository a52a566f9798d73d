"""Users' histories of items in a prepared folder, as data of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import RecipeError
from plimsoll.files.facts import facts_of, require_same
from plimsoll.options import FolderPath, NonNegativeCount, PositiveCount, PositiveFloat
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.recommend.item_shape import EARLIER
from plimsoll.recipes.specs import ItemSpec
from plimsoll.types import COUNTED, Source
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.recommend.interactions import Interactions as Folder
    from plimsoll.recipes.recommend.rows import TrainingRows

PLANNED_ITEMS = 3_260
"""Without a data set: those of MovieLens-1M in the published port."""
READER_BYTES = 6 * MIB
"""NumPy's reader and its generators, and what small arrays leave in the heap."""
BATCHES = 3
"""Besides those made ahead: one in the making, one taken, and the step's own copy of it."""
UNEVEN = 2
"""Without a data set, the largest cluster has so many times the members of the mean one."""


@dataclass(frozen=True, kw_only=True)
class Interactions(Data):
    """Histories of items that users took, in the order of time."""

    name = "interactions"
    gives = ItemSpec
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
    """Users to evaluate on while training. By default all, as always in `plimsoll evaluate`."""
    eval_interval: PositiveFloat = 5.0
    """Epochs between evaluations."""

    @cached_property
    def interactions(self) -> Folder:
        """The opened data set."""
        if not self.data:
            raise RecipeError(
                "--data is missing: name a prepared folder. `plimsoll prepare recommend --interactions FILE --out"
                " data/` makes one"
            )
        from plimsoll.recipes.recommend.interactions import Interactions as Folder

        return Folder(self.data)

    @cached_property
    def rows(self) -> TrainingRows:
        from plimsoll.recipes.recommend.rows import TrainingRows

        return TrainingRows(self.interactions, length=self.seq_len)

    @property
    def validated(self) -> Any:
        """Users to evaluate on while training."""
        return self.interactions.evaluated[: self.validation_users]

    @property
    def longest_earlier(self) -> int:
        """Most items that a user of the validation took before those that the model reads."""
        if not self.data or not len(self.validated):
            return 0
        data = self.interactions
        lengths = (data.ends["validation"] - data.offsets[:-1])[self.validated]
        return max(0, int(lengths.max()) - self.seq_len)

    def spec(self, needs: Needs) -> ItemSpec:
        if needs.longest is not None and self.seq_len > needs.longest:
            raise RecipeError(
                f"--seq-len {self.seq_len:,} is more than the {needs.longest:,} tokens that --pretrained reads: lower"
                " it"
            )
        if not self.data:
            items = self.num_items or PLANNED_ITEMS
            clusters = round(items**0.5)
            largest = min(items, UNEVEN * -(-items // clusters))
            return self._spec(items, clusters=clusters, largest=largest, width=None, earlier=0)

        data = self.interactions
        if self.num_items not in (None, data.items):
            raise RecipeError(
                f"--num-items {self.num_items:,} is for planning without data, and {self.data} has {data.items:,}:"
                " leave it out"
            )
        return self._spec(
            data.items,
            clusters=data.clusters,
            largest=data.about["largest_cluster"],
            width=data.about["embedding_size"],
            earlier=self.longest_earlier,
        )

    def _spec(self, items: int, *, clusters: int, largest: int, width: int | None, earlier: int) -> ItemSpec:
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
        """Returns the bytes of the source; without data, those of batches alone."""
        batch = 4 * reading.batch_size * (self.seq_len + 1)
        held = self.rows.held_bytes() if self.data else 0
        return HostMemory(
            bytes=READER_BYTES + held + (prefetch + BATCHES) * batch,
            advice="a smaller --batch-size",
        )

    def open(self, folder: Path, reading: Reading) -> InteractionDataset:
        return InteractionDataset(self, reading)


@dataclass(frozen=True)
class InteractionDataset:
    """The histories of one run."""

    data: Interactions
    reading: Reading

    def prepare(self, say: Say) -> Prepared:
        folder, rows = self.data.interactions, self.data.rows
        folder.check()
        steps, per_epoch = self.reading.length.steps_over(len(rows), data=self.data.data)
        description = (
            f"{folder.users:,} users, {folder.items:,} items, {len(folder):,} interactions in {self.data.data}"
        )
        say(
            f"data: {description}; {rows.labels:,} items to predict in {len(rows):,} rows; {steps:,} steps are"
            f" {steps / per_epoch:.3g} epochs"
        )
        return Prepared(
            steps=steps,
            steps_per_epoch=per_epoch,
            evaluate_every=max(1.0, per_epoch * self.data.eval_interval),
            facts={"description": description, "interactions": facts_of(folder.files).to_json()},
        )

    def require_same(self, prepared: Prepared, *, training: bool) -> None:
        require_same(self.data.data, prepared.facts["interactions"], facts_of(self.data.interactions.files))

    def source(self, *, prefetch: int) -> Source:
        from plimsoll.recipes.recommend.rows import interaction_loader

        return interaction_loader(
            self.data.rows,
            batch_size=self.reading.batch_size,
            seed=self.reading.seed,
            prefetch=prefetch,
        )

    def validation(self, *, examples: int) -> Iterator[Batch]:
        """Yields histories with the item to predict after them; the last batch is filled up with copies."""
        import numpy as np

        from plimsoll.recipes.recommend.rows import padded

        data = self.data
        users, earlier = data.validated, data.longest_earlier
        length = data.seq_len + 1
        for first in range(0, len(users), examples):
            # What comes before the item of test ends with that of validation, the one to predict.
            chosen = users[first : first + examples]
            taken = [data.interactions.history(user, "test") for user in chosen.tolist()]
            batch = {"items": padded(taken, length=length)}
            if earlier:
                batch[EARLIER] = padded([items[:-length] for items in taken], length=earlier)

            filled = {name: np.resize(values, (examples, values.shape[1])) for name, values in batch.items()}
            yield filled | {COUNTED: np.arange(examples) < len(chosen)}
