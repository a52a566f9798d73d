"""One tiny run of each kind, trained once for all tests of the commands that use it."""

import json
import os
import random
import shlex
from pathlib import Path

import pytest

from commands import PUZZLES, TINY, plimsoll

os.environ.setdefault("JAX_PLATFORMS", "cpu")

WORDS = shlex.split("the a cat dog sat ran on under mat tree and then saw big small red blue house")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    draw = random.Random(0)
    documents = [" ".join(draw.choice(WORDS) for _ in range(80)) for _ in range(400)]
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


@pytest.fixture(scope="session")
def tiny_command(text_file, tmp_path_factory):
    """`train` and its arguments, but for --run; the folder of the run."""
    return ["train", "stories", "--dataset-id", str(text_file), *TINY, "--quiet"], tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def tiny_run(tiny_command) -> Path:
    command, folder = tiny_command
    done = plimsoll(*command, "--run", folder / "tiny", "--eval-every", 3, "--save-every", 3)
    assert done.returncode == 0, done.stderr
    return folder / "tiny"


@pytest.fixture(scope="session")
def puzzle_command(tmp_path_factory):
    """`train sudoku-4x4` and its arguments, but for --run; the folder of the run."""
    folder = tmp_path_factory.mktemp("puzzles")
    done = plimsoll("prepare", "sudoku", "--size", 4, "--num-aug", 1, "--subsample-size", 20, "--out", folder / "set")
    assert done.returncode == 0, done.stderr
    return ["train", "sudoku-4x4", "--data", str(folder / "set"), *PUZZLES, "--quiet"], folder


@pytest.fixture(scope="session")
def puzzle_run(puzzle_command) -> Path:
    command, folder = puzzle_command
    done = plimsoll(*command, "--run", folder / "run", "--save-every", 2)
    assert done.returncode == 0, done.stderr
    return folder / "run"
