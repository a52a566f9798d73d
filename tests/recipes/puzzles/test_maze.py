"""Mazes: one shortest path, long enough; the published characters; symmetries that stay mazes; bad rows are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.dataset import IGNORED_LABEL, PuzzleSet
from plimsoll.recipes.puzzles.dihedral import INVERSE, SYMMETRIES, dihedral
from plimsoll.recipes.puzzles.maze import make, mark
from plimsoll.recipes.puzzles.maze_paths import (
    CHARACTERS,
    GOAL,
    START,
    WALL,
    carved,
    fault,
    new_maze,
    steps_to_spare,
    walked,
)
from plimsoll.recipes.puzzles.prepare_options import MazeOptions

SMALL = {"size": 10, "shortest": 10, "subsample_size": 30, "test_size": 20}
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


def some_mazes(count, size=10, shortest=8, seed=0):
    random = np.random.default_rng(seed)
    found = []
    while len(found) < count:
        if new := new_maze(size, shortest=shortest, random=random):
            found.append(tuple(map(as_text, new)))
    return found


@given(rows=st.integers(1, 5), cols=st.integers(1, 5), which=st.integers(0, 7), seed=st.integers(0, 100))
def test_every_symmetry_is_undone_by_its_inverse(rows, cols, which, seed):
    grid = np.random.default_rng(seed).integers(0, 9, (rows, cols))
    np.testing.assert_array_equal(dihedral(dihedral(grid, which), INVERSE[which]), grid)
    np.testing.assert_array_equal(dihedral(dihedral(grid, INVERSE[which]), which), grid)


def test_the_symmetries_are_those_of_the_page():
    grid = np.arange(6).reshape(2, 3)
    expected = [grid, *(np.rot90(grid, k) for k in (1, 2, 3)), np.fliplr(grid), np.flipud(grid), grid.T]
    expected.append(np.fliplr(np.rot90(grid)))
    for which, one in enumerate(expected):
        np.testing.assert_array_equal(dihedral(grid, which), one)
    assert INVERSE == (0, 3, 2, 1, 4, 5, 6, 7)
    assert len({dihedral(np.arange(4).reshape(2, 2), which).tobytes() for which in range(SYMMETRIES)}) == 8
    with pytest.raises(ValueError, match="0 to 7"):
        dihedral(grid, 8)


@given(size=st.integers(5, 16), seed=st.integers(0, 10**6))
def test_corridors_are_connected_and_inside_the_square(size, seed):
    cells = carved(size, np.random.default_rng(seed))
    (start, *_) = np.flatnonzero(cells)
    np.testing.assert_array_equal(walked(cells.ravel(), start).steps >= 0, cells.ravel())
    border = np.concatenate([cells[0], cells[-1], cells[:, 0], cells[:, -1]])
    assert not border.any()


@given(size=st.integers(6, 12), seed=st.integers(0, 10**6))
def test_steps_and_ways_are_those_of_powers_of_the_adjacency_matrix(size, seed):
    """(A^n)[start, cell] counts the walks of n steps: the first n where it is not 0 is the distance."""
    cells = np.random.default_rng(seed).random((size, size)) < 0.7
    flat = cells.ravel()
    if not flat.any():
        return
    start = int(np.flatnonzero(flat)[0])
    where = np.argwhere(np.ones_like(cells))
    adjacent = (np.abs(where[:, None] - where[None]).sum(-1) == 1) & flat[:, None] & flat[None]
    found = walked(flat, start)
    ways = np.zeros(flat.size, np.int64)
    ways[start] = 1
    steps = np.where(ways > 0, 0, -1)
    first_ways = ways.copy()
    for distance in range(1, flat.size):
        ways = np.minimum(adjacent @ ways, 10**6)
        new = (steps < 0) & (ways > 0)
        if not new.any():
            break
        steps[new], first_ways[new] = distance, ways[new]
    np.testing.assert_array_equal(found.steps, steps)
    np.testing.assert_array_equal(found.ways, np.minimum(first_ways, 2))


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10**6), which=st.integers(0, 7))
def test_a_generated_maze_has_one_shortest_path_long_enough_under_every_symmetry(seed, which):
    found = new_maze(14, shortest=20, random=np.random.default_rng(seed))
    if found is None:
        return
    question, answer = (dihedral(grid, which) for grid in found)
    assert fault(question, answer) is None
    assert steps_to_spare(question, answer) == 0
    start, goal = (int(np.flatnonzero(question.ravel() == token)[0]) for token in (START, GOAL))
    way = walked((question != WALL).ravel(), start)
    assert way.steps[goal] >= 20
    assert way.ways[goal] == 1
    assert mark(question) == mark(found[0])


@pytest.mark.parametrize("aug", [False, True])
def test_a_generated_set_has_what_was_asked_for(tmp_path, aug):
    answer = make(MazeOptions(**SMALL, aug=aug, out=str(tmp_path / "set")))
    copies = 8 if aug else 1
    assert answer["train"] == {"groups": 30, "puzzles": 30 * copies, "examples": 30 * copies}
    assert answer["test"] == {"groups": 20, "puzzles": 20, "examples": 20}
    marks = []
    for split in ("train", "test"):
        found = PuzzleSet(tmp_path / "set", split)
        found.check()
        assert (found.seq_len, found.vocab_size, found.identifiers) == (100, 6, 1)
        batch = found.batch(np.arange(found.examples))
        assert (batch["labels"] != IGNORED_LABEL).all()
        grids = [batch[name].astype(np.uint8).reshape(-1, 10, 10) for name in ("inputs", "labels")]
        assert [fault(*pair) for pair in zip(*grids, strict=True)] == [None] * found.examples
        marks.append({mark(question) for question in grids[0]})
    assert len(marks[0]) == 30
    assert not marks[0] & marks[1]


def test_the_published_sizes_are_the_defaults(tmp_path):
    made = MazeOptions(out="set")
    assert (made.size, made.subsample_size, made.aug) == (30, 1000, False)
    answer = make(MazeOptions(subsample_size=3, test_size=2, out=str(tmp_path / "set")))
    assert (answer["seq_len"], answer["vocab_size"]) == (900, 6)


def test_the_same_seed_makes_the_same_mazes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make(MazeOptions(**SMALL, seed=seed, out=str(tmp_path / name)))
    first, same, other = ((tmp_path / name / "train/all__inputs.npy").read_bytes() for name in "abc")
    assert first == same != other


def test_a_table_is_read_in_the_published_characters(tmp_path):
    rows = some_mazes(12)
    source = write_csv(tmp_path / "mazes.csv", rows)
    answer = make(MazeOptions(source=str(source), size=10, test_size=2, out=str(tmp_path / "set")))
    assert (answer["train"]["groups"], answer["test"]["groups"], answer["longer_paths"]) == (10, 2, 0)
    texts = []
    for split in ("train", "test"):
        found = PuzzleSet(tmp_path / "set", split)
        batch = found.batch(np.arange(found.examples))
        texts += zip(map(as_text, batch["inputs"]), map(as_text, batch["labels"]), strict=True)
    assert sorted(texts) == sorted(rows)


def test_a_maze_that_is_tested_on_is_not_trained_on_turned_around(tmp_path):
    rows = some_mazes(6)
    turned = tuple(as_text(dihedral(maze(text), 5)) for text in rows[0])
    write_csv(tmp_path / "train.csv", [*rows[1:], turned])
    write_csv(tmp_path / "test.csv", rows[:1])
    answer = make(MazeOptions(source=str(tmp_path), size=10, out=str(tmp_path / "set")))
    assert (answer["train"]["groups"], answer["test"]["groups"], answer["left_out"]) == (5, 1, 1)


def test_answers_that_are_not_shortest_are_counted(tmp_path):
    detour = "#####" + "#S  #" + "#o# #" + "#ooG#" + "#####"
    assert steps_to_spare(maze(QUESTION), maze(detour)) == 0
    longer = "#####" + "#So #" + "#oo #" + "#ooG#" + "#####"
    open_space = longer.replace("o", " ")
    assert fault(maze(open_space), maze(longer)) is None
    assert steps_to_spare(maze(open_space), maze(longer)) == 2
    source = write_csv(tmp_path / "a.csv", [(open_space, longer), (QUESTION, ANSWER)])
    answer = make(MazeOptions(source=str(source), size=5, test_size=1, out=str(tmp_path / "set")))
    assert answer["longer_paths"] == 1


BAD = {
    "too short": ((QUESTION[:-1], ANSWER), r"row 1 \(line 2\): the question has 24 characters, .* 5x5 has 25"),
    "another size": (("#" * 36, ANSWER), "36 characters.*with --size 6 it would be"),
    "a strange character": ((QUESTION, "x" + ANSWER[1:]), "character 1 of the answer is 'x'"),
    "no start": ((QUESTION.replace("S", " "), ANSWER), "question has 0 cells for the start S"),
    "two goals": ((QUESTION, ANSWER.replace("o", "G")), "answer has 4 cells for the goal G"),
    "a path in the question": ((ANSWER, ANSWER), "question has cells of the path"),
    "another maze": ((QUESTION, ANSWER.replace("# #o#", "#  o#")), "another maze than the question"),
    "a broken path": ((QUESTION, ANSWER.replace("# #o#", "# # #")), "does not lead from the start"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_refused_with_its_number(tmp_path, case):
    row, said = BAD[case]
    source = write_csv(tmp_path / "a.csv", [row, (QUESTION, ANSWER)])
    with pytest.raises(DataError, match=said):
        make(MazeOptions(source=str(source), size=5, test_size=1, out=str(tmp_path / "set")))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"size": 7, "shortest": 40}, "none of 500 mazes of 7x7 .* 40 steps or more"),
        ({"size": 2}, "--size must be 5 or more, got 2"),
        ({"test_size": 0}, "--test-size must be 1"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, how, said):
    with pytest.raises(DataError, match=said):
        make(MazeOptions(**how, out=str(tmp_path / "set")))
