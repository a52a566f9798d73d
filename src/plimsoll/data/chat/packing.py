"""Packs documents into rows of one length by best fit, longest first, thousands of documents at a time.

In the worst case, one row of each group of documents stays half empty, and documents longer than half a row leave room
because no short document remains.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

GROUP = 4_096, 2**17
"""Smallest and largest number of documents that are packed together. Packing the largest group takes about 20 MiB."""
ROWS = 256
"""Minimum rows of a group, within the largest number of documents. One half-empty row of 256 is 0.2 %."""
_ROW_BITS = 32


def group_size(mean_length: float, row_length: int) -> int:
    """Returns the number of documents that are packed together.

    Args:
        mean_length: Mean tokens per document, after cutting to the length of a row.
        row_length: Tokens of a row.
    """
    fewest, most = GROUP
    return int(min(max(fewest, ROWS * row_length / max(mean_length, 1)), most))


def best_fit(lengths: np.ndarray, row_length: int) -> list[list[int]]:
    """Returns rows, each a list of documents as indices into `lengths`. Each document is in one row, uncut.

    Args:
        lengths: Tokens of each document, from 1 to `row_length`.
        row_length: Tokens of a row.
    """
    tokens = lengths.tolist()
    shortest, rows = min(tokens, default=0), list[list[int]]()
    rooms: list[int] = []  # sorted: free tokens of a row in the high bits, the row's number in the low ones
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
