"""Writer of a set of interactions: complete, or not at all.

Its content is described in recipes/recommend/interactions.py. It is written to `NAME.partial`, its catalogue.json last,
and then renamed. The rest of a killed process is removed by the next one: the same seed makes the same set.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.disk import free_bytes, is_full, locked
from plimsoll.errors import DataError, StoppedError
from plimsoll.recipes.recommend.catalogue import Catalogue
from plimsoll.recipes.recommend.interactions import ABOUT, CLUSTERS, EMBEDDINGS, OFFSETS, SEQUENCES, clusters_sha256
from plimsoll.units import format_bytes

ITEM_LINE_BYTES = 64
"""Bytes of a line of items.jsonl, besides its title."""
FIXED_BYTES = 2**14
"""Bytes of headers and catalogue.json."""


@dataclass(frozen=True, kw_only=True)
class InteractionSet:
    """Content of a folder. Ids begin with 1."""

    sequences: Sequence[np.ndarray] | np.ndarray
    """Ids of each user in the order of time; or of all users one after the other, with `offsets`."""
    offsets: np.ndarray | None = None
    cluster_of: np.ndarray
    """Cluster of each id: (items + 1,), -1 first."""
    catalogue: Catalogue
    embeddings: np.ndarray | None = None
    """Initial vectors: (items + 1, width), zeros first."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Further content of catalogue.json, besides the sizes."""


def write_interactions(folder: Path | str, content: InteractionSet) -> int:
    """Writes the folder and returns its size in bytes."""
    out = Path(folder).expanduser().absolute()
    require_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    arrays = _arrays(content)
    with _partial_folder(out) as partial:
        _require_room(out, content, arrays)
        _write(partial, content, arrays)
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
    lock = locked(out)
    partial = out.with_name(f"{out.name}.partial")
    try:
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
    finally:
        out.with_name(f"{out.name}.lock").unlink(missing_ok=True)
        lock.close()


def _arrays(content: InteractionSet) -> dict[str, np.ndarray]:
    """Returns the arrays by file; offsets first, which mark the folder as ours."""
    if content.offsets is None:
        lengths = [len(sequence) for sequence in content.sequences]
        sequences, offsets = np.concatenate(list(content.sequences)), np.cumsum([0, *lengths])
    else:
        sequences, offsets = content.sequences, content.offsets
    arrays = {
        OFFSETS: np.asarray(offsets, np.int64),
        SEQUENCES: np.asarray(sequences, np.int32),
        CLUSTERS: np.asarray(content.cluster_of, np.int32),
    }
    return arrays if content.embeddings is None else arrays | {EMBEDDINGS: np.asarray(content.embeddings, np.float32)}


def _write(partial: Path, content: InteractionSet, arrays: Mapping[str, np.ndarray]) -> None:
    for name, values in arrays.items():
        with open(partial / name, "wb") as file:
            np.save(file, values, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    content.catalogue.write(partial)
    catalogue = content.catalogue.sha256
    sizes = {
        "items": len(content.catalogue),
        "users": len(arrays[OFFSETS]) - 1,
        "interactions": len(arrays[SEQUENCES]),
        "clusters": int(arrays[CLUSTERS].max()) + 1,
        "embedding_size": arrays[EMBEDDINGS].shape[1] if EMBEDDINGS in arrays else None,
        "catalogue": catalogue,
        "clusters_sha256": clusters_sha256(arrays[CLUSTERS], catalogue),
    }
    (partial / ABOUT).write_text(json.dumps(sizes | dict(content.told), indent=1), "utf-8")


def _require_room(out: Path, content: InteractionSet, arrays: Mapping[str, np.ndarray]) -> None:
    titles = sum(len((title or "").encode()) for title in content.catalogue.titles)
    lines = len(content.catalogue) * ITEM_LINE_BYTES + titles
    needed, free = sum(values.nbytes for values in arrays.values()) + lines + FIXED_BYTES, free_bytes(out)
    if needed > free:
        raise DataError(
            f"the data set takes up to {format_bytes(needed)}, and {format_bytes(free)} are free at {out.parent}: make"
            " room, or name an --out on another disk"
        )
