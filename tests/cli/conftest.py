"""One tiny run, trained once for all tests of the commands that use it; and the commands, called as a user does."""

import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

WORDS = shlex.split("the a cat dog sat ran on under mat tree and then saw big small red blue house")
TINY = shlex.split(
    "--width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 4 --steps 6"
    " --shuffle-buffer-size 16 --micro-batch 4 --remat none --loss-chunk 0 --precision float32"
)
"""Every lever pinned, so that little is compiled."""


def plimsoll(*arguments, timeout=600, cwd=None):
    """The command in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "plimsoll.cli.main",
        *(word if isinstance(word, bytes) else str(word) for word in arguments),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )


def answer(*arguments):
    """What `--json` printed: exactly one object, on one line."""
    done = plimsoll(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    return json.loads(done.stdout)


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


PUZZLES = shlex.split(
    "--width 32 --heads 1 --batch-size 8 --steps 4 --warmup-steps 2 --validation-examples 20"
    " --micro-batch 8 --remat none --precision float32 --prefetch 0 --async-save False"
)
"""Every lever that a recipe of puzzles has, pinned."""


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
