"""The example in the help of every recipe runs, with its data and its model made small."""

import shlex

import pytest

from chat_files import chats, write_records
from commands import plimsoll
from control_files import write_control
from interaction_files import write_random
from packed_files import write_packed
from plimsoll.api import plan_of_run
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset
from puzzle_files import write_split
from small_runs import write_text
from tuning_files import write_model

SMALL = {
    "stories": "--target-params 60k --vocab-size 300 --seq-len 32 --batch-size 4",
    "control": "--width 32 --layers 1 --heads 1 --batch-size 8",
    "puzzles": "--width 32 --heads 1 --high-cycles 1 --low-cycles 1 --halt-max-steps 2 --validation-examples 8"
    " --batch-size 8",
    "longcontext": "--width 32 --layers 2 --states 8 --seq-len 32 --batch-size 4",
    "recommend": "--batch-size 4 --gradient-accumulation-steps 1",
    "finetune": "--seq-len 128 --batch-size 4",
}
"""Options that make a recipe small, by its kind."""
PUZZLES = {"sudoku": (81, 11), "sudoku-4x4": (16, 6), "sudoku-6x6": (36, 8), "maze": (900, 6), "arc": (900, 12)}
"""Sets of puzzles: tokens of a puzzle, and of the vocabulary."""
OF_ANOTHER = {
    *("sudoku-mlp", "sudoku-4x4", "sudoku-6x6", "arc-1", "arc-2"),
    *("longcontext-micro", "longcontext-tiny", "longcontext-small", "longcontext-nano"),
    *("longcontext-medium-32k", "longcontext-large-32k"),
    *("recommend-no-lm", "recommend-debug", "recommend-tpu-optimized"),
}
"""Made small, these differ from another one in numbers alone: `sudoku`, `arc`, `longcontext`, and so on."""
PLANNED = "it would be planned now"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with everything that the examples name, small."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "my-texts").mkdir()
    write_text(folder / "my-texts/text.txt")
    write_control(folder / "windows.h5", rows=600)
    write_packed(folder / "packed", [*range(1, 250), 256] * 20, validation=[*range(1, 250), 256] * 2)
    write_random(folder / "interactions", users=60, width=0)
    write_records(folder / "chats.jsonl", chats(200))
    for name in ("gemma", "llama", preset("finetune").model.pretrained):
        write_model(folder / name)
    for name, (seq_len, vocab_size) in PUZZLES.items():
        for split in ("train", "test"):
            sizes = {"seq_len": seq_len, "vocab_size": vocab_size, "identifiers": 1}
            write_split(folder / "data" / name / split, groups=[[1]] * 20, **sizes)
    return folder


def example(name):
    """Returns the words of a recipe's example, and those that make it small."""
    words = ["train", name, *shlex.split(PRESETS[name].example)]
    added = shlex.split(SMALL[preset(name).kind])
    if preset(name).kind == "recommend" and "--pretrained" not in words:
        added += ["--width", "32", "--layers", "1", "--heads", "1"]
    return words, added


@pytest.mark.parametrize("name", PRESETS)
def test_the_data_of_an_example_is_prepared_and_a_plan_is_searched(name, place, monkeypatch, capsys, tmp_path):
    def planned(*_, **__):
        raise PlimsollError(PLANNED)

    monkeypatch.chdir(place)
    monkeypatch.setattr(plan_of_run, "find_plan", planned)
    words, small = example(name)
    assert main([*words, *small, "--chip", "cpu", "--run", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.endswith(f"error: {PLANNED}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.by_hand if name in OF_ANOTHER else ()) for name in PRESETS]
)
def test_an_example_trains(name, place, tmp_path):
    words, small = example(name)
    short = ["--max-steps", "2", "--within", "1s", "--micro-batch", "4", "--precision", "float32", "--remat", "none"]
    ended = plimsoll(*words, *small, *short, "--run", tmp_path / "run", cwd=place)
    assert ended.returncode == 0, ended.stderr
    assert RunFolder(tmp_path / "run").saved_steps()[-1] == 2
