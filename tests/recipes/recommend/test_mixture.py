"""The mixture of a model with counts: shares by hand, and what it never gives a share to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from interaction_files import write_random
from plimsoll.recipes.recommend.baselines import Baselines
from plimsoll.recipes.recommend.interactions import Interactions
from plimsoll.recipes.recommend.mixture import mixture


class Counted:
    """Stands for the baselines: known scores of each, for any history."""

    def __init__(self, **scores):
        self.given = {name: np.array(values, np.float32) for name, values in scores.items()}

    def scores(self, name, histories):
        return np.tile(self.given.get(name, np.zeros(5, np.float32)), (len(histories), 1))


def probabilities(model, counts, history, *, keep_seen=False):
    with np.errstate(divide="ignore"):
        log_p = np.log(np.array([model], np.float32))
    return np.exp(mixture(log_p, counts, [np.array(history)], keep_seen=keep_seen))[0]


def test_each_part_has_the_same_share_and_counts_are_squared():
    """Of items 2, 3 and 4: the model 0.5, 0.25, 0.25; one count 9:1, one 0:1, and one that knows nothing."""
    counts = Counted(item_knn=[7, 7, 3, 1, 0], item_knn_markov=[0, 2, 0, 0, 5])
    found = probabilities([0.0, 0.2, 0.4, 0.2, 0.2], counts, [1])
    assert found == pytest.approx([0, 0, (0.5 + 0.9) / 3, (0.25 + 0.1) / 3, (0.25 + 1) / 3])


def test_where_nothing_is_known_of_a_history_the_model_is_alone():
    assert probabilities([0.0, 0.2, 0.4, 0.2, 0.2], Counted(), [1]) == pytest.approx([0, 0, 0.5, 0.25, 0.25])


def test_what_was_taken_has_a_share_where_it_is_asked_for():
    found = probabilities([0.0, 0.2, 0.4, 0.2, 0.2], Counted(item_knn=[1, 0, 0, 0, 2]), [1], keep_seen=True)
    assert found == pytest.approx([0, 0.1, 0.2, 0.1, 0.6])


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10**6), keep_seen=st.booleans())
def test_candidates_have_a_probability_of_one_together_and_nothing_else_has_any(tmp_path_factory, seed, keep_seen):
    data = Interactions(write_random(tmp_path_factory.mktemp("sets") / "set", users=12, seed=seed))
    counts, random = Baselines(data, "test"), np.random.default_rng(seed)
    histories = [data.history(user, "test") for user in data.evaluated.tolist()]
    log_p = np.log(random.dirichlet(np.ones(data.items + 1), len(histories)).astype(np.float32))
    before = log_p.copy()
    found = np.exp(mixture(log_p, counts, histories, keep_seen=keep_seen))
    np.testing.assert_array_equal(log_p, before)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert not found[:, 0].any()
    for row, items in zip(found, histories, strict=True):
        candidates = np.ones(data.items + 1, bool)
        candidates[0] = False
        candidates[items] = keep_seen
        assert (row[candidates] > 0).all()
        assert not row[~candidates].any()
