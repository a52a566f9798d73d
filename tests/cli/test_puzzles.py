"""`plimsoll solve` and `evaluate` of a run of puzzles that was trained a moment ago."""

import json
import shutil

import numpy as np
import pytest

from commands import PUZZLES, answer, called, plimsoll, workers_here
from once import made_once
from plimsoll.api.run import load
from plimsoll.recipes.puzzles.dataset import PuzzleSet
from plimsoll.recipes.puzzles.question import question
from plimsoll.recipes.puzzles.text import solution_text
from plimsoll.recipes.saved import from_dict
from plimsoll.report.metrics import read_rows


def test_evaluating_says_what_training_logged_of_the_average(puzzle_run):
    found = answer("evaluate", puzzle_run, "--step", "last")
    logged = [row for row in read_rows(puzzle_run / "metrics.jsonl") if "validation_loss" in row][-1]
    assert found == {
        "run": str(puzzle_run),
        "step": 4,
        "exact_accuracy": logged["validation_exact_accuracy"],
        "token_accuracy": logged["validation_accuracy"],
        "q_halt_accuracy": logged["validation_q_halt_accuracy"],
        "mean_steps": 16.0,
        "loss": logged["validation_loss"],
        "weight": 20,
    }
    assert found["token_accuracy"] > 0


def test_an_example_of_the_test_split_is_solved_as_in_an_evaluation(puzzle_run, puzzle_command):
    _, data = puzzle_command
    tests = PuzzleSet(data, "test")
    found = answer("solve", puzzle_run, "test:3", "--step", "last")
    asked = tests.batch(np.array([3]))["inputs"][0]
    assert "".join(found["puzzle"]) == "".join(".1234"[token - 1] for token in asked)
    assert [len(row) for row in found["answer"]] == [4] * 4
    assert (found["kind"], found["step"], found["supervision_steps"]) == ("sudoku", 4, 16)
    assert len(found["probabilities"]) == 16
    assert found["would_halt_at"] == next((at + 1 for at, p in enumerate(found["probabilities"]) if p > 0.5), None)
    assert found["valid"] is (found["why_not"] is None)
    assert found["right"] is found["valid"]  # one solution: who keeps the rules has it


TYPED = "12....12\n2...\n.000"


@pytest.fixture(scope="module")
def typed_answer(puzzle_run):
    return answer("solve", puzzle_run, TYPED)


def test_what_is_typed_and_what_stands_in_a_file_is_the_same_question(puzzle_run, typed_answer, tmp_path):
    (tmp_path / "puzzle.txt").write_text("12 ..\n.. 12\n\n2. ..\n.. ..\n")
    recipe = from_dict(json.loads((puzzle_run / "recipe.json").read_text()))
    typed, written = (question(recipe, "RUN", source) for source in (TYPED, str(tmp_path / "puzzle.txt")))
    assert typed == written
    assert typed_answer["puzzle"] == ["12..", "..12", "2...", "...."]
    assert "right" not in typed_answer


def test_python_solves_as_the_command_does(puzzle_run, typed_answer):
    with workers_here():
        assert load(puzzle_run).solve(TYPED) == typed_answer


def test_a_run_solves_where_its_data_set_is_no_longer_there(puzzle_run, typed_answer, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(puzzle_run, moved)
    recipe = json.loads((moved / "recipe.json").read_text())
    recipe["fields"]["data"] = str(tmp_path / "gone")
    (moved / "recipe.json").write_text(json.dumps(recipe))
    assert answer("solve", moved, TYPED) | {"run": ""} == typed_answer | {"run": ""}
    done = called("solve", moved, "test:0")
    assert done.returncode == 2
    assert f"there is no dataset.json in {tmp_path / 'gone/test'}" in done.stderr


GOLDEN = """\
  12 ..      12 34
  .. 12      34 12

  2. ..      21 43
  .. ..      43 21

  valid
  the data set's answer
  16 supervision steps; it would have halted after step 3; 97.5 % sure at the end (checkpoint of step 1,200)"""


def test_golden_solution():
    found = {
        "step": 1200,
        "box": [2, 2],
        "puzzle": ["12..", "..12", "2...", "...."],
        "answer": ["1234", "3412", "2143", "4321"],
        "valid": True,
        "right": True,
        "supervision_steps": 16,
        "would_halt_at": 3,
        "probabilities": [0.1, 0.975],
    }
    assert solution_text(found) == GOLDEN


def test_golden_answers_that_are_none():
    about = {"step": 2, "supervision_steps": 16, "would_halt_at": None, "probabilities": [0.0067], "box": None}
    maze = about | {"puzzle": ["S G"], "answer": ["SoG"], "valid": True}
    assert solution_text(maze).startswith("  S G      SoG\n\n  valid\n")
    arc = about | {"puzzle": ["12", "34"], "answer": [], "right": False}
    assert solution_text(arc).startswith("  12      (no grid)\n  34\n\n  not the data set's answer\n")
    wrong = about | {"puzzle": ["S G"], "answer": ["S?G"], "valid": False, "why_not": "no path"}
    assert "\n\n  not valid: no path\n" in solution_text(wrong)


def arc_task(*colours):
    """Train and test pairs that swap two colours."""
    grids = [[[colour, 0], [0, colour]] for colour in colours]
    pairs = [{"input": one, "output": one[::-1]} for one in grids]
    return {"train": pairs[:-1], "test": pairs[-1:]}


@pytest.fixture(scope="module")
def arc_run(tmp_path_factory):
    def train(folder):
        (folder / "tasks/evaluation").mkdir(parents=True)
        for number in range(3):
            (folder / f"tasks/evaluation/task{number}.json").write_text(json.dumps(arc_task(1 + number, 4, 5)))
        options = ["--num-aug", 2, "--source", folder / "tasks"]
        assert plimsoll("prepare", "arc", *options, "--out", folder / "set").returncode == 0
        small = [*PUZZLES, "--batch-size", 4, "--micro-batch", 4, "--steps", 2]
        cycles = ["--high-cycles", 1, "--low-cycles", 1, "--layers", 1, "--halt-max-steps", 2]
        done = plimsoll("train", "arc-1", "--data", folder / "set", *small, *cycles, "--run", folder / "run", "--quiet")
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "run-of-arc", train)


@pytest.mark.slow
def test_augmentations_vote_and_two_attempts_are_submitted(arc_run, tmp_path):
    out = tmp_path / "submission.json"
    found = answer("evaluate", arc_run / "run", "--step", "last", "--submission", out)
    logged = [row for row in read_rows(arc_run / "run/metrics.jsonl") if "validation_loss" in row][-1]
    assert found["loss"] == pytest.approx(logged["validation_loss"], rel=1e-5)
    assert found["exact_accuracy"] == logged["validation_exact_accuracy"]
    assert [name for name in found if name.startswith("pass@")] == [f"pass@{k}" for k in (1, 2, 5, 10, 100, 1000)]
    assert 0 <= found["pass@1"] <= found["pass@1000"] <= 1
    assert (found["tasks"], found["weight"]) == (3, 9)
    submitted = json.loads(out.read_text())
    assert list(submitted) == ["task0", "task1", "task2"]
    assert all(list(one) == ["attempt_1", "attempt_2"] for attempts in submitted.values() for one in attempts)
    assert "submission" not in found

    found = answer("solve", arc_run / "run", "test:0")
    assert (found["kind"], found["supervision_steps"]) == ("arc", 2)
    assert [len(row) for row in found["puzzle"]] == [2, 2]  # without its canvas
    assert "valid" not in found
