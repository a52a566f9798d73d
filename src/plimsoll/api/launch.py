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
from plimsoll.errors import PlimsollError, RunError
from plimsoll.processes import supervise
from plimsoll.recipes.base import Pinned, Recipe
from plimsoll.recipes.own.files import short_name
from plimsoll.report.metrics import NewRows
from plimsoll.runs.remote import is_address, mirrored

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
    """Plans and trains in a process of its own, or continues the run, and returns it.

    Args:
        recipe: A recipe, or the name of a preset or of a file with a recipe.
        memory: Budget, like 768MiB or 2GB; by default what is available, less a margin, or what the chip has.
        chip: Device of this machine; by default the accelerator that is here, else the CPU.
        run: Folder of the run, new or to be continued, here or in a bucket; by default runs/RECIPE.
        max_steps: Step at which to stop early; the schedule stays.
        pins: Levers that keep a value, by name.
        quiet: Whether to print only what matters.
        name: What to call the recipe.
        on_log: Function that is called with each row of `Run.metrics` soon after it was logged, while training goes
            on. If it raises an exception, training saves and ends, and the exception is raised here.
        say: Function that is called with what this process has to say, such as the plan; by default it is printed,
            unless `quiet`.
        options: Further options of `plimsoll train` (`log_every`, `save_every`, `eval_every`, `tracker`, ...), and
            those of the recipe (`dataset_id`, `steps`, `batch_size`, ...), with underscores.

    Raises:
        RecipeError: An option is unknown, or does not go with another.
        BudgetError: No plan fits the memory.
        PlimsollError: It is refused, or the training process fails. What was saved is whole.
        KeyboardInterrupt: It was interrupted, after it has saved: the same call continues.
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
        raise KeyboardInterrupt(
            f"training was interrupted: what {run.path} has saved is whole, the same call continues"
        )
    if code:
        raise PlimsollError(f"training ended with code {code}: its own message says why")
    return run
