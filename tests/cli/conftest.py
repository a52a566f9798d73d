"""One tiny run of each kind, trained once for all tests of the commands that use it."""

import json
import random
import shlex
from pathlib import Path

import pytest

from commands import PUZZLES, plimsoll
from once import made_once

WORDS = shlex.split("the a cat dog sat ran on under mat tree and then saw big small red blue house")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> Path:
    def write(folder: Path) -> None:
        draw = random.Random(0)
        documents = [" ".join(draw.choice(WORDS) for _ in range(80)) for _ in range(400)]
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))

    return made_once(tmp_path_factory, "text-of-commands", write) / "text.jsonl"


@pytest.fixture(scope="session")
def tiny_run(runs) -> Path:
    """The one run of text: 24 steps, with checkpoints of steps 20 and 24 and an average of the weights."""
    return runs.trained()


@pytest.fixture(scope="session")
def puzzle_command(tmp_path_factory) -> tuple[list[str], Path]:
    """`train sudoku-4x4` and its arguments, but for --run; the folder of its data set."""

    def prepare(folder: Path) -> None:
        words = ["--size", 4, "--num-aug", 1, "--subsample-size", 20, "--out", folder / "set"]
        done = plimsoll("prepare", "sudoku", *words)
        assert done.returncode == 0, done.stderr

    data = made_once(tmp_path_factory, "set-of-puzzles", prepare) / "set"
    return ["train", "sudoku-4x4", "--data", str(data), *PUZZLES, "--quiet"], data


@pytest.fixture(scope="session")
def puzzle_run(puzzle_command, tmp_path_factory) -> Path:
    def train(folder: Path) -> None:
        done = plimsoll(*puzzle_command[0], "--run", folder / "run", "--save-every", 2)
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "run-of-puzzles", train) / "run"
