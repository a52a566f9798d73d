"""Sorting, repeats and the core, by hand and against the plainest way to say them."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.recipes.recommend.formats import Row
from plimsoll.recipes.recommend.log import collect, core, numbered, sorted_by_time, without_repeats


def log_of(*rows, **options):
    """`rows`: user, item, and time or nothing."""
    given = [Row(number, *row[:2], *(row[2:] or (0.0,)), 5.0) for number, row in enumerate(rows)]
    return collect(given, min_rating=None, **options)[0]


def told(log):
    return list(zip(log.users.tolist(), [log.originals[item] for item in log.items], log.times.tolist(), strict=True))


def test_users_come_together_in_the_order_of_time_and_ties_keep_the_order_of_the_file():
    log = log_of(("x", "c", 3.0), ("y", "a", 9.0), ("x", "b", 1.0), ("x", "a", 3.0), ("y", "b", 1.0), ("x", "d", 3.0))
    assert told(sorted_by_time(log)) == [(0, "b", 1), (0, "c", 3), (0, "a", 3), (0, "d", 3), (1, "b", 1), (1, "a", 9)]


def test_the_first_of_repeats_counts():
    log = log_of(("x", "a", 1.0), ("x", "b", 2.0), ("x", "a", 3.0), ("x", "b", 2.0), ("y", "a", 0.0))
    found, again = without_repeats(sorted_by_time(log))
    assert told(found) == [(0, "a", 1), (0, "b", 2), (1, "a", 0)]
    assert again == 2


def test_those_rated_lower_are_counted_and_left_out():
    rows = [Row(1, "x", "a", 0, 2.5), Row(2, "x", "b", 0, 3.0), Row(3, "y", "c", 0, 1.0)]
    found, counts = collect(rows, min_rating=3)
    assert told(found) == [(0, "b", 0)]
    assert counts == {"interactions_read": 3, "users_read": 1, "items_read": 1, "rated_lower": 2}


PAIRS = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=40)


@given(pairs=PAIRS, least=st.integers(0, 4))
def test_the_core_is_the_largest_part_in_which_everybody_has_enough(pairs, least):
    log = log_of(*((str(user), str(item)) for user, item in sorted(pairs)))
    left = set(pairs)
    while True:
        users, items = Counter(user for user, _ in left), Counter(item for _, item in left)
        poor = {(user, item) for user, item in left if users[user] < least or items[item] < least}
        if not poor:
            break
        left.remove(min(poor))  # one after the other, in any order, leads to the same
    names = list(dict.fromkeys(str(user) for user, _ in sorted(pairs)))
    assert {(int(names[user]), int(item)) for user, item, _ in told(core(log, least))} == left


def test_ids_begin_with_1_in_the_order_of_numbers_or_of_words():
    sequences, offsets, originals = numbered(log_of(("x", "10"), ("x", "9"), ("y", "101")))
    assert originals == ["9", "10", "101"]
    assert sequences.tolist() == [2, 1, 3]
    assert offsets.tolist() == [0, 2, 3]
    fewer = numbered(log_of(("x", "a"), ("x", "b"), ("y", "b")).kept(np.array([False, True, True])))
    assert (fewer[0].tolist(), fewer[2]) == ([1, 1], ["b"])  # no gaps where items were left out
    assert numbered(log_of(("x", "10"), ("x", "9"), ("x", "b")))[2] == ["10", "9", "b"]
    assert numbered(log_of(("x", "01"), ("x", "1")))[2] == ["01", "1"]
