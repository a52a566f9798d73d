"""A recipe's memory table, measured: every rung planned, then trained by the real training process.

The data is prepared once and copied. A rung is trained in two sessions: some steps with an
evaluation and a save among them and at their end; then a process that restores and takes some more. All rungs have
their first session, then all their second, so that what else the machine does meets them alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.api import train
from plimsoll.api.planning.find import find_plan, find_smallest
from plimsoll.api.planning.place import budget_bytes, place_of
from plimsoll.api.planning.question import Question
from plimsoll.api.rungs import CLASSES, Rung, rungs
from plimsoll.errors import PlimsollError, RecipeError, RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Planned
from plimsoll.planner import chips
from plimsoll.planner.types import DoesNotCompile
from plimsoll.processes.supervise import watched
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.report.metrics import read_rows
from plimsoll.units import TIB, format_bytes

Say = Callable[[str], None]

LEAST_STEPS = 3
WITHOUT_LIMIT = 1024 * TIB
"""A budget in which every rung has a plan, so that what does not fit is predicted too."""
PREPARED = ".prepared"
STATE = ("parameters", "optimizer")
"""Components of the ledger that a checkpoint holds, and those that are not of every run."""
STATE_TOO = ("ema", "carry")


def climb(
    recipe: Recipe,
    *,
    name: str,
    memory: str | float | None = None,
    chosen: Sequence[str] = (),
    numerics: str = CLASSES[-1],
    steps: int,
    folder: Path | str | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Returns what `plimsoll ladder --json` prints: `rungs`, the plain one first, predicted and measured.

    Args:
        recipe: The recipe.
        name: Name by which the user calls it.
        memory: A rung predicted over it is not run; by default what is available, less a margin.
        chosen: Names of rungs; by default all.
        numerics: Class of the rungs, and of those that touch the numbers less.
        steps: Steps on each rung, of the recipe's schedule, a third of them after it was restored.
        folder: New or empty, keeps the runs; without it they are gone afterwards.
        say: Called with messages about progress.

    Raises:
        RecipeError: No rung can be made of the recipe, or DataError of its data. A rung that fails is said in its row.
    """
    if steps < LEAST_STEPS:
        raise RecipeError(f"--rung-steps must be {LEAST_STEPS} or more, got {steps}: one has to come after the restore")
    limit = budget_bytes(memory, chips.chip("cpu"))
    with _folder(folder) as place:
        ready = RunFolder(place / PREPARED)
        ready.create()
        prepared = train.prepare_data(ready, recipe, say)
        if prepared.steps < LEAST_STEPS:
            raise RecipeError(f"a rung takes {LEAST_STEPS} steps or more, and {name} has {prepared.steps}")
        steps = min(steps, prepared.steps)
        stops = [steps - max(1, steps // 3), steps]  # at which the two sessions end
        ladder, left_out = rungs(recipe, chosen=chosen, numerics=numerics)
        climbed = [_Climbed(rung, RunFolder(place / rung.name), rung.recipe, name) for rung in ladder]
        for each in climbed:
            each.plan(prepared, limit, say)
        if all(each.planned is None for each in climbed):  # the recipe's mistake, and no lever's
            raise PlimsollError(climbed[0].failed)
        _create_runs(place, climbed, ready.path)
        for stop in stops:
            for each in climbed:
                each.session(stop, save_every=max(1, stops[0] // 2), say=say)
        rows = [each.row() for each in climbed]
    _compare(rows)
    return {
        "recipe": name,
        "parameters": next((each.planned.parameters for each in climbed if each.planned is not None), None),
        "effective_batch": recipe.effective_batch,
        "rate_unit": recipe.spec.rate_unit,
        "budget_bytes": limit,
        "stops": stops,
        "rungs": rows,
        "left_out": left_out,
    }


def predict(
    recipe: Recipe,
    *,
    name: str,
    chip: str,
    memory: str | float | None = None,
    chosen: Sequence[str] = (),
    numerics: str = CLASSES[-1],
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Returns what `plimsoll ladder --chip --json` prints: `rungs`, compiled for a chip; nothing is trained or read.

    Args:
        recipe: The recipe.
        name: Name by which the user calls it.
        chip: One of `plimsoll chips`.
        memory: Budget that rungs are held against; by default what a run on the chip can use.
        chosen: Names of rungs; by default all.
        numerics: Class of the rungs, and of those that touch the numbers less.
        say: Called with messages about progress.

    Raises:
        RecipeError: No rung can be made of the recipe, or the chip is not known.
    """
    place = place_of(Question(recipe=recipe, name=name, chip=chip, memory=memory))
    ladder, left_out = rungs(recipe, chosen=chosen, numerics=numerics, platform=place.chip.platform)
    rows: list[dict[str, Any]] = []
    for rung in ladder:
        say(f"{rung.name}: planning")
        question = Question(recipe=rung.recipe, name=name, numerics=rung.numerics, pins=rung.pins)
        try:
            planned, problem = find_smallest(question, place), None
        except (PlimsollError, DoesNotCompile) as failure:
            planned, problem = None, str(failure)
            say(f"{rung.name}: {problem}")
        rows.append(_row(rung, planned, outcome="failed" if planned is None else "predicted", why_not=problem))
    if all(row["outcome"] == "failed" for row in rows):
        raise PlimsollError(rows[0]["why_not"])
    return {
        "recipe": name,
        "chip": chip,
        "parameters": next(row["parameters"] for row in rows if row["parameters"]),
        "effective_batch": recipe.effective_batch,
        "rate_unit": recipe.spec.rate_unit,
        "budget_bytes": place.budget_bytes,
        "rungs": rows,
        "left_out": left_out,
    }


def _row(rung: Rung, planned: Planned | None, *, outcome: str, why_not: str | None) -> dict[str, Any]:
    """Returns what is predicted of a rung; None for each figure where it has no plan."""
    row: dict[str, Any] = {
        "name": rung.name,
        "numerics": rung.numerics,
        "lever": rung.lever or None,
        "words": rung.words,
        "outcome": outcome,
        "why_not": why_not,
        **dict.fromkeys(("plan", "parameters", "predicted_peak_bytes", "phase", "source", "state_bytes")),
        **dict.fromkeys(("temporary_bytes", "host_bytes", "step_seconds")),
    }
    if planned is None:
        return row

    ledger = planned.ledger
    return row | {
        "plan": planned.plan.to_dict(),
        "parameters": planned.parameters,
        "predicted_peak_bytes": ledger.predicted_peak_bytes,
        "phase": ledger.phase,
        "source": ledger.source,
        "state_bytes": _state_bytes(ledger.components),
        "temporary_bytes": ledger.components.get("step temporaries"),
        "host_bytes": None if ledger.host is None else ledger.host.predicted_peak_bytes,
        "step_seconds": planned.step_seconds,
    }


@contextlib.contextmanager
def _folder(folder: Path | str | None) -> Generator[Path, None, None]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="plimsoll-ladder-") as temporary:
            yield Path(temporary)
        return
    place = Path(folder).expanduser().absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise RunError(f"--run {place} is there already: name a new folder for the runs of a ladder")
    try:
        yield place
    finally:
        shutil.rmtree(place / PREPARED, ignore_errors=True)
        with contextlib.suppress(OSError):  # where no rung began, nothing is left
            place.rmdir()


def _create_runs(place: Path, climbed: Sequence[_Climbed], ready: Path) -> None:
    """Creates the runs with their data and plans.

    Raises RunError if the disk is too small for the checkpoints of all of them, which exist at once.
    """
    runs = [(each.folder, each.planned) for each in climbed if each.runs and each.planned is not None]
    needed = sum(planned.disk.bytes for _, planned in runs if planned.disk is not None)
    free = shutil.disk_usage(place).free
    if needed > free:
        raise RunError(
            f"the checkpoints of {len(runs)} rungs take {format_bytes(needed)}, and the disk at {place} has"
            f" {format_bytes(free)} free: choose fewer --rungs, or a folder on another disk with --run"
        )
    for folder, planned in runs:
        shutil.copytree(ready, folder.path)
        folder.write("plan.json", planned.to_dict())


class _Climbed:
    """One rung on its way. What goes wrong with it ends it, and not the others."""

    def __init__(self, rung: Rung, folder: RunFolder, recipe: Recipe, name: str) -> None:
        self.rung, self.folder, self.recipe, self.name = rung, folder, recipe, name
        self.planned: Planned | None = None
        self.over = False
        """Predicted above what it may use: not run."""
        self.failed = ""
        self.temporaries: list[int] = []
        self.seconds: list[list[float]] = []
        """Of the steps of each session, but for its first."""

    @property
    def runs(self) -> bool:
        return not self.over and not self.failed

    def plan(self, prepared: Prepared, limit: int, say: Say) -> None:
        say(f"{self.rung.name}: planning")
        try:
            question = Question(
                recipe=self.recipe,
                name=self.name,
                chip="cpu",  # whose resident set is measured
                memory=WITHOUT_LIMIT,
                numerics=self.rung.numerics,
                pins=self.rung.pins,
            )
            planned = find_plan(question, place_of(question), prepared)
        except (PlimsollError, DoesNotCompile) as problem:
            self._fail(problem, say)
            return
        self.planned = dataclasses.replace(planned, ledger=dataclasses.replace(planned.ledger, budget_bytes=limit))
        self.over = not self.planned.ledger.fits

    def session(self, stop: int, *, save_every: int, say: Say) -> None:
        if not self.runs:
            return
        say(f"{self.rung.name}: training to step {stop}")
        options = train.TrainOptions(
            name=self.name,
            numerics=self.rung.numerics,
            run=str(self.folder.path),
            max_steps=stop,
            log_every=1,
            save_every=save_every,
            eval_every=save_every,
            quiet=True,
            keep_plan=True,
        )
        try:
            before = self._steps()
            _train(self.recipe, options)
            taken = [row["step_seconds"] for step, row in self._steps().items() if step not in before]
            self.seconds.append(taken[1:] or taken)
            session = self.folder.ledger().session
            temporaries = session and session.components.get("step temporaries")
            self.temporaries += [] if temporaries is None else [temporaries]
        except (PlimsollError, OSError) as problem:
            self._fail(problem, say)

    def _fail(self, problem: Exception, say: Say) -> None:
        self.failed = str(problem)
        say(f"{self.rung.name}: {self.failed}")

    def _steps(self) -> dict[int, dict[str, Any]]:
        """Returns steps and their rows of training metrics."""
        if not self.folder.metrics.exists():
            return {}
        return {row["step"]: row for row in read_rows(self.folder.metrics) if "loss" in row}

    def row(self) -> dict[str, Any]:
        outcome = "failed" if self.failed else "predicted" if self.over else "measured"
        row = _row(self.rung, self.planned, outcome=outcome, why_not=self.failed or None)
        figures = ("measured_peak_bytes", "temporary_bytes", "step_seconds", "loss", "validation_loss")
        rate = f"{self.recipe.spec.rate_unit}_per_second"
        row |= {"session_step_seconds": [], **dict.fromkeys(figures), rate: None}
        return row if not self.runs else row | self._measured()

    def _measured(self) -> dict[str, Any]:
        ledger = self.folder.ledger()
        steps = self._steps()
        spec = self.recipe.spec
        seconds = statistics.median([taken for session in self.seconds for taken in session])
        evaluated = [row for row in read_rows(self.folder.metrics) if "validation_loss" in row]
        components = {name: component.measured for name, component in ledger.components.items()}
        return {
            "measured_peak_bytes": ledger.measured_bytes,
            "state_bytes": _state_bytes(components),
            "temporary_bytes": max(self.temporaries, default=None),
            "step_seconds": seconds,
            "session_step_seconds": [statistics.median(session) for session in self.seconds],
            f"{spec.rate_unit}_per_second": self.recipe.effective_batch * spec.rate_per_example / seconds,
            "loss": steps[max(steps)]["loss"],
            "losses": {step: row["loss"] for step, row in steps.items()},
            "validation_loss": evaluated[-1]["validation_loss"] if evaluated else None,
        }


def _state_bytes(components: Mapping[str, int | None]) -> int | None:
    """Returns the bytes of the state; None where the components are of a phase before there is any."""
    parts = [components.get(name) for name in STATE] + [components[name] for name in STATE_TOO if name in components]
    return None if None in parts else sum(part for part in parts if part is not None)


def _compare(rows: Sequence[dict[str, Any]]) -> None:
    """Says in each row how its steps and its losses compare with those of the first rung that was measured."""
    losses = [row.pop("losses", {}) for row in rows]
    first = next((at for at, row in enumerate(rows) if row["outcome"] == "measured"), None)
    for row, own in zip(rows, losses, strict=True):
        row["step_ratio"] = row["loss_drift"] = None
        if first is not None and row["outcome"] == "measured":
            row["step_ratio"] = row["step_seconds"] / rows[first]["step_seconds"]
            row["loss_drift"] = max(abs(own[step] - loss) / abs(loss) for step, loss in losses[first].items() if loss)


def _train(recipe: Recipe, options: train.TrainOptions) -> None:
    """Runs a session of the real training process. Raises PlimsollError with its message if it fails.

    A signal kills the session, and is raised again here: nothing of a ladder is left behind.
    """
    ready = train.prepare_run(recipe, options, lambda text: None)
    try:
        with tempfile.TemporaryFile("w+") as errors:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
            code, received = watched(ready.command, ready.environment, kill=True, pass_fds=[ready.lock], **streams)
            errors.seek(0)
            words = errors.read().strip()
    finally:
        os.close(ready.lock)
    if received is not None:
        signal.raise_signal(received)
    if code:
        raise PlimsollError(_last_words(code, words))


def _last_words(code: int, words: str) -> str:
    _, error, reason = words.rpartition("error: ")
    if error:
        return reason
    if code > 128:
        advice = "the machine may be out of memory (`plimsoll doctor` says what is available)"
        return f"killed by signal {code - 128}: {advice}"
    return f"ended with code {code}: {(words.splitlines() or ['it said nothing'])[-1][:300]}"
