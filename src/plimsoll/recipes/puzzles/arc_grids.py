"""Converts ARC grids to canvases of 30x30 tokens and back, and puzzle names to augmentations and back.

Token 0 is padding, 1 the edge, 2 to 11 the colours 0 to 9. The edge fills the row just below and the column just to the
right of the grid, if they are inside the canvas. A puzzle's name is `task|||t<symmetry>|||<10 digits>`: the number of a
symmetry, and the new colours of colours 0 to 9. Tokens and names are those of Tiny Recursive Models
(build_arc_dataset.py).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped, UInt8

CANVAS = 30
"""Rows and columns of the canvas: no grid of ARC is larger."""
COLOURS = 10
EDGE, FIRST_COLOUR = 1, 2
VOCABULARY = FIRST_COLOUR + COLOURS
SEPARATOR = "|||"
SYMMETRIES = 8
"""Number of symmetries of a square: number 0 is the identity, 1 to 3 are that many quarter turns (as `np.rot90`), 4
mirrors left and right, 5 mirrors up and down, 6 transposes, 7 is a quarter turn and then a left-right mirror."""
INVERSE = (0, 3, 2, 1, 4, 5, 6, 7)
"""Number of each symmetry's inverse."""
_FORMS = ((0, None), (1, None), (2, None), (3, None), (0, -1), (0, -2), (1, -2), (1, -1))
"""Quarter turns of each symmetry, and the axis that is mirrored after them, if any."""

Grid = UInt8[np.ndarray, "rows cols"]
Key = bytes
"""Shape and colours of a grid, as a key that can be hashed."""


def dihedral(grid: Shaped[np.ndarray, "*more rows cols"], which: int) -> Shaped[np.ndarray, "*more rows2 cols2"]:
    """Returns a view of grids (the last two axes) under the symmetry numbered `which`, 0 to 7."""
    turns, mirrored = _FORMS[which]
    turned = np.rot90(grid, turns, axes=(-2, -1))
    return turned if mirrored is None else np.flip(turned, mirrored)


def key_of(grid: Grid) -> Key:
    """Returns the key of a grid. Equal grids have equal keys."""
    return bytes(grid.shape) + grid.tobytes()


def placed(grid: Grid, row: int = 0, col: int = 0) -> UInt8[np.ndarray, " tokens"]:
    """Returns the canvas as 900 tokens, with `grid`'s upper left corner at (row, col)."""
    canvas = np.zeros((CANVAS, CANVAS), np.uint8)
    below = row + grid.shape[0]
    right = col + grid.shape[1]
    canvas[row:below, col:right] = grid + FIRST_COLOUR
    canvas[below : below + 1, col:right] = EDGE
    canvas[row:below, right : right + 1] = EDGE
    return canvas.ravel()


def cropped(tokens: Int[np.ndarray, " tokens"]) -> Grid:
    """Returns the grid on a canvas: the largest rectangle of colours at the upper left corner.

    Without colours there, the grid is empty. Of equally large rectangles it is the one with the fewest rows.
    """
    canvas = np.asarray(tokens).reshape(CANVAS, CANVAS)
    coloured = (canvas >= FIRST_COLOUR) & (canvas < VOCABULARY)
    widths = np.minimum.accumulate(np.where(coloured.all(axis=1), CANVAS, np.argmin(coloured, axis=1)))
    rows = int(np.argmax(widths * np.arange(1, CANVAS + 1))) + 1
    grid = canvas[:rows, : widths[rows - 1]] - FIRST_COLOUR
    return grid.astype(np.uint8) if grid.size else np.zeros((0, 0), np.uint8)


class Augmentation(NamedTuple):
    symmetry: int
    colours: UInt8[np.ndarray, " colours"]
    """New colour of each of the ten colours; colour 0 stays 0."""

    def applied(self, grid: Grid) -> Grid:
        return dihedral(self.colours[grid], self.symmetry)

    def undone(self, grid: Grid) -> Grid:
        return np.argsort(self.colours).astype(np.uint8)[dihedral(grid, INVERSE[self.symmetry])]

    def named(self, task: str) -> str:
        return SEPARATOR.join([task, f"t{self.symmetry}", "".join(map(str, self.colours.tolist()))])


NOTHING = Augmentation(0, np.arange(COLOURS, dtype=np.uint8))


def random_augmentation(random: np.random.Generator) -> Augmentation:
    """Returns a random symmetry and a random order of colours 1 to 9, all equally likely."""
    colours = np.arange(COLOURS, dtype=np.uint8)
    symmetry = int(random.integers(SYMMETRIES))
    colours[1:] = random.permutation(colours[1:])
    return Augmentation(symmetry, colours)


def read_name(name: str) -> tuple[str, Augmentation]:
    """Returns the task's name and the augmentation in a puzzle's name."""
    parts = name.rsplit(SEPARATOR, 2)
    if len(parts) < 3:
        return name, NOTHING
    task, turned, colours = parts
    return task, Augmentation(int(turned.removeprefix("t")), np.array([int(digit) for digit in colours], np.uint8))
