"""`plimsoll prepare sudoku|maze|arc` and `inspect` of what they made, as they are typed."""

import json

import numpy as np
import pytest

from plimsoll.cli.main import main
from plimsoll.recipes.puzzles.dataset import PuzzleSet

TASK = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]], "output": [[4]]}]}


def typed(capsys, *words, code=0):
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def arc_folder(tmp_path):
    folder = tmp_path / "arc/evaluation"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps(TASK))
    return folder.parent


def maze_table(tmp_path):
    file = tmp_path / "mazes.csv"
    file.write_text("question,answer\nS G######,SoG######\nS  # G## ,Soo#oG## \n")
    return file


SETS = {
    "sudoku": (
        ["--size", "4", "--num-aug", "2", "--subsample-size", "10"],
        {"groups": 10, "puzzles": 30, "examples": 30},
    ),
    "maze": (["--size", "3", "--test-size", "1", "--aug"], {"groups": 1, "puzzles": 8, "examples": 8}),
    "arc": (["--num-aug", "3"], {"groups": 1, "puzzles": 4, "examples": 4}),
}


@pytest.mark.parametrize("what", SETS)
def test_a_set_is_made_and_looked_at(what, tmp_path, capsys):
    words, train = SETS[what]
    sources = {"arc": arc_folder, "maze": maze_table}
    more = ["--source", sources[what](tmp_path)] if what in sources else []
    out = tmp_path / "sets" / what  # the folder above it is made too
    answer = json.loads(typed(capsys, "prepare", what, *words, *more, "--out", out, "--json"))
    assert answer["train"] == train
    assert answer["seconds"] > 0
    found = json.loads(typed(capsys, "inspect", out, "--json"))
    assert {name: found["splits"]["train"][name] for name in train} == train
    assert found["bytes"] >= sum(path.stat().st_size for path in out.rglob("*.npy"))
    text = typed(capsys, "inspect", out)
    assert f"{found['seq_len']:,} tokens of a vocabulary of {found['vocab_size']}" in text
    assert "--seed" in text
    if what == "arc":
        assert "5, with the blank one" in text


def test_what_was_made_is_said_in_words(tmp_path, capsys):
    text = typed(
        capsys, "prepare", "arc", "--source", arc_folder(tmp_path), "--num-aug", "1", "--out", tmp_path / "set"
    )
    assert "puzzles of 900 tokens" in text
    assert "to train on: 1 groups, 2 puzzles, 2 examples" in text


def test_counts_may_be_typed_short(tmp_path, capsys):
    words = ["--size", "4", "--num-aug", "0.002k", "--subsample-size", "4", "--test-size", "1"]
    answer = json.loads(typed(capsys, "prepare", "sudoku", *words, "--out", tmp_path / "set", "--json"))
    assert answer["train"]["puzzles"] == 12


def test_inspecting_a_damaged_set_says_the_row_and_the_file(tmp_path, capsys):
    words = ["--size", "4", "--num-aug", "0", "--out", tmp_path / "set"]
    typed(capsys, "prepare", "sudoku", *words)
    path = tmp_path / "set/train/all__inputs.npy"
    spoiled = np.load(path)
    spoiled[17, 3] = 200
    np.save(path, spoiled)
    PuzzleSet(tmp_path / "set", "train")
    assert "all__inputs.npy: row 17 has the token 200" in typed(capsys, "inspect", tmp_path / "set", code=2)
