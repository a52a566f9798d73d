"""Describes an HDF5 file by statistics of up to 200 rows of each dataset, from 8 random chunks.

Memory does not grow with the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plimsoll.data.hdf5.rows import (
    Hdf5Rows,
    damage_as_error,
    datasets_in,
    huge_chunk_advice,
    name_of,
    not_finite,
    opened,
    row_bytes_of,
)

SAMPLED_ROWS, SAMPLED_CHUNKS = 200, 8
LARGEST_READ = 64 * 2**20
"""Largest chunk in bytes that is read. A dataset with larger chunks is not sampled."""
SHOWN_ATTRIBUTES = 40
FIGURES = {"mean": np.mean, "std": np.std, "least": np.min, "largest": np.max, "zeros": lambda x: np.mean(x == 0)}
"""Functions that compute the statistics of the sampled finite values, by their names in the description."""
SUFFIXES = (".h5", ".hdf5", ".hdf")
FAMILY_COLUMNS = {
    "names": "system_ids",
    "states": "input_sequences",
    "controls": "controls",
    "masks": "control_masks",
}
"""Dict from the names used in this module to the HDF5 datasets that `plimsoll prepare control` writes."""


def is_hdf5(path: str | Path) -> bool:
    """Returns True if a file has the suffix or the content of an HDF5 file. Opening it may still fail."""
    path = Path(path).expanduser()
    return path.is_file() and (path.suffix.lower() in SUFFIXES or h5py.is_hdf5(path))


def describe(path: str | Path, *, seed: int = 0) -> dict[str, Any]:
    """Returns attributes, datasets and sampled statistics of an HDF5 file, as JSON."""
    path = Path(path).expanduser()
    with damage_as_error(path), opened(path) as file:
        datasets = datasets_in(file)
        random = np.random.default_rng(seed)
        names = {name_of(dataset) for dataset in datasets}
        described = [_dataset(dataset, random) for dataset in datasets]
        return {
            "path": str(path),
            "bytes": path.stat().st_size,
            "rows": max((dataset.shape[0] for dataset in datasets if dataset.shape), default=0),
            "attributes": {name: _plain(file.attrs[name]) for name in list(file.attrs)[:SHOWN_ATTRIBUTES]},
            "datasets": described,
            "families": _families(path) if names.issuperset(FAMILY_COLUMNS.values()) else [],
            "warnings": [warning for row in described for warning in row.pop("warnings")],
        }


def _dataset(dataset: h5py.Dataset, random: np.random.Generator) -> dict[str, Any]:
    """Returns shape, type and storage of a dataset, and statistics of sampled rows if they are numbers."""
    warnings = []
    row: dict[str, Any] = {
        "name": name_of(dataset),
        "shape": list(dataset.shape),
        "dtype": str(dataset.dtype),
        "chunks": list(dataset.chunks) if dataset.chunks else None,
        "compression": dataset.compression,
        "stored_bytes": int(dataset.id.get_storage_size()),
        "warnings": warnings,
    }
    if advice := huge_chunk_advice(dataset):
        warnings.append(advice)

    # Sample some chunks, and some rows of each.
    length = dataset.shape[0] if dataset.shape else 0
    size = dataset.chunks[0] if dataset.chunks else min(length, SAMPLED_ROWS // SAMPLED_CHUNKS)
    if not length or dataset.dtype.kind not in "fiub" or size * row_bytes_of(dataset) > LARGEST_READ:
        return row
    count = -(-length // size)
    chosen = np.sort(random.choice(count, min(count, SAMPLED_CHUNKS), replace=False))
    parts, bad, read = [], 0, 0
    for chunk in chosen.tolist():
        rows = dataset[chunk * size : (chunk + 1) * size]
        bad += int(not_finite({"rows": rows}).sum())
        read += len(rows)
        sample = random.choice(len(rows), min(len(rows), SAMPLED_ROWS // len(chosen)), replace=False)
        parts.append(rows[np.sort(sample)])
    if bad:
        warnings.append(
            f"{row['name']}: {bad:,} of {read:,} rows that were read, of {length:,}, are not finite. Training ends at"
            " such a row, or leaves it out and counts it (--skip-bad)"
        )

    # Compute the statistics.
    values = np.concatenate(parts).astype(np.float64)
    finite = values[np.isfinite(values)]
    figures = {name: float(figure(finite)) if finite.size else None for name, figure in FIGURES.items()}
    return row | {"sampled_rows": len(values), "rows_read": read, "rows_read_not_finite": bad} | figures


def _families(path: Path) -> list[dict[str, Any]]:
    """Returns statistics of each family of controlled systems, from up to 8 chunks spread over the file."""
    source = Hdf5Rows(path, FAMILY_COLUMNS)
    spans = [source.read(begin, end) for begin, end in source.spread_spans(SAMPLED_CHUNKS)]
    rows = {name: np.concatenate([span[name] for span in spans]) for name in FAMILY_COLUMNS}
    norms = np.linalg.norm(rows["states"][:, -1], axis=-1)
    squares = np.sum(rows["controls"].astype(np.float64) ** 2, axis=-1)
    inputs = rows["masks"].sum(axis=-1)
    bad = not_finite({"states": rows["states"], "controls": rows["controls"]})

    families = []
    for name in np.unique(rows["names"]):
        members = rows["names"] == name
        inputs_of_all = float(inputs[members].sum())
        families.append(
            {
                "name": name.decode("utf-8", "replace"),
                "sampled_rows": int(members.sum()),
                "mean_norm": float(norms[members].mean()),
                "inputs": float(inputs[members].mean()),
                "control_rms": float(np.sqrt(squares[members].sum() / inputs_of_all)) if inputs_of_all else None,
                "rows_not_finite": int(bad[members].sum()),
            }
        )
    return families


def _plain(value: Any) -> Any:
    """Converts a value to JSON. An array of more than 16 numbers becomes its type and shape."""
    array = np.asarray(value)
    if array.dtype.kind in "SO":
        return [str(entry) for entry in array.ravel()[:16]] if array.ndim else str(value)
    if array.size > 16:
        return f"{array.dtype} of shape {array.shape}"
    plain = array.tolist()
    return plain if not isinstance(plain, float) or np.isfinite(plain) else str(plain)
