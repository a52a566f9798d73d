"""Packs documents into rows (training sequences of one length) by best fit, longest document first.

Groups of thousands of documents are packed together. At worst, one row of each group stays half empty. Rows with a
document longer than half a row may also leave room, if no short document remains.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

GROUP = 4_096, 2**17
"""Smallest and largest number of documents in a group. Packing the largest group takes about 20 MiB."""
ROWS = 256
"""Minimum number of rows in a group, unless they need more documents than `GROUP` allows. One half-empty row of 256
wastes 0.2 %."""
_ROW_BITS = 32


def group_size(mean_length: float, row_length: int) -> int:
    """Returns the number of documents that are packed together.

    Args:
        mean_length: Mean tokens per document, after documents are cut to `row_length`.
        row_length: Tokens per row.
    """
    fewest, most = GROUP
    return int(min(max(fewest, ROWS * row_length / max(mean_length, 1)), most))


def best_fit(lengths: np.ndarray, row_length: int) -> list[list[int]]:
    """Returns the rows. A row is a list of its documents, as indices into `lengths`. No document is split.

    Args:
        lengths: Tokens of each document, from 1 to `row_length`.
        row_length: Tokens per row.
    """
    tokens = lengths.tolist()
    shortest, rows = min(tokens, default=0), list[list[int]]()
    rooms: list[int] = []  # sorted: high bits hold the number of free positions of a row, low bits the row's index
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
