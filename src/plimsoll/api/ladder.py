"""The ladder of a recipe: a series of plans ("rungs"), each with one more memory-saving option, trained and measured.

The data is prepared once and copied. The real training process trains each rung in two sessions. The first session
evaluates and saves during its steps and at their end. The second restores the checkpoint and takes further steps. All
rungs train their first session before any trains its second, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from plimsoll.api.follow import train_beside
from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning.find import find_plan, find_smallest
from plimsoll.api.planning.place import Place, place_of
from plimsoll.api.planning.question import Question
from plimsoll.api.rungs import CLASSES, Rung, rungs
from plimsoll.api.train import prepare_data
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import PlimsollError, RecipeError, RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Planned
from plimsoll.planner.types import DoesNotCompile
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.report.ladder import Ladder, LadderRow
from plimsoll.report.metrics import read_rows
from plimsoll.units import TIB, format_bytes

LEAST_STEPS = 3
WITHOUT_LIMIT = 1024 * TIB
"""Memory budget in bytes that every plan fits, so that plans above the user's budget are predicted, too."""
PREPARED = ".prepared"
STATE = ("parameters", "optimizer")
"""Parts of the memory ledger that make up the training state of every run."""
STATE_TOO = ("ema", "carry")
"""Parts that belong to the training state of some runs: averaged weights, and state carried from step to step."""


