"""Puzzles as they are typed: read, written, refused; and the rules that an answer is held to."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.cli.verbs import solve
from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.puzzles.arc_grids import placed
from plimsoll.recipes.puzzles.question import question, verdict
from plimsoll.recipes.puzzles.sudoku_grids import BOXES, random_grids
from plimsoll.recipes.puzzles.text import Form, form_of, rows_of, tokens_of
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import to_dict
from plimsoll.types import IGNORED_LABEL
from puzzle_files import write_split

FOUR, MAZE, ARC = Form("sudoku", 4), Form("maze", 5), Form("arc", 30)
SQUARE = ["#####", "#S  #", "# # #", "#  G#", "#####"]
WALKED = ["#####", "#Soo#", "# #o#", "#  G#", "#####"]


def grid(seed, side):
    return random_grids(1, side, np.random.default_rng(seed))[0]


def tokens(rows, form=MAZE):
    return tokens_of("\n".join(rows), form, source="it")


def test_the_form_of_every_preset_of_puzzles_is_known_and_of_other_sizes_none():
    recipes = {name: recipe for name in PRESETS if (recipe := preset(name)).kind == "puzzles"}
    for name, recipe in recipes.items():
        form = form_of(seq_len=recipe.options["seq_len"], vocab_size=recipe.options["vocab_size"])
        assert form is not None
        assert name.startswith(form.kind)
    for seq_len, vocab_size in ((80, 11), (81, 10), (900, 11), (16, 11)):
        assert form_of(seq_len=seq_len, vocab_size=vocab_size) is None


@given(side=st.sampled_from(sorted(BOXES)), seed=st.integers(0, 999), hidden=st.integers(0, 2**32))
def test_a_sudoku_is_read_as_it_is_written(side, seed, hidden):
    form = Form("sudoku", side)
    board = np.where(np.random.default_rng(hidden).random((side, side)) < 0.5, 0, grid(seed, side))
    written = rows_of(1 + board.ravel(), form)
    np.testing.assert_array_equal(tokens_of("\n".join(written), form, source="it"), 1 + board.ravel())
    assert "".join(written) == "".join(map(str, board.ravel())).replace("0", ".")


def test_white_space_of_a_sudoku_means_nothing_and_a_zero_is_a_dot():
    plain = tokens_of("12..34....12..43", FOUR, source="it")
    np.testing.assert_array_equal(tokens_of(" 12 00\n34 ..\r\n\n\t00 12\n00 43\n", FOUR, source="it"), plain)


def test_a_maze_is_read_as_it_is_written():
    rows = ["S    ", "#### ", "     ", " ####", "    G"]
    assert rows_of(tokens(rows), MAZE) == rows
    np.testing.assert_array_equal(tokens_of("".join(rows), MAZE, source="it"), tokens(rows))


def test_what_a_network_wrote_in_vain_is_shown_and_the_canvas_of_arc_is_not():
    assert rows_of(np.array([0, 1, 2, 5] * 4), FOUR) == ["?.14"] * 4
    assert rows_of(placed(np.array([[0, 9], [3, 1]], np.uint8)), ARC) == ["09", "31"]
    assert rows_of(np.zeros(900, int), ARC) == []


@given(side=st.sampled_from(sorted(BOXES)), seed=st.integers(0, 999), at=st.integers(0, 80))
def test_one_digit_more_or_less_is_no_solution(side, seed, at):
    form, solution = Form("sudoku", side), 1 + grid(seed, side).ravel()
    at %= side**2
    asked = np.where(np.arange(side**2) == at, 1, solution)
    assert verdict(asked, solution, form)["valid"]
    other = solution.copy()
    other[at] = 2 if solution[at] != 2 else 3
    assert verdict(asked, other, form)["why_not"] == "a row, a column or a box has a digit twice"
    assert verdict(asked, asked, form)["why_not"] == "1 cells have no digit"
    assert verdict(solution, other, form)["why_not"] == "1 of the digits that were given are changed"


def test_a_path_is_held_to_the_maze():
    asked = tokens(SQUARE)
    assert verdict(asked, tokens(WALKED), MAZE) == {"valid": True, "why_not": None}
    assert "does not lead" in verdict(asked, tokens([*SQUARE[:2], "# #o#", *SQUARE[3:]]), MAZE)["why_not"]
    assert "another maze" in verdict(asked, tokens([WALKED[0], "#Soo ", *WALKED[2:]]), MAZE)["why_not"]
    assert verdict(asked, tokens(["#####", "#S  #", "#o# #", "#ooG#", "#####"]), MAZE)["valid"]
    edge = tokens(["S   G", *["#####"] * 4])
    assert verdict(edge, tokens(["SoooG", *["#####"] * 4]), MAZE)["valid"]
    for lacking in ("S", "G"):
        maze = tokens([row.replace(lacking, " ") for row in SQUARE])
        path = tokens([row.replace(lacking, " ") for row in WALKED])
        assert "does not lead" in verdict(maze, path, MAZE)["why_not"]


def test_labels_that_are_ignored_may_be_anything():
    nothing, answer = np.zeros(900, int), np.full(900, 3)
    labels = np.where(np.arange(900) == 1, IGNORED_LABEL, answer)
    assert verdict(nothing, answer, ARC, labels=labels) == {"right": True}
    labels[0] = 2
    assert verdict(nothing, answer, ARC, labels=labels) == {"right": False}
    assert verdict(nothing, answer, ARC) == {}


REFUSED = {
    "12..": "'12..' .* has 4 cells out of '.12', and a sudoku of 4x4 has 16",
    "5" + "." * 15: "has 16 cells out of '.5'",
    "nofile.txt": "'nofile.txt'",
    "": "has 0 cells",
    "x" * 5000: "has 5,000 cells out of 'x'",
}


@pytest.mark.parametrize("typed", REFUSED, ids=lambda typed: typed[:9])
def test_what_is_no_puzzle_is_refused(typed):
    with pytest.raises(DataError, match=REFUSED[typed]):
        question(preset("sudoku-4x4"), "runs/x", typed)


def test_a_file_is_read_and_named_in_what_it_is_refused_for(tmp_path):
    path = tmp_path / "puzzle.txt"
    path.write_text("12 ..\n.. 12\n\n.. ..\n.. ..\n")
    found = question(preset("sudoku-4x4"), "runs/x", str(path))
    assert (found["inputs"][:8], found["identifier"], found["labels"]) == ([2, 3, 1, 1, 1, 1, 2, 3], 0, None)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match=f"{path} has 1 cells"):
        question(preset("sudoku-4x4"), "runs/x", str(path))


def test_an_example_of_the_test_split_comes_with_its_answer_and_identifier(tmp_path):
    for split in ("train", "test"):
        arrays = write_split(tmp_path / split, groups=[[2, 1]], seq_len=16, vocab_size=6, identifiers=4)
    recipe = preset("sudoku-4x4").replace(data=str(tmp_path), identifiers=4)
    found = question(recipe, "runs/x", "test:2")
    assert found["inputs"] == arrays["inputs"][2].tolist()
    assert found["identifier"] == arrays["puzzle_identifiers"][1]
    assert found["labels"] == [label or IGNORED_LABEL for label in arrays["labels"][2].tolist()]
    for number in ("3", "-1", "x", ""):
        with pytest.raises(DataError, match=rf"'test:{number}' in .* test:0 to test:2"):
            question(recipe, "runs/x", f"test:{number}")
    with pytest.raises(DataError, match="has puzzles of --seq-len 16"):
        question(preset("sudoku-6x6").replace(data=str(tmp_path)), "runs/x", "test:0")


def test_arc_is_asked_by_number_and_other_runs_not_at_all(tmp_path):
    with pytest.raises(DataError, match="solves ARC, whose tasks the network knows by their identifiers"):
        question(preset("arc-1"), "runs/x", "0" * 900)
    (tmp_path / "recipe.json").write_text(json.dumps(to_dict(preset("stories"))))
    with pytest.raises(RecipeError, match=f"{tmp_path} is a run of stories, which solves no puzzles"):
        solve([str(tmp_path), "test:0"])
    with pytest.raises(RecipeError, match="16 tokens from a vocabulary of 7: neither Sudoku nor a maze nor ARC"):
        question(preset("sudoku-4x4").replace(vocab_size=7), "runs/x", "test:0")
