"""Eight symmetries of a square, with the numbers that the published data sets of puzzles give them.

0 is the identity, 1 to 3 are that many quarter turns (NumPy's direction), 4 mirrors left and right, 5 mirrors up and
down, 6 transposes, 7 is a quarter turn and then a left-right mirror.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Shaped

SYMMETRIES = 8
INVERSE = (0, 3, 2, 1, 4, 5, 6, 7)
"""Number of the symmetry that undoes each."""


def dihedral(grid: Shaped[np.ndarray, "*more rows cols"], which: int) -> Shaped[np.ndarray, "*more rows2 cols2"]:
    """Returns a view of the last two axes under symmetry `which`, 0 to 7."""
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
    """Returns the grid that `dihedral(..., which)` was applied to."""
    return dihedral(grid, INVERSE[which])
