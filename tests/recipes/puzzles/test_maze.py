"""Mazes of a table: the published characters; symmetries that stay mazes; bad rows are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.arc_grids import INVERSE, dihedral
from plimsoll.recipes.puzzles.dataset import IGNORED_LABEL, PuzzleSet
from plimsoll.recipes.puzzles.maze import make, marks
from plimsoll.recipes.puzzles.maze_rules import CHARACTERS, fault
from plimsoll.recipes.puzzles.prepare_options import MazeOptions

QUESTION = "#####" + "#S  #" + "# # #" + "#  G#" + "#####"
ANSWER = "#####" + "#Soo#" + "# #o#" + "#  G#" + "#####"


def as_text(grid):
    return "".join(CHARACTERS[token - 1] for token in grid.ravel())


def maze(text):
    side = int(len(text) ** 0.5)
    return np.array([CHARACTERS.index(c) + 1 for c in text], np.uint8).reshape(side, side)


def write_csv(path, rows):
    lines = ["source,question,answer,rating", *(f"here,{question},{answer},1" for question, answer in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def some_mazes(count, seed=0):
    """Walls at random around a path to the right and down from the upper left corner."""
    random = np.random.default_rng(seed)
    mazes = []
    for _ in range(count):
        question = np.where(random.random((10, 10)) < 0.4, 1, 2)
        question[0] = question[:, 9] = 2
        question[0, 0], question[9, 9] = 3, 4
        answer = question.copy()
        answer[0, 1:] = answer[:9, 9] = 5
        mazes.append((as_text(question), as_text(answer)))
    return mazes


@given(rows=st.integers(1, 5), cols=st.integers(1, 5), which=st.integers(0, 7), seed=st.integers(0, 100))
def test_every_symmetry_is_undone_by_its_inverse(rows, cols, which, seed):
    grid = np.random.default_rng(seed).integers(0, 9, (rows, cols))
    np.testing.assert_array_equal(dihedral(dihedral(grid, which), INVERSE[which]), grid)


def test_the_symmetries_are_those_of_the_page():
    grid = np.arange(6).reshape(2, 3)
    expected = [grid, *(np.rot90(grid, k) for k in (1, 2, 3)), np.fliplr(grid), np.flipud(grid), grid.T]
    expected.append(np.fliplr(np.rot90(grid)))
    for which, one in enumerate(expected):
        np.testing.assert_array_equal(dihedral(grid, which), one)


@pytest.mark.parametrize("aug", [False, True])
def test_a_table_is_written_as_it_is_and_with_its_symmetries(tmp_path, aug):
    rows = some_mazes(12)
    source = str(write_csv(tmp_path / "mazes.csv", rows))
    answer = make(MazeOptions(source=source, size=10, test_size=2, aug=aug, out=str(tmp_path / "set")))
    copies = 8 if aug else 1
    assert answer["train"] == {"groups": 10, "puzzles": 10 * copies, "examples": 10 * copies}
    assert answer["test"] == {"groups": 2, "puzzles": 2, "examples": 2}
    texts, known = [], []
    for split in ("train", "test"):
        puzzles = PuzzleSet(tmp_path / "set", split)
        assert (puzzles.seq_len, puzzles.vocab_size, puzzles.identifiers) == (100, 6, 1)
        batch = puzzles.batch(np.arange(puzzles.examples))
        assert (batch["labels"] != IGNORED_LABEL).all()
        grids = [batch[name].astype(np.uint8).reshape(-1, 10, 10) for name in ("inputs", "labels")]
        assert [fault(*pair) for pair in zip(*grids, strict=True)] == [None] * puzzles.examples
        texts += zip(map(as_text, batch["inputs"]), map(as_text, batch["labels"]), strict=True)
        known.append(set(marks(grids[0]).tolist()))
    assert set(rows) <= set(texts)
    assert (len(known[0]), len(known[1]), len(known[0] & known[1])) == (10, 2, 0)


def test_a_maze_that_is_tested_on_is_not_trained_on_turned_around(tmp_path):
    rows = some_mazes(6)
    turned = tuple(as_text(dihedral(maze(text), 5)) for text in rows[0])
    write_csv(tmp_path / "train.csv", [*rows[1:], turned])
    write_csv(tmp_path / "test.csv", rows[:1])
    answer = make(MazeOptions(source=str(tmp_path), size=10, out=str(tmp_path / "set")))
    assert (answer["train"]["groups"], answer["test"]["groups"]) == (5, 1)


BAD = {
    "a strange character": ((QUESTION, "x" + ANSWER[1:]), "row 1: .*x"),
    "a broken path": ((QUESTION, ANSWER.replace("# #o#", "# # #")), "row 1: the answer does not solve"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_refused_with_its_number(tmp_path, case):
    row, said = BAD[case]
    source = write_csv(tmp_path / "a.csv", [row, (QUESTION, ANSWER)])
    with pytest.raises(DataError, match=said):
        make(MazeOptions(source=str(source), size=5, test_size=1, out=str(tmp_path / "set")))
    assert not (tmp_path / "set").exists()
