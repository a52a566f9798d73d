"""A notebook's kernel that dies in the middle of training: its cells go on in a new one, and the state is safe."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

import plimsoll
from plimsoll.files.run_folder import RunFolder
from small_runs import checkpoint_steps, newest_fingerprint

STEPS, SAVE_EVERY = 20_000, 2_000
CELLS = (
    "from own_functions import *\nimport optax, plimsoll",
    """
def squares(params, batch):  # a function of the cell
    total, count, _ = loss(params, batch)
    return total, count

pins = {"micro_batch": 8, "remat": "none", "precision": "float32", "prefetch": 0}
plan = plimsoll.plan(squares, *shapes(), optimizer=optax.adam(1e-2), memory="1GiB", chip="cpu", pins=pins)
""",
    f"run = plan.train(init, data(), steps={STEPS}, run='run', save_every={SAVE_EVERY}, log_every=100)",
)
WHOLE = CELLS[-1].replace("'run'", "'whole'")


def kernel(folder, *cells):
    from kernels import Kernel, book_of

    return Kernel(book_of(*cells), folder)


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def killed_when_it_has_saved(folder):
    """Runs the cells in a kernel that is killed, alone, once the run has a checkpoint."""
    from nbclient.exceptions import DeadKernelError

    run, killed = RunFolder(folder / "run"), kernel(folder, *CELLS)

    def kill():
        wait_for(run.saved_steps)
        os.kill(killed.process_id, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(DeadKernelError):
        killed.run()
    killer.join()
    return run


def stands_at(run: Path):
    return checkpoint_steps(run)[0], newest_fingerprint(run)


@pytest.mark.by_hand
def test_a_kernel_is_killed_and_a_new_one_continues_to_the_same_state(tmp_path):
    from nbclient.exceptions import CellExecutionError

    run = killed_when_it_has_saved(tmp_path)
    with pytest.raises(CellExecutionError) as refused:  # training goes on without its kernel
        kernel(tmp_path, *CELLS).run()
    assert refused.value.ename == "RunError"
    (process,) = re.findall(r"run is being trained by process (\d+) on .*: wait for it, stop it", refused.value.evalue)
    assert plimsoll.load(run.path).metrics()[-1]["step"] < STEPS
    os.kill(int(process), signal.SIGKILL)
    wait_for(lambda: not run.is_trained_now())
    assert run.saved_steps()[-1] < STEPS

    kernel(tmp_path, *CELLS, WHOLE).run()
    ledger = run.read("ledger.json")
    assert ledger["resumed_from_step"] >= SAVE_EVERY
    assert ledger["measured"]["peak_bytes"] <= ledger["budget_bytes"] == 2**30
    assert stands_at(tmp_path / "run") == stands_at(tmp_path / "whole") == (STEPS, stands_at(tmp_path / "whole")[1])
