"""Summaries that are printed at the end of an epoch, of a run and of an evaluation.

Times are in minutes, with seconds or hours in brackets. Losses have six decimals, so that two runs can be compared by
eye. A number that was not measured is reported as missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.report.layout import columns

RULE = "=" * 80


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Losses and times of one epoch, or of all epochs since the previous summary."""

    number: int
    """Number of the epoch, counted from 1."""
    epochs: float
    """Number of epochs in the run, which may be fractional."""
    train_loss: float
    """Mean training loss since the previous summary."""
    validation_loss: float | None
    """Loss on the held-out set; None if the recipe has no validation."""
    epoch_seconds: float
    """Mean seconds of an epoch since the previous summary."""
    elapsed_seconds: float
    """Training seconds of all sessions of the run so far."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Losses and times of a run at the end of a training session. Memory use is in the run's `RunLedger`."""

    steps: int
    """Steps of the run so far."""
    train_loss: float
    """Training loss of the latest step."""
    validation_loss: float | None
    """Latest loss on the held-out set."""
    best_validation_loss: float | None
    best_step: int | None
    """Step of the best evaluation."""
    total_seconds: float
    """Training seconds of all sessions of the run."""
    epochs: int
    """Complete epochs of the run so far; 0 if the length of an epoch is unknown."""
    epochs_begun: float
    """Epochs of the run so far, including the fraction of the unfinished one."""
    waited_share: float = 0.0
    """Fraction of this session's time in which training waited for data."""
    rows_left_out: int = 0
    """Skipped rows of data with non-finite values; a row counts once in each epoch. 0 if the source does not count."""
    finished: bool = True
    """True if the run has taken all its planned steps."""
    ended_early: str = ""
    """Sentence from `early_end` if --patience has ended the run; otherwise empty."""
    is_at_limit: bool = False
    """True if the session ended at its --max-steps, before the run's last step."""


def epoch_summary(epoch: Epoch) -> str:
    """Formats the losses and times of an epoch."""
    rows = [
        ("Train Loss:", f"{epoch.train_loss:.6f}"),
        ("Val Loss:", _loss(epoch.validation_loss)),
        ("Epoch Time:", f"{epoch.epoch_seconds / 60:.2f} min ({epoch.epoch_seconds:.1f} s)"),
        ("Elapsed Time:", f"{epoch.elapsed_seconds / 60:.2f} min"),
    ]
    return "\n".join([f"Epoch {epoch.number:,}/{epoch.epochs:,g} summary", RULE, *columns(rows, align="ll")])


def final_summary(outcome: Outcome) -> str:
    """Formats the losses and times of a run."""
    best, total, epochs = _loss(outcome.best_validation_loss), outcome.total_seconds, outcome.epochs
    if outcome.best_step is not None:
        best += f" at step {outcome.best_step:,}"
    rows = [
        ("Best Validation Loss:", best),
        ("Final Training Loss:", f"{outcome.train_loss:.6f}"),
        ("Final Validation Loss:", _loss(outcome.validation_loss)),
        ("Steps:", f"{outcome.steps:,}"),
        ("Total Training Time:", f"{total / 60:.2f} minutes ({total / 3600:.2f} hours)"),
        ("Average Epoch Time:", f"{total / outcome.epochs_begun / 60:.2f} minutes" if epochs else "no whole epoch"),
        ("Total Epochs:", f"{epochs:,}"),
        ("Waited For Data:", f"{100 * outcome.waited_share:.1f} % of the time"),
    ]
    if outcome.rows_left_out:
        rows.append(("Rows Left Out:", f"{outcome.rows_left_out:,} that are not finite"))
    title = "Training complete" if outcome.finished else "Training stopped early; the same command continues it"
    if outcome.is_at_limit:
        title = "Training stopped at --max-steps; a larger one continues it"
    return "\n".join([outcome.ended_early or title, RULE, *columns(rows, align="ll")])


def early_end(step: int, steps: int, *, patience: int, best_by: str) -> str:
    """Returns a sentence about a run that --patience has ended.

    Args:
        step: Last step of the run.
        steps: Planned number of steps.
        patience: Number of consecutive evaluations without improvement.
        best_by: Validation metric that selects the best evaluation: lowest "loss", or highest value of another metric.
    """
    better = "lower validation loss" if best_by == "loss" else f"higher validation {best_by}"
    count = "an evaluation" if patience == 1 else f"{patience} evaluations in a row"
    return f"Training ended early at step {step:,} of {steps:,}: {count} brought no {better} (--patience {patience})"


def where_and_next(run: str, outcome: Outcome, *, uses: Sequence[str], of_functions: bool = False) -> str:
    """Returns text with the path of a run, and the commands to type next, one per line.

    Args:
        run: Path of the run folder, quoted for a shell.
        outcome: Result of the run. If steps are left, the text also says how to continue.
        uses: Commands of the run's recipe with {run} for the path, like "plimsoll sample {run}".
        of_functions: True if functions of a Python program define the recipe, so that no command can train it.
    """
    commands = ["plimsoll evaluate {run}", *uses, "plimsoll report {run}"]
    if of_functions:
        commands = ["plimsoll report {run}", "in Python, plimsoll.load(...).params() and .metrics()"]
        commands.append("where its functions are, evaluate() of the run that train returned")
    lines = [f"The run is in {run}", "Next:", *(f"  {command.format(run=run)}" for command in commands)]
    if outcome.ended_early:
        best, last = f"{outcome.best_step or outcome.steps:,}", f"{outcome.steps:,}"
        lines[1:1] = [f"Commands use step {best}, the best one; --step last is step {last}"]
        again = "call without patience=" if of_functions else "command without --patience"
        lines.append(f"  the same {again}, which takes the steps that are left")
    elif not outcome.finished:
        again = "call" if of_functions else "command"
        limit = "max_steps=" if of_functions else "--max-steps"
        how = f"with a larger {limit}" if outcome.is_at_limit else "again"
        lines.insert(2, f"  the same {again} {how}, which continues it")
    return "\n".join(lines)


def evaluation_text(answer: Mapping[str, Any]) -> str:
    """Returns the output of `plimsoll evaluate`: a line per metric, and a line per entry of a metric that is a mapping.

    Args:
        answer: Path of the run, step of its checkpoint, and metrics.
    """
    lines = [f"{answer['run']} at step {answer['step']:,}, on its held-out set"]
    for name, value in answer.items():
        if isinstance(value, Mapping):
            parts = [(part, f"{number:.4f}") for part, number in value.items()]
            lines += ["", f"  {name}", *columns(parts, align="lr", indent=4)]
        elif name not in ("run", "step"):
            text = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
            lines.append(f"  {name:<24}  {text}")
    return "\n".join(lines)


def _loss(loss: float | None) -> str:
    return "no validation" if loss is None else f"{loss:.6f}"
