"""The published format is read as it is written, and what is wrong with a file is said, with its name and the row."""

import json

import numpy as np
import pytest

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.dataset import IGNORED_LABEL, PuzzleSet, is_puzzle_set
from plimsoll.types import COUNTED
from puzzle_files import write_split

GROUPS = [[1, 3], [2], [4, 1, 2]]


@pytest.fixture
def written(tmp_path):
    return tmp_path / "set", write_split(tmp_path / "set/test", groups=GROUPS)


def test_its_sizes_are_those_of_the_arrays(written):
    found = PuzzleSet(written[0], "test")
    assert (found.groups, found.puzzles, found.examples) == (3, 6, 13)
    assert (found.seq_len, found.vocab_size, found.identifiers) == (6, 9, 4)
    assert found.mean_puzzle_examples == pytest.approx(13 / 6)
    assert found.names() == ["<blank>", "puzzle 1", "puzzle 2", "puzzle 3"]
    assert not is_puzzle_set(written[0])
    write_split(written[0] / "train", groups=GROUPS)
    assert is_puzzle_set(written[0])


@pytest.mark.parametrize("batch_size", [4, 13, 20])
def test_testing_reads_every_example_once_in_order_and_fills_the_last_batch(written, batch_size):
    folder, arrays = written
    batches = list(PuzzleSet(folder, "test").test_batches(batch_size))
    assert all(batch["inputs"].shape == (batch_size, 6) for batch in batches)
    assert {values.dtype for batch in batches for values in batch.values()} == {np.dtype(np.int32), np.dtype(bool)}
    together = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    counted = together.pop(COUNTED)
    assert counted.sum() == 13
    labels = np.where(arrays["labels"] == 0, IGNORED_LABEL, arrays["labels"].astype(int))
    identifiers = np.repeat(arrays["puzzle_identifiers"], np.diff(arrays["puzzle_indices"]))
    np.testing.assert_array_equal(together["inputs"][counted], arrays["inputs"])
    np.testing.assert_array_equal(together["labels"][counted], labels)
    np.testing.assert_array_equal(together["puzzle_identifiers"][counted], identifiers)


def change(folder, **fields):
    path = folder / "test/dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def overwrite(name, make):
    return lambda folder, arrays: np.save(folder / f"test/all__{name}.npy", make(arrays[name]), allow_pickle=True)


def remove(name):
    return lambda folder, arrays: (folder / "test" / name).unlink()


def cut(folder, arrays):
    path = folder / "test/all__inputs.npy"
    path.write_bytes(path.read_bytes()[:-1])


BAD = {
    "no dataset.json": (remove("dataset.json"), "no dataset.json in .*test: .*plimsoll prepare"),
    "no labels": (remove("all__labels.npy"), "all__labels.npy cannot be read"),
    "broken json": (lambda folder, _: (folder / "test/dataset.json").write_text("{"), "dataset.json cannot be read"),
    "a field is missing": (lambda folder, _: (folder / "test/dataset.json").write_text("{}"), "dataset.json does not"),
    "another seq_len": (lambda folder, _: change(folder, seq_len=81), r"shape \(13, 6\).* 81 whole numbers"),
    "pickled tokens": (overwrite("inputs", lambda a: a.astype(object)), "all__inputs.npy cannot be read"),
    "fractions": (overwrite("inputs", lambda a: a / 2), "float64 .* whole numbers"),
    "cut off": (cut, "all__inputs.npy cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_when_the_set_is_opened(written, case):
    folder, arrays = written
    spoil, said = BAD[case]
    spoil(folder, arrays)
    with pytest.raises(DataError, match=said):
        PuzzleSet(folder, "test")


@pytest.mark.parametrize("token", [9, -3])
def test_a_token_out_of_the_vocabulary_is_never_handed_out(written, token):
    folder, arrays = written
    labels = arrays["labels"].astype(np.int32)
    labels[7, 2] = token
    np.save(folder / "test/all__labels.npy", labels)
    found = PuzzleSet(folder, "test")
    said = f"all__labels.npy: row 7 has the token {token} at place 2.*vocabulary of dataset.json has 9"
    with pytest.raises(DataError, match=said):
        found.check()
    with pytest.raises(DataError, match=said):
        found.batch(np.array([3, 7]))
    found.batch(np.array([3, 8]))


def test_a_file_that_shrinks_while_it_is_read_is_noticed(written):
    found = PuzzleSet(written[0], "test")
    cut(*written)
    with pytest.raises(DataError, match="ends before byte "):
        found.batch(np.array([12]))
