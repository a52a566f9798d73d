"""`plimsoll.train`: a recipe and its options become a run, in a process that is followed. It imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from plimsoll.api import follow
from plimsoll.api.follow import OnLog
from plimsoll.api.messages import Say
from plimsoll.api.run import Run
from plimsoll.recipes.recipe import Pinned, Recipe


def train(
    recipe: Recipe | Pinned | str,
    *,
    memory: str | float | None = None,
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
    options |= {"memory": memory, "chip": chip, "run": run, "max_steps": max_steps, "pins": pins}
    return Run(follow.train(recipe, {**options, "quiet": quiet, "name": name}, on_log=on_log, say=say))
