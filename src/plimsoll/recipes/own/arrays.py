"""Data that is given in Python, where the processes that train can open it: arrays as files, other objects as they are.

Arrays are written into this process's own temporary folder (pickled.py), once, and the others map them from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.files.facts import facts_of
from plimsoll.recipes.own import pickled
from plimsoll.units import format_bytes


def kept(data: Any, form: Any, what: str) -> tuple[Callable[[], Any], str]:
    """Returns a function that opens the data in any process, and the identity of what is in it.

    Args:
        data: Arrays in the pytree of a batch, a function that returns examples, or anything with `len()` and `[index]`.
        form: `functions.BatchForm` of a batch.
        what: Name of the argument, for refusals.

    Returns:
        The function, and a SHA-256; empty where only the object's own code says what is in it.

    Raises:
        DataError: It is neither, the arrays do not suit the batch, or they cannot be written.
    """
    import jax

    ordered = not isinstance(data, Iterator)  # a generator has no place to continue from
    if ordered and jax.tree.structure(data) == form.tree and all(np.ndim(leaf) for leaf in jax.tree.leaves(data)):
        return _kept_arrays(form.named(data, what=what), form, what)
    if callable(data):
        return data, ""
    if ordered and hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Mapping):
        return (lambda: data), ""
    raise DataError(
        f"{what} is a {type(data).__name__}: give arrays by the names of the batch ({', '.join(form.spec)}) whose first"
        " axis counts the examples, an object with len() and [index] whose items are dicts of arrays, or a function"
        " that returns one of these"
    )


def _kept_arrays(arrays: Mapping[str, Any], form: Any, what: str) -> tuple[Callable[[], Any], str]:
    from plimsoll.data.examples import narrow  # imports Grain and with it JAX

    for name, (shape, dtype) in form.spec.items():
        example = arrays[name].shape[1:], narrow(np.dtype(arrays[name].dtype)).name
        if example != (shape, dtype):
            raise DataError(
                f"an example of {name} in {what} has shape and type {example}, and that of the batch that was planned"
                f" for {(shape, dtype)}: plan for a batch of these"
            )
    places = {name: _place(arrays[name]) for name in form.spec}
    text = repr([(name, identity) for name, (_, identity) in places.items()])
    maps = {name: place for name, (place, _) in places.items()}

    def opened() -> dict[str, Any]:
        return {name: np.memmap(file, mode="r", **how) for name, (file, how) in maps.items()}

    return opened, hashlib.sha256(text.encode()).hexdigest()


def _place(given: Any) -> tuple[tuple[str, dict[str, Any]], str]:
    """Returns where an array is, as `np.memmap` takes it, and its identity."""
    file = given.filename if isinstance(given, np.memmap) else None
    if file is not None and given.flags.c_contiguous and not isinstance(given.base, np.ndarray):
        how = {"dtype": given.dtype.str, "shape": given.shape, "offset": given.offset}
        return (str(file), how), f"{facts_of([Path(file)]).digest} {how}"
    array = np.ascontiguousarray(given)
    flat = array.reshape(-1).view(np.uint8)
    digest = hashlib.sha256(flat.data).hexdigest()
    path = pickled.folder() / f"{digest}.array"
    try:
        if not path.exists() or path.stat().st_size != array.nbytes:
            flat.tofile(path)
    except OSError as problem:
        raise DataError(
            f"{format_bytes(array.nbytes)} of data cannot be written to {path.parent} ({problem.strerror}), where the"
            " process that trains would read them: let TMPDIR name a folder with room, or give arrays that are in files"
            ' (np.load(..., mmap_mode="r"))'
        ) from None
    return (str(path), {"dtype": array.dtype, "shape": array.shape}), f"{digest} {array.dtype} {array.shape}"
