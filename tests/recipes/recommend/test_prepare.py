"""From a file to a folder: what is kept, what items begin with, and which are put together."""

import sys

import numpy as np
import pytest

from interaction_files import sequence_of
from plimsoll.errors import DataError
from plimsoll.recipes.recommend.clusters import clustered
from plimsoll.recipes.recommend.embeddings import factorised
from plimsoll.recipes.recommend.interactions import Interactions
from plimsoll.recipes.recommend.prepare import build
from plimsoll.recipes.recommend.prepare_options import RecommendSet

HOBBIES, ITEMS_OF_EACH = 4, 12


def write_hobbies(folder, *, users=80, seed=0):
    """Everybody takes items of one hobby: 0 to 11, 12 to 23 and so on, with times that are out of order."""
    random = np.random.default_rng(seed)
    lines = []
    for user in range(users):
        items = random.permutation(ITEMS_OF_EACH)[:8] + user % HOBBIES * ITEMS_OF_EACH
        order = random.permutation(8)
        lines += [f"{user},{1000 + items[at]},4.5,{at}" for at in order]
    (folder / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *lines]))
    return folder / "ratings.csv"


def made(path, **options):
    return RecommendSet(interactions=str(path), **({"clusters": HOBBIES, "embedding_size": 6} | options))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_hobbies(tmp_path_factory.mktemp("hobbies"))


@pytest.fixture(scope="module")
def built(file):
    """A folder, and what was answered when it was made."""
    return file.parent / "set", build(made(file), file.parent / "set")


