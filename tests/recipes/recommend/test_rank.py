"""What a run of recommend answers, by a scorer that is known: no model, no training, ranks by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from interaction_files import write_random, write_small
from making import made
from plimsoll.errors import RunError
from plimsoll.recipes.recipe import Opened
from plimsoll.recipes.recommend import baselines
from plimsoll.recipes.recommend import rank as ranked
from plimsoll.recipes.recommend.ranking import mean_metrics
from plimsoll.recipes.recommend.rows import padded

ITEMS = 9
SEQUENCES = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6], [2, 4, 6, 8, 1], [3, 5, 7, 9]]


def known(ids):
    """Log-probabilities: the likeliest item is the newest of the history plus one, then plus two, and so on around."""
    newest = np.array([row[row > 0][-1] for row in ids])
    steps = (np.arange(ITEMS + 1)[None] - newest[:, None] - 1) % ITEMS
    scores = np.log(0.5 ** (steps + 1.0))
    scores[:, 0] = 0.0  # padding, higher than all: no candidate
    return scores


def model_alone(log_p, counts, histories, *, keep_seen):
    """Stands for the mixture with counts, which test_mixture.py tests."""
    scores = log_p.copy()
    scores[:, 0] = -np.inf
    for row, items in zip(scores, histories, strict=True):
        row[[] if keep_seen else items] = -np.inf
    return scores


@pytest.fixture
def asked():
    """How many users each scorer was made for, and whether of the average."""
    return []


class Ranked(SimpleNamespace):
    """A `types.TrainedRun` without parameters."""

    @property
    def data(self):
        self.recipe.open(None).require_same(self.prepared, training=False)


@pytest.fixture
def run(tmp_path, monkeypatch, asked):
    folder = write_small(tmp_path / "set", SEQUENCES, items=ITEMS)

    def scorer(trained, *, users, average=True):
        asked.append((users, average))

        def score(histories):
            assert len(histories) <= users
            ids = padded(histories, length=trained.recipe.options["seq_len"])
            return known(ids) if average else -known(ids)

        return score

    monkeypatch.setattr(ranked, "scorer", scorer)
    monkeypatch.setattr(ranked, "mixture", model_alone)
    recipe = made("recommend", data=str(folder), seq_len=4)
    return Ranked(run="runs/x", step=1_234, prepared="as it was", recipe=recipe)


@pytest.fixture(autouse=True)
def _same_data(monkeypatch):
    monkeypatch.setattr(Opened, "require_same", lambda self, prepared, *, training: None)


def test_the_data_is_compared_with_that_of_the_run_before_anything_is_read(run, monkeypatch):
    class OtherData(Exception):
        pass

    def changed(self, prepared, *, training):
        assert prepared == "as it was"
        raise OtherData

    monkeypatch.setattr(Opened, "require_same", changed)
    for asked_for in (
        lambda: ranked.rank(run, {"history": [5, 6], "top": 9, "keep_seen": True}),
        lambda: ranked.evaluate(run, {}),
        lambda: ranked.next_of_users(run, users=1, top=1),
    ):
        with pytest.raises(OtherData):
            asked_for()


def test_of_a_history_the_newest_are_read_and_all_of_it_is_left_out(run, asked):
    found = ranked.rank(run, {"history": [3, 9, 8, 7, 1, 2], "top": 4, "keep_seen": False})
    assert asked == [(1, True)]
    assert (found["run"], found["step"], found["read"]) == ("runs/x", 1_234, 4)
    assert [one["id"] for one in found["history"]] == [3, 9, 8, 7, 1, 2]
    assert [one["id"] for one in found["items"]] == [4, 5, 6]  # 3, 7, 8, 9, 1 and 2 were taken
    assert [one["probability"] for one in found["items"]] == pytest.approx([0.5**2, 0.5**3, 0.5**4])
    assert [one["score"] for one in found["items"]] == pytest.approx(np.log([0.5**2, 0.5**3, 0.5**4]))
    seen = ranked.rank(run, {"history": [5, 6], "top": 9, "keep_seen": True})
    assert seen["read"] == 2
    assert [one["id"] for one in seen["items"]] == [(6 + step) % ITEMS + 1 for step in range(9)]


def test_the_next_of_a_user_are_those_not_taken_before_and_places_count_from_one(run, asked):
    """Of 2, 4, 6, 8, whose next is 1: the likeliest are 9 and 1. Of 9, 8, 7, whose next is 6: 1 to 6 in order."""
    first, second, third, _ = ranked.next_of_users(run, users=5, top=3)
    assert asked == [(4, True)]
    assert [one["id"] for one in first["history"]] == [4, 5, 6, 7]  # the last four
    assert [one["id"] for one in second["history"]] == [9, 8, 7]
    assert [user["taken"]["id"] for user in (first, second, third)] == [8, 6, 1]
    assert [user["place"] for user in (first, second, third)] == [1, 6, 2]
    assert [[one["id"] for one in user["items"]] for user in (first, second, third)] == [
        [8, 9], [1, 2, 3], [9, 1, 3]
    ]  # fmt: skip
    assert [one["probability"] for one in second["items"]] == pytest.approx([0.5**3, 0.5**4, 0.5**5])


def test_a_report_says_place_probability_and_what_was_taken(run):
    _, second, third = ranked.shown(run)
    assert second["rows"] == [
        ["101", "1", "12.50 %"],
        ["102", "2", "6.25 %"],
        ["103", "3", "3.12 %"],
        ["104", "4", "1.56 %"],
        ["105", "5", "0.78 %"],
    ]
    assert third["rows"][1] == ["101 (taken)", "2", "25.00 %"]
    for part in ("user 2", "109, 108, 107", "106", "at place 6 of", "1,234"):
        assert part in second["title"] + second["caption"]


def metrics(recipe, split, score=known, *, keep_seen=False):
    return mean_metrics(
        recipe.data.interactions,
        split,
        lambda histories: [("all", score(padded(histories, length=recipe.options["seq_len"])))],
        users=100,
        keep_seen=keep_seen,
    )["all"]


def test_an_evaluation_is_of_both_splits_with_baselines_beside_them(run, asked):
    found = ranked.evaluate(run, {})
    assert asked == [(4, True)]
    assert found.keys() == {"keep_seen", "validation", "test", "model", "baselines"}
    assert found["keep_seen"] is False
    assert found["validation"] == metrics(run.recipe, "validation")
    assert found["test"] == metrics(run.recipe, "test")
    assert found["test"]["mrr"] == pytest.approx((1 + 1 / 6 + 1 / 2 + 1 / 2) / 4)
    assert found["baselines"].keys() == {"validation", "test"}
    assert found["model"] == {split: found[split] for split in ("validation", "test")}  # nothing is mixed here
    seen = ranked.evaluate(run, {"keep_seen": True})
    assert seen["test"] == metrics(run.recipe, "test", keep_seen=True)
    assert seen["baselines"] != found["baselines"]


@pytest.mark.parametrize(("scored_bytes", "block"), [(10**6, 30), (335, 3), (1, 1)])
def test_users_are_scored_in_blocks_of_so_many_bytes(run, tmp_path, monkeypatch, asked, scored_bytes, block):
    """Four bytes for each of 20 items and padding; never fewer than one user, nor more than there are."""
    run.recipe = made("recommend", data=str(write_random(tmp_path / "more", users=30, items=20, shortest=4)), seq_len=4)
    monkeypatch.setattr(ranked, "BLOCK_BYTES", scored_bytes)
    monkeypatch.setattr(
        ranked, "mean_metrics", lambda *_, users, keep_seen: asked.append(users) or {"mixed": 1, "model": 2}
    )
    monkeypatch.setattr(baselines, "Baselines", lambda *_: None)
    ranked.evaluate(run, {})
    assert asked == [(block, True), block, block]


@pytest.mark.parametrize("average", [True, False])
def test_a_block_that_is_not_full_is_filled_and_what_fills_it_is_not_answered(monkeypatch, average):
    """The model sees one shape. It answers with the sum of a row of ids, times a weight that is read for it."""
    shapes = []

    def log_probabilities(params, ids):
        shapes.append(ids.shape)
        return params["trainable"] * ids.sum(axis=1, keepdims=True)

    trained = SimpleNamespace(
        run="runs/x", recipe=made("recommend", seq_len=3, num_items=9), data=None,
        task=SimpleNamespace(log_probabilities=log_probabilities),
        params=lambda *, average: {"trainable": np.float32(2 if average else 3)},
    )  # fmt: skip
    score = ranked.scorer(trained, users=4, average=average)
    for rows in ([[9, 1, 2, 3]], [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1]]):
        expected = [[(2 if average else 3) * sum(row[-3:])] for row in rows]
        assert score([np.array(row, np.int32) for row in rows]).tolist() == expected
    assert shapes == [(4, 3)]  # compiled once
    with pytest.raises(ValueError, match="negative dimensions"):
        score([np.ones(3, np.int32)] * 5)


def test_a_run_without_a_held_out_set_is_refused(run, tmp_path):
    run.recipe = made("recommend", data=str(write_small(tmp_path / "short", [[1], [2, 3]], items=ITEMS)), seq_len=4)
    with pytest.raises(RunError, match="runs/x has no held-out set to evaluate on"):
        ranked.evaluate(run, {})
    with pytest.raises(RunError, match="runs/x has no held-out set to rank for"):
        ranked.next_of_users(run, users=3, top=5)
