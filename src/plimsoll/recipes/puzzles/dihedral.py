"""The eight symmetries of a square, by the numbers that the published data sets of puzzles give them.

0 nothing, 1 to 3 that many quarter turns (NumPy's direction), 4 left and right exchanged, 5 up and down exchanged,
6 transposed, 7 a quarter turn and then left and right exchanged.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Shaped

SYMMETRIES = 8
INVERSE = (0, 3, 2, 1, 4, 5, 6, 7)
"""The number of the symmetry that undoes each."""


def dihedral(grid: Shaped[np.ndarray, "*more rows cols"], which: int) -> Shaped[np.ndarray, "*more rows2 cols2"]:
    """The last two axes, seen under symmetry `which`, 0 to 7: a view."""
    if 0 <= which <= 3:
        return np.rot90(grid, which, axes=(-2, -1))
    if which == 4:
        return grid[..., ::-1]
    if which == 5:
        return grid[..., ::-1, :]
    if which == 6:
        return grid.swapaxes(-2, -1)
    if which == 7:
        return np.rot90(grid, axes=(-2, -1))[..., ::-1]
    raise ValueError(f"symmetries are numbered 0 to 7, got {which}")


def undone(grid: Shaped[np.ndarray, "*more rows cols"], which: int) -> Shaped[np.ndarray, "*more rows2 cols2"]:
    """What `dihedral(..., which)` was made from."""
    return dihedral(grid, INVERSE[which])
