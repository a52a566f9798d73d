"""Every item for training but a user's first is a label once in an epoch, and no held-out item is ever drawn."""

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from interaction_files import write_random, write_small
from plimsoll.errors import DataError
from plimsoll.recipes.recommend.interactions import Interactions
from plimsoll.recipes.recommend.rows import TrainingRows, interaction_loader, padded


def opened(folder, sequences, **options):
    return Interactions(write_small(folder / "set", sequences, **options))


def test_a_user_is_a_row_and_a_long_one_is_several_that_share_an_item(tmp_path):
    found = opened(tmp_path, [[1, 2, 3, 4, 5, 6, 7, 8], [5, 6, 7, 8], [1, 2, 3], [4, 3], [8]])
    rows = TrainingRows(found, length=3)
    assert [row.tolist() for row in rows] == [[1, 2, 3, 4], [4, 5, 6], [5, 6], [4, 3]]
    assert {row.dtype for row in rows} == {np.dtype(np.int32)}
    assert rows.labels == 5 + 1 + 1
    assert rows.held_bytes() >= 12 * len(rows)
    with pytest.raises(DataError, match="no user with two items"):
        TrainingRows(opened(tmp_path / "short", [[1, 2, 3], [4]]), length=4)


@settings(max_examples=examples(60))
@given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=8).filter(
        lambda found: any(n == 2 or n > 3 for n in found)
    ),
    length=st.integers(1, 9),
)
def test_every_transition_of_training_is_there_once(tmp_path_factory, lengths, length):
    random = np.random.default_rng(0)
    sequences = [(random.permutation(14)[:size] + 1).tolist() for size in lengths]
    found = opened(tmp_path_factory.mktemp("rows"), sequences, items=14)
    wanted = Counter()
    for user in range(found.users):
        items = found.history(user, "train").tolist()
        wanted.update(pairwise(items))
    rows = TrainingRows(found, length=length)
    drawn = Counter()
    for row in rows:
        drawn.update(pairwise(row.tolist()))
    assert drawn == wanted
    assert rows.labels == wanted.total()


def test_no_held_out_item_is_trained_on(tmp_path):
    found = Interactions(write_random(tmp_path / "set", users=40, items=50, shortest=4, longest=30))
    drawn = interaction_loader(TrainingRows(found, length=40), batch_size=8, seed=3)
    rows = np.concatenate([batch["items"] for batch in islice(drawn, 5)])
    drawn.close()
    users = {tuple(found.history(user, "train").tolist()): user for user in range(found.users)}
    for row in rows:
        user = users.pop(tuple(row[row > 0].tolist()))
        assert not {found.targets(split)[user] for split in ("validation", "test")} & set(row.tolist())
    assert not users  # an epoch is every user once


def test_of_a_history_the_last_items_are_kept_and_a_short_one_is_padded():
    rows = padded([np.array([1, 2, 3, 4, 5]), np.array([6, 5]), np.array([], np.int32)], length=3)
    assert rows.tolist() == [[3, 4, 5], [6, 5, 0], [0, 0, 0]]
    assert rows.dtype == np.int32
