"""A training that a scheduler starts: on how many nodes, with how many processes, GPUs and bytes, from its plan."""

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
"""GPUs of a node, at most, where nobody says how many nodes there are to be."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Request to a scheduler, which starts the same command as every process."""

    name: str
    run: str
    """Folder of the run."""
    command: Sequence[str]
    """Words of `plimsoll` that each process is started with."""
    nodes: int
    tasks_per_node: int
    """Processes of a node: one for each GPU, else one."""
    gpus_per_node: int
    process_bytes: int
    """Memory of one process on its node: the budget on a CPU, beside an accelerator what the plan says of the host."""

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.nodes * self.tasks_per_node


def job(
    recipe: Recipe, options: TrainOptions, words: Sequence[str], *, on: Scheduler, nodes: int | None, say: Say
) -> Job:
    """Returns the job that trains `recipe`, planned for here, so that what fits nothing is refused before it waits.

    Args:
        recipe: What to train.
        options: Options of the run.
        words: The command and its arguments as they were typed, without what is meant for the scheduler.
        on: The scheduler.
        nodes: Number of nodes; by default one, or as many as have 8 GPUs each.
        say: Called with the plan, as text.

    Raises:
        RecipeError: It cannot be divided so, or something has to be said that it cannot know here.
        BudgetError: No plan fits.
        RunError: The run is in a bucket.
    """
    require_shared_folder(options.run)

    # The plan that the run has and keeps, if it has one, says the chip and the budget.
    folder = RunFolder(str(options.run))
    before = folder.planned() if folder.has("plan.json") and not options.replan else None
    target = chip_named(options.chip or ("cpu" if before is None else before.plan.chip))
    if target.platform == "cpu" and options.memory is None and before is None:
        raise RecipeError(
            f"--on {on} asks for the memory of the budget, and what is free here says nothing of a node: give --memory,"
            " the bytes of one process, like --memory 4GiB, or --chip with the GPU that the nodes have"
        )
    tasks, count = _divided(target, on, nodes)
    options.refuse_clock(tasks)
    planned = before or _planned(recipe, options, target, tasks, say)
    budget = planned.ledger.budget_bytes if options.memory is None else budget_bytes(options.memory, target)

    # The same command for each process.
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
    """Returns the number of processes, one for each GPU or for each node, and that of nodes."""
    if target.platform == "tpu":
        raise RecipeError(
            f"--on {on} starts processes on CPUs and NVIDIA GPUs, and {target.name} is a TPU: docs/scale.md"
        )
    tasks = target.devices if target.platform == "cuda" else (nodes or 1)
    count = max(1, tasks // GPUS_OF_A_NODE) if nodes is None else nodes
    if count < 1 or tasks % count:
        raise RecipeError(
            f"--nodes {count} cannot have equal parts of the {target.devices} GPUs of {target.name}: name a number that"
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
