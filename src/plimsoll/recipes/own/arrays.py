"""Hands data from Python to other processes: arrays as files, other objects as pickles.

Arrays are written once into this process's own temporary folder (pickled.py). Other processes memory-map the files.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plimsoll.data.examples import narrow
from plimsoll.errors import DataError
from plimsoll.files.facts import facts_of
from plimsoll.recipes.own import pickled
from plimsoll.units import format_bytes


def kept(data: Any, form: Any, what: str) -> tuple[Callable[[], Any], str]:
    """Returns a function that opens the data in any process, and a hash of its content.

    Args:
        data: Arrays in a pytree like a batch, a function that returns examples, or anything with `len()` and `[index]`.
        form: `functions.BatchForm` of the batch.
        what: Name of the argument, for error messages.

    Returns:
        The function, and the SHA-256 of arrays; an empty string for other data, which is known only by its code.

    Raises:
        DataError: The data has none of these types, the arrays do not suit the batch, or they cannot be written.
    """
    # Data other than arrays is opened by its own code.
    has_place = not isinstance(data, Iterator)  # a generator has no place to continue from
    is_like_batch = has_place and jax.tree.structure(data) == form.tree
    if not is_like_batch or not all(map(np.ndim, jax.tree.leaves(data))):
        if callable(data):
            return data, ""
        if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Mapping):
            return (lambda: data), ""
        raise DataError(
            f"{what} is a {type(data).__name__}: give arrays by the names of the batch ({', '.join(form.spec)}) whose"
            " first axis counts the examples, an object with len() and [index] whose items are dicts of arrays, or a"
            " function that returns one of these"
        )

    # Arrays are memory-mapped from files.
    maps = {}
    digest = hashlib.sha256()
    for name, array in form.named(data).items():
        example = array.shape[1:], narrow(array.dtype).name
        if example != form.spec[name]:
            raise DataError(
                f"an example of {name} in {what} has shape and type {example}, and the plan is"
                f" for {form.spec[name]}: plan for a batch like the data"
            )
        maps[name], identity = _mapped(array)
        digest.update(f"{name} {identity} ".encode())
    return (lambda: {name: opened() for name, opened in maps.items()}), digest.hexdigest()


def _mapped(given: Any) -> tuple[Callable[[], np.memmap], str]:
    """Returns a function that memory-maps an array from a file, and a hash of the file or of the array."""
    file = given.filename if isinstance(given, np.memmap) else None
    if file is not None and given.flags.c_contiguous and not isinstance(given.base, np.ndarray):
        form = {"dtype": given.dtype.str, "shape": given.shape, "offset": given.offset}
        digest = facts_of([Path(file)]).digest
        return partial(np.memmap, str(file), mode="r", **form), f"{digest} {form}"

    # Any other array becomes a file in the process's own folder.
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
    form = {"dtype": array.dtype, "shape": array.shape}
    return partial(np.memmap, str(path), mode="r", **form), f"{digest} {form}"
