"""Sudoku sets: puzzles with one solution, augmentations that stay valid, nothing to train on that is to test on."""

from math import factorial

import huggingface_hub
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.errors import DataError, PlimsollError
from plimsoll.recipes.puzzles import sudoku
from plimsoll.recipes.puzzles.board_table import fingerprints
from plimsoll.recipes.puzzles.dataset import IGNORED_LABEL, PuzzleSet
from plimsoll.recipes.puzzles.prepare_options import SudokuOptions
from plimsoll.recipes.puzzles.sudoku import augmented, make, random_symmetries
from plimsoll.recipes.puzzles.sudoku_grids import (
    BOXES,
    all_grids_of_4x4,
    cleared,
    have_one_solution,
    random_grids,
    solved_by_singles,
    valid,
)

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
ANSWER = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
sides = st.sampled_from(sorted(BOXES))


def board(text):
    side = int(len(text) ** 0.5)
    return np.array([int(c) if c != "." else 0 for c in text], np.uint8).reshape(1, side, side)


def write_csv(path, rows, header="source,question,answer,rating"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return path


def rows_of(size, count, seed=0):
    random = np.random.default_rng(seed)
    grids = random_grids(count, size, random)
    puzzles = cleared(grids, "mixed", random)
    as_text = [["".join(map(str, each.ravel())) for each in boards] for boards in (puzzles, grids)]
    return [("here", question.replace("0", "."), answer, "1.0") for question, answer in zip(*as_text, strict=True)]


def brute_force(grid):
    """Every solution, by trying: a second opinion."""
    blanks = np.argwhere(grid == 0)
    if not len(blanks):
        return [grid.copy()] if valid(grid[None])[0] else []
    found = []
    for digit in range(1, len(grid) + 1):
        row, col = blanks[0]
        trial = grid.copy()
        trial[row, col] = digit
        if may_stand(trial, row, col):
            found += brute_force(trial)
    return found


def may_stand(grid, row, col):
    tall, wide = BOXES[len(grid)]
    top, left = row // tall * tall, col // wide * wide
    units = grid[row], grid[:, col], grid[top : top + tall, left : left + wide]
    return all((unit == grid[row, col]).sum() == 1 for unit in units)


@settings(max_examples=examples(40))
@given(side=st.sampled_from([4, 6]), seed=st.integers(0, 10**6), clues=st.integers(4, 14))
def test_one_solution_is_what_trying_everything_gives(side, seed, clues):
    random = np.random.default_rng(seed)
    (grid,) = random_grids(1, side, random)
    cells = random.permutation(side * side)[: clues + (side == 6) * 12]
    puzzle = np.zeros_like(grid)
    puzzle.ravel()[cells] = grid.ravel()[cells]
    assert have_one_solution(puzzle[None])[0] == (len(brute_force(puzzle)) == 1)


def test_published_puzzles_have_one_solution_and_contradictions_none(shared):
    lines = (shared / "data/puzzles/sudoku_hard.csv").read_text().splitlines()[1:301]
    puzzles, answers = (np.concatenate([board(line.split(",")[at]) for line in lines]) for at in (1, 2))
    assert have_one_solution(np.concatenate([puzzles, answers, board(PUZZLE)])).all()
    assert valid(answers).all()
    assert not solved_by_singles(puzzles).any()
    assert not have_one_solution(np.concatenate([board("55" + "." * 79), board("." * 81)])).any()
    assert not valid(np.concatenate([board(ANSWER[:-1] + "1"), board(PUZZLE)])).any()


@settings(max_examples=examples(8, usual=6))
@given(side=sides, seed=st.integers(0, 1000), difficulty=st.sampled_from(["easy", "mixed"]))
def test_puzzles_are_of_their_difficulty_and_have_the_one_solution(side, seed, difficulty):
    random = np.random.default_rng(seed)
    grids = random_grids(12, side, random)
    puzzles = cleared(grids, difficulty, random)
    assert ((puzzles == 0) | (puzzles == grids)).all()
    assert have_one_solution(puzzles).all()
    given_cells = (puzzles > 0).sum((1, 2))
    if difficulty == "easy":
        assert (given_cells >= round(side * side / 2)).all()
        assert solved_by_singles(puzzles).all()
    else:
        assert (given_cells >= round(side * side / 4)).all()


@given(side=sides, seed=st.integers(0, 10**6))
def test_an_augmented_puzzle_has_the_augmented_solution_and_no_other(side, seed):
    random = np.random.default_rng(seed)
    grids = random_grids(1, side, random)
    puzzles = cleared(grids, "mixed", random)
    changed, answers = random_symmetries(puzzles[0], grids[0], count=7, random=random)
    assert valid(answers).all()
    assert ((changed == 0) | (changed == answers)).all()
    assert have_one_solution(changed).all()
    np.testing.assert_array_equal((changed > 0).sum((1, 2)), (puzzles > 0).sum())


def test_all_symmetries_that_the_page_counts_are_drawn():
    """Of 4x4: 4! digits, 2 transposes, 2^3 orders of rows and 2^3 of columns; of 9x9 1.22e12."""
    boards = np.random.default_rng(1).integers(0, 5, (3, 4, 4), np.uint8)
    changed = random_symmetries(*boards, count=60_000, random=np.random.default_rng(0))
    assert len(np.unique(np.concatenate(changed, axis=2), axis=0)) == factorial(4) * 2 * 8 * 8
    assert factorial(9) * 2 * 6**8 == pytest.approx(1.22e12, rel=0.01)


def test_augmentations_that_are_all_held_out_are_refused():
    (grid, *_) = grids = all_grids_of_4x4()
    with pytest.raises(DataError, match="--test-size"):
        augmented(grid, grid, count=5, held_out=fingerprints(grids), random=np.random.default_rng(0))


def boards_of(folder, split):
    found = PuzzleSet(folder, split)
    found.check()
    batch = found.batch(np.arange(found.examples))
    side = int(found.seq_len**0.5)
    assert (batch["labels"] != IGNORED_LABEL).all()
    assert (batch["puzzle_identifiers"] == 0).all()
    as_boards = [(batch[name] - 1).astype(np.uint8).reshape(-1, side, side) for name in ("inputs", "labels")]
    assert ((as_boards[0] == 0) | (as_boards[0] == as_boards[1])).all()
    return found, *as_boards


def made(tmp_path, name="set", **how):
    return make(SudokuOptions(**how, out=str(tmp_path / name)))


def test_of_4x4_every_grid_is_to_train_or_to_test_on(tmp_path):
    answer = made(tmp_path, size=4, num_aug=1)
    assert answer["train"] == {"groups": 240, "puzzles": 480, "examples": 480}
    assert answer["test"] == {"groups": 48, "puzzles": 960, "examples": 960}
    train, train_puzzles, train_grids = boards_of(tmp_path / "set", "train")
    test, test_puzzles, test_grids = boards_of(tmp_path / "set", "test")
    assert (train.vocab_size, train.seq_len, train.groups, test.groups) == (6, 16, 240, 48)
    ours, theirs = (np.unique(grids.reshape(-1, 16), axis=0) for grids in (train_grids, test_grids))
    assert (len(ours), len(theirs)) == (240, 48)
    assert len(np.unique(np.concatenate([ours, theirs]), axis=0)) == 288
    assert not np.isin(fingerprints(test_puzzles), fingerprints(train_puzzles)).any()
    for puzzles, grids in ((train_puzzles, train_grids), (test_puzzles, test_grids)):
        assert valid(grids).all()
        assert have_one_solution(puzzles).all()


@settings(max_examples=examples(8, usual=5))
@given(
    side=sides,
    seed=st.integers(0, 10**6),
    test_size=st.integers(1, 20),
    num_aug=st.integers(0, 30),
    groups=st.integers(1, 8),
    from_table=st.booleans(),
)
def test_nothing_that_is_held_out_is_trained_on(tmp_path_factory, side, seed, test_size, num_aug, groups, from_table):
    folder = tmp_path_factory.mktemp("sudoku")
    how = {"size": side, "seed": seed, "test_size": test_size, "num_aug": num_aug, "subsample_size": groups}
    if from_table:
        how["source"] = str(write_csv(folder / "all.csv", rows_of(side, test_size + groups + 5, seed)))
    made(folder, **how)
    _, train_puzzles, train_grids = boards_of(folder / "set", "train")
    _, test_puzzles, test_grids = boards_of(folder / "set", "test")
    assert not np.isin(fingerprints(train_grids), fingerprints(test_grids)).any()
    assert not np.isin(fingerprints(train_puzzles), fingerprints(test_puzzles)).any()
    assert valid(train_grids).all()
    assert have_one_solution(train_puzzles[: 1 + num_aug]).all()
    assert len(np.unique(fingerprints(test_grids))) == min(test_size, len(test_grids))


def test_a_test_split_of_its_own_is_tested_on_and_kept_out_of_training(tmp_path):
    rows = rows_of(6, 30)
    write_csv(tmp_path / "train.csv", rows[:20])
    write_csv(tmp_path / "test.csv", rows[15:])
    answer = made(tmp_path, source=str(tmp_path), size=6, num_aug=2)
    assert (answer["train"]["groups"], answer["test"]["groups"]) == (15, 15)
    _, puzzles, _ = boards_of(tmp_path / "set", "test")
    assert ["".join(map(str, each.ravel())).replace("0", ".") for each in puzzles] == [row[1] for row in rows[15:]]
    fewer = made(tmp_path, "fewer", source=str(tmp_path), size=6, num_aug=0, test_size=4, subsample_size=7)
    assert (fewer["train"]["groups"], fewer["test"]["groups"]) == (7, 4)


def test_a_data_set_of_the_hub_is_read_like_files(tmp_path, monkeypatch):
    """As the published builder does it: train.csv and test.csv of the data set are downloaded as they are."""
    asked = []

    def download(name, file, *, repo_type):
        asked.append((name, file, repo_type))
        if not (tmp_path / file).exists():
            raise FileNotFoundError("404")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(DataError, match=r"someone/sudoku cannot be read .*404.* train.csv"):
        made(tmp_path, source="someone/sudoku", size=6)
    write_csv(tmp_path / "train.csv", rows_of(6, 20))
    write_csv(tmp_path / "test.csv", rows_of(6, 5, seed=1))
    answer = made(tmp_path, source="someone/sudoku", size=6, num_aug=0)
    assert (answer["train"]["groups"], answer["test"]["groups"]) == (20, 5)
    assert asked[-2:] == [("someone/sudoku", f"{split}.csv", "dataset") for split in ("train", "test")]


@pytest.mark.parametrize("size", [4, 6])
def test_the_same_seed_makes_the_same_files(tmp_path, size):
    def files(name, seed):
        made(tmp_path, name, size=size, num_aug=3, subsample_size=3, test_size=2, seed=seed)
        return {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.npy")}

    first = files("a", 1)
    assert len(first) == 10
    assert files("b", 1) == first != files("c", 2)


GOOD = ("here", PUZZLE, ANSWER, "1")
BAD_ROWS = {
    "too short": (("a", PUZZLE[:-1], ANSWER, "1"), "row 2: .* 80 characters .*--size 9 has 81"),
    "a letter": (("a", "x" + PUZZLE[1:], ANSWER, "1"), "row 2: .*'.*x'.* out of '.0123456789'"),
    "a blank answer": (("a", PUZZLE, "." + ANSWER[1:], "1"), "row 2: the answer does not solve"),
    "a wrong answer": (("a", PUZZLE, ANSWER[::-1], "1"), "row 2: the answer does not solve"),
    "columns missing": (("a", PUZZLE), "row 2: .* 0 characters"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_refused_with_its_number(tmp_path, case):
    bad, said = BAD_ROWS[case]
    other = ("here", PUZZLE[::-1], ANSWER[::-1], "1")
    source = write_csv(tmp_path / "a.csv", [GOOD, bad, other])
    with pytest.raises(DataError, match=said):
        made(tmp_path, source=str(source), num_aug=0, test_size=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (",".join(GOOD).encode(), "no columns question and answer: .*source,question,answer,rating"),
        (b"question,answer\n\xff,1\n", "is no CSV file that can be read .*decode byte 0xff.* UTF-8"),
        (f"question,answer\n{PUZZLE},{ANSWER}\n".encode(), "1 puzzles are to test on, .* 1 to 0: set --test-size"),
    ],
)
def test_a_file_that_makes_no_set_is_refused(tmp_path, content, said):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=said):
        made(tmp_path, source=str(tmp_path / "a.csv"), test_size=1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"source": "no/such.csv"}, "--source no/such.csv is neither an existing file"),
        ({"num_aug": -1}, "--num-aug must be 0 or more, got -1"),
        ({"subsample_size": 0}, "--subsample-size must be 1"),
        ({"size": 4, "test_size": 288}, "no puzzle is left to train on"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, monkeypatch, how, said):
    monkeypatch.setattr(sudoku, "TEST_PUZZLES_4X4", 1)
    with pytest.raises(PlimsollError, match=said):
        made(tmp_path, **how)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="set is there already"):
        made(tmp_path, size=4)
