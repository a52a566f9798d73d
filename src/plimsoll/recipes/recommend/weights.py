"""Weights that a run of recommend begins with: embeddings and clusters of its data, and a published model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plimsoll.models.pretrained.find import find_folder
from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.recommend.interactions import Interactions
from plimsoll.recipes.recommend.item_reader import with_weights
from plimsoll.recipes.recommend.item_shape import ItemShape
from plimsoll.recipes.recommend.items import members_of, with_clusters, with_items


@dataclass(frozen=True)
class ItemWeights:
    """Item tables of the data, and weights in files."""

    shape: ItemShape
    interactions: Interactions
    published: DecoderShape | None
    pretrained: str
    """Name of the published model."""

    def load(self, params: Any) -> Any:
        # Items begin with the rows of the data, if these are as wide.
        data = self.interactions
        rows = data.embeddings() if data.about["embedding_size"] == self.shape.item_width else None
        if rows is not None:
            params = with_items(params, rows)
        if self.shape.two_level:
            params = with_clusters(params, data.cluster_of, self.shape)

        # The published model reads its weights in the place of the old ones.
        if self.published is not None:
            params = with_weights(params, find_folder(self.pretrained), self.published)
        return params

    def load_frozen(self, frozen: Any) -> Any:
        if self.shape.two_level:
            frozen = frozen | {"clusters": members_of(self.interactions.cluster_of, self.shape)}
        assert self.published is not None
        return with_weights({"frozen": frozen}, find_folder(self.pretrained), self.published)["frozen"]
