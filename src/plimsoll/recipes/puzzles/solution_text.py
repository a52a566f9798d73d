"""Text of `plimsoll solve`: the puzzle, its answer next to it, and the verdict."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

GAP = 6
"""Spaces between the puzzle and its answer."""


def solution_text(solution: Mapping[str, Any]) -> str:
    """Returns puzzle and answer side by side, then the verdict."""
    before, after = (drawn_rows(solution[name], solution["box"]) for name in ("puzzle", "answer"))
    width = max(map(len, before)) + GAP
    lines = [f"  {left:<{width}}{right}".rstrip() for left, right in zip_longest(before, after, fillvalue="")]
    return "\n".join([*lines, "", *(f"  {line}" for line in said_of(solution))])


def drawn_rows(rows: Sequence[str], box: Sequence[int] | None) -> list[str]:
    """Returns the rows as lines, with white space between the boxes of a Sudoku, so that they can be typed in again."""
    if box is None:
        return list(rows) or ["(no grid)"]
    tall, wide = box
    lines = []
    for number, row in enumerate(rows):
        lines += [""] if number and number % tall == 0 else []
        lines.append(" ".join(row[first : first + wide] for first in range(0, len(row), wide)))
    return lines


def said_of(solution: Mapping[str, Any]) -> list[str]:
    """Returns a line each about validity, the data set's answer, and the supervision steps."""
    lines = []
    if "valid" in solution:
        lines.append("valid" if solution["valid"] else f"not valid: {solution['why_not']}")
        if solution.get("longer_than_needed"):
            lines[-1] += f", and {solution['longer_than_needed']} cells longer than a shortest path"
    if solution.get("several_solutions"):
        lines.append("the puzzle has several solutions: any of them is valid")
    if "right" in solution:
        lines.append("the data set's answer" if solution["right"] else "not the data set's answer")
    steps, halted = solution["supervision_steps"], solution["would_halt_at"]
    when = f"it would have halted after step {halted}" if halted else "it would not have halted before"
    sure = f"{100 * solution['probabilities'][-1]:.1f} % sure at the end"
    return [*lines, f"{steps} supervision steps; {when}; {sure} (checkpoint of step {solution['step']:,})"]
