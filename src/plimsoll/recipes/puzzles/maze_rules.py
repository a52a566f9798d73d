"""Mazes on a square of cells: their characters, and a check of answers.

A cell is a wall, free, the start, the goal, or, in an answer, part of the path. Moves go up, down, left and right.
"""

import numpy as np
from jaxtyping import UInt8

CHARACTERS = "# SGo"
"""Characters of wall, free, start, goal and path: tokens 1 to 5."""
WALL, FREE, START, GOAL, PATH = range(1, 6)

Maze = UInt8[np.ndarray, "size size"]


def fault(question: Maze, answer: Maze) -> str | None:
    """Returns a description of the answer's error, or None if its path leads from the start to the goal."""
    if not np.array_equal(np.where(answer == PATH, FREE, answer), question):
        return "the answer is another maze than the question, even without its path"

    # Follow the path from the start.
    cells = np.pad(answer, 1)
    is_path = cells >= START
    waiting = np.argwhere(cells == START).tolist()
    while waiting:
        row, col = waiting.pop()
        if is_path[row, col]:
            is_path[row, col] = False
            waiting += [(row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)]
    if is_path[cells == GOAL].any() or not (cells == GOAL).any():
        return "the path of the answer does not lead from the start to the goal"
    return None
