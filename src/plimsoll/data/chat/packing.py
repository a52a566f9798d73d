"""Documents into rows of one length: best fit, the longest first, among thousands of documents at a time.

In the worst case, one row of each group of documents stays half empty, and documents longer than half a row may leave
room that nothing short enough is left for.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

GROUP = 4_096, 2**17
"""Fewest and most documents that are packed together; the most take about 20 MiB while that is done."""
ROWS = 256
"""Rows that a group fills at least, where the most documents allow it: one half empty row of as many is 0.2 %."""
_ROW_BITS = 32


def group_size(mean_length: float, row_length: int) -> int:
    """Returns how many documents are packed together.

    Args:
        mean_length: Tokens of a document on the average, none longer than a row.
        row_length: Tokens of a row.
    """
    fewest, most = GROUP
    return int(min(max(fewest, ROWS * row_length / max(mean_length, 1)), most))


def best_fit(lengths: np.ndarray, row_length: int) -> list[list[int]]:
    """Returns rows of documents, as indices into `lengths`: each document once, whole.

    Args:
        lengths: Tokens of each document, from 1 to `row_length`.
        row_length: Tokens of a row.
    """
    tokens = lengths.tolist()
    shortest, rows = min(tokens, default=0), list[list[int]]()
    rooms: list[int] = []  # sorted: the room that is left in a row, then its number
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = tokens[document]
        place = bisect_left(rooms, length << _ROW_BITS)
        if place == len(rooms):
            room, row = row_length, len(rows)
            rows.append([])
        else:
            room, row = divmod(rooms.pop(place), 1 << _ROW_BITS)
        rows[row].append(document)
        if room - length >= shortest:
            insort(rooms, room - length << _ROW_BITS | row)
    return rows
