"""A run folder and its copy at an address: what is sent is fetched, whatever cut it off; over files, and a real S3."""

import contextlib
import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from plimsoll.errors import PlimsollError, RunError
from plimsoll.files import lease
from plimsoll.files.contents import contents
from plimsoll.files.lease import LEASE_SECONDS, Lease, LeaseLost
from plimsoll.files.mirror import INDEX, Mirror
from plimsoll.files.remote import Mirrored, Place, fetched, folder_through, mirrored, on_demand
from plimsoll.files.store import BucketError, Store
from s3_server import forbidding, s3_server

STRICT = True


@pytest.fixture(scope="module")
def s3():
    with s3_server() as address:
        yield address


@pytest.fixture(params=["file", "s3"])
def address(request, tmp_path):
    """Of a run that is not there yet."""
    if request.param == "file":
        return f"file://{tmp_path}/bucket/x"
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}/x"


@pytest.fixture
def files(tmp_path):
    """An address for what is the same wherever it lies."""
    return f"file://{tmp_path}/bucket/x"


class Machine:
    """A folder of its own for what is fetched and sent."""

    def __init__(self, address, home, store=None):
        self.home, self.run = home, home / "x"
        home.mkdir(exist_ok=True)
        self.mirror = Mirror(store or Store(address), home, self.run)

    def push(self):
        return self.mirror.push(lambda passing: None)


@pytest.fixture
def machine(tmp_path):
    return lambda name, address, store=None: Machine(address, tmp_path / name, store)


def save(run, step):
    """As training leaves it: two checkpoints, a log that grows, files that are replaced."""
    folder = run / f"checkpoints/step-{step:08d}"
    (folder / "arrays/d").mkdir(parents=True)
    (folder / "arrays/d/0").write_bytes(bytes([step]) * 1000)
    (folder / "state.json").write_text(json.dumps({"step": step}))
    (folder / "manifest.json").write_text(json.dumps({"arrays/d/0": "...", "state.json": "..."}))
    for old in sorted((run / "checkpoints").glob("step-*"))[:-2]:
        shutil.rmtree(old)
    (run / "recipe.json").write_text("{}")
    (run / "checkpoints/best.json").write_text(json.dumps({"step": step}))
    with open(run / "metrics.jsonl", "a") as log:
        log.write(json.dumps({"step": step}) + "\n")


def tree(run):
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if not name.startswith(".")}


def objects(store):
    """All that lies at the address."""
    paths = store._files.find(store._root)
    return {path.removeprefix(f"{store._root}/") for path in paths}


def test_what_is_sent_is_fetched_to_the_last_byte(machine, address):
    first, second = machine("first", address), machine("second", address)
    save(first.run, 4)
    assert first.push().objects == 6
    (words,) = second.mirror.bring()
    assert f"of {address}, last sent by {socket.gethostname()}" in words
    assert tree(second.run) == tree(first.run)


def test_only_what_changed_is_sent_and_what_is_gone_is_removed(machine, address):
    first = machine("first", address)
    for step in (4, 8):
        save(first.run, step)
        first.push()
    save(first.run, 12)
    sent = first.push()
    assert sent.objects == 3 + 2  # a checkpoint, the log and the best
    assert first.push() is None
    assert len(objects(first.mirror.store)) == 2 * 3 + 3 + 1
    second = machine("second", address)
    second.mirror.bring()
    assert tree(second.run) == tree(first.run)


def test_nothing_of_locks_of_what_is_being_written_or_was_set_aside_is_sent(machine, files):
    first = machine("first", files)
    save(first.run, 4)
    before = contents(first.run, {})
    for name in (".lock", "plan.json.new", "checkpoints/.partial-00000008/state.json"):
        (first.run / name).parent.mkdir(exist_ok=True)
        (first.run / name).write_text("x")
    shutil.copytree(first.run / "checkpoints/step-00000004", first.run / "checkpoints/step-00000004.damaged")
    (first.run / "elsewhere").symlink_to("/etc/hostname")
    assert contents(first.run, {}) == before
    first.push()
    second = machine("second", files)
    second.mirror.bring()
    assert contents(second.run, {}) == before


