"""The recipe of recommendation: what it takes from its data, what it begins with, and what it refuses."""

import json

import jax
import numpy as np
import pytest

from interaction_files import write_random, write_small
from plimsoll.errors import DataError, PlimsollError, RecipeError
from plimsoll.recipes.recommend.item_shape import EARLIER
from plimsoll.recipes.recommend.items import ROW_LENGTH
from plimsoll.recipes.registry import preset
from plimsoll.types import COUNTED, Compute
from pretrained_folders import LLAMA, write

SEQUENCES = [[1, 2, 3, 4, 5, 6, 7], [3, 4, 5], [7, 1, 2, 4], [5, 6], [6, 5, 4, 3, 2, 1]]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("recommend") / "data", SEQUENCES, width=8, clusters=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write(tmp_path_factory.mktemp("pretrained") / "model", LLAMA))


@pytest.fixture
def recipe(data):
    return preset("recommend").replace(data=str(data), seq_len=4, batch_size=2, width=16)


def zeros(recipe):
    """In the place of the parameters that it draws."""
    shapes = jax.eval_shape(recipe.task(Compute()).init, jax.random.key(0))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def side(recipe):
    return recipe.model.side_shape(recipe.spec)


def test_sizes_are_those_of_the_data(recipe):
    shape = recipe.model.shape(recipe.spec)
    assert (shape.items, shape.clusters, shape.largest_cluster, shape.item_width) == (7, 3, 3, 8)
    assert (shape.width, shape.inner) == (16, 32)
    assert recipe.spec.batch(2) == {"items": ((2, 5), "int32")}
    with pytest.raises(RecipeError, match=r"--num-items 8 is for planning without data, .* has 7"):
        _ = recipe.replace(num_items=8).spec


def test_without_data_it_is_planned_by_what_is_said():
    recipe = preset("recommend").replace(num_items=900)
    shape = recipe.model.shape(recipe.spec)
    assert (shape.items, shape.clusters, shape.largest_cluster) == (900, 30, 60)
    assert preset("recommend-gemma-2b").model.published.width == 2048


def test_an_evaluation_asks_for_the_validation_item_after_what_was_trained_on(recipe, data):
    batches = list(recipe.open(data).validation(examples=3))
    rows = np.concatenate([batch["items"] for batch in batches])
    counted = np.concatenate([batch[COUNTED] for batch in batches])
    assert [batch["items"].shape for batch in batches] == [(3, 5)] * 2
    expected = [[2, 3, 4, 5, 6], [3, 4, 0, 0, 0], [7, 1, 2, 0, 0], [6, 5, 4, 3, 2][-5:]]
    np.testing.assert_array_equal(rows[counted], expected)
    earlier = np.concatenate([batch[EARLIER] for batch in batches])[counted]
    assert earlier.tolist() == [[1], [0], [0], [0]]  # the first user had taken 1 before the four that are read
    shapes = {name: shape for name, (shape, _) in recipe.spec.validation_batch(3).items()}
    assert shapes == {name: values.shape for name, values in batches[0].items()}
    for users in (1, 2, 3):  # of four: the last batch has fewer users than it has room for, and others follow them
        some = list(recipe.replace(validation_users=users).open(data).validation(examples=2))
        found = np.concatenate([batch["items"][batch[COUNTED]] for batch in some])
        np.testing.assert_array_equal(found, expected[:users])
    assert list(recipe.replace(validation_users=0).open(data).validation(examples=3)) == []
    assert EARLIER not in recipe.replace(validation_users=0).spec.validation_batch(3)
    whole = recipe.replace(seq_len=5)
    assert all(EARLIER not in batch for batch in whole.open(data).validation(examples=3))
    assert EARLIER not in whole.spec.validation_batch(3)


def test_no_item_that_is_held_out_is_trained_on(recipe, data):
    assert sorted(tuple(row.tolist()) for row in recipe.data.rows) == [(1, 2, 3, 4, 5), (5, 6), (6, 5, 4, 3), (7, 1)]


def test_training_begins_with_the_datas_embeddings_and_clusters(recipe):
    found = recipe.open(None).load(zeros(recipe))
    rows = recipe.data.interactions.embeddings()
    table = np.asarray(found["trainable"]["items"]["embedding"])
    np.testing.assert_allclose(table[3], rows[3] / np.linalg.norm(rows[3]) * ROW_LENGTH, rtol=1e-5)
    np.testing.assert_array_equal(found["frozen"]["clusters"]["cluster"][1:], recipe.data.interactions.cluster_of[1:])
    assert recipe.hints.begins_with == "--data"


