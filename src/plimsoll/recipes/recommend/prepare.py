"""`plimsoll prepare recommend`: who took which item after which, from a file to a folder."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.recipes.family import content_of
from plimsoll.recipes.recommend.clusters import clustered, default_clusters, require_clustering
from plimsoll.recipes.recommend.embeddings import factorised, random_embeddings
from plimsoll.recipes.recommend.formats import form_of, has_times, rows
from plimsoll.recipes.recommend.interactions import LEAST_EVALUATED
from plimsoll.recipes.recommend.log import collect, core, numbered, require_some, sorted_by_time, tied, without_repeats
from plimsoll.recipes.recommend.prepare_options import RecommendOptions, RecommendSet
from plimsoll.recipes.recommend.titles import named
from plimsoll.recipes.recommend.writer import InteractionSet, require_free, write_interactions


def build(made: RecommendSet, out: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Writes the folder `out`. The answer is what `prepare --json` prints."""
    started = time.perf_counter()
    path = Path(made.interactions).expanduser()
    require_free(out.expanduser().absolute())
    require_clustering(made.clustering)
    form = form_of(made, path)
    say(f"{path} is read as --format {form}")
    log, counts = collect(rows(made, path, form), min_rating=made.min_rating)
    require_some(log, counts["interactions_read"], least=made.k_core, path=path)
    log, out_of_order = sorted_by_time(log)
    repeats = 0
    if not made.keep_repeats:
        log, repeats = without_repeats(log)
    kept = core(log, made.k_core)
    require_some(kept, counts["interactions_read"], least=made.k_core, path=path)
    found = numbered(kept)
    users, items = len(found.offsets) - 1, len(found.originals)
    counts |= {
        "out_of_order": out_of_order,
        "repeats": repeats,
        "same_time": tied(kept) if has_times(made, form) else 0,
        "interactions_dropped": len(log) - len(kept),
        "users_dropped": len(np.unique(log.users)) - users,
        "items_dropped": len(np.unique(log.items)) - items,
        "users_only_trained_on": int((np.diff(found.offsets) < LEAST_EVALUATED).sum()),
    }
    clusters = default_clusters(items) if made.clusters is None else made.clusters
    if clusters > items:
        raise DataError(f"--clusters {clusters:,} is more than the {items:,} items that are left of {path}")
    catalogue, titles = named(made, path, form, found.originals)
    say(f"{users:,} users, {items:,} items, {len(kept):,} interactions; clusters: {made.clustering}")
    cluster_of, embeddings = _places(made, found.sequences, found.offsets, items=items, clusters=clusters)
    told = {
        "form": form,
        "times": has_times(made, form),
        "titles": sum(title is not None for title in catalogue.titles),
        "clustering": made.clustering,
        "embeddings": None if made.embeddings == "none" else made.embeddings,
        "clusters_asked": clusters,
        "largest_cluster": int(np.bincount(cluster_of[1:]).max()),
        "counts": counts,
    }
    size = write_interactions(
        out,
        InteractionSet(
            sequences=found.sequences,
            offsets=found.offsets,
            cluster_of=cluster_of,
            catalogue=catalogue,
            embeddings=embeddings,
            told=told | {"made_with": dataclasses.asdict(made)},
        ),
    )
    seconds = time.perf_counter() - started
    sizes = {"users": users, "items": items, "clusters": int(cluster_of.max()) + 1, "examples": len(kept)}
    rate = counts["interactions_read"] / seconds
    speed = {"seconds": seconds, "examples_per_second": rate, "bytes": size}
    return {"path": str(out), **sizes, **speed, **told, "titles_file": None if titles is None else str(titles)}


def make(options: RecommendOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare recommend`; progress goes to standard error."""

    def say(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    return build(content_of(options, RecommendSet), Path(options.out), say)


def _places(
    made: RecommendSet, sequences: np.ndarray, offsets: np.ndarray, *, items: int, clusters: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Clusters and embeddings, of what is for training alone."""
    lengths = np.diff(offsets)
    trained = lengths - 2 * (lengths >= LEAST_EVALUATED)
    places = np.repeat(offsets[:-1] - np.cumsum(trained) + trained, trained) + np.arange(trained.sum())
    seen, ends = sequences[places], np.concatenate([[0], np.cumsum(trained)])
    size = {"items": items, "width": made.embedding_size, "seed": made.seed}
    wanted = made.embeddings == "factorisation" or made.clustering != "frequency"
    vectors = factorised(seen, ends, **size) if wanted else np.zeros((items + 1, 1), np.float32)
    cluster_of = clustered(
        made.clustering,
        clusters=clusters,
        largest=made.max_cluster_size,
        popularity=np.bincount(seen, minlength=items + 1)[1:],
        vectors=vectors[1:],
        seed=made.seed,
    )
    given = {"factorisation": vectors, "none": None}
    embeddings = given[made.embeddings] if made.embeddings in given else random_embeddings(**size)
    return np.concatenate([[-1], cluster_of]).astype(np.int32), embeddings
