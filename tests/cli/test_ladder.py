"""`plimsoll ladder` through the real command line: three rungs of a tiny recipe; what is left of a stopped one."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest

from commands import plimsoll
from plimsoll.report.metrics import read_rows
from plimsoll.units import MIB

TINY = shlex.split(
    "--width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 4 --steps 50 --shuffle-buffer-size 16"
    " --rung-steps 6"
)


@pytest.fixture(scope="module")
def command(text_file):
    return ["ladder", "stories", "--dataset-id", str(text_file), *TINY, "--rungs", "micro-batch", "bfloat16"]


@pytest.mark.by_hand
def test_each_rung_is_a_real_run_planned_with_its_levers_and_measured(command, tmp_path):
    done = plimsoll(*command, "--json", "--run", tmp_path / "runs", timeout=900)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    found = json.loads(done.stdout)
    assert [(row["name"], row["numerics"], row["outcome"]) for row in found["rungs"]] == [
        ("plain", "exact", "measured"),
        ("micro-batch", "exact", "measured"),
        ("bfloat16", "mixed", "measured"),
    ]
    for row in found["rungs"]:
        run = tmp_path / "runs" / row["name"]
        ledger = json.loads((run / "ledger.json").read_text())
        assert row["measured_peak_bytes"] == ledger["measured"]["peak_bytes"]
        assert ledger["resumed_from_step"] == found["stops"][0] == 4
        assert abs(row["measured_peak_bytes"] - row["predicted_peak_bytes"]) < 32 * MIB
        assert row["state_bytes"] == sum(ledger["components"][name]["measured"] for name in ("parameters", "optimizer"))
        rows = list(read_rows(run / "metrics.jsonl"))
        assert [one["step"] for one in rows if "loss" in one] == [1, 2, 3, 4, 5, 6]
        assert [one["step"] for one in rows if "validation_loss" in one] == [2, 4, 6]
        assert row["step_seconds"] > 0
        assert row["tokens_per_second"] == pytest.approx(4 * 32 / row["step_seconds"])

    plain, accumulated, mixed = (
        json.loads((tmp_path / "runs" / row["name"] / "plan.json").read_text())["plan"] for row in found["rungs"]
    )
    assert (plain["micro_batch"], plain["precision"], plain["async_save"]) == (4, "float32", True)
    assert accumulated == plain | {"micro_batch": 2, "accumulation": 2}
    assert mixed == accumulated | {"precision": "bfloat16"}

    plain, accumulated, mixed = found["rungs"]  # exact rungs learn the same, and bfloat16 nearly
    assert plain["loss_drift"] == 0
    assert 0 <= accumulated["loss_drift"] < 1e-5
    assert accumulated["loss_drift"] < mixed["loss_drift"] < 1e-2


def training(process):
    """The processes under the ladder, once one of them trains."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        below = psutil.Process(process.pid).children(recursive=True)
        if any(is_training(one) for one in below):
            return below
        time.sleep(0.02)
    raise AssertionError("no rung was trained")


def is_training(process):
    try:
        return process.cmdline()[2:4] == ["plimsoll.worker", "train"]
    except psutil.Error:
        return False


@pytest.mark.by_hand
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_ladder_that_is_stopped_leaves_no_process_and_no_folder(command, tmp_path, number, code):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "plimsoll.cli.main", *command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    below = training(process)
    assert list(tmp_path.glob("plimsoll-ladder-*"))
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    _, alive = psutil.wait_procs(below, timeout=60)  # a killed one is there until its memory is given back
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.glob("plimsoll-ladder-*")) == []
