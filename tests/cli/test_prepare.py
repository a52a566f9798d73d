"""`plimsoll prepare` of every kind and `inspect` of what it made, as they are typed."""

import json

import numpy as np
import pytest

from plimsoll.cli.main import main

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
        ["--size", "4", "--num-aug", "0.002k", "--subsample-size", "10"],  # a count may be typed short
        {"groups": 10, "puzzles": 30, "examples": 30},
    ),
    "maze": (["--size", "3", "--test-size", "1", "--aug"], {"groups": 1, "puzzles": 8, "examples": 8}),
    "arc": (["--num-aug", "3"], {"groups": 1, "puzzles": 4, "examples": 4}),
}


@pytest.mark.parametrize("what", SETS)
def test_a_set_of_puzzles_is_made_and_looked_at(what, tmp_path, capsys):
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
    assert f"{found['seq_len']:,} tokens of a vocabulary of {found['vocab_size']}" in typed(capsys, "inspect", out)


def test_a_damaged_set_of_puzzles_is_said_with_the_row_and_the_file(tmp_path, capsys):
    text = typed(capsys, "prepare", "sudoku", "--size", "4", "--num-aug", "0", "--out", tmp_path / "set")
    assert "puzzles of 16 tokens" in text
    path = tmp_path / "set/train/all__inputs.npy"
    spoiled = np.load(path)
    spoiled[17, 3] = 200
    np.save(path, spoiled)
    assert "all__inputs.npy: row 17 has the token 200" in typed(capsys, "inspect", tmp_path / "set", code=2)


@pytest.fixture
def interactions(tmp_path):
    lines = [f"{user} {' '.join(str(50 + (user + step) % 12) for step in range(7))}" for user in range(30)]
    (tmp_path / "taken.txt").write_text("\n".join(lines))
    return tmp_path / "taken.txt"


def test_a_set_of_interactions_is_made_and_looked_at(interactions, tmp_path, capsys):
    out = tmp_path / "sets/taken"
    words = ["--interactions", interactions, "--out", out, "--clusters", "0.003k", "--embedding-size", "4"]
    answer = json.loads(typed(capsys, "prepare", "recommend", *words, "--json"))
    assert {"examples", "seconds", "examples_per_second", "bytes"} <= answer.keys()
    assert (answer["examples"], answer["users"], answer["items"], answer["form"]) == (210, 30, 12, "sequences")
    found = json.loads(typed(capsys, "inspect", out, "--json"))
    assert (found["interactions"], found["evaluated_users"], found["training_interactions"]) == (210, 30, 150)
    assert found["largest_cluster"] >= 12 / 3
    assert "150 to train on, 30 items for validation and as many for testing" in typed(capsys, "inspect", out)


def test_what_was_left_out_of_interactions_is_counted_and_damage_is_said_with_the_file(interactions, tmp_path, capsys):
    interactions.write_text(interactions.read_text() + "\n99 50 50 51 52 53 54\n98 1 2 3\n")
    words = ["--interactions", interactions, "--out", tmp_path / "set", "--clustering", "frequency"]
    text = typed(capsys, "prepare", "recommend", *words)
    assert "219 interactions of 32 users with 15 items" in text
    assert "repeats of an item by the same user, left out: 1" in text
    assert "users with too few: 1" in text
    assert "items with too few: 3" in text
    path = tmp_path / "set/clusters.npy"
    path.write_bytes(path.read_bytes()[:-1])
    assert "clusters.npy has changed since it was written" in typed(capsys, "inspect", tmp_path / "set", code=2)


def test_a_text_is_packed_and_the_same_command_says_that_it_is_finished(tmp_path, capsys):
    texts = tmp_path / "ships.txt"
    texts.write_text("\n\n".join(f"Ship {place} has loaded {place * 31 % 17} crates." for place in range(500)))
    words = ["prepare", "longcontext", "--dataset-id", texts, "--vocab-size", "0.3k", "--out", tmp_path / "a/packed/"]
    found = json.loads(typed(capsys, *words, "--json"))
    assert {"examples", "seconds", "tokens_per_second", "bytes"} <= found.keys()
    assert found["examples"] == found["documents"] + found["validation_documents"] == 500
    assert found["vocab_size"] == 300
    assert "is finished" in typed(capsys, *words)
    text = typed(capsys, *words[:-1], tmp_path / "b", "--workers", "1")
    assert f"{found['tokens']:,} tokens of {found['documents']:,} documents" in text
