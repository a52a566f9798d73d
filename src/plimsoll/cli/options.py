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
    """Levers to pin; what is not named is searched."""

    numerics: Literal["exact", "mixed", "compressed"] = "mixed"
    """What a plan may do to the numbers: exact float32; mixed, bfloat16 arithmetic over float32 weights and sums;
    compressed, fewer bits for weights and optimizer state too."""

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
    """Budget per device, like 768MiB or 2GB; default: what is available less a margin, or what the chip has."""
    host_memory: str | None = None
    """Budget of a host beside its accelerators."""
    chip: str | None = None
    """The chip to plan for: one of `plimsoll chips`; default: the accelerator that JAX sees here, else cpu."""
    mesh: str | None = None
    """Devices that share the work, and the state, like data=8 or data=4,fsdp=2; default: all of the chip's."""
    measure: bool = False
    """Time the best few here (allocates, in a process of its own)."""
    within: str | None = None
    """Time that planning may take, like 10s: then the best plan that is confirmed is taken, or the first one that is;
    default 30s on a CPU, 60s for an accelerator. The more of it is used up, the more a further question must gain."""
    floor: bool = False
    """The smallest plan instead of the fastest that fits."""
    largest: Literal["seq-len", "batch-size", "lora-rank", "target-params"] | None = None
    """The largest value of this option that fits, confirmed by a compile, instead of a plan for one value: of
    --batch-size what goes through at once. --within is by default 4min on a CPU, 7min for a GPU, 15min for a TPU."""
    frontier: bool = False
    """Print bytes against time of a step, too: the plans that nothing beats."""
    settings: bool = False
    """A plan for each of the guide's machines (8, 12 and 32 GiB, a TPU) instead of one for --memory and --chip."""
    compare: str | None = None
    """Several chips side by side instead of one for --chip, like h200,a100-40,rtx4090,tpu-v4-64."""
    price: str | None = None
    """With --compare: what an hour costs, of all devices of a chip's name, like h200=3.5,rtx4090=0.4."""
    buffers: bool = False
    """Print the largest temporaries of the step, and the lines they come from."""
    picture: str | None = None
    """Draw where the bytes go, or what they buy with --frontier, into this .png or .svg file."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TrainOptions(options.TrainOptions):
    """The options of training as the command line reads them: with the recipe, and those of the command alone."""

    recipe: Recipe
    levers: Levers = field(default_factory=no_pins)
    memory: str | None = None
    coordinator: str | None = None
    """HOST:PORT of the first of several processes of this run. Not needed under Slurm, MPI and on TPUs."""
    processes: int | None = None
    """How many processes the run has; with --coordinator."""
    process: int | None = None
    """Which of the processes this is, from 0; with --coordinator."""
    runs: str | None = None
    """Folder of several: each of the recipes that are named gets its own run in it, one after the other."""
    max_minutes: str | None = None
    """Stop early, after this long (90s, 3min, 2h; a bare number is minutes)."""
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
