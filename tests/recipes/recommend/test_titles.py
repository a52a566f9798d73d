"""Rows by titles: what a frozen model makes of them, the regression, and ranks of items that were never taken."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from interaction_files import write_small
from plimsoll.models.pretrained.model import Pretrained
from plimsoll.models.pretrained.weights import load
from plimsoll.recipes.recommend import rank as ranked
from plimsoll.recipes.recommend.baselines import Baselines
from plimsoll.recipes.recommend.ranking_tables import recommendation_tables
from plimsoll.recipes.recommend.recipe import Recommend
from plimsoll.recipes.recommend.titles import has_titles, rows_by_title, title_vectors
from plimsoll.types import Compute
from pretrained_folders import LLAMA, write

SEQUENCES = [[1, 2, 3, 4, 5], [2, 3, 1, 6], [3, 1, 2, 7], [1, 3, 2, 4]]
"""Items 5 to 7 are taken last alone, and 4 for validation and after it."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("titles")
    data = write_small(folder / "data", SEQUENCES, width=8)
    model = write(folder / "model", LLAMA)
    words = {word: number for number, word in enumerate(["</s>", "?", "Item", *map(str, range(101, 108))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(model / "tokenizer.json"))
    return Recommend(data=str(data), pretrained=str(model), seq_len=4)


def test_a_titles_vector_is_the_mean_of_the_models_outputs(recipe):
    weights = load(recipe.pretrained, LLAMA, bits=32)
    model = {name: weights[name] for name in ("blocks", "norm")}
    vectors = title_vectors(recipe, model, Compute())
    assert not vectors[0].any()
    for item in (1, 7):
        ids = jnp.array([[2, 2 + item]])  # "Item", and its number
        expected = Pretrained(LLAMA, Compute()).hidden(weights, ids)[0].mean(axis=0)
        np.testing.assert_allclose(vectors[item], expected, rtol=1e-4, atol=1e-5)


def test_without_a_frozen_model_its_tokenizer_or_titles_there_is_nothing_to_go_by(recipe, tmp_path):
    assert has_titles(recipe)
    bare = write(tmp_path / "model", LLAMA)
    assert not has_titles(Recommend(data=recipe.data, pretrained=str(bare)))
    assert not has_titles(Recommend(data=recipe.data))
    assert not has_titles(Recommend(data=recipe.data, pretrained=recipe.pretrained, freeze=False))
    untitled = write_small(tmp_path / "data", SEQUENCES, width=8, titles=False)
    assert not has_titles(Recommend(data=str(untitled), pretrained=recipe.pretrained))


def test_rows_that_follow_from_titles_are_found_and_the_others_are_left(recipe):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(4001, 3)).astype(np.float32)
    vectors[[0, 4000]] = 0  # padding, and one without a title
    table = vectors @ random.normal(size=(3, 5)).astype(np.float32) + 2
    trained = np.arange(4001) < 3990
    broken = np.where(trained[:, None], table, 9.0)
    rows = rows_by_title(vectors, broken, trained)
    np.testing.assert_array_equal(rows[trained], table[trained])
    np.testing.assert_array_equal(rows[4000], broken[4000])
    errors = np.abs(rows[3990:4000] - table[3990:4000]).max()
    assert 0 < errors < 0.1 * np.abs(table - 2).max() + 0.1  # a tenth is the penalty's
    assert not np.isnan(rows_by_title(vectors, broken, np.zeros(4001, bool))).any()


def test_items_that_nobody_had_taken_are_ranked_among_themselves(recipe, monkeypatch):
    vectors = np.zeros((8, 2), np.float32)
    monkeypatch.setattr("plimsoll.recipes.recommend.titles.title_vectors", lambda *given: vectors)
    monkeypatch.setattr(Recommend, "data_changed", lambda self, of: None)
    scores = np.tile(np.arange(8.0), (3, 1))  # 7 before 6 before 5, of items that are warm as well

    def scorer(trained, *, users, rows):
        assert rows.shape == (8, 8)
        return lambda histories: scores[: len(histories)]

    monkeypatch.setattr(ranked, "scorer", scorer)
    params = {"trainable": {"items": {"embedding": jnp.zeros((8, 8))}}, "frozen": {"model": {}}}
    trained = SimpleNamespace(
        recipe=recipe, prepared=None, params=lambda: params, plan=SimpleNamespace(compute=lambda platform: Compute())
    )
    found = ranked._cold(trained, Baselines(recipe.interactions, "test"), "test")["test"]
    assert (found["items"], found["run"]["users"], found["run"]["hr@1"]) == (3, 3, pytest.approx(1 / 3))
    assert found["run"]["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found["popularity"]["mrr"] == pytest.approx(1 / 3)  # all have 0, and ties count against
    assert found["chance"]["hr@1"] == pytest.approx(1 / 3)
    earlier = ranked._cold(trained, Baselines(recipe.interactions, "validation"), "validation")["validation"]
    assert (earlier["items"], earlier["run"]["users"]) == (4, 1)  # 4 is there for validation alone

    metrics = dict.fromkeys(("hr@1", "mrr"), 0.5) | {"users": 3}
    answer = {"run": "runs/x", "step": 1, "keep_seen": False, "test": metrics, "model": {"test": metrics}}
    text = recommendation_tables(answer | {"baselines": {"test": {}}, "cold": {"test": found}})
    assert "test, 3 users whose item nobody had taken before, ranked among the 3 such items by rows from th" in text
    assert "chance" in text
