"""Trains a recipe, or continues a run, in a separate process that this process watches."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from plimsoll.api import notebook
from plimsoll.api.keywords import read_request
from plimsoll.api.messages import Say, printing
from plimsoll.api.train import prepare_run
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import PlimsollError, RunError, StoppedError, as_paragraph, ended_by_kill
from plimsoll.files.bucket import is_address
from plimsoll.files.provenance import last_options
from plimsoll.files.run_folder import RunFolder
from plimsoll.files.sender import sent
from plimsoll.processes import supervise
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.recipes.saved import from_dict, name_in
from plimsoll.report.metrics import NewRows

OnLog = Callable[[dict[str, Any]], None]
"""Function that takes a row of metrics: a dict, as in `Run.metrics`."""
OF_TRAINING = frozenset(field.name for field in dataclasses.fields(TrainOptions))
"""Names of the options of training. All other options belong to the recipe."""


class Begun(NamedTuple):
    """Recipe and options of an existing run."""

    name: str
    """Name of the recipe, from the run's plan or else from recipe.json."""
    recipe: Recipe
    options: dict[str, Any]
    """Options of the latest training session that the next session keeps."""


def begun(folder: RunFolder) -> Begun:
    """Reads recipe and options of an existing run.

    Raises:
        RunError: The folder is no run.
        RecipeError: The Python file with its recipe is missing or has changed.
    """
    saved = folder.read("recipe.json")
    name = None
    with contextlib.suppress(RunError):  # training reports a missing or damaged plan, or replaces it
        name = folder.planned().recipe
    return Begun(name or name_in(saved), from_dict(saved), last_options(folder))


def resume(path: str, options: Mapping[str, Any], *, on_log: OnLog | None = None) -> None:
    """Continues a run, with the changes that `options` make to its recipe, like `plimsoll resume`.

    Args:
        path: Folder of the run.
        options: Options of training and of the recipe, by name.
        on_log: Called with each new row of metrics.
    """
    run = begun(RunFolder(path))
    on_purpose = tuple(option for option in options if option not in OF_TRAINING)
    chosen = {**run.options, **options, "run": path, "name": run.name, "on_purpose": on_purpose}
    train(run.recipe, chosen, on_log=on_log)


def train(
    recipe: Recipe | Pinned | str,
    options: Mapping[str, Any],
    *,
    on_log: OnLog | None = None,
    say: Say | None = None,
) -> str:
    """Trains a recipe. Returns the folder of the run after training has ended.

    Args:
        recipe: The recipe, or its name.
        options: Options of training and of the recipe, by name.
        on_log: Called with each new row of metrics.
        say: Called with messages; by default they are printed.
    """
    fields = {name: value for name, value in options.items() if name not in OF_TRAINING}
    chosen = {name: value for name, value in options.items() if name in OF_TRAINING}
    request = read_request(
        recipe,
        fields,
        verb="train",
        options=[*OF_TRAINING, "on_log", "say"],
        name=chosen.get("name"),
        pins=chosen.get("pins"),
    )
    folder = chosen.get("run") or f"runs/{request.name}"
    chosen |= {"run": os.fspath(folder), "name": request.name, "pins": request.pins}
    given = TrainOptions(**chosen)
    return follow(request.recipe, given, say or printing(quiet=given.quiet), on_log)


def follow(recipe: Recipe, options: TrainOptions, say: Say, on_log: OnLog | None) -> str:
    """Trains, then returns the run's folder. Uploads the folder during training if the run belongs in a bucket."""
    in_bucket = is_address(options.run)
    with sent(str(options.run), say) if in_bucket else contextlib.nullcontext() as sender:
        folder = str(options.run) if sender is None else sender.folder
        rows = NewRows(RunFolder(folder).metrics)

        def look() -> None:
            for row in rows.read():
                if on_log is not None:
                    on_log(row)
            if sender is not None:
                sender.require_running()

        code, _ = train_beside(
            recipe,
            dataclasses.replace(options, run=folder),
            say,
            line=print if notebook.is_here() else None,  # a notebook's cell shows only output of its kernel
            look=None if on_log is None and sender is None else look,
        )
    _require_ended(code, folder)
    if sender is not None and sender.behind is not None:
        raise RunError(sender.behind)
    return folder


def train_beside(recipe: Recipe, options: TrainOptions, say: Say, **watching: Any) -> tuple[int, int | None]:
    """Trains in a separate process. Returns its exit code, and the first signal that this process received, or None.

    Args:
        recipe: Recipe to train.
        options: Options of training, whose `run` is a local folder.
        say: Called with messages.
        watching: Further arguments of `supervise.watched`.
    """
    ready = prepare_run(recipe, options, say)
    assert ready.lock is not None
    try:
        return supervise.watched(ready.command, ready.environment, pass_fds=[ready.lock], **watching)
    finally:
        os.close(ready.lock)


def _require_ended(code: int, folder: str) -> None:
    """Raises the exception for the exit code of a training process, unless the code is 0."""
    if code == 128 + signal.SIGINT:
        message = f"training was interrupted: what {folder} has saved is whole, the same call continues"
        raise as_paragraph(KeyboardInterrupt(message))
    if code == 128 + signal.SIGKILL:
        raise StoppedError(ended_by_kill())
    if code:
        kind = StoppedError if code == StoppedError.exit_code else PlimsollError
        raise kind(f"training ended with code {code}: its message above has the reason")
