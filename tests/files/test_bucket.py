"""A run at an address: killed at each operation of its store, on two machines, and refused."""

import json
import os
import shutil
import socket
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from plimsoll.errors import PlimsollError, RunError, StoppedError
from plimsoll.files import manifest, sender
from plimsoll.files.bucket import OWNER, Bucket, BucketError, TakenError, fetched, folder_of
from plimsoll.files.sender import Sender, sent
from s3_server import forbidding, s3_server

STRICT = True


@pytest.fixture(scope="module")
def s3():
    with s3_server() as address:
        yield address


@pytest.fixture(params=["file", "memory", "s3"])
def address(request, tmp_path):
    """Of a run that is not there yet."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{tmp_path.name}/x"
    return f"{request.param}://{tmp_path}/bucket/x"


@pytest.fixture
def files(tmp_path):
    """An address for what is the same wherever it lies."""
    return f"file://{tmp_path}/bucket/x"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """By its name: the run of an address on it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power is cut here, and a disk may take long

    def of(name, address):
        monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / name))
        in_memory = address.startswith("memory://")
        bucket = Bucket(address.replace("memory://", "file://"))
        if in_memory:  # which ends with its process, and so is refused to users
            bucket.store.files = MemoryFileSystem()
            bucket.store.driver = "memory"
        return bucket

    return of


