"""Sudoku sets: puzzles with one solution, augmentations that stay valid, nothing to train on that is to test on."""

import os
import signal
import subprocess
import sys
from math import factorial

import huggingface_hub
import huggingface_hub.errors
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.dataset import IGNORED_LABEL, PuzzleSet
from plimsoll.recipes.puzzles.prepare_options import SudokuOptions
from plimsoll.recipes.puzzles.sudoku import make
from plimsoll.recipes.puzzles.sudoku_grids import (
    BOXES,
    all_grids,
    by_singles,
    candidates,
    digits,
    dug,
    in_boxes,
    random_grids,
    solved,
    valid,
)
from plimsoll.recipes.puzzles.sudoku_symmetry import applied, augmented, fingerprints, random_symmetries

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
    puzzles, _ = dug(grids, "mixed", random)
    as_text = [["".join(map(str, each.ravel())) for each in boards] for boards in (puzzles, grids)]
    return [("here", question.replace("0", "."), answer, "1.0") for question, answer in zip(*as_text, strict=True)]


# Grids


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


@pytest.mark.parametrize("side", sorted(BOXES))
def test_boards_seen_as_boxes_come_back(side):
    boards = np.random.default_rng(0).integers(0, side, (3, side, side))
    np.testing.assert_array_equal(in_boxes(in_boxes(boards)), boards)
    tall, wide = BOXES[side]
    np.testing.assert_array_equal(in_boxes(boards)[1, 0], boards[1, :tall, :wide].ravel())


def test_digits_and_their_masks():
    boards = np.arange(10, dtype=np.uint8).repeat(9)[:81].reshape(1, 9, 9)
    np.testing.assert_array_equal(digits(candidates(boards)), boards)


def test_there_are_288_grids_of_4x4():
    grids = all_grids(4)
    assert valid(grids).all()
    assert len(np.unique(grids.reshape(-1, 16), axis=0)) == 288


@settings(max_examples=examples(40))
@given(side=st.sampled_from([4, 6]), seed=st.integers(0, 10**6), clues=st.integers(4, 14))
def test_solutions_are_counted_as_trying_everything_counts_them(side, seed, clues):
    random = np.random.default_rng(seed)
    (grid,) = random_grids(1, side, random)
    cells = random.permutation(side * side)[: clues + (side == 6) * 12]
    puzzle = np.zeros_like(grid)
    puzzle.ravel()[cells] = grid.ravel()[cells]
    expected = brute_force(puzzle)
    found = solved(puzzle[None], limit=10**6)
    assert found.counts[0] == len(expected)
    assert any((found.solutions[0] == one).all() for one in expected)
    assert solved(puzzle[None]).counts[0] == min(2, len(expected))


def test_a_published_puzzle_is_solved():
    found = solved(board(PUZZLE))
    assert found.counts[0] == 1
    np.testing.assert_array_equal(found.solutions, board(ANSWER))


def test_a_contradiction_has_no_solution():
    assert solved(board("55" + "." * 79)).counts[0] == 0
    assert not valid(board(ANSWER[:-1] + "1"))[0]
    assert not valid(board(PUZZLE))[0]


def test_the_shared_hard_puzzles_have_one_solution_and_need_guesses(shared):
    lines = (shared / "data/puzzles/sudoku_hard.csv").read_text().splitlines()[1:1001]
    puzzles, answers = (np.concatenate([board(line.split(",")[at]) for line in lines]) for at in (1, 2))
    found = solved(puzzles)
    assert (found.counts == 1).all()
    np.testing.assert_array_equal(found.solutions, answers)
    assert not by_singles(puzzles).any()


@given(side=sides, seed=st.integers(0, 10**6))
def test_random_grids_are_complete(side, seed):
    assert valid(random_grids(20, side, np.random.default_rng(seed))).all()


