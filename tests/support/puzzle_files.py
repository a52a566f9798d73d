"""Small sets of puzzles in the published format, written with nothing but NumPy."""

import json

import numpy as np


def write_split(folder, *, groups, seq_len=6, vocab_size=9, identifiers=4, seed=0):
    """`groups`: for each group the number of examples of each of its puzzles. Token 0 is padding, and ignored."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    sizes = [size for group in groups for size in group]
    rows = sum(sizes)
    arrays = {
        "inputs": random.integers(0, vocab_size, (rows, seq_len)).astype(np.uint8),
        "labels": random.integers(0, vocab_size, (rows, seq_len)).astype(np.uint8),
        "puzzle_identifiers": random.integers(min(1, identifiers - 1), identifiers, len(sizes)).astype(np.int32),
        "puzzle_indices": np.cumsum([0, *sizes]).astype(np.int32),
        "group_indices": np.cumsum([0, *map(len, groups)]).astype(np.int32),
    }
    for name, values in arrays.items():
        np.save(folder / f"all__{name}.npy", values)
    about = {
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "pad_id": 0,
        "ignore_label_id": 0,
        "blank_identifier_id": 0,
        "num_puzzle_identifiers": identifiers,
        "total_groups": len(groups),
        "mean_puzzle_examples": rows / len(sizes),
        "total_puzzles": len(sizes),
        "sets": ["all"],
    }
    (folder / "dataset.json").write_text(json.dumps(about))
    names = ["<blank>", *(f"puzzle {number}" for number in range(1, identifiers))]
    (folder.parent / "identifiers.json").write_text(json.dumps(names))
    return arrays
