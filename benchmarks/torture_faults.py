"""What is done to a run: to its process while it lives, and to its files between two of its lives.

A fault that is put right again (a full disk, a file that is gone) is in force until the process is over, or has gone on
regardless for some steps.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torture_world import STEPS, Course, World, rows_of

from plimsoll.files.manifest import MANIFEST
from plimsoll.files.run_folder import RunFolder

PATIENCE = 900
"""Seconds until a process that does not end counts as stuck: others have the processor, too."""
KEPT = ("data.json", "tokenizer.json", "validation.npy", "plan.json", "recipe.json", "checksums.json", "sessions.json")


@dataclass(frozen=True)
class Ended:
    code: int | None
    """None: it was stuck, and killed."""
    out: str
    err: str

    @property
    def is_good(self) -> bool:
        return self.code == 0

    def facts(self) -> Mapping[str, Any]:
        """Returns what a row keeps of it."""
        return {"code": self.code, "said": self.err.strip()[:300]}


class Life:
    """One process of a run, from its start to its end."""

    def __init__(self, world: World, course: Course, run: Path) -> None:
        self.world, self.course, self.run = world, course, run
        self.out, self.err = world.scratch / "stdout", world.scratch / "stderr"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = world.living = subprocess.Popen(
                [*(world.group.entering if world.group else ()), *course.command(run)],
                env=dict(world.environment),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def step(self) -> int:
        found = rows_of(self.run)
        return found[-1]["step"] if found else 0

    def wait(self, seen: Callable[[], bool], *, seconds: float = PATIENCE, interval: float = 0.01) -> bool:
        """Returns whether it was seen while the process lived."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.alive():
                return False
            if seen():
                return True
            time.sleep(interval)
        return False

    def end(self, *, seconds: float = PATIENCE) -> Ended:
        try:
            code: int | None = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return Ended(code, self.out.read_text(errors="replace"), self.err.read_text(errors="replace"))


@dataclass(frozen=True)
class Live:
    """A fault of a process that lives. `codes`: with what it may end for it, besides 0."""

    kind: str
    codes: tuple[int, ...]
    strike: Callable[[Life, random.Random], str]
    """Does it, and puts right what is to be put right; returns what it did, in words."""
    only: str | None = None
    """Recipe that it is for."""


def _signal(number: signal.Signals) -> Callable[[Life, random.Random], str]:
    def strike(life: Life, _drawn: random.Random) -> str:
        life.process.send_signal(number)
        return number.name

    return strike


def _stop(life: Life, drawn: random.Random) -> str:
    seconds = drawn.uniform(0.05, 1.5)
    life.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    life.process.send_signal(signal.SIGCONT)
    return f"stopped for {seconds:.1f} s"


def _until_over(life: Life, steps: int) -> None:
    """While the fault is in force."""
    first = life.step()
    life.wait(lambda: life.step() >= min(STEPS, first + steps))


def _full(life: Life, drawn: random.Random) -> str:
    leave = drawn.choice((0, 4_096, 65_536, 300_000))
    assert life.world.disk is not None
    life.world.disk.fill(leave=leave)
    _until_over(life, 12)
    life.world.disk.free()
    return f"{leave:,} bytes left"


def _squeeze(life: Life, drawn: random.Random) -> str:
    group = life.world.group
    assert group is not None
    before = group.usage()
    share = drawn.choice((0.4, 0.6, 0.8, 0.9, 1.0))
    shares = [share, 1.0, 1.05]
    limit = next((int(before * part) for part in shares if group.squeeze(int(before * part))), before)
    _until_over(life, 6)
    group.squeeze(2**40)
    return f"limit {limit:,} of {before:,} bytes"


def _vanish(life: Life, _drawn: random.Random) -> str:
    assert life.course.data is not None
    os.rename(life.course.data, life.course.data.with_suffix(".away"))
    _until_over(life, 16)
    os.rename(life.course.data.with_suffix(".away"), life.course.data)
    return "renamed"


