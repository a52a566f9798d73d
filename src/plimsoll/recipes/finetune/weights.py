"""Weights that a fine-tuning run begins with: those of the published model, and of an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plimsoll.models.pretrained.find import find_folder
from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.finetune.task import base_of, whole_of


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """Weights in files."""

    pretrained: str
    """Name of the published model."""
    shape: DecoderShape
    rank: int
    """Rank of the adapters beside it; 0 for none."""
    adapter: str | None
    """Folder of an adapter whose weights are learned further."""

    def load(self, params: Any) -> Any:
        if not self.rank:
            return whole_of(params, find_folder(self.pretrained), self.shape)
        params = params | {"frozen": self.load_frozen(params["frozen"])}
        if self.adapter is None:
            return params
        from plimsoll.models.pretrained.adapters import read_adapter

        targets = params["trainable"].keys()
        learned, _ = read_adapter(self.adapter, self.shape, rank=self.rank, targets=targets)
        return params | {"trainable": learned}

    def load_frozen(self, frozen: Any) -> Any:
        return base_of(frozen, find_folder(self.pretrained), self.shape)
