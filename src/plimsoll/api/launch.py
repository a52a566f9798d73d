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
from plimsoll.errors import PlimsollError, RunError, as_paragraph
from plimsoll.processes import supervise
from plimsoll.recipes.base import Pinned, Recipe
from plimsoll.recipes.own.files import short_name
from plimsoll.report.metrics import NewRows
from plimsoll.runs.remote import mirrored
from plimsoll.runs.store import is_address

OnLog = Callable[[dict[str, Any]], None]
"""Function of a row of metrics, as `Run.metrics` has them."""


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
    """Trains a recipe inside a memory budget, in a process of its own, or continues its run.

    Args:
        recipe: A recipe, the name of a preset, or the path of a Python file with a recipe.
        memory: Memory budget per device: bytes, or text like "768MiB" or "2GB". By default the memory that is free now,
            less a safety margin; on an accelerator, its memory.
        chip: Device to train on, by its name in `plimsoll chips`. By default the accelerator that JAX finds, else the
            CPU.
        run: Folder of the run, or its address in a bucket. If it has a run, that run continues. By default
            runs/RECIPE.
        max_steps: Step at which to stop early, in optimizer steps. The learning rate schedule stays as it is.
        pins: Levers to fix, by name, like `{"micro_batch": 8}`. The planner chooses the others.
        quiet: Whether to print only warnings and the result.
        name: Name of the recipe in messages.
        on_log: Function that is called with each row of `Run.metrics` soon after it was logged. If it raises an
            exception, training saves and ends, and the exception is raised here.
        say: Function that is called with messages of this process, such as the plan. By default they are printed,
            unless `quiet`.
        options: Other options of `plimsoll train` (`log_every`, `save_every`, `eval_every`, `tracker`, ...) and of the
            recipe (`dataset_id`, `steps`, `batch_size`, ...), with underscores. `patience=3` is early stopping: it ends
            training after 3 evaluations in a row without a lower validation loss.

    Returns:
        The run, finished or stopped early; `Run.params` has its best checkpoint.

    Raises:
        RecipeError: An option is unknown, or contradicts another.
        BudgetError: No plan fits the budget.
        PlimsollError: The request is refused, or the training process fails. Checkpoints are whole.
        KeyboardInterrupt: Training was interrupted, and has saved. The same call continues it.

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
        run=f"runs/{name}" if run is None else os.fspath(run),
        max_steps=max_steps,
        quiet=quiet,
        name=name,
        **options,
    )
    if not is_address(given.run):
        return _train_here(recipe, given, say, on_log)
    with mirrored(str(given.run), say) as mirror:
        made = _train_here(recipe, dataclasses.replace(given, run=str(mirror.run)), say, on_log)
    if mirror.behind is not None:
        raise RunError(mirror.behind)
    return made


def _train_here(recipe: Recipe, options: TrainOptions, say: Say, on_log: OnLog | None) -> Run:
    """Trains in a folder of this machine, and returns the run."""
    run = Run(options.run or "")
    ready = prepare_run(recipe, options, say)
    rows = NewRows(run.folder.metrics)

    def look() -> None:
        for row in rows.read():
            if on_log is not None:
                on_log(row)

    how: dict[str, Any] = {"look": None if on_log is None else look}
    try:
        if notebook.is_here():
            code = notebook.watched(ready.command, ready.environment, lock=ready.lock, show=notebook.output(), **how)
        else:
            code, _ = supervise.watched(ready.command, ready.environment, pass_fds=[ready.lock], **how)
    finally:
        os.close(ready.lock)
        rows.close()
    if code == 128 + signal.SIGINT:
        message = f"training was interrupted: what {run.path} has saved is whole, the same call continues"
        raise as_paragraph(KeyboardInterrupt(message))
    if code:
        raise PlimsollError(f"training ended with code {code}: its own message says why")
    return run
