"""Runs from their preparation to their end, through faults; and whether each learned what an undisturbed one did.

torture.py and torture_processes.py share it: `Tortured` is a run of one process, and what differs for two of them is
overridden there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from measuring import conditions, write
from torture_faults import (
    ENDING,
    PASSING,
    Ended,
    Life,
    Live,
    checkpoints,
    copy_for_inspection,
    damage_checkpoint,
    damage_data,
    damage_kept,
    damage_records,
)
from torture_world import STEPS, Course, World, rows_of

from plimsoll.files.manifest import is_finished
from plimsoll.files.run_folder import RunFolder
from plimsoll.training.checkpoints import read_leaves
from plimsoll.training.fingerprint import fingerprint

OF_TRAINING = ("checkpoints", "metrics.jsonl", "log.txt", "ledger.json")
LIVES = 14
"""Of a run at most; then it is left alone to finish."""
COMPARED = ("loss", "gradient_norm", "validation_loss")


@dataclass(frozen=True)
class Learned:
    """Results of a finished run: every step's figures, and the fingerprint of the last state."""

    digest: str
    figures: Mapping[int, Mapping[str, float]]

    @classmethod
    def of(cls, run: Path) -> Learned:
        folder = RunFolder(run)
        newest = folder.saved_steps()[-1]
        assert newest == STEPS, f"the newest checkpoint is of step {newest}"
        figures: dict[int, dict[str, float]] = {}
        for row in rows_of(run):
            figures.setdefault(row["step"], {}).update({name: row[name] for name in COMPARED if name in row})
        digest = fingerprint(read_leaves(folder.checkpoint(newest)), folder.position(newest).loader)
        return cls(digest, figures)

    def steps_unlike(self, other: Learned) -> int:
        """Steps of which both have figures, and not the same ones."""
        pairs = ((step, name) for step in self.figures for name in self.figures[step])
        unlike = {
            step
            for step, name in pairs
            if name in other.figures.get(step, {}) and other.figures[step][name] != self.figures[step][name]
        }
        return len(unlike)


