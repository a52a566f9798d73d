"""Commands `plimsoll train` and `resume`: this process prepares data and plan, and then becomes the training process.

A run in a bucket is trained by a second process in a local folder, and a third process sends the folder to the bucket.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plimsoll.cli.help import Page, print_help
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.options import TrainOptions, lever_rows
from plimsoll.cli.parse import Run, Typed, parse_with_recipe, read_words, sorted_by_owner, without
from plimsoll.engine.options import TrainOptions as OptionsOfRun
from plimsoll.errors import RecipeError
from plimsoll.options import options_of
from plimsoll.recipes.flat import rows
from plimsoll.recipes.recipe import Recipe

if TYPE_CHECKING:
    from plimsoll.api.jobs import Scheduler

OFTEN_RESUMED = (
    "max_steps",
    "max_minutes",
    "memory",
    "replan",
    "chip",
    "quiet",
    "save_every",
    "eval_every",
    "patience",
    "on",
)
"""Options that the help of `plimsoll resume` shows first."""
CHANGEABLE = (
    "--steps, --epochs and --learning-rate change what is trained, on purpose; --dataset-id or --data name the data in"
    " another place, or other data, which is read with the run's tokenizer."
)
"""Paragraph about the recipe's options in the help of `plimsoll resume`."""
FOR_SCHEDULER = {"--on": True, "--nodes": True, "--sbatch": True, "--submit": False, "--no-submit": False}
"""Options that are removed from the command that a scheduler's job runs; True if a value follows the option."""


def train(arguments: list[str]) -> int:
    """Plans and trains a run, or continues it. Does not return if training starts in this process."""
    of_recipe = parse_with_recipe(TrainOptions, arguments, command="train")
    return start(of_recipe, ["train", *arguments])


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(TrainOptions):
    run: Run = ""
    """Folder of the run, or its address in a bucket."""


def resume(arguments: list[str]) -> int:
    """Continues a run with its own recipe and plan. Does not return if training starts in this process.

    Options of the recipe that the user types change the run.
    """
    own = (*options_of(ResumeOptions), *lever_rows())
    page = Page(
        program="plimsoll resume",
        options=own,
        example=COMMANDS["resume"].example,
        often=OFTEN_RESUMED,
        about=CHANGEABLE,
    )
    print_help(page, arguments)
    if not arguments or arguments[0].startswith("-"):
        raise RecipeError(
            f"plimsoll resume needs RUN first, the folder of a run or its address in a bucket, like `{page.example}`"
        )
    from plimsoll.api.follow import begun
    from plimsoll.files.bucket import fetched
    from plimsoll.files.run_folder import RunFolder

    run = begun(RunFolder(fetched(arguments[0])))
    values = run.options | read_words((*rows(run.recipe), *own), arguments, program=page.program)
    of_recipe = sorted_by_owner(ResumeOptions, values, name=run.name, recipe=run.recipe)
    return start(of_recipe, ["resume", *arguments], on_purpose=tuple(of_recipe.given))


def start(of_recipe: Typed[Any], words: Sequence[str], *, on_purpose: tuple[str, ...] = ()) -> int:
    """Trains through a scheduler, in a cluster, or alone. Does not return if this process becomes the training process.

    Args:
        of_recipe: The recipe, and the typed options.
        words: The command and its arguments, for other processes.
        on_purpose: Names of the recipe's options that `plimsoll resume` changes.
    """
    from plimsoll.api import cluster
    from plimsoll.api.messages import printing
    from plimsoll.api.train import prepare_run
    from plimsoll.files.bucket import is_address
    from plimsoll.processes.handover import become

    recipe = of_recipe.recipe
    options: TrainOptions = of_recipe.options
    given = options.of_library(of_recipe.name, pins=of_recipe.pins, on_purpose=on_purpose)
    if options.on is not None:
        return _on_scheduler(options.on, recipe, options, given, words)
    member = cluster.membership(options.coordinator, options.processes, options.process, chip=options.chip)
    if member is not None:
        return cluster.start(recipe, given, member)
    say = printing(quiet=options.quiet)
    if is_address(options.run):
        return _train_in_bucket(recipe, given, say)
    become(prepare_run(recipe, given, say))


def _on_scheduler(
    on: Scheduler, recipe: Recipe, options: TrainOptions, given: OptionsOfRun, words: Sequence[str]
) -> int:
    """Starts the run through a scheduler, and returns the exit code."""
    from plimsoll.api import jobs, on_ray, slurm
    from plimsoll.api.messages import printing

    # Fail before planning if Ray or sbatch is not installed, or if an option of sbatch is invalid.
    if on == "ray":
        on_ray.require_ray()
    elif options.submit:
        slurm.require_sbatch()
    further = slurm.options_of_sbatch(options.sbatch or "")

    say = printing(quiet=False)
    command, _ = without(words, FOR_SCHEDULER)
    job = jobs.job(recipe, given, command, on=on, nodes=options.nodes, say=say)
    if on == "ray":
        return on_ray.train_on_ray(job, say)
    path = slurm.write_script(job, further, say)
    if options.submit:
        slurm.submit(path, say)
    else:
        say(f"nothing was submitted: look at the script, and submit it with `sbatch {path}`")
    return 0


def _train_in_bucket(recipe: Recipe, given: OptionsOfRun, say: Callable[[str], None]) -> int:
    """Trains a run in a bucket. Returns the exit code; `BEHIND` if training succeeded but the bucket lacks files."""
    from plimsoll.api.follow import train_beside
    from plimsoll.files.sender import BEHIND, sent
    from plimsoll.processes.supervise import end_with

    with sent(str(given.run), say) as sender:
        here = replace(given, run=sender.folder)
        dies_too = partial(end_with, os.getpid())  # ends the training process if this process is killed
        code, _ = train_beside(recipe, here, say, look=sender.require_running, preexec_fn=dies_too)
    if sender.behind is not None:
        print(f"error: {sender.behind}", file=sys.stderr, flush=True)
        return code or BEHIND
    return code
