"""The options of `plan` and `train` that are not the recipe's. Field docstrings are the help texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, Literal

import tyro

from plimsoll.cli.parse import Json
from plimsoll.engine import options
from plimsoll.levers.lever import Lever
from plimsoll.levers.registry import LEVERS
from plimsoll.recipes.base import Recipe
from plimsoll.types import Numerics
from plimsoll.units import parse_seconds

HIDDEN = (tyro.conf.Fixed, tyro.conf.Suppress)


@dataclass(frozen=True, kw_only=True)
class Levers:
    """Levers to fix; the planner chooses the others."""

    numerics: Literal["exact", "mixed", "compressed"] = "mixed"
    """Freedom of a plan to change the arithmetic. exact: float32 throughout. mixed: matrix products in bfloat16,
    weights and sums in float32. compressed: also fewer bits for weights and optimizer state."""

    def pins(self) -> dict[str, Any]:
        """Returns the levers that were given, by name."""
        given = {name: getattr(self, name, None) for name in LEVERS}
        return {name: value for name, value in given.items() if value is not None}


def no_pins() -> Levers:
    """Returns `Levers` with an option for each lever that is registered by now, none of them given."""
    return _with_options(tuple(LEVERS.values()))()


@cache
def _with_options(levers: tuple[Lever, ...]) -> type[Levers]:
    options_of_levers = [
        (lever.name, Annotated[lever.type | None, tyro.conf.arg(help=lever.help)], field(default=None))
        for lever in levers
    ]
    kind = make_dataclass("Levers", options_of_levers, bases=(Levers,), frozen=True, kw_only=True)
    kind.__doc__ = Levers.__doc__
    return kind


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    recipe: Recipe
    levers: Levers = field(default_factory=no_pins)
    memory: str | None = None
    """Memory budget per device, like 768MiB or 2GB; 2G is 2GiB. By default the memory that is free now, less a
    safety margin; for an accelerator, its memory."""
    host_memory: str | None = None
    """Memory budget of a machine that holds accelerators, like 64GiB: its own memory, not theirs. By default that of
    the chip's usual host, if it is known."""
    chip: str | None = None
    """Chip to plan for, which need not be here: one of `plimsoll chips`. By default the accelerator that JAX finds,
    else the CPU."""
    mesh: str | None = None
    """Division of the work among devices: data=8 splits the batch over 8; data=4,fsdp=2 also splits parameters and
    optimizer state over 2. By default all devices of the chip."""
    measure: bool = False
    """Run and time the best few plans on this machine. Allocates memory, in a process of its own."""
    within: str | None = None
    """Time limit for planning, like 10s; the best plan found by then is used, or the first one after it. By default 30s
    on a CPU, 60s for an accelerator."""
    floor: bool = False
    """Look for the plan that needs the fewest bytes, instead of the fastest that fits."""
    largest: Literal["seq-len", "batch-size", "lora-rank", "target-params"] | None = None
    """Option whose largest value that fits is searched, confirmed by a compile. For batch-size, all examples go through
    the model at once. --within is then 4min on a CPU, 7min for a GPU, 15min for a TPU by default."""
    frontier: bool = False
    """Also print the plans that no other plan beats in both bytes and step time."""
    compare: str | None = None
    """Chips to plan for side by side, like h200,a100-40,rtx4090,tpu-v4-64. By default the one of --chip."""
    price: str | None = None
    """Price of an hour of all devices that a chip's name stands for, for --compare, like h200=3.5,rtx4090=0.4.
    Without it no cost is shown."""
    buffers: bool = False
    """Also print the largest temporary arrays of a step, and the lines of code that make them."""
    picture: str | None = None
    """File (.png or .svg) for a picture of the bytes by part; with --frontier, of bytes against step time. By default
    none is drawn."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TrainOptions(options.TrainOptions):
    """The options of training as the command line reads them: with the recipe, and those of the command alone."""

    recipe: Recipe
    levers: Levers = field(default_factory=no_pins)
    memory: str | None = None
    within: str | None = None
    coordinator: str | None = None
    """HOST:PORT of the first process, where several train one run. Left out for one process, under Slurm and MPI, and
    on TPUs."""
    processes: int | None = None
    """Number of processes that train the run; only with --coordinator."""
    process: int | None = None
    """Number of this process, counted from 0; only with --coordinator."""
    on: Literal["slurm", "ray"] | None = None
    """Scheduler that starts the run on its nodes, with the memory and the GPUs of the plan. slurm: writes a script into
    RUN.slurm and submits it. ray: starts the processes and follows them. By default the run starts here."""
    nodes: int | None = None
    """Number of nodes, with --on. A node has a process for each of its GPUs, else one. By default 1, or as many as have
    8 GPUs each."""
    sbatch: str | None = None
    """Further options of sbatch by their long names, with --on slurm, like "partition=gpu time=12:00:00
    cpus-per-task=8". They have precedence over those of the plan. By default Slurm gives each process one CPU."""
    submit: bool = True
    """With --on slurm, submit the script. With --no-submit it is only written, to be looked at."""
    max_minutes: str | None = None
    """Time after which to stop early: 90s, 3min, 2h; a bare number is minutes. By default training runs to its end."""
    # The command line gives these in other words: the recipe's name, levers, minutes.
    name: Annotated[str | None, *HIDDEN] = None
    numerics: Annotated[Numerics, *HIDDEN] = "mixed"
    pins: Annotated[Mapping[str, Any], *HIDDEN] = field(default_factory=dict)
    max_seconds: Annotated[float | None, *HIDDEN] = None

    def named(self, name: str) -> options.TrainOptions:
        """Returns the options of the library, for a recipe that the user calls `name`."""
        seconds = None
        if self.max_minutes is not None:
            bare = self.max_minutes.replace(".", "", 1).isdigit()
            seconds = float(self.max_minutes) * 60 if bare else parse_seconds(self.max_minutes)
        shared = {each.name: getattr(self, each.name) for each in fields(options.TrainOptions)}
        return options.TrainOptions(
            **shared
            | {
                "run": self.run or f"runs/{name}",
                "name": name,
                "numerics": self.levers.numerics,
                "pins": self.levers.pins(),
                "max_seconds": seconds,
            }
        )
