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
    data = Interactions(folder)
    data.check()
    lengths = np.diff(data.offsets)
    often = np.bincount(data.sequences, minlength=data.items + 1)
    members = np.bincount(data.cluster_of[1:])
    top = np.argsort(-often, kind="stable")[:SHOWN]
    return {
        "path": str(data.folder),
        "bytes": sum(path.stat().st_size for path in data.folder.iterdir() if path.is_file()),
        "users": data.users,
        "items": data.items,
        "interactions": len(data),
        "evaluated_users": len(data.evaluated),
        "training_interactions": int((data.ends["train"] - data.offsets[:-1]).sum()),
        "sequence": _spread(lengths),
        "item": _spread(often[1:]),
        "clusters": data.clusters,
        "clustering": data.about.get("clustering"),
        "cluster": _spread(members),
        "embedding_size": data.about["embedding_size"],
        "embeddings": data.about.get("embeddings"),
        "titles": sum(title is not None for title in data.catalogue.titles),
        "most_taken": [{"name": data.catalogue.name(int(item)), "times": int(often[item])} for item in top if item],
        "counts": data.about.get("counts", {}),
        "made_with": data.about.get("made_with"),
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"least": int(values.min()), "mean": float(values.mean()), "most": int(values.max())}
