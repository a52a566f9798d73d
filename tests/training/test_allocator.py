"""What a device says that it holds, and which errors are of an allocator or of a device that is lost."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from plimsoll.training import allocator, memory

XlaError = jax.errors.JaxRuntimeError


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


@pytest.mark.parametrize(
    ("message", "refused", "lost"),
    [
        # A CPU under RLIMIT_AS, and GPUs
        ("RESOURCE_EXHAUSTED: Out of memory allocating 67108864 bytes.", True, False),
        ("RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory", True, False),
        ("INTERNAL: while running: RESOURCE_EXHAUSTED: Out of memory", False, False),
        ("INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", False, True),
        ("UNAVAILABLE: Device lost", False, True),
        ("INVALID_ARGUMENT: Executable expected shape f32[8]", False, False),
    ],
)
def test_refusals_and_lost_devices_are_told_from_mistakes_by_type_and_status(message, refused, lost):
    assert allocator.refused(XlaError(message)) == refused
    assert allocator.device_lost(XlaError(message)) == lost
    of_others = RuntimeError(message)  # the words alone are nothing
    assert not allocator.refused(of_others)
    assert not allocator.device_lost(of_others)


def test_what_jax_and_numpy_really_raise_is_a_refusal():
    with pytest.raises(XlaError) as problem:
        jnp.zeros(2**45, jnp.float32).block_until_ready()
    assert allocator.refused(problem.value)
    assert allocator.refused(MemoryError())
