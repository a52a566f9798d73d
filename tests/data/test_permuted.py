"""The position of a permuted data set is its epoch and its place in it, and both are restored."""

import itertools
import json

import pytest

from plimsoll.data.batch_source import Permuted
from plimsoll.errors import DataError

COUNT = 5


def permuted(count=COUNT, **options):
    return iter(Permuted(range(count), size={"examples": count}, **{"seed": 7, **options}))


@pytest.mark.parametrize("taken", [0, 3, COUNT, COUNT + 2, 3 * COUNT + 4])
def test_from_every_epoch_the_items_after_it_follow(taken):
    uninterrupted = list(itertools.islice(permuted(), taken + 2 * COUNT))
    stopped, resumed = permuted(), permuted()
    list(itertools.islice(stopped, taken))
    state = json.loads(json.dumps(stopped.get_state()))
    assert state == {"epoch": taken // COUNT, "index": taken % COUNT, "examples": COUNT}
    resumed.set_state(state)
    assert list(itertools.islice(resumed, 2 * COUNT)) == uninterrupted[taken:]


def test_a_set_restored_in_its_last_epoch_ends_after_it():
    resumed = permuted(epochs=2)
    resumed.set_state({"epoch": 1, "index": 3, "examples": COUNT})
    assert len(list(resumed)) == 2


def test_a_position_in_a_set_of_another_size_is_refused():
    with pytest.raises(DataError, match="saved for 6 examples, and the data set has 5"):
        permuted().set_state({"epoch": 0, "index": 0, "examples": 6})
