"""One run from its preparation to its end, through faults; and whether it learned what an undisturbed one did."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
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
    moment,
)
from torture_world import STEPS, Course, World, rows_of

from plimsoll.training.checkpoint import Checkpoints, fingerprint, loader_position, read_leaves

LIVES = 14
"""Of a run at most; then it is left alone to finish."""
CLOSE = 1e-5
"""Relative norm, between a run that was planned again and one that was not."""
OTHER_PLAN = ("--replan", "--micro-batch", "2")
COMPARED = ("loss", "gradient_norm", "validation_loss")


@dataclass(frozen=True)
class Learned:
    """Results of a finished run: every step's figures and the last state."""

    digest: str
    state: Mapping[str, np.ndarray]
    figures: Mapping[int, Mapping[str, float]]

    @classmethod
    def of(cls, run: Path) -> Learned:
        newest = Checkpoints(run / "checkpoints", in_background=False).all()[0]
        assert newest.step == STEPS, f"the newest checkpoint is of step {newest.step}"
        state = dict(read_leaves(newest))
        figures: dict[int, dict[str, float]] = {}
        for row in rows_of(run):
            figures.setdefault(row["step"], {}).update({name: row[name] for name in COMPARED if name in row})
        return cls(fingerprint(state.items(), loader_position(newest)), state, figures)

    def steps_unlike(self, other: Learned) -> int:
        """Steps of which both have figures, and not the same ones."""
        pairs = ((step, name) for step in self.figures for name in self.figures[step])
        unlike = {
            step
            for step, name in pairs
            if name in other.figures.get(step, {}) and other.figures[step][name] != self.figures[step][name]
        }
        return len(unlike)

    def distance(self, other: Learned) -> float:
        """Returns the distance of parameters, as the norm of the difference over the norm."""
        mine = {path: leaf.astype(np.float64) for path, leaf in self.state.items() if path.startswith("['params']")}
        apart = sum(float(((leaf - other.state[path]) ** 2).sum()) for path, leaf in mine.items())
        return (apart / sum(float((leaf**2).sum()) for leaf in mine.values())) ** 0.5


