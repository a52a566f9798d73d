"""Runs in a bucket, by the commands a user types: killed while it is sent, refused, read on another machine.

The bucket is moto's S3 where that is installed, else a folder. Another machine is another cache folder.
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

import plimsoll as plimsoll_api
from commands import TINY, plimsoll
from plimsoll.cli.main import main
from plimsoll.files.bucket import OWNER, Bucket, folder_of
from plimsoll.files.run_folder import OF_TRAINING, RunFolder
from plimsoll.processes import environment
from s3_server import forbidding, s3_server
from small_runs import checkpoint_steps, newest_fingerprint

HAS_S3 = all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask", "flask_cors"))
PATIENCE = 600
"""Seconds until a process that neither ends nor sends counts as stuck."""
LONG = ["--steps", "300", "--save-every", "50", "--eval-every", "0", "--prefetch", "0", "--quiet"]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    if not HAS_S3:
        yield f"file://{tmp_path_factory.mktemp('bucket')}"
        return
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """By its name: the environment of a command there. What is compiled is shared, to save time."""
    folder, shared = tmp_path_factory.mktemp("machines"), environment.cache_folder()

    def of(name):
        cache = folder / name
        if not cache.exists():
            cache.mkdir()
            for what in ("compiled", "answers"):
                (shared / what).mkdir(exist_ok=True)
                (cache / what).symlink_to(shared / what)
        return {"PLIMSOLL_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}

    return of


@pytest.fixture
def on(machine):
    """A command on a machine, to its end."""

    def run(name, *words):
        with mock.patch.dict(os.environ, machine(name)):
            return plimsoll(*words)

    return run


@pytest.fixture(scope="module")
def long_command(text_file):
    options = TINY[: TINY.index("--steps")] + TINY[TINY.index("--steps") + 2 :]
    return ["train", "stories", "--dataset-id", str(text_file), *options, *LONG]


@pytest.fixture(scope="module")
def undisturbed(long_command, tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    done = plimsoll(*long_command, "--run", run)
    assert done.returncode == 0, done.stderr
    return run


def learned(run):
    return checkpoint_steps(Path(run))[0], newest_fingerprint(Path(run))


BY_A_SENDER_THAT = """
import sys
from plimsoll.files import sender
sender.PROGRAM = ["-c", sys.argv.pop(1)]
from plimsoll.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The command, whose sender is another program."""
IS_KILLED = """
import os, signal, sys
from plimsoll.files import sender
from plimsoll.files.bucket import Bucket
put, sent = Bucket._put, 0
def killed(self, path, name):
    global sent
    put(self, path, name)
    sent += "step-00000100" in name
    if sent == 5:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
Bucket._put = killed
sender.SEND_SECONDS = 0.02
sys.exit(sender.main(sys.argv[1]))
"""
"""Killed, and its parent with it, when it has sent five files of the second checkpoint."""


def names(bucket):
    return set(bucket.store.names())


def steps(bucket):
    found = [name for name in names(bucket) if name.endswith("/manifest.json")]
    return sorted(int(name.split("/")[1][5:]) for name in found)


@pytest.fixture
def place(machine):
    """Where the run of an address is on a machine."""

    def of(name, address):
        with mock.patch.dict(os.environ, machine(name)):
            return folder_of(address)

    return of


def planned(run, beginning):
    """A run that is prepared and planned like another one, with no step taken."""
    run.mkdir(parents=True, exist_ok=True)
    for path in beginning.path.iterdir():
        if not path.name.startswith(OF_TRAINING):
            shutil.copyfile(path, run / path.name)


def ended(sender, command, environment):
    """The command in a process of its own, whose sender is another program."""
    return subprocess.run(
        [sys.executable, "-c", BY_A_SENDER_THAT, sender, *command],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_sent_loses_nothing_that_was_sent(
    long_command, undisturbed, bucket, machine, on, place
):
    address = f"{bucket}/killed"
    command = [*long_command, "--run", address]
    planned(place("first", address), RunFolder(undisturbed))
    first = ended(IS_KILLED, command, machine("first"))
    assert first.returncode == -signal.SIGKILL, first.stderr
    there = Bucket(address)
    assert steps(there) == [50]

    refused = on("second", *command)
    assert refused.returncode == 2
    assert f"is being trained on {socket.gethostname()}" in refused.stderr
    assert refused.stdout == ""
    assert not place("second", address).exists()

    owner = json.loads(there.store.read(OWNER))
    there.store.files.pipe_file(f"{there.store.root}/{OWNER}", json.dumps(owner | {"at": 0}).encode())
    second = on("second", *command)
    assert second.returncode == 0, second.stderr
    theirs = RunFolder(place("second", address))
    assert theirs.read("ledger.json")["resumed_from_step"] == 50
    assert steps(there) == theirs.saved_steps()
    assert learned(theirs.path) == learned(undisturbed)

    # The first machine has saved something after all, since the process that trained ended with the one that sent:
    mine = place("first", address)
    deadline = time.monotonic() + PATIENCE
    while RunFolder(mine).is_trained_now():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    there = on("first", "fingerprint", address)
    assert f"is set aside as {mine}.aside-1" in there.stderr
    assert there.stdout.split() == [learned(undisturbed)[1], "step", "300"]


@pytest.mark.slow
def test_in_python_a_run_in_a_bucket_is_trained_and_only_read_elsewhere(text_file, bucket, machine, monkeypatch):
    for name, value in machine("fourth").items():
        monkeypatch.setenv(name, value)
    address = f"{bucket}/python"
    options = {"width": 32, "layers": 2, "heads": 1, "vocab_size": 300, "seq_len": 32, "batch_size": 4, "steps": 6}
    recipe = plimsoll_api.preset("stories", dataset_id=str(text_file), shuffle_buffer_size=16, **options)
    pins = {"micro_batch": 4, "remat": "none", "loss_chunk": 0, "precision": "float32"}
    run = plimsoll_api.train(recipe, run=address, pins=pins, quiet=True)
    assert run.path == folder_of(address)
    assert steps(Bucket(address))[-1] == 6
    before = names(Bucket(address))
    for name, value in machine("fifth").items():
        monkeypatch.setenv(name, value)
    elsewhere = plimsoll_api.load(address)
    assert elsewhere.path != run.path
    assert elsewhere.metrics() == run.metrics()
    assert learned(elsewhere.path) == learned(run.path)
    assert names(Bucket(address)) == before


@pytest.fixture
def refused(tmp_path, long_command, monkeypatch, capsys):
    """The one line with which a run at an address is refused; nothing is made."""
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))

    def line(address):
        assert main([*long_command, "--run", address]) == 2
        assert list(tmp_path.rglob("*.json")) == []
        (refusal,) = capsys.readouterr().err.splitlines()
        return refusal

    return line


def test_a_bucket_that_cannot_be_reached_is_refused_before_anything_is_made(refused):
    assert refused("file:///dev/null/x").startswith("error: file:///dev/null/x cannot be ")


@pytest.mark.skipif(not HAS_S3, reason="needs `pip install 'plimsoll-jax[test-buckets]'`")
def test_a_bucket_without_permission_is_refused_before_anything_is_made(refused, bucket):
    with forbidding():
        assert "(PermissionError: " in refused(f"{bucket}/mine")