@settings(max_examples=examples(8))
@given(side=sides, seed=st.integers(0, 1000), difficulty=st.sampled_from(["easy", "medium", "hard", "mixed"]))
def test_puzzles_are_of_their_difficulty_and_have_the_one_solution(side, seed, difficulty):
    random = np.random.default_rng(seed)
    grids = random_grids(12, side, random)
    puzzles, good = dug(grids, difficulty, random)
    found = solved(puzzles)
    assert (found.counts == 1).all()
    np.testing.assert_array_equal(found.solutions, grids)
    given_cells = (puzzles > 0).sum((1, 2))
    if difficulty == "easy":
        assert (given_cells >= round(side * side / 2)).all()
    if difficulty in ("easy", "medium"):
        assert by_singles(puzzles).all()
        assert good.all()
    if difficulty == "hard":
        np.testing.assert_array_equal(good, ~by_singles(puzzles))
    if difficulty in ("medium", "hard"):
        assert nothing_to_spare(puzzles[0], by_singles if difficulty == "medium" else one_solution)


def one_solution(boards):
    return solved(boards).counts == 1


def nothing_to_spare(puzzle, holds):
    cleared = []
    for row, col in np.argwhere(puzzle > 0):
        cleared.append(puzzle.copy())
        cleared[-1][row, col] = 0
    return not holds(np.stack(cleared)).any()


# Augmentation


@given(side=sides, seed=st.integers(0, 10**6))
def test_an_augmented_puzzle_has_the_augmented_solution_and_no_other(side, seed):
    random = np.random.default_rng(seed)
    grids = random_grids(1, side, random)
    puzzles, _ = dug(grids, "mixed", random)
    by = random_symmetries(7, side, random)
    changed, answers = applied(puzzles[0], by), applied(grids[0], by)
    assert valid(answers).all()
    found = solved(changed)
    assert (found.counts == 1).all()
    np.testing.assert_array_equal(found.solutions, answers)
    np.testing.assert_array_equal((changed > 0).sum((1, 2)), (puzzles > 0).sum())


def test_all_symmetries_that_the_page_counts_are_drawn():
    """Of 4x4: 4! digits, 2 transposes, 2^3 orders of rows and 2^3 of columns; of 9x9 1.22e12."""
    by = random_symmetries(60_000, 4, np.random.default_rng(0))
    together = np.concatenate([by.digits, by.rows, by.cols, by.transposed[:, None]], axis=1)
    assert len(np.unique(together, axis=0)) == factorial(4) * 2 * 8 * 8
    assert factorial(9) * 2 * 6**8 == pytest.approx(1.22e12, rel=0.01)


def test_augmentations_draw_around_what_is_held_out():
    (grid, *others) = all_grids(4)
    held_out = fingerprints(np.stack(others[:200]))
    puzzles, solutions = augmented(grid, grid, count=400, held_out=held_out, random=np.random.default_rng(0))
    assert not np.isin(fingerprints(solutions), held_out).any()
    np.testing.assert_array_equal(puzzles, solutions)
    assert len(np.unique(fingerprints(solutions))) > 10
    everything = fingerprints(all_grids(4))
    with pytest.raises(DataError, match="held out for testing: ask for a smaller --test-size"):
        augmented(grid, grid, count=5, held_out=everything, random=np.random.default_rng(0))


def test_fingerprints_tell_grids_apart():
    assert len(np.unique(fingerprints(all_grids(4)))) == 288


# Sets


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
    answer = made(tmp_path, size=4, num_aug=9)
    assert (answer["train"], answer["test"]) == (
        {"groups": 240, "puzzles": 2400, "examples": 2400},
        {"groups": 48, "puzzles": 960, "examples": 960},
    )
    train, train_puzzles, train_grids = boards_of(tmp_path / "set", "train")
    test, test_puzzles, test_grids = boards_of(tmp_path / "set", "test")
    assert (train.vocab_size, train.seq_len, train.groups, test.groups) == (6, 16, 240, 48)
    ours, theirs = (np.unique(grids.reshape(-1, 16), axis=0) for grids in (train_grids, test_grids))
    assert (len(ours), len(theirs)) == (240, 48)
    assert len(np.unique(np.concatenate([ours, theirs]), axis=0)) == 288
    assert not np.isin(fingerprints(test_puzzles), fingerprints(train_puzzles)).any()
    for puzzles, grids in ((train_puzzles, train_grids), (test_puzzles, test_grids)):
        assert valid(grids).all()
        assert (solved(puzzles).counts == 1).all()


