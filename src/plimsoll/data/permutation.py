"""The order of an epoch, thousands of places at once: the permutation that Grain's `shuffle` computes place by place.

Grain numbers the places by a block cipher (the rounds of Simon, https://eprint.iacr.org/2013/404, with keys by C++'s
`seed_seq`) and encrypts again what lies beyond the last one. Asked for one place it takes 6 to 13 us, as long as an
example of a small model; here a place takes 0.01 to 0.5 us, and positions that were saved before keep their meaning.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 4
"""Rounds of the cipher, as Grain's `shuffle` has them."""
LEAST_BITS = 16
"""Bits of the smallest block: of the largest set whose epoch is computed as a whole."""
AT_ONCE = 2**14
"""Places of a larger set that are computed together: about 1 MiB of memory."""


class Order:
    """Order of `count` items: another permutation in every epoch, or their own without a `seed`."""

    def __init__(self, count: int, seed: int | None) -> None:
        self.count, self._seed = count, None if seed is None else seed % 2**31
        self._at_once = count if count <= 2**LEAST_BITS else AT_ONCE

    def after(self, epoch: int, place: int) -> np.ndarray:
        """Returns the items from a place of an epoch on: as many as are computed together, one at least."""
        stop = min(self.count, (place // self._at_once + 1) * self._at_once)
        if self._seed is None:
            return np.arange(place, stop)
        seed = (self._seed + epoch) % 2**32
        if self._at_once == self.count:
            return _whole(self.count, seed)[place:]
        return _part(range(place, stop), self.count, seed)


def _part(places: range, count: int, seed: int) -> np.ndarray:
    """Returns the items at these places, of more than 65,536: on the average they are encrypted four times at most."""
    keys, bits = _round_keys(seed), (count - 1).bit_length()
    bits += bits % 2
    items = _encrypted(np.arange(places.start, places.stop, dtype=np.uint64), keys, bits)
    while len(outside := np.flatnonzero(items >= count)):
        items[outside] = _encrypted(items[outside], keys, bits)
    return items.astype(np.int64)


def _whole(count: int, seed: int) -> np.ndarray:
    """Returns all items of at most 65,536 in their order.

    One item of a few would be encrypted thousands of times: instead, whatever leads out of the set is led on by what
    the place it leads to has, so that the steps that are taken double.
    """
    items = _encrypted(np.arange(2**LEAST_BITS, dtype=np.uint16), _round_keys(seed), LEAST_BITS).astype(np.int32)
    while (items[:count] >= count).any():
        items = np.where(items < count, items, items[items])
    return items[:count].copy()


def _encrypted(values: np.ndarray, keys: list[int], bits: int) -> np.ndarray:
    """Returns the numbers of `bits` bits that the cipher makes of `values`."""
    word = bits // 2
    mask = 2**word - 1

    def mixed(half: np.ndarray) -> np.ndarray:
        by_1, by_8, by_2 = ((half << by | half >> (word - by)) & mask for by in (1, 8, 2))
        return by_1 & by_8 ^ by_2

    left, right = values >> word, values & mask
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ mixed(right) ^ (first & mask)
        right = right ^ mixed(left) ^ (second & mask)
    return left << word | right


def _round_keys(seed: int) -> list[int]:
    """Returns ROUNDS words of 32 bits, as C++'s `std::seed_seq{seed}` generates them (ISO C++, [rand.util.seedseq])."""
    words, added = [0x8B8B8B8B] * ROUNDS, (1, seed + 1, 2, 3)
    for k in range(2 * ROUNDS):
        here, near, far = k % ROUNDS, (k + 1) % ROUNDS, (k + 2) % ROUNDS
        if k < ROUNDS:
            mixed = words[here] ^ words[near] ^ words[here - 1]
            first = 1664525 * (mixed ^ mixed >> 27)
            second = first + added[k]
            words[near], words[far] = words[near] + first, words[far] + second
        else:
            mixed = (words[here] + words[near] + words[here - 1]) % 2**32
            first = 1566083941 * (mixed ^ mixed >> 27) % 2**32
            second = first - here
            words[near], words[far] = words[near] ^ first, words[far] ^ second % 2**32
        words[here] = second
        words = [word % 2**32 for word in words]
    return words