def test_items_of_another_width_begin_at_random_and_that_is_said(recipe, tmp_path):
    other, said = recipe.replace(item_embedding_dim=12), []
    other.open(tmp_path).prepare(said.append)
    assert "items begin at random" in said[0]
    params = zeros(other)
    np.testing.assert_array_equal(
        other.open(None).load(params)["trainable"]["items"]["embedding"],
        params["trainable"]["items"]["embedding"],
    )


def test_a_pretrained_model_is_frozen_unless_it_is_not(recipe, model):
    frozen = recipe.replace(width=None, pretrained=model)
    params = frozen.open(None).load(zeros(frozen))
    assert "frozen_bits" in frozen.hints.levers
    assert params["frozen"]["model"]["blocks"]["query"]["kernel"].any()
    learned = frozen.replace(freeze=False)
    params = learned.open(None).load(zeros(learned))
    assert "frozen_bits" not in learned.hints.levers
    assert params["trainable"]["model"]["blocks"]["query"]["kernel"].any()


def test_beside_a_frozen_model_a_small_one_is_trained(recipe, model):
    frozen = recipe.replace(width=None, pretrained=model)
    assert (side(frozen).width, side(frozen).layers, frozen.model.shape(frozen.spec).direct) == (8, 2, True)
    assert side(frozen.replace(freeze=False)) is None
    assert side(recipe) is None
    assert side(frozen.replace(item_embedding_dim=100)).heads == 2  # the most that leave pairs
    with pytest.raises(RecipeError, match=r"width of 7 is odd.*even --item-embedding-dim.*--side-layers 0"):
        _ = frozen.replace(item_embedding_dim=7).hints
    for without in (frozen.replace(freeze=False), recipe):
        with pytest.raises(RecipeError, match="--side-layers 3 is of a transformer beside a frozen --pretrained"):
            without.replace(side_layers=3)


def test_another_data_set_in_its_place_is_noticed(recipe, tmp_path):
    prepared = recipe.open(tmp_path).prepare(print)
    assert recipe.open(None).require_same(prepared, training=False) is None
    other = recipe.replace(data=str(write_random(tmp_path / "other", items=7)))
    with pytest.raises(DataError, match=r"is not the data of this run any more: .*offsets\.npy has 200 more bytes"):
        other.open(None).require_same(prepared, training=False)


def test_another_language_model_is_noticed_and_weights_that_are_not_there_before_anything_is_planned(recipe, tmp_path):
    folder = write(tmp_path / "model", LLAMA)
    given = recipe.replace(width=None, pretrained=str(folder))
    prepared = given.open(tmp_path).prepare(print)
    assert given.replace().open(None).require_same(prepared, training=False) is None
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 0.5}))
    with pytest.raises(DataError, match=r"norm_epsilon of the language model was 1e-05 and is 0.5"):
        given.replace().open(None).require_same(prepared, training=False)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PlimsollError, match="pickle"):
        given.replace().open(tmp_path).prepare(print)


def test_what_is_the_pretrained_models_own_is_refused(recipe, model):
    given = recipe.replace(width=None, pretrained=model)
    with pytest.raises(RecipeError, match="--width, --heads and --layers are of the small transformer"):
        given.replace(layers=7)
    with pytest.raises(RecipeError, match=r"--seq-len 100,000 is more than the [\d,]+ tokens"):
        _ = given.replace(seq_len=100_000).spec


REFUSED = {
    "eval_interval": ({"eval_interval": 0.0}, "--eval-interval must be above 0"),
    "validation_users": ({"validation_users": -1}, "--validation-users must be 0 or more"),
    "pretrained": ({"pretrained": " "}, "--pretrained"),
    "dropout": ({"dropout": 1.0}, "--dropout must be 0 or more and below 1"),
    "adapter": ({"adapter_inner": 0}, "--adapter-inner 0 .* --item-embedding-dim 8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_means_nothing_or_contradicts_the_data_is_refused(recipe, name):
    changed, words = REFUSED[name]
    with pytest.raises(RecipeError, match=words):
        _ = recipe.replace(**changed).hints


def test_too_little_data_or_none_is_refused(recipe, tmp_path):
    with pytest.raises(PlimsollError, match="4 examples to train on, fewer than the 9 of one batch"):
        recipe.replace(batch_size=9).open(tmp_path).prepare(print)
    with pytest.raises(RecipeError, match=r"--data is missing: .*plimsoll prepare recommend"):
        preset("recommend").open(tmp_path).prepare(print)
