"""Description of a set of interactions for `plimsoll inspect`. All of it is read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.recipes.recommend.interactions import Interactions

SHOWN = 5
"""Number of the most popular items that are shown."""


def describe_interactions(folder: Path | str) -> dict[str, Any]:
    """Returns sizes and spreads of a set. An incomplete set is refused, as a run would."""
    found = Interactions.open(folder)
    found.check()
    lengths = np.diff(found.offsets)
    often = np.bincount(found.sequences, minlength=found.items + 1)
    members = np.bincount(found.cluster_of[1:])
    top = np.argsort(-often, kind="stable")[:SHOWN]
    return {
        "path": str(found.folder),
        "bytes": sum(path.stat().st_size for path in found.folder.iterdir() if path.is_file()),
        "users": found.users,
        "items": found.items,
        "interactions": len(found),
        "evaluated_users": len(found.evaluated),
        "training_interactions": int((found.ends("train") - found.offsets[:-1]).sum()),
        "sequence": _spread(lengths),
        "item": _spread(often[1:]),
        "clusters": found.clusters,
        "clustering": found.about.get("clustering"),
        "cluster": _spread(members),
        "embedding_size": found.about["embedding_size"],
        "embeddings": found.about.get("embeddings"),
        "titles": sum(title is not None for title in found.catalogue.titles),
        "most_taken": [{"name": found.catalogue.name(int(item)), "times": int(often[item])} for item in top if item],
        "counts": found.about.get("counts", {}),
        "made_with": found.about.get("made_with"),
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"least": int(values.min()), "mean": float(values.mean()), "most": int(values.max())}