class Cut(Store):
    """Goes away after so many objects were written."""

    left = None

    def _count(self):
        if self.left is not None:
            if self.left == 0:
                raise BucketError("gone")
            self.left -= 1

    def send(self, files):
        for name, path in files.items():
            self._count()
            super().send({name: path})

    def write(self, name, content):
        self._count()
        super().write(name, content)

    def remove(self, name):
        self._count()
        super().remove(name)


def test_a_push_cut_off_anywhere_leaves_the_last_whole_state_and_no_litter(machine, files, tmp_path):
    seen = set()
    for cut in range(30):
        shutil.rmtree(tmp_path / "bucket", ignore_errors=True)
        shutil.rmtree(tmp_path / "first", ignore_errors=True)
        store = Cut(files)
        holding = Lease(store, tmp_path / "first")
        first = machine("first", files, store)
        holding.take()
        for step in (4, 8):
            save(first.run, step)
            first.mirror.push(holding.renew)
        old = tree(first.run)
        save(first.run, 12)
        new = tree(first.run)
        store.left = cut
        with contextlib.suppress(BucketError):
            first.mirror.push(holding.renew)
        through = store.left > 0
        # The machine is gone. Another one takes over, once the lease is old:
        shutil.rmtree(tmp_path / "second", ignore_errors=True)
        second, theirs = machine("second", files), Lease(Store(files), tmp_path / "second")
        age_lease(theirs.store)
        theirs.take()
        second.mirror.passing = theirs.passing
        second.mirror.bring()
        assert tree(second.run) in (old, new)
        seen.add(tree(second.run) == new)
        save(second.run, 16)
        second.mirror.push(theirs.renew)
        theirs.release()
        assert objects(theirs.store) == second.mirror._held.objects() | {INDEX}
        if through:
            break
    assert seen == {True, False}
    assert through


def test_a_push_that_failed_is_made_up_for_and_sends_no_object_twice(machine, files):
    store = Cut(files)
    first = machine("first", files, store)
    save(first.run, 4)
    store.left = 4
    with pytest.raises(BucketError):
        first.push()
    assert first.mirror.is_behind()
    store.left = None
    assert first.push() is not None
    assert not first.mirror.is_behind()
    assert objects(store) == first.mirror._held.objects() | {INDEX}
    second = machine("second", files)
    second.mirror.bring()
    assert tree(second.run) == tree(first.run)


