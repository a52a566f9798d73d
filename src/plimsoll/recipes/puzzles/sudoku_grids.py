"""Sudoku of side 4, 6 and 9: solved many boards at a time, generated, and cleared to puzzles with one solution.

A board's candidates are (side, side) masks, bit d - 1 for digit d. A pass over them removes the digit of every settled
cell from its units (row, column, box), and settles a digit that has one place left in a unit. If that ends without a
solution, a cell is split in two and both boards are searched. NumPy handles a few thousand boards at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt16

Boards = UInt8[np.ndarray, "boards side side"]
"""Digits, 0 for a blank."""
Masks = UInt16[np.ndarray, "boards side side"]

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
"""Rows and columns of a box, by side of the board."""
TOGETHER = 2048
"""Boards that are searched at a time: a few MiB."""
BLANK = ".", "0"
"""Characters of a cell that is not given."""
EASY, FEWEST, MOST = 0.5, 0.25, 0.6
"""Shares of the cells that are given: in an easy puzzle, and the lowest and highest aim of a mixed one."""


class Solved(NamedTuple):
    """Result of a search."""

    counts: Int[np.ndarray, " boards"]
    """Number of solutions of each board, at most the limit."""
    solutions: Boards
    """First solution of each board; zeros if there is none."""


def candidates(boards: Boards) -> Masks:
    """Returns the candidates of each cell: all digits if it is blank."""
    masks = np.left_shift(1, boards.astype(np.int32) - 1, where=boards > 0, out=np.zeros(boards.shape, np.int32))
    return np.where(boards > 0, masks, 2 ** boards.shape[-1] - 1).astype(np.uint16)


def digits(masks: Masks) -> Boards:
    """Returns the digit of every settled cell, and 0 for every other."""
    numbers = np.bitwise_count(masks - np.uint16(1)) + 1  # of 2^(d-1) - 1, bits d - 1
    return np.where(_settled(masks), numbers, 0).astype(np.uint8)


def in_boxes(boards: np.ndarray) -> np.ndarray:
    """Returns boards, (..., side, side), with a box in every row. Applied again, it returns the boards."""
    side = boards.shape[-1]
    rows, cols = BOXES[side]
    parts = boards.reshape(*boards.shape[:-2], side // rows, rows, side // cols, cols)
    return parts.swapaxes(-3, -2).reshape(boards.shape)


_UNITS = (lambda boards: boards, lambda boards: boards.swapaxes(-2, -1), in_boxes)
"""Functions to view boards as rows, as columns and as boxes. Each is its own inverse."""


def valid(boards: Boards) -> Bool[np.ndarray, " boards"]:
    """Returns which boards are complete, with every digit once in every unit."""
    whole = np.uint16(2 ** boards.shape[-1] - 1)
    masks = candidates(boards)
    good = np.all(boards > 0, axis=(1, 2))
    for seen_as in _UNITS:
        good &= np.all(np.bitwise_or.reduce(seen_as(masks), axis=2) == whole, axis=1)
    return good


def propagated(masks: Masks) -> tuple[Masks, Bool[np.ndarray, " boards"]]:
    """Returns what follows without a guess, and which boards have no contradiction yet."""
    masks, alive = masks.copy(), np.ones(len(masks), bool)
    active = np.arange(len(masks))
    while len(active):
        before = masks[active]
        after, sound = _passed(before)
        masks[active], alive[active] = after, sound
        active = active[sound & (after != before).any((1, 2))]
    return masks, alive


def _settled(masks: Masks) -> Bool[np.ndarray, "boards side side"]:
    return (masks & (masks - np.uint16(1))) == 0


def _passed(masks: Masks) -> tuple[Masks, Bool[np.ndarray, " boards"]]:
    whole = np.uint16(2 ** masks.shape[-1] - 1)
    sound = np.ones(len(masks), bool)
    for seen_as in _UNITS:
        unit = seen_as(masks)
        settled = np.where(_settled(unit), unit, 0)
        taken = np.bitwise_or.reduce(settled, axis=2)
        sound &= (settled.sum(axis=2, dtype=np.uint16) == taken).all(1)  # no digit twice
        unit = np.where(settled > 0, unit, unit & ~taken[..., None])
        once, twice = np.zeros_like(taken), np.zeros_like(taken)
        for cell in range(unit.shape[-1]):
            twice |= once & unit[..., cell]
            once |= unit[..., cell]
        sound &= (once == whole).all(1)
        alone = unit & (once & ~twice)[..., None]
        masks = seen_as(np.where(alone > 0, alone, unit))
    return masks, sound & (masks > 0).all((1, 2))


def leaves(masks: Masks, *, done: Bool[np.ndarray, " boards"]) -> Iterator[tuple[Int[np.ndarray, " found"], Boards]]:
    """Yields every solution with the number of its board. A board is dropped as soon as the caller sets it in `done`.

    The search is depth first, so its memory is bounded by its depth and not by its breadth.
    """
    waiting = [(masks[first : first + TOGETHER], np.arange(first, min(first + TOGETHER, len(masks))))
               for first in range(0, len(masks), TOGETHER)]  # fmt: skip
    while waiting:
        part, owners = waiting.pop()
        if len(owners) > TOGETHER:
            waiting.append((part[:-TOGETHER], owners[:-TOGETHER]))
            part, owners = part[-TOGETHER:], owners[-TOGETHER:]
        wanted = ~done[owners]
        part, alive = propagated(part[wanted])
        part, owners = part[alive], owners[wanted][alive]
        ended = _settled(part).all((1, 2))
        if ended.any():
            yield owners[ended], digits(part[ended])
        if not ended.all():
            waiting.append(_split(part[~ended], owners[~ended]))


def _split(masks: Masks, owners: np.ndarray) -> tuple[Masks, np.ndarray]:
    """Returns two boards for each: one takes the lowest candidate of a cell with the fewest, the other all but that."""
    flat = masks.reshape(len(masks), -1)
    counts = np.bitwise_count(flat)
    cells = np.argmin(np.where(counts > 1, counts, 99), axis=1)
    boards = np.arange(len(flat))
    others, lowest = flat.copy(), flat.copy()
    lowest_bit = flat[boards, cells] & -flat[boards, cells]
    others[boards, cells] ^= lowest_bit
    lowest[boards, cells] = lowest_bit
    return np.concatenate([others, lowest]).reshape(-1, *masks.shape[1:]), np.concatenate([owners, owners])


def solved(boards: Boards, *, limit: int = 2) -> Solved:
    """Returns up to `limit` solutions of each board: 2 are enough to know whether there is exactly one."""
    counts, solutions = np.zeros(len(boards), np.int64), np.zeros_like(boards)
    done = np.zeros(len(boards), bool)
    for owners, boards_solved in leaves(candidates(boards), done=done):
        solutions[owners[::-1]] = boards_solved[::-1]
        np.add.at(counts, owners, 1)
        done |= counts >= limit
    return Solved(np.minimum(counts, limit), solutions)


def by_singles(boards: Boards) -> Bool[np.ndarray, " boards"]:
    """Returns which boards are solved without a guess."""
    masks, alive = propagated(candidates(boards))
    return alive & _settled(masks).all((1, 2))


def all_grids(side: Literal[4]) -> Boards:
    """Returns all 288 grids of side 4, in a fixed order. (Side 6 has 28,200,960, side 9 6.67e21.)"""
    empty = np.zeros((1, side, side), np.uint8)
    grids = np.concatenate([grid for _, grid in leaves(candidates(empty), done=np.zeros(1, bool))])
    return grids[np.lexsort(grids.reshape(len(grids), -1).T[::-1])]


def random_grids(count: int, side: int, random: np.random.Generator) -> Boards:
    """Returns complete grids, filled cell by cell at random; not all grids are equally likely."""
    grids = np.zeros((count, side, side), np.uint8)
    left = np.arange(count)
    masks = candidates(grids)
    while len(left):
        masks, alive = propagated(masks)
        masks[~alive] = 2**side - 1  # from the beginning again
        ended = _settled(masks).all((1, 2))
        grids[left[ended]] = digits(masks[ended])
        left, masks = left[~ended], masks[~ended]
        flat = masks.reshape(len(masks), side * side)
        counts = np.bitwise_count(flat)
        fewest = np.where(counts > 1, counts, 99)
        ties = fewest == fewest.min(axis=1, keepdims=True)
        cells = np.argmax(random.random(flat.shape) * ties, axis=1)
        boards = np.arange(len(flat))
        bits = (flat[boards, cells, None] >> np.arange(side, dtype=np.uint16)) & 1
        chosen = np.argmax(random.random(bits.shape) * bits, axis=1)
        flat[boards, cells] = 1 << chosen
        masks = flat.reshape(-1, side, side)
    return grids


def dug(grids: Boards, difficulty: str, random: np.random.Generator) -> tuple[Boards, Bool[np.ndarray, " boards"]]:
    """Returns a puzzle of each grid, with that one solution, and which have the difficulty (`SudokuOptions`)."""
    count, cells = len(grids), grids[0].size
    puzzles = grids.reshape(count, cells).copy()
    if difficulty == "easy":
        fewest = np.full(count, round(EASY * cells))
    elif difficulty == "mixed":
        fewest = random.integers(round(FEWEST * cells), round(MOST * cells), count, endpoint=True)
    else:
        fewest = np.zeros(count, int)
    without_guess = difficulty in ("easy", "medium")
    order = random.permuted(np.tile(np.arange(cells), (count, 1)), axis=1)
    for step in range(cells):
        going_on = np.flatnonzero((puzzles > 0).sum(axis=1) > fewest)
        if not len(going_on):
            break
        cleared = puzzles[going_on]
        cleared[np.arange(len(going_on)), order[going_on, step]] = 0
        boards = cleared.reshape(-1, *grids.shape[1:])
        good = by_singles(boards) if without_guess else solved(boards).counts == 1
        puzzles[going_on[good]] = cleared[good]
    boards_dug = puzzles.reshape(grids.shape)
    return boards_dug, ~by_singles(boards_dug) if difficulty == "hard" else np.ones(count, bool)
