"""Writer of a set of interactions (recipes/recommend/interactions.py): complete, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from plimsoll.errors import DataError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import free_bytes, made
from plimsoll.recipes.recommend.catalogue import Catalogue
from plimsoll.recipes.recommend.interactions import CLUSTERS, EMBEDDINGS, OFFSETS, SEQUENCES
from plimsoll.units import format_bytes

ITEM_LINE_BYTES = 80
"""Bytes of a line of items.jsonl."""
FIXED_BYTES = 2**14
"""Bytes of headers and JSON files."""


def write_interactions(
    folder: Path | str,
    made_with: Facts,
    *,
    sequences: Int32[np.ndarray, " interactions"],
    offsets: Int64[np.ndarray, " users_and_1"],
    cluster_of: Int32[np.ndarray, " items_and_1"],
    catalogue: Catalogue,
    embeddings: Float32[np.ndarray, "items_and_1 width"] | None,
    about: Mapping[str, Any],
) -> int:
    """Writes the folder, with `about` in meta.json besides the sizes, and returns its size in bytes."""
    out = Path(folder).expanduser().absolute()
    require_absent(out)
    arrays = {OFFSETS: offsets.astype(np.int64), SEQUENCES: sequences, CLUSTERS: cluster_of}
    if embeddings is not None:
        arrays[EMBEDDINGS] = embeddings

    def write(partial: Path) -> dict[str, Any]:
        names = len(catalogue.originals) * ITEM_LINE_BYTES
        needed = sum(values.nbytes for values in arrays.values()) + names + FIXED_BYTES
        if needed > free_bytes(out):
            raise DataError(
                f"the data set takes up to {format_bytes(needed)}, and {format_bytes(free_bytes(out))} are free at"
                f" {out.parent}: make room, or name an --out on another disk"
            )
        for name, values in arrays.items():
            np.save(partial / name, values, allow_pickle=False)
        catalogue.write(partial)
        sizes = {
            "items": len(catalogue.originals),
            "users": len(offsets) - 1,
            "interactions": len(sequences),
            "clusters": int(cluster_of.max()) + 1,
            "embedding_size": None if embeddings is None else embeddings.shape[1],
        }
        return sizes | dict(about)

    made(out, made_with, write)
    return sum(path.stat().st_size for path in out.iterdir())


def require_absent(out: Path) -> None:
    """Raises DataError if the folder exists. Called before anything is read, too."""
    if out.exists():
        raise DataError(f"{out} is there already: name another --out, or remove it")
