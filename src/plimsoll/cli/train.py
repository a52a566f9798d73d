"""`plimsoll train` and `resume`: parse, prepare and plan here, then turn into the training process.

`plimsoll train RECIPE --run s3://...` is the same command in a folder here, which another process sends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plimsoll.cli.help import Page
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.options import TrainOptions, lever_rows
from plimsoll.cli.parse import Run, changed_by_user, parse_with_recipe, typed, values_typed, words_without
from plimsoll.engine.options import TrainOptions as OptionsOfRun
from plimsoll.errors import RecipeError
from plimsoll.options import options_of

if TYPE_CHECKING:
    from plimsoll.api.jobs import Scheduler
    from plimsoll.recipes.recipe import Recipe

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
"""Options of `plimsoll resume` that stand first."""
CHANGEABLE = (
    "Of the recipe's own options --steps, --epochs and --learning-rate change what is trained, on purpose; --dataset-id"
    " or --data name the same data in another place.",
)
"""Paragraph of the help of `plimsoll resume`."""
FOR_SCHEDULER = {"--on": True, "--nodes": True, "--sbatch": True, "--submit": False, "--no-submit": False}
"""Options that only the command which starts a job reads, and whether each has a value."""


def train(arguments: list[str], *, here: str | None = None) -> int:
    """Plans, then trains; the same command again continues. Does not return where training starts in this process.

    `here` is the folder of a run whose address was named.
    """
    of_recipe = parse_with_recipe(TrainOptions, arguments, command="train")
    options = of_recipe.options
    if here is not None:
        options = replace(options, run=here)
    from plimsoll.recipes.own.files import short_name

    given = options.of_library(short_name(of_recipe.name), of_recipe.pins)
    return start(of_recipe.recipe, options, given, ["train", *arguments])


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(TrainOptions):
    run: Run = ""
    """Folder of the run, or its address in a bucket."""


def resume(arguments: Sequence[str], *, here: str | None = None) -> int:
    """Continues a run with its own recipe and plan. Does not return where training starts in this process.

    Options of the recipe that are typed are changed on purpose. `here` is the folder of a run whose address was named.
    """
    rows = (*options_of(ResumeOptions), *lever_rows())
    page = Page(
        program="plimsoll resume",
        options=rows,
        example=COMMANDS["resume"].example,
        often=OFTEN_RESUMED,
        notes=CHANGEABLE,
    )
    if {"-h", "--help"} & {*arguments}:
        values_typed(page, [word for word in arguments if word in ("-h", "--help", *page.groups)])
    if not arguments or arguments[0].startswith("-"):
        raise RecipeError(
            f"plimsoll resume needs RUN first, the folder of a run or its address in a bucket, like `{page.example}`"
        )
    from plimsoll.api.follow import begun
    from plimsoll.files.bucket import fetched
    from plimsoll.files.run_folder import RunFolder
    from plimsoll.recipes.flat import rows as rows_of

    run, *words = arguments
    name, recipe = begun(RunFolder(here or fetched(run)))
    of_recipe = rows_of(recipe)
    values = typed((*of_recipe, *rows), [run, *words], program="plimsoll resume")

    # Options by whose they are.
    own = {option.name for option in options_of(ResumeOptions)}
    fields = {option.name: values[option.name] for option in of_recipe if option.name in values}
    pins = {lever: value for lever, value in values.items() if lever not in own | fields.keys() and value is not None}
    of_command: dict[str, Any] = {option: value for option, value in values.items() if option in own}
    options = ResumeOptions(**{**of_command, "run": here or run})
    given = replace(options.of_library(name, pins), on_purpose=tuple(fields))
    recipe = changed_by_user(recipe, fields, name=name)
    return start(recipe, options, given, ["resume", *arguments])


def start(recipe: Recipe, options: TrainOptions, given: OptionsOfRun, words: Sequence[str]) -> int:
    """Has a scheduler, a cluster or this process train. Does not return where training starts in this process.

    Args:
        recipe: The recipe.
        options: Options as they were typed.
        given: The same as the library takes them.
        words: The command and its arguments, for other processes.
    """
    from plimsoll.api import cluster
    from plimsoll.api.plan import printing
    from plimsoll.api.train import prepare_run
    from plimsoll.files.bucket import is_address
    from plimsoll.processes.handover import become

    say = printing(quiet=options.quiet)
    if options.on is not None:
        return _on_scheduler(options.on, recipe, options, given, words)
    if options.nodes is not None:
        raise RecipeError("--nodes is for a scheduler: add --on slurm or --on ray, or leave it out")
    _require_slurm_alone(options)
    member = cluster.membership(options.coordinator, options.processes, options.process, chip=options.chip)
    if member is not None:
        return cluster.start(recipe, given, member)
    if is_address(options.run):
        return _train_in_bucket(words, str(options.run), say)
    become(prepare_run(recipe, given, say))


def _on_scheduler(
    on: Scheduler, recipe: Recipe, options: TrainOptions, given: OptionsOfRun, words: Sequence[str]
) -> int:
    """Has a scheduler start the run, and returns the exit code."""
    from plimsoll.api import jobs, on_ray, slurm
    from plimsoll.api.plan import printing

    if (options.coordinator, options.processes, options.process) != (None, None, None):
        raise RecipeError(
            f"--on {options.on} starts all processes of the run, each with its number: leave out --coordinator,"
            " --processes and --process, and say how many nodes with --nodes"
        )
    say, words = printing(quiet=False), words_without(words, FOR_SCHEDULER)
    how: dict[str, Any] = {"on": on, "nodes": options.nodes, "say": say}
    if on == "ray":
        _require_slurm_alone(options)
        on_ray.require_ray()
        return on_ray.train_on_ray(jobs.job(recipe, given, words, **how), say)
    if options.submit:
        slurm.require_sbatch()
    further = slurm.options_of_sbatch(options.sbatch or "")
    path = slurm.write_script(jobs.job(recipe, given, words, **how), further, say)
    if options.submit:
        slurm.submit(path, say)
    else:
        say(f"nothing was submitted: look at the script, and submit it with `sbatch {path}`")
    return 0


def _require_slurm_alone(options: TrainOptions) -> None:
    """Raises RecipeError where an option is given that only Slurm knows."""
    for name, given in {"sbatch": options.sbatch is not None, "no-submit": not options.submit}.items():
        if given:
            raise RecipeError(f"--{name} is for --on slurm alone: leave it out, or name that scheduler")


def _train_in_bucket(words: Sequence[str], address: str, say: Callable[[str], None]) -> int:
    """Returns the exit code of training; 3 where all was trained, and the bucket does not have it."""
    from plimsoll.files.sender import BEHIND, sent
    from plimsoll.processes.supervise import watched

    with sent(address, say) as sender:
        command = [sys.executable, "-m", "plimsoll.cli.main", "train-watched", str(os.getpid()), sender.folder]
        code, _ = watched([*command, *words], look=sender.require_running)
    if sender.behind is not None:
        print(f"error: {sender.behind}", file=sys.stderr, flush=True)
        return code or BEHIND
    return code


def train_watched(arguments: list[str]) -> int:
    """Trains in a folder here for the process that sends what is saved, and ends when that process does.

    Args:
        arguments: Process id of the sender, the folder, and the command with its arguments.
    """
    from plimsoll.processes.supervise import end_with

    parent, here, command, *words = arguments
    end_with(int(parent))
    return resume(words, here=here) if command == "resume" else train(words, here=here)
