"""A shuffle that is filled while it is emptied: Grain's order and positions, in the same memory, without a stop."""

import itertools
import json

import pytest
from grain.experimental import WindowShuffleIterDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.batch_source import Positioned
from plimsoll.data.text.shuffle import BufferShuffle


class Counting(Positioned):
    """Numbers below `end`; `read` is how many were read in all; `bad` raises once it is reached."""

    start = {"at": 0}  # noqa: RUF012

    def __init__(self, end, bad=None):
        super().__init__(size={})
        self.end, self.bad, self.read = end, bad, 0

    def walk(self, at):
        while at["at"] < self.end:
            if at["at"] == self.bad:
                raise OSError("the disk is gone")
            at["at"], self.read = at["at"] + 1, self.read + 1
            yield at["at"] - 1


sizes = {"end": st.integers(0, 60), "size": st.integers(2, 25), "seed": st.sampled_from([0, 1, 2**31 - 1])}


@settings(max_examples=examples(40), deadline=None)
@given(taken=st.integers(0, 60), other=st.booleans(), **sizes)
def test_order_and_positions_are_those_of_grain_whichever_wrote_them(end, size, seed, taken, other):
    ours, theirs = (
        (lambda: BufferShuffle(Counting(end), size=size, seed=seed)),
        (lambda: WindowShuffleIterDataset(Counting(end), window_size=size, seed=seed)),
    )
    whole = list(theirs())
    assert list(ours()) == whole
    stopped, beside = iter(ours()), iter(theirs())
    for one, two in itertools.islice(zip(stopped, beside, strict=True), taken):
        assert one == two
        assert stopped.get_state() == beside.get_state()
    state = json.loads(json.dumps((beside if other else stopped).get_state()))
    resumed = iter(ours())
    resumed.set_state(state)
    assert resumed.get_state() == state
    assert list(resumed) == whole[taken:]


def test_one_item_is_read_for_each_that_leaves_and_no_more_than_the_buffer_is_held():
    numbers = Counting(10_000)
    shuffled = iter(BufferShuffle(numbers, size=100, seed=3))
    next(shuffled)
    before = numbers.read
    assert before == 101
    for taken in range(2, 700):
        next(shuffled)
        assert numbers.read - before == 1
        assert numbers.read - taken <= 100
        before = numbers.read


def test_after_a_restart_what_is_missing_is_read_in_even_shares():
    numbers = Counting(10_000)
    shuffled = iter(BufferShuffle(numbers, size=100, seed=3))
    shuffled.set_state({"parent_window_start_state": {"at": 300}, "window_index": 3, "pos_in_window": 80})
    next(shuffled)
    assert numbers.read == 105
    reads = [numbers.read]
    for _ in range(19):
        next(shuffled)
        reads.append(numbers.read)
    assert {after - before for before, after in itertools.pairwise(reads)} == {5}


def test_an_error_ahead_is_raised_when_its_buffer_is_due_and_reading_goes_on_after_it():
    numbers = Counting(100, bad=35)
    shuffled = iter(BufferShuffle(numbers, size=10, seed=3))
    assert sorted(itertools.islice(shuffled, 30)) == list(range(30))
    with pytest.raises(OSError, match="the disk is gone"):
        next(shuffled)
    numbers.bad = None
    assert sorted(itertools.islice(shuffled, 10)) == list(range(30, 40))
