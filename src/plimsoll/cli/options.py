"""The options of `plan` and `train` that are not the recipe's. Field docstrings are the help texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from plimsoll.cli.parse import Json
from plimsoll.recipes.base import Recipe
from plimsoll.types import LEVERS


@dataclass(frozen=True, kw_only=True)
class Levers:
    """Levers to pin; what is not named is searched."""

    numerics: Literal["exact", "mixed", "compressed"] = "mixed"
    """What a plan may do to the numbers: exact float32; mixed, bfloat16 arithmetic over float32 weights and sums;
    compressed, fewer bits for weights and optimizer state too."""
    micro_batch: int | None = None
    """Examples that go through the model at a time; must divide the effective batch."""
    remat: Literal["none", "dots", "block", "offload"] | None = None
    """Recompute in the backward pass: nothing, all but the dots, whole blocks, or those with inputs on the host."""
    loss_chunk: int | None = None
    """Tokens whose logits exist at a time; 0 for all."""
    attention_chunk: int | None = None
    """Positions of a block of attention's scores; 0 for the fastest form where scores may be held whole."""
    precision: Literal["float32", "tf32", "bfloat16", "float16"] | None = None
    """Arithmetic of the dots. float16 scales the loss, and skips steps that overflow."""
    optimizer_bits: Literal[32, 8] | None = None
    """Of each number that the optimizer keeps per weight."""
    weight_bits: Literal[32, 24, 16] | None = None
    """Of each weight between steps: 24 is bfloat16 and a correction, 16 is bfloat16 rounded stochastically."""
    frozen_bits: Literal[32, 16, 8, 4] | None = None
    """Of each weight that is not learned: 16 is bfloat16, 8 int8, 4 NF4."""
    ema_bits: Literal[32, 16] | None = None
    """Of the average of the weights that --ema-decay keeps: 16 is bfloat16 rounded stochastically."""
    layerwise: Literal[0, 1, 2] | None = None
    """Update each layer as soon as it has its gradient, in so many backward passes (two under a clip); 0 for all at
    once."""
    offload: Literal["none", "frozen", "optimizer", "all"] | None = None
    """What lies in the host's memory, beside an accelerator: frozen weights, the optimizer's state and the average, or
    all of these."""
    fsdp: int | None = None
    """Devices that share one copy of the state; 1 leaves a whole copy on each."""
    prefetch: int | None = None
    """Batches made ready in the background."""
    async_save: bool | None = None
    """Write checkpoints beside training (needs a second copy of the state), or between steps."""

    def pins(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in LEVERS if getattr(self, name) is not None}


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    recipe: Recipe
    levers: Levers = field(default_factory=Levers)
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
    levers: Levers = field(default_factory=Levers)
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
