"""Room for the checkpoints is counted before training: what is promised is at least what they take."""

import json
import subprocess
import time

import jax
import numpy as np
import pytest

from plimsoll.errors import RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.training import checkpoints as module
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.disk import AT_ONCE, needed, require_room
from plimsoll.training.program import tree_bytes
from plimsoll.units import MIB
from plimsoll.values import to_json
from programs import printed


def random_state(*, leaves, size, seed=0):
    random = np.random.default_rng(seed)
    return {f"layer {n}": jax.device_put(random.normal(size=size).astype(np.float32)) for n in range(leaves)}


def taken(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("leaves", "size"), [(1, 1), (120, 10), (3, 1_500_000)])
def test_a_checkpoint_takes_no_more_than_is_counted_for_it(tmp_path, leaves, size):
    state = random_state(leaves=leaves, size=size)
    Checkpoints(RunFolder(tmp_path), in_background=False).save(1, state, {"document": 3})
    assert taken(tmp_path) <= needed(tree_bytes(state)).checkpoint_bytes


def test_as_many_are_counted_as_there_are_at_once(tmp_path, monkeypatch):
    """While the last one is written: the best, the last two, and itself."""
    most = []
    finish = module.finish

    def counting(folder):
        most.append(len(list(tmp_path.glob("checkpoints/step-*"))))
        finish(folder)

    monkeypatch.setattr(module, "finish", counting)
    checkpoints = Checkpoints(RunFolder(tmp_path), in_background=False)
    checkpoints.best_step = 1
    for step in range(1, 8):
        checkpoints.save(step, random_state(leaves=1, size=3), {})
    assert max(most) == AT_ONCE == needed(0).kept_at_once


def test_what_does_not_fit_is_refused_with_its_numbers_and_what_to_do(tmp_path):
    need = needed(10 * MIB)
    assert need.bytes == AT_ONCE * need.checkpoint_bytes
    with pytest.raises(RunError) as refused:
        require_room(tmp_path, need, free=need.bytes - 2 * MIB)
    assert refused.value.exit_code == 2
    for part in ("4 checkpoints of 10.2 MiB", "41.0 MiB together", "39.0 MiB free", "Make 2.0 MiB", "--run"):
        assert part in str(refused.value)
    require_room(tmp_path, need, free=need.bytes)


def test_what_the_run_has_saved_already_counts_as_room(tmp_path):
    need = needed(10 * MIB)
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001/arrays").write_bytes(bytes(3 * MIB))
    require_room(tmp_path, need, free=need.bytes - 3 * MIB)
    with pytest.raises(RunError, match=r"38.0 MiB free, and 3.0 MiB are there already"):
        require_room(tmp_path, need, free=need.bytes - 3 * MIB - 1)


def test_a_run_whose_checkpoints_do_not_fit_does_not_start(runs):
    run = runs.prepared()
    planned = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps(planned | {"disk": to_json(needed(2**60))}))
    ended = runs.run(run)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "4 checkpoints of 1048576.0 TiB" in ended.stderr
    assert not (run / "metrics.jsonl").exists()


def test_a_disk_that_fills_up_while_saving_is_one_paragraph_and_no_traceback(tmp_path):
    """Of Orbax's threads and TensorStore's callbacks nothing is printed, whichever write was the first to fail.

    That of the folder of all files is the last: Orbax's threads would wait for it.
    """
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=200", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    program = f"""
import contextlib, os, shutil, sys
from pathlib import Path
import jax, numpy as np
from plimsoll.errors import StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.training.checkpoints import Checkpoints
folder = Path({str(tmp_path)!r})
leaves = {{f"l{{i}}": jax.device_put(np.random.default_rng(i).normal(size=3000)) for i in range(12)}}
# Each a step of its own: a run ends after the first that fails, and Orbax's threads may still write.
for step, leave in enumerate((0, 20_000, 60_000, 120_000), 1):
    with open(folder / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - leave)
    try:
        with Checkpoints(RunFolder(folder), in_background=leave > 20_000) as checkpoints:
            checkpoints.save(step, leaves, {{}})
    except StoppedError as problem:
        print(problem)
    os.unlink(folder / "filler")
with contextlib.suppress(OSError):  # one of them took the last
    for number in range(os.statvfs(folder).f_favail - 1):
        (folder / str(number)).touch()
try:
    Checkpoints(RunFolder(folder), in_background=False).save(5, leaves, {{}})
except StoppedError as problem:
    print(problem)
"""
    try:
        began = time.monotonic()
        assert printed(program).count("the disk is full") == 5
        assert time.monotonic() - began < 200
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
