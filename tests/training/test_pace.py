"""Processes of a run tell one another how fast each is alone, and the one for which the others wait is named."""

import json

import pytest

from plimsoll.training import pace
from plimsoll.training.pace import LOOKS, Pace, slowest_first, straggler, straggler_words


def process(number, *, data=0.0, product=0.01, step=1.0, looks=LOOKS):
    return {
        "process": number,
        "host": f"host{number}",
        "step_seconds": step,
        "data_seconds": data,
        "product_seconds": product,
        "looks": looks,
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
        " wait for it in every step of 1 s, and would take 0.5 by themselves; look at what else runs there"
    )


@pytest.mark.parametrize("product", [0.01, None], ids=["cpu", "accelerator"])
def test_the_one_that_waits_for_its_data_is_named(product):
    rows = slowest_first([process(0, product=product), process(1, data=0.6, product=product)])
    assert [row["own_seconds"] for row in rows] == pytest.approx([1.0, 0.4])
    assert straggler(rows) == 1
    assert "it waits 0.6 s of a step for its data" in straggler_words(rows)


def test_times_of_different_steps_are_not_compared():
    """Seen with nobody slowed: one told of step 2, which took 880 ms, the other of step 6, which took 740."""
    rows = slowest_first([process(0, product=0.00104, step=0.88), process(1, product=0.00112, step=0.74)])
    assert [row["process"] for row in rows] == [1, 0]
    assert [row["own_seconds"] for row in rows] == pytest.approx([0.81, 0.81 / 1.12 * 1.04])
    assert straggler(rows) is None
    waits = slowest_first([process(0, data=0.05, step=0.5, product=None), process(1, data=0.2, step=2, product=None)])
    assert [row["own_seconds"] for row in waits] == pytest.approx([1.25, 1.25])
    assert straggler(waits) is None


@pytest.mark.parametrize(("percent", "named"), [(8, None), (19, None), (21, 1)])
def test_a_process_is_named_from_20_percent_on(percent, named):
    assert straggler(slowest_first([process(0), process(1, product=0.01 * (1 + percent / 100))])) == named


@pytest.mark.parametrize("seldom", [0, 1])
def test_nobody_is_named_before_each_has_told_often_enough(seldom):
    rows = [process(number, product=0.01 * (1 + number), looks=LOOKS - (number == seldom)) for number in (0, 1)]
    assert straggler(slowest_first(rows)) is None


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
    assert [row["process"] for row in written[-1]["processes"]] == [1, 0]
    since = next(place for place, row in enumerate(written) if row["straggler"] == 1)
    assert all(row["looks"] == LOOKS for row in written[since]["processes"])
    assert all(row["straggler"] is None for row in written[:since])
    assert said[0].startswith("process 1 (")


def test_the_first_times_of_a_run_name_nobody_anywhere(monkeypatch):
    """What `plimsoll runs` and the report show is what is written: they named one before the log did."""
    monkeypatch.setattr(pace, "FIRST_SECONDS", 0.0)
    store, written, said = Store(), [], []

    def tell(step, row):
        for own, seconds in ((second, 0.03), (first, 0.01)):
            monkeypatch.setattr(pace, "_timed", lambda product, seconds=seconds: seconds)
            own.tell(step, row)

    first, second = (Pace(store, number, 2, written.append, said.append) for number in (0, 1))
    for step in range(1, LOOKS):
        tell(step, ROW)
    assert [row["straggler"] for row in written] == [None] * (LOOKS - 1)
    assert not said
    tell(LOOKS, ROW | {"step_seconds": 9.0, "data_seconds": 4.5})
    assert written[-1]["straggler"] == 1
    assert [(row["step_seconds"], row["data_seconds"]) for row in written[-1]["processes"]] == [(1.0, 0.0)] * 2
    assert len(said) == 1


def test_a_process_tells_seldom():
    store = Store()
    one = Pace(store, 1, 2, pytest.fail, pytest.fail)
    one.tell(1, ROW)
    one.tell(2, ROW)
    assert store.values["pace-1"]["step"] == 1
    assert store.values["pace-1"]["product_seconds"] > 0
