"""What lies between steps goes back to the system: in processes of their own, since the heap is the process's; and by
a kernel whose answers are known."""

import ctypes
import io
import os
import resource
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from plimsoll.api import train as api_train
from plimsoll.api.planning.card import training_environment
from plimsoll.planner.chips import chip
from plimsoll.processes.environment import GIVES_BACK, for_making, for_processes, for_several, on_card
from plimsoll.training import memory
from plimsoll.units import MIB
from programs import printed
from report_examples import PLANNED

LIBRARIES = """
from pathlib import Path
import numpy, jaxlib.xla_client
from plimsoll.training import memory

def of_files():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssFile:")[1].split()[0])

before = of_files()
memory.trim()
print(before, of_files(), numpy.ones(3).sum() > 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's smaps")
def test_library_code_that_was_only_touched_is_given_back_by_a_trim() -> None:
    """Most of what importing brought into the resident set; what is needed again comes back by itself."""
    before, after, works = printed(LIBRARIES, environment=for_processes("cpu")).split()
    assert works == "True"
    assert int(before) > 40 * MIB
    assert int(after) < int(before) / 2


IMPORTS = """
from plimsoll import worker
from plimsoll.training import memory

worker.hide_plugins()
worker._import_jax()
after_jax = memory.resident_bytes()
import plimsoll.engine.session, grain, tensorboardX, tokenizers
from orbax.checkpoint import v1
print(after_jax, memory.resident_bytes(), memory.peak_resident_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's smaps")
def test_the_imports_of_a_process_that_trains_are_not_its_peak() -> None:
    """Without giving back what JAX's import has touched they held 205 MiB at once, more than a small run's steps."""
    after_jax, resident, peak = map(int, printed(IMPORTS, environment=for_processes("cpu")).split())
    assert after_jax < 100 * MIB
    assert peak - after_jax > 50 * MIB
    assert max(resident, peak) < 180 * MIB


def test_no_process_that_may_load_an_accelerators_libraries_gives_pages_back(monkeypatch):
    """Whoever started it, and though the process that starts it does. On an H100 that ended training with SIGBUS."""
    monkeypatch.setenv(GIVES_BACK, "1")
    of_this_cpu = [for_processes("cpu"), for_processes("cpu", devices=2), for_several("cpu")]
    assert all(GIVES_BACK in environment for environment in of_this_cpu)
    compilers = [for_processes("cuda"), for_processes("tpu")]
    on_cards = [on_card(0.5), for_several("cuda"), for_several("tpu")]
    assert not any(GIVES_BACK in environment for environment in [*compilers, *on_cards, for_making()])


@pytest.fixture
def kernel(monkeypatch):
    """A Linux whose files and clock are the test's: `files` by path, `pages` one after the other, `now` in seconds."""
    known = SimpleNamespace(files={}, pages=iter(()), now=0.0, sleeps=[])

    def sleep(seconds):
        known.sleeps.append(seconds)
        known.now += seconds

    def opened(path, mode):
        assert mode == "rb"
        if path in known.files:
            return io.BytesIO(known.files[path].encode())
        assert path == "/proc/self/statm"
        return io.BytesIO(f"999 {next(known.pages)} 77 1 0 1 0".encode())

    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory, "time", SimpleNamespace(sleep=sleep, perf_counter=lambda: known.now))
    monkeypatch.setattr(memory, "Path", lambda path: SimpleNamespace(read_text=lambda: known.files[path]))
    monkeypatch.setattr(memory, "open", opened, raising=False)
    return known


PAGE = os.sysconf("SC_PAGE_SIZE")


def test_settling_ends_when_three_looks_in_a_row_are_no_lower(kernel):
    kernel.pages = iter([10, 9, 9, 8, 8, 12, 8])
    assert memory.settle() == 8 * PAGE
    assert len(kernel.sleeps) == 6


def test_a_heap_is_trimmed_where_more_than_4_mib_are_left_than_after_the_last_time(monkeypatch):
    left = iter([100, 100 + 4 * MIB, 101 + 4 * MIB, 50, 50 + 4 * MIB, 51 + 4 * MIB, 60])
    trimmed = []
    monkeypatch.setattr(memory, "settle", lambda **_: next(left))
    monkeypatch.setattr(memory, "trim_heap", lambda: trimmed.append(len(trimmed)))
    between, after = memory.BetweenSteps(), []
    for _ in range(5):
        between.settle()
        after.append((len(trimmed), between.after_trimming))
    assert after == [(0, 100), (0, 100), (1, 50), (1, 50), (2, 60)]


