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
        for other, there in (
            (cell - size, row > 0),
            (cell + size, row < size - 1),
            (cell - 1, col > 0),
            (cell + 1, col < size - 1),
        ):
            if there and is_open[other]:
                neighbours[cell].append(other)
    return neighbours


def carved(size: int, random: np.random.Generator) -> np.ndarray:
    """Returns the open cells, (size, size): corridors of a random depth-first tree, which are long, and a few loops."""
    across = (size - 1) // 2
    open_cells = np.zeros((size, size), bool)
    shift = random.integers(0, 1 + (size % 2 == 0), 2) + 1  # an even square has a row and a column to spare
    seen = np.zeros((across, across), bool)
    trail = [tuple(random.integers(0, across, 2).tolist())]
    seen[trail[0]] = True
    open_cells[_place(trail[0], shift)] = True
    while trail:
        row, col = trail[-1]
        around = ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1))
        ahead = [there for there in around if _inside(there, across) and not seen[there]]
        if not ahead:
            trail.pop()
            continue
        there = ahead[random.integers(len(ahead))]
        seen[there] = True
        open_cells[_place(there, shift)] = True
        open_cells[_between((row, col), there, shift)] = True
        trail.append(there)
    for _ in range(random.integers(0, 1 + int(LOOPS * across**2))):
        here = tuple(random.integers(0, across, 2).tolist())
        there = (here[0] + 1, here[1]) if random.random() < 0.5 else (here[0], here[1] + 1)
        if _inside(there, across):
            open_cells[_between(here, there, shift)] = True
    return open_cells


def _inside(cell: tuple[int, int], across: int) -> bool:
    return 0 <= cell[0] < across and 0 <= cell[1] < across


def _place(cell: tuple[int, int], shift: np.ndarray) -> tuple[int, int]:
    return 2 * cell[0] + int(shift[0]), 2 * cell[1] + int(shift[1])


def _between(cell: tuple[int, int], other: tuple[int, int], shift: np.ndarray) -> tuple[int, int]:
    return cell[0] + other[0] + int(shift[0]), cell[1] + other[1] + int(shift[1])


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


def fault(question: Maze, answer: Maze) -> str | None:
    """Returns what is wrong with a maze or its path, in words; None if it is right."""
    for kind, grid in (("question", question), ("answer", answer)):
        for token, name in ((START, "start S"), (GOAL, "goal G")):
            if (count := int((grid == token).sum())) != 1:
                return f"the {kind} has {count} cells for the {name}, and a maze has one"
    if (question == PATH).any():
        return "the question has cells of the path (o), which are for the answer"
    if not np.array_equal(np.where(answer == PATH, FREE, answer), question):
        return "the answer is another maze than the question, even without its path"
    start, goal = (int(np.flatnonzero(answer == token)[0]) for token in (START, GOAL))
    if walked((answer >= START).ravel(), start).steps[goal] < 0:
        return "the path of the answer does not lead from the start to the goal"
    return None


def steps_to_spare(question: Maze, answer: Maze) -> int:
    """Returns how many cells longer the path is than a shortest one."""
    start, goal = (int(np.flatnonzero(question == token)[0]) for token in (START, GOAL))
    return int((answer == PATH).sum()) + 1 - int(walked((question != WALL).ravel(), start).steps[goal])
