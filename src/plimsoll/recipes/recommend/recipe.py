"""Recommend the next item: items as single tokens of a language model, which may be a published one that stays frozen.

    plimsoll prepare recommend --interactions ratings.csv --out data/
    plimsoll train recommend --data data/ --memory 1GiB --run runs/mine
    plimsoll train recommend --data data/ --pretrained FOLDER --frozen-bits 16 --memory 4GiB
    plimsoll plan  recommend --preset gemma-2b --chip h200

Defaults are a small transformer that is learned along; `presets.py` has the guide's, docs/recommend.md what to
expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plimsoll.data import require_sizes
from plimsoll.errors import RecipeError
from plimsoll.files.facts import Facts, facts_of, require_same
from plimsoll.levers.records.mlp_chunk import chunks_of
from plimsoll.models.pretrained.find import find_folder, find_shape
from plimsoll.models.shape import DecoderShape
from plimsoll.models.sizing import inner_width
from plimsoll.recipes.base import AdamWRecipe, Count, Prepared, Say
from plimsoll.recipes.recommend.item_shape import EARLIER, ItemShape, Softmax
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import COUNTED, Compute, Source, Task
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.recommend.interactions import Interactions
    from plimsoll.recipes.recommend.rows import TrainingRows

NONE = "none"
PLANNED_ITEMS = 3_260
"""Without a data set: those of MovieLens-1M in the published port."""
PLANNED_WIDTH = 64
LAYERS = 2
DEFAULT_EPOCHS = 60.0
READER_BYTES = 6 * MIB
"""NumPy's reader and its generators, and what small arrays leave in the heap."""
BATCHES = 3
"""Besides those made ahead: one in the making, one taken, and the step's own copy of it."""
UNEVEN = 2
"""Without a data set, the largest cluster has so many times the members of the mean one."""


