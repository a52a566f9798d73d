"""What lies between steps goes back to the system: in processes of their own, since the heap is the process's."""

import subprocess
import sys

import pytest

from plimsoll.processes.environment import for_processes
from plimsoll.units import MIB

HOLES = """
from plimsoll.training import memory

trimmed = []
trim = memory.trim_heap
memory.trim_heap = lambda: (trimmed.append(1), trim())
between = memory.BetweenSteps()
between.settle()
blocks = [bytearray(10_000) for _ in range(4_000)]
{after}
between.settle()
print(len(trimmed), memory.resident_bytes())
between.settle()
print(len(trimmed), memory.resident_bytes())
"""


def run(after: str) -> list[tuple[int, int]]:
    code = HOLES.format(after=after)
    done = subprocess.run([sys.executable, "-c", code], env=for_processes("cpu"), capture_output=True, check=True)
    return [(int(trims), int(held)) for trims, held in (line.split() for line in done.stdout.decode().splitlines())]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_holes_in_the_heap_are_given_back_between_steps() -> None:
    """All blocks but the last: nothing behind the holes is free, so free() alone gives nothing back."""
    (holes, with_holes), _ = run("del blocks[:-1]")
    (used, with_blocks), (again, _) = run("")
    assert holes == used == 1
    assert with_holes < with_blocks - 30 * MIB
    assert again == 1, "what is needed is trimmed for once, not after every step"


LIBRARIES = """
from pathlib import Path
import numpy, jaxlib.xla_client
from plimsoll.training import memory

def of_files():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssFile:")[1].split()[0])

before = of_files()
memory.trim()
print(before, of_files())
print(numpy.ones(3).sum() > 0, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's smaps")
def test_library_code_that_was_only_touched_is_given_back_by_a_trim() -> None:
    """Most of what importing brought into the resident set; what is needed again comes back by itself."""
    done = subprocess.run([sys.executable, "-c", LIBRARIES], env=for_processes("cpu"), capture_output=True, check=True)
    (before, after), (works, _) = (line.split() for line in done.stdout.decode().splitlines())
    assert works == "True"
    assert int(before) > 40 * MIB
    assert int(after) < int(before) / 2