def _cut(life: Life, drawn: random.Random) -> str:
    """Cuts the file that is open: the same inode."""
    assert life.course.data is not None
    size = life.course.data.stat().st_size
    left = drawn.randrange(size)
    os.truncate(life.course.data, left)
    _until_over(life, 16)
    life.world.restore(life.course)
    return f"{left:,} of {size:,} bytes left"


def _raise(life: Life, _drawn: random.Random) -> str:
    life.world.raises.touch()
    _until_over(life, 16)
    life.world.raises.unlink()
    return "a row cannot be read"


PASSING = Live("SIGSTOP, SIGCONT", (), _stop)
"""A process lives on."""
ENDING = [
    Live("SIGKILL", (-9,), _signal(signal.SIGKILL)),
    Live("SIGTERM", (143, -15), _signal(signal.SIGTERM)),
    Live("SIGINT", (130, -2), _signal(signal.SIGINT)),
    Live("disk full", (2, 3), _full),
    Live("memory squeezed", (-9, 2, 3), _squeeze),
    Live("data file vanishes", (2, 3), _vanish),
    Live("data file cut while read", (2, 3), _cut),
    Live("loader raises", (1, 2, 3), _raise, only="mine"),
]


def flip(path: Path, drawn: random.Random) -> str:
    content = bytearray(path.read_bytes())
    at, bit = drawn.randrange(len(content)), drawn.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at:,} of {path.name}"


def truncate(path: Path, drawn: random.Random) -> str:
    left = drawn.choice((0, drawn.randrange(path.stat().st_size)))
    os.truncate(path, left)
    return f"{path.name} cut to {left:,} bytes"


def remove(path: Path, _drawn: random.Random) -> str:
    path.unlink()
    return f"{path.name} removed"


DAMAGES = {"bit flipped": flip, "truncated": truncate}


def checkpoints(run: Path) -> list[Path]:
    """The newest first."""
    run_folder = RunFolder(run)
    return [run_folder.checkpoint(step) for step in reversed(run_folder.saved_steps())]


def damage_checkpoint(run: Path, drawn: random.Random) -> tuple[str, str, int]:
    """Kind, words, and the step of it: one of the two newest, since that is what is read."""
    chosen = drawn.choice(checkpoints(run)[:2])
    file = drawn.choice([path for path in chosen.rglob("*") if path.is_file() and path.stat().st_size])
    damages = dict(DAMAGES)
    if file.name != MANIFEST:  # without it, a checkpoint was never finished
        damages["lost a file"] = remove
    how, damage = drawn.choice([*damages.items()])
    return f"checkpoint {how}", f"{chosen.name}: {damage(file, drawn)}", int(chosen.name[5:])


def damage_data(course: Course, drawn: random.Random) -> tuple[str, str]:
    """A disk's damage leaves the time of writing as it was; a program's does not."""
    assert course.data is not None
    before = course.data.stat()
    how, damage = drawn.choice([*DAMAGES.items()])
    words = damage(course.data, drawn)
    silent = drawn.random() < 0.5
    if silent:
        os.utime(course.data, ns=(before.st_atime_ns, before.st_mtime_ns))
    return f"data file {how}", words + (", its time as it was" if silent else "")


def damage_kept(run: Path, drawn: random.Random) -> tuple[str, str, Callable[[], None]]:
    """One of the files that the run was prepared with; and how it is put back."""
    there = [run / name for name in KEPT if (run / name).exists()]
    path = drawn.choice([path for path in there if path.stat().st_size])
    kept = path.read_bytes()
    how, damage = drawn.choice([*DAMAGES.items()])
    return f"run's file {how}", damage(path, drawn), lambda: _put_back(path, kept)


def _put_back(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def damage_records(run: Path, drawn: random.Random) -> tuple[str, str] | None:
    """Damages what a run says about itself, and does not depend on."""
    names = ["ledger.json", "log.txt", "metrics.jsonl"]
    there = [run / name for name in names if (run / name).exists() and (run / name).stat().st_size]
    if not there:
        return None
    path = drawn.choice(there)
    how, damage = ("truncated", truncate) if path.suffix == ".jsonl" else drawn.choice([*DAMAGES.items()])
    return f"record {how}", damage(path, drawn)


def copy_for_inspection(run: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("filler"))
