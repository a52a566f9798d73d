"""Forty mistakes, typed or called, and what their answer names: the option, the facts, and what was meant."""

import shlex

import pytest

import plimsoll
from plimsoll.api import plan_of_run
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError

TYPED = {
    # Commands and recipes.
    "trian stories": "'trian' | did you mean train?",
    "train storys": "'storys' | did you mean stories? | `plimsoll recipes`",
    "finetune": "'finetune' | `plimsoll train finetune`",
    "train noise.txt": "noise.txt is no recipe | `plimsoll train stories --dataset-id noise.txt`",
    "plan": "plimsoll plan needs a recipe first | `plimsoll plan code` | my_recipe.py",
    "train my_recipe.py": "no recipe file my_recipe.py | docs/your-own.md",
    "prepare chess": "'chess' | sudoku, maze, arc",
    "prepare sudoko": "'sudoko' | did you mean sudoku?",
    "prepare": "control, sudoku, maze, arc",
    # Options that are no option, or one of another recipe or command.
    "plan code --batchsize 8": "--batchsize | did you mean --batch-size?",
    "train finetune --target-params 5M": "the recipe finetune has no option --target-params | one of stories, code",
    "plan longcontext --heads 4 --rslora": "the recipe longcontext has no option --rslora | one of finetune",
    "train code --use-mixed-precison": "did you mean --use-mixed-precision",
    "train stories --no-submt": "did you mean --no-submit",
    "evaluate runs/x --memory 3GiB": "no option --memory | `plimsoll evaluate --help`",
    "report runs/x --tokens 3": "no option --tokens | `plimsoll report --help`",
    "plan code --data a --dataset-id b": "--dataset-id and --data are the same option",
    "plan code --help optimiser": "'optimiser' | did you mean optimizer?",
    "evaluate runs/x runs/y": "nothing more is expected | 'runs/y'",
    # Values that are missing, or of another kind.
    "evaluate": "plimsoll evaluate needs RUN",
    "plan code --heads": "--heads: expected one argument",
    "prepare sudoku": "plimsoll prepare sudoku needs --out",
    "plan code --seq-len abc": "--seq-len takes a whole number, got 'abc'",
    "plan code --learning-rate fast": "--learning-rate takes a number, got 'fast'",
    "plan code --target-params 1.5Q": "--target-params | 1.5Q | 1.3M",
    "plan code --remat blocks": "--remat takes one of none, dots, block, offload, got 'blocks'",
    "plan code --largest width": "--largest takes one of seq-len, batch-size, lora-rank, target-params, got 'width'",
    "plan code --async-save perhaps": "--async-save takes True or False, got 'perhaps'",
    # Sizes and times, before any data is looked for.
    "train stories --memory 400": "--memory 400 is 400 B | 400MiB?",
    "train stories --memory lots": "--memory: the size 'lots' | 768MiB or 2GB",
    "plan code --memory '1 gig'": "--memory: the size '1 gig' | 768MiB or 2GB",
    "plan code --memory 4k": "--memory 4k | 4.0 KiB | 4GiB",
    "plan code --chip h100 --host-memory 8": "--host-memory 8 | 8 B | 8GiB",
    "plan code --within xyz": "--within: the time 'xyz' | 90s, 3min or 2h",
    # Chips and devices.
    "plan code --chip rtx5099": "'rtx5099' | did you mean rtx5090",
    "plan code --chip a100": "a100-40 | a100-80",
    "plan code --mesh data=3 --chip h100x8": "--mesh data=3 | 64 examples",
    # Options that do not go together.
    "plan stories --width 100 --layers 2": "--width, --layers and --heads | 100, 2 and None",
    "plan code --target-params 5M --width 64": "--target-params 5,000,000 | --width 64 | leave one of the two out",
    "plan stories --swap optimizer=muon,optimizer=lion": "names two parts for optimizer",
    "plan stories --swap model=eigen --target-params 60k": "stories --swap model=eigen has no option --target-params |"
    " one of stories, code",
    "plan code --target-params 1M --width 64": "--target-params 1,000,000 | --width 64 | leave one of the two out",
    "plan code --steps 5 --epochs 2": "--steps 5 | --epochs 2",
    # Data, runs and models.
    "train stories --dataset-id nofile.txt": "'nofile.txt' is no file or folder here",
    "train stories --dataset-id noise.txt --memory 400MiB": "noise.txt is not UTF-8 | iconv",
    "train finetune": "--dataset-id is missing | `messages`",
    "train maze": "--data is missing | plimsoll prepare maze",
    "evaluate runs/none": "runs/none is not a run | `plimsoll runs`",
    "resume runs/none": "runs/none is not a run",
    "plan finetune --lora-targets foo": "no leaf matches foo | blocks/query/kernel",
    "plan finetune --seq-len 65536": "--seq-len 65,536 | 8,192 | lower it to that",
}
"""What is typed, and parts of the one paragraph that answers it."""

CALLED = [
    (lambda: plimsoll.plan("stories", micro_batch=4), "pins={'micro_batch': 4}"),
    (lambda: plimsoll.train("storys"), "did you mean stories?"),
    (lambda: plimsoll.plan("code", seq_length=64), "seq_length | did you mean seq_len?"),
    (lambda: plimsoll.train("code", log_evry=3), "log_evry | did you mean log_every?"),
    (lambda: plimsoll.preset("code", target_param=5_000_000), "target_param | did you mean target_params?"),
    (lambda: plimsoll.preset("code", batch_size=2.5), "--batch-size must be a whole number, got 2.5"),
    (lambda: plimsoll.train("code", max_steps="many"), "--max-steps must be a whole number, got 'many'"),
    (lambda: plimsoll.train("code", memory=1.5), 'memory=1.5 is 1 B | memory="1.5GiB"?'),
    (lambda: plimsoll.train("code", tracker="tensorbord"), "--tracker must be one of none, wandb, trackio, mlflow"),
    (lambda: plimsoll.load("runs/none"), "runs/none is not a run"),
]
"""Calls, and parts of their error."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder with a file that is no text, in which nothing is planned or downloaded."""
    (tmp_path / "noise.txt").write_bytes(bytes(range(256)) * 20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_of_run, "find_plan", lambda *_, **__: pytest.fail("it was planned first"))
    return tmp_path


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.usefixtures("place")
def test_what_is_mistyped_is_answered_with_what_was_meant(typed, capsys):
    assert main(shlex.split(typed)) == 2
    error = capsys.readouterr().err
    assert error.startswith(("error: ", "  on the CPU", "  the compiler"))
    assert "\n" not in error.partition("error: ")[2].strip(), "one paragraph"
    for part in TYPED[typed].split(" | "):
        assert part in error
    words = error.replace("`", " ").split(", ")
    assert len([word for word in words if " " not in word]) <= 12, "no wall of names"


@pytest.mark.parametrize(("call", "words"), CALLED, ids=[words for _, words in CALLED])
@pytest.mark.usefixtures("place")
def test_what_is_called_wrongly_is_answered_with_what_was_meant(call, words):
    with pytest.raises(PlimsollError) as refusal:
        call()
    for part in words.split(" | "):
        assert part in str(refusal.value)


def test_there_are_forty():
    assert len(TYPED) + len(CALLED) >= 40
