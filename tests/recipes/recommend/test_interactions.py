"""A set of interactions is read as it was written, and what is wrong with a file is said, with its name and the row."""

import json

import numpy as np
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
    assert found.catalogue.originals == [str(100 + item) for item in range(1, 7)]
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
    assert found.catalogue.described(2) == {"id": 2, "original": "102"}


def change(folder, **fields):
    path = folder / "catalogue.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def overwrite(name, make):
    return lambda folder: np.save(folder / name, make(np.load(folder / name)), allow_pickle=True)


def put(at, value):
    def made(array):
        array[at] = value
        return array

    return made


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


def rename_item(folder):
    path = folder / "items.jsonl"
    path.write_text(path.read_text().replace('"102"', '"2102"'))


def misnumber(folder):
    path = folder / "items.jsonl"
    path.write_text(path.read_text().replace('"id": 3', '"id": 33'))


def another_catalogue(folder):
    write_small(folder.parent / "other", SEQUENCES, clusters=2, items=6)
    other = [-1, 1, 0, 1, 0, 1, 0]
    np.save(folder / "clusters.npy", np.array(other, np.int32))


BAD = {
    "no set": (lambda folder: (folder / "catalogue.json").unlink(), "no catalogue.json .*plimsoll prepare recommend"),
    "broken json": (lambda folder: (folder / "catalogue.json").write_text("{"), "catalogue.json cannot be read"),
    "a list": (lambda folder: (folder / "catalogue.json").write_text("[]"), "does not say items, users"),
    "a number missing": (
        lambda folder: change(folder, users=None),
        "users must be a whole number, 1 or more, got None",
    ),
    "no sequences": (lambda folder: (folder / "sequences.npy").unlink(), "no sequences.npy in"),
    "cut sequences": (cut("sequences.npy"), "sequences.npy is no array .*cut off"),
    "cut clusters": (cut("clusters.npy"), "clusters.npy is no array .*cut off"),
    "cut embeddings": (cut("embeddings.npy"), "embeddings.npy is no array .*cut off"),
    "an id too large": (overwrite("sequences.npy", put(6, 7)), "place 6, of user 2, has the item 7, .*ids 1 to 6"),
    "padding as an item": (overwrite("sequences.npy", put(0, 0)), "place 0, of user 0, has the item 0"),
    "fewer interactions": (overwrite("sequences.npy", lambda a: a[:-1]), r"shape \(10,\), and .* asks for \(11,\)"),
    "pickled": (overwrite("sequences.npy", lambda a: a.astype(object)), "Python objects, which are never loaded"),
    "fractions": (overwrite("sequences.npy", lambda a: a / 2), "float64, and whole numbers"),
    "offsets fall": (overwrite("offsets.npy", put(2, 3)), "offset 2 is 3, and the one before it 3: they must ascend"),
    "offsets end elsewhere": (overwrite("offsets.npy", put(-1, 12)), "from 0 to 12, .* there are 11 interactions"),
    "more users": (overwrite("offsets.npy", lambda a: np.append(a, 12)), r"shape \(6,\), .* asks for \(5,\)"),
    "clusters of more items": (overwrite("clusters.npy", lambda a: np.append(a, 0)), r"shape \(8,\), .*another set's"),
    "a cluster too large": (overwrite("clusters.npy", put(3, 2)), "item 3 has the cluster 2, and 0 to 1, was"),
    "padding in a cluster": (overwrite("clusters.npy", put(0, 0)), "item 0 has the cluster 0, and -1, for padding"),
    "another catalogue's clusters": (another_catalogue, "not the file that was made for this catalogue"),
    "wide embeddings": (overwrite("embeddings.npy", lambda a: a[:, :3]), r"shape \(7, 3\), .* asks for \(7, 4\)"),
    "whole embeddings": (overwrite("embeddings.npy", lambda a: a.astype(int)), "int64, and fractions were expected"),
    "NaN": (overwrite("embeddings.npy", put((5, 1), np.nan)), "row 5 has NaN"),
    "padding with a row": (overwrite("embeddings.npy", put((0, 1), 1.0)), "row 0 has no zeros"),
    "no names": (lambda folder: (folder / "items.jsonl").unlink(), "no items.jsonl in"),
    "other names": (rename_item, "not the same catalogue"),
    "numbers of items": (misnumber, "items.jsonl, line 3, is no item .* the id 33"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said(folder, case):
    spoil, said = BAD[case]
    spoil(folder)
    with pytest.raises(DataError, match=said):
        Interactions(folder).check()
