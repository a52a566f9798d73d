"""A recipe of the user's own through the real command line: planned, trained, killed, continued, looked at."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import answer, called, plimsoll
from example_tables import TABLES, written
from once import made_once
from plimsoll.cli.main import main
from plimsoll.report.metrics import read_rows
from small_runs import checkpoint_steps, newest_fingerprint

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
TRAINED = {
    "plain_jax": ["--batch-size", 16, "--gradient-accumulation-steps", 4, "--micro-batch", 16],
    "own_optimizer": [
        *("--width", 32, "--layers", 2, "--heads", 1, "--vocab-size", 300, "--seq-len", 32),
        *("--max-examples", 300, "--micro-batch", 16),
    ],
    "own_model": [
        *("--vocab-size", 300, "--seq-len", 32, "--max-examples", 300, "--batch-size", 16, "--micro-batch", 16),
        *("--dataset-id", "python:standard-library"),
    ],
    "equinox_mlp": ["--width", 16, "--micro-batch", 64],
    "flax_nnx": ["--micro-batch", 128],
    "flax_batchnorm": ["--batch-size", 32, "--norm-group", 8, "--micro-batch", 16],
    "flax_linen": ["--micro-batch", 64, "--precision", "bfloat16", "--remat", "block"],
}
STEPS, SAVE_EVERY = 600, 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Example to the folder of its run, of six steps; once each, and that of plain JAX at once."""

    def of(name):
        def train(folder):
            words = ["train", EXAMPLES / f"{name}.py", *TRAINED[name], "--memory", "1GiB", "--run", folder / name]
            done = plimsoll(*words, "--steps", 6, "--eval-every", 3, "--save-every", 3, "--log-every", 1, "--quiet")
            assert done.returncode == 0, done.stderr

        return made_once(tmp_path_factory, f"run-of-{name}", train) / name

    of("plain_jax")
    return of


def test_every_example_is_trained_here():
    assert {*TRAINED, *TABLES} == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.by_hand
@pytest.mark.parametrize("name", TABLES)
def test_an_example_turns_its_table_into_hdf5_and_trains_on_it(folder, name):
    table, file = written(name, folder), EXAMPLES / f"{name}.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, file, table], cwd=folder, env=environment, check=True)
    run = folder / name
    words = ["train", file, "--memory", "1GiB", "--run", run, "--micro-batch", 128, "--steps", 12, "--log-every", 1]
    done = plimsoll(*words, "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["measured"]["peak_bytes"] <= ledger["budget_bytes"]
    rows = list(read_rows(run / "metrics.jsonl"))
    assert rows[-1]["validation_loss"] < rows[0]["loss"]
    assert all(row["data_seconds"] <= row["step_seconds"] for row in rows if "data_seconds" in row)


@pytest.mark.slow_except("plain_jax")
@pytest.mark.parametrize("name", TRAINED)
def test_an_example_trains_inside_its_budget(trained, name):
    run = trained(name)
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["measured"]["peak_bytes"] <= ledger["budget_bytes"]
    rows = list(read_rows(run / "metrics.jsonl"))
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 7))
    assert rows[-1]["validation_loss"] < next(row["loss"] for row in rows)


def test_the_commands_that_look_at_a_run_take_it(trained):
    run = trained("plain_jax")
    found = answer("evaluate", run, "--step", "last")
    losses = [row["validation_loss"] for row in read_rows(run / "metrics.jsonl") if "validation_loss" in row]
    assert found["loss"] == losses[-1]
    assert found["weight"] == 500
    assert 0 <= found["accuracy"] <= 1
    assert answer("fingerprint", run)["step"] == 6
    row = answer("runs", run)["runs"][0]
    assert (row["recipe"], row["state"]) == ("plain_jax", "finished")
    refused = called("sample", run)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.rstrip().endswith("is a run of plain_jax, which writes no text")


@pytest.mark.slow
def test_a_model_of_ours_with_an_optimizer_in_a_file_is_used_as_ever(trained):
    assert answer("sample", trained("own_optimizer"), "--tokens", 5)["tokens"] == 5
    assert "which writes no text" not in called("report", trained("own_optimizer")).stderr


def stands_at(run):
    """Step and fingerprint of the newest checkpoint."""
    return checkpoint_steps(run)[0], newest_fingerprint(run)


def train_command(file, run):
    words = ["train", file, "--memory", "1GiB", "--run", run, "--micro-batch", 32, "--steps", STEPS, "--quiet"]
    return [*words, "--save-every", SAVE_EVERY, "--eval-every", 0]


def killed_at_its_first_checkpoint(file, run):
    command = [sys.executable, "-m", "plimsoll.cli.main", *map(str, train_command(file, run))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (run / f"checkpoints/step-{SAVE_EVERY:08d}/manifest.json").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stderr.close()


@pytest.fixture(scope="module")
def file(folder):
    """A copy, to be changed."""
    return Path(shutil.copy(EXAMPLES / "plain_jax.py", folder / "mine.py"))


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_state_and_other_code_does_not(folder, file):
    whole, killed = folder / "whole", folder / "killed"
    done = plimsoll(*train_command(file, whole))
    assert done.returncode == 0, done.stderr
    killed_at_its_first_checkpoint(file, killed)
    assert stands_at(killed)[0] < STEPS

    content = file.read_text()
    file.write_text(content.replace("WIDTH = 64", "WIDTH = 32"))
    done = plimsoll(*train_command(file, killed))
    assert done.returncode == 2
    assert f"{file} changed since the run began" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    file.write_text(content)

    done = plimsoll(*train_command(file, killed))
    assert done.returncode == 0, done.stderr
    assert json.loads((killed / "ledger.json").read_text())["resumed_from_step"] >= SAVE_EVERY
    assert stands_at(killed) == stands_at(whole)


def test_a_mistake_that_only_tracing_finds_is_one_paragraph(folder, capsys):
    path = folder / "wrong.py"
    path.write_text((EXAMPLES / "plain_jax.py").read_text().replace('params["out"]["bias"]', 'params["oat"]["bias"]'))
    assert main(["plan", str(path), "--memory", "1GiB", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    error = printed.err[printed.err.index("error: ") :]
    assert error.startswith("error: loss of wrong.py failed: KeyError: 'oat'\n  wrong.py, line ")
    assert len(error.splitlines()) == 2


def test_an_option_that_a_users_recipe_has_not_is_refused(capsys):
    assert main(["plan", str(EXAMPLES / "plain_jax.py"), "--width", "3"]) == 2
    assert "--width" in capsys.readouterr().err