def test_the_resident_set_is_read_in_pages_and_its_peak_in_kib(kernel):
    kernel.pages = iter([25])
    kernel.files["/proc/self/status"] = "Name:\tpython\nVmHWM:\t    120 kB\nVmRSS:\t    100 kB\n"
    assert (memory.resident_bytes(), memory.peak_resident_bytes()) == (25 * PAGE, 120 * 1024)


def test_nothing_is_waited_for_where_no_mapped_buffer_is_held_beyond_what_was_left(kernel):
    """One that is, by the smallest mapped buffer or more, is waited for; what is left then counts from there on."""
    between, mapped = memory.BetweenSteps(), memory.SMALLEST_MAPPED // PAGE
    steps = [
        ([1000, 1000, 1000, 1000], 3),  # the first: nobody knows what is left
        ([1000 + mapped], 0),
        ([1001 + mapped, 990], 1),  # it goes back while it is waited for
        ([990 + mapped], 0),
        ([991 + mapped] * 4, 3),  # it stays
        ([991 + 2 * mapped], 0),
    ]
    for pages, sleeps in steps:
        kernel.pages, before = iter(pages), len(kernel.sleeps)
        between.settle()
        assert len(kernel.sleeps) - before == sleeps
        assert next(kernel.pages, None) is None


@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("freebsd14", 1024)])
def test_elsewhere_the_peak_is_the_systems_in_its_own_unit(monkeypatch, platform, unit):
    monkeypatch.setattr(memory.sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7_000))
    assert memory.peak_resident_bytes() == 7_000 * unit
    held = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=5_000))
    monkeypatch.setattr(psutil, "Process", lambda: held)
    assert memory.resident_bytes() == memory.settle() == 5_000


def mapping(start, end, rights, file, *, rss=4, anonymous=0):
    return (
        f"{start:x}-{end:x} {rights} 00000000 08:01 17 {file}\n"
        f"Size:           {(end - start) // 1024} kB\nRss:            {rss} kB\nOther-Field:    9 kB\n"
        f"Anonymous:      {anonymous} kB\nVmFlags: rd ex mr mw me\n"
    )


def test_only_read_only_pages_of_files_that_nobody_changed_are_given_back(kernel, monkeypatch):
    kernel.files["/proc/self/smaps"] = "".join([
        mapping(0x10000, 0x14000, "r-xp", "/lib/code.so"),
        mapping(0x14000, 0x15000, "rw-p", "/lib/code.so"),
        mapping(0x15000, 0x17000, "r--p", "/lib/constants.so"),
        mapping(0x20000, 0x21000, "r-xp", "/lib/relocated.so", anonymous=4),
        mapping(0x30000, 0x31000, "r-xp", "/lib/untouched.so", rss=0),
        mapping(0x40000, 0x41000, "r-xp", "[vdso]"),
        mapping(0x50000, 0x51000, "r--p", ""),
        mapping(0x51000, 0x52000, "r--s", "/dev/nvidiactl"),
        mapping(0x52000, 0x53000, "r--s", "/memfd:cuda (deleted)"),
        mapping(0x60000, 0x68000, "r-xp", "/lib/last one.so"),
    ])  # fmt: skip
    given_back = []

    def madvise(start, size, advice):
        given_back.append((start.value, size.value, advice))

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(madvise=madvise))
    memory.give_back_libraries()
    dont_need = 4
    assert given_back == [(0x10000, 0x4000, dont_need), (0x15000, 0x2000, dont_need), (0x60000, 0x8000, dont_need)]


def test_a_trim_is_of_the_heap_and_of_libraries_and_without_glibc_of_nothing(monkeypatch):
    trimmed = []
    monkeypatch.setattr(memory, "give_back_libraries", lambda: trimmed.append("libraries"))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: SimpleNamespace(malloc_trim=lambda kept: trimmed.append(kept)))
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.delenv(GIVES_BACK, raising=False)
    memory.trim()
    assert trimmed == [0]
    trimmed.clear()
    monkeypatch.setenv(GIVES_BACK, "1")
    memory.trim()
    assert trimmed == [0, "libraries"]  # nothing is kept at the heap's end
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: SimpleNamespace())
    memory.trim_heap()
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    memory.trim()
    assert trimmed == [0, "libraries"]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's tunables")
@pytest.mark.parametrize(
    ("temporary_bytes", "one"),
    [(0, True), (1, False), (MIB - 1, False), (MIB, True)],  # 0: nothing is known of the step
)
def test_threads_share_a_heap_but_where_a_steps_temporaries_come_from_it(temporary_bytes, one):
    one_heap = not api_train.in_heap(replace(PLANNED, temporary_bytes=temporary_bytes))
    variables = training_environment(chip("cpu"), None, MIB, print, devices=1, one_heap=one_heap)
    assert ("arena_max=1" in variables["GLIBC_TUNABLES"]) == one
