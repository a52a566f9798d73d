"""Writer of a set of interactions: complete, or not at all.

Its content is described in recipes/recommend/interactions.py. It is written to `NAME.partial`, its catalogue.json last,
and then renamed. The rest of a killed process is removed by the next one: the same seed makes the same set.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from plimsoll.data.disk import free_bytes, is_full, locked
from plimsoll.errors import DataError, StoppedError
from plimsoll.recipes.recommend.catalogue import Catalogue
from plimsoll.recipes.recommend.interactions import ABOUT, CLUSTERS, EMBEDDINGS, OFFSETS, SEQUENCES, clusters_sha256
from plimsoll.units import format_bytes

ITEM_LINE_BYTES = 80
"""Bytes of a line of items.jsonl."""
FIXED_BYTES = 2**14
"""Bytes of headers and catalogue.json."""


def write_interactions(
    folder: Path | str,
    *,
    sequences: Int32[np.ndarray, " interactions"],
    offsets: Int64[np.ndarray, " users_and_1"],
    cluster_of: Int32[np.ndarray, " items_and_1"],
    catalogue: Catalogue,
    embeddings: Float32[np.ndarray, "items_and_1 width"] | None,
    about: Mapping[str, Any],
) -> int:
    """Writes the folder, with `about` in catalogue.json besides the sizes, and returns its size in bytes."""
    out = Path(folder).expanduser().absolute()
    require_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    arrays = {OFFSETS: offsets, SEQUENCES: sequences, CLUSTERS: cluster_of}  # the first marks the folder as ours
    if embeddings is not None:
        arrays[EMBEDDINGS] = embeddings
    identity = catalogue.sha256
    sizes = {
        "items": len(catalogue.originals),
        "users": len(offsets) - 1,
        "interactions": len(sequences),
        "clusters": int(cluster_of.max()) + 1,
        "embedding_size": None if embeddings is None else embeddings.shape[1],
        "catalogue": identity,
        "clusters_sha256": clusters_sha256(cluster_of, identity),
    }
    names = len(catalogue.originals) * ITEM_LINE_BYTES
    needed = sum(values.nbytes for values in arrays.values()) + names + FIXED_BYTES
    with _partial_folder(out) as partial:
        if needed > free_bytes(out):
            raise DataError(
                f"the data set takes up to {format_bytes(needed)}, and {format_bytes(free_bytes(out))} are free at"
                f" {out.parent}: make room, or name an --out on another disk"
            )
        for name, values in arrays.items():
            with open(partial / name, "wb") as file:
                np.save(file, values, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        catalogue.write(partial)
        (partial / ABOUT).write_text(json.dumps(sizes | dict(about), indent=1), "utf-8")
        size = sum(path.stat().st_size for path in partial.iterdir())
        partial.rename(out)
        return size


def require_free(out: Path) -> None:
    """Raises DataError if the folder exists. Called before anything is read, too."""
    if out.exists():
        raise DataError(f"{out} is there already: name another --out, or remove it")


@contextlib.contextmanager
def _partial_folder(out: Path) -> Iterator[Path]:
    """Yields a folder next to `out`, locked against other processes. What is left in it at the end is removed."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        with locked(out):
            require_free(out)  # somebody may have finished it just now
            if partial.exists() and not (partial / OFFSETS).exists() and any(partial.iterdir()):
                raise DataError(f"{partial} is there, and no half-made data set: name another --out, or remove it")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as problem:
        if not is_full(problem):
            raise
        raise StoppedError(
            f"the disk became full while {out} was written ({format_bytes(free_bytes(out))} free at {out.parent}): make"
            " room, or name an --out on another disk. Nothing was kept"
        ) from None
