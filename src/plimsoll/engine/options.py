"""Options of training besides the recipe: the same for `plimsoll train`, `plimsoll.train` and the training process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plimsoll.errors import RecipeError
from plimsoll.types import Numerics


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of training, as the command line reads them, the library takes them and the training process gets them.

    The docstrings are the help texts. None of the options from `max_steps` on changes what is trained, only how long,
    and what is written about it.
    """

    memory: str | int | None = None
    """Budget, like 768MiB or 2GB; default: what is available, less a margin, or what the chip has."""
    chip: str | None = None
    """Train on this: cpu, or the accelerator of this machine, by its name in `plimsoll chips`; default: the
    accelerator that JAX sees here, else cpu; of several processes, cpu."""
    mesh: str | None = None
    """Devices that share the work, and the state, like data=8 or data=4,fsdp=2; default: all that are here."""
    run: str | None = None
    """Folder of the run, new or to be continued, here or in a bucket (s3://, gs://); default runs/RECIPE."""
    plan: str | None = None
    """Use this plan (a file from `plimsoll plan --json`, or a run's plan.json) instead of searching."""
    within: str | float | None = None
    """Time that planning may take, like 10s; default 30s on a CPU, 60s for an accelerator."""
    replan: bool = False
    """Search again for a run that has a plan, or whose plan.json is damaged; its checkpoints stay."""
    extend: bool = False
    """Go on with a longer --steps, even where the steps that were taken would have had other learning rates in a run of
    that length."""
    keep_plan: bool = False
    """Where the run goes over its budget, only say so; default: save, plan again with that margin, continue."""
    max_steps: int | None = None
    """Stop early, at this step; the schedule stays."""
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
    name: str | None = None
    """Name by which the user calls the recipe; default its kind."""
    numerics: Numerics = "mixed"
    """Class of numerics up to which a plan is searched."""
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Levers that keep the value which is given here, by name."""
    max_seconds: float | None = None
    """Stop early, after so many seconds."""

    def __post_init__(self) -> None:
        least = {"max_steps": 1, "log_every": 1, "save_every": 1, "eval_every": 0, "profile": 0, "profiler_port": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise RecipeError(f"--{name.replace('_', '-')} must be {smallest} or more, got {value}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise RecipeError(f"--max-minutes must be above 0, got {self.max_seconds / 60:g}")


@dataclass(frozen=True, kw_only=True)
class Session(TrainOptions):
    """Options of the training process, which finds everything else in the run folder."""

    run: str = ""
    """Folder of the run; always given."""
    budget_bytes: int
    notes: tuple[str, ...] = ()
    """Sentences for the log and the ledger."""
    lock: int | None = None
    """The descriptor that holds the run's lock: planning again needs it."""
