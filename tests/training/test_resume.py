"""A run can be killed anywhere: the same command again ends at the same parameters, bit for bit.

Real processes, real signals; nothing waits a fixed time.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from plimsoll.inference.trained import Trained
from plimsoll.training.checkpoints import read_leaves
from small_runs import STEPS, checkpoint_steps, last_row, newest_fingerprint, rows


@pytest.fixture(scope="module")
def uninterrupted(runs):
    return runs.trained()


def test_what_is_used_is_the_average_and_the_ledger_has_its_bytes(uninterrupted):
    trained = Trained(str(uninterrupted), step="last")
    kept = dict(read_leaves(trained.checkpoint, only="['ema']"))
    used = jax.tree.leaves(trained.stored()["trainable"])
    for leaf, saved in zip(used, kept.values(), strict=True):
        np.testing.assert_array_equal(leaf, saved)
    assert {leaf.dtype for leaf in kept.values()} == {np.dtype(np.uint16), np.dtype(np.float32)}
    components = json.loads((uninterrupted / "ledger.json").read_text())["components"]
    assert components["ema"]["measured"] == sum(leaf.nbytes for leaf in kept.values())
    assert components["parameters"]["measured"] > 1.9 * components["ema"]["measured"]  # of 32 bits and of 16


def losses(run, name="loss"):
    return [(row["step"], row[name]) for row in rows(run) if name in row]


def assert_same_history(run, uninterrupted):
    """The same parameters and position, and every row there once, with the same numbers."""
    assert newest_fingerprint(run) == newest_fingerprint(uninterrupted)
    assert [step for step, _ in losses(run)] == list(range(1, STEPS + 1))
    assert losses(run) == losses(uninterrupted)
    evaluated = losses(run, "validation_loss")
    assert evaluated == sorted(dict(evaluated).items())
    assert set(evaluated) >= set(losses(uninterrupted, "validation_loss"))  # and one where a session ended


def resumed_from(run):
    return json.loads((run / "ledger.json").read_text())["resumed_from_step"]


def is_saving(run):
    """True while Orbax writes, and until the manifest is there."""
    steps = (run / "checkpoints").glob("step-*")
    return any(not (step / "manifest.json").exists() for step in steps)


def is_saving_after(step):
    return lambda run: bool(checkpoint_steps(run)) and checkpoint_steps(run)[0] >= step and is_saving(run)


def test_a_run_that_was_killed_stopped_and_damaged_ends_at_the_same_parameters(runs, uninterrupted):
    run = runs.prepared()

    # Killed during the first save.
    assert runs.run_until(run, is_saving).returncode == -signal.SIGKILL
    left = checkpoint_steps(run)

    # A signal saves the step that it came in, and nothing that was computed is lost.
    ended = runs.run_until(run, lambda run: last_row(run) >= 9, send=signal.SIGTERM)
    assert ended.returncode == 143, ended.stderr
    assert "Traceback" not in ended.stderr
    expected = f"continuing from step {left[0]} of {STEPS}" if left else "starting over, nothing was saved yet"
    assert expected in (run / "log.txt").read_text()
    saved, before = checkpoint_steps(run)[:2]
    assert 9 <= saved == last_row(run) < STEPS

    # One bit is wrong in every file of what was saved: that is set aside and said, and the one before it is used.
    for path in (run / f"checkpoints/step-{saved:08d}/state").rglob("d/*"):
        flipped = bytearray(path.read_bytes())
        flipped[len(flipped) // 2] ^= 1
        path.write_bytes(flipped)
    again = runs.run(run)
    assert again.returncode == 0, again.stderr
    said = f"checkpoint {saved} is damaged"
    assert said in again.stdout + again.stderr
    assert said in (run / "log.txt").read_text()
    assert any(said in note for note in json.loads((run / "ledger.json").read_text())["notes"])
    assert resumed_from(run) == before
    assert_same_history(run, uninterrupted)
    assert not is_saving(run)


MOMENTS = {
    "killed before the first checkpoint": (signal.SIGKILL, -9, lambda run: last_row(run) >= 2),
    "killed between checkpoints": (signal.SIGKILL, -9, lambda run: last_row(run) >= 14),
    "interrupted": (signal.SIGINT, 130, lambda run: last_row(run) >= 9),
}


@pytest.mark.by_hand
def test_a_run_killed_again_and_again_gets_there(runs, uninterrupted):
    run = runs.prepared()
    right_after_a_checkpoint = lambda run: checkpoint_steps(run)[:1] >= [8]  # noqa: E731
    right_before_the_end = lambda run: last_row(run) >= STEPS - 1  # noqa: E731
    for moment in (right_after_a_checkpoint, is_saving_after(12), right_before_the_end):
        assert runs.run_until(run, moment).returncode == -signal.SIGKILL
    assert runs.run(run).returncode == 0
    assert resumed_from(run) >= 12
    assert_same_history(run, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_ended_at_another_moment_continues_to_the_same_parameters(runs, uninterrupted, moment):
    number, code, is_reached = MOMENTS[moment]
    run = runs.prepared()
    ended = runs.run_until(run, is_reached, send=number)
    assert (ended.returncode, ended.stderr) == (code, "")
    left = checkpoint_steps(run)
    assert runs.run(run).returncode == 0
    assert resumed_from(run) == (left[0] if left else None)
    assert_same_history(run, uninterrupted)


@pytest.mark.slow
def test_saving_between_steps_or_beside_them_changes_no_bit(runs, uninterrupted):
    run = runs.prepared()
    planned = json.loads((run / "plan.json").read_text())
    assert planned["plan"]["async_save"]  # what every other test here does
    planned["plan"]["async_save"] = False
    (run / "plan.json").write_text(json.dumps(planned))
    assert runs.run_until(run, is_saving_after(8)).returncode == -signal.SIGKILL
    assert runs.run(run).returncode == 0
    assert resumed_from(run) >= 8
    assert_same_history(run, uninterrupted)


@pytest.mark.slow
def test_a_closed_terminal_saves_as_a_signal_does(runs):
    """What it prints meanwhile goes nowhere: the terminal is gone before the save."""
    run = runs.prepared()
    master, terminal = os.openpty()
    command = [word for word in runs.command(run) if word != "--quiet"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    script = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *command],
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        env=environment,
        start_new_session=True,
    )
    os.close(terminal)
    deadline = time.monotonic() + 600
    while last_row(run) < 1:  # as early as can be: a busy machine wakes this test late
        assert process.poll() is None
        assert time.monotonic() < deadline
        if select.select([master], [], [], 0.001)[0]:
            os.read(master, 2**16)
    os.close(master)
    assert process.wait(timeout=600) == 129
    assert checkpoint_steps(run)[0] == last_row(run) >= 1


def started_anew(process):
    """The command line has become the training process."""
    return lambda _run: b"plimsoll.worker" in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def imports_jax(process):
    return lambda _run: "libjax_common" in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "code"), [(started_anew, signal.SIGTERM, 143), (imports_jax, signal.SIGINT, 130)]
)
def test_a_signal_while_the_process_starts_ends_it_quietly_and_soon(runs, moment, number, code):
    run = runs.prepared()
    ended = runs.run_until(run, moment, send=number, of_process=True)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert last_row(run) == 0
    assert "interrupted" in ended.stdout


@pytest.mark.slow
def test_a_plan_by_which_steps_were_saved_and_that_was_killed_is_said_when_the_run_goes_on(runs):
    """Its own ledger was never written, and its checkpoints are of the plan that goes on."""
    run = runs.copied(runs.trained("--max-steps", "8"))
    before = checkpoint_steps(run)[0]
    changed = ("--micro-batch", "2")
    killed = runs.run_until(run, lambda run: checkpoint_steps(run)[0] > before, "--replan", *changed)
    assert killed.returncode == -signal.SIGKILL
    assert runs.run(run, *changed).returncode == 0
    notes = json.loads((run / "ledger.json").read_text())["notes"]
    assert sum(f"planned again after step {before}: micro batch 2 instead of " in note for note in notes) == 1


@pytest.mark.slow
def test_a_finished_run_stays_as_it_is(runs, uninterrupted):
    run = runs.copied(uninterrupted)
    ended = runs.run(run)
    assert ended.returncode == 0, ended.stderr
    assert_same_history(run, uninterrupted)
    final = next(line for line in (run / "log.txt").read_text().splitlines()[::-1] if "Final Training Loss" in line)
    assert float(final.split()[-1]) == pytest.approx(losses(uninterrupted)[-1][1], abs=1e-6)  # not one of 0.0


@pytest.mark.slow
def test_two_processes_do_not_train_the_same_run(runs):
    run = runs.prepared()
    process = runs.start(run)
    try:
        while last_row(run) < 1:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        other = runs.run(run)
    finally:
        process.kill()
        process.communicate()
    assert other.returncode == 2
    assert f"is being trained by process {process.pid} on " in other.stderr


@pytest.mark.slow
def test_a_loss_that_becomes_nan_stops_the_run_and_keeps_the_last_good_checkpoint(runs):
    options = ("--learning-rate", "1e16", "--save-every", "1", "--clip-norm", "0")
    run = runs.prepared(*options)
    ended = runs.run(run, *options)
    assert ended.returncode == 3
    assert ended.stderr.count("error: ") == 1
    assert "Traceback" not in ended.stderr
    assert re.search(r"step \d+: the loss is nan and the gradient", ended.stderr)
    assert "--learning-rate" in ended.stderr
    kept = checkpoint_steps(run)
    before = newest_fingerprint(run)
    assert kept
    assert kept[0] < STEPS
    again = runs.run(run, *options)  # the same end, from the same checkpoint, and it is still whole
    assert again.returncode == 3
    assert checkpoint_steps(run) == kept
    assert newest_fingerprint(run) == before
    assert resumed_from(run) == kept[0]
