"""ARC sets: grids come back from the canvas, augmentations are undone by their names, pairs go where the page says."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.errors import DataError, PlimsollError
from plimsoll.recipes.puzzles.arc import make, unique_augmentations
from plimsoll.recipes.puzzles.arc_grids import EDGE, NOTHING, cropped, placed, random_augmentation, read_name
from plimsoll.recipes.puzzles.arc_tasks import find_subsets, read_tasks
from plimsoll.recipes.puzzles.dataset import IGNORED_LABEL, PuzzleSet
from plimsoll.recipes.puzzles.prepare_options import ArcOptions


@st.composite
def grids(draw, most=30):
    rows, cols = draw(st.integers(1, most)), draw(st.integers(1, most))
    return np.random.default_rng(draw(st.integers(0, 10**6))).integers(0, 10, (rows, cols), np.uint8)


@given(grid=grids(), data=st.data())
def test_a_grid_anywhere_has_its_edge_below_and_to_the_right(grid, data):
    row = data.draw(st.integers(0, 30 - grid.shape[0]))
    col = data.draw(st.integers(0, 30 - grid.shape[1]))
    np.testing.assert_array_equal(cropped(placed(grid)), grid)  # at the corner it comes back
    canvas = placed(grid, row, col).reshape(30, 30)
    below, right = row + grid.shape[0], col + grid.shape[1]
    np.testing.assert_array_equal(canvas[row:below, col:right], grid + 2)
    assert (canvas[below : below + 1, col:right] == EDGE).all()
    assert (canvas[row:below, right : right + 1] == EDGE).all()
    edges = (grid.shape[1] if below < 30 else 0) + (grid.shape[0] if right < 30 else 0)
    assert (canvas == EDGE).sum() == edges
    assert (canvas == 0).sum() == 900 - grid.size - edges


def slowly_cropped(canvas):
    """The published way: row by row, the width that is left."""
    best, size, width = 0, (0, 0), 30
    for rows in range(1, 31):
        for cols in range(1, width + 1):
            if not 2 <= canvas[rows - 1, cols - 1] <= 11:
                width = cols - 1
                break
        if rows * width > best:
            best, size = rows * width, (rows, width)
    return canvas[: size[0], : size[1]] - 2


@given(seed=st.integers(0, 10**6), share=st.floats(0.0, 0.3))
def test_what_is_cropped_is_the_largest_coloured_rectangle_at_the_corner(seed, share):
    random = np.random.default_rng(seed)
    canvas = np.where(
        random.random((30, 30)) < share, random.integers(0, 2, (30, 30)), random.integers(2, 12, (30, 30))
    )
    found = cropped(canvas.ravel())
    expected = slowly_cropped(canvas)
    assert found.size == expected.size
    np.testing.assert_array_equal(found.ravel(), expected.ravel())


@given(grid=grids(12), seed=st.integers(0, 10**6))
def test_an_augmentation_is_undone_by_what_its_name_says(grid, seed):
    made = random_augmentation(np.random.default_rng(seed))
    assert made.colours[0] == 0
    assert sorted(made.colours.tolist()) == list(range(10))
    name = made.named("a|task")
    task, read = read_name(name)
    assert task == "a|task"
    assert read.named(task) == name
    np.testing.assert_array_equal(read.undone(made.applied(grid)), grid)
    assert read_name(task := "007bbfb7") == (task, NOTHING)
    assert NOTHING.named("x") == "x|||t0|||0123456789"


TINY = {
    "train": [{"input": [[1, 2], [3, 4]], "output": [[1]]}, {"input": [[5]], "output": [[6, 7, 8]]}],
    "test": [{"input": [[9, 0]], "output": [[2], [3]]}],
}


def write_tasks(folder, **tasks):
    folder.mkdir(parents=True, exist_ok=True)
    for name, task in tasks.items():
        (folder / f"{name}.json").write_text(json.dumps(task))
    return folder


def write_kaggle(folder, subset, solutions=True, **tasks):
    folder.mkdir(exist_ok=True)
    asked = {
        name: {"train": task["train"], "test": [{"input": pair["input"]} for pair in task["test"]]}
        for name, task in tasks.items()
    }
    (folder / f"arc-agi_{subset}_challenges.json").write_text(json.dumps(asked))
    if solutions:
        outputs = {name: [pair["output"] for pair in task["test"]] for name, task in tasks.items()}
        (folder / f"arc-agi_{subset}_solutions.json").write_text(json.dumps(outputs))
    return folder


def other(task, colour):
    return json.loads(json.dumps(task).replace("9", str(colour)))


def test_augmentations_are_unique_and_what_is_there_may_be_fewer(tmp_path):
    (task,) = read_tasks(find_subsets(write_tasks(tmp_path / "a", t=TINY))["a"])
    found = unique_augmentations(task, 60, np.random.default_rng(0))
    assert len(found) == 61
    assert found[0] == NOTHING

    def all_grids(by):
        pairs = [tuple(by.applied(grid).tobytes() for grid in pair) for pair in (*task.train, *task.test)]
        return hashlib.sha256(repr(sorted(pairs)).encode()).digest()

    assert len({all_grids(by) for by in found}) == 61
    black = {"train": [{"input": [[0]], "output": [[0]]}], "test": [{"input": [[0]], "output": [[0]]}]}
    (task,) = read_tasks(find_subsets(write_tasks(tmp_path / "b", t=black))["b"])
    assert len(unique_augmentations(task, 60, np.random.default_rng(0))) == 1


@pytest.mark.parametrize("form", ["kaggle", "folders"])
def test_pairs_go_where_the_page_says(tmp_path, form):
    subsets = {"training": {"a": TINY, "b": other(TINY, 8)}, "evaluation": {"c": other(TINY, 7)}}
    for subset, them in subsets.items():
        if form == "kaggle":
            write_kaggle(tmp_path / "arc", subset, **them)
        else:
            write_tasks(tmp_path / "arc" / subset, **them)
    answer = make(ArcOptions(source=str(tmp_path / "arc"), num_aug=5, out=str(tmp_path / "set")))
    assert (answer["tasks"], answer["test_tasks"], answer["test_set"]) == (3, 1, "evaluation")
    assert answer["train"] == {"groups": 3, "puzzles": 18, "examples": 6 * (3 + 3 + 2)}
    assert answer["test"] == {"groups": 1, "puzzles": 6, "examples": 6}
    assert (answer["seq_len"], answer["vocab_size"], answer["identifiers"]) == (900, 12, 19)
    test = PuzzleSet(tmp_path / "set", "test")
    names = test.names()
    assert names[0] == "<blank>"
    assert len(set(names)) == 19
    (batch,) = test.test_batches(6)
    for asked, labels, identifier in zip(*(batch[n] for n in ("inputs", "labels", "puzzle_identifiers")), strict=True):
        task, made = read_name(names[identifier])
        assert task == "c"
        np.testing.assert_array_equal(made.undone(cropped(asked)), [[7, 0]])
        labels = np.where(labels == IGNORED_LABEL, 0, labels)
        np.testing.assert_array_equal(made.undone(cropped(labels)), [[2], [3]])
    assert json.loads((tmp_path / "set/test_puzzles.json").read_text()) == {"c": other(TINY, 7)}


@settings(max_examples=examples(20, usual=4))
@given(seed=st.integers(0, 10**6))
def test_of_the_examples_of_a_puzzle_one_stays_at_the_corner_and_the_others_move_together(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("arc")
    write_tasks(folder / "arc", t=TINY)
    write_tasks(folder / "arc/evaluation", u=other(TINY, 8))
    make(ArcOptions(source=str(folder / "arc"), num_aug=3, seed=seed, out=str(folder / "set")))
    train = PuzzleSet(folder / "set", "train")
    names = train.names()
    batch = train.batch(np.arange(train.examples))
    at_the_corner = {}
    for asked, labels, identifier in zip(*(batch[n] for n in ("inputs", "labels", "puzzle_identifiers")), strict=True):
        corners = []
        for tokens in (asked, labels):
            canvas = tokens.reshape(30, 30)
            corner = np.argwhere(canvas >= 2).min(axis=0)
            assert canvas[tuple(corner)] >= 2
            corners.append(tuple(corner.tolist()))
        assert corners[0] == corners[1]
        at_the_corner.setdefault(names[identifier], []).append(corners[0] == (0, 0))
    assert all(any(corners) for corners in at_the_corner.values())
    assert not all(all(corners) for corners in at_the_corner.values())


def test_the_shared_tasks_make_the_sizes_that_their_files_say(tmp_path, shared):
    """400 tasks with 1,302 demonstration and 416 test pairs."""
    answer = make(ArcOptions(source=str(shared / "data/puzzles/arc1_training"), num_aug=1, out=str(tmp_path / "set")))
    assert (answer["tasks"], answer["test_set"]) == (400, "arc1_training")
    assert answer["train"] == {"groups": 400, "puzzles": 800, "examples": 2 * 1302}
    assert answer["test"] == {"groups": 400, "puzzles": 800, "examples": 2 * 416}
    assert answer["identifiers"] == 801
    for split in ("train", "test"):
        PuzzleSet(tmp_path / "set", split).check()


def test_the_same_seed_makes_the_same_files(tmp_path):
    write_tasks(tmp_path / "arc", t=TINY)

    def made(name, seed):
        make(ArcOptions(source=str(tmp_path / "arc"), num_aug=4, seed=seed, out=str(tmp_path / name)))
        return (tmp_path / name / "train/all__inputs.npy").read_bytes()

    assert made("a", 1) == made("b", 1) != made("c", 2)


def test_solutions_that_nobody_has_published_are_counted_and_not_learned(tmp_path):
    write_kaggle(tmp_path / "arc", "training", solutions=False, a=TINY)
    write_kaggle(tmp_path / "arc", "evaluation", solutions=False, b=other(TINY, 8))
    answer = make(ArcOptions(source=str(tmp_path / "arc"), num_aug=0, out=str(tmp_path / "set")))
    assert answer["train"]["examples"] == 4
    assert answer["test"]["examples"] == 1
    (batch,) = PuzzleSet(tmp_path / "set", "test").test_batches(1)
    np.testing.assert_array_equal(cropped(batch["labels"][0]), [[0]])


def changed(where, value):
    task = json.loads(json.dumps(TINY))
    part, number, side = where
    task[part][number][side] = value
    return task


BAD = {
    "too tall": (changed(("train", 1, "output"), [[0]] * 31), r"t.json is no ARC task .*\(31, 1\).* 30x30"),
    "a colour too many": (changed(("train", 0, "input"), [[1], [10]]), r"int64, \[\[1\], \[10\]\]"),
    "no number": (changed(("train", 0, "input"), [["1"]]), "is no ARC task"),
    "ragged": (changed(("train", 0, "input"), [[1], [1, 2]]), "is no ARC task .*rows of one length"),
    "empty": (changed(("train", 0, "input"), []), "is no ARC task"),
    "no train": ({"test": TINY["test"]}, "is no ARC task .*train"),
    "no pairs": ({"train": [], "test": TINY["test"]}, "is no ARC task"),
    "a list": ([1], "is no JSON object"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_task_is_refused_with_its_file_and_pair(tmp_path, case):
    task, said = BAD[case]
    write_tasks(tmp_path / "arc", t=task)
    with pytest.raises(DataError, match=said):
        make(ArcOptions(source=str(tmp_path / "arc"), num_aug=0, out=str(tmp_path / "set")))
    assert not (tmp_path / "set").exists()


def test_sources_that_say_too_little_are_refused(tmp_path):
    def refused(said, **how):
        with pytest.raises(PlimsollError, match=said):
            make(ArcOptions(**{"source": str(tmp_path / "arc"), "num_aug": 0, "out": str(tmp_path / "set"), **how}))

    refused("is no folder with ARC tasks")
    write_kaggle(tmp_path / "arc", "training", a=TINY)
    write_kaggle(tmp_path / "arc", "concept", a=TINY)
    refused("has 2 tasks a: .* Choose one of them with --subsets")
    refused("has the subsets concept, training, and --subsets training more .*ask for", subsets=("training", "more"))
    refused("--test-set-name concept ask", subsets=("training",), test_set_name="concept")
    (tmp_path / "arc/arc-agi_training_solutions.json").write_text('{"a": []}')
    refused("task a is no ARC task", subsets=("training",))
    (tmp_path / "arc/arc-agi_training_challenges.json").write_text("[]")
    refused("is no JSON object", subsets=("training",))
    refused("--num-aug must be 0 or more, got -1", num_aug=-1)
