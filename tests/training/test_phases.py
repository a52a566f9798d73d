"""Phases of a session: a peak is of the phase that raised it."""

import pytest

from plimsoll.training.phases import Phases
from plimsoll.units import MIB


@pytest.fixture
def peaks(monkeypatch):
    """Peaks of the process in MiB, of which the last one is read."""
    read = [100.0]
    monkeypatch.setattr("plimsoll.training.memory.peak_resident_bytes", lambda: round(read[-1] * MIB))
    return read


def in_mib(phases):
    return {name: size / MIB for name, size in phases.peaks.items()}


@pytest.mark.parametrize(
    ("trained", "later", "found"),
    [
        (200, 0.5, {"load": 100, "train": 200.5}),
        (200, 1.5, {"load": 100, "train": 200, "evaluate": 201.5}),
        (100.5, 0.25, {"load": 100.75}),  # loading had the peak
        (100.5, 50, {"load": 100.5, "evaluate": 150.5}),
    ],
)
def test_a_peak_that_is_only_read_later_is_of_no_other_phase(peaks, trained, later, found):
    """It was taken for what an evaluation needs, and later plans were 27 MiB too high."""
    phases = Phases()
    phases.begin("train")
    peaks.append(trained)
    phases.begin("evaluate")
    peaks.append(trained + later)
    phases.end()
    assert in_mib(phases) == found
    assert phases.now == "train"


def test_steps_beside_a_save_in_the_background_are_of_that_phase(peaks):
    phases = Phases()
    phases.begin("train")
    phases.begin("save")
    phases.end(steps="save")
    peaks.append(300)
    phases.begin("evaluate")
    phases.end()
    peaks.append(400)
    phases.look()
    assert in_mib(phases) == {"load": 100, "save": 400}


def test_what_is_held_between_steps_is_the_least_that_was_seen(peaks, monkeypatch):
    held = iter([50, 40, 60])
    now = iter([1.0, 1.01, 2.0, 3.0])
    monkeypatch.setattr("plimsoll.training.allocator.bytes_now", lambda: next(held))
    monkeypatch.setattr("plimsoll.training.phases.time.monotonic", lambda: next(now))
    phases = Phases()
    for _ in range(4):  # the second is too soon
        phases.after_step()
    assert phases.between_steps == 40
