"""Two processes that train one run: one is killed, frozen or cut off, the disk is full, a checkpoint is damaged.

    python benchmarks/torture_processes.py --faults 100 --seed 1 [--minutes 60] [--resume]

Each process is a `plimsoll train --process I` in a network namespace of its own, so that the wire between them can be
cut: it needs root. The folder of the run is a small file system that both see, and each has one of its own
for temporary files, where the second writes its log. After each fault the same two commands
continue. A run's last state must have the fingerprint of an undisturbed one, and every step its loss. Every
fault and run is a row of bench-out/torture_processes.jsonl, and torture_processes.json counts them. Ends with 1 if
anything is not as it should be.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from torture_faults import checkpoints, damage_checkpoint
from torture_run import Tortured, moment, options_of, prepared, tortured
from torture_world import STEPS, Course, Tmpfs, World, rows_of, small_disk

PATIENCE = 900
"""Seconds until processes that do not end count as stuck."""
NAMES, ADDRESSES = ("plimsoll-a", "plimsoll-b"), ("10.77.0.1", "10.77.0.2")
SILENT_SECONDS = 45
"""Longer than the silence after which a process counts as gone."""
LOST = (3, -signal.SIGABRT)
"""Exit codes of one that trains with another that is gone: by itself, or as JAX ends it."""
NEVER_MET = "did not find one another"
"""Words of one that has waited 300 s for another, which was killed or stopped before they met: it ends with 2."""


class Wire:
    """Two network namespaces and what connects them."""

    def command(self, process: int) -> list[str]:
        return ["ip", "netns", "exec", NAMES[process]]

    @property
    def first(self) -> str:
        return ADDRESSES[0]

    def cut(self, *, cut: bool) -> None:
        command = ["ip", "-n", NAMES[0], "link", "set", "wire", "down" if cut else "up"]
        subprocess.run(command, check=True)


@contextmanager
def wired() -> Iterator[Wire]:
    """Makes the namespaces; in each the host's name is that of its own address, which Gloo connects to."""
    with ExitStack() as stack:
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
            hosts = Path("/etc/netns", name, "hosts")
            hosts.parent.mkdir(parents=True)
            stack.callback(shutil.rmtree, hosts.parent)
            hosts.write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        ends = ["wire", "netns", NAMES[0], "type", "veth", "peer", "name", "wire", "netns", NAMES[1]]
        subprocess.run(["ip", "link", "add", *ends], check=True)
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            for words in (f"address add {address}/24 dev wire", "link set wire up", "link set lo up"):
                subprocess.run(["ip", "-n", name, *words.split()], check=True)
        yield Wire()


class Disks(World):
    """A small disk for the run, and one for each process."""

    own: Sequence[Tmpfs | None]

    def __enter__(self) -> Disks:
        super().__enter__()
        self.own = [self.outside.enter_context(small_disk(self.own_folder(process))) for process in range(2)]
        return self

    def own_folder(self, process: int) -> Path:
        return self.scratch / f"disk-{process}"


@dataclass(frozen=True)
class Ended:
    """Ends of the two processes: exit codes, None for one that was stuck, and what they said as errors."""

    codes: tuple[int | None, ...]
    said: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return set(self.codes) == {0}

    def facts(self) -> dict[str, Any]:
        """Returns what a row keeps of them."""
        return {"code": self.codes, "said": [said[:300] for said in self.said]}


