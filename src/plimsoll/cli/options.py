"""The options of `plan` and `train` that are not the recipe's. Field docstrings are the help texts."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal

import tyro

from plimsoll.cli.parse import Json
from plimsoll.levers.registry import LEVERS
from plimsoll.recipes.base import Recipe


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
    fields = [
        (lever.name, Annotated[lever.type | None, tyro.conf.arg(help=lever.help)], field(default=None))
        for lever in LEVERS.values()
    ]
    made = make_dataclass("Levers", fields, bases=(Levers,), frozen=True, kw_only=True)
    made.__doc__ = Levers.__doc__
    return made()


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    recipe: Recipe
    levers: Levers = field(default_factory=no_pins)
    memory: str | None = None
    """Budget per device, like 768MiB or 2GB; default: what is available less a margin, or what the chip has."""
    host_memory: str | None = None
    """Budget of a host beside its accelerators."""
    chip: str = "cpu"
    """The chip to plan for: one of `plimsoll chips`."""
    mesh: str | None = None
    """Devices that share the work, and the state, like data=8 or data=4,fsdp=2; default: all of the chip's."""
    measure: bool = False
    """Time the best few here (allocates, in a process of its own)."""
    settings: bool = False
    """A plan for each of the guide's machines (8, 12 and 32 GiB, a TPU) instead of one for --memory and --chip."""
    compare: str | None = None
    """Several chips side by side instead of one for --chip, like h200,a100-40,rtx4090,tpu-v4-64."""
    price: str | None = None
    """With --compare: what an hour costs, of all devices of a chip's name, like h200=3.5,rtx4090=0.4."""
    buffers: bool = False
    """Print the largest temporaries of the step, and the lines they come from."""
    picture: str | None = None
    """Draw where the bytes go into this .png or .svg file."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    recipe: Recipe
    levers: Levers = field(default_factory=no_pins)
    memory: str | None = None
    """Budget, like 768MiB or 2GB; default: what is available, less a margin, or what the chip has."""
    chip: str | None = None
    """Train on this: cpu (the default), or the NVIDIA GPU of this machine, by its name in `plimsoll chips`."""
    mesh: str | None = None
    """Devices that share the work, and the state, like data=8 or data=4,fsdp=2; default: all that are here."""
    coordinator: str | None = None
    """HOST:PORT of the first of several processes that train this run, each started with this command; Slurm, MPI and
    TPUs say it themselves."""
    processes: int | None = None
    """How many there are."""
    process: int | None = None
    """Which of them this is, from 0."""
    run: str | None = None
    """Folder of the run, new or to be continued, here or in a bucket (s3://, gs://); default runs/RECIPE."""
    runs: str | None = None
    """Folder of several: each of the recipes that are named gets its own run in it, one after the other."""
    plan: str | None = None
    """Use this plan (a file from `plimsoll plan --json`, or a run's plan.json) instead of searching."""
    replan: bool = False
    """Search again for a run that has a plan."""
    keep_plan: bool = False
    """Where the run goes over its budget, only say so; default: save, plan again with that margin, continue."""
    max_steps: int | None = None
    """Stop early, at this step; the schedule stays."""
    max_minutes: str | None = None
    """Stop early, after this long (90s, 3min, 2h; a bare number is minutes)."""
    log_every: int = 10
    """Steps between rows of metrics."""
    save_every: int | None = None
    """Steps between checkpoints; default a quarter of the run, at most 1,000."""
    eval_every: int | None = None
    """Steps between evaluations; default an epoch, or a quarter of the run; 0 for the end only."""
    quiet: bool = False
    """Print only what matters."""
    tracker: Literal["none", "wandb", "trackio", "mlflow"] = "none"
    """Besides TensorBoard events."""
    profile: int = 0
    """Trace so many steps with jax.profiler into RUN/profile."""
    profiler_port: int | None = None
    """Serve the profiler on this port."""
    debug_nans: bool = False
    """Stop where the first NaN is made, with a traceback; slow."""
