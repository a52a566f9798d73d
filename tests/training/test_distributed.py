"""What processes tell one another, through a dictionary. Real processes are in tests/cli/test_processes.py."""

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count as count_from
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from plimsoll.errors import RunError
from plimsoll.training import distributed
from plimsoll.training.distributed import Agreement


class Store:
    """A client of JAX's runtime, for processes that are threads."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set(self, name, value):
        with self.changed:
            assert name not in self.values, "a name is used once"
            self.values[name] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, name, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: name in self.values, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {name}")
            return self.values[name]


@pytest.fixture
def threads(monkeypatch):
    """Runs a function in as many processes, which are threads here, and returns what it returns in each."""

    def run(count, function):
        store, own = Store(), threading.local()
        monkeypatch.setattr(distributed, "_client", lambda: store)
        monkeypatch.setattr(distributed, "processes", lambda: count)
        monkeypatch.setattr(distributed, "process", lambda: own.number)
        monkeypatch.setattr(distributed, "POLL_MILLISECONDS", 5)

        class Words:
            def __next__(self):
                return next(own.words)

        monkeypatch.setattr(distributed, "_exchanges", Words())

        def called(number):
            own.number, own.words = number, count_from(0)
            return function(number)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(called, range(count)))

    return run


def test_a_process_alone_is_number_0_of_one_and_asks_nobody():
    assert (distributed.processes(), distributed.process()) == (1, 0)
    assert distributed.of_first("word", lambda: 7) == 7
    assert distributed.of_each("word", 7) == [7]
    distributed.barrier("here")
    distributed.leave()


def test_all_hear_what_the_first_answers_and_what_each_says_also_for_a_topic_that_comes_again(threads):
    def talk(number):
        first = distributed.of_first("topic", lambda: {"of": number})
        again = distributed.of_first("topic", lambda: [number, None])
        each = distributed.of_each("topic", f"word of {number}")
        distributed.barrier("end")
        return first, again, each

    expected = {"of": 0}, [0, None], ["word of 0", "word of 1", "word of 2"]
    assert threads(3, talk) == [expected] * 3


def test_all_say_what_differs_between_which(threads):
    def required(number):
        facts = {"host": f"h{number}", "jax": "1", "--seed": 5 if number == 2 else 4}
        try:
            return distributed.require_alike(facts)
        except RunError as problem:
            return str(problem)

    said = threads(3, required)
    assert said[0] == said[1] == said[2]
    assert "not started alike: --seed is 5 on process 2 (h2) and 4 on process 0 (h0). Start" in said[0]
    assert threads(2, lambda number: distributed.require_alike({"host": f"h{number}"})) == [["h0", "h1"]] * 2


@pytest.fixture
def cards(monkeypatch):
    """Four devices of each of three processes: 0 to 3, 10 to 13, 20 to 23."""
    monkeypatch.setattr(distributed.runtime, "global_state", SimpleNamespace(client=object(), num_processes=3))
    monkeypatch.setattr(jax, "local_devices", lambda process: list(range(10 * process, 10 * process + 4)))
    monkeypatch.setattr(jax, "device_count", lambda: 12)


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(("count", "devices"), [(3, [0, 10, 20]), (6, [0, 1, 10, 11, 20, 21])])
def test_of_every_process_as_many_devices_are_taken_process_by_process(count, devices):
    assert distributed.devices(count) == devices


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("count", [4, 11, 15])
def test_devices_that_are_not_there_or_cannot_be_shared_out_are_refused(count):
    with pytest.raises(RunError, match=f"the plan is for {count} devices, and JAX finds 12 in 3 processes"):
        distributed.devices(count)


def test_a_process_alone_follows_its_own_request_at_once_and_compiles_nothing(monkeypatch):
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("compiled"))
    agreed = Agreement()
    assert agreed.alone
    assert [agreed(request) for request in (0, 15, 2)] == [0, 15, 2]


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
def joining(monkeypatch):
    """What JAX is told as processes join; to be answered by `answer`."""
    told = SimpleNamespace(given=None, answer=lambda: None)

    def initialize(*given, **named):
        told.given = given, named
        told.answer()

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    return told


def test_processes_that_do_not_find_one_another_are_told_where_they_looked(joining):
    def fail():
        raise RuntimeError("DEADLINE_EXCEEDED: " + "x" * 300 + "\nand a second line")

    joining.answer = fail
    for coordinator, where in (("host:1", "host:1"), (None, "the coordinator that this cluster names")):
        with pytest.raises(RunError, match=f"did not find one another at {where}: DEADLINE_EXCEEDED: x+. Start"):
            distributed.join(coordinator, 2, 1)


def test_one_to_whom_the_others_do_not_come_says_so_before_jax_would_end_it_by_an_abort():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    script = "from plimsoll.training import distributed\ndistributed.CONNECT_SECONDS = 1\n"
    script += f"distributed.join({where!r}, 2, 0)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = f"error: the processes of this run did not find one another at {where}: not all connected in 1 s. Start"
    assert done.stderr.startswith(said)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_a_port_in_use_is_refused_by_the_process_that_is_to_listen(joining, family, host):
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError as problem:
            pytest.skip(f"no such network here: {problem}")
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(RunError, match=f"port {port} of --coordinator 127.0.0.1:{port} is not free"):
            distributed.join(f"127.0.0.1:{port}", 2, 0)
        distributed.join(f"127.0.0.1:{port}", 2, 1)
    assert joining.given is not None