class Pair:
    """Two processes of a run, from their start to their end."""

    def __init__(self, world: Disks, wire: Wire, course: Course, run: Path) -> None:
        self.run, self.files = run, [world.scratch / f"stderr-{process}" for process in range(2)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = []
        for process, errors in enumerate(self.files):
            where = ["--coordinator", f"{wire.first}:{port}", "--processes", "2", "--process", str(process)]
            with open(errors, "wb") as file:
                self.processes.append(
                    subprocess.Popen(
                        [*wire.command(process), *course.command(run, *where)],
                        env={**world.environment, "TMPDIR": str(world.own_folder(process))},
                        stdout=subprocess.DEVNULL,
                        stderr=file,
                        start_new_session=True,
                    )
                )

    def alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def step(self) -> int:
        found = rows_of(self.run)
        return found[-1]["step"] if found else 0

    def wait(self, seen: Callable[[], bool], *, seconds: float = PATIENCE, interval: float = 0.01) -> bool:
        """Returns whether it was seen while both lived."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.alive():
            if seen():
                return True
            time.sleep(interval)
        return False

    def signal(self, process: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.processes[process].pid, number)

    def end(self) -> Ended:
        deadline, codes = time.monotonic() + PATIENCE, list[int | None]()
        for process in self.processes:
            try:
                codes.append(process.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        for number, process in enumerate(self.processes):
            self.signal(number, signal.SIGKILL)
            process.wait()
        return Ended(tuple(codes), tuple(file.read_text(errors="replace") for file in self.files))


@dataclass(frozen=True)
class Fault:
    """Fault of two processes that train. `struck` and `other`: exit codes besides 0 of the two."""

    kind: str
    struck: tuple[int, ...]
    other: tuple[int, ...]
    strike: Callable[[Pair, int, World, Wire, random.Random], str]
    ends: bool = True


def signalled(number: signal.Signals) -> Any:
    def strike(pair: Pair, process: int, *_: Any) -> str:
        pair.signal(process, number)
        return f"{number.name} to process {process}"

    return strike


def frozen(least: float, most: float) -> Any:
    def strike(pair: Pair, process: int, _world: Disks, _wire: Any, drawn: random.Random) -> str:
        seconds = drawn.uniform(least, most)
        pair.signal(process, signal.SIGSTOP)
        pair.wait(lambda: False, seconds=seconds, interval=0.1)
        pair.signal(process, signal.SIGCONT)
        return f"process {process} stopped for {seconds:.1f} s"

    return strike


def cut_off(least: float, most: float) -> Any:
    def strike(pair: Pair, _process: int, _world: Disks, wire: Wire, drawn: random.Random) -> str:
        seconds = drawn.uniform(least, most)
        wire.cut(cut=True)
        pair.wait(lambda: False, seconds=seconds, interval=0.1)
        wire.cut(cut=False)
        return f"the wire was cut for {seconds:.1f} s"

    return strike


def full_disk(*, own: bool) -> Any:
    def strike(pair: Pair, process: int, world: Disks, _wire: Any, drawn: random.Random) -> str:
        leave = drawn.choice((0, 4_096) if own else (0, 4_096, 65_536))
        disk = world.own[process] if own else world.disk
        assert disk is not None
        disk.fill(leave=leave)
        first = pair.step()
        pair.wait(lambda: pair.step() >= min(STEPS, first + 12))
        disk.free()
        return f"{leave:,} bytes left" + (f" to process {process}" if own else "")

    return strike


TERMINATED, INTERRUPTED, KILLED = (143, -15), (130, -2), (-9,)
FAULTS = [
    Fault("one killed", KILLED, LOST, signalled(signal.SIGKILL)),
    Fault("SIGTERM to one", (*TERMINATED, *LOST), (*TERMINATED, *LOST), signalled(signal.SIGTERM)),
    Fault("SIGINT to one", (*INTERRUPTED, *LOST), (*INTERRUPTED, *LOST), signalled(signal.SIGINT)),
    Fault("one frozen for a moment", LOST, LOST, frozen(0.1, 8), ends=False),
    Fault("one frozen for long", LOST, LOST, frozen(SILENT_SECONDS, SILENT_SECONDS + 5)),
    Fault("wire cut for a moment", LOST, LOST, cut_off(0.1, 5), ends=False),
    Fault("wire cut for long", LOST, LOST, cut_off(SILENT_SECONDS, SILENT_SECONDS + 5)),
    Fault("disk full", (2, *LOST), (2, *LOST), full_disk(own=False)),
    Fault("own disk full", (2, *LOST), LOST, full_disk(own=True)),
]


@dataclass
class TorturedPair(Tortured):
    """A run of two processes in the making."""

    all_is_said = False

    wire: Wire = field(kw_only=True)

    def _life(self) -> Iterator[dict[str, Any]]:
        if checkpoints(self.run) and self.drawn.random() < 0.4:
            kind, words, step = damage_checkpoint(self.run, self.drawn)
            self.damaged[step] = words
            yield self._row(kind, words, None)
        pair, struck = self._start(), list[tuple[Fault, str, int]]()
        allowed: list[set[int]] = [{0}, {0}]
        while moment(pair, self.run, self.drawn):
            disk = self.world.disk is not None
            fault = self.drawn.choice([each for each in FAULTS if disk or "disk" not in each.kind])
            process = 1 if "own" in fault.kind else self.drawn.randrange(2)  # the first writes all into the run
            at = pair.step()
            words = fault.strike(pair, process, self.world, self.wire, self.drawn)
            struck.append((fault, words, at))
            allowed[process] |= {*fault.struck}
            allowed[1 - process] |= {*fault.other}
            if fault.ends:
                break
        ended = self._ended(pair, allowed, ", ".join(fault.kind for fault, *_ in struck) or "nothing")
        for fault, words, at in struck:
            yield self._row(fault.kind, words, ended, step=at)

    def _start(self) -> Any:
        self._begin()
        return Pair(self.world, self.wire, self.course, self.run)

    def _left_alone(self) -> bool:
        return self._ended(self._start(), [{0}, {0}], "being left alone").is_good

    def _ended(self, pair: Pair, allowed: list[set[int]], why: str) -> Ended:
        """Waits for both to end, which is checked."""
        ended = pair.end()
        self.world.restore(self.course)
        for process, (code, said) in enumerate(zip(ended.codes, ended.said, strict=True)):
            words = f"after {why}: process {process}, code {code}: {said.strip()[-1500:]}"
            if code is None:
                self.troubles.append(f"stuck {words}")
            elif code not in allowed[process] and not (code == 2 and NEVER_MET in said and why != "nothing"):
                self.troubles.append(f"ended {words}")
            elif "Traceback" in said and "KeyboardInterrupt" not in said:  # that is of Python's own start
                self.troubles.append(f"a traceback {words}: {said}")
            elif code in (2, 3) and "error: " not in said:
                self.troubles.append(f"no word of why {words}")
        self._found_what_is_damaged()
        return ended


def main() -> int:
    given = options_of(__doc__, "torture_processes", minutes=90, faults=100).parse_args()
    given.out.parent.mkdir(exist_ok=True)
    if not given.resume:
        given.out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder, Disks(Path(folder)) as world, wired() as wire:
        print(f"disk: {world.said['disk']}", flush=True)
        course = world.courses["stories"]
        undisturbed = prepared(course, world, lambda run: Pair(world, wire, course, run))
        return tortured(
            given,
            world,
            ["stories"],
            lambda name, number, drawn: TorturedPair(world, course, *undisturbed, number, drawn, wire=wire),
        )


if __name__ == "__main__":
    sys.exit(main())
