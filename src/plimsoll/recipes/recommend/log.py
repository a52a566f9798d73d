"""Rows of a file as users' sequences: sorted by time, without repeats, and without rare users and items.

A row takes 16 bytes in memory (user, item and time), and about 60 during sorting.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int32, Int64

from plimsoll.recipes.recommend.formats import Row


@dataclass(frozen=True)
class Log:
    """Interactions as arrays. Users and items are numbered from 0, in the order in which the file first names them."""

    users: Int32[np.ndarray, " rows"]
    items: Int32[np.ndarray, " rows"]
    times: Float64[np.ndarray, " rows"]
    originals: list[str]
    """Names of the items in the file, by number."""

    def __len__(self) -> int:
        return len(self.users)

    def kept(self, which: np.ndarray) -> Log:
        """Returns the rows that `which`, a mask or an array of indices, selects."""
        return replace(self, users=self.users[which], items=self.items[which], times=self.times[which])


def collect(rows: Iterable[Row], *, min_rating: float | None) -> tuple[Log, dict[str, int]]:
    """Returns the rows without low ratings, and the numbers of their users and items, all rows, and low ratings."""
    user_numbers: dict[str, int] = {}
    item_numbers: dict[str, int] = {}
    users, items, times = array("i"), array("i"), array("d")
    read = low = 0
    for row in rows:
        read += 1
        if min_rating is not None and row.rating < min_rating:
            low += 1
            continue
        users.append(user_numbers.setdefault(row.user, len(user_numbers)))
        items.append(item_numbers.setdefault(row.item, len(item_numbers)))
        times.append(row.time)
    log = Log(np.asarray(users, np.int32), np.asarray(items, np.int32), np.asarray(times), list(item_numbers))
    counts = {"interactions_read": read, "users_read": len(user_numbers), "items_read": len(item_numbers)}
    return log, counts | {"rated_lower": low}


def sorted_by_time(log: Log) -> Log:
    """Returns the log user by user in the order of time. Ties keep the order of the file."""
    return log.kept(np.lexsort((log.times, log.users)))


def without_repeats(log: Log) -> tuple[Log, int]:
    """Returns a sorted log with only the first of a user's interactions with an item, and the number of repeats."""
    keys = log.users.astype(np.int64) * len(log.originals) + log.items
    _, first = np.unique(keys, return_index=True)
    return log.kept(np.sort(first)), len(log) - len(first)


def core(log: Log, least: int) -> Log:
    """Returns the largest part of the log in which every user and item has `least` interactions or more."""
    while len(log):
        of_users, of_items = np.bincount(log.users), np.bincount(log.items)
        enough = (of_users[log.users] >= least) & (of_items[log.items] >= least)
        if enough.all():
            break
        log = log.kept(enough)
    return log


def numbered(log: Log) -> tuple[Int32[np.ndarray, " interactions"], Int64[np.ndarray, " users_and_1"], list[str]]:
    """Returns item ids of a sorted log that is not empty, the index of each user's first item, and the items' names.

    Ids count from 1, in the order of the names: numeric if all names are numbers, else alphabetic.
    """
    present = np.unique(log.items)
    names = [log.originals[item] for item in present.tolist()]
    are_numbers = all(name.isascii() and name.isdigit() for name in names)
    order = sorted(range(len(names)), key=lambda at: (int(names[at]) if are_numbers else 0, names[at]))
    ids = np.zeros(len(log.originals), np.int32)
    ids[present[order]] = np.arange(1, len(names) + 1)
    firsts = np.flatnonzero(np.diff(log.users, prepend=-1))
    return ids[log.items], np.append(firsts, len(log)).astype(np.int64), [names[at] for at in order]
