"""Ranks and their means, by hand and against the plainest way to say them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.recipes.recommend.ranking import CUTS, best, metrics_of, ranks


def rank(scores, target, **options):
    (found,) = ranks(np.array([scores], np.float64), np.array([target]), **options)
    return int(found)


def test_ties_and_what_is_no_number_count_against_the_target():
    assert rank([0, 5, 5, 5, 1], 2) == 2
    assert rank([0, np.nan, 5, 1], 2) == 1
    assert rank([0, 4, np.nan, 1], 2) == 2
    assert rank([0, -np.inf, -np.inf, 2], 1) == 2


def test_padding_is_no_candidate_however_it_scores():
    assert rank([99, 9, 5], 1) == 0
    assert rank([9, 9, 5], 1) == 0
    assert best(np.array([99.0, 1, 3, 2]), 9) == [2, 3, 1]


def test_the_best_are_in_order_with_the_lower_id_first_and_without_those_that_are_left_out():
    assert best(np.array([0, 2.0, 7, 2, -np.inf]), 3) == [2, 1, 3]
    assert best(np.array([0, 2.0, 7, 2, -np.inf]), 4) == [2, 1, 3]
    assert best(np.array([0, 2.0, 7]), 1) == [2]


@pytest.mark.parametrize(("rank", "ndcg"), [(0, 1.0), (2, 0.5), (9, 1 / np.log2(11)), (10, 0.0)])
def test_one_user_by_hand(rank, ndcg):
    found = metrics_of(np.array([rank]))
    assert found["ndcg@10"] == pytest.approx(ndcg, abs=1e-15)
    assert found["mrr"] == pytest.approx(1 / (rank + 1))
    assert [found[f"hr@{cut}"] for cut in CUTS] == [float(rank < cut) for cut in CUTS]
    three = metrics_of(np.array([rank, 2, 20]))
    assert three["ndcg@10"] == pytest.approx((ndcg + 0.5) / 3)
    assert three["users"] == 3


SCORES = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=7, max_size=7)


@given(rows=st.lists(st.tuples(SCORES, st.integers(1, 6), st.sets(st.integers(1, 6))), min_size=1, max_size=5))
def test_a_rank_is_the_number_of_other_candidates_that_score_as_high(rows):
    expected = [
        sum(1 for item in range(1, 7) if item != target and item not in seen and not scores[item] < scores[target])
        for scores, target, seen in rows
    ]
    scores = np.array([scores for scores, _, _ in rows])
    found = ranks(
        scores, np.array([target for _, target, _ in rows]), seen=[np.array(list(s), int) for _, _, s in rows]
    )
    assert found.tolist() == expected