@dataclass
class Tortured:
    """A run in the making. `_life` yields a row for every fault."""

    all_is_said: ClassVar[bool] = True
    """Whether the run's log says of every damaged checkpoint that it was set aside."""

    world: World
    course: Course
    prepared: Path
    undisturbed: Learned
    number: int
    drawn: random.Random
    troubles: list[str] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    """Checkpoints that a life has still to find, and set aside."""
    faults: int = 0
    lives: int = 0

    def __post_init__(self) -> None:
        self.run = self.world.runs / f"run-{self.number}"
        shutil.copytree(self.prepared, self.run)

    def through_faults(self, over: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Runs until it is finished, or `over()`."""
        while not self.finished() and self.lives < LIVES and not self.troubles and not over():
            yield from self._life()

    def finish(self) -> dict[str, Any]:
        """Left alone with the same command; then the row of the run."""
        self.world.restore(self.course)
        good = self.finished() or self._left_alone()
        row: dict[str, Any] = {
            "run": self.number,
            "recipe": self.course.name,
            "faults": self.faults,
            "lives": self.lives,
        }
        row |= {"lost": not good, "steps_different": 0}
        if good:
            row |= self._compared(Learned.of(self.run))
        if self.troubles:
            copy_for_inspection(self.run, self.world.scratch / f"trouble-{self.number}")
        shutil.rmtree(self.run)
        return row | {"troubles": self.troubles}

    def _left_alone(self) -> bool:
        return self._live(self._start(), (), "left alone").is_good

    def _compared(self, learned: Learned) -> dict[str, Any]:
        different = learned.steps_unlike(self.undisturbed)
        same = learned.digest == self.undisturbed.digest
        return {"fingerprint_same": same, "steps_different": different or int(not same)}

    def finished(self) -> bool:
        return any(int(path.name[5:]) == STEPS for path in checkpoints(self.run))

    def _life(self) -> Iterator[dict[str, Any]]:
        if checkpoints(self.run) and self.drawn.random() < 0.6:
            yield from self._between_lives()
            if self.troubles:
                return
        life = self._start()
        struck: list[tuple[Live, str, int]] = []
        for fault in [*[PASSING] * self.drawn.choice((1, 2, 3)), self.drawn.choice(self._endings())]:
            if not moment(life, self.run, self.drawn):
                break
            at = life.step()
            struck.append((fault, fault.strike(life, self.drawn), at))
        kinds = [fault.kind for fault, _, _ in struck]
        ended = self._live(life, [code for fault, _, _ in struck for code in fault.codes], ", ".join(kinds))
        if "loader raises" in kinds and ended.code and "fallen over" not in ended.err:
            self.troubles.append(f"the loader's own words were not said: {ended.err[-300:]}")
        for fault, words, at in struck:
            yield self._row(fault.kind, words, ended, step=at)

    def _between_lives(self) -> Iterator[dict[str, Any]]:
        disk = ("disk",) if self.world.disk is not None else ()
        how = self.drawn.choice(("checkpoint", "checkpoint", "checkpoint", "records", "data", "kept", *disk))
        if how == "checkpoint":
            for _ in range(self.drawn.choice((1, 1, 2))):
                kind, words, step = damage_checkpoint(self.run, self.drawn)
                self.damaged[step] = words
                yield self._row(kind, words, None)
        elif how == "records" and (found := damage_records(self.run, self.drawn)):
            yield self._row(*found, None)
        elif how == "data" and self.course.data is not None:
            kind, words = damage_data(self.course, self.drawn)
            yield self._row(kind, words, self._bounded(kind))
        elif how == "kept":
            kind, words, put_back = damage_kept(self.run, self.drawn)
            ended = self._bounded(f"{kind} ({words})")
            put_back()
            yield self._row(kind, words, ended)
        elif how == "disk":
            left = self.drawn.choice((0, 4_096, 65_536))
            assert self.world.disk is not None
            self.world.disk.fill(leave=left)
            yield self._row("disk full at start", f"{left:,} bytes left", self._bounded("disk full at start"))

    def _bounded(self, why: str) -> Ended:
        """A life that either refuses, or is killed some steps on; then all is put right but what is in the run."""
        life, first = self._start(), self._last()
        life.wait(lambda: life.step() >= min(STEPS, first + 6))
        if life.alive():
            life.process.kill()
        return self._live(life, (2, 3, -9), why)

    def _start(self) -> Life:
        self._begin()
        return Life(self.world, self.course, self.run)

    def _begin(self) -> None:
        self.lives += 1
        log = self.run / "log.txt"
        self.log_before = log.stat().st_size if log.exists() else 0
        self.aside_before = {path.name for path in (self.run / "checkpoints").glob("damaged-*")}

    def _live(self, life: Life, allowed: Iterable[int], why: str) -> Ended:
        """Runs to its end, which is checked."""
        ended = life.end()
        self.world.restore(self.course)
        words = f"after {why}: code {ended.code}: {ended.err.strip()[-1500:] or ended.out.strip()[-300:]}"
        if ended.code is None:
            self.troubles.append(f"stuck {words}")
        elif ended.code not in (0, *allowed):
            self.troubles.append(f"ended {words}")
        elif "Traceback" in ended.err:
            self.troubles.append(f"a traceback {words}")
        elif ended.code in (2, 3) and "\nerror: " not in f"\n{ended.err}":  # after a tracker that is given up
            self.troubles.append(f"no word of why {words}")
        self._found_what_is_damaged()
        return ended

    def _found_what_is_damaged(self) -> None:
        """Checks, where training went on, that every damaged checkpoint newer than the one it continued from was set
        aside, and said."""
        log = self.run / "log.txt"
        said = log.read_bytes()[self.log_before :].decode(errors="replace") if log.exists() else ""
        continued = re.search(r"continuing from step ([\d,]+) of", said)
        if continued is None and "no checkpoint is whole" not in said:
            return
        first = int(continued[1].replace(",", "")) if continued else 0
        for step, words in list(self.damaged.items()):
            if step == first:
                self.troubles.append(f"continued from checkpoint {step}, which is damaged ({words})")
            elif step > first:
                found = (self.run / "checkpoints").glob(f"damaged-step-{step:08d}-*")
                aside = {path.name for path in found}
                by_this_life = bool(aside - self.aside_before)  # or by one before it that was killed
                is_said = f"checkpoint {step} is damaged" in said
                if not aside or (self.all_is_said and by_this_life and not is_said):
                    self.troubles.append(f"checkpoint {step} ({words}) was not set aside and said: {said[:500]}")
                del self.damaged[step]
        there = {int(path.name[5:]) for path in checkpoints(self.run)}
        self.damaged = {step: words for step, words in self.damaged.items() if step in there}

    def _row(self, kind: str, words: str, ended: Any, *, step: int | None = None) -> dict[str, Any]:
        """Returns the row of a fault; `ended` is None where no process met it yet."""
        self.faults += 1
        row = {"fault": kind, "did": words, "run": self.number, "recipe": self.course.name, "at": step or self._last()}
        return row | ({} if ended is None else ended.facts())

    def _last(self) -> int:
        found = rows_of(self.run)
        return found[-1]["step"] if found else 0

    def _endings(self) -> list[Live]:
        def fits(fault: Live) -> bool:
            if (fault.kind == "memory squeezed" and self.world.group is None) or (
                fault.kind == "disk full" and self.world.disk is None
            ):
                return False
            return fault.only in (None, self.course.name) and (self.course.data is not None or "data" not in fault.kind)

        return [fault for fault in ENDING if fits(fault)]


class Alive(Protocol):
    """Processes of a run, one or several, as `moment` looks at them."""

    def alive(self) -> bool: ...
    def step(self) -> int: ...
    def wait(self, seen: Callable[[], bool], *, seconds: float = ..., interval: float = ...) -> bool: ...


def moment(life: Alive, run: Path, drawn: random.Random) -> bool:
    """Waits for one: while it starts, some steps on, or in the middle of a save. False where it ended before."""
    first = life.step()
    how = drawn.choices(("starting", "stepping", "saving"), (0.15, 0.6, 0.25))[0]
    if how == "starting":
        life.wait(lambda: False, seconds=drawn.uniform(0.1, 5))
        return life.alive()
    if how == "saving":
        return life.wait(lambda: _is_saving(run), interval=0.001)
    ahead = min(STEPS, first + drawn.randint(1, 16))
    return life.wait(lambda: life.step() >= ahead)


def _is_saving(run: Path) -> bool:
    return any(not is_finished(folder) for folder in (run / "checkpoints").glob("step-*"))


def prepared(course: Course, world: World, life: Callable[[Path], Any]) -> tuple[Path, Learned]:
    """Returns a run that is planned and has taken no step; and what is learned when nobody disturbs it.

    Args:
        life: Starts the process or the processes of a run in this folder.
    """
    run, fresh = world.runs / f"undisturbed-{course.name}", world.scratch / f"prepared-{course.name}"
    begun = time.monotonic()
    ended = life(run).end()
    if not ended.is_good:
        copy_for_inspection(run, world.scratch / f"trouble-{course.name}")
        raise SystemExit(f"{course.name} does not even train undisturbed: {ended}")
    learned = Learned.of(run)
    shutil.copytree(run, fresh)
    for path in fresh.iterdir():
        if path.name in OF_TRAINING or path.name.startswith(("events.out", ".")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(run)
    took = time.monotonic() - begun
    print(f"{course.name}: {STEPS} steps undisturbed in {took:.0f} s: {learned.digest[:16]}", flush=True)
    return fresh, learned


def tortured(
    given: argparse.Namespace, world: World, names: Sequence[str], run: Callable[[str, int, random.Random], Tortured]
) -> int:
    """Tortures run after run until time or number is up, keeps every row, and prints them; 1 where one is not sound.

    Args:
        run: Begins a run of a course by its name, with its number and its own dice.
    """
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    first, deadline = 1 + max((row["run"] for row in rows), default=0), time.monotonic() + given.minutes * 60

    def over() -> bool:
        faults = sum("fault" in row for row in rows)
        return time.monotonic() >= deadline or (given.faults is not None and faults >= given.faults)

    def rows_of_runs() -> Iterator[dict[str, Any]]:
        for number, name in zip(itertools.count(first), itertools.cycle(names), strict=False):
            if over():
                return
            one = run(name, number, random.Random(f"{given.seed} {number}"))
            yield from one.through_faults(over)
            yield one.finish()

    try:
        with open(given.out, "a") as file:
            for row in rows_of_runs():
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(words_of(row), flush=True)
    except KeyboardInterrupt:
        print("interrupted: what follows is of the runs that were finished")
    for kept in world.scratch.glob("trouble-*"):
        shutil.copytree(kept, given.out.parent / f"{given.out.stem}-{kept.name}", dirs_exist_ok=True)
    write(given.out.with_suffix(".json"), {"conditions": conditions(given)} | counted(rows))
    print(table(rows))
    return 0 if sound(rows) else 1


def options_of(doc: str, name: str, *, minutes: float, faults: int | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=doc.splitlines()[0])
    options.add_argument("--minutes", type=float, default=minutes)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--faults", type=int, default=faults, help="stop after so many, however many minutes are left")
    options.add_argument("--resume", action="store_true")
    options.add_argument("--out", type=Path, default=Path(f"bench-out/{name}.jsonl"))
    return options


def counted(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what a page quotes of a torture: faults by kind, runs, and what was lost, different or strange."""
    rows = list(rows)
    runs = [row for row in rows if "fault" not in row]
    return {
        "faults": dict(sorted(Counter(row["fault"] for row in rows if "fault" in row).items())),
        "lives": sum(row["lives"] for row in runs),
        "runs": len(runs),
        "lost": sum(row["lost"] for row in runs),
        "steps_different": sum(row.get("steps_different") or 0 for row in runs),
        "fingerprints_same": sum(row.get("fingerprint_same", False) for row in runs),
        "troubles": sum(len(row["troubles"]) for row in runs),
    }


def words_of(row: dict[str, Any]) -> str:
    if "fault" in row:
        code = f" -> {row['code']}" if "code" in row else ""
        return f"  run {row['run']} ({row['recipe']}), step {row['at']}: {row['fault']}, {row['did']}{code}"
    state = "LOST" if row["lost"] else f"finished, {row['steps_different']} steps different"
    lived = f"{row['faults']} faults, {row['lives']} lives"
    return f"run {row['run']} ({row['recipe']}): {lived}, {state} {row['troubles'] or ''}"


def table(rows: list[dict[str, Any]]) -> str:
    """Faults by kind, with the codes that processes ended with; then the runs."""
    faults, runs = [row for row in rows if "fault" in row], [row for row in rows if "fault" not in row]
    lines = [f"{'fault':<28}{'times':>6}   ended with"]
    for kind, times in sorted(Counter(row["fault"] for row in faults).items()):
        codes = Counter(str(row["code"]) for row in faults if row["fault"] == kind and "code" in row)
        said = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items(), key=lambda pair: -pair[1]))
        lines.append(f"{kind:<28}{times:>6}   {said or 'seen by the next process'}")
    lines += [
        f"{'together':<28}{len(faults):>6}   {sum(row['lives'] for row in runs)} processes, {len(runs)} runs",
        f"runs lost: {sum(row['lost'] for row in runs)}",
        f"steps silently different: {sum(row['steps_different'] for row in runs)}",
        f"same fingerprint: {sum(row.get('fingerprint_same', False) for row in runs)} of {len(runs)}",
    ]
    troubles = [f"run {row['run']}: {trouble}" for row in runs for trouble in row["troubles"]]
    return "\n".join([*lines, f"other troubles: {len(troubles)}", *troubles])


def sound(rows: list[dict[str, Any]]) -> bool:
    runs = [row for row in rows if "fault" not in row]
    return bool(runs) and not any(row["lost"] or row["steps_different"] or row["troubles"] for row in runs)
