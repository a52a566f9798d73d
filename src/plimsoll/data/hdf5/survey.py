"""A description of an HDF5 file from a few hundred of its rows: memory does not grow with the file.

Rows are sampled by chunk: some chunks from all over the file, some rows of each. The time that a chunk takes to read is
measured: it is what reading row by row in a random order would cost.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plimsoll.data.hdf5.rows import damage_as_error, datasets_in, name_of, not_finite, opened, row_bytes_of

SAMPLED_ROWS, SAMPLED_CHUNKS = 200, 8
LARGEST_READ = 64 * 2**20
"""Bytes read at a time at most: where chunks are larger, that dataset is not sampled."""
SHOWN_ATTRIBUTES = 40
ENOUGH_CHUNKS = 8
"""Chunks of the file that a well-mixed batch holds rows of."""
SLOW_CHUNK_SECONDS = 0.02
"""A chunk that takes longer makes reading row by row slow."""
FIGURES = {"mean": np.mean, "std": np.std, "least": np.min, "largest": np.max, "zeros": lambda x: np.mean(x == 0)}
"""Figures of the finite values that were sampled, by the names they have in the description."""
SUFFIXES = (".h5", ".hdf5", ".hdf")


def is_hdf5(path: str | Path) -> bool:
    """Tells an HDF5 file by its content or its name: what has the name and is none is refused when it is opened."""
    path = Path(path).expanduser()
    return path.is_file() and (path.suffix.lower() in SUFFIXES or h5py.is_hdf5(path))


def describe(path: str | Path, *, seed: int = 0) -> dict[str, Any]:
    """Returns attributes, datasets and sampled figures, as JSON."""
    path = Path(path).expanduser()
    with damage_as_error(path), opened(path) as file:
        datasets = datasets_in(file)
        random = np.random.default_rng(seed)
        families = _families(datasets)
        described = [_dataset(dataset, random) for dataset in datasets]
        rows = max((dataset.shape[0] for dataset in datasets if dataset.shape), default=0)
        return {
            "path": str(path),
            "bytes": path.stat().st_size,
            "rows": rows,
            "attributes": {name: _plain(file.attrs[name]) for name in list(file.attrs)[:SHOWN_ATTRIBUTES]},
            "datasets": described,
            "families": families,
            "warnings": [warning for row in described for warning in row.pop("warnings")],
        }


def _dataset(dataset: h5py.Dataset, random: np.random.Generator) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name_of(dataset),
        "shape": list(dataset.shape),
        "dtype": str(dataset.dtype),
        "chunks": list(dataset.chunks) if dataset.chunks else None,
        "compression": dataset.compression,
        "stored_bytes": int(dataset.id.get_storage_size()),
        "warnings": [],
    }
    if not dataset.shape or not dataset.shape[0] or dataset.dtype.kind not in "fiub":
        return row
    rows, bad, read, seconds = _sampled(dataset, random)
    if rows is None:
        row["warnings"].append(f"{row['name']}: a chunk is larger than 64 MiB, nothing was sampled")
        return row
    values = rows.astype(np.float64)
    finite = values[np.isfinite(values)]
    row |= {
        "sampled_rows": len(rows),
        "rows_read": read,
        "rows_read_not_finite": bad,
        **{name: float(figure(finite)) if finite.size else None for name, figure in FIGURES.items()},
        "chunk_seconds": seconds,
    }
    if bad:
        everywhere = (
            "all its rows" if read == len(dataset) else f"the {read:,} rows that were read, of {len(dataset):,}"
        )
        row["warnings"].append(
            f"{row['name']}: {bad:,} of {everywhere} are not finite. Training ends at such a row, or leaves it out"
            " and counts it (--skip-bad)"
        )
    if dataset.chunks and seconds > SLOW_CHUNK_SECONDS:
        row["warnings"].append(
            f"{row['name']}: to read one row costs {seconds * 1e3:.0f} ms, since {dataset.chunks[0]:,} rows are"
            f" unpacked with it ({dataset.compression}). In random order that is {1 / seconds:,.0f} rows/s; by chunks,"
            f' {dataset.chunks[0] / seconds:,.0f}. docs/control.md, "Huge chunks", says how'
            " to copy the file into smaller ones"
        )
    return row


def _sampled(dataset: h5py.Dataset, random: np.random.Generator) -> tuple[np.ndarray | None, int, int, float]:
    """Returns some rows (None where chunks are too large), and figures of all rows that were read for them.

    These are how many are not finite, how many were read, and the seconds of the quickest chunk.
    """
    length = dataset.shape[0]
    size = dataset.chunks[0] if dataset.chunks else min(length, SAMPLED_ROWS // SAMPLED_CHUNKS)
    if size * row_bytes_of(dataset) > LARGEST_READ:
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


def _families(datasets: list[h5py.Dataset]) -> list[dict[str, Any]]:
    """Returns figures of each family, from a sample of rows, where `prepare control` made the file; else nothing."""
    named = {name_of(dataset): dataset for dataset in datasets}
    if not {"system_ids", "input_sequences", "controls", "control_masks"} <= named.keys():
        return []
    ids, inputs, controls, masks = (
        named[name] for name in ("system_ids", "input_sequences", "controls", "control_masks")
    )
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
    """Measures how well mixed an epoch is.

    Args:
        order: Numbers of the rows in the file, in the order they are trained on.
        batch_size: Rows of a batch.
        chunk_rows: Rows of a chunk.

    Returns:
        `rank_correlation` is Spearman's, of a row's place in the file and its turn: 0 is perfect, 1 is the order of
        the file. `chunks_per_batch` counts the chunks that a batch holds rows of, on average. `well_mixed` means a
        correlation that chance explains, and batches of `ENOUGH_CHUNKS` chunks, or of all there are.
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
    """Returns a value as JSON has it; long arrays as their type and shape."""
    array = np.asarray(value)
    if array.dtype.kind in "SO":
        return [str(entry) for entry in array.ravel()[:16]] if array.ndim else str(value)
    if array.size > 16:
        return f"{array.dtype} of shape {array.shape}"
    plain = array.tolist()
    return plain if not isinstance(plain, float) or np.isfinite(plain) else str(plain)
