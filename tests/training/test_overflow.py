"""Over the line: saved, planned again with the margin that was learned, continued. Real processes that really go over.

What makes them go over is a tracker that holds memory, or takes the address space away: trackers are in no plan.
"""

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from plimsoll.errors import RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.training import overruns
from plimsoll.training.overruns import SPREAD_BYTES
from plimsoll.units import MIB
from small_runs import PATIENCE, Runs, checkpoint_steps, rows

STEPS, WHEN = 12, 5

HOLDS = f"""
HELD = []

class Run:
    def log(self, values, step):
        if step >= {WHEN} and not HELD:
            HELD.append(b"x" * {84 * MIB})  # from there on, in every process of the run

    def finish(self):
        pass

def init(**_):
    return Run()
"""

TAKES_THE_ADDRESS_SPACE = f"""
import os, pathlib, resource, time

LIMITS = resource.getrlimit(resource.RLIMIT_AS)
DONE = pathlib.Path(__file__).with_name("done")

def size():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

def least():  # once the step's buffers, and the threads of a save, are gone
    sizes = [size()]
    while len(sizes) < 300 or min(sizes[-300:]) < min(sizes[:-299]):
        time.sleep(0.003)
        sizes.append(size())
    return sizes[-1]

class Run:
    def log(self, values, step):
        if step in (4, 5) and not DONE.exists():  # again after the second, should something have been given back
            resource.setrlimit(resource.RLIMIT_AS, (least() + {12 * MIB}, LIMITS[1]))
        if step == 6:  # before it is saved: a save has no say here
            self.finish()

    def finish(self):
        DONE.touch()
        resource.setrlimit(resource.RLIMIT_AS, LIMITS)

def init(**_):
    return Run()
"""


class OfOnePiece(Runs):
    """The effective batch is a prime: it goes through the model whole, or in 47 parts, which takes 130 MiB less."""

    def command(self, run: Path, *options: str) -> list[str]:
        words = f"""
            --width 32 --layers 2 --heads 1 --vocab-size 512 --seq-len 256 --batch-size 47 --steps {STEPS}
            --save-every 3 --eval-every 6 --shuffle-buffer-size 20 --remat none --loss-chunk 0
            --precision float32 --prefetch 1 --async-save False --log-every 1
        """.split()
        return [sys.executable, "-m", "plimsoll.cli.main", "train", "stories", "--dataset-id", str(self.text), *words,
                "--run", str(run), *self.pins, *options]  # fmt: skip

    pins: tuple[str, ...] = ()

    def prepared(self, *options: str) -> Path:
        """With the batch in one piece, whichever of the two the clock would have chosen."""
        self.pins = ("--micro-batch", "47")
        try:
            return super().prepared(*options)
        finally:
            self.pins = ()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return OfOnePiece(tmp_path_factory, "one-piece")


def prepared(whole):
    """The least budget that the batch in one piece is accepted with."""
    run = whole.prepared()
    planned = json.loads((run / "plan.json").read_text())
    planned["plan"]["pinned"].remove("micro_batch")
    planned["budget_bytes"] = planned["predicted_peak_bytes"] + planned["spare_bytes"]
    (run / "plan.json").write_text(json.dumps(planned))
    return run


def uses(tracker, folder, monkeypatch):
    (folder / "trackio.py").write_text(tracker)
    monkeypatch.syspath_prepend(folder)
    return "--tracker", "trackio"


def ledger(run):
    return json.loads((run / "ledger.json").read_text())


def losses(run):
    return {row["step"]: row["loss"] for row in rows(run) if "loss" in row}


@pytest.fixture(scope="module")
def kept(whole, tmp_path_factory):
    """Over the budget, with --keep-plan: to the end, with the plan it had."""
    run = prepared(whole)
    with pytest.MonkeyPatch.context() as patch:
        ended = whole.run(run, "--keep-plan", *uses(HOLDS, tmp_path_factory.mktemp("holds"), patch))
    assert ended.returncode == 0, ended.stderr
    return run


