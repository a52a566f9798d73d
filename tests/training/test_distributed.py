"""What processes say to one another, through a store that is a dictionary, by a runtime that notes what it is told.

Two real processes are in tests/cli/test_processes.py, which `make test` leaves out.
"""

import json
import socket
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from plimsoll.errors import RunError, StoppedError
from plimsoll.processes import peers
from plimsoll.training import distributed
from plimsoll.training.distributed import Agreement, Board

NOT_FOUND = jax.errors.JaxRuntimeError("NOT_FOUND: no such key")


class Store:
    """A client of JAX's runtime."""

    def __init__(self):
        self.values, self.barriers, self.fails, self.waited = {}, [], None, 0.0

    def key_value_set(self, name, value):
        assert name not in self.values, "a name is used once"
        self.values[name] = value

    key_value_set_bytes = key_value_set

    def blocking_key_value_get(self, name, milliseconds):
        if self.fails is not None:
            raise self.fails
        if name not in self.values:
            self.waited += milliseconds / 1000
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {name}")
        return self.values[name]

    def key_value_try_get(self, name):
        if self.fails is not None:
            raise self.fails
        if name not in self.values:
            raise NOT_FOUND
        return self.values[name]

    key_value_try_get_bytes = key_value_try_get

    def wait_at_barrier(self, name, milliseconds):
        self.barriers.append((name, milliseconds))
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def one_of(monkeypatch):
    """Makes this process one of several, and returns its store and the seconds that it sleeps."""

    def made(processes, process=0):
        store, sleeps = Store(), []
        state = SimpleNamespace(client=store, num_processes=processes, process_id=process)
        monkeypatch.setattr(distributed, "_state", lambda: state)
        monkeypatch.setattr(distributed, "time", SimpleNamespace(sleep=sleeps.append))
        monkeypatch.setattr(distributed, "_met", {})
        return store, sleeps

    return made


def test_a_process_alone_is_number_0_of_one():
    assert (distributed.processes(), distributed.process()) == (1, 0)


@pytest.mark.parametrize("process", [0, 1, 2])
def test_each_of_several_knows_its_number(one_of, process):
    one_of(3, process)
    assert (distributed.processes(), distributed.process()) == (3, process)


def test_a_name_is_claimed_by_one_even_where_the_store_hears_it_twice(one_of, monkeypatch):
    store, _ = one_of(2, process=1)
    board, set_once = Board(), store.key_value_set

    def heard_twice(name, value):
        set_once(name, value)
        raise jax.errors.JaxRuntimeError("ALREADY_EXISTS: key is there")

    assert board.claim("one")
    monkeypatch.setattr(store, "key_value_set", heard_twice)
    assert board.claim("two")
    store.values["plimsoll/three"] = "0"
    monkeypatch.setattr(store, "key_value_set", lambda name, value: heard_twice(f"{name}-lost", value))
    assert not board.claim("three")


def test_a_barrier_is_passed_each_time_once_all_have_come(one_of):
    store, sleeps = one_of(3, process=1)
    places = ["saved-1", "saved-2", "end-1"]
    store.values |= {f"plimsoll/met-{place}-{number}": "true" for place in places for number in (0, 2)}
    for place in ("saved", "saved", "end"):
        distributed.barrier(place)
    assert all(store.values[f"plimsoll/met-{place}-1"] == "true" for place in places)
    assert (sleeps, store.waited) == ([], 0)


def test_a_barrier_waits_for_whoever_has_not_come(one_of, monkeypatch):
    store, sleeps = one_of(2)
    comes = {3: lambda: store.key_value_set("plimsoll/met-saved-1-1", "true")}
    monkeypatch.setattr(distributed.time, "sleep", lambda _: (sleeps.append(0), comes.get(len(sleeps), int)()))
    distributed.barrier("saved")
    assert len(sleeps) == 3
    assert store.waited == pytest.approx(10)  # at first the value itself ends the wait