def test_a_kill_after_the_list_was_written_and_before_that_was_noted_loses_nothing(machine, files, monkeypatch):
    first = machine("first", files)
    save(first.run, 4)
    first.push()
    save(first.run, 8)
    noted = first.mirror._keep
    monkeypatch.setattr(first.mirror, "_keep", lambda held, **more: noted(held, **more) if more else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        first.push()
    save(first.run, 12)  # by the process that trained, before it noticed
    again = machine("first", files)
    assert again.mirror.bring() == []
    assert again.push() is not None
    second = machine("second", files)
    second.mirror.bring()
    assert tree(second.run) == tree(first.run)


def continued_elsewhere(machine, files):
    """Two machines: the second one went on from what the first had sent."""
    first, second = machine("first", files), machine("second", files)
    save(first.run, 4)
    first.push()
    second.mirror.bring()
    save(second.run, 8)
    second.push()
    return first, second


def test_what_was_never_sent_is_set_aside_where_the_address_went_on_elsewhere(machine, files):
    first, second = continued_elsewhere(machine, files)
    save(first.run, 6)
    mine = tree(first.run)
    aside, fetched = first.mirror.bring()
    assert "was continued elsewhere" in aside
    assert fetched.startswith("fetched ")
    assert tree(first.run) == tree(second.run)
    assert tree(first.run.with_name("x.aside-1")) == mine


def test_a_folder_that_has_nothing_new_follows_the_address_without_a_word_of_that(machine, files):
    first, second = continued_elsewhere(machine, files)
    again = machine("first", files)
    (words,) = again.mirror.bring()
    assert words.startswith("fetched ")
    assert tree(first.run) == tree(second.run)
    assert again.mirror.bring() == []


def test_a_folder_that_was_deleted_here_is_fetched_again(machine, files):
    first = machine("first", files)
    save(first.run, 4)
    first.push()
    had = tree(first.run)
    shutil.rmtree(first.run)
    first.mirror.bring()
    assert tree(first.run) == had


def test_an_address_that_was_emptied_gets_everything_again(machine, files, tmp_path):
    first = machine("first", files)
    save(first.run, 4)
    first.push()
    shutil.rmtree(tmp_path / "bucket")
    again = machine("first", files)
    assert again.mirror.bring() == []
    assert again.push().objects == 6


def test_a_log_that_grows_while_it_is_sent_is_sent_as_it_was(machine, files):
    class Growing(Store):
        def send(self, sent):
            save(first.run, 8)
            super().send(sent)

    first = machine("first", files, Growing(files))
    save(first.run, 4)
    before = tree(first.run)
    first.push()
    second = machine("second", files)
    second.mirror.bring()
    assert tree(second.run) == before


def test_a_checkpoint_that_is_being_forgotten_is_not_sent(machine, files):
    first = machine("first", files)
    for step in (4, 8):
        save(first.run, step)
    (first.run / "checkpoints/step-00000004/arrays/d/0").unlink()
    first.push()
    second = machine("second", files)
    second.mirror.bring()
    assert [path.name for path in (second.run / "checkpoints").glob("step-*")] == ["step-00000008"]


@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_a_damaged_checkpoint_is_left_out_and_said(harm, machine, address):
    first, second = machine("first", address), machine("second", address)
    for step in (4, 8):
        save(first.run, step)
    first.push()
    store = first.mirror.store
    (name,) = [each for each in objects(store) if each.startswith("checkpoints/step-00000008/arrays")]
    store.remove(name)
    if harm == "flip":
        store.write(name, b"\x09" + b"\x08" * 999)
    words = second.mirror.bring()
    assert words[1] == f"checkpoints/step-00000008 at {address} is damaged, and left out"
    assert [path.name for path in (second.run / "checkpoints").glob("step-*")] == ["step-00000004"]
    assert not list(second.home.rglob("*.part"))
    save(second.run, 12)
    second.push()
    assert objects(store) == second.mirror._held.objects() | {INDEX}


def test_a_damaged_file_that_is_no_checkpoint_is_refused(machine, files):
    first, second = machine("first", files), machine("second", files)
    save(first.run, 4)
    first.push()
    (name,) = [each for each in objects(first.mirror.store) if each.startswith("recipe.json")]
    first.mirror.store.write(name, b"{ }")
    with pytest.raises(RunError, match=r"recipe.json at file://.* is missing, or is not what mirror.json there says"):
        second.mirror.bring()
    assert not second.run.exists()


EVIL = ["../out", "/out", "a/../../out", "", ".", "a//b", ".lock", "a/.hidden", "out\0"]


@pytest.mark.parametrize("name", EVIL)
def test_no_name_in_a_bucket_leads_out_of_the_run_folder(name, machine, files, tmp_path):
    first, second = machine("first", files), machine("second", files)
    save(first.run, 4)
    first.push()
    index = json.loads(first.mirror.store.read(INDEX))
    index["files"][name] = index["files"]["recipe.json"]
    first.mirror.store.write(INDEX, json.dumps(index).encode())
    with pytest.raises(RunError, match=r"is not as plimsoll writes it .*no name of a file of a run"):
        second.mirror.bring()
    assert [path.name for path in second.home.iterdir()] == []
    assert not (tmp_path / "out").exists()


ODD = [b"", b"{", b"[]", b"null", b'{"format": 2}', b'{"format": 1, "files": [1]}', b"[" * 100_000, b"\xff\xfe"]


@pytest.mark.parametrize("content", ODD, ids=lambda content: repr(content[:20]))
def test_a_list_that_is_not_ours_is_refused(content, machine, files):
    second = machine("second", files)
    second.mirror.store.write(INDEX, content)
    with pytest.raises(RunError, match=r"put a copy of it back, or name another --run"):
        second.mirror.bring()


def test_a_run_folder_that_was_copied_to_a_bucket_is_not_begun_anew(machine, files):
    second = machine("second", files)
    second.mirror.store.write("recipe.json", b"{}")
    with pytest.raises(RunError, match=r"holds a run folder that was copied there, and no mirror.json"):
        second.mirror.bring()


def age_lease(store):
    """As if nobody had written it for longer than a lease lasts."""
    held = json.loads(store.read(lease.OBJECT))
    store.write(lease.OBJECT, json.dumps(held | {"time": held["time"] - LEASE_SECONDS - 1}).encode())


def test_a_second_machine_is_refused_with_the_first_ones_host_and_process(address, tmp_path):
    Lease(Store(address), tmp_path / "first").take()
    with pytest.raises(RunError) as refused:
        Lease(Store(address), tmp_path / "second").take()
    held = json.loads(Store(address).read(lease.OBJECT))
    assert f"is being trained by process {held['pid']} on {socket.gethostname()}" in str(refused.value)
    assert "If it is gone, the address is free 5.0 min after its last sign" in str(refused.value)


def test_a_lease_of_the_same_folder_is_of_a_process_that_has_ended(files, tmp_path):
    Lease(Store(files), tmp_path / "first").take()
    assert Lease(Store(files), tmp_path / "first").take() is None


def test_an_old_lease_is_taken_over_and_whoever_had_it_hears_of_it(address, tmp_path):
    first, second = Lease(Store(address), tmp_path / "first"), Lease(Store(address), tmp_path / "second")
    first.take()
    first.renew()
    age_lease(first.store)
    assert "unheard of for 5.0 min: taken over" in second.take()
    with pytest.raises(LeaseLost, match="was taken over by process"):
        first.renew()
    first.release()  # not its own any more
    second.renew()
    second.release()
    assert first.take() is None


@pytest.mark.parametrize("content", ODD, ids=lambda content: repr(content[:20]))
def test_a_lease_that_nobody_can_read_holds_nobody(content, files, tmp_path):
    Store(files).write(lease.OBJECT, content)
    first = Lease(Store(files), tmp_path / "first")
    assert first.take() is None  # nobody was turned out
    first.renew()
    with pytest.raises(RunError, match="is being trained by process"):
        Lease(Store(files), tmp_path / "second").take()


@pytest.mark.parametrize("name", ["data.csv", "../x.0123456789abcdef", "/x.0123456789abcdef", "x.0123456789ABCDEF"])
def test_nothing_but_objects_of_a_run_is_removed_for_the_sake_of_a_lease(name, files, tmp_path):
    first, second = Lease(Store(files), tmp_path / "first"), Lease(Store(files), tmp_path / "second")
    first.take()
    first.renew([name])
    age_lease(first.store)
    second.take()
    assert second.passing == set()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))


