"""Encodes control windows as LZF directly.

Each time step repeats the padding and the system code of the step before, and only the states change: no match search
is needed. Such a search over every byte took most of the time of making a set, and finds some 4 % more (notes,
"Windows of control"). The output is LZF as h5py reads it (LibLZF, lzf_d.c): a byte below 32 and so many bytes and one
as they are, or a byte from 0xE0 on, a length and a distance.
"""

from __future__ import annotations

import numpy as np

MOST_LITERAL = 32
LEAST_REPEATED = 9
"""Bytes of the shortest repetition in the longer of its two forms: the only one written here."""

Runs = list[tuple[int, int, int]]
"""Pieces of a step, as (begin, end, distance): its bytes from begin to end repeat those so far before them, and are
written out where the distance is 0."""


def packed_windows(windows: np.ndarray, *, states: int, code: np.ndarray) -> bytes | None:
    """Returns the windows as LZF; None where they do not repeat as expected.

    Args:
        windows: (rows, steps, features) float32: `states` places for states, zeros from the system's own number of
            states on, then a code of the system.
        states: Places for states.
        code: Numbers whose product with the code is the system's number of states.
    """
    rows, _, features = windows.shape
    used = np.rint(windows[:, 0, states:] @ code).astype(int)
    parts: list[bytes] = [b""] * rows
    for size in np.unique(used).tolist():
        mine = np.flatnonzero(used == size)
        group = windows[mine]
        rest = group[:, :, size:]
        if not 0 < size <= states or rest[:, 0, : states - size].any() or (rest[:, 1:] != rest[:, :1]).any():
            return None
        raw = group.view(np.uint8)
        begin, filled, end = 4 * size, 4 * states, 4 * features
        if end - begin < LEAST_REPEATED:
            return None
        first: Runs = _literals(0, end)
        if filled - begin > LEAST_REPEATED:  # zeros repeat the byte before
            first = [*_literals(0, begin + 1), (begin + 1, filled, 1), *_literals(filled, end)]
        later: Runs = [*_literals(0, begin), (begin, end, end)]  # the rest repeats the step before
        steps = [_encoded(raw[:, :1], first), _encoded(raw[:, 1:], later)]
        encoded = np.concatenate([step.reshape(len(mine), -1) for step in steps], axis=1)
        for row, window in zip(mine.tolist(), encoded, strict=True):
            parts[row] = window.tobytes()
    return b"".join(parts)


def _literals(begin: int, end: int) -> Runs:
    return [(at, min(at + MOST_LITERAL, end), 0) for at in range(begin, end, MOST_LITERAL)]


def _encoded(raw: np.ndarray, runs: Runs) -> np.ndarray:
    """Returns (rows, steps, bytes): every step written as these runs."""
    width = sum(3 if distance else 1 + end - begin for begin, end, distance in runs)
    encoded, at = np.empty((*raw.shape[:2], width), np.uint8), 0
    for begin, end, distance in runs:
        if distance:
            back = distance - 1
            encoded[..., at : at + 3] = 0xE0 | back >> 8, end - begin - LEAST_REPEATED, back & 0xFF
            at += 3
        else:
            encoded[..., at] = end - begin - 1
            encoded[..., at + 1 : at + 1 + end - begin] = raw[..., begin:end]
            at += 1 + end - begin
    return encoded
