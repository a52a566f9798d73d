"""The log of a session: a row per logged step, events, a bar or lines, and the summaries at the end."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.engine.options import TrainOptions
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Planned, RunLedger
from plimsoll.recipes.own.pickled import is_pickled
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import to_dict
from plimsoll.report.metrics import LogFile, MetricsLog, read_rows, with_tables
from plimsoll.report.progress import Progress
from plimsoll.report.summary import Epoch, Outcome, early_end, epoch_summary, final_summary, where_and_next
from plimsoll.report.tables import ledger_table
from plimsoll.report.trackers import Tracked, open_tracker
from plimsoll.training import allocator, memory
from plimsoll.training.loop import Ended
from plimsoll.training.profile import Profile
from plimsoll.training.schedule import SINCE_BEST, Best, Schedule, completes, epochs_over
from plimsoll.types import Source
from plimsoll.units import MIB

COUNTED_LATER = MIB
"""Resident bytes by which a peak may be read higher a little later: the kernel counts pages of each processor apart.
Every evaluation of a draw that raised a peak did so by 0.2 to 0.6 MiB, and was taken to need tens of MiB more than
planned (notes, "A peak that is read later")."""


@dataclasses.dataclass
class TimedSource:
    """A source that notes the memory in use after its first batch, and how long training waited for batches.

    On an accelerator steps run meanwhile.
    """

    source: Source
    marks: dict[str, int]
    waited_seconds: float = 0.0

    def __next__(self) -> dict[str, Any]:
        start = time.monotonic()
        batch = next(self.source)
        self.waited_seconds += time.monotonic() - start
        if "data" not in self.marks:
            memory.trim()  # loading a tokenizer leaves up to as much as it keeps
            self.marks["data"] = allocator.bytes_now()
        return batch

    def state(self) -> dict[str, Any]:
        return self.source.state()


class SessionLog:
    """The `training.loop.Log` of one session. It begins with `notes`, and the step from which the run continues."""

    def __init__(
        self,
        session: TrainOptions,
        recipe: Recipe,
        planned: Planned,
        prepared: Prepared,
        folder: RunFolder,
        schedule: Schedule,
        source: TimedSource,
        *,
        resumed: int | None,
        notes: Sequence[str] = (),
    ) -> None:
        self.session, self.recipe, self.planned, self.prepared = session, recipe, planned, prepared
        self.schedule, self.source, self.resumed = schedule, source, resumed
        self.waited_before = 0.0
        self.metrics = MetricsLog(folder.metrics)
        self.metrics.cut_after(resumed or 0)
        self.file = LogFile(folder.path / "log.txt")
        here = Path.cwd()
        self._run = shlex.quote(str(folder.path.relative_to(here) if folder.path.is_relative_to(here) else folder.path))
        first, config = resumed or 0, {"recipe": to_dict(recipe), "plan": planned.plan.to_dict()}
        tracked = Tracked(folder=folder.path, name=folder.path.name, config=config, start_step=first)
        self.trackers = [open_tracker(name, tracked) for name in ("tensorboard", session.tracker)]
        earlier = list(read_rows(folder.metrics))  # training and evaluation write rows of their own
        newest = {name: value for row in earlier for name, value in row.items()}
        self.elapsed_before = max((row.get("elapsed_seconds", 0.0) for row in earlier), default=0.0)
        self.train_loss: float = newest.get("loss") or 0.0
        self.validation_loss: float | None = newest.get("validation_loss")
        self.epoch_loss, self.epoch_steps = 0.0, 0
        self.pending_epoch: Epoch | None = None
        """An epoch whose last step has its evaluation still to come: its summary waits for the validation loss."""
        self.epoch = self._epochs_over(first)
        self.window: list[float] = []
        self.profile = Profile(folder.path / "profile", steps=session.profile)
        self.between_steps = self.peak = allocator.peak_bytes()
        self.look_again = 0.0
        """Time of `time.monotonic` from which the memory in use is looked at after a step again."""
        self.phase_peaks: dict[str, int] = {}
        """The peak after each phase that raised it; what a phase needs below an earlier peak cannot be seen."""
        self.saving_in_background = False
        self.seen: set[str] = set()
        """Phases this session has been in, whether or not they raised the peak."""
        for note in notes:  # as they are, before a bar is drawn
            self.file.write(note)
            print(note, flush=True)
        self.bar = Progress(schedule.stop_at, start_step=first, quiet=session.quiet)
        if resumed is not None:
            self.say(f"continuing from step {resumed:,} of {schedule.steps:,}")
            if resumed >= schedule.stop_at:
                self.say(f"step {schedule.stop_at:,} is past: nothing is trained")
        self.started = self.epoch_started = self.step_ended = time.monotonic()

    def say(self, text: str, *, important: bool = False) -> None:
        self.file.write(text)
        self.bar.message(text, important=important)

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        """Notes a step's loss, time and bytes, and writes what is due after it."""
        # An epoch that ended with the step before, if its evaluation did not come.
        now = time.monotonic()
        self._log_epoch()

        # Bytes, now and then.
        if now >= self.look_again or self._phase_ends(done):
            self.look_again = now + memory.LOOK_SECONDS
            self.between_steps = min(self.between_steps, allocator.bytes_now())
            self._mark("save" if self.saving_in_background else "train")

        # Losses and times.
        self.window.append(now - self.step_ended)
        self.step_ended = now
        self.train_loss = metrics["loss"]
        self.epoch_loss += metrics["loss"]
        self.epoch_steps += 1
        if self.schedule.due(self.session.log_every, done):
            self._write(done, metrics)
        written = self.profile.step_ended()
        if written is not None:
            self.say(written)

        # The summary of an epoch waits for the validation loss, where an evaluation is due.
        if self._epoch_ends(done):
            self._end_epoch(self._epochs_over(done))
            if not self.schedule.due(self.schedule.evaluate_every, done):
                self._log_epoch()

    def _phase_ends(self, done: int) -> bool:
        """Returns whether an evaluation or a save follows this step, to which its peak must not be assigned."""
        return self.schedule.due(self.schedule.evaluate_every, done) or self.schedule.due(
            self.schedule.save_every, done
        )

    def _mark(self, phase: str) -> None:
        """Assigns what raised the peak since the last mark to this phase."""
        self.seen.add(phase)
        peak = allocator.peak_bytes()
        rise, self.peak = peak - self.peak, max(peak, self.peak)
        if allocator.device_bytes() is None and 0 < rise <= COUNTED_LATER:
            if not self.phase_peaks:  # loading or starting had it
                return
            phase = max(self.phase_peaks, key=self.phase_peaks.__getitem__)
        if rise > 0:
            self.phase_peaks[phase] = peak

    def _write(self, done: int, metrics: Mapping[str, float]) -> None:
        steps, waited = len(self.window), self.source.waited_seconds
        seconds, waiting = sum(self.window) / steps, (waited - self.waited_before) / steps
        self.waited_before = waited
        self.window.clear()
        rate = self.recipe.effective_batch * self.prepared.spec.rate_per_example / seconds if seconds else 0.0
        device = allocator.device_bytes()
        row = {
            **metrics,
            "step_seconds": seconds,
            "data_seconds": waiting,
            "elapsed_seconds": self._elapsed(),
            f"{self.prepared.spec.rate_unit}_per_second": rate,
            "resident_bytes": memory.resident_bytes(),
            "peak_resident_bytes": memory.peak_resident_bytes(),
            **({} if device is None else {"device_bytes": device, "peak_device_bytes": allocator.peak_bytes()}),
        }
        flops, chip = self.planned.step_flops, self.planned.chip_flops
        if flops and chip and flops <= seconds * chip:  # a faster step: the rates were measured beside other programs
            row["mfu"] = flops / seconds / chip
        self._track(done, row)
        self.step_ended = time.monotonic()
        self.bar.update(done, row)

    def evaluation(self, done: int, metrics: Mapping[str, float]) -> None:
        self._mark("evaluate")
        self.validation_loss = metrics["validation_loss"]
        self._track(done, {**metrics, "elapsed_seconds": self._elapsed()})
        since = metrics.get(SINCE_BEST, 0)
        waited = f"; {since} of {self.schedule.patience} evaluations without a better one" if since else ""
        self.say(f"step {done:,}: validation loss {self.validation_loss:.4f}{waited}")
        self._log_epoch()
        self.step_ended = time.monotonic()  # the next step's time is its own

    def saved(self, done: int) -> None:
        self._mark("save")
        self.saving_in_background = self.planned.plan.async_save
        self.file.write(f"saved step {done}")
        self.step_ended = time.monotonic()

    def _track(self, done: int, row: Mapping[str, float]) -> None:
        self.metrics.log(done, with_tables(row, self.recipe.model.uses.tables))
        for tracker in list(self.trackers):
            try:
                tracker.log(done, row)
            except Exception as problem:  # of a library's, on a network's bad day: no reason to lose a run
                self.trackers.remove(tracker)
                self._tracker_failed(tracker, f"given up at step {done:,}", problem)

    def _tracker_failed(self, tracker: Any, what: str, problem: Exception) -> None:
        self.say(f"tracker {tracker.name} is {what}: {type(problem).__name__}: {problem}", important=True)

    def _end_epoch(self, number: int) -> None:
        now, steps = time.monotonic(), self.schedule.steps
        self.pending_epoch = Epoch(
            number=number,
            epochs=max(self._epochs_over(steps), int(10 * steps / (self.prepared.steps_per_epoch or steps)) / 10),
            train_loss=self.epoch_loss / self.epoch_steps if self.epoch_steps else self.train_loss,
            validation_loss=self.validation_loss,
            epoch_seconds=(now - self.epoch_started) / (number - self.epoch),
            elapsed_seconds=self._elapsed(),
        )
        self.epoch, self.epoch_started = number, now
        self.epoch_loss, self.epoch_steps = 0.0, 0

    def _log_epoch(self) -> None:
        if self.pending_epoch is not None:
            self.say(epoch_summary(dataclasses.replace(self.pending_epoch, validation_loss=self.validation_loss)))
            self.pending_epoch = None

    def close(self, ended: Ended | None, ledger: RunLedger | None, best: Best) -> None:
        self._log_epoch()
        if ended is not None:
            outcome = Outcome(
                steps=ended.step,
                train_loss=self.train_loss,
                validation_loss=self.validation_loss,
                best_validation_loss=best.validation_loss,
                best_step=best.step,
                total_seconds=self._elapsed(),
                epochs=self._epochs_over(ended.step),
                epochs_begun=ended.step / self.prepared.steps_per_epoch if self.prepared.steps_per_epoch else 0.0,
                finished=ended.step >= self.schedule.steps,
                ended_early=self._early_end(ended),
                rows_left_out=self.source.state().get("skipped", 0),
                waited_share=self.source.waited_seconds / max(1e-9, time.monotonic() - self.started),
            )
            self.say(final_summary(outcome))
            if ledger is not None:
                self.say(ledger_table(ledger))
            uses = [part.command for part in self.recipe.model.uses.shown if part.command]
            of_functions = is_pickled(to_dict(self.recipe))
            self.say(where_and_next(self._run, outcome, uses=uses, of_functions=of_functions))
        if (written := self.profile.close()) is not None:
            self.say(written)
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as problem:
                self._tracker_failed(tracker, "not closed", problem)
        self.bar.close()
        self.metrics.close()
        self.file.close()

    def _early_end(self, ended: Ended) -> str:
        patience, steps = self.schedule.patience, self.schedule.steps
        if not ended.early or patience is None:
            return ""
        return early_end(ended.step, steps, patience=patience, best_by=self.schedule.best_by)

    def _elapsed(self) -> float:
        return self.elapsed_before + time.monotonic() - self.started

    def _epochs_over(self, step: int) -> int:
        per_epoch = self.prepared.steps_per_epoch
        return epochs_over(step, per_epoch, self.schedule.steps) if per_epoch else 0

    def _epoch_ends(self, done: int) -> bool:
        """Returns whether a summary is due: of an epoch, of several where evaluations are rarer, or the last one."""
        every = max(self.prepared.steps_per_epoch or 0, self.prepared.evaluate_every or 0)
        return self._epochs_over(done) > self.epoch and (completes(every, done) or done == self.schedule.steps)