def test_a_value_that_comes_soon_ends_the_wait_itself(one_of, monkeypatch):
    store, sleeps = one_of(2)
    answers = iter([jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: plan"), "7"])

    def get(_name, _milliseconds):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(store, "blocking_key_value_get", get)
    assert Board().read("plan") == 7
    assert sleeps == []


def test_a_process_alone_waits_at_no_barrier(one_of):
    store, _ = one_of(1)
    distributed.barrier("saved")
    assert store.values == {}


def test_all_have_met_at_the_end_before_this_one_looks_away_and_the_runtime_is_shut_down(one_of, monkeypatch):
    store, _ = one_of(2)
    store.values["plimsoll/met-end-1-1"] = "true"
    told = []
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: told.append("shut down"))
    distributed.leave(lambda: told.append(sorted(store.values)))
    assert told == [["plimsoll/met-end-1-0", "plimsoll/met-end-1-1"], "shut down"]


@pytest.fixture
def cards(monkeypatch):
    """Four devices of each of three processes, in no order."""
    found = [
        SimpleNamespace(process_index=index, id=10 * index + n)
        for n, index in [(n, i) for n in range(4) for i in (2, 0, 1)]
    ]
    monkeypatch.setattr(jax, "devices", lambda: found)
    monkeypatch.setattr(jax, "device_count", lambda: len(found))
    return found


@pytest.mark.parametrize(
    ("count", "ids"),
    [(3, [0, 10, 20]), (6, [0, 1, 10, 11, 20, 21]), (12, [10 * i + n for i in range(3) for n in range(4)])],
)
def test_of_every_process_as_many_devices_are_taken_process_by_process(one_of, cards, count, ids):
    one_of(3)
    assert [device.id for device in distributed.devices(count)] == ids


@pytest.mark.parametrize("count", [4, 11, 15])
def test_devices_that_are_not_there_or_cannot_be_shared_out_are_refused(one_of, cards, count):
    one_of(3)
    with pytest.raises(RunError, match=f"the plan is for {count} devices, and JAX finds 12 in 3 processes"):
        distributed.devices(count)


def test_what_one_process_writes_the_others_read_once_it_is_there(one_of, monkeypatch):
    store, _ = one_of(2, process=1)
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 3:
            store.values["plimsoll/plan"] = json.dumps({"a": [1, None]})

    monkeypatch.setattr(distributed, "time", SimpleNamespace(sleep=sleep))
    assert Board().read("plan") == {"a": [1, None]}
    assert sleeps == [0.2] * 3
    Board().write("other", 7)
    assert store.values["plimsoll/other"] == "7"


def test_an_error_of_the_store_ends_the_wait(one_of):
    store, _ = one_of(2, process=1)
    store.fails = jax.errors.JaxRuntimeError("UNAVAILABLE: gone")
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        Board().read("plan")


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(("process", "sleeps"), [(0, [3]), (1, [])])
def test_the_first_leaves_the_others_three_seconds_to_print_what_they_read(one_of, gone, process, sleeps):
    store, slept = one_of(2, process)
    store.fails = jax.errors.JaxRuntimeError("UNAVAILABLE: gone") if gone else None
    Board().wait_until_read("problem")
    assert store.barriers == [("plimsoll/read-problem", 30_000)]
    assert slept == sleeps


def test_files_are_sent_in_pieces_of_a_mib_and_unpacked_byte_by_byte(one_of, tmp_path):
    store, _ = one_of(2)
    (tmp_path / "from/deep").mkdir(parents=True)
    contents = {"a.npy": np.random.default_rng(0).bytes(2_500_000), "deep/b.json": b"{}", "left out": b"x"}
    for path, content in contents.items():
        (tmp_path / "from" / path).write_bytes(content)
    Board().write_files("data", tmp_path / "from", ["a.npy", "deep/b.json"])
    sizes = [len(piece) for name, piece in sorted(store.values.items()) if name != "plimsoll/data"]
    whole, rest = divmod(sum(sizes), 2**20)
    assert sizes == [2**20] * whole + [rest] * (rest > 0)
    assert store.values["plimsoll/data"] == str(len(sizes)) == "3"
    Board().read_files("data", tmp_path / "to")
    found = {str(path.relative_to(tmp_path / "to")): path.read_bytes() for path in (tmp_path / "to").rglob("*.*")}
    assert found == {path: contents[path] for path in ("a.npy", "deep/b.json")}


def test_a_process_alone_follows_its_own_request_at_once():
    agreed = Agreement()
    assert agreed.alone
    assert [agreed(request) for request in (0, 15, 2)] == [0, 15, 2]


def test_a_process_alone_compiles_nothing_to_agree(monkeypatch):
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("compiled"))
    assert Agreement()(3) == 3


def test_several_follow_the_largest_request_of_all_one_step_later(monkeypatch):
    """The requests of two lie on one device here."""
    others = iter([0, 101, 0, 0])

    def both(sharding, own, shape):
        assert (own.shape, shape) == ((1,), (2,))
        return np.array([*own, next(others)])

    monkeypatch.setattr(distributed, "processes", lambda: 2)
    monkeypatch.setattr(distributed, "devices", lambda count: jax.devices()[: count - 1])
    monkeypatch.setattr(jax, "make_array_from_process_local_data", both)
    agreed = Agreement()
    assert not agreed.alone
    assert [agreed(request) for request in (0, 0, 15, 0)] == [0, 0, 101, 15]


