"""Runs in a bucket, by the commands a user types: killed while it is sent, refused, behind, read on another machine.

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

from commands import TINY, plimsoll
from plimsoll.cli.main import main
from plimsoll.files import lease
from plimsoll.files.lease import LEASE_SECONDS
from plimsoll.files.mirror import INDEX, Index
from plimsoll.files.remote import Place, fetched
from plimsoll.files.run_folder import RunFolder
from plimsoll.files.store import Store
from plimsoll.processes import environment
from plimsoll.training.checkpoint import Checkpoints, fingerprint, loader_position, read_leaves
from s3_server import forbidding, s3_server

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
    saved = Checkpoints(Path(run) / "checkpoints", in_background=False).all()[0]
    return saved.step, fingerprint(read_leaves(saved), loader_position(saved))


KILLED = """
import os, signal, sys
from plimsoll.files import remote
from plimsoll.files.store import Store
remote.LOOK_SECONDS = 0.02
send, sent = Store.send, 0
def killed(self, files):
    global sent
    for name, path in files.items():
        send(self, {name: path})
        sent += self.read("mirror.json") is not None
        if sent == 5:
            os.kill(os.getpid(), signal.SIGKILL)
Store.send = killed
from plimsoll.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The command, killed when five objects of its second push are sent."""


def held(address):
    return Index.from_json(json.loads(Store(address).read(INDEX)), where=address)


def newest_step(names):
    return max(int(name.split("/")[1][5:]) for name in names if name.startswith("checkpoints/step-"))


def objects(address):
    store = Store(address)
    return {path.removeprefix(f"{store._root}/") for path in store._files.find(store._root)}


@pytest.fixture
def place(machine):
    """Where the run of an address is on a machine."""

    def of(name, address):
        with mock.patch.dict(os.environ, machine(name)):
            return Place.of(address)

    return of


def planned(run, beginning):
    """A run that is prepared and planned like another one, with no step taken."""
    for name in beginning.prepared():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        if name != "checkpoints/best.json":
            shutil.copyfile(beginning.path / name, run / name)


def ended(program, command, environment):
    """The command in a process of its own, whose program changes what is sent."""
    return subprocess.run(
        [sys.executable, "-c", program, *command],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_push_loses_nothing_that_was_whole(
    long_command, undisturbed, bucket, machine, on, place
):
    address = f"{bucket}/killed"
    command = [*long_command, "--run", address]
    planned(place("first", address).run, RunFolder(undisturbed))
    first = ended(KILLED, command, machine("first"))
    assert first.returncode == -signal.SIGKILL, first.stderr
    whole = held(address)
    litter = objects(address) - whole.objects() - {INDEX, lease.OBJECT}
    assert len(litter) == 5
    there = json.loads(Store(address).read(lease.OBJECT))
    assert litter <= set(there["passing"])

    refused = on("second", *command)
    assert refused.returncode == 2
    assert f"is being trained by process {there['pid']} on {socket.gethostname()}" in refused.stderr
    assert refused.stdout == ""
    assert not place("second", address).run.exists()

    Store(address).write(lease.OBJECT, json.dumps(there | {"time": there["time"] - LEASE_SECONDS - 1}).encode())
    second = on("second", *command)
    assert second.returncode == 0, second.stderr
    assert "taken over" in second.stderr
    assert objects(address) == held(address).objects() | {INDEX}
    theirs = RunFolder(place("second", address).run)
    assert theirs.read("ledger.json")["resumed_from_step"] == newest_step(whole.files)
    assert learned(theirs.path) == learned(undisturbed)

    # The first machine has saved something after all, since the process that trained ended with the one that sent:
    mine = place("first", address).run
    deadline = time.monotonic() + PATIENCE
    while RunFolder(mine).is_trained_now():
        assert time.monotonic() < deadline
    there = on("first", "fingerprint", address)
    assert f"is set aside as {mine}.aside-1" in there.stderr
    assert there.stdout.split() == [learned(undisturbed)[1], "step", "300"]


@pytest.mark.slow
def test_what_is_told_to_stop_is_saved_and_sent_and_free_for_another_machine(
    long_command, undisturbed, bucket, machine, place
):
    address = f"{bucket}/stopped"
    run = RunFolder(place("first", address).run)
    planned(run.path, RunFolder(undisturbed))
    run.write("data.json", run.read("data.json") | {"steps": 1_000_000})  # it does not end before it is told to
    run.seal()
    process = subprocess.Popen(
        [sys.executable, "-m", "plimsoll.cli.main", *long_command, "--output-dir", address],
        env=os.environ | machine("first"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE
    while Store(address).read(INDEX) is None:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, err
    assert objects(address) == held(address).objects() | {INDEX}
    assert newest_step(held(address).files) == learned(run.path)[0]


NO_SENDING = """
import sys
from plimsoll.files.store import BucketError
from plimsoll.files.store import Store
def refused(self, files):
    raise BucketError(f"{self.address} cannot be written to (permission denied)")
Store.send = refused
from plimsoll.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def behind(long_command, undisturbed, bucket, machine):
    """Trained on the first machine, which could not send it."""
    address = f"{bucket}/behind"
    command = [*long_command, "--run", address]
    with mock.patch.dict(os.environ, machine("first")):
        planned(Place.of(address).run, RunFolder(undisturbed))
    done = ended(NO_SENDING, command, machine("first"))
    return address, command, done


@pytest.mark.slow
def test_a_bucket_that_stops_taking_anything_does_not_stop_training_and_gets_it_later(behind, undisturbed, on):
    address, command, done = behind
    assert done.returncode == 3
    assert done.stderr.count("Training goes on in") == 1
    assert f"error: {address} is behind what was trained" in done.stderr
    assert "the same command, on this machine, sends it" in done.stderr
    assert Store(address).read(INDEX) is None
    again = on("first", *command)
    assert again.returncode == 0, again.stderr
    assert held(address).files.keys() >= {"recipe.json", "plan.json", "checkpoints/step-00000300/state.json"}


@pytest.mark.slow
def test_whoever_reads_fetches_and_writes_nothing(behind, undisturbed, machine, on, tmp_path, monkeypatch, capsys):
    address, command, _ = behind
    if Store(address).read(INDEX) is None:
        on("first", *command)
    before = objects(address)
    for name, value in machine("third").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main(["report", address, "--no-model"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "report.html\n"
    assert f"of {address}, last sent by" in printed.err
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert learned(fetched(address)) == learned(undisturbed)
    assert objects(address) == before
    assert lease.OBJECT not in before


def test_a_bucket_that_cannot_be_reached_is_refused_before_anything_is_made(
    tmp_path, long_command, monkeypatch, capsys
):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    assert main([*long_command, "--run", "file:///dev/null/x"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: file:///dev/null/x cannot be ")
    assert len(printed.err.splitlines()) == 1
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.skipif(not HAS_S3, reason="needs `pip install 'plimsoll-jax[test-buckets]'`")
def test_a_bucket_without_permission_is_refused_before_anything_is_made(
    tmp_path, long_command, bucket, monkeypatch, capsys
):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    with forbidding():
        assert main([*long_command, "--run", f"{bucket}/mine"]) == 2
    printed = capsys.readouterr()
    assert "(permission denied: " in printed.err
    assert len(printed.err.splitlines()) == 1
    assert list(tmp_path.rglob("*.json")) == []
