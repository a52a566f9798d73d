"""Output of a training session: metrics, messages, progress bar, experiment trackers, and summaries."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from plimsoll.engine.meter import Epochs, Meter, TimedSource
from plimsoll.engine.training_run import TrainingRun
from plimsoll.planned import RunLedger
from plimsoll.recipes.own.pickled import is_pickled
from plimsoll.recipes.saved import to_dict
from plimsoll.report.metrics import LogFile, MetricsLog, read_rows, with_tables
from plimsoll.report.progress import Progress
from plimsoll.report.summary import Outcome, early_end, epoch_summary, final_summary, where_and_next
from plimsoll.report.tables import ledger_table
from plimsoll.report.trackers import TensorBoard, Tracked, Tracker, open_tracker
from plimsoll.training.phases import Phases
from plimsoll.training.profile import Profile
from plimsoll.training.schedule import SINCE_BEST, Best, Schedule, completes
from plimsoll.training.stop import Ended, Reason

OF_EVERY_STEP = ("loss", "weight", "gradient_norm", "scale", "skipped_steps")
"""Step metrics that are not recipe-specific. Nor are metrics with a suffix, like `gradient_norm/embedding`."""


class Console:
    """Log of one training session (`training.acts.Log`). The constructor prints notes and the resumed step."""

    def __init__(
        self, run: TrainingRun, schedule: Schedule, source: TimedSource, phases: Phases, *, resumed: int | None
    ) -> None:
        step = resumed or 0
        self.first_step = step + 1
        folder = run.folder
        self.run = run
        self.schedule = schedule
        self.source = source
        self.phases = phases

        # Read the newest metrics of earlier sessions from all rows: steps and evaluations have separate rows.
        self.metrics = MetricsLog(folder.metrics)
        self.metrics.cut_after(step)
        newest = {"elapsed_seconds": 0.0, "loss": 0.0, "validation_loss": None}
        for row in read_rows(folder.metrics):
            newest |= row
        self.train_loss: float = newest["loss"] or 0.0
        self.validation_loss: float | None = newest["validation_loss"]

        # Open the outputs: log file, progress bar, trackers, profile.
        self.file = LogFile(folder.path / "log.txt")
        for note in run.notes:  # printed directly, before a bar is drawn
            self.file.write(note)
            print(note, flush=True)
        self.bar = Progress(schedule.last_step, start_step=step, quiet=run.session.quiet)
        config = {"recipe": to_dict(run.recipe), "plan": run.plan.to_dict()}
        tracked = Tracked(folder=folder.path, name=folder.path.name, config=config, start_step=step)
        self.trackers = [open_tracker(name, tracked) for name in ("tensorboard", run.session.tracker)]
        self.profile = Profile(folder.path / "profile", steps=run.session.profile)
        if resumed is not None:
            self.say(f"continuing from step {resumed:,} of {schedule.steps:,}")
            if resumed >= schedule.last_step:
                self.say(f"step {schedule.last_step:,} is past: nothing is trained")

        # Start the clocks of steps and epochs.
        self.meter = Meter(run, source, seconds_before=newest["elapsed_seconds"])
        self.epochs = Epochs(run.prepared, step=step)

    def say(self, text: str | None, *, important: bool = False) -> None:
        """Logs and prints a message, unless it is None. With --quiet only important messages are printed."""
        if text is not None:
            self.file.write(text)
            self.bar.message(text, important=important)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records a step's loss, time and memory. Logs and prints them every --log-every steps."""
        self._show_epoch()
        self.phases.after_step()
        self.meter.end_step()
        self.train_loss = metrics["loss"]
        if step == self.schedule.last_step or completes(self.run.session.log_every, step):
            row = {**metrics, **self.meter.row()}
            self._log(step, row)
            self.bar.update(step, row, own=self._own(metrics))
            self.meter.begin_step()
        elif step == self.first_step:
            self.bar.message(f"step {step:,}: loss {self.train_loss:.4f}")
        self.epochs.add(step, metrics["loss"], elapsed_seconds=self.meter.elapsed_seconds)
        self.say(self.profile.step_ended())

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of an evaluation. Prints the loss, and metrics that only this recipe has."""
        self.validation_loss = metrics["validation_loss"]
        self._log(step, {**metrics, "elapsed_seconds": self.meter.elapsed_seconds})
        facts = [f"validation loss {self.validation_loss:.4f}"]
        facts += [f"{name} {value:.4g}" for name, value in self._own(metrics).items()]
        message = f"step {step:,}: {', '.join(facts)}"
        since = metrics.get(SINCE_BEST, 0)
        if since:
            message += f"; {since} of {self.schedule.patience} evaluations without a better one"
        self.say(message)
        self._show_epoch()
        self.meter.begin_step()

    def saved(self, step: int) -> None:
        """Logs that a checkpoint was saved."""
        self.file.write(f"saved step {step}")
        self.meter.begin_step()

    def summarise(self, ended: Ended, ledger: RunLedger, best: Best) -> None:
        """Prints the summary of the session: losses, times, memory, and commands to type next."""
        self._show_epoch()
        run = self.run
        early = ""
        if ended.why is Reason.NO_BETTER:
            early = early_end(
                ended.step, self.schedule.steps, patience=self.schedule.patience or 0, best_by=best.best_by
            )
        outcome = Outcome(
            steps=ended.step,
            train_loss=self.train_loss,
            validation_loss=self.validation_loss,
            best_validation_loss=best.validation_loss,
            best_step=best.step,
            total_seconds=self.meter.elapsed_seconds,
            epochs=self.epochs.over(ended.step),
            epochs_begun=self.epochs.begun(ended.step),
            finished=ended.step >= self.schedule.steps,
            is_at_limit=ended.why is Reason.FINISHED and ended.step < self.schedule.steps,
            ended_early=early,
            rows_left_out=self.source.state().get("skipped", 0),
            waited_share=self.meter.waited_share,
        )
        self.say(final_summary(outcome))
        self.say(ledger_table(ledger))

        # Print the path of the run, quoted for a shell, and commands that use the run.
        here = Path.cwd()
        path = run.folder.path
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        uses = [part.command for part in run.recipe.model.uses.shown if part.command]
        of_functions = is_pickled(to_dict(run.recipe))
        self.say(where_and_next(shlex.quote(str(shown)), outcome, uses=uses, of_functions=of_functions))

    def close(self) -> None:
        """Ends the profile, the trackers, the bar and the files."""
        self._show_epoch()
        self.say(self.profile.close())
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as problem:
                self._give_up(tracker, "not closed", problem)
        self.bar.close()
        self.metrics.close()
        self.file.close()

    def _own(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns recipe-specific metrics whose value is one number, not a table (`Uses.tables`)."""
        own = {}
        for name, value in with_tables(metrics, self.run.recipe.model.uses.tables).items():
            plain = name.removeprefix("validation_")
            of_every_task = plain.partition("/")[0] in (*OF_EVERY_STEP, SINCE_BEST)
            if not of_every_task and isinstance(value, float):
                own[plain] = value
        return own

    def _show_epoch(self) -> None:
        """Prints the summary of a completed epoch, if it was not printed yet."""
        summary = self.epochs.summary(self.validation_loss)
        if summary is not None:
            self.say(epoch_summary(summary))

    def _log(self, step: int, row: Mapping[str, float]) -> None:
        """Writes a row of metrics, and sends it to the trackers. Stops using a tracker that fails; training goes on."""
        self.metrics.log(step, with_tables(row, self.run.recipe.model.uses.tables))
        for tracker in list(self.trackers):
            try:
                tracker.log(step, row)
            except Exception as problem:
                self.trackers.remove(tracker)
                self._give_up(tracker, f"given up at step {step:,}", problem)

    def _give_up(self, tracker: Tracker | TensorBoard, what: str, problem: Exception) -> None:
        """Logs and prints a warning about a tracker that failed."""
        self.say(f"tracker {tracker.name} is {what}: {type(problem).__name__}: {problem}", important=True)
