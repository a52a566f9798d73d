"""Processes of a run tell one another how fast each is alone, and the one for which the others wait is named."""

import json

import pytest

from plimsoll.training import pace
from plimsoll.training.pace import Pace, slowest_first, straggler, straggler_words


def process(number, *, data=0.0, product=0.01, step=1.0):
    return {
        "process": number,
        "host": f"host{number}",
        "step_seconds": step,
        "data_seconds": data,
        "product_seconds": product,
    }


def test_equal_processes_have_no_straggler():
    rows = slowest_first([process(0), process(1, product=0.011), process(2)])
    assert straggler(rows) is None
    assert [row["own_seconds"] for row in rows] == pytest.approx([1.0, 1 / 1.1, 1 / 1.1])


def test_the_one_whose_product_takes_twice_as_long_is_named():
    rows = slowest_first([process(0), process(1), process(2, product=0.02)])
    assert [row["process"] for row in rows] == [2, 0, 1]
    assert [row["own_seconds"] for row in rows] == pytest.approx([1.0, 0.5, 0.5])
    assert straggler(rows) == 2
    assert straggler_words(rows) == (
        "process 2 (host2) is the slowest: it takes 20 ms for a matrix product that takes the others 10. The others"
        " wait for it in every step, 1 s now; look at what else runs there"
    )


@pytest.mark.parametrize("product", [0.01, None], ids=["cpu", "accelerator"])
def test_the_one_that_waits_for_its_data_is_named(product):
    rows = slowest_first([process(0, product=product), process(1, data=0.6, product=product)])
    assert [row["own_seconds"] for row in rows] == pytest.approx([1.0, 0.4])
    assert straggler(rows) == 1
    assert "it waits 0.6 s of a step for its data" in straggler_words(rows)


def test_one_process_waits_for_nobody():
    assert straggler(slowest_first([process(0)])) is None


class Store:
    def __init__(self):
        self.values = {}

    def put(self, name, value):
        self.values[name] = json.loads(json.dumps(value))

    def latest(self, name):
        return self.values.get(name)


ROW = {"step_seconds": 1.0, "data_seconds": 0.0, "resident_bytes": 100, "peak_resident_bytes": 200}


def test_what_all_tell_is_kept_by_the_first_and_a_straggler_is_said_once(monkeypatch):
    monkeypatch.setattr(pace, "FIRST_SECONDS", 0.0)
    store, written, said = Store(), [], []
    first, second = (Pace(store, number, 2, written.append, said.append) for number in (0, 1))
    seconds = {first: 0.01, second: 0.01}
    for own in (first, second):
        monkeypatch.setattr(own, "_product", lambda: None)
    first.tell(10, ROW)
    assert [row["process"] for row in written[-1]["processes"]] == [0]  # the other has not told anything yet

    def timed(product):
        return seconds[telling]

    monkeypatch.setattr(pace, "_timed", timed)
    for at in range(20, 200, 10):
        seconds[second] = 0.03 if at > 50 else 0.01
        for telling in (second, first):
            telling.tell(at, ROW)
    assert {row["process"]: row["step"] for row in written[-1]["processes"]} == {0: 190, 1: 190}
    assert written[-1]["straggler"] == 1
    assert written[-1]["processes"][0]["peak_bytes"] == 200
    assert len(said) == 1
    assert said[0].startswith("process 1 (")


def test_a_process_tells_seldom():
    store = Store()
    one = Pace(store, 1, 2, pytest.fail, pytest.fail)
    one.tell(1, ROW)
    one.tell(2, ROW)
    assert store.values["pace-1"]["step"] == 1
    assert store.values["pace-1"]["product_seconds"] > 0