@settings(max_examples=examples(8))
@given(
    side=sides,
    seed=st.integers(0, 10**6),
    test_size=st.integers(1, 40),
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
    assert (solved(train_puzzles[: 1 + num_aug]).counts == 1).all()
    assert len(np.unique(fingerprints(test_grids))) == min(test_size, len(test_grids))


@pytest.mark.slow
def test_the_published_sizes_follow_from_the_published_options(tmp_path, shared):
    """1,000 puzzles and 1,000 augmentations of each: 1,001,000 rows of 81, vocabulary 11."""
    source = str(shared / "data/puzzles/sudoku_hard.csv")
    answer = made(tmp_path, source=source, subsample_size=1000, num_aug=1000, test_size=50)
    assert answer["train"] == {"groups": 1000, "puzzles": 1_001_000, "examples": 1_001_000}
    assert answer["test"] == {"groups": 50, "puzzles": 50, "examples": 50}
    assert answer["examples"] == 1_001_050
    assert (answer["seq_len"], answer["vocab_size"], answer["identifiers"]) == (81, 11, 1)
    found = PuzzleSet(tmp_path / "set", "train")
    assert found.mean_puzzle_examples == 1
    assert found.names() == ["<blank>"]
    batch = found.batch(np.arange(1001))
    boards = [(batch[name] - 1).astype(np.uint8).reshape(-1, 9, 9) for name in ("inputs", "labels")]
    np.testing.assert_array_equal(solved(boards[0]).solutions, boards[1])
    assert len(np.unique(fingerprints(boards[1]))) == 1001


def test_a_test_split_of_its_own_is_tested_on_and_kept_out_of_training(tmp_path):
    rows = rows_of(6, 30)
    write_csv(tmp_path / "train.csv", rows[:20])
    write_csv(tmp_path / "test.csv", rows[15:])
    answer = made(tmp_path, source=str(tmp_path), size=6, num_aug=2)
    assert (answer["train"]["groups"], answer["test"]["groups"], answer["left_out"]) == (15, 15, 5)
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
            raise huggingface_hub.errors.EntryNotFoundError("404")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(DataError, match=r"data set someone/sudoku cannot be read .*404.* has a train.csv"):
        made(tmp_path, source="someone/sudoku", size=6)
    write_csv(tmp_path / "train.csv", rows_of(6, 20))
    answer = made(tmp_path, source="someone/sudoku", size=6, num_aug=0, test_size=5)
    assert (answer["train"]["groups"], answer["test"]["groups"]) == (15, 5)
    assert asked[-2:] == [("someone/sudoku", f"{split}.csv", "dataset") for split in ("train", "test")]


@pytest.mark.parametrize("size", [4, 6])
def test_the_same_seed_makes_the_same_files(tmp_path, size):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made(tmp_path, name, size=size, num_aug=3, subsample_size=5, test_size=5, seed=seed)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.npy"))
    assert len(files) == 10
    same, other = ([(tmp_path / name / file).read_bytes() for file in files] for name in ("b", "c"))
    assert [(tmp_path / "a" / file).read_bytes() for file in files] == same
    assert same != other


# Bad input

GOOD = ("here", PUZZLE, ANSWER, "1")
BAD_ROWS = {
    "too short": (("a", PUZZLE[:-1], ANSWER, "1"), r"row 2 \(line 3\): the question has 80 characters, .*9x9 has 81"),
    "another size": (("a", "." * 16, ANSWER, "1"), "16 characters.*with --size 4 it would be one of 4x4"),
    "answer too long": (("a", PUZZLE, ANSWER + "1", "1"), "row 2 .*the answer has 82 characters"),
    "a letter": (("a", "x" + PUZZLE[1:], ANSWER, "1"), "row 2 .*character 1 of the question is 'x'"),
    "a blank answer": (("a", PUZZLE, "." + ANSWER[1:], "1"), "character 1 of the answer is '.'"),
    "no solution": (("a", "55" + "." * 79, ANSWER, "1"), "row 2 .*the puzzle has no solution"),
    "a wrong answer": (("a", PUZZLE, ANSWER[::-1], "1"), "row 2 .*answer does not solve the puzzle"),
    "several, and wrong": (("a", "." * 81, "1" * 81, "1"), "row 2 .*several solutions, and the answer is none"),
    "several": (("a", "." * 81, ANSWER, "1"), r"row 2 \(line 3\): the puzzle has several solutions, and only one"),
    "columns missing": (("a", PUZZLE), "row 2 .*fewer columns than the header"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_refused_with_its_number(tmp_path, case):
    bad, said = BAD_ROWS[case]
    other = ("here", PUZZLE[::-1], ANSWER[::-1], "1")
    source = write_csv(tmp_path / "a.csv", [GOOD, bad, other])
    with pytest.raises(DataError, match=said):
        made(tmp_path, source=str(source), num_aug=0, test_size=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]


def test_a_csv_without_a_header_is_refused(tmp_path):
    source = write_csv(tmp_path / "a.csv", [GOOD], header=",".join(GOOD))
    with pytest.raises(
        DataError, match=r"a\.csv has no header .* begins with 'here,53\.\.7.*source,question,answer,rating"
    ):
        made(tmp_path, source=str(source))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"a\.csv has no header .*: it begins with ''\. Put source,question"),
        (b"\x7fELF\xd0\x00", r"a\.csv is no CSV file that can be read, after line 0: .*decode byte 0xd0.* in UTF-8"),
        (b"question,answer\n\xff,1\n", r"a\.csv is no CSV file that can be read, .*decode byte 0xff.* in UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, said):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=said):
        made(tmp_path, source=str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"source": "no/such.csv"}, "--source no/such.csv is neither a file"),
        ({"num_aug": -1}, "--num-aug must be 0 or more, got -1"),
        ({"subsample_size": 0}, "--subsample-size must be 1"),
        ({"size": 5}, "--size takes 4, 6 or 9, got 5"),
        ({"size": 4, "difficulty": "hard"}, "hardly ever needs a guess"),
        ({"size": 4, "subsample_size": 1000}, "288 grids of 4x4: 48 to test on leave 240 .* 1,000 .*needed"),
        ({"size": 4, "test_size": 288}, "288 to test on leave 0 to train on, and one at least would be needed"),
        ({"source": "some.csv", "difficulty": "easy"}, "--difficulty easy is of generated puzzles"),
        ({"subsample_size": 10**12}, "takes up to .*TiB, and .* are free"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, how, said):
    with pytest.raises(DataError, match=said):
        made(tmp_path, **how)
    assert not list(tmp_path.iterdir())


def test_a_table_too_small_to_hold_some_out_is_refused(tmp_path):
    source = write_csv(tmp_path / "a.csv", [GOOD])
    with pytest.raises(DataError, match=r"has 1 different puzzles, too few"):
        made(tmp_path, source=str(source), test_size=1)


# Writing


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="set is there already"):
        made(tmp_path, size=4)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    import errno

    from plimsoll.errors import StoppedError
    from plimsoll.recipes.puzzles import writer

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(writer.GrowingArray, "finish", full)
    with pytest.raises(StoppedError, match=r"the disk became full .* Nothing was kept"):
        made(tmp_path, size=4, num_aug=0)
    assert not list(tmp_path.iterdir())


KILLED = """
import sys
from plimsoll.recipes.puzzles import sudoku, writer
from plimsoll.recipes.puzzles.prepare_options import SudokuOptions
def wait_halfway(done, of):
    if done == 100:
        print("halfway", flush=True)
        sys.stdin.read()
writer.Spoken = lambda what: wait_halfway
sudoku.make(SudokuOptions(size=4, num_aug=3, out=sys.argv[1]))
"""


def test_what_a_killed_process_left_does_not_load_and_is_cleared_away(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "set")]
    pipe = subprocess.PIPE
    where = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=where) as process:
        assert process.stdout.readline() == b"halfway\n"
        process.send_signal(signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set.lock", "set.partial"]
    with pytest.raises(DataError, match=r"no dataset\.json"):
        PuzzleSet(tmp_path / "set.partial", "train")
    answer = made(tmp_path, size=4, num_aug=3)
    assert answer["train"]["puzzles"] == 960
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
