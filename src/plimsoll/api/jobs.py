"""Training jobs for Slurm or Ray: numbers of nodes, processes and GPUs, and bytes of memory, from the run's plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from plimsoll.api.cluster import require_shared_folder
from plimsoll.api.messages import Say
from plimsoll.api.plan_of_run import question_of
from plimsoll.api.planning.find import find_plan
from plimsoll.api.planning.place import budget_bytes, chip_named, place_of
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Planned
from plimsoll.planner.chips import Chip
from plimsoll.recipes.recipe import Recipe

Scheduler = Literal["slurm", "ray"]
GPUS_OF_A_NODE = 8
"""Number of GPUs in a node, from which the default number of nodes is computed."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Request to Slurm or Ray, which starts the same command in every process."""

    name: str
    run: str
    """Folder of the run."""
    command: Sequence[str]
    """Arguments of `plimsoll` for each process."""
    nodes: int
    tasks_per_node: int
    """Processes per node: one for each GPU, or a single one on a node without GPUs."""
    gpus_per_node: int
    process_bytes: int
    """Host memory of a process in bytes: on a CPU the memory budget, else the plan's predicted peak of host memory."""

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.nodes * self.tasks_per_node


def job(
    recipe: Recipe, options: TrainOptions, words: Sequence[str], *, on: Scheduler, nodes: int | None, say: Say
) -> Job:
    """Returns the job that trains `recipe`. Plans first, so that a job without a fitting plan is not queued.

    Args:
        recipe: Recipe to train.
        options: Options of the run.
        words: The typed command and its arguments, without options for the scheduler.
        on: The scheduler.
        nodes: Number of nodes; None for one, or one for every 8 GPUs.
        say: Called with the plan, as text.

    Raises:
        RecipeError: The nodes cannot share the GPUs equally, the nodes' memory is not given, or the chip is a TPU.
        BudgetError: No plan fits.
        RunError: The run is in a bucket.
    """
    require_shared_folder(options.run)

    # Take chip and memory budget from the run's plan, if the run has one and --replan is not set.
    folder = RunFolder(str(options.run))
    before = folder.planned() if folder.has("plan.json") and not options.replan else None
    target = chip_named(options.chip or ("cpu" if before is None else before.plan.chip))
    if target.platform == "cpu" and options.memory is None and before is None:
        raise RecipeError(
            f"--on {on} requests the budget's memory on each node, and this machine's free memory says nothing about a"
            " node: give --memory, the bytes of one process, like --memory 4GiB, or --chip with the nodes' GPU"
        )
    tasks, count = _divided(target, on, nodes)
    options.refuse_clock(tasks)
    planned = before or _planned(recipe, options, target, tasks, say)
    budget = planned.ledger.budget_bytes if options.memory is None else budget_bytes(options.memory, target)

    # Build the command, which is the same for each process.
    command = [*words, "--chip", target.name]
    if words[0] == "train":
        command += ["--run", str(options.run)]
    host = planned.ledger.host
    return Job(
        name=options.name or planned.recipe,
        run=str(options.run),
        command=command,
        nodes=count,
        tasks_per_node=tasks // count,
        gpus_per_node=tasks // count if target.platform == "cuda" else 0,
        process_bytes=budget if host is None else host.predicted_peak_bytes,
    )


def _divided(target: Chip, on: Scheduler, nodes: int | None) -> tuple[int, int]:
    """Returns the number of processes (one for each GPU, or for each node on CPUs), and the number of nodes."""
    if target.platform == "tpu":
        raise RecipeError(
            f"--on {on} starts processes on CPUs and NVIDIA GPUs, and {target.name} is a TPU: docs/scale.md"
        )
    tasks = target.devices if target.platform == "cuda" else (nodes or 1)
    count = max(1, tasks // GPUS_OF_A_NODE) if nodes is None else nodes
    if count < 1 or tasks % count:
        raise RecipeError(
            f"--nodes {count} does not divide the {target.devices} GPUs of {target.name} equally: name a number that"
            " divides them, 1 or more"
        )
    return tasks, count


def _planned(recipe: Recipe, options: TrainOptions, target: Chip, processes: int, say: Say) -> Planned:
    """Plans the run for `processes` processes, prints the plan and returns it."""
    from plimsoll.report.tables import plan_table

    question = question_of(recipe, options, target)
    planned = find_plan(question, place_of(question, say, processes=processes), None, say)
    say(plan_table(planned))
    return planned