def test_a_bucket_that_another_machine_took_over_gets_nothing_more(cache, files, tmp_path, capsys):
    lost = []
    with mirrored(files, print, lost=lambda: lost.append(True)) as mirror:
        save(mirror.run, 4)
        mirror._push()
        age_lease(Store(files))
        theirs = Lease(Store(files), tmp_path / "second")
        theirs.take()
        index = Store(files).read(INDEX)
        save(mirror.run, 8)
    assert lost == [True]
    assert "was taken over by process" in mirror.behind
    assert f"It is whole in {mirror.run}: the same command, on this machine, sends it" in mirror.behind
    assert Store(files).read(INDEX) == index
    theirs.renew()
    assert "is trained in" in capsys.readouterr().out


def test_a_failure_to_send_is_said_once_and_what_is_sent_later_is_not_behind(cache, files, capsys, monkeypatch):
    def refused(self, names):
        raise BucketError(f"{self.address} cannot be written to (permission denied)")

    with mirrored(files, print) as mirror:
        with monkeypatch.context() as patched:
            patched.setattr(Store, "send", refused)
            for step in (4, 8):
                save(mirror.run, step)
                mirror._push()
        printed = capsys.readouterr().err
        assert printed.count("permission denied") == 1
        assert "Training goes on" in printed
        mirror._push()
        assert "is up to date again" in capsys.readouterr().err
    assert mirror.behind is None
    assert Store(files).read(lease.OBJECT) is None


