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


_FORMS = ((0, None), (1, None), (2, None), (3, None), (0, -1), (0, -2), (1, -2), (1, -1))
"""Quarter turns of each symmetry, and the axis that is mirrored then."""


def dihedral(grid: Shaped[np.ndarray, "*more rows cols"], which: int) -> Shaped[np.ndarray, "*more rows2 cols2"]:
    """Returns a view of the last two axes under symmetry `which`, 0 to 7."""
    if not 0 <= which < SYMMETRIES:
        raise ValueError(f"symmetries are numbered 0 to 7, got {which}")
    turns, mirrored = _FORMS[which]
    turned = np.rot90(grid, turns, axes=(-2, -1))
    return turned if mirrored is None else np.flip(turned, mirrored)
