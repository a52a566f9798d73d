"""Small sets of interactions, written as `plimsoll prepare recommend` writes them."""

import numpy as np

from plimsoll.files.facts import Facts
from plimsoll.recipes.recommend.interactions import write_interactions


def write_small(folder, sequences, *, items=None, clusters=2, width=4, seed=0):
    """`sequences`: ids from 1, a list for each user. Clusters go round; embeddings are random."""
    items = max(map(max, sequences)) if items is None else items
    embeddings = np.random.default_rng(seed).normal(size=(items + 1, width)).astype(np.float32)
    embeddings[0] = 0
    write_interactions(
        folder,
        Facts(),
        sequences=np.concatenate(sequences).astype(np.int32),
        offsets=np.cumsum([0, *map(len, sequences)]),
        cluster_of=np.concatenate([[-1], np.arange(items) % clusters]).astype(np.int32),
        names=[str(100 + item) for item in range(1, items + 1)],
        embeddings=embeddings if width else None,
        about={"clustering": "frequency", "largest_cluster": -(-items // clusters), "counts": {}},
    )
    return folder


def sequence_of(data, user):
    """All items of a user, in the order of time."""
    return data.sequences[data.offsets[user] : data.offsets[user + 1]].tolist()


def write_random(folder, *, users=30, items=20, shortest=2, longest=12, seed=0, **options):
    """Users with different items each; every item has a user."""
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, longest + 1, users)
    sequences = [(random.permutation(items)[:length] + 1).tolist() for length in lengths]
    return write_small(folder, sequences, items=items, **options)
