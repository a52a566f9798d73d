"""The program that counts words: docstrings and help texts meet its goals, and it would notice if they did not."""

import json

import pytest

from programs import program


@pytest.fixture(scope="module")
def words():
    with program("words") as loaded:
        yield loaded


def test_the_goals_are_met(words, capsys):
    assert words.main(["--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    for texts in ("docstrings", "help"):
        assert counted[f"{texts}: sentences of more than 30 words"] == "0.0%"
        assert counted[f"{texts}: texts that are empty"] == "0"
        assert float(counted[f"{texts}: texts that begin with a preposition or conjunction"].rstrip("%")) <= 2
    of_callers = [value for name, value in counted.items() if name.startswith("public")]
    assert all(float(value.partition("(")[2].rstrip("%)")) >= 90 for value in of_callers), of_callers


def test_sections_names_and_examples_are_no_sentences(words):
    text = "Loads a run.\n\nArgs:\n    path: Folder of the run.\n\nExample:\n    >>> load('runs/mine')"
    assert words.sentences(text) == ["Loads a run.", "Folder of the run."]


def test_a_text_that_begins_with_a_preposition_and_a_long_sentence_are_counted(words):
    rows = words.style("help", [("--seed", "Of the parameters."), ("--steps", "word " * 40), ("--run", "Folder.")])
    counted = {row.what.partition(": ")[2]: row.count for row in rows}
    assert counted["texts that begin with a preposition or conjunction"] == "33.3%"
    assert counted["sentences of more than 30 words"] == "33.3%"
