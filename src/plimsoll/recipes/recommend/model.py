"""Recommend the next item: items as single tokens of a language model, which may be a frozen published one.

    plimsoll prepare recommend --interactions ratings.csv --out data/
    plimsoll train recommend --data data/ --memory 1GiB --run runs/mine
    plimsoll train recommend --data data/ --pretrained FOLDER --frozen-bits 16 --memory 4GiB
    plimsoll plan  recommend --preset gemma-2b --chip h200

Defaults are a small transformer that is trained with the items; docs/recommend.md says what to expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plimsoll.errors import RecipeError
from plimsoll.files.facts import Facts, require_same
from plimsoll.levers.records.blocks import attention_blocks_of
from plimsoll.levers.records.mlp_chunk import chunks_of
from plimsoll.models.pretrained.find import find_folder, find_shape
from plimsoll.models.shape import DecoderShape
from plimsoll.models.sizing import inner_width
from plimsoll.options import FolderPath, NonNegativeInt, PositiveInt, Share
from plimsoll.recipes.parts import Hints, Model, Needs, Say, Uses
from plimsoll.recipes.recommend.item_shape import ItemShape
from plimsoll.recipes.specs import ItemSpec
from plimsoll.recipes.verbs import Shown, Verb

if TYPE_CHECKING:
    from plimsoll.recipes.recommend.data import Interactions

NONE = "none"
PLANNED_WIDTH = 64
LAYERS = 2
LEVERS = (
    "precision",
    "remat",
    "remat_offload",
    "loss_chunk",
    "attention_chunk",
)


@dataclass(frozen=True, kw_only=True)
class Items(Model):
    """Item table and adapter around a causal language model, with a softmax of one level or two."""

    name = "items"
    reads = ItemSpec
    implementation = "plimsoll.recipes.recommend.next_item:next_item"
    uses = Uses(
        verbs={
            "evaluate": Verb(
                answer="plimsoll.recipes.recommend.rank:evaluate",
                text="plimsoll.recipes.recommend.tables:recommendation_tables",
                options=("keep_seen",),
            ),
            "rank": Verb(
                answer="plimsoll.recipes.recommend.rank:rank",
                ask="plimsoll.recipes.recommend.data:history_of",
                text="plimsoll.recipes.recommend.tables:ranking_text",
            ),
        },
        shown=(Shown(words="what it ranks", make="plimsoll.recipes.recommend.rank:shown"),),
        best_by="ndcg@10",
    )
    gives_way: ClassVar = {
        "pretrained": {"width": None, "heads": None, "layers": LAYERS},
        "width": {"pretrained": NONE},
        "heads": {"pretrained": NONE},
        "layers": {"pretrained": NONE},
    }

    pretrained: FolderPath = NONE
    """Folder of a language model (config.json, .safetensors) or its id on Hugging Face; none for a small transformer
    trained from scratch. Planning needs no weights."""
    freeze: bool = True
    """Keep the pretrained model's weights as they are. --no-freeze trains them, too."""
    side_layers: NonNegativeInt = LAYERS
    """Number of blocks of the small transformer that is trained beside a frozen --pretrained model: it reads the items
    and that model's output. 0 trains none, and items are compared with the frozen model's output."""
    item_embedding_dim: PositiveInt | None = None
    """Width of an item's embedding. By default the width of the embeddings in --data, else 64."""
    adapter_inner: NonNegativeInt | None = None
    """Width of the hidden layer between an item's embedding and the model; 0 for none. By default 0 if the model is as
    wide as the embedding, else 4 x --item-embedding-dim."""
    softmax: Literal["two-level", "full"] = "two-level"
    """Output layer: two-level predicts a cluster of items, then an item in it; full predicts among all items."""
    dropout: Share = 0.5
    """Share of activations that is dropped in training: of the model's input, and of the output of each layer that is
    trained from scratch."""

    width: PositiveInt | None = None
    """Width of the transformer that is trained from scratch. By default --item-embedding-dim."""
    layers: PositiveInt = LAYERS
    """Number of blocks of the transformer that is trained from scratch."""
    heads: PositiveInt | None = None
    """Number of attention heads of the transformer that is trained from scratch. By default --width / 32."""

    def check_options(self) -> None:
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
    def published(self) -> DecoderShape | None:
        """Shape of the pretrained model; None if there is none."""
        return None if self.pretrained == NONE else find_shape(self.pretrained)

    def needs(self) -> Needs:
        published = self.published
        return Needs() if published is None else Needs(longest=published.positions)

    def item_width(self, spec: ItemSpec) -> int:
        """Returns the width of an item's embedding."""
        return self.item_embedding_dim or spec.embedding_size or PLANNED_WIDTH

    def reader_shape(self, spec: ItemSpec) -> DecoderShape:
        """Returns the shape of the small transformer that reads histories if there is no pretrained model."""
        return small_shape(self.width or self.item_width(spec), layers=self.layers, heads=self.heads)

    def side_shape(self, spec: ItemSpec) -> DecoderShape | None:
        """Returns the shape of the small transformer beside a frozen model; None if there is none."""
        if self.pretrained == NONE or not self.freeze or not self.side_layers:
            return None
        return small_shape(self.item_width(spec), layers=self.side_layers)

    def shape(self, spec: ItemSpec) -> ItemShape:
        """Returns the sizes of item table, adapter and softmax."""
        published, item_width = self.published, self.item_width(spec)
        width = self.reader_shape(spec).width if published is None else published.width
        usual_inner = 0 if width == item_width else 4 * item_width
        return ItemShape(
            items=spec.items,
            item_width=item_width,
            inner=usual_inner if self.adapter_inner is None else self.adapter_inner,
            width=width,
            two_level=self.softmax == "two-level",
            clusters=spec.clusters,
            largest_cluster=spec.largest_cluster,
            direct=self.side_shape(spec) is not None,
            dropout=self.dropout,
        )

    def hints(self, spec: ItemSpec) -> Hints:
        _ = self.shape(spec)  # raises if sizes contradict one another
        is_published = self.pretrained != NONE
        if not is_published:  # a published model has float32 activations, and loops over its layers
            further = ("activations", "unroll")
        elif self.freeze:
            further = ("mlp_chunk", "frozen_bits")
        else:
            further = ("mlp_chunk",)
        return Hints(
            levers=(*LEVERS, *further),
            loss_chunks=(256, 32),
            loss_whole=False,
            loss_rows=spec.length,
            attention_chunks=attention_blocks_of(spec.length),
            # Only the feed-forward layers of a published model are computed in chunks.
            mlp_chunks=chunks_of(spec.length) if is_published else (),
            begins_with="--data, --pretrained" if is_published else "--data",
            frozen_given=is_published and self.freeze,
        )

    def load(self, params: Any, spec: ItemSpec, data: Interactions) -> Any:
        from plimsoll.recipes.recommend.item_reader import with_weights
        from plimsoll.recipes.recommend.items import with_clusters, with_items

        # Items begin with the data's embeddings, if these are as wide as the item table.
        interactions = data.interactions
        shape = self.shape(spec)
        rows = interactions.embeddings() if spec.embedding_size == shape.item_width else None
        if rows is not None:
            params = with_items(params, rows)
        if shape.two_level:
            params = with_clusters(params, interactions.cluster_of, shape)

        # The published model's weights replace the initial ones.
        published = self.published
        if published is not None:
            params = with_weights(params, find_folder(self.pretrained), published)
        return params

    def load_frozen(self, frozen: Any, spec: ItemSpec, data: Interactions) -> Any:
        from plimsoll.recipes.recommend.item_reader import with_weights
        from plimsoll.recipes.recommend.items import members_of

        shape = self.shape(spec)
        if shape.two_level:
            frozen = frozen | {"clusters": members_of(data.interactions.cluster_of, shape)}
        assert self.published is not None
        return with_weights({"frozen": frozen}, find_folder(self.pretrained), self.published)["frozen"]

    def check(self, spec: ItemSpec, say: Say) -> Mapping[str, Any]:
        _ = self.shape(spec)
        published = self.published
        if published is not None:
            from plimsoll.models.pretrained.safetensors_folder import checked

            # Before planning, refuses pickled weights, missing files, and tensors of another shape.
            checked(find_folder(self.pretrained), published)
        elif self.item_width(spec) != spec.embedding_size:
            say(f"items begin at random: the data has no embeddings of {self.item_width(spec)} numbers")
        return self._facts().to_json()

    def require_same(self, facts: Mapping[str, Any]) -> None:
        require_same(self.pretrained, facts, self._facts())

    def _facts(self) -> Facts:
        """Returns the sizes of the language model, which may not change within a run."""
        shape = {} if self.published is None else vars(self.published)
        return Facts(options={f"{name} of the language model": str(value) for name, value in shape.items()})


def small_shape(width: int, *, layers: int, heads: int | None = None) -> DecoderShape:
    """Returns the shape of a transformer that is trained from scratch."""
    if width % 2:
        raise RecipeError(
            f"a width of {width} is odd, and a small transformer rotates pairs of numbers (RoPE): take an even"
            " --item-embedding-dim or --width; or, beside a frozen --pretrained model, --side-layers 0 to train none"
        )
    usual = next(heads for heads in range(max(1, width // 32), 0, -1) if width // 2 % heads == 0)
    return DecoderShape(vocab=1, width=width, layers=layers, heads=heads or usual, inner=inner_width(width))
