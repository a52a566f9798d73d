"""Two processes that train one run: one is killed, frozen or cut off, the disk is full, a checkpoint is damaged.

    python benchmarks/torture_processes.py --faults 100 --seed 1 [--minutes 60] [--resume]

Each process is a `plimsoll train --process I` in a network namespace of its own, where root may make them, so that the
wire between them can be cut. The folder of the run is a small file system that both see, and each has one of its own
for temporary files, where the second keeps all that is not a checkpoint. After each fault the same two commands
continue. A run's last state must have the fingerprint of an undisturbed one, and every step its loss. Every
fault and run is a row of bench-out/torture_processes.jsonl, and torture_processes.json counts them. Ends with 1 if
anything is not as it should be.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from torture_faults import checkpoints, copy_for_inspection, damage_checkpoint, moment, result
from torture_run import Learned
from torture_world import STEPS, Course, FileLimit, Tmpfs, World, rows_of, small_disk

PATIENCE = 900
"""Seconds until processes that do not end count as stuck."""
LIVES = 14
NAMES, ADDRESSES = ("plimsoll-a", "plimsoll-b"), ("10.77.0.1", "10.77.0.2")
SILENT_SECONDS = 45
"""Longer than the silence after which a process counts as gone."""
LOST = (3,)
NEVER_MET = "did not find one another"
"""Words of one that has waited 300 s for another, which was killed or stopped before they met: it ends with 2."""


class Wire:
    """Two network namespaces and what connects them."""

    words = "two network namespaces"

    def command(self, process: int) -> list[str]:
        return ["ip", "netns", "exec", NAMES[process]]

    @property
    def first(self) -> str:
        return ADDRESSES[0]

    def cut(self, *, cut: bool) -> None:
        command = ["ip", "-n", NAMES[0], "link", "set", "wire", "down" if cut else "up"]
        subprocess.run(command, check=True)


class NoWire:
    """The same machine's own network, which cannot be cut."""

    words, first = "the machine's own network, which is not cut: namespaces cannot be made here", "127.0.0.1"

    def command(self, process: int) -> list[str]:
        return []

    def cut(self, *, cut: bool) -> None:
        pass


@contextmanager
def wired() -> Iterator[Wire | NoWire]:
    """Makes the namespaces; in each the host's name is that of its own address, which Gloo connects to."""
    with ExitStack() as stack:
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            if (
                os.geteuid()
                or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
            ):
                yield NoWire()
                return
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

    own: Sequence[Tmpfs | FileLimit]

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