@pytest.fixture
def joining(monkeypatch, tmp_path):
    """What JAX is told as processes join; to be answered by `answer`."""
    told = SimpleNamespace(given=None, answer=lambda: None, settings={})

    def initialize(*given, **named):
        told.given = given, named
        told.answer()

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(jax.config, "update", told.settings.__setitem__)
    monkeypatch.setattr(distributed, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(distributed.tempfile, "gettempdir", lambda: str(tmp_path))
    yield told
    while distributed._held:
        distributed._held.pop().close()


def test_processes_wait_five_minutes_for_one_another_and_half_a_minute_for_a_sign_of_life(joining):
    distributed.join("host:1", 2, 1)
    assert joining.given == (
        ("host:1", 2, 1),
        {"initialization_timeout": 600, "heartbeat_timeout_seconds": 30, "shutdown_timeout_seconds": 30},
    )
    assert joining.settings == {
        "jax_cpu_collectives_implementation": "gloo", "jax_enable_preemption_service": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("coordinator", "where"), [("host:1", "host:1"), (None, "the coordinator that this cluster names")]
)
def test_processes_that_do_not_find_one_another_are_told_where_they_looked(joining, coordinator, where):
    def fail():
        raise RuntimeError("DEADLINE_EXCEEDED: " + "x" * 300 + "\nand a second line")

    joining.answer = fail
    with pytest.raises(RunError, match=f"did not find one another at {where} in 0 s: DEADLINE_EXCEEDED: x+. Start"):
        distributed.join(coordinator, 2, 1)


def test_a_wait_for_the_others_is_said_and_ends_here_before_jax_aborts(joining, monkeypatch, capsys):
    monkeypatch.setattr(distributed, "SAID_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(distributed, "CONNECT_SECONDS", 0.05)
    joined = threading.Event()
    joining.answer = joined.wait
    with pytest.raises(RunError, match="did not find one another at host:1 in 0 s: not all have come"):
        distributed.join("host:1", 2, 1)
    joined.set()
    assert capsys.readouterr().err == "waiting for all 2 processes at host:1, for 0.05 s at most\n"


def test_new_processes_of_a_run_wait_for_less_time_and_end_as_where_one_is_gone(joining, monkeypatch):
    monkeypatch.setattr(distributed, "COME_BACK_SECONDS", 0.05)
    joined = threading.Event()
    joining.answer = joined.wait
    said = "process 0 .a., which trains with this one, is gone .all became new ones, and it has not come to host:1 in 0"
    with pytest.raises(StoppedError, match=said) as lost:
        distributed.join("host:1", 2, 1, again=["a", "b"])
    joined.set()
    assert lost.value.exit_code == peers.LOST
    assert peers.says_gone(f"error: {lost.value}")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_a_port_in_use_is_refused_by_the_process_that_is_to_listen(joining, family, host):
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError as problem:
            pytest.skip(f"no such network here: {problem}")
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(RunError, match=f"port {port} of --coordinator 127.0.0.1:{port} is in use"):
            distributed.join(f"127.0.0.1:{port}", 2, 0)
        distributed.join(f"127.0.0.1:{port}", 2, 1)
    assert joining.given is not None


def test_the_same_process_of_a_run_is_refused_while_it_is_there(joining, monkeypatch):
    monkeypatch.setattr(distributed, "ENDING_SECONDS", 0.05)
    distributed.join("host:1", 2, 1)
    with pytest.raises(RunError, match=r"process 1 of the run at --coordinator host:1 is on this machine already"):
        distributed.join("host:1", 2, 1)
    distributed.join("host:1", 2, 0)
    distributed._held[0].close()
    distributed.join("host:1", 2, 1)


def test_a_signal_while_a_process_waits_for_the_others_ends_it_with_its_number(joining):
    joined = threading.Event()
    joining.answer = joined.wait
    looks = iter([None, None, 2])
    with pytest.raises(RunError, match="stopped while it waited for the other processes") as stopped:
        distributed.join("host:1", 2, 1, signal=lambda: next(looks))
    joined.set()
    assert stopped.value.exit_code == 128 + 2
    assert str(stopped.value).endswith("nothing was begun")
    joined.clear()
    with pytest.raises(RunError, match="stopped while it waited for the other processes: what was saved is whole"):
        distributed.join("host:1", 2, 0, signal=lambda: 2, again=["a", "b"])
    joined.set()


def test_where_orbax_would_wait_for_the_others_the_first_seems_to_be_alone(one_of, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 5)
    for processes, counted in [(1, 5), (2, 1)]:
        one_of(processes)
        with distributed.alone():
            assert jax.process_count() == counted
        assert jax.process_count() == 5
