"""Windows packed as lzf without a search for what repeats: in every step of a window the same is known to.

A step is the states, zeros up to the widest system, and a code; only the states change. So each step after the first is
its states and "the rest as one step before", and a search over every byte, most of the time of making a set, finds
hardly more: some 4 % (docs/log.md, "Windows of control"). What comes out is lzf as h5py reads it (LibLZF, lzf_d.c): a
byte below 32 and so many bytes and one as they are, or 0xE0 and more, a length and a distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_LITERAL = 32
LEAST_REPEATED = 9
"""Bytes, for the longer of the two forms of a repetition: the only one written here."""


class Literal(NamedTuple):
    """Bytes `begin` to `end` of a step, as they are."""

    begin: int
    end: int


class Repeated(NamedTuple):
    """`size` bytes like those `distance` before."""

    size: int
    distance: int


def packed_windows(windows: np.ndarray, *, states: int, code: np.ndarray) -> bytes | None:
    """(rows, steps, features) with `states` places for states, then a code whose bits times `code` count those used.

    None where they are not built so, and are to be packed as anything else.
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
        whole = [Literal(0, end)]
        if filled - begin > LEAST_REPEATED:
            whole = [Literal(0, begin + 1), Repeated(filled - begin - 1, 1), Literal(filled, end)]
        first = _encoded(raw[:, :1], whole)
        later = _encoded(raw[:, 1:], [Literal(0, begin), Repeated(end - begin, end)])
        encoded = np.concatenate([first.reshape(len(mine), -1), later.reshape(len(mine), -1)], axis=1)
        for row, one in zip(mine.tolist(), encoded, strict=True):
            parts[row] = one.tobytes()
    return b"".join(parts)


def _encoded(raw: np.ndarray, pieces: Sequence[Literal | Repeated]) -> np.ndarray:
    """(rows, steps, bytes): every step in these pieces."""
    runs: list[Literal | Repeated] = []
    for piece in pieces:
        if isinstance(piece, Literal):
            at = range(piece.begin, piece.end, MOST_LITERAL)
            runs += [Literal(begin, min(begin + MOST_LITERAL, piece.end)) for begin in at]
        else:
            runs.append(piece)
    width = sum(3 if isinstance(run, Repeated) else 1 + run.end - run.begin for run in runs)
    found, at = np.empty((*raw.shape[:2], width), np.uint8), 0
    for run in runs:
        if isinstance(run, Repeated):
            back = run.distance - 1
            found[..., at : at + 3] = 0xE0 | back >> 8, run.size - LEAST_REPEATED, back & 0xFF
            at += 3
        else:
            size = run.end - run.begin
            found[..., at] = size - 1
            found[..., at + 1 : at + 1 + size] = raw[..., run.begin : run.end]
            at += 1 + size
    return found
