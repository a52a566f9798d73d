"""`train A B C --runs DIR`: one run after another; what is finished is skipped, what fails stops no other."""

import json
import signal
import subprocess
import sys

import pytest

from commands import called, plimsoll
from plimsoll.cli import train_several as several
from plimsoll.cli.main import main

TWO = ["sudoku-4x4", "sudoku-6x6"]


@pytest.fixture
def started(monkeypatch):
    """The commands that were started, and the code that each name ends with."""
    commands, codes = [], {}

    def watched(command, *, tied):
        assert tied  # a run ends with the command that started it
        commands.append(command[command.index("train") :])
        return codes.get(command[command.index("train") + 1], (0, None))

    monkeypatch.setattr(several, "watched", watched)
    return commands, codes


def test_each_gets_its_own_run_and_the_options_of_all(started, tmp_path):
    commands, _ = started
    assert main(["train", *TWO, "--steps", "7", "--runs", str(tmp_path), "--quiet"]) == 0
    shared = ["--steps", "7", "--quiet", "--run"]
    assert commands == [["train", name, *shared, str(tmp_path / name)] for name in TWO]
    assert main(["train", "sudoku-4x4", f"--runs={tmp_path}"]) == 0
    assert main(["train", "--preset", "sudoku-4x4", f"--runs={tmp_path}"]) == 0
    assert commands[2:] == [["train", "sudoku-4x4", "--run", str(tmp_path / "sudoku-4x4")]] * 2


@pytest.mark.parametrize(
    ("codes", "worst"),
    [({}, 0), ({"sudoku-4x4": 2}, 2), ({"sudoku-4x4": 3, "maze": 2}, 3), ({"maze": 1, "sudoku-4x4": 3}, 1)],
)
def test_one_that_fails_stops_no_other_and_the_worst_code_is_returned(codes, worst, started, tmp_path, capsys):
    commands, ends = started
    ends |= {name: (code, None) for name, code in codes.items()}
    assert main(["train", *TWO, "maze", "--runs", str(tmp_path)]) == worst
    assert len(commands) == 3
    said = capsys.readouterr().err
    assert all(f"{name}: ended with code {code}" in said for name, code in codes.items())


def test_an_interruption_stops_those_that_follow(started, tmp_path, capsys):
    commands, ends = started
    ends["sudoku-4x4"] = 130, signal.SIGINT
    assert main(["train", *TWO, "--runs", str(tmp_path)]) == 130
    assert len(commands) == 1
    assert "the same command goes on from here" in capsys.readouterr().err


def test_a_signal_is_handed_on_once_and_the_code_is_the_childs():
    waits = (
        "import signal as s, sys, time; s.signal(15, lambda *_: sys.exit(143)); print(1, flush=True); time.sleep(60)"
    )
    program = (
        "import sys; from plimsoll.processes.supervise import watched\n"
        f"print(*watched([sys.executable, '-c', {waits!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"  # the child is there, and listens
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "143 15\n"
    killed = several.watched([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert killed == (137, None)


def test_a_signal_that_is_ignored_stays_ignored():
    """As SIGHUP under `nohup`: the watching process would hand it on, and the watched one end."""
    says = "import signal; print(signal.getsignal(signal.SIGHUP))"
    program = (
        "import signal, sys; from plimsoll.processes.supervise import watched\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"watched([sys.executable, '-c', {says!r}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() in ("Handlers.SIG_IGN", "1")


def test_a_finished_run_is_skipped_and_the_others_go_on(puzzle_command, puzzle_run, started, tmp_path, capsys):
    command, _ = puzzle_command
    (tmp_path / "sudoku-4x4").symlink_to(puzzle_run)
    commands, _ = started
    words = ["train", "sudoku-4x4", *command[2:]]
    assert main([*words, "--runs", str(tmp_path)]) == 0
    assert commands == []
    said = capsys.readouterr().out
    assert f"[1/1] sudoku-4x4: finished, skipped ({tmp_path / 'sudoku-4x4'})" in said
    assert "exact at best" in said
    assert main([*words, "--learning-rate", "0.1", "--runs", str(tmp_path)]) == 0  # another recipe: `train` refuses it
    assert len(commands) == 1


@pytest.mark.by_hand
def test_runs_are_really_trained_and_compared(puzzle_command, puzzle_run, tmp_path):
    command, _ = puzzle_command
    words = ["train", "sudoku-4x4", *command[2:], "--runs", tmp_path]
    done = plimsoll(*words)
    assert done.returncode == 0, done.stderr
    assert "exact at best" in done.stdout
    assert "finished, skipped" in plimsoll(*words).stdout
    (row,) = json.loads(called("runs", tmp_path, "--json").stdout)["runs"]
    assert (row["name"], row["step"], row["state"]) == ("sudoku-4x4", 4, "finished")
    assert 0 <= row["exact_accuracy"] <= 1


def test_a_data_set_that_is_not_for_all_of_them_is_refused_before_the_first_starts(puzzle_command, started, capsys):
    command, _ = puzzle_command
    assert main(["train", *TWO, *command[2:], "--runs", "r"]) == 2
    assert "seq-len 16 where the model has 36" in capsys.readouterr().err
    assert started[0] == []


REFUSED = {
    "no folder": ([*TWO], "names 2 recipes: give --runs FOLDER"),
    "the same twice": (["maze", "maze", "--runs", "r"], "two of maze, maze would have the same run in r"),
    "run and runs": ([*TWO, "--runs", "r", "--run", "x"], "--run names one run, and --runs the folder"),
    "an option of one alone": (
        ["maze", "code", "--low-cycles", "3", "--runs", "r"],
        "no option --low-cycles",
    ),
    "an address": ([*TWO, "--runs", "s3://bucket/runs"], "--runs takes a folder: train one recipe at a time"),
    "no such recipe": (["maze", "mace", "--runs", "r"], "there is no recipe called 'mace'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused_before_the_first_starts(case, started, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, said = REFUSED[case]
    assert main(["train", *words]) == 2
    assert said in capsys.readouterr().err
    assert started[0] == []
    assert not list(tmp_path.iterdir())