@dataclass
class Tortured:
    """A run in the making. `strike` yields a row for every fault."""

    world: World
    course: Course
    prepared: Path
    undisturbed: Learned
    number: int
    drawn: random.Random
    planned_again: bool = False
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
        self.world.clock.unlink(missing_ok=True)
        self.world.restore(self.course)
        code = 0 if self.finished() else self._live(self._start(), (), "left alone").code
        row: dict[str, Any] = {
            "run": self.number,
            "recipe": self.course.name,
            "faults": self.faults,
            "lives": self.lives,
        }
        row |= {"planned_again": self.planned_again, "lost": code != 0, "steps_different": 0}
        if code == 0:
            self.planned_again &= self._plan_is_the_other()  # that life may have ended before it was made
            row |= {"planned_again": self.planned_again} | self._compared(Learned.of(self.run))
        if self.troubles:
            copy_for_inspection(self.run, self.world.scratch / f"trouble-{self.number}")
        shutil.rmtree(self.run)
        return row | {"troubles": self.troubles}

    def _compared(self, learned: Learned) -> dict[str, Any]:
        if not self.planned_again:
            different = learned.steps_unlike(self.undisturbed)
            same = learned.digest == self.undisturbed.digest
            return {"fingerprint_same": same, "steps_different": different or (0 if same else 1)}
        apart = learned.distance(self.undisturbed)
        said = any("planned again" in note for note in json.loads((self.run / "ledger.json").read_text())["notes"])
        if not said:
            self.troubles.append("its ledger does not say that it was planned again")
        return {"distance": apart, "steps_different": 0 if apart <= CLOSE else 1, "ledger_says_so": said}

    def _plan_is_the_other(self) -> bool:
        plan = json.loads((self.run / "plan.json").read_text())["plan"]
        return plan["micro_batch"] == int(OTHER_PLAN[-1])

    def finished(self) -> bool:
        return any(int(path.name[5:]) == STEPS for path in checkpoints(self.run))

    def _life(self) -> Iterator[dict[str, Any]]:
        if checkpoints(self.run) and self.drawn.random() < 0.6:
            yield from self._between_lives()
            if self.troubles:
                return
        more: tuple[str, ...] = ()
        if self._may_plan_again() and self.drawn.random() < 0.1:
            more, self.planned_again = OTHER_PLAN, True
            yield self._row("planned again", " ".join(more), None)
        life = self._start(*more)
        struck: list[tuple[Live, str, int]] = []
        for fault in [
            *self.drawn.choices(PASSING, k=self.drawn.choice((1, 2, 3, 4, 5))),
            self.drawn.choice(self._endings()),
        ]:
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
        how = self.drawn.choice(("checkpoint", "checkpoint", "checkpoint", "records", "data", "kept", "disk"))
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
            self.world.disk.fill(None, leave=left)
            yield self._row("disk full at start", f"{left:,} bytes left", self._bounded("disk full at start"))

    def _bounded(self, why: str) -> Ended:
        """A life that either refuses, or is killed some steps on; then all is put right but what is in the run."""
        life, first = self._start(), self._last()
        life.wait(lambda: life.step() >= min(STEPS, first + 6))
        if life.alive():
            life.process.kill()
        return self._live(life, (2, 3, -9), why)

    def _start(self, *more: str) -> Life:
        self.lives += 1
        log = self.run / "log.txt"
        self.log_before = log.stat().st_size if log.exists() else 0
        return Life(self.world, self.course, self.run, *more)

    def _live(self, life: Life, allowed: Iterable[int], why: str) -> Ended:
        """Runs to its end, which is checked."""
        ended = life.end()
        self.world.restore(self.course)
        self.world.clock.unlink(missing_ok=True)
        words = f"after {why}: code {ended.code}: {ended.err.strip()[-1500:] or ended.out.strip()[-300:]}"
        if ended.code is None:
            self.troubles.append(f"stuck {words}")
        elif ended.code not in (0, *allowed):
            self.troubles.append(f"ended {words}")
        elif "Traceback" in ended.err:
            self.troubles.append(f"a traceback {words}")
        elif ended.code in (2, 3) and "\nerror: " not in f"\n{ended.err}":  # after a tracker that is given up
            self.troubles.append(f"no word of why {words}")
        self._found_what_is_damaged(ended)
        return ended

    def _found_what_is_damaged(self, ended: Ended) -> None:
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
                aside = (self.run / f"checkpoints/step-{step:08d}.damaged").is_dir()
                # By this session, or by one before it that was killed.
                sentences = (f"checkpoint {step} is damaged", f"step-{step:08d}.damaged is a damaged checkpoint")
                if not aside or not any(sentence in said for sentence in sentences):
                    self.troubles.append(f"checkpoint {step} ({words}) was not set aside and said: {said[:500]}")
                del self.damaged[step]
        there = {int(path.name[5:]) for path in checkpoints(self.run)}
        self.damaged = {step: words for step, words in self.damaged.items() if step in there}

    def _row(self, kind: str, words: str, ended: Ended | None, *, step: int | None = None) -> dict[str, Any]:
        self.faults += 1
        row = {"fault": kind, "did": words, "run": self.number, "recipe": self.course.name, "at": step or self._last()}
        return row | ({} if ended is None else {"code": ended.code, "said": ended.err.strip()[:300]})

    def _last(self) -> int:
        found = rows_of(self.run)
        return found[-1]["step"] if found else 0

    def _may_plan_again(self) -> bool:
        return self.course.name == "stories" and not self.planned_again and bool(checkpoints(self.run))

    def _endings(self) -> list[Live]:
        def fits(fault: Live) -> bool:
            if fault.kind == "memory squeezed" and self.world.group is None:
                return False
            return fault.only in (None, self.course.name) and (self.course.data is not None or "data" not in fault.kind)

        return [fault for fault in ENDING if fits(fault)]