def climb(
    recipe: Recipe,
    *,
    name: str,
    memory: str | float | None = None,
    chosen: Sequence[str] = (),
    numerics: str = CLASSES[-1],
    steps: int,
    folder: Path | str | None = None,
    say: Say = quiet,
) -> Ladder:
    """Trains a recipe's ladder: plans ("rungs") with more and more memory-saving options. Returns the table of results.

    Args:
        recipe: The recipe.
        name: Name of the recipe in messages and in the table.
        memory: Memory budget. A rung with a higher predicted peak is not trained. None: free memory, less a margin.
        chosen: Names of the rungs to train; empty for all.
        numerics: How far rungs may change the arithmetic: "exact", "mixed" or "compressed".
        steps: Optimizer steps on each rung, a third of them after restoring a checkpoint.
        folder: New or empty folder that keeps the runs. By default they are deleted at the end.
        say: Function that is called with progress messages.

    Raises:
        RecipeError: A name in `chosen` is unknown, or `steps` is below 3, or the recipe has fewer than 3 steps.
        DataError: The data cannot be prepared.
        PlimsollError: No rung has a plan. If only some rungs fail, their rows have the reason.
    """
    if steps < LEAST_STEPS:
        raise RecipeError(f"--rung-steps must be {LEAST_STEPS} or more, got {steps}: one step must follow the restore")
    this_cpu = Question(recipe=recipe, name=name, memory=memory, chip="cpu")  # only resident sets are measured
    place = place_of(this_cpu)
    with _folder(folder) as runs:
        ready = RunFolder(runs / PREPARED)
        ready.create()
        prepared = prepare_data(ready, recipe, say)
        if prepared.steps < LEAST_STEPS:
            raise RecipeError(f"a rung takes {LEAST_STEPS} steps or more, and {name} has {prepared.steps}")
        steps = min(steps, prepared.steps)
        stops = steps - max(1, steps // 3), steps
        ladder, left_out = rungs(recipe, chosen=chosen, numerics=numerics)

        # Plan all rungs, then train the rungs that fit, session by session.
        climbers = [_Climber(rung, RunFolder(runs / rung.name), name) for rung in ladder]
        for climber in climbers:
            climber.plan(place, prepared, say)
        rows = [climber.row for climber in climbers]
        _require_one(rows)  # if all fail, the cause is the recipe and no lever
        _create_runs(runs, climbers, ready.path)
        for stop in stops:
            for climber in climbers:
                climber.train_to(stop, save_every=max(1, stops[0] // 2), say=say)
        for climber in climbers:
            climber.measure(stops)
        _compare(climbers)
    return Ladder(
        recipe=name,
        effective_batch=recipe.effective_batch,
        rate_unit=recipe.spec.rate_unit,
        budget_bytes=place.budget_bytes,
        stops=stops,
        rungs=rows,
        left_out=left_out,
    )


def predict(
    recipe: Recipe,
    *,
    name: str,
    chip: str,
    memory: str | float | None = None,
    chosen: Sequence[str] = (),
    numerics: str = CLASSES[-1],
    say: Say = quiet,
) -> Ladder:
    """Predicts bytes of a recipe's ladder: plans ("rungs") with more and more memory-saving options. Reads no data.

    Args:
        recipe: The recipe.
        name: Name of the recipe in messages and in the table.
        chip: Name of a chip, as `plimsoll chips` lists it.
        memory: Memory budget to compare predictions with. None: the memory that a run on the chip can use.
        chosen: Names of the rungs to predict; empty for all.
        numerics: How far rungs may change the arithmetic: "exact", "mixed" or "compressed".
        say: Function that is called with progress messages.

    Raises:
        RecipeError: A name in `chosen` is unknown, or the chip does not exist.
        PlimsollError: No rung has a plan. If only some rungs fail, their rows have the reason.
    """
    place = place_of(Question(recipe=recipe, name=name, chip=chip, memory=memory))
    ladder, left_out = rungs(recipe, chosen=chosen, numerics=numerics, platform=place.chip.platform)
    rows: list[LadderRow] = []
    for rung in ladder:
        say(f"{rung.name}: planning")
        rows.append(_row(rung))
        try:
            _predict(rows[-1], find_smallest(_question(rung, name), place, None, say))
        except (PlimsollError, DoesNotCompile) as failure:
            _fail(rows[-1], failure, say)
    _require_one(rows)
    return Ladder(
        recipe=name,
        chip=chip,
        effective_batch=recipe.effective_batch,
        rate_unit=recipe.spec.rate_unit,
        budget_bytes=place.budget_bytes,
        rungs=rows,
        left_out=left_out,
    )


def _question(rung: Rung, name: str) -> Question:
    """Returns the planning request for a plan of the ladder ("rung"). It fixes all memory-saving options."""
    return Question(recipe=rung.recipe, name=name, numerics=rung.numerics, pins=rung.pins)


def _row(rung: Rung) -> LadderRow:
    """Returns the table row of a plan of the ladder ("rung"), without predicted or measured values."""
    return LadderRow(name=rung.name, numerics=rung.numerics, lever=rung.lever or None, words=rung.words)


def _predict(row: LadderRow, planned: Planned) -> None:
    """Writes the predicted bytes and step time of a plan into a table row."""
    ledger = planned.ledger
    row.plan = planned.plan
    row.parameters = planned.parameters
    row.predicted_peak_bytes = ledger.predicted_peak_bytes
    row.phase = ledger.phase
    row.source = ledger.source
    row.state_bytes = _state_bytes(ledger.components)
    row.temporary_bytes = ledger.components.get("step temporaries")
    row.host_bytes = None if ledger.host is None else ledger.host.predicted_peak_bytes
    row.step_seconds = planned.step_seconds


def _fail(row: LadderRow, problem: Exception, say: Say) -> None:
    """Marks the table row of a plan as failed, and prints the reason."""
    row.outcome = "failed"
    row.why_not = str(problem)
    say(f"{row.name}: {problem}")


def _require_one(rows: Sequence[LadderRow]) -> None:
    """If every plan of the ladder failed, raises PlimsollError with the first one's reason."""
    if all(row.outcome == "failed" for row in rows):
        raise PlimsollError(rows[0].why_not)


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
        with contextlib.suppress(OSError):  # only an empty folder is removed
            place.rmdir()


def _create_runs(place: Path, climbers: Sequence[_Climber], ready: Path) -> None:
    """Creates a run folder with data and plan.json for each plan of the ladder that fits the budget.

    Raises:
        RunError: The disk is too small for the checkpoints of all runs, which exist at the same time.
    """
    runs = [(climber.folder, climber.planned) for climber in climbers if climber.fits]
    needed = sum(planned.disk.bytes for _, planned in runs if planned is not None and planned.disk is not None)
    free = shutil.disk_usage(place).free
    if needed > free:
        raise RunError(
            f"the checkpoints of {len(runs)} rungs take {format_bytes(needed)}, and the disk at {place} has"
            f" {format_bytes(free)} free: choose fewer --rungs, or a folder on another disk with --run"
        )
    for folder, planned in runs:
        assert planned is not None
        shutil.copytree(ready, folder.path)
        folder.write("plan.json", planned.to_dict())


class _Climber:
    """One plan of the ladder (a "rung"), with its run folder and table row. If a rung fails, the others go on."""

    def __init__(self, rung: Rung, folder: RunFolder, name: str) -> None:
        self.rung = rung
        self.folder = folder
        self.name = name
        self.row = _row(rung)
        self.planned: Planned | None = None
        self.temporaries: list[int] = []
        self.losses: dict[int, float] = {}
        """Training losses by step number."""

    @property
    def fits(self) -> bool:
        """True if the plan fits the budget and has not failed."""
        return self.planned is not None and self.planned.ledger.fits and self.row.outcome != "failed"

    def plan(self, place: Place, prepared: Prepared, say: Say) -> None:
        """Finds the plan and writes its predictions into the table row, even if the plan exceeds the budget."""
        say(f"{self.row.name}: planning")
        try:
            unlimited = replace(place, budget_bytes=WITHOUT_LIMIT)
            planned = find_plan(_question(self.rung, self.name), unlimited, prepared, say)
        except (PlimsollError, DoesNotCompile) as problem:
            _fail(self.row, problem, say)
            return
        self.planned = replace(planned, ledger=replace(planned.ledger, budget_bytes=place.budget_bytes))
        _predict(self.row, self.planned)

    def train_to(self, stop: int, *, save_every: int, say: Say) -> None:
        """Trains with the plan to the step `stop` in one training session, if the plan fits the budget."""
        if not self.fits:
            return
        say(f"{self.row.name}: training to step {stop}")
        options = TrainOptions(
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
            _train(self.rung.recipe, options)
            session = self.folder.ledger().session
            temporaries = session and session.components.get("step temporaries")
            self.temporaries += [] if temporaries is None else [temporaries]
        except (PlimsollError, OSError) as problem:
            _fail(self.row, problem, say)

    def measure(self, stops: Sequence[int]) -> None:
        """Writes measured values into the row, if the plan was trained. `stops` has the final step of each session."""
        row, recipe = self.row, self.rung.recipe

        # Clear these two predictions: the table of a trained ladder shows only measured values of them.
        row.temporary_bytes = row.step_seconds = None
        if not self.fits:
            return

        # Write the bytes.
        ledger = self.folder.ledger()
        row.outcome = "measured"
        row.measured_peak_bytes = ledger.measured_bytes
        row.state_bytes = _state_bytes({name: part.measured for name, part in ledger.components.items()})
        row.temporary_bytes = max(self.temporaries, default=None)

        # Write the losses and step times. The time of a session's first step counts only if it is the only step.
        rows = list(read_rows(self.folder.metrics))
        steps = {each["step"]: each for each in rows if "loss" in each}
        self.losses = {step: each["loss"] for step, each in steps.items()}
        row.loss = self.losses[stops[-1]]
        row.validation_loss = next((each["validation_loss"] for each in rows[::-1] if "validation_loss" in each), None)
        seconds: list[float] = []
        for before, stop in pairwise([0, *stops]):
            session = [steps[step]["step_seconds"] for step in range(before + 1, stop + 1)]
            session = session[1:] or session
            row.session_step_seconds.append(statistics.median(session))
            seconds += session
        row.step_seconds = statistics.median(seconds)
        row.per_second = recipe.effective_batch * recipe.spec.rate_per_example / row.step_seconds


def _state_bytes(components: Mapping[str, int | None]) -> int | None:
    """Returns the bytes of the training state; None if a part is unknown, like at a peak before the state exists."""
    parts = [components.get(name) for name in STATE] + [components[name] for name in STATE_TOO if name in components]
    sizes = [size for size in parts if size is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def _compare(climbers: Sequence[_Climber]) -> None:
    """Compares trained plans with the first of them: ratio of step times, and largest relative difference of losses."""
    measured = [climber for climber in climbers if climber.row.outcome == "measured"]
    for climber in measured:
        row, first = climber.row, measured[0]
        assert row.step_seconds is not None
        assert first.row.step_seconds is not None
        row.step_ratio = row.step_seconds / first.row.step_seconds
        row.loss_drift = max(
            abs(climber.losses[step] - loss) / abs(loss) for step, loss in first.losses.items() if loss
        )


def _train(recipe: Recipe, options: TrainOptions) -> None:
    """Trains in a training process like that of a run. Raises PlimsollError with the message of a failed process.

    A signal to this process kills the training process, and is then raised again in this process.
    """
    with tempfile.TemporaryFile("w+") as errors:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
        code, received = train_beside(recipe, options, quiet, kill=True, **streams)
        errors.seek(0)
        words = errors.read().strip()
    if received is not None:
        signal.raise_signal(received)
    if code:
        raise PlimsollError(_last_words(code, words))


def _last_words(code: int, words: str) -> str:
    _, error, reason = words.rpartition("error: ")
    if error:
        return reason
    if code > 128:
        advice = "the machine may be out of memory (`plimsoll doctor` prints the available memory)"
        return f"killed by signal {code - 128}: {advice}"
    return f"ended with code {code}: {(words.splitlines() or ['no message'])[-1][:300]}"
