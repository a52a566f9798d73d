"""Mazes on a square of cells: generating them, measuring their paths, and checking a proposed path.

A cell is a wall, free, the start, the goal, or, in an answer, part of the path. Moves go up, down, left and right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

CHARACTERS = "# SGo"
"""Characters of wall, free, start, goal and path: tokens 1 to 5."""
WALL, FREE, START, GOAL, PATH = range(1, 6)
LOOPS = 0.1
"""Largest share of a tree's cells at which a wall between two corridors is opened in addition."""

Maze = UInt8[np.ndarray, "size size"]


class Walked(NamedTuple):
    steps: np.ndarray
    """Steps from the start to each cell, flat; -1 if it cannot be reached."""
    ways: np.ndarray
    """Number of ways to get there in so few steps: 0, 1, or 2 for several."""
    came_from: np.ndarray


def walked(open_cells: np.ndarray, start: int) -> Walked:
    """Returns the distances by breadth-first search over a flat square of booleans."""
    size = round(len(open_cells) ** 0.5)
    neighbours = _neighbours(open_cells, size)
    steps, ways, came_from = [-1] * len(open_cells), [0] * len(open_cells), [-1] * len(open_cells)
    steps[start], ways[start] = 0, 1
    front = [start]
    for distance in range(1, len(open_cells)):
        reached = []
        for cell in front:
            for other in neighbours[cell]:
                if steps[other] < 0:
                    steps[other], came_from[other] = distance, cell
                    reached.append(other)
                if steps[other] == distance:
                    ways[other] = min(2, ways[other] + ways[cell])
        front = reached
        if not front:
            break
    return Walked(np.array(steps), np.array(ways), np.array(came_from))


def _neighbours(open_cells: np.ndarray, size: int) -> list[list[int]]:
    is_open = open_cells.tolist()
    neighbours: list[list[int]] = [[] for _ in is_open]
    for cell in np.flatnonzero(open_cells).tolist():
        row, col = divmod(cell, size)
        for other, inside in (
            (cell - size, row > 0),
            (cell + size, row < size - 1),
            (cell - 1, col > 0),
            (cell + 1, col < size - 1),
        ):
            if inside and is_open[other]:
                neighbours[cell].append(other)
    return neighbours


def carved(size: int, random: np.random.Generator) -> np.ndarray:
    """Returns the open cells, (size, size): corridors of a random depth-first tree, which are long, and a few loops."""
    across = (size - 1) // 2
    open_cells = np.zeros((size, size), bool)
    shift = random.integers(0, 1 + (size % 2 == 0), 2) + 1  # an even square has a row and a column to spare

    def between(node: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        """Returns the cell between neighbouring nodes of the tree; that of a node itself is between it and itself."""
        return node[0] + other[0] + int(shift[0]), node[1] + other[1] + int(shift[1])

    seen = np.zeros((across, across), bool)
    trail = [tuple(random.integers(0, across, 2).tolist())]
    seen[trail[0]] = open_cells[between(trail[0], trail[0])] = True
    while trail:
        row, col = trail[-1]
        around = ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1))
        ahead = [node for node in around if min(node) >= 0 and max(node) < across and not seen[node]]
        if not ahead:
            trail.pop()
            continue
        node = ahead[random.integers(len(ahead))]
        seen[node] = open_cells[between(node, node)] = open_cells[between((row, col), node)] = True
        trail.append(node)
    for _ in range(random.integers(0, 1 + int(LOOPS * across**2))):
        row, col = random.integers(0, across, 2).tolist()
        node = (row + 1, col) if random.random() < 0.5 else (row, col + 1)
        if max(node) < across:
            open_cells[between((row, col), node)] = True
    return open_cells


def new_maze(size: int, *, shortest: int, random: np.random.Generator) -> tuple[Maze, Maze] | None:
    """Returns a maze and its answer, with one shortest path of at least so many steps; None if this draw has none."""
    open_cells = carved(size, random).ravel()
    start = int(random.choice(np.flatnonzero(open_cells)))
    distances = walked(open_cells, start)
    goals = np.flatnonzero((distances.steps >= shortest) & (distances.ways == 1))
    if not len(goals):
        return None
    goal = int(random.choice(goals))
    question = np.where(open_cells, FREE, WALL).astype(np.uint8)
    answer = question.copy()
    cell = goal
    while cell != start:
        answer[cell] = PATH
        cell = int(distances.came_from[cell])
    for grid in (question, answer):
        grid[start], grid[goal] = START, GOAL
    return question.reshape(size, size), answer.reshape(size, size)


def question_fault(question: Maze) -> str | None:
    """Returns what is wrong with a maze, as what follows its name in a sentence; None if it is right."""
    if (question == PATH).any():
        return "has cells of the path (o), which are for the answer"
    return _ends_fault(question)


def fault(question: Maze, answer: Maze) -> str | None:
    """Returns what is wrong with a maze or its path, in words; None if it is right."""
    if wrong := question_fault(question):
        return f"the question {wrong}"
    if wrong := _ends_fault(answer):
        return f"the answer {wrong}"
    if not np.array_equal(np.where(answer == PATH, FREE, answer), question):
        return "the answer is another maze than the question, even without its path"
    start, goal = (int(np.flatnonzero(answer == token)[0]) for token in (START, GOAL))
    if walked((answer >= START).ravel(), start).steps[goal] < 0:
        return "the path of the answer does not lead from the start to the goal"
    return None


def _ends_fault(grid: Maze) -> str | None:
    for token, name in ((START, "start S"), (GOAL, "goal G")):
        if (count := int((grid == token).sum())) != 1:
            return f"has {count} cells for the {name}, and a maze has one"
    return None


def steps_to_spare(question: Maze, answer: Maze) -> int:
    """Returns how many cells longer the path is than a shortest one."""
    start, goal = (int(np.flatnonzero(question == token)[0]) for token in (START, GOAL))
    return int((answer == PATH).sum()) + 1 - int(walked((question != WALL).ravel(), start).steps[goal])