@pytest.mark.by_hand
def test_with_keep_plan_a_run_goes_on_over_its_budget_and_says_so(kept):
    assert list(losses(kept)) == list(range(1, STEPS + 1))
    found = ledger(kept)
    assert found["measured"]["peak_bytes"] > found["budget_bytes"]
    assert any("over the budget" in note for note in found["notes"])
    assert json.loads((kept / "plan.json").read_text())["plan"]["micro_batch"] == 47


def becomes(process, what):
    """Waits until the process has become that one."""
    deadline = time.monotonic() + PATIENCE
    while what not in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline


@pytest.mark.slow
def test_a_run_over_its_budget_saves_plans_again_and_ends_at_the_same_losses(whole, kept, tmp_path, monkeypatch):
    """Terminated while it plans again, too: what was learned stands in the run, for the same command."""
    run, options = prepared(whole), uses(HOLDS, tmp_path, monkeypatch)
    process = whole.start(run, *options)
    becomes(process, b"again")
    with pytest.raises(RunError, match=f"being trained by process {process.pid} on "):
        RunFolder(run).lock()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert "Traceback" not in err
    assert "terminated while planning again: what was saved is whole" in out

    (overrun,) = overruns.read(RunFolder(run))
    assert re.search(rf"step {overrun.step}: the resident set reached .* planning again with a margin of", err)
    assert overrun.what == "resident set"
    assert overrun.measured_bytes > overrun.budget_bytes > overrun.predicted_bytes
    assert WHEN <= overrun.step < STEPS
    assert checkpoint_steps(run)[0] == overrun.step

    pinned = whole.run(run, "--micro-batch", "47", "--within", "1h")  # it says what would fit, however busy all is
    assert pinned.returncode == 3
    assert f"went over its budget at step {overrun.step}" in pinned.stderr
    assert "leave out --async-save, --loss-chunk, --micro-batch" in pinned.stderr
    assert "continue with a larger --memory, or with --keep-plan" in pinned.stderr
    assert "Traceback" not in pinned.stderr
    assert json.loads((run / "plan.json").read_text())["plan"]["micro_batch"] == 47

    again = whole.run(run, *options)
    assert again.returncode == 0, again.stderr
    assert "over budget" in again.stdout + again.stderr
    planned = json.loads((run / "plan.json").read_text())
    assert (planned["plan"]["micro_batch"], planned["plan"]["accumulation"]) == (1, 47)
    assert planned["margin_bytes"] == overrun.excess_bytes + SPREAD_BYTES
    assert planned["predicted_peak_bytes"] <= planned["budget_bytes"] == overrun.budget_bytes

    found = ledger(run)
    assert found["overruns"] == [overrun.to_dict()]  # the second plan held
    assert found["resumed_from_step"] == overrun.step
    assert 0 <= found["measured"]["peak_bytes"] - overrun.measured_bytes < MIB  # of all processes, to their end
    assert list(losses(run)) == list(range(1, STEPS + 1))
    assert losses(run) == pytest.approx(losses(kept), rel=1e-5)


@pytest.mark.slow
def test_where_the_allocator_refuses_the_run_goes_on_from_its_last_checkpoint(whole, kept, tmp_path, monkeypatch):
    run = prepared(whole)
    ended = whole.run(run, *uses(TAKES_THE_ADDRESS_SPACE, tmp_path, monkeypatch))
    assert ended.returncode == 0, ended.stderr
    (overrun,) = overruns.read(RunFolder(run))
    assert overrun.what == "allocator"
    assert overrun.said.startswith("RESOURCE_EXHAUSTED: Out of memory allocating ")
    assert overrun.step == 3  # refused in the fifth or sixth, to which its state was donated
    planned = json.loads((run / "plan.json").read_text())["plan"]
    assert planned["micro_batch"] == 1
    assert set(planned["pinned"]) == {"remat", "loss_chunk", "precision", "prefetch", "async_save"}
    assert ledger(run)["resumed_from_step"] == 3
    assert list(losses(run)) == list(range(1, STEPS + 1))
    assert losses(run) == pytest.approx(losses(kept), rel=1e-5)
