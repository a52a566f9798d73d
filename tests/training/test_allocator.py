"""What a device says that it holds: the fullest counts; where none says anything, the process does."""

from types import SimpleNamespace

import jax
import pytest

from plimsoll.training import allocator, memory


@pytest.fixture
def devices(monkeypatch):
    """What each device says of its memory, to be filled in."""
    stats = []
    monkeypatch.setattr(
        jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda each=each: each) for each in stats]
    )
    monkeypatch.setattr(memory, "resident_bytes", lambda: 11)
    monkeypatch.setattr(memory, "peak_resident_bytes", lambda: 22)
    return stats


def test_the_fullest_device_counts(devices):
    devices += [
        {"bytes_in_use": 5, "peak_bytes_in_use": 30}, {"bytes_in_use": 7, "peak_bytes_in_use": 20}, None,
        {"peak_bytes_in_use": 1},
    ]  # fmt: skip
    assert (allocator.bytes_now(), allocator.peak_bytes(), allocator.device_bytes()) == (7, 30, 7)


@pytest.mark.parametrize("said", [[], [None], [{}]])
def test_where_no_device_says_anything_the_process_does(devices, said):
    devices += said
    assert (allocator.bytes_now(), allocator.peak_bytes(), allocator.device_bytes()) == (11, 22, None)


def test_which_errors_are_an_allocators():
    assert allocator.refused(MemoryError())
    assert not allocator.refused(OSError("RESOURCE_EXHAUSTED: no"))
    assert not allocator.refused(ValueError())