@dataclass(frozen=True, kw_only=True)
class Recommend(AdamWRecipe):
    """Item table and adapter around a causal language model, under a softmax of two levels or one."""

    kind: ClassVar[str] = "recommend"
    without_validation: ClassVar[str] = (
        "no user of its data set has three items, or --validation-users is 0. Prepare one from longer sequences, or"
        " leave this out"
    )
    best_by: ClassVar[str] = "ndcg@10"
    validates_with_fillers: ClassVar[bool] = True
    verbs: ClassVar[Mapping[str, Verb]] = {
        "evaluate": Verb(
            answer="plimsoll.recipes.recommend.rank:evaluate",
            text="plimsoll.recipes.recommend.ranking_tables:recommendation_tables",
        ),
        "rank": Verb(
            answer="plimsoll.recipes.recommend.rank:rank",
            ask="plimsoll.recipes.recommend.history:request_of",
            text="plimsoll.recipes.recommend.ranking_tables:ranking_text",
        ),
    }
    shown: ClassVar[tuple[Shown, ...]] = (Shown(words="what it ranks", make="plimsoll.recipes.recommend.rank:shown"),)
    supported: ClassVar[tuple[str, ...]] = (
        "precision",
        "remat",
        "remat_offload",
        "loss_chunk",
        "attention_chunk",
    )
    loss_chunks: ClassVar[tuple[int, ...]] = (256, 32)
    loss_whole: ClassVar[bool] = False
    gives_way: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **AdamWRecipe.gives_way,
        "pretrained": {"width": None, "heads": None, "layers": LAYERS},
        **{name: {"pretrained": NONE} for name in ("width", "heads", "layers")},
    }

    data: str = ""
    """Folder with interactions, which `plimsoll prepare recommend` writes. Planning needs none."""
    num_items: Count | None = None
    """Items of the catalogue, to plan without --data. By default 3,260."""
    seq_len: Count = 32
    """Items of a user's history in a training row; longer histories become several rows."""
    validation_users: Count | None = None
    """Users to evaluate on while training. By default all, as always in `plimsoll evaluate`."""
    eval_interval: float = 5.0
    """Epochs between evaluations."""

    pretrained: str = NONE
    """Folder of a language model (config.json, .safetensors) or its id on Hugging Face, of which planning needs no
    weights; none for a small transformer trained from scratch."""
    freeze: bool = True
    """Keep the pretrained model's weights as they are. --no-freeze trains them, too."""
    side_layers: int = LAYERS
    """Number of blocks of the small transformer that is trained beside a frozen --pretrained model: it reads the items
    and what that model makes of them. 0 trains none, and items are compared with the frozen model's output."""
    item_embedding_dim: int | None = None
    """Width of an item's embedding. By default that of the embeddings in --data, else 64."""
    adapter_inner: int | None = None
    """Width of the hidden layer between an item's embedding and the model; 0 for none. By default 0 if the model is as
    wide as the embedding, else 4 x --item-embedding-dim."""
    softmax: Softmax = "two-level"
    """Output layer: two-level predicts a cluster of items, then an item in it; full predicts among all items."""
    dropout: float = 0.5
    """Share of activations that is dropped in training: of the model's input, and of each layer of a transformer that
    is trained from scratch."""

    width: int | None = None
    """Width of the transformer that is trained from scratch. By default --item-embedding-dim."""
    layers: int = LAYERS
    """Number of blocks of the transformer that is trained from scratch."""
    heads: int | None = None
    """Number of attention heads of the transformer that is trained from scratch. By default --width / 32."""

    batch_size: int = 256
    epochs: float | None = None
    """Passes over the users, instead of --steps. By default 60."""
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pretrained.strip():
            raise RecipeError("--pretrained is empty: name a folder, or say none")
        # A run is continued and evaluated from other folders, too.
        if self.data:
            object.__setattr__(self, "data", str(Path(self.data).expanduser().absolute()))
        model = Path(self.pretrained).expanduser()
        if model.is_dir():
            object.__setattr__(self, "pretrained", str(model.absolute()))

        require_sizes(
            num_items=self.num_items,
            seq_len=self.seq_len,
            item_embedding_dim=self.item_embedding_dim,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
        )
        require_sizes(
            least=0,
            validation_users=self.validation_users,
            adapter_inner=self.adapter_inner,
            side_layers=self.side_layers,
        )
        if not 0 < self.eval_interval < math.inf:
            raise RecipeError(f"--eval-interval must be above 0 epochs and finite, got {self.eval_interval:g}")
        if self.pretrained != NONE and (self.width or self.heads or self.layers != LAYERS):
            raise RecipeError(
                f"--width, --heads and --layers are of the small transformer, and --pretrained {self.pretrained} has"
                " its own: leave them out"
            )
        if self.side_layers != LAYERS and (self.pretrained == NONE or not self.freeze):
            raise RecipeError(
                f"--side-layers {self.side_layers} is of a transformer beside a frozen --pretrained model, and none is"
                " frozen here: leave it out"
            )

    @property
    def supported_levers(self) -> tuple[str, ...]:
        if self.pretrained == NONE:  # a published model's activations are float32, and frozen layers always a loop
            return (*super().supported_levers, "activations", "unroll")
        levers = (*super().supported_levers, "mlp_chunk")
        return (*levers, "frozen_bits") if self.freeze else levers

    @property
    def mlp_chunks(self) -> tuple[int, ...]:
        """Chunks of a published model's feed-forward part; the small reader's is computed whole."""
        return () if self.pretrained == NONE else chunks_of(self.seq_len)

    @property
    def evaluation_options(self) -> tuple[str, ...]:
        return (*super().evaluation_options, "keep_seen")

    @property
    def attention_chunks(self) -> tuple[int, ...]:
        """Scores of fewer positions are small beside the rest (notes, "Attention in blocks")."""
        return (256,) if self.seq_len > 512 else ()

    @property
    def loss_rows(self) -> int:
        return self.seq_len

    @cached_property
    def interactions(self) -> Interactions:
        """The opened data set."""
        if not self.data:
            raise RecipeError(
                "--data is missing: name a prepared folder. `plimsoll prepare recommend --interactions FILE --out"
                " data/` makes one"
            )
        from plimsoll.recipes.recommend.interactions import Interactions

        return Interactions(self.data)

    @cached_property
    def rows(self) -> TrainingRows:
        from plimsoll.recipes.recommend.rows import TrainingRows

        return TrainingRows(self.interactions, length=self.seq_len)

    @cached_property
    def published(self) -> DecoderShape | None:
        """Shape of the pretrained model, where there is one."""
        if self.pretrained == NONE:
            return None
        shape = find_shape(self.pretrained)
        if self.seq_len > shape.positions:
            raise RecipeError(
                f"--seq-len {self.seq_len:,} is more than the {shape.positions:,} tokens that {self.pretrained} reads:"
                " lower it"
            )
        return shape

    @cached_property
    def item_width(self) -> int:
        if self.item_embedding_dim is not None:
            return self.item_embedding_dim
        return (self.interactions.about["embedding_size"] if self.data else None) or PLANNED_WIDTH

    @cached_property
    def reader_shape(self) -> DecoderShape:
        """Shape of the small transformer that reads histories where there is no pretrained model."""
        width = self.width or self.item_width
        heads = self.heads or max(1, width // 32)
        return DecoderShape(vocab=1, width=width, layers=self.layers, heads=heads, inner=inner_width(width))

    @property
    def side_shape(self) -> DecoderShape | None:
        """Shape of the small transformer beside a frozen model, where there is one."""
        if self.pretrained == NONE or not self.freeze or not self.side_layers:
            return None
        width = self.item_width
        if width % 2:
            raise RecipeError(
                f"--item-embedding-dim {width} is odd, and the small transformer beside {self.pretrained} turns pairs"
                " of numbers: take an even one, or --side-layers 0 to train none"
            )
        heads = next(heads for heads in range(max(1, width // 32), 0, -1) if width // 2 % heads == 0)
        return DecoderShape(vocab=1, width=width, layers=self.side_layers, heads=heads, inner=inner_width(width))

    @cached_property
    def shape(self) -> ItemShape:
        if self.data:
            data = self.interactions
            if self.num_items not in (None, data.items):
                raise RecipeError(
                    f"--num-items {self.num_items:,} is for planning without data, and {self.data} has"
                    f" {data.items:,}: leave it out"
                )
            items = data.items
            clusters = data.clusters
            largest = data.about["largest_cluster"]
        else:
            items = self.num_items or PLANNED_ITEMS
            clusters = round(items**0.5)
            largest = min(items, UNEVEN * -(-items // clusters))
        width = self.published.width if self.published is not None else self.reader_shape.width
        plain = 0 if width == self.item_width else 4 * self.item_width
        return ItemShape(
            items=items,
            item_width=self.item_width,
            inner=plain if self.adapter_inner is None else self.adapter_inner,
            width=width,
            softmax=self.softmax,
            clusters=clusters,
            largest_cluster=largest,
            direct=self.side_shape is not None,
            dropout=self.dropout,
        )

    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return {"items": ((examples, self.seq_len + 1), "int32")}

    def evaluation_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        earlier = {EARLIER: ((examples, self.longest_earlier), "int32")} if self.longest_earlier else {}
        return super().evaluation_spec(examples) | earlier

    @cached_property
    def longest_earlier(self) -> int:
        """Most items that a user of the validation took before those that the model reads."""
        if not self.data or not len(self._validated):
            return 0
        data = self.interactions
        lengths = (data.ends["validation"] - data.offsets[:-1])[self._validated]
        return max(0, int(lengths.max()) - self.seq_len)

    @property
    def _validated(self) -> Any:
        """Users to evaluate on while training."""
        return self.interactions.evaluated[: self.validation_users]

    def task(self, compute: Compute) -> Task:
        from plimsoll.recipes.recommend.item_reader import PublishedReader, Side, SmallReader
        from plimsoll.recipes.recommend.next_item import NextItem

        if self.published is None:
            return NextItem(self.shape, SmallReader(self.reader_shape, compute, dropout=self.dropout), compute)
        side = None
        if self.side_shape is not None:
            side = Side(self.side_shape, compute, width=self.published.width, dropout=self.dropout)
        reader = PublishedReader(self.published, compute, frozen=self.freeze)
        return NextItem(self.shape, reader, compute, side=side)

    def begin(self, params: Any) -> Any:
        """Returns the parameters with the data's embeddings and clusters, and the pretrained weights."""
        from plimsoll.recipes.recommend.item_reader import with_weights
        from plimsoll.recipes.recommend.items import with_clusters, with_items

        if (rows := self._embeddings()) is not None:
            params = with_items(params, rows)
        if self.shape.two_level:
            params = with_clusters(params, self.interactions.cluster_of, self.shape)
        if self.published is not None:
            params = with_weights(params, find_folder(self.pretrained), self.published)
        return params

    @property
    def frozen_is_given(self) -> bool:
        return self.published is not None and self.freeze

    def given_frozen(self, frozen: Any) -> Any:
        """Returns the clusters of the data, and the pretrained weights."""
        from plimsoll.recipes.recommend.item_reader import with_weights
        from plimsoll.recipes.recommend.items import members_of

        assert self.published is not None
        if self.shape.two_level:
            frozen = frozen | {"clusters": members_of(self.interactions.cluster_of, self.shape)}
        return with_weights({"frozen": frozen}, find_folder(self.pretrained), self.published)["frozen"]

    @property
    def begins_with(self) -> str:
        return "--data" if self.published is None else "--data, --pretrained"

    def prepare(self, folder: Path, say: Say) -> Prepared:
        data, rows = self.interactions, self.rows
        data.check()
        _ = self.shape
        if self.published is not None:
            from plimsoll.models.pretrained.safetensors_folder import checked

            # Pickles, absent files, and tensors of another shape are refused before anything is planned.
            checked(find_folder(self.pretrained), self.published)
        steps, per_epoch = self.steps_over(len(rows), called=self.data, default_epochs=DEFAULT_EPOCHS)
        description = f"{data.users:,} users, {data.items:,} items, {len(data):,} interactions in {self.data}"
        say(
            f"data: {description}; {rows.labels:,} items to predict in {len(rows):,} rows; {steps:,} steps are"
            f" {steps / per_epoch:.3g} epochs"
        )
        if self._embeddings() is None:
            say(f"items begin at random: {self.data} has no embeddings of {self.item_width} numbers")
        return Prepared(
            steps=steps,
            steps_per_epoch=per_epoch,
            evaluate_every=max(1.0, per_epoch * self.eval_interval),
            facts={"description": description, "interactions": self._facts().to_json()},
        )

    def _embeddings(self) -> Any:
        """Returns the embeddings of the data, where they are as wide as an item here."""
        data = self.interactions
        return data.embeddings() if data.about["embedding_size"] == self.item_width else None

    def _facts(self) -> Facts:
        """Returns what distinguishes one data set from another, and one language model's shape from another."""
        model = {} if self.published is None else vars(self.published)
        options: dict[str, Any] = {f"{name} of the language model": str(value) for name, value in model.items()}
        return facts_of(self.interactions.files, **options)

    def data_changed(self, prepared: Prepared) -> None:
        require_same(self.data, prepared.facts["interactions"], self._facts())

    def source(self, folder: Path, *, prefetch: int) -> Source:
        from plimsoll.recipes.recommend.rows import interaction_loader

        return interaction_loader(self.rows, batch_size=self.effective_batch, seed=self.seed, prefetch=prefetch)

    def validation(self, folder: Path, *, examples: int) -> Iterator[dict[str, Any]]:
        """Yields histories with the item to predict after them; the last batch is filled up with copies."""
        import numpy as np

        from plimsoll.recipes.recommend.rows import padded

        users = self._validated
        length = self.seq_len + 1
        for first in range(0, len(users), examples):
            # What comes before the item of test ends with that of validation, the one to predict.
            chosen = users[first : first + examples]
            taken = [self.interactions.history(user, "test") for user in chosen.tolist()]
            batch = {"items": padded(taken, length=length)}
            if self.longest_earlier:
                batch[EARLIER] = padded([items[:-length] for items in taken], length=self.longest_earlier)

            filled = {name: np.resize(values, (examples, values.shape[1])) for name, values in batch.items()}
            yield filled | {COUNTED: np.arange(examples) < len(chosen)}

    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        """Returns the bytes of the source; without data, those of batches alone."""
        batch = 4 * self.effective_batch * (self.seq_len + 1)
        held = self.rows.held_bytes() if self.data else 0
        return {"data": READER_BYTES + held + (prefetch + BATCHES) * batch}

    def data_advice(self) -> str:
        return "a smaller --batch-size"
