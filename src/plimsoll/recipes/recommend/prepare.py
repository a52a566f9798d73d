"""`plimsoll prepare recommend`: makes a folder of users' sequences from a file of interactions."""

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.files.facts import facts_of
from plimsoll.recipes.family import content_of
from plimsoll.recipes.recommend.clusters import clustered
from plimsoll.recipes.recommend.embeddings import factorised
from plimsoll.recipes.recommend.formats import form_of, rows
from plimsoll.recipes.recommend.interactions import LEAST_EVALUATED, beginnings, write_interactions
from plimsoll.recipes.recommend.log import Log, collect, core, numbered, sorted_by_time, without_repeats
from plimsoll.recipes.recommend.prepare_options import Form, RecommendOptions, RecommendSet


def build(options: RecommendSet, out: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Writes the folder `out`, and returns the object that `prepare --json` prints."""
    # Checks options before any file is read.
    started = time.perf_counter()
    path = Path(options.interactions).expanduser()
    if out.expanduser().exists():
        raise DataError(f"{out} is there already: name another --out, or remove it")
    if options.clustering == "kmeans" and importlib.util.find_spec("sklearn") is None:
        raise DataError(
            "--clustering kmeans needs scikit-learn, which is not installed: `pip install scikit-learn` brings it, and"
            " --clustering frequency does without"
        )

    # Turns rows into users' sequences.
    form = form_of(options, path)
    say(f"{path} is read as --format {form}")
    log, counts = _kept(options, path, form)
    sequences, offsets, originals = numbered(log)
    users = len(offsets) - 1
    items = len(originals)
    counts["users_only_trained_on"] = int((np.diff(offsets) < LEAST_EVALUATED).sum())

    # Computes clusters and embeddings from training interactions only.
    clusters = ceil(sqrt(items)) if options.clusters is None else options.clusters
    if clusters > items:
        raise DataError(f"--clusters {clusters:,} is more than the {items:,} items that are left of {path}")
    say(f"{users:,} users, {items:,} items, {len(log):,} interactions; clusters: {options.clustering}")
    cluster_of, embeddings = _learned_from_training(options, sequences, offsets, items=items, clusters=clusters)
    description = {
        "form": form,
        "clustering": options.clustering,
        "largest_cluster": int(np.bincount(cluster_of[1:]).max()),
        "counts": counts,
    }
    size = write_interactions(
        out,
        facts_of([path], **dataclasses.asdict(options)),
        sequences=sequences,
        offsets=offsets,
        cluster_of=cluster_of,
        names=originals,
        embeddings=embeddings,
        about=description,
    )
    seconds = time.perf_counter() - started
    return {
        "path": str(out),
        "users": users,
        "items": items,
        "clusters": int(cluster_of.max()) + 1,
        "examples": len(log),
        "seconds": seconds,
        "examples_per_second": counts["interactions_read"] / seconds,
        "bytes": size,
        **description,
    }


def make(options: RecommendOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare recommend`; progress goes to standard error."""
    return build(
        content_of(options, RecommendSet),
        Path(options.out),
        lambda text: print(f"  {text}", file=sys.stderr, flush=True),
    )


def _kept(options: RecommendSet, path: Path, form: Form) -> tuple[Log, dict[str, int]]:
    """Returns interactions to keep, user by user in the order of time, and counts of those read and those left out."""
    log, counts = collect(rows(options, path, form), min_rating=options.min_rating)
    log = sorted_by_time(log)
    repeats = 0
    if not options.keep_repeats:
        log, repeats = without_repeats(log)
    kept = core(log, options.k_core)
    if not len(kept):
        raise DataError(
            f"{path} has {counts['interactions_read']:,} interactions, and none is left without the users and"
            f" items that have fewer than {options.k_core}: give a lower --k-core or --min-rating, or a file with more"
        )
    return kept, counts | {
        "repeats": repeats,
        "interactions_dropped": len(log) - len(kept),
        "users_dropped": len(np.unique(log.users)) - len(np.unique(kept.users)),
        "items_dropped": len(np.unique(log.items)) - len(np.unique(kept.items)),
    }


def _learned_from_training(
    options: RecommendSet, sequences: np.ndarray, offsets: np.ndarray, *, items: int, clusters: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns each id's cluster and embedding (None if not requested), from training interactions only."""
    lengths = np.diff(offsets)
    trained = lengths - 2 * (lengths >= LEAST_EVALUATED)
    seen, starts = beginnings(sequences, offsets[:-1], trained)
    popularity = np.bincount(seen, minlength=items + 1)[1:]

    vectors = np.zeros((items + 1, 1), np.float32)
    if options.embeddings == "factorisation" or options.clustering == "kmeans":
        vectors = factorised(seen, starts, items=items, width=options.embedding_size, seed=options.seed)
    cluster_of = clustered(
        options.clustering,
        clusters=clusters,
        largest=options.max_cluster_size,
        popularity=popularity,
        vectors=vectors[1:],
        seed=options.seed,
    )
    embeddings = vectors if options.embeddings == "factorisation" else None
    return np.concatenate([[-1], cluster_of]).astype(np.int32), embeddings
