"""Generates Sudoku grids of side 4, 6 and 9 at random, and clears cells for puzzles with one solution.

Candidates (possible digits) are (side, side) bit masks, bit d - 1 for digit d. A cell with one candidate is settled. A
pass removes each settled digit from the other cells of its units (row, column, box), and settles a digit that has one
place left in a unit. If that finds no solution, the candidates of a cell are split between two boards. NumPy handles a
few thousand boards at once.
"""

from itertools import permutations

import numpy as np
from jaxtyping import Bool, UInt8, UInt16

Boards = UInt8[np.ndarray, "boards side side"]
"""Boards of digits. 0 is a blank cell."""
Masks = UInt16[np.ndarray, "boards side side"]

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
"""Rows and columns of a box, by side of the board."""
TOGETHER = 2048
"""Number of boards that are searched at a time; they take a few MiB."""
EASY, FEWEST, MOST = 0.5, 0.25, 0.6
"""Target share of given cells: in easy puzzles, and the least and the largest in mixed puzzles."""


def in_boxes(boards: np.ndarray) -> np.ndarray:
    """Returns the boards, (..., side, side), with the cells of a box in each row. The function is its own inverse."""
    side = boards.shape[-1]
    rows, cols = BOXES[side]
    parts = boards.reshape(*boards.shape[:-2], side // rows, rows, side // cols, cols)
    return parts.swapaxes(-3, -2).reshape(boards.shape)


_UNITS = (lambda boards: boards, lambda boards: boards.swapaxes(-2, -1), in_boxes)
"""Functions to view boards as rows, as columns and as boxes. Each is its own inverse."""


def valid(boards: Boards) -> Bool[np.ndarray, " boards"]:
    """Returns True for each board that is complete, with every digit once in every row, column and box."""
    every_digit = np.arange(1, boards.shape[-1] + 1)
    is_valid = np.ones(len(boards), bool)
    for seen_as in _UNITS:
        is_valid &= (np.sort(seen_as(boards), axis=2) == every_digit).all((1, 2))
    return is_valid


def candidates(boards: Boards) -> Masks:
    """Returns the candidate masks of all cells: a cell's digit, or all digits if it is blank."""
    side = boards.shape[-1]
    masks = [2**side - 1, *(2**bit for bit in range(side))]
    return np.array(masks, np.uint16)[boards]


def _is_settled(masks: Masks) -> Bool[np.ndarray, "boards side side"]:
    return (masks & (masks - np.uint16(1))) == 0


def propagated(masks: Masks) -> tuple[Masks, Bool[np.ndarray, " boards"]]:
    """Repeats `_pass_over` until nothing changes. Returns the candidates, and True for boards without contradiction."""
    masks = masks.copy()
    is_sound = np.ones(len(masks), bool)
    active = np.arange(len(masks))
    while len(active):
        before = masks[active]
        masks[active], is_sound[active] = _pass_over(before)
        changed = (masks[active] != before).any((1, 2))
        active = active[is_sound[active] & changed]
    return masks, is_sound


def _pass_over(masks: Masks) -> tuple[Masks, Bool[np.ndarray, " boards"]]:
    """Returns the candidates after a pass over rows, columns and boxes, and True for boards without a contradiction."""
    every_digit = np.uint16(2 ** masks.shape[-1] - 1)
    is_sound = np.ones(len(masks), bool)
    for seen_as in _UNITS:
        # Remove a settled digit from the other cells of its row, column or box. A second cell with it is a
        # contradiction.
        unit = seen_as(masks)
        settled = np.where(_is_settled(unit), unit, 0)
        taken = np.bitwise_or.reduce(settled, axis=2)
        is_sound &= (settled.sum(axis=2, dtype=np.uint16) == taken).all(1)
        unit = np.where(settled > 0, unit, unit & ~taken[..., None])

        # Settle a digit with one place left. A digit without a place is a contradiction.
        once = np.zeros_like(taken)
        twice = np.zeros_like(taken)
        for cell in range(unit.shape[-1]):
            twice |= once & unit[..., cell]
            once |= unit[..., cell]
        is_sound &= (once == every_digit).all(1)
        alone = unit & (once & ~twice)[..., None]
        masks = seen_as(np.where(alone > 0, alone, unit))
    return masks, is_sound & (masks > 0).all((1, 2))


def solved_by_singles(boards: Boards) -> Bool[np.ndarray, " boards"]:
    """Returns True for each board that `propagated` solves without a guess."""
    masks, is_sound = propagated(candidates(boards))
    return is_sound & _is_settled(masks).all((1, 2))


def have_one_solution(boards: Boards) -> Bool[np.ndarray, " boards"]:
    """Returns True for each board with exactly one solution."""
    counts = np.zeros(len(boards), np.int64)
    waiting = [(candidates(boards), np.arange(len(boards)))]
    while waiting:
        # The search is depth first: its memory grows with its depth, and not with its breadth.
        masks, owners = waiting.pop()
        if len(owners) > TOGETHER:
            waiting.append((masks[:-TOGETHER], owners[:-TOGETHER]))
            masks = masks[-TOGETHER:]
            owners = owners[-TOGETHER:]

        # Propagate, unless the puzzle has two solutions already.
        wanted = counts[owners] < 2
        masks, is_sound = propagated(masks[wanted])
        masks = masks[is_sound]
        owners = owners[wanted][is_sound]

        # Count the solved boards, and split the others.
        is_solved = _is_settled(masks).all((1, 2))
        np.add.at(counts, owners[is_solved], 1)
        if not is_solved.all():
            halves = _split(masks[~is_solved])
            waiting.append((halves, np.tile(owners[~is_solved], 2)))
    return counts == 1


def _split(masks: Masks) -> Masks:
    """Splits each board in two at a cell with the fewest candidates.

    In the first half of the result the cell loses its lowest candidate; in the second half it keeps only that.
    """
    flat = masks.reshape(len(masks), -1)
    counts = np.bitwise_count(flat)
    cells = np.argmin(np.where(counts > 1, counts, 99), axis=1)
    boards = np.arange(len(flat))
    lowest_bit = flat[boards, cells] & -flat[boards, cells]
    others = flat.copy()
    others[boards, cells] ^= lowest_bit
    lowest = flat.copy()
    lowest[boards, cells] = lowest_bit
    return np.concatenate([others, lowest]).reshape(-1, *masks.shape[1:])


def all_grids_of_4x4() -> Boards:
    """Returns all 288 grids of side 4, in a fixed order. (Side 6 has 28,200,960 grids, side 9 6.67e21.)"""
    rows = np.array([*permutations(range(1, 5))], np.uint8)
    choices = np.indices((len(rows),) * 4).reshape(4, -1).T
    grids = rows[choices]
    return grids[valid(grids)]


def random_grids(count: int, side: int, random: np.random.Generator) -> Boards:
    """Returns complete grids, filled cell by cell at random; not all grids are equally likely."""
    grids = np.zeros((count, side, side), np.uint8)
    unfinished = np.arange(count)
    masks = candidates(grids)
    while len(unfinished):
        masks, is_sound = propagated(masks)
        masks[~is_sound] = 2**side - 1  # start the grid again

        # Complete grids are stored and removed.
        is_complete = _is_settled(masks).all((1, 2))
        bits = masks[is_complete]
        grids[unfinished[is_complete]] = np.bitwise_count(bits - np.uint16(1)) + 1
        unfinished = unfinished[~is_complete]
        masks = masks[~is_complete]

        # Draw one of the cells with the fewest candidates, and one of its candidates.
        flat = masks.reshape(len(masks), side * side)
        counts = np.bitwise_count(flat)
        fewest = np.where(counts > 1, counts, 99)
        ties = fewest == fewest.min(axis=1, keepdims=True)
        cells = np.argmax(random.random(flat.shape) * ties, axis=1)
        boards = np.arange(len(flat))
        is_candidate = (flat[boards, cells, None] >> np.arange(side, dtype=np.uint16)) & 1
        digits = np.argmax(random.random(is_candidate.shape) * is_candidate, axis=1)
        flat[boards, cells] = 1 << digits
        masks = flat.reshape(-1, side, side)
    return grids


def cleared(grids: Boards, difficulty: str, random: np.random.Generator) -> Boards:
    """Returns a puzzle for each grid, of this difficulty (`SudokuOptions`), whose only solution is the grid."""
    count = len(grids)
    cells = grids[0].size
    if difficulty == "easy":
        aims = np.full(count, round(EASY * cells))
    else:
        aims = random.integers(round(FEWEST * cells), round(MOST * cells), count, endpoint=True)

    # Clear cells in a random order. Keep a cell whose loss would make the puzzle harder or ambiguous.
    puzzles = grids.reshape(count, cells).copy()
    order = random.permuted(np.tile(np.arange(cells), (count, 1)), axis=1)
    for step in range(cells):
        unfinished = np.flatnonzero((puzzles > 0).sum(axis=1) > aims)
        trials = puzzles[unfinished]
        trials[np.arange(len(unfinished)), order[unfinished, step]] = 0
        boards = trials.reshape(-1, *grids.shape[1:])
        is_right = solved_by_singles(boards) if difficulty == "easy" else have_one_solution(boards)
        puzzles[unfinished[is_right]] = trials[is_right]
    return puzzles.reshape(grids.shape)
