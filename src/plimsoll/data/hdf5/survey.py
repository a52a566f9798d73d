"""What is in an HDF5 file, by looking at a few hundred rows of it: memory does not grow with the file.

Rows are sampled by chunk: a handful of chunks from all over the file, some rows of each. What reading in a random order
costs is measured on one chunk of the dataset with the widest rows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plimsoll.data.hdf5.rows import DONE, not_finite, opened, told_as_damage

SAMPLED_ROWS, SAMPLED_CHUNKS = 200, 8
LARGEST_READ = 64 * 2**20
"""Bytes read at a time, at most: where chunks are larger, nothing is sampled of that dataset."""
SHOWN_ATTRIBUTES = 40
ENOUGH_CHUNKS = 8
"""Places of the file that a batch of a good mixture holds rows of."""
SLOW_CHUNK_SECONDS = 0.02
"""A chunk that takes longer makes reading row by row slow."""


SUFFIXES = (".h5", ".hdf5", ".hdf")


def is_hdf5(path: str | Path) -> bool:
    """By what is in it, or by its name: what is called so and is none is refused when it is opened."""
    path = Path(path).expanduser()
    return path.is_file() and (path.suffix.lower() in SUFFIXES or h5py.is_hdf5(path))


def describe(path: str | Path, *, seed: int = 0) -> dict[str, Any]:
    """Attributes, datasets and sampled figures, as JSON."""
    path = Path(path).expanduser()
    with told_as_damage(path), opened(path) as file:
        datasets: list[h5py.Dataset] = []
        file.visititems(lambda _, item: datasets.append(item) if isinstance(item, h5py.Dataset) else None)
        random = np.random.default_rng(seed)
        families = _families(file, datasets)
        described = [_dataset(one, random) for one in datasets]
        rows = max((one.shape[0] for one in datasets if one.shape), default=0)
        written = int(np.asarray(file.attrs.get(DONE, rows)))
        return {
            "path": str(path),
            "bytes": path.stat().st_size,
            "rows": rows,
            "rows_written": min(written, rows),
            "attributes": {name: _plain(file.attrs[name]) for name in list(file.attrs)[:SHOWN_ATTRIBUTES]},
            "datasets": described,
            "families": families,
            "warnings": [warning for one in described for warning in one.pop("warnings")],
        }


def _dataset(dataset: h5py.Dataset, random: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": str(dataset.name).removeprefix("/"),
        "shape": list(dataset.shape),
        "dtype": str(dataset.dtype),
        "chunks": list(dataset.chunks) if dataset.chunks else None,
        "compression": dataset.compression,
        "stored_bytes": int(dataset.id.get_storage_size()),
        "warnings": [],
    }
    if not dataset.shape or not dataset.shape[0] or dataset.dtype.kind not in "fiub":
        return found
    rows, bad, read, seconds = _sampled(dataset, random)
    if rows is None:
        found["warnings"].append(f"{found['name']}: a chunk is larger than 64 MiB, nothing was sampled")
        return found
    values = rows.astype(np.float64)
    finite = values[np.isfinite(values)]
    found |= {
        "sampled_rows": len(rows),
        "rows_read": read,
        "rows_read_not_finite": bad,
        "mean": float(finite.mean()) if finite.size else None,
        "std": float(finite.std()) if finite.size else None,
        "least": float(finite.min()) if finite.size else None,
        "largest": float(finite.max()) if finite.size else None,
        "zeros": float(np.mean(finite == 0)) if finite.size else None,
        "chunk_seconds": seconds,
    }
    if bad:
        everywhere = (
            "all its rows" if read == len(dataset) else f"the {read:,} rows that were read, of {len(dataset):,}"
        )
        found["warnings"].append(
            f"{found['name']}: {bad:,} of {everywhere} are not finite. Training ends at such a row, or leaves it out"
            " and counts it (--skip-bad)"
        )
    if dataset.chunks and seconds > SLOW_CHUNK_SECONDS:
        found["warnings"].append(
            f"{found['name']}: to read one row costs {seconds * 1e3:.0f} ms, since {dataset.chunks[0]:,} rows are"
            f" unpacked with it ({dataset.compression}). In random order that is {1 / seconds:,.0f} rows/s; by chunks,"
            f" {dataset.chunks[0] / seconds:,.0f}. `plimsoll prepare rechunk` writes smaller chunks"
        )
    return found


def _sampled(dataset: h5py.Dataset, random: np.random.Generator) -> tuple[np.ndarray | None, int, int, float]:
    """Some rows; of all that were read for them, how many are not finite, and how many they are; and the seconds that a
    chunk takes, the quickest of those read."""
    length = dataset.shape[0]
    size = dataset.chunks[0] if dataset.chunks else min(length, SAMPLED_ROWS // SAMPLED_CHUNKS)
    row_bytes = int(np.prod(dataset.shape[1:], dtype=np.int64)) * dataset.dtype.itemsize
    if size * row_bytes > LARGEST_READ:
        return None, 0, 0, 0.0
    count = -(-length // size)
    chosen = np.sort(random.choice(count, min(count, SAMPLED_CHUNKS), replace=False))
    parts, bad, read, fastest = [], 0, 0, float("inf")
    for at in chosen.tolist():
        started = time.perf_counter()
        rows = dataset[at * size : min(length, (at + 1) * size)]
        fastest = min(fastest, time.perf_counter() - started)
        bad, read = bad + int(not_finite({"rows": rows}).sum()), read + len(rows)
        parts.append(
            rows[np.sort(random.choice(len(rows), min(len(rows), SAMPLED_ROWS // len(chosen)), replace=False))]
        )
    return np.concatenate(parts), bad, read, fastest


def _families(file: h5py.File, datasets: list[h5py.Dataset]) -> list[dict[str, Any]]:
    """Of a file that `prepare control` made: what a sample of its rows says of each family."""
    names = {str(one.name).removeprefix("/") for one in datasets}
    if not {"system_ids", "input_sequences", "controls", "control_masks"} <= names:
        return []
    ids, inputs, controls, masks = (
        file[name] for name in ("system_ids", "input_sequences", "controls", "control_masks")
    )
    assert isinstance(ids, h5py.Dataset)
    assert isinstance(inputs, h5py.Dataset)
    assert isinstance(controls, h5py.Dataset)
    assert isinstance(masks, h5py.Dataset)
    size = inputs.chunks[0] if inputs.chunks else 512
    count = -(-len(ids) // size)
    sums: dict[bytes, list[Any]] = {}
    for at in np.unique(np.linspace(0, count - 1, min(count, SAMPLED_CHUNKS)).round().astype(int)).tolist():
        rows = slice(at * size, min(len(ids), (at + 1) * size))
        of, states, outputs, mask = ids[rows], inputs[rows], controls[rows], masks[rows]
        for name in np.unique(of):
            mine = of == name
            row = sums.setdefault(bytes(name), [0, 0.0, 0.0, 0, 0])
            row[0] += int(mine.sum())
            row[1] += float(np.sum(np.linalg.norm(states[mine][:, -1], axis=-1)))
            row[2] += float(np.sum(outputs[mine].astype(np.float64) ** 2))
            row[3] += int(mask[mine].sum())
            row[4] += int(not_finite({"states": states[mine], "controls": outputs[mine]}).sum())
    return [
        {
            "name": name.decode("utf-8", "replace"),
            "sampled_rows": rows,
            "mean_norm": norms / rows,
            "inputs": inputs_seen / rows,
            "control_rms": float(np.sqrt(squares / inputs_seen)) if inputs_seen else None,
            "rows_not_finite": bad,
        }
        for name, (rows, norms, squares, inputs_seen, bad) in sorted(sums.items())
    ]


def shuffle_quality(order: np.ndarray, *, batch_size: int, chunk_rows: int) -> dict[str, Any]:
    """How well mixed an epoch is. `order`: the rows' places in the file, in the order they are trained on.

    `rank_correlation`: Spearman's, of a row's place in the file and its turn; 0 is perfect, 1 is the order of the
    file. `chunks_per_batch`: places of the file that a batch holds rows of, on average. `well_mixed`: a correlation
    that chance explains, and batches of `ENOUGH_CHUNKS` places, or of all there are.
    """
    turns = np.arange(len(order))
    ranks = np.argsort(np.argsort(order, kind="stable"), kind="stable")
    correlation = float(np.corrcoef(turns, ranks)[0, 1]) if len(order) > 1 else 0.0
    whole = len(order) // batch_size * batch_size
    batches = (order[:whole] // chunk_rows).reshape(-1, batch_size)
    distinct = [len(np.unique(batch)) for batch in batches]
    mixed = float(np.mean(distinct)) if distinct else 0.0
    chunks = len(np.unique(order // chunk_rows))
    enough = min(ENOUGH_CHUNKS, chunks, batch_size)
    by_chance = max(0.05, 3 / np.sqrt(chunks))  # chunks are in random order, their rows are not alone in it
    return {
        "rank_correlation": correlation,
        "chunks_per_batch": mixed,
        "batches": len(distinct),
        "well_mixed": bool(mixed >= 0.9 * enough and abs(correlation) < by_chance),
    }


def _plain(value: Any) -> Any:
    """As JSON has it."""
    array = np.asarray(value)
    if array.dtype.kind in "SO":
        return [str(one) for one in array.ravel()[:16]] if array.ndim else str(value)
    if array.size > 16:
        return f"{array.dtype} of shape {array.shape}"
    plain = array.tolist()
    return plain if not isinstance(plain, float) or np.isfinite(plain) else str(plain)