def test_one_process_of_a_machine_sends(cache, files):
    with (
        mirrored(files, print),
        pytest.raises(RunError, match="is being trained or fetched by another process on this machine"),
        mirrored(files, print),
    ):
        pass


def test_a_command_that_reads_takes_the_folder_as_it_is_while_it_is_trained_here(cache, files):
    with mirrored(files, print) as mirror:
        save(mirror.run, 4)
        assert fetched(files) == str(mirror.run)
    assert fetched("runs/x") == "runs/x"


def test_an_address_without_a_run_is_refused_to_whoever_reads(cache, address):
    with pytest.raises(RunError, match=rf"there is no run at {address}: `plimsoll train RECIPE --run {address}`"):
        fetched(address)


def test_the_first_of_several_processes_has_its_run_fetched_and_sent_by_whoever_started_it(cache, files):
    with on_demand(files, quiet=True) as door:
        run = Path(folder_through(os.dup(door.number)))
        save(run, 4)
    assert door.behind is None
    assert "checkpoints/step-00000004/state.json" in json.loads(Store(files).read(INDEX))["files"]


def test_none_of_the_other_processes_touches_the_address(cache, files, tmp_path):
    with on_demand(files, quiet=True) as door:
        pass
    assert door.behind is None
    assert not (tmp_path / "bucket").exists()


def test_what_is_refused_to_the_first_process_it_hears_in_the_same_words(cache, files, tmp_path):
    Lease(Store(files), tmp_path / "elsewhere").take()
    with (
        on_demand(files, quiet=True) as door,
        pytest.raises(PlimsollError, match="is being trained by process") as refused,
    ):
        folder_through(os.dup(door.number))
    assert refused.value.exit_code == 2


def test_places_of_two_addresses_are_apart_and_named_after_them(cache):
    first, second = Place.of("s3://a/runs/demo"), Place.of("gs://a/runs/demo/")
    assert first.run.name == second.run.name == "demo"
    assert first.home != second.home
    assert Place.of("s3://a/runs/demo/") == first
    assert Place.of("s3://bucket/..").run.name == "run"


REFUSED = {
    "s3://plimsoll-no-such-bucket/x": r"cannot be written to \(there is no such bucket\)",
    "memory://x": "would end with its process",
    "nonsense://x": r"cannot be reached \(ValueError: Protocol not known: nonsense",
    "file:///dev/null/x": r"cannot be read \(NotADirectoryError",
}


@pytest.mark.parametrize("where", REFUSED)
def test_what_cannot_be_written_is_refused_at_the_first_contact(where, cache, request):
    if where.startswith("s3:"):
        request.getfixturevalue("s3")
    with pytest.raises(BucketError, match=REFUSED[where]) as refused, mirrored(where, print):
        pass
    assert refused.value.exit_code == 2


def test_a_bucket_that_one_may_not_write_to_is_refused_at_the_first_contact(cache, s3):
    with forbidding(), pytest.raises(BucketError, match=r"permission denied: .*credentials that s3fs finds"):
        Mirrored(f"{s3}/x", Place.of(f"{s3}/x"), print, print).open()


def test_a_driver_that_is_not_installed_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(BucketError, match=r"gs://bucket/x needs a driver that is not here .*`pip install gcsfs`"):
        Store("gs://bucket/x")


def test_a_bucket_full_of_other_things_keeps_them(machine, files, tmp_path):
    other = Path(tmp_path / "bucket/x/checkpoints/mine.txt")
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    first = machine("first", files)
    for step in (4, 8, 12):
        save(first.run, step)
        first.push()
    assert other.read_text() == "mine"
