"""`plimsoll prepare recommend` and `inspect` of what it made, as they are typed."""

import json

import pytest

from plimsoll.cli.main import main

LINES = [f"{user} {' '.join(str(50 + (user + step) % 12) for step in range(7))}" for user in range(30)]


def typed(capsys, *words, code=0):
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.fixture
def file(tmp_path):
    (tmp_path / "taken.txt").write_text("\n".join(LINES))
    return tmp_path / "taken.txt"


def test_a_set_is_made_and_looked_at(file, tmp_path, capsys):
    out = tmp_path / "sets/taken"  # the folder above it is made too
    words = ["--interactions", file, "--out", out, "--clusters", "0.003k", "--embedding-size", "4"]
    answer = json.loads(typed(capsys, "prepare", "recommend", *words, "--json"))
    assert {"examples", "seconds", "examples_per_second", "bytes"} <= answer.keys()
    assert (answer["examples"], answer["users"], answer["items"], answer["form"]) == (210, 30, 12, "sequences")
    found = json.loads(typed(capsys, "inspect", out, "--json"))
    assert (found["interactions"], found["evaluated_users"], found["training_interactions"]) == (210, 30, 150)
    assert found["largest_cluster"] >= 12 / 3
    text = typed(capsys, "inspect", out)
    assert "150 to train on, 30 items for validation and as many for testing" in text
    assert "30, each with 7.0 items on average" in text
    assert "--embedding-size  4" in text


def test_what_was_left_out_is_said_in_words(file, tmp_path, capsys):
    file.write_text(file.read_text() + "\n99 50 50 51 52 53 54\n98 1 2 3\n")
    text = typed(capsys, "prepare", "recommend", "--interactions", file, "--out", tmp_path / "set")
    assert "read as --format sequences: 219 interactions of 32 users with 15 items" in text
    assert "were of an item that the user had taken before, and left out: 1" in text
    assert "left out with the users and items that have too few: 3" in text
    assert "users with too few: 1" in text
    assert "items with too few: 3" in text
    assert "clusters: 4 by kmeans" in text


def test_a_damaged_set_is_said_with_the_file(file, tmp_path, capsys):
    words = ["--interactions", file, "--out", tmp_path / "set", "--clustering", "frequency"]
    typed(capsys, "prepare", "recommend", *words)
    path = tmp_path / "set/clusters.npy"
    path.write_bytes(path.read_bytes()[:-1])
    assert "clusters.npy has changed since it was written" in typed(capsys, "inspect", tmp_path / "set", code=2)
