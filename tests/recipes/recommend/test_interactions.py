"""A set of interactions is read as it was written, and what is wrong with a file is said, with its name and the row."""

import pytest

from interaction_files import sequence_of, write_small
from plimsoll.errors import DataError
from plimsoll.recipes.recommend.interactions import Interactions, is_interactions

SEQUENCES = [[3, 1, 2], [4, 5], [6, 2, 4, 1, 5], [6]]


@pytest.fixture
def folder(tmp_path):
    return write_small(tmp_path / "set", SEQUENCES)


def test_what_was_written_is_read(folder):
    found = Interactions(folder)
    found.check()
    assert (found.users, found.items, found.clusters, len(found)) == (4, 6, 2, 11)
    assert [sequence_of(found, user) for user in range(4)] == SEQUENCES
    assert found.cluster_of.tolist() == [-1, 0, 1, 0, 1, 0, 1]
    assert found.embeddings().shape == (7, 4)
    assert not found.embeddings()[0].any()
    assert found.names == [str(100 + item) for item in range(1, 7)]
    assert is_interactions(folder)
    assert not is_interactions(folder.parent)


def test_the_last_item_is_for_testing_the_one_before_for_validation_and_short_users_are_only_trained_on(folder):
    found = Interactions(folder)
    assert found.evaluated.tolist() == [0, 2]
    assert [found.history(user, "train").tolist() for user in range(4)] == [[3], [4, 5], [6, 2, 4], [6]]
    assert found.history(2, "validation").tolist() == [6, 2, 4]
    assert found.history(2, "test").tolist() == [6, 2, 4, 1]
    assert found.targets("validation").tolist() == [1, 1]
    assert found.targets("test").tolist() == [2, 5]


def test_without_embeddings(tmp_path):
    found = Interactions(write_small(tmp_path / "set", SEQUENCES, width=0))
    found.check()
    assert found.embeddings() is None
    assert found.described(2) == {"id": 2, "original": "102"}


FILES = ("sequences.npy", "offsets.npy", "clusters.npy", "embeddings.npy", "items.jsonl")


@pytest.mark.parametrize(("name", "how"), [*((name, "gone") for name in FILES), (FILES[0], "another bit")])
def test_a_damaged_set_is_refused_by_the_name_of_the_file(folder, name, how):
    path = folder / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if how == "another bit":
        content[-3] ^= 1
        path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        Interactions(folder).check()


def test_a_folder_that_is_none_is_refused(folder, tmp_path):
    (folder / "manifest.json").unlink()
    for place in (folder, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"no data set of interactions.*plimsoll prepare recommend"):
            Interactions(place)