def test_a_file_becomes_a_folder_that_opens_and_what_the_same_users_take_is_put_together(file, built):
    folder, told = built
    found = Interactions(folder)
    found.check()
    assert (found.users, found.items, len(found)) == (80, 48, 640) == (told["users"], told["items"], told["examples"])
    assert found.names[:2] == ["1000", "1001"]
    assert found.about["counts"] == told["counts"]
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    for user in range(80):
        mine = sorted((int(time), int(item) - 999) for who, item, _, time in rows if int(who) == user)
        assert sequence_of(found, user) == [item for _, item in mine]
    assert told["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    clusters = found.cluster_of[1:].reshape(HOBBIES, ITEMS_OF_EACH)
    assert (clusters == clusters[:, :1]).all()
    assert sorted(clusters[:, 0]) == list(range(HOBBIES))


def test_the_same_seed_makes_the_same_files_and_none_is_written_over(file, built, tmp_path):
    folder, _ = built
    build(made(file), tmp_path / "again")
    names = sorted(path.name for path in folder.iterdir())
    assert "embeddings.npy" in names
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with pytest.raises(DataError, match="set is there already: name another --out"):
        build(made(file), folder)


def test_held_out_items_change_neither_embeddings_nor_clusters(file, built, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    lines = file.read_text().splitlines()
    held_out = [at for at, line in enumerate(lines) if line.endswith((",6", ",7"))]
    for user in range(0, len(held_out), 4):  # two users of one hobby after the other: they swap what is held out
        mine, theirs = held_out[user : user + 2], held_out[user + 2 : user + 4]
        for one, other in zip(mine, theirs, strict=True):
            first, second = lines[one].split(","), lines[other].split(",")
            first[1], second[1] = second[1], first[1]
            lines[one], lines[other] = ",".join(first), ",".join(second)
    (folder / "ratings.csv").write_text("\n".join(lines))
    build(made(folder / "ratings.csv", keep_repeats=True), tmp_path / "two")
    one, two = Interactions(built[0]), Interactions(tmp_path / "two")
    assert one.targets("test").tolist() != two.targets("test").tolist()
    np.testing.assert_array_equal(one.embeddings(), two.embeddings())
    np.testing.assert_array_equal(one.cluster_of, two.cluster_of)


@pytest.mark.parametrize("clusters", [1, 2, 30])
def test_any_number_of_clusters_is_possible(clusters):
    vectors = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    found = clustered("kmeans", clusters=clusters, largest=None, popularity=np.ones(30, int), vectors=vectors, seed=0)
    assert sorted(set(found.tolist())) == list(range(found.max() + 1))
    assert found.max() < clusters


def test_frequency_deals_items_out_by_how_often_they_are_taken():
    popularity = np.array([5, 9, 1, 7, 7, 0])
    found = clustered(
        "frequency", clusters=3, largest=None, popularity=popularity, vectors=np.zeros((6, 1), np.float32), seed=0
    )
    assert found.tolist() == [0, 0, 1, 1, 2, 2]  # in the order 1, 3, 4, 0, 2, 5


def test_a_cluster_that_is_too_large_is_split_and_none_is_empty():
    vectors = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    vectors[:200] = vectors[0]  # of one direction: k-means keeps them together
    found = clustered("kmeans", clusters=5, largest=30, popularity=np.ones(300, int), vectors=vectors, seed=0)
    sizes = np.bincount(found)
    assert sizes.max() <= 30
    assert sizes.min() >= 1
    assert len(sizes) > 5


def test_embeddings_are_the_singular_vectors_of_what_was_taken():
    random = np.random.default_rng(0)
    sequences = [random.permutation(9)[:5] + 1 for _ in range(12)]
    flat, offsets = np.concatenate(sequences).astype(np.int32), np.arange(0, 61, 5)
    taken = np.zeros((12, 9))
    for user, items in enumerate(sequences):
        taken[user, items - 1] = 1
    scaled = taken / np.sqrt(taken.sum(1, keepdims=True)) / np.sqrt(taken.sum(0))
    _, values, vectors = np.linalg.svd(scaled)
    for width in (3, 9):  # by Lanczos, and all of them
        found = factorised(flat, offsets, items=9, width=width, seed=0)
        expected = (vectors[:width].T * np.sqrt(values[:width])).astype(np.float32)
        assert not found[0].any()
        scale = np.linalg.norm(found[1:]) / np.linalg.norm(expected)
        np.testing.assert_allclose(found[1:] @ found[1:].T, scale**2 * expected @ expected.T, atol=1e-5)
        assert np.mean(np.sum(found[1:] ** 2, axis=1)) == pytest.approx(1, rel=1e-5)


def test_what_nobody_took_for_training_begins_at_random():
    flat, offsets = np.array([1, 2, 4, 1, 4], np.int32), np.array([0, 3, 5])
    found, other = (factorised(flat, offsets, items=4, width=5, seed=seed) for seed in (3, 4))
    assert found[3].all()
    assert not np.allclose(found[3], other[3])
    assert not np.allclose(found[:, 2:][1:], other[:, 2:][1:])  # beyond the two singular values of two users
    np.testing.assert_allclose(found[[1, 2, 4], :2], other[[1, 2, 4], :2], rtol=1e-5)


REFUSED = {
    "too many clusters": ({"clusters": 49}, "--clusters 49 is more than the 48 items"),
    "too high a core": ({"k_core": 30}, "640 interactions, .* fewer than 30.*--k-core"),
    "too high a rating": ({"min_rating": 5}, "--min-rating"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_made_is_refused_and_leaves_nothing(file, tmp_path, case):
    options, said = REFUSED[case]
    with pytest.raises(DataError, match=said):
        build(made(file, **options), tmp_path / "set")
    assert not list(tmp_path.iterdir())


def test_without_scikit_learn_it_is_said_before_anything_is_read(file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"kmeans .*pip install scikit-learn.*frequency"):
        build(made(tmp_path / "absent.csv"), tmp_path / "set")
    build(made(file, clustering="frequency"), tmp_path / "set")


def test_repeats_are_left_out_or_kept_and_who_took_too_little_is_counted(tmp_path):
    lines = [f"{user} {page}\n" for user in range(6) for page in (1, 1, 2, 3, 1, 2)]
    (tmp_path / "edits.txt").write_text("".join([*lines, "6 9\n", "7 1\n"]))
    options = {"clustering": "frequency", "clusters": 2, "embeddings": "none", "k_core": 2}
    told = build(made(tmp_path / "edits.txt", **options), tmp_path / "set")
    dropped = {"repeats": 18, "interactions_dropped": 2, "users_dropped": 2, "items_dropped": 1}
    assert dropped.items() <= told["counts"].items()
    assert sequence_of(Interactions(tmp_path / "set"), 3) == [1, 2, 3]
    assert Interactions(tmp_path / "set").embeddings() is None
    build(made(tmp_path / "edits.txt", keep_repeats=True, **options), tmp_path / "kept")
    assert sequence_of(Interactions(tmp_path / "kept"), 3) == [1, 1, 2, 3, 1, 2]


def test_golden_counts_of_the_real_sets(shared, tmp_path):
    expected = {
        "ml-latest-small/ratings.csv": ("movielens-csv", 671, 3_496, 90_072),
        "amazon_toys.txt": ("sequences", 19_412, 11_924, 167_597),
        "wikipedia.txt": ("pairs", 566, 527, 6_424),
    }
    for number, (name, sizes) in enumerate(expected.items()):
        options = RecommendSet(
            interactions=str(shared / "data/interactions" / name), clustering="frequency", embeddings="none"
        )
        told = build(options, tmp_path / str(number))
        assert (told["form"], told["users"], told["items"], told["examples"]) == sizes