class Pair:
    """Two processes of a run, from their start to their end."""

    def __init__(self, world: Disks, wire: Wire | NoWire, course: Course, run: Path) -> None:
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

    def signal(self, process: int, number: int, *, all_of_it: bool = False) -> None:
        """Signals a process; `all_of_it` with those that it watches, which are in groups of their own."""
        pid = self.processes[process].pid
        for each in [pid, *watched_by(pid)] if all_of_it else [pid]:
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def end(self) -> Ended:
        deadline, codes = time.monotonic() + PATIENCE, list[int | None]()
        for process in self.processes:
            try:
                codes.append(process.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        for number, process in enumerate(self.processes):
            self.signal(number, signal.SIGKILL, all_of_it=True)
            process.wait()
        return Ended(tuple(codes), tuple(file.read_text(errors="replace") for file in self.files))


def watched_by(pid: int) -> list[int]:
    """Returns the children of a process, and theirs."""
    children = list[int]()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            children += map(int, path.read_text().split())
    return children + [below for child in children for below in watched_by(child)]


@dataclass(frozen=True)
class Fault:
    """Fault of two processes that train. `struck` and `other`: exit codes besides 0 of the two."""

    kind: str
    struck: tuple[int, ...]
    other: tuple[int, ...]
    strike: Callable[[Pair, int, World, Wire | NoWire, random.Random], str]
    ends: bool = True


def signalled(number: signal.Signals, *, all_of_it: bool = False) -> Any:
    def strike(pair: Pair, process: int, *_: Any) -> str:
        pair.signal(process, number, all_of_it=all_of_it)
        return f"{number.name} to process {process}{' and what it watches' if all_of_it else ''}"

    return strike


def frozen(least: float, most: float) -> Any:
    def strike(pair: Pair, process: int, _world: Disks, _wire: Any, drawn: random.Random) -> str:
        seconds = drawn.uniform(least, most)
        pair.signal(process, signal.SIGSTOP, all_of_it=True)
        pair.wait(lambda: False, seconds=seconds, interval=0.1)
        pair.signal(process, signal.SIGCONT, all_of_it=True)
        return f"process {process} stopped for {seconds:.1f} s"

    return strike


def cut_off(least: float, most: float) -> Any:
    def strike(pair: Pair, _process: int, _world: Disks, wire: Wire | NoWire, drawn: random.Random) -> str:
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
        disk.fill(None, leave=leave)
        first = pair.step()
        pair.wait(lambda: pair.step() >= min(STEPS, first + 12))
        disk.free(None)
        return f"{leave:,} bytes left" + (f" to process {process}" if own else "")

    return strike


TERMINATED, INTERRUPTED, KILLED = (143, -15), (130, -2), (-9,)
FAULTS = [
    Fault("one killed", KILLED, (*TERMINATED, *LOST), signalled(signal.SIGKILL)),  # what trains under it gets SIGTERM
    Fault("one killed, with what it watches", KILLED, LOST, signalled(signal.SIGKILL, all_of_it=True)),
    Fault("SIGTERM to one", (*TERMINATED, *LOST), (*TERMINATED, *LOST), signalled(signal.SIGTERM)),
    Fault("SIGINT to one", (*INTERRUPTED, *LOST), (*INTERRUPTED, *LOST), signalled(signal.SIGINT)),
    Fault("one frozen for a moment", LOST, LOST, frozen(0.1, 8), ends=False),
    Fault("one frozen for long", LOST, LOST, frozen(SILENT_SECONDS, SILENT_SECONDS + 5)),
    Fault("wire cut for a moment", LOST, LOST, cut_off(0.1, 5), ends=False),
    Fault("wire cut for long", LOST, LOST, cut_off(SILENT_SECONDS, SILENT_SECONDS + 5)),
    Fault("disk full", (2, 3), (2, 3), full_disk(own=False)),
    Fault("own disk full", (2, 3), LOST, full_disk(own=True)),
]


@dataclass
class Tortured:
    """A run of two processes in the making."""

    world: Disks
    wire: Wire | NoWire
    course: Course
    prepared: Path
    undisturbed: Learned
    number: int
    drawn: random.Random
    troubles: list[str] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    faults: int = 0
    lives: int = 0

    def __post_init__(self) -> None:
        self.run = self.world.runs / f"run-{self.number}"
        shutil.copytree(self.prepared, self.run)

    def through_faults(self, over: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        while self.last() < STEPS and self.lives < LIVES and not self.troubles and not over():
            if checkpoints(self.run) and self.drawn.random() < 0.4:
                kind, words, step = damage_checkpoint(self.run, self.drawn)
                self.damaged[step] = words
                yield self.row(kind, words, None)
            yield from self.life()

    def life(self) -> Iterator[dict[str, Any]]:
        pair, struck = self.start(), list[tuple[Fault, str, int]]()
        allowed: list[set[int]] = [{0}, {0}]
        while moment(pair, self.run, self.drawn):
            cannot = ["wire"] * isinstance(self.wire, NoWire) + ["disk"] * isinstance(self.world.disk, FileLimit)
            fault = self.drawn.choice([each for each in FAULTS if not any(word in each.kind for word in cannot)])
            process = 1 if "own" in fault.kind else self.drawn.randrange(2)  # the first writes all into the run
            at = pair.step()
            words = fault.strike(pair, process, self.world, self.wire, self.drawn)
            struck.append((fault, words, at))
            allowed[process] |= {*fault.struck}
            allowed[1 - process] |= {*fault.other}
            if fault.ends:
                break
        ended = self.ended(pair, allowed, ", ".join(fault.kind for fault, *_ in struck) or "nothing")
        for fault, words, at in struck:
            yield self.row(fault.kind, words, ended, step=at)

    def start(self) -> Pair:
        self.lives += 1
        log = self.run / "log.txt"
        self.log_before = log.stat().st_size if log.exists() else 0
        return Pair(self.world, self.wire, self.course, self.run)

    def ended(self, pair: Pair, allowed: list[set[int]], why: str) -> Ended:
        ended = pair.end()
        self.world.disk.free(None)
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
        self.found_what_is_damaged()
        return ended

    def found_what_is_damaged(self) -> None:
        """Checks that every damaged checkpoint that is newer than where training went on was set aside, and said."""
        log = self.run / "log.txt"
        said = log.read_bytes()[self.log_before :].decode(errors="replace") if log.exists() else ""
        if "continuing from step" not in said and "no checkpoint is whole" not in said:
            return
        _, _, rest = said.partition("continuing from step ")
        first = int(rest.split()[0].replace(",", "")) if rest else 0
        for step, words in list(self.damaged.items()):
            if step == first:
                self.troubles.append(f"continued from checkpoint {step}, which is damaged ({words})")
            elif step > first:
                if not (self.run / f"checkpoints/step-{step:08d}.damaged").is_dir():
                    self.troubles.append(f"checkpoint {step} ({words}) was not set aside: {said[:500]}")
                del self.damaged[step]

    def finish(self) -> dict[str, Any]:
        """Left alone with the same commands; then the row of the run."""
        codes = (0, 0) if self.last() >= STEPS else self.ended(self.start(), [{0}, {0}], "being left alone").codes
        row: dict[str, Any] = {"run": self.number, "faults": self.faults, "lives": self.lives, "lost": codes != (0, 0)}
        if codes == (0, 0):
            learned = Learned.of(self.run)
            row["fingerprint_same"] = learned.digest == self.undisturbed.digest
            row["steps_different"] = learned.steps_unlike(self.undisturbed)
        if self.troubles or row["lost"] or not row["fingerprint_same"] or row["steps_different"]:
            copy_for_inspection(self.run, self.world.scratch / f"trouble-{self.number}")
        shutil.rmtree(self.run)
        return row | {"troubles": self.troubles}

    def row(self, kind: str, words: str, ended: Ended | None, *, step: int | None = None) -> dict[str, Any]:
        self.faults += 1
        row = {"fault": kind, "did": words, "run": self.number, "at": self.last() if step is None else step}
        return row | ({} if ended is None else {"codes": ended.codes, "said": [said[:300] for said in ended.said]})

    def last(self) -> int:
        """Step of the newest checkpoint where the run has ended, else of the last row."""
        found = rows_of(self.run)
        return found[-1]["step"] if found else 0


def prepared(world: Disks, wire: Wire | NoWire, course: Course) -> tuple[Path, Learned]:
    """Returns a run that is planned and has taken no step; and what two processes learn that nobody disturbs."""
    run, fresh = world.runs / "undisturbed", world.scratch / "prepared"
    begun = time.monotonic()
    ended = Pair(world, wire, course, run).end()
    if ended.codes != (0, 0):
        raise SystemExit(f"they do not even train undisturbed, {ended.codes}: {ended.said}")
    learned = Learned.of(run)
    shutil.copytree(run, fresh)
    for path in fresh.iterdir():
        if path.name.startswith(("checkpoints", "metrics", "log.txt", "ledger", "events.out", ".", "processes")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(run)
    print(f"{STEPS} steps undisturbed in {time.monotonic() - begun:.0f} s: {learned.digest[:16]}", flush=True)
    return fresh, learned


def words_of(row: Mapping[str, Any]) -> str:
    if "fault" in row:
        code = f" -> {row['codes']}" if "codes" in row else ""
        return f"  run {row['run']}, step {row['at']}: {row['fault']}, {row['did']}{code}"
    state = "LOST" if row["lost"] else f"same fingerprint: {row['fingerprint_same']}"
    return f"run {row['run']}: {row['faults']} faults, {row['lives']} lives, {state} {row['troubles'] or ''}"


def sound(rows: list[dict[str, Any]]) -> bool:
    runs = [row for row in rows if "fault" not in row]
    return all(
        not row["lost"] and row["fingerprint_same"] and not row["steps_different"] and not row["troubles"]
        for row in runs
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--faults", type=int, default=100)
    options.add_argument("--minutes", type=float, default=90)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--resume", action="store_true")
    given = options.parse_args()
    out = Path("bench-out/torture_processes.jsonl")
    out.parent.mkdir(exist_ok=True)
    if not given.resume:
        out.unlink(missing_ok=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    first, deadline = 1 + max((row["run"] for row in rows), default=0), time.monotonic() + given.minutes * 60

    def over() -> bool:
        return time.monotonic() >= deadline or sum("fault" in row for row in rows) >= given.faults

    with tempfile.TemporaryDirectory() as folder, Disks(Path(folder)) as world, wired() as wire, open(out, "a") as file:
        print(f"disk: {world.said['disk']}; network: {wire.words}", flush=True)
        course = world.courses["stories"]
        run, learned = prepared(world, wire, course)
        for number in itertools.count(first):
            if over():
                break
            drawn = random.Random(f"{given.seed} {number}")
            tortured = Tortured(world, wire, course, run, learned, number, drawn)
            for row in itertools.chain(tortured.through_faults(over), iter_once(tortured.finish)):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(words_of(row), flush=True)
        for kept in world.scratch.glob("trouble-*"):
            shutil.copytree(kept, out.parent / f"torture-processes-{kept.name}", dirs_exist_ok=True)
    found = result(rows, given)
    out.with_suffix(".json").write_text(json.dumps(found, indent=1))
    for kind, times in found["faults"].items():
        print(f"{kind:<36}{times:>6}")
    print(f"{sum(found['faults'].values())} faults, {found['runs']} runs, lost {found['lost']}")
    return 0 if sound(rows) else 1


def iter_once(of: Callable[[], Any]) -> Iterator[Any]:
    yield of()


if __name__ == "__main__":
    sys.exit(main())
