"""Items around a reader: what is learned, what is not, and what an evaluation counts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from item_examples import BESIDE, ITEMS, LLAMA, histories, keys_of, task_of, uneven_clusters
from plimsoll.models.pretrained.weights import load
from plimsoll.optimizers.adamw import AdamW
from plimsoll.recipes.recommend import items as item_table
from plimsoll.recipes.recommend.item_reader import SmallReader, with_weights
from plimsoll.recipes.recommend.item_shape import EARLIER
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import COUNTED, STORABLE, Compute
from pretrained_folders import write

STRICT = True


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama") / "model", LLAMA)


def begun(task, folder, seed=1):
    params = jax.jit(task.init)(jax.random.key(seed))
    return with_weights(params, folder, LLAMA)


@pytest.fixture(scope="module")
def published(folder):
    """Weights of a task around the published model, where it begins."""
    return begun(task_of(published=True), folder)


def loss_of(task, batch):
    return lambda trainable, frozen: (
        task.loss({"trainable": trainable, "frozen": frozen}, None, batch, keys_of(len(batch["items"])), train=True)[
            0
        ].total
    )


def test_the_item_table_learns_through_the_frozen_model_alone(published, monkeypatch):
    """Its use at the output is cut off here; what is left has come through the model from its input."""
    task, params, batch = task_of(published=True), published, {"items": histories()}
    both = jax.jit(jax.grad(loss_of(task, batch)))(params["trainable"], params["frozen"])

    vectors = task.items.vectors
    monkeypatch.setattr(task.items, "vectors", lambda *given: jax.lax.stop_gradient(vectors(*given)))
    through = jax.jit(jax.grad(loss_of(task, batch)))(params["trainable"], params["frozen"])
    read = np.unique(batch["items"][:, :-1][batch["items"][:, 1:] > 0])
    assert np.abs(through["items"]["embedding"][read]).max(axis=1).min() > 0
    assert np.abs(through["adapter"]["inner"]["kernel"]).max() > 0
    never_read = np.setdiff1d(np.arange(1, ITEMS + 1), read)
    assert (through["items"]["embedding"][never_read] == 0).all()  # only the output would have moved them
    assert (both["items"]["embedding"] != through["items"]["embedding"]).any()


@pytest.mark.slow_except("32")
@pytest.mark.parametrize("bits", STORABLE["frozen_bits"])
def test_a_frozen_model_is_the_same_to_the_bit_after_training_and_nothing_is_kept_for_it(folder, bits):
    task, rule = task_of(published=True), AdamW(weight_decay=0.1, warmup_steps=0).rule(20)
    state = make_init(task, rule, frozen_bits=bits)(np.uint32(0))
    state["params"] = with_weights(state["params"], folder, LLAMA)
    model, published = state["params"]["frozen"]["model"], load(folder, LLAMA, bits=bits, words=False)
    assert jax.tree.map(jax.typeof, model) == jax.tree.map(jax.typeof, published)
    for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(published), strict=True):
        np.testing.assert_array_equal(one, other)
    step = jax.jit(make_step(task, rule, StepSpec(accumulation=2)))
    after = state
    for seed in range(3):
        after, _ = step(after, {"items": histories(seed=seed)})
    before, left = (jax.tree.leaves(one["params"]["frozen"]) for one in (state, after))
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(before, left, strict=True))
    moved = zip(*(jax.tree.leaves(one["params"]["trainable"]) for one in (state, after)), strict=True)
    assert all((a != b).any() for a, b in moved)
    learned = sum(leaf.nbytes for leaf in jax.tree.leaves(state["params"]["trainable"]))
    moments = sum(leaf.nbytes for leaf in jax.tree.leaves(state["optimizer"]) if leaf.ndim)
    assert moments == 2 * learned


def test_what_begins_blank_has_the_shapes_of_what_is_read_in_every_form(folder):
    for bits in STORABLE["frozen_bits"]:
        task = task_of(published=True)
        like = jax.eval_shape(make_init(task, optax.sgd(0.1), frozen_bits=bits), jax.ShapeDtypeStruct((), "uint32"))
        there, read = like["params"]["frozen"]["model"], load(folder, LLAMA, bits=bits, words=False)
        assert jax.tree.structure(there) == jax.tree.structure(read)
        for one, other in zip(jax.tree.leaves(there), jax.tree.leaves(read), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_a_model_that_is_not_frozen_learns_too(folder):
    task = task_of(published=True, frozen=False)
    params = begun(task, folder)
    assert params["frozen"].keys() == {"clusters"}
    gradient = jax.jit(jax.grad(loss_of(task, {"items": histories()})))(params["trainable"], params["frozen"])
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(gradient["model"]))


def test_beside_a_frozen_model_it_starts_as_it_would_without_one_and_learns_from_it(folder):
    side = task_of(side=True)
    params = begun(side, folder)
    alone = task_of(item_width=16, width=16, inner=0)
    own = {"items": params["trainable"]["items"], "clusters": params["trainable"]["clusters"]}
    without = {
        "trainable": own | {"model": {name: params["trainable"]["side"][name] for name in ("blocks", "norm")}},
        "frozen": {"clusters": params["frozen"]["clusters"]},
    }
    alone.reader = SmallReader(BESIDE, Compute(), dropout=0.0)
    rows = histories()
    found, expected = jax.jit(side.log_probabilities)(params, rows), jax.jit(alone.log_probabilities)(without, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    gradient = jax.jit(jax.grad(loss_of(side, {"items": rows})))
    said = gradient(params["trainable"], params["frozen"])["side"]["said"]["kernel"]
    assert (said != 0).all()
    heard = params["trainable"] | {"side": params["trainable"]["side"] | {"said": {"kernel": -0.1 * said}}}
    adapter = gradient(heard, params["frozen"])["adapter"]
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(adapter))  # through the frozen model


def test_a_frozen_model_reads_items_after_dropout_and_what_it_says_is_dropped_too(folder):
    """Else histories are learned by heart through it: validation is at its best after three epochs of twelve."""
    task = task_of(side=True, dropout=0.4)
    params, ids = begun(task, folder), histories(rows=64)[:, :-1]
    frozen, beside = task.reader.hidden, task.side.reader.hidden

    @jax.jit
    def seen(params, ids, keys):
        """What the frozen model reads, and what the one beside it hears of it."""
        read, heard = [], []
        task.reader.hidden = lambda model, x, keys: read.append(x) or frozen(model, x, keys)
        task.side.reader.hidden = lambda own, x, keys: heard.append(x) or beside(own, x, keys)
        task.hidden(params, ids, keys)
        return read[0], heard[0]

    params["trainable"]["side"]["said"] = {"kernel": jnp.eye(LLAMA.width, BESIDE.width)}
    params["trainable"]["items"] = {"embedding": jnp.ones((ITEMS + 1, BESIDE.width))}
    evaluated, _ = seen(params, ids, None)
    trained, heard = seen(params, ids, keys_of(len(ids)))
    assert (evaluated != 0).all()
    kept = trained != 0
    assert abs(kept.mean() - 0.6) < 0.01
    np.testing.assert_allclose(trained[kept], (evaluated / 0.6)[kept], rtol=1e-6)
    lone = np.isclose(heard, 1 / 0.6, rtol=1e-6)  # an item's row of ones, of which what was said is dropped
    assert abs(lone.mean() - 0.6 * 0.4) < 0.01


@pytest.fixture(scope="module")
def small():
    """A task without a published model, and its weights."""
    task = task_of()
    return task, jax.jit(task.init)(jax.random.key(0))


def test_what_follows_an_item_does_not_change_what_is_known_there(small):
    task, params = small
    rows = histories(rows=1, length=8, seed=3)
    other = rows.copy()
    other[0, 4:] = 7
    hidden = jax.jit(task.hidden)
    one, two = hidden(params, rows), hidden(params, other)
    np.testing.assert_array_equal(one[:, :4], two[:, :4])
    assert (one[:, 4:] != two[:, 4:]).any()


def evaluated(task, params, items, **more):
    batch = {"items": np.asarray(items, np.int32), **more}
    loss, _, metrics = jax.jit(partial(task.loss, train=False))(params, None, batch, keys_of(len(items)))
    return loss, metrics


@pytest.fixture(scope="module")
def exact():
    """A task whose softmax is over all items, its weights, and what they say of the items."""
    task = task_of(two_level=False)
    params = jax.jit(task.init)(jax.random.key(0))
    of = jax.jit(task.log_probabilities)
    return task, params, lambda history: np.asarray(of(params, np.pad(history, (0, 9 - len(history)))[None]))[0]


def test_an_evaluation_asks_for_the_last_item_of_each_row_among_those_that_are_not_in_it(exact):
    task, params, scored = exact
    rows = histories(rows=6, length=8, seed=1)
    loss, metrics = evaluated(task, params, rows)
    nats, hits, gains = [], [], []
    for row in rows:
        history, wanted = row[row > 0][:-1], row[row > 0][-1]
        scores = scored(history)
        others = np.setdiff1d(np.arange(1, ITEMS + 1), [*history, wanted])
        rank = (scores[others] >= scores[wanted]).sum()
        nats.append(-scores[wanted])
        hits.append(rank < 10)
        gains.append(1 / np.log2(rank + 2) if rank < 10 else 0.0)
    assert 0 < sum(hits) < 6
    np.testing.assert_allclose(loss, (sum(nats), 6), rtol=1e-5)
    np.testing.assert_allclose(metrics["hr@10"], (sum(hits), 6))
    np.testing.assert_allclose(metrics["ndcg@10"], (sum(gains), 6), rtol=1e-5)


def test_what_was_taken_before_the_row_does_not_stand_before_the_item_that_is_wanted(exact):
    task, params, scored = exact
    row = histories(rows=1, length=8, seed=1)
    history, wanted = row[0][row[0] > 0][:-1], row[0][row[0] > 0][-1]
    scores = scored(history)
    others = np.setdiff1d(np.arange(1, ITEMS + 1), [*history, wanted])
    ahead = others[scores[others] >= scores[wanted]]
    assert len(ahead) > 2
    for left in (0, 2):
        earlier = np.zeros((1, len(ahead) + 3), np.int32)
        earlier[0, : len(ahead) - left] = ahead[left:]
        _, metrics = evaluated(task, params, row, **{EARLIER: earlier})
        np.testing.assert_allclose(metrics["ndcg@10"].total, 1 / np.log2(left + 2), rtol=1e-6)


def test_items_that_score_the_same_count_against_the_one_that_is_wanted(exact):
    task, params, _ = exact
    alike = {"embedding": jnp.ones_like(params["trainable"]["items"]["embedding"])}
    params = params | {"trainable": params["trainable"] | {"items": params["trainable"]["items"] | alike}}
    _, metrics = evaluated(task, params, [[1, 2, 3, 0]])
    assert metrics["hr@10"].total == 0  # 27 others score as high


def test_rows_that_do_not_count_and_rows_of_one_item_change_nothing(small):
    (task, params), rows = small, histories(rows=4)
    alone = np.zeros((1, rows.shape[1]), np.int32)
    alone[0, 0] = 3
    expected = evaluated(task, params, rows)
    found = evaluated(
        task, params, np.concatenate([rows, rows[:1], alone]), **{COUNTED: np.array([True] * 4 + [False, True])}
    )
    np.testing.assert_allclose(jax.tree.leaves(found), jax.tree.leaves(expected), rtol=1e-5)


def test_padding_is_never_recommended(small):
    task, params = small
    rows = {"embedding": params["trainable"]["items"]["embedding"].at[0].set(50.0)}
    params = params | {"trainable": params["trainable"] | {"items": params["trainable"]["items"] | rows}}
    scores = jax.jit(task.log_probabilities)(params, histories()[:, :-1])
    assert (scores[:, 0] == -np.inf).all()
    assert np.isfinite(scores[:, 1:]).all()


def test_a_model_begins_with_the_datas_clusters_and_embeddings(small):
    task, params = small
    rows = np.random.default_rng(0).normal(size=(ITEMS + 1, 16)).astype(np.float32)
    rows[0] = rows[5] = 0
    cluster_of = uneven_clusters()
    found = item_table.with_clusters(item_table.with_items(params, rows.copy()), cluster_of, task.shape)
    table = np.asarray(found["trainable"]["items"]["embedding"])
    np.testing.assert_allclose(np.linalg.norm(table[6:], axis=1), item_table.ROW_LENGTH, rtol=1e-5)
    np.testing.assert_allclose(table[7] / np.linalg.norm(table[7]), rows[7] / np.linalg.norm(rows[7]), rtol=1e-5)
    np.testing.assert_array_equal(table[5], params["trainable"]["items"]["embedding"][5])  # nothing is known of it
    np.testing.assert_allclose(
        found["trainable"]["clusters"]["embedding"][1], table[13], rtol=1e-6
    )  # the mean of its only item
    np.testing.assert_array_equal(found["frozen"]["clusters"]["cluster"][1:], cluster_of[1:])
