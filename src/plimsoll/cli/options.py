"""Options of `plan`, `train` and `ladder` besides the recipe's. Docstrings of fields are the help texts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from plimsoll.engine import options
from plimsoll.engine.options import Arithmetic, Chip, Place
from plimsoll.errors import RecipeError
from plimsoll.levers.registry import LEVERS
from plimsoll.options import Json, Metavar, Option, Options, Size, Text, flag_of
from plimsoll.units import parse_seconds


def lever_rows() -> tuple[Option, ...]:
    """Returns a command-line option without default for each registered lever (memory-saving option)."""
    return tuple(
        Option(
            name=lever.name,
            kind=Annotated[lever.type | None, Text(lever.help)],
            default=None,
            group="levers",
        )
        for lever in LEVERS.values()
    )


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Place):
    host_memory: Size | None = None
    """Budget of host memory of a machine with accelerators, like 64GiB. By default the memory of the chip's usual host,
    if it is known."""
    measure: bool = False
    """Run and time the best few plans on this machine. Allocates memory, in a process of its own."""
    floor: bool = False
    """Look for the plan that needs the fewest bytes, instead of the fastest plan that fits."""
    largest: Literal["seq-len", "batch-size", "lora-rank", "target-params"] | None = None
    """Option to maximise: its largest value that fits is searched, and confirmed by a compile. For batch-size, all
    examples go through the model at once. By default --within is then 4min on a CPU, 7min for a GPU, 15min for a
    TPU."""
    frontier: bool = False
    """Also print the plans that no other plan beats in both bytes and step time."""
    compare: Annotated[str | None, Metavar("CHIPS")] = None
    """Chips to plan for side by side, like h200,a100-40,rtx4090,tpu-v4-64. By default only the chip of --chip."""
    price: Annotated[str | None, Metavar("PRICES")] = None
    """Price per hour of each chip of --compare, with all its devices, like h200=3.5,rtx4090=0.4. By default no cost is
    shown."""
    buffers: bool = False
    """Also print the largest temporary arrays of a step, and the lines of code that make them."""
    picture: Annotated[str | None, Metavar("FILE")] = None
    """File (.png or .svg) for a picture of the bytes by part; with --frontier, of bytes against step time. By default
    none is drawn."""
    json: Json = False

    def check_options(self) -> None:
        """Raises RecipeError for options that conflict with --compare."""
        super().check_options()
        if self.compare is None and self.price is not None:
            raise RecipeError("--price is for --compare, which compares the cost on several chips: add it")
        of_one_chip = ("chip", "mesh", "measure", "buffers", "floor", "frontier", "picture", "largest")
        given = [flag_of(name) for name in of_one_chip if getattr(self, name) not in (None, False)]
        if self.compare is not None and given:
            raise RecipeError(
                f"--compare plans for several chips, and {' and '.join(given)} is for one plan: leave one side out"
            )


@dataclass(frozen=True, kw_only=True)
class OneOfSeveral(Options):
    """Options for one of several processes that train a run."""

    group = "processes"

    coordinator: Annotated[str | None, Metavar("HOST:PORT")] = None
    """Address of the first of several processes that train one run, each started with this command. Leave it out for
    one process, under Slurm and MPI, and on TPUs."""
    processes: int | None = None
    """Number of processes; only with --coordinator."""
    process: int | None = None
    """Number of this process, counted from 0; only with --coordinator."""


@dataclass(frozen=True, kw_only=True)
class Processes(OneOfSeveral):
    """Options for the processes of a run, and for the scheduler that starts them."""

    on: Literal["slurm", "ray"] | None = None
    """Scheduler that starts the run on its nodes, with the memory and the GPUs of the plan. slurm: writes a script into
    RUN.slurm and submits it. ray: starts the processes and follows them. By default the run starts here."""
    nodes: int | None = None
    """Number of nodes, with --on. A node runs a process for each of its GPUs, or a single one if it has none. By
    default 1, or a node for every 8 GPUs."""
    sbatch: Annotated[str | None, Metavar("OPTIONS")] = None
    """Further options of sbatch by their long names, with --on slurm, like "partition=gpu time=12:00:00
    cpus-per-task=8". They override the plan's options. By default Slurm gives each process one CPU."""
    submit: bool = True
    """With --on slurm, submit the script. --no-submit only writes it."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(options.TrainOptions, Processes):
    """Options of `plimsoll train`: those of the library, those of schedulers, and --max-minutes as text."""

    group = "run"

    max_minutes: Annotated[str | None, Metavar("TIME")] = None
    """Time after which to stop early: 90s, 3min, 2h; a bare number is minutes. By default training runs to its end."""

    def check_options(self) -> None:
        """Raises RecipeError for conflicting options of schedulers."""
        super().check_options()
        processes = (self.coordinator, self.processes, self.process)
        if self.on is None and self.nodes is not None:
            raise RecipeError("--nodes is for a scheduler: add --on slurm or --on ray, or leave it out")
        if self.on is not None and processes != (None, None, None):
            raise RecipeError(
                f"--on {self.on} starts all processes of the run, each with its number: leave out --coordinator,"
                " --processes and --process, and say how many nodes with --nodes"
            )
        if self.on != "slurm" and (self.sbatch is not None or not self.submit):
            raise RecipeError("--sbatch and --no-submit are for --on slurm: leave them out, or name that scheduler")

    def of_library(self, name: str, **more: Any) -> options.TrainOptions:
        """Returns the options for the library (`engine.options.TrainOptions`).

        Args:
            name: Name of the recipe, as the user typed it.
            more: Options of the library that are no options of the command line, like `pins`.
        """
        seconds = None
        if self.max_minutes is not None:
            is_bare = self.max_minutes.replace(".", "", 1).isdigit()
            seconds = parse_seconds(f"{self.max_minutes}min" if is_bare else self.max_minutes)
        shared = {field.name: getattr(self, field.name) for field in fields(options.TrainOptions)}
        own: dict[str, Any] = {"run": self.run or f"runs/{name}", "name": name, "max_seconds": seconds}
        return options.TrainOptions(**shared | own | more)


@dataclass(frozen=True, kw_only=True)
class LadderOptions(Arithmetic):
    group = "ladder"

    memory: Size | None = None
    """Memory budget, like 2GiB: rungs that are predicted to need more are not run. By default the memory that is free
    now, less a safety margin."""
    chip: Chip | None = None
    """Chip to compile the rungs for, one of `plimsoll chips`; nothing is trained and no data is read. By default rungs
    are trained here."""
    numerics: Literal["exact", "mixed", "compressed"] = "compressed"
    """How far rungs may change the arithmetic; compressed includes exact and mixed."""
    rungs: Annotated[tuple[str, ...], Metavar("RUNG ...")] = ()
    """Names of the rungs (plans with one more lever each) to compare. The first is always included. By default every
    rung of the recipe."""
    rung_steps: int = 12
    """Optimizer steps on each rung, a third of them after a restart from a checkpoint. --steps remains the length of
    the learning-rate schedule."""
    run: Annotated[str | None, Metavar("FOLDER")] = None
    """New folder in which to keep all runs. By default they are deleted afterwards."""
    json: Json = False
