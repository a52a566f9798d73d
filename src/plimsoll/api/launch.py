"""Starts training in a process of its own, follows it, and returns the run: `plimsoll.train`. It imports no JAX."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from plimsoll.api import notebook
from plimsoll.api.keywords import options_of, with_fields
from plimsoll.api.plan import Say, named, printing, unpinned
from plimsoll.api.run import Run
from plimsoll.api.train import prepare_run
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import PlimsollError, RunError, StoppedError, as_paragraph, ended_by_kill
from plimsoll.files.bucket import is_address
from plimsoll.files.sender import Sender, sent
from plimsoll.processes import supervise
from plimsoll.recipes.base import Pinned, Recipe
from plimsoll.recipes.own.files import short_name
from plimsoll.report.metrics import NewRows

OnLog = Callable[[dict[str, Any]], None]
"""Function that takes a row of metrics: a dict, as in `Run.metrics`."""


def train(
    recipe: Recipe | Pinned | str,
    *,
    memory: str | int | None = None,
    chip: str | None = None,
    run: str | os.PathLike[str] | None = None,
    max_steps: int | None = None,
    pins: Mapping[str, Any] | None = None,
    quiet: bool = False,
    name: str | None = None,
    on_log: OnLog | None = None,
    say: Say | None = None,
    **options: Any,
) -> Run:
    """Trains a recipe within a memory budget, in a separate process. If the run exists, continues it.

    Args:
        recipe: A recipe (training problem), the name of a preset like "code", or the path of a Python file with a
            recipe.
        memory: Memory budget per device: bytes, or text like "768MiB" or "2GB". By default the memory of the GPU or TPU
            that is free now, or on a CPU the machine's free memory less a safety margin.
        chip: Device to train on, by its name in `plimsoll chips`. By default the GPU or TPU that JAX finds, else the
            CPU.
        run: Folder of the run, for checkpoints and logs, or its URL in a bucket (s3:// or gs://). By default
            runs/RECIPE.
        max_steps: Optimizer step at which to stop early. The learning-rate schedule is still that of the whole run.
        pins: Memory-saving options ("levers") to fix, by name, like {"micro_batch": 8}. The planner chooses the rest.
        quiet: Whether to print only warnings and the result.
        name: Name of the recipe in messages and in the default folder.
        on_log: Function that is called with each new row of metrics, a dict as in `Run.metrics`. If it raises an
            exception, training saves and stops, and the exception is raised here.
        say: Function that is called with messages of the planner, each a string. By default they are printed, unless
            `quiet`.
        options: Other options of `plimsoll train` (`log_every`, `save_every`, `eval_every`, `tracker`, ...) and of the
            recipe (`dataset_id`, `steps`, `batch_size`, ...), with underscores. `patience=3` is early stopping: it ends
            training after 3 evaluations in a row without a lower validation loss.

    Returns:
        The run, finished or stopped early; `Run.params` has its best checkpoint.

    Raises:
        RecipeError: An option is unknown, or contradicts another.
        BudgetError: No plan fits the budget.
        StoppedError: Training stopped itself, for example because the loss became NaN.
        PlimsollError: The request is invalid, or the training process fails. Saved checkpoints stay intact.
        KeyboardInterrupt: Training was interrupted. It has saved a checkpoint, and the same call continues.

    Example:
        >>> run = plimsoll.train("code", memory="768MiB", run="runs/code", max_steps=200)  # doctest: +SKIP
        >>> run.evaluate()["loss"]  # doctest: +SKIP
    """
    say = say or printing(quiet=quiet)
    known = [field.name for field in dataclasses.fields(TrainOptions)]
    fields = {option: value for option, value in options.items() if option not in known}
    options = {option: value for option, value in options.items() if option in known}
    called = name or (short_name(recipe) if isinstance(recipe, str) else None)
    own = [*known, *options_of(train)]
    recipe, options["pins"] = unpinned(with_fields(recipe, fields, verb="train", options=own), pins)
    name, recipe = named(recipe, called)
    given = TrainOptions(
        memory=memory,
        chip=chip,
        run=os.fspath(run) if run else f"runs/{name}",
        max_steps=max_steps,
        quiet=quiet,
        name=name,
        **options,
    )
    if not is_address(given.run):
        return _train_here(recipe, given, say, on_log)
    with sent(str(given.run), say) as sender:
        made = _train_here(recipe, dataclasses.replace(given, run=sender.folder), say, on_log, sender)
    if sender.behind is not None:
        raise RunError(sender.behind)
    return made


def _train_here(
    recipe: Recipe, options: TrainOptions, say: Say, on_log: OnLog | None, sender: Sender | None = None
) -> Run:
    """Trains in a folder of this machine, and returns the run. It ends if the `sender` of its bucket does."""
    run = Run(options.run or "")
    ready = prepare_run(recipe, options, say)
    rows = NewRows(run.folder.metrics)

    def look() -> None:
        for row in rows.read():
            if on_log is not None:
                on_log(row)
        if sender is not None:
            sender.require_running()

    try:
        code, _ = supervise.watched(
            ready.command,
            ready.environment,
            line=print if notebook.is_here() else None,  # a cell shows what its kernel prints, and no other process
            look=None if on_log is None and sender is None else look,
            pass_fds=[ready.lock],
        )
    finally:
        os.close(ready.lock)
    if code == 128 + signal.SIGINT:
        message = f"training was interrupted: what {run.path} has saved is whole, the same call continues"
        raise as_paragraph(KeyboardInterrupt(message))
    if code == 128 + signal.SIGKILL:
        raise StoppedError(ended_by_kill())
    if code:
        kind = StoppedError if code == StoppedError.exit_code else PlimsollError
        raise kind(f"training ended with code {code}: its own message says why")
    return run
