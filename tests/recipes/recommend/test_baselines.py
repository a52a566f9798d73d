"""The four baselines, against counts by hand, and on Amazon Toys against what is known of them."""

import numpy as np
import pytest

from interaction_files import write_random, write_small
from plimsoll.recipes.recommend import baselines
from plimsoll.recipes.recommend.baselines import BASELINES, Baselines
from plimsoll.recipes.recommend.interactions import Interactions
from plimsoll.recipes.recommend.prepare import build
from plimsoll.recipes.recommend.prepare_options import RecommendSet
from plimsoll.recipes.recommend.ranking import mean_metrics

SEQUENCES = [[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3], [1, 2], [4]]


@pytest.fixture
def found(tmp_path):
    return Interactions(write_small(tmp_path / "set", SEQUENCES))


def test_what_is_to_be_found_is_not_counted(found):
    assert Baselines(found, "validation").popularity.tolist() == [0, 3, 4, 0, 1]
    assert Baselines(found, "test").popularity.tolist() == [0, 4, 4, 1, 2]
    assert Baselines(found, None).popularity.tolist() == [0, 4, 4, 3, 3]


def test_cosines_are_those_of_columns(found):
    taken = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
    expected = taken.T @ taken / np.maximum(np.sqrt(np.outer(taken.sum(0), taken.sum(0))), 1)
    np.fill_diagonal(expected, 0)
    cosines = Baselines(found, "validation").cosines.toarray()
    np.testing.assert_allclose(cosines[1:, 1:], expected, rtol=1e-6)
    assert not cosines[0].any()
    assert not cosines[:, 0].any()


def test_followers_are_counted_within_a_user(found):
    followers = Baselines(found, "test").followers.toarray()
    assert {(a, b): followers[a, b] for a, b in np.argwhere(followers).tolist()} == {
        (1, 2): 3, (2, 3): 1, (2, 4): 1, (2, 1): 1
    }  # fmt: skip


def test_scores_are_sums_over_the_history(found):
    made = Baselines(found, "test")
    cosines, followers = made.cosines.toarray(), made.followers.toarray()
    users = [found.history(user, "test") for user in (0, 2)]
    whole = made.scores("item_knn", users)
    np.testing.assert_allclose(whole, [cosines[1] + cosines[2] + cosines[3], cosines[2] + cosines[1]], rtol=1e-6)
    decayed = made.scores("item_knn_decayed", users)
    expected = [cosines[3] + cosines[2] / 2 + cosines[1] / 4, cosines[1] + cosines[2] / 2]
    np.testing.assert_allclose(decayed, expected, rtol=1e-6)
    np.testing.assert_allclose(made.scores("item_knn_markov", users), decayed + followers[[3, 1]], rtol=1e-6)
    np.testing.assert_array_equal(made.scores("popularity", users), np.tile(made.popularity, (2, 1)))
    long = made.scores("item_knn_decayed", [np.array([4, 2, 1, 4, 1, 2, 3])])[0]  # the last five count
    expected = sum(0.5**age * cosines[item] for age, item in enumerate([3, 2, 1, 4, 1]))
    np.testing.assert_allclose(long, expected, rtol=1e-6)


def test_cosines_of_the_items_that_are_asked_for_are_those_of_all(tmp_path):
    data = Interactions(write_random(tmp_path / "set", users=30))
    whole, few = Baselines(data, "test").cosines.toarray(), Baselines(data, "test", asked=np.array([2, 5, 5]))
    np.testing.assert_array_equal(few.cosines.toarray()[[2, 5]], whole[[2, 5]])
    assert np.flatnonzero(few.cosines.toarray().any(axis=1)).tolist() == [2, 5]
    for name in BASELINES:
        histories = [np.array([2, 5]), np.array([5])]
        np.testing.assert_array_equal(few.scores(name, histories), Baselines(data, "test").scores(name, histories))


def metrics(data, *, users, keep_seen=False):
    counts = Baselines(data, "test")

    def score(histories):
        return [(name, counts.scores(name, histories)) for name in BASELINES]

    return mean_metrics(data, "test", score, users=users, keep_seen=keep_seen)


def test_blocks_of_any_size_give_the_same(tmp_path, monkeypatch):
    data = Interactions(write_random(tmp_path / "set", users=30))
    whole = metrics(data, users=30)
    monkeypatch.setattr(baselines, "ROWS_TOGETHER", 3)
    parts = metrics(data, users=7)
    assert all(parts[name] == pytest.approx(whole[name], rel=1e-12) for name in BASELINES)
    kept = metrics(data, users=30, keep_seen=True)
    assert kept["popularity"]["mrr"] < whole["popularity"]["mrr"]


def test_only_the_nearest_neighbours_are_kept(tmp_path, monkeypatch):
    data = Interactions(write_random(tmp_path / "set", users=30))
    whole = Baselines(data, "test").cosines.toarray()
    monkeypatch.setattr(baselines, "NEIGHBOUR_BYTES", 8 * 3 * (data.items + 1))
    few = Baselines(data, "test").cosines.toarray()
    assert (few > 0).sum(axis=1).max() == 3
    for row, all_of_row in zip(few, whole, strict=True):
        assert sorted(row[row > 0]) == sorted(np.sort(all_of_row[all_of_row > 0])[-3:])


def test_what_a_user_took_twice_counts_once_for_a_cosine_and_what_is_taken_once_as_itself(tmp_path):
    """Before the items to validate with: 1, 1, 2 by one user, 2 and 3 by another, 2 by a third."""
    found = Interactions(write_small(tmp_path / "set", [[1, 1, 2, 4, 4], [2, 3, 4, 4], [2, 4, 4]]))
    cosines = Baselines(found, "validation").cosines.toarray()
    expected = np.zeros((5, 5))
    expected[1, 2] = expected[2, 1] = expected[2, 3] = expected[3, 2] = 1 / np.sqrt(3)
    np.testing.assert_allclose(cosines, expected, rtol=1e-6)


@pytest.mark.slow
def test_golden_known_figures_of_amazon_toys(shared, tmp_path):
    made = RecommendSet(
        interactions=str(shared / "data/interactions/amazon_toys.txt"), clustering="frequency", embeddings="none"
    )
    build(made, tmp_path / "toys")
    found = metrics(Interactions(tmp_path / "toys"), users=512)
    known = {"popularity": 0.0090, "item_knn": 0.0771, "item_knn_decayed": 0.0881, "item_knn_markov": 0.0985}
    assert {name: found[name]["hr@10"] for name in known} == pytest.approx(known, abs=5e-5)
    assert found["item_knn_markov"]["ndcg@10"] == pytest.approx(0.0666, abs=5e-5)
    assert found["popularity"]["users"] == 19_412
