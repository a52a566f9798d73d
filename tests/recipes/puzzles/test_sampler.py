"""In an epoch one puzzle of every group; the same from one seed, whatever is made ready; exact from any position."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.data.loader import Loader
from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.puzzles.dataset import PuzzleSet
from plimsoll.recipes.puzzles.sampler import PuzzleDraws
from puzzle_files import write_split


def make_set(folder, groups):
    """Every input names its row, so that a batch tells what was drawn."""
    write_split(folder / "train", groups=groups, vocab_size=100_000)
    rows = sum(map(sum, groups))
    np.save(folder / "train/all__inputs.npy", np.repeat(np.arange(rows, dtype=np.int32)[:, None], 6, axis=1))
    return PuzzleSet(folder, "train")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    numbers = itertools.count()
    return lambda: tmp_path_factory.mktemp("puzzles") / str(next(numbers))


def drawn(puzzles, count, *, batch_size=5, seed=3, epochs=4):
    source = Loader(PuzzleDraws(puzzles, batch_size=batch_size, seed=seed, epochs_per_iteration=epochs), prefetch=0)
    found = [batch["inputs"][:, 0].copy() for batch in itertools.islice(source, count)]
    source.close()
    return found


sizes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6)


@given(groups=sizes, batch_size=st.integers(1, 6), epochs=st.integers(6, 9), seed=st.integers(0, 5))
def test_a_batch_walks_through_the_groups_of_an_epoch_one_puzzle_each(folders, groups, batch_size, epochs, seed):
    puzzles = make_set(folders(), groups)
    draws = PuzzleDraws(puzzles, batch_size=batch_size, seed=seed, epochs_per_iteration=epochs)
    batches = iter(draws)
    walked, iteration = [], 0
    for _ in range(12):
        examples = next(batches)["inputs"][:, 0]
        state = batches.get_state()
        if state["iteration"] != iteration:
            walked, iteration = [], state["iteration"]
        chosen = np.searchsorted(puzzles.puzzle_offsets, examples, side="right") - 1
        in_order = [puzzle for puzzle, _ in itertools.groupby(chosen.tolist())]
        walked += in_order
        assert len(examples) == batch_size
        for puzzle in in_order[:-1]:  # the last one may be left out in part
            assert (chosen == puzzle).sum() >= np.diff(puzzles.puzzle_offsets)[puzzle]
        for puzzle, several in itertools.groupby(zip(chosen.tolist(), examples.tolist(), strict=True), lambda a: a[0]):
            rows = [row for _, row in several]
            visits = -(-len(rows) // int(np.diff(puzzles.puzzle_offsets)[puzzle]))
            assert max(map(rows.count, rows)) <= visits  # without replacement
    owners = np.searchsorted(puzzles.group_offsets, draws.epoch(iteration, 0), side="right") - 1
    assert sorted(owners.tolist()) == list(range(len(groups)))  # in an epoch one puzzle of every group
    told = np.concatenate([draws.epoch(iteration, epoch) for epoch in range(epochs)])
    assert [puzzle for puzzle, _ in itertools.groupby(told[: state["group"]].tolist())] == [
        puzzle for puzzle, _ in itertools.groupby(walked)
    ]


@pytest.fixture(scope="module")
def puzzles(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("set"), [[1, 2, 3], [4], [2, 2], [1, 1, 1, 1], [3, 1]])


def test_seeds_iterations_epochs_and_visits_of_a_puzzle_differ(puzzles, tmp_path):
    assert np.any(np.array(drawn(puzzles, 5)) != np.array(drawn(puzzles, 5, seed=4)))
    alone = make_set(tmp_path, [[7]])  # one puzzle: what differs is the choice within it
    found = drawn(alone, 8, batch_size=6, epochs=2)
    assert len({tuple(batch) for batch in found}) == 8
    assert all(len(set(batch.tolist())) == 6 for batch in found)


def test_an_iteration_has_the_batches_that_are_full(tmp_path):
    """Five epochs of 7 puzzles with one example: 35 examples, 4 batches of 8, and three are left out."""
    single = make_set(tmp_path, [[1] * 3] * 7)
    draws = iter(PuzzleDraws(single, batch_size=8, seed=0, epochs_per_iteration=5))
    iterations = []
    for _ in range(8):
        next(draws)
        iterations.append(draws.get_state()["iteration"])
    assert iterations == [0] * 4 + [1] * 4


def test_the_published_run_has_its_published_number_of_steps(tmp_path):
    """1,000 groups of one example each: 6,510 batches of 768 in 5,000 epochs."""
    single = make_set(tmp_path, [[1]] * 1000)
    draws = PuzzleDraws(single, batch_size=768, seed=0, epochs_per_iteration=5000)
    assert single.held_bytes() == 2 * 4 * 1000 + 2 * 4 * 1001 + 4 * 1000  # not one order for each of 5,000 epochs
    batches = iter(draws)
    facts = {"puzzles": 1000, "examples": 1000}
    batches.set_state({"iteration": 0, "batch": 6509, "group": 6509 * 768, "facts": facts})
    next(batches)
    assert batches.get_state()["iteration"] == 0
    next(batches)
    assert (batches.get_state()["iteration"], batches.get_state()["batch"]) == (1, 1)


def test_what_would_never_fill_a_batch_and_the_position_in_another_set_are_refused(puzzles, tmp_path):
    small = make_set(tmp_path, [[2]] * 5)
    loader = Loader(PuzzleDraws(small, batch_size=41, seed=0, epochs_per_iteration=4), prefetch=0)
    with pytest.raises(RecipeError, match=r"--batch-size 41 .* 4 epochs of 5 groups"):
        next(loader)
    other = Loader(PuzzleDraws(puzzles, batch_size=41, seed=0, epochs_per_iteration=4), prefetch=0)
    with pytest.raises(DataError, match=r"saved for puzzles 12, .*, and the data set has puzzles 5"):
        loader.restore(other.state())
    for each in (loader, other):
        each.close()