def save(run, step):
    """As training leaves it: rows, two checkpoints, files that are replaced."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "recipe.json").write_text("{}")
    with open(run / "metrics.jsonl", "a") as log:
        log.writelines(f"{number}\n" for number in range(step - 3, step + 1))
    folder = run / f"checkpoints/step-{step:08d}"
    (folder / "state/d").mkdir(parents=True)
    (folder / f"state/d/{step}").write_bytes(bytes([step]) * 1000)
    (folder / "position.json").write_text(json.dumps({"step": step}))
    manifest.finish(folder)
    for old in sorted((run / "checkpoints").glob("step-????????"))[:-2]:
        manifest.remove(old)


def tree(run):
    files = {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if not name.startswith(".")}


def tree_there(bucket):
    return {name: bucket.store.read(name) for name in bucket.store.names()}


def age(bucket):
    """As if its owner had given no sign for longer than it takes to be gone."""
    owner = json.loads(bucket.store.read(OWNER))
    bucket.store.files.pipe_file(f"{bucket.store.root}/{OWNER}", json.dumps(owner | {"at": owner["at"] - 301}).encode())


def silent(_):
    pass


@pytest.fixture
def first(machine, files):
    """A machine that has sent a run of four steps."""
    return sent_once(machine("first", files))


def sent_once(bucket):
    bucket.take(silent)
    save(bucket.folder, 4)
    bucket.send()
    return bucket


class KilledError(BaseException):
    """The machine is gone."""


class Cut:
    """Store that is there for so many operations. What is written or removed then is done in part."""

    def __init__(self, files, left):
        self.files = files
        self.left = left

    def __getattr__(self, name):
        def operation(*arguments, **options):
            if self.left == 0:
                self._half(name, *arguments)
                raise KilledError
            self.left -= 1
            return getattr(self.files, name)(*arguments, **options)

        return operation

    def _half(self, name, path, target=None):
        if name == "put_file" and not isinstance(self.files, MemoryFileSystem):
            content = Path(path).read_bytes()
            self.files.pipe_file(target, content[: len(content) // 2])
        if name == "rm" and self.files.isdir(path):
            self.files.rm(self.files.find(path)[0])


@pytest.mark.parametrize("address", ["file", "memory"], indirect=True)
def test_killed_at_each_operation_of_the_store_another_machine_goes_on(machine, address, tmp_path):
    for cut in count():
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        MemoryFileSystem.store.clear()
        first = machine("first", address)
        first.store.files = Cut(first.store.files, cut)
        through = 0
        try:
            first.take(silent)
            for step in (4, 8, 12):
                save(first.folder, step)
                first.send()
                through = step
        except KilledError:
            pass

        # Another machine: nothing that was sent to its end is missing, and no row before the newest checkpoint.
        second = machine("second", address)
        if second._owner() is not None:
            age(second)
        second.take(silent)
        found = sorted(second.folder.glob("checkpoints/step-*"))
        assert [manifest.damage(folder) for folder in found] == [None] * len(found)
        newest = int(found[-1].name[5:]) if found else 0
        assert newest >= through
        rows = (second.folder / "metrics.jsonl").read_text().split() if newest else []
        assert rows[:newest] == [str(number) for number in range(1, newest + 1)]

        # It goes on, and leaves no litter; a third one has the same.
        (second.folder / "metrics.jsonl").unlink(missing_ok=True)
        for step in range(4, newest + 1, 4):
            (second.folder / "metrics.jsonl").open("a").writelines(f"{n}\n" for n in range(step - 3, step + 1))
        save(second.folder, newest + 4)
        second.send()
        third = machine("third", address)
        third.follow(silent)
        there = {name: content for name, content in tree_there(second).items() if name != OWNER}
        assert tree(third.folder) == tree(second.folder) == there
        if through == 12:
            break
    assert cut == {"file": 48, "memory": 29}[address.partition(":")[0]]


def trained_on_two(machine, files):
    """Two machines: the second one went on from what the first had sent."""
    first = sent_once(machine("first", files))
    first.release()
    second = machine("second", files)
    second.take(silent)
    save(second.folder, 8)
    second.send()
    second.release()
    return machine("first", files), second


def test_what_is_sent_is_fetched_to_the_last_byte(machine, address):
    first, second = trained_on_two(machine, address)
    said = []
    first.take(said.append)
    assert said == [f"fetched {first.address}, last sent by {socket.gethostname()}"]
    assert tree(first.folder) == tree(second.folder)
    assert not first.is_behind()


def test_what_was_never_sent_is_set_aside_where_another_machine_went_on(machine, files):
    first, second = trained_on_two(machine, files)
    save(first.folder, 20)
    mine = tree(first.folder)
    said = []
    first.take(said.append)
    assert f"is set aside as {first.folder}.aside-1" in said[0]
    assert tree(first.folder) == tree(second.folder)
    assert tree(first.folder.with_name("x.aside-1")) == mine


def test_a_fetch_that_is_cut_off_is_made_anew_and_nothing_is_set_aside(machine, files):
    for cut in count():
        first, second = trained_on_two(machine, files)
        shutil.rmtree(second.folder)
        again = machine("second", files)
        again.store.files = Cut(again.store.files, cut)
        try:
            again.follow(silent)
        except KilledError:
            again = machine("second", files)
            again.follow(silent)
        else:
            break
        assert not again.folder.with_name("x.aside-1").exists()
        assert tree(again.folder) == {name: text for name, text in tree_there(first).items() if name != OWNER}
        for place in (first, second):
            shutil.rmtree(place.folder.parent, ignore_errors=True)
        shutil.rmtree(first.store.root)
    assert cut > 8


def test_a_step_that_is_saved_again_replaces_what_was_sent_of_it(machine, files, first):
    manifest.remove(first.folder / "checkpoints/step-00000004")
    save(first.folder, 4)
    (first.folder / "checkpoints/step-00000004/state/d/4").rename(first.folder / "checkpoints/step-00000004/state/d/5")
    manifest.finish(first.folder / "checkpoints/step-00000004")
    first.send()
    second = machine("second", files)
    second.follow(silent)
    assert tree(second.folder) == tree(first.folder)


def test_nothing_of_locks_unfinished_or_damaged_checkpoints_is_sent(machine, files):
    first = machine("first", files)
    first.take(silent)
    save(first.folder, 4)
    whole = tree(first.folder)
    for name in (".lock", "plan.json.new", "checkpoints/step-00000008/state/d/8"):
        (first.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (first.folder / name).write_text("x")
    shutil.copytree(first.folder / "checkpoints/step-00000004", first.folder / "checkpoints/step-00000004.damaged")
    (first.folder / "elsewhere").symlink_to("/etc/hostname")
    first.send()
    second = machine("second", files)
    second.follow(silent)
    assert tree(second.folder) == whole


def test_a_checkpoint_that_training_removes_while_it_is_sent_is_left_out(machine, files):
    first = machine("first", files)
    first.take(silent)
    save(first.folder, 4)
    put = first._put

    def put_and_remove(path, name):
        put(path, name)
        if "step-00000004" in name:
            manifest.remove(first.folder / "checkpoints/step-00000004")

    first._put = put_and_remove
    first.send()
    first.send()
    assert [name for name in first.store.names() if "step-" in name] == []


def test_a_run_folder_that_was_copied_to_a_bucket_goes_on(machine, files, first):
    first.store.files.rm(f"{first.store.root}/{OWNER}")
    second = machine("second", files)
    second.take(silent)
    assert tree(second.folder) == tree(first.folder)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "a/.hidden", "/out"])
def test_no_name_in_a_bucket_leads_out_of_the_run_folder(name, machine, files, first, tmp_path):
    path = f"{first.store.root}/checkpoints/step-00000004/{manifest.MANIFEST}"
    first.store.files.pipe_file(path, json.dumps({name: "0"}).encode())
    second = machine("second", files)
    second.store.names = lambda below="", there=second.store.names: [*there(below), name]
    second.follow(silent)
    assert not list(second.folder.glob("checkpoints/*/*"))
    assert not list(tmp_path.rglob("out"))


def test_a_second_machine_is_refused_with_the_first_ones_host(machine, address):
    machine("first", address).take(silent)
    with pytest.raises(RunError, match=f"is being trained on {socket.gethostname()}, .* free 5.0 min after") as refused:
        machine("second", address).take(silent)
    assert refused.value.exit_code == 2
    machine("first", address).take(silent)  # the same folder: its process has ended


def test_whoever_was_taken_over_stops_and_sends_nothing_more(machine, address):
    first = sent_once(machine("first", address))
    age(first)
    second = machine("second", address)
    second.take(silent)
    before = tree_there(second)
    save(first.folder, 8)
    with pytest.raises(TakenError, match="was taken over by") as refused:
        first.send()
    assert refused.value.exit_code == 3
    assert tree_there(second) == before
    second.send()


# The process that sends.


@pytest.fixture
def here(tmp_path, monkeypatch):
    """This machine, whose sender sends twenty times a second."""
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "here"))
    quick = (
        "import sys; from plimsoll.files import sender; sender.SEND_SECONDS = 0.05; sys.exit(sender.main(sys.argv[1]))"
    )
    monkeypatch.setattr(sender, "PROGRAM", ["-c", quick])


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_is_sent_while_it_is_trained_and_at_the_end_and_is_free_then(here, files, machine, tmp_path):
    said = []
    with sent(files, said.append) as sending:
        save(folder_of(files), 4)
        until(lambda: (tmp_path / "bucket/x/checkpoints/step-00000004/manifest.json").exists())
        assert fetched(files) == sending.folder  # as it is, while it is trained here
        with pytest.raises(RunError, match="is being trained, sent or fetched by another process on this machine"):
            Sender(files, silent)
        save(folder_of(files), 8)
    assert sending.behind is None
    assert said == [f"{files} is trained in {sending.folder}, and sent every minute", f"{files} is up to date"]
    second = machine("second", files)
    second.take(silent)
    assert tree(second.folder).keys() >= {"recipe.json", "checkpoints/step-00000008/manifest.json"}


def test_a_bucket_that_is_gone_in_the_middle_is_said_once_and_the_run_is_behind(here, files, tmp_path, capfd):
    with sent(files, silent) as sending:
        save(folder_of(files), 4)
        until((tmp_path / "bucket/x/recipe.json").exists)
        shutil.rmtree(tmp_path / "bucket")
        (tmp_path / "bucket").write_text("another thing")
        save(folder_of(files), 8)
        time.sleep(0.5)  # several sends
    assert capfd.readouterr().err.count(f"Training goes on in {sending.folder}") == 1
    mine = tree(folder_of(files))
    assert "checkpoints/step-00000008/manifest.json" in mine
    assert f"{files} is behind what was trained: {files} cannot be used (NotADirectoryError" in sending.behind
    assert f"The run is whole in {sending.folder}: the same command" in sending.behind
    (tmp_path / "bucket").unlink()
    with sent(files, silent) as sending:
        pass
    assert sending.behind is None
    assert tree(tmp_path / "bucket/x").keys() - {OWNER} == mine.keys()


def test_training_stops_once_another_machine_has_taken_the_run_over(here, files):
    with sent(files, silent) as sending:
        bucket = Bucket(files)
        owner = json.loads(bucket.store.read(OWNER))
        bucket.store.files.pipe_file(f"{bucket.store.root}/{OWNER}", json.dumps(owner | {"folder": "other"}).encode())
        sending._process.wait(timeout=60)
        with pytest.raises(StoppedError, match=f"was taken over by .* is whole in {sending.folder}"):
            sending.require_running()


def test_what_was_saved_after_the_parent_was_killed_is_sent(here, files, tmp_path):
    sending = Sender(files, silent)
    save(folder_of(files), 4)
    sending._process.stdin.close()
    assert sending._process.wait(timeout=60) == 0
    assert tree(tmp_path / "bucket/x").keys() - {OWNER} == tree(folder_of(files)).keys()


REFUSED = {
    "s3://plimsoll-no-such-bucket/x": r"cannot be used \(FileNotFoundError: .*check the name",
    "memory://x": "would end with its process",
    "nonsense://x": r"cannot be used \(ValueError: Protocol not known: nonsense",
    "file:///dev/null/x": r"cannot be used \(NotADirectoryError",
}


@pytest.mark.parametrize("where", REFUSED)
def test_what_cannot_be_used_is_refused_before_anything_is_made(where, here, request):
    if where.startswith("s3:"):
        request.getfixturevalue("s3")
    with pytest.raises(PlimsollError, match=REFUSED[where]) as refused:
        Sender(where, silent)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_a_bucket_that_one_may_not_write_to_is_refused(here, s3):
    with forbidding(), pytest.raises(PlimsollError, match=r"\(PermissionError: .*s3fs is installed .* credentials"):
        Sender(f"{s3}/x", silent)


def test_a_driver_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(BucketError, match=r"gs://bucket/x cannot be used \(ImportError: .*`pip install gcsfs`"):
        Bucket("gs://bucket/x")


def test_an_address_without_a_run_is_refused_to_whoever_reads(here, files):
    with pytest.raises(RunError, match=rf"there is no run at {files}: `plimsoll train RECIPE --run {files}`"):
        fetched(files)
    assert fetched("runs/x") == "runs/x"
