"""Options of training besides the recipe, for `plimsoll train`, `plimsoll.train` and the training process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from plimsoll.errors import RecipeError
from plimsoll.options import FilePath, Metavar, NonNegativeInt, Options, PositiveInt, Seconds, Size, flag_of
from plimsoll.training.schedule import Every, parse_every
from plimsoll.types import Norms, Numerics, StepOptions
from plimsoll.units import parse_budget, parse_seconds

Chip = Annotated[str, Metavar("CHIP")]
Often = Annotated[int | str, Metavar("N|TIME")]
"""Interval in steps, or a time like 10min."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Options):
    """Option for the precision that a plan may use."""

    group = "levers"

    numerics: Numerics = "mixed"
    """How far a plan may change the arithmetic. exact: float32 throughout. mixed: matrix products in bfloat16, weights
    and sums in float32. compressed: also fewer bits for weights and optimizer state."""


@dataclass(frozen=True, kw_only=True)
class Place(Arithmetic):
    """Options of planning: the memory, the chip, the devices, and the time for the search."""

    group = "plan"

    memory: Size | None = None
    """Memory budget per device, like 768MiB or 2GB; 2G is 2GiB. By default the memory that is free now, less a
    safety margin on a CPU; for a chip that is not in this machine, all of its memory."""
    chip: Chip | None = None
    """Chip to plan for, one of `plimsoll chips`. By default the accelerator that JAX finds, else the CPU."""
    mesh: Annotated[str | None, Metavar("MESH")] = None
    """Division of the work among devices: data=8 splits the batch over 8 devices; data=4,fsdp=2 also splits parameters
    and optimizer state over 2. By default all devices of the chip."""
    log_norms: Norms = "global"
    """Norms of the gradient in the metrics of each step. global: of the whole gradient. layers: also of each layer, and
    of each part outside the layers."""
    within: Seconds | None = None
    """Time limit for planning, like 10s. Planning exceeds it only until it has found a first plan. By default 30s on a
    CPU and 60s for an accelerator, or up to 120s before a long run."""

    @property
    def step_options(self) -> StepOptions:
        """Options of the training step that planning and training must agree on."""
        return StepOptions(norms=self.log_norms)

    def check_options(self) -> None:
        """Raises RecipeError for a size or a time that cannot be parsed. Reads no data."""
        if self.memory is not None:
            parse_budget(self.memory)
        if self.within is not None:
            try:
                parse_seconds(self.within)
            except RecipeError as problem:
                raise RecipeError(f"--within: {problem}") from None


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Place):
    """Options of training, for the command line, the library and the training process.

    The fields' docstrings are the help texts. Options from `max_steps` on change the length and the output of training,
    but not the training itself.
    """

    group = "run"

    chip: Chip | None = None
    """Device to train on: cpu, or this machine's accelerator by its name in `plimsoll chips`. By default the
    accelerator that JAX finds, else the CPU; with --processes the CPU."""
    run: Annotated[str | None, Metavar("FOLDER")] = None
    """Folder for checkpoints and logs, or an address in a bucket (s3://, gs://). If it has a run, that run continues.
    By default runs/RECIPE."""
    plan: FilePath | None = None
    """File with a plan to use: the output of `plimsoll plan --json`, or a run's plan.json. By default a plan is
    searched for."""
    replan: bool = False
    """Search for a new plan, although the run has one. Training continues from the run's checkpoints. Also replaces a
    damaged plan.json."""
    keep_plan: bool = False
    """If the run exceeds its budget, log a warning and continue. By default it saves, plans again with a larger safety
    margin, and resumes."""
    max_steps: PositiveInt | None = None
    """Step at which to stop early. Unlike --steps it leaves the learning rate schedule as it is. By default training
    runs to its end."""
    log_every: PositiveInt = 10
    """Steps between logged rows of metrics."""
    save_every: Often | None = None
    """Steps between checkpoints, or a time like 10min. By default a quarter of the run, at most 1,000 steps, and
    also a minute after the start and every 5 minutes from then on."""
    eval_every: Often | None = None
    """Steps between evaluations on held-out data, or a time like 10min; 0 evaluates only at the end. By default one
    epoch, or several in a run of more than 100 epochs; a quarter of the run if the length of an epoch is unknown;
    --eval-interval epochs if the recipe has that option."""
    patience: PositiveInt | None = None
    """Stop early after so many evaluations in a row without a lower validation loss (recommend: a higher nDCG@10). By
    default the run takes all steps."""
    quiet: bool = False
    """Print only warnings and the result."""
    tracker: Literal["none", "wandb", "trackio", "mlflow"] = "none"
    """Service to send metrics to, in addition to the TensorBoard files in the run."""
    profile: NonNegativeInt = 0
    """Number of steps to trace with jax.profiler, into RUN/profile."""
    profiler_port: PositiveInt | None = None
    """Port on which to serve JAX's profiler. By default it is off."""
    debug_nans: bool = False
    """Stop at the operation that makes the first NaN, with a traceback. Needs memory for a second copy of the state."""
    name: str | None = field(default=None, metadata={"option": False})
    """Name of the recipe in messages. By default the recipe's kind, like `longcontext`."""
    on_purpose: tuple[str, ...] = field(default=(), metadata={"option": False})
    """Names of the recipe's options that `plimsoll resume` changes in an existing run."""
    pins: Mapping[str, Any] = field(default_factory=dict, metadata={"option": False})
    """Memory-saving options to fix, by name; the planner chooses the others."""
    max_seconds: float | None = field(default=None, metadata={"option": False})
    """Seconds after which to stop early."""

    @property
    def step_options(self) -> StepOptions:
        return StepOptions(norms=self.log_norms, donates=not self.debug_nans)

    def check_options(self) -> None:
        super().check_options()
        evaluate, save = self.often("eval_every"), self.often("save_every")
        if save == Every():
            raise RecipeError("--save-every must be 1 or more, or a time like 10min, got 0")
        if self.patience is not None and evaluate is not None and not evaluate.steps:
            reason = "evaluates only at the end"
            if evaluate.is_by_clock:
                reason = "evaluates by the clock, so the number of evaluations depends on the machine's speed"
            raise RecipeError(
                f"--patience {self.patience} counts evaluations during training, and --eval-every {self.eval_every}"
                f" {reason}: give --eval-every a number of steps, or leave one of them out"
            )
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise RecipeError(f"--max-minutes must be above 0, got {self.max_seconds / 60:g}")

    def often(self, name: str) -> Every | None:
        """Returns the interval of --save-every or --eval-every; None if the option is not set.

        Args:
            name: Field of the option: `save_every` or `eval_every`.

        Raises:
            RecipeError: The value is neither a number of steps nor a time.
        """
        value = getattr(self, name)
        if value is None:
            return None
        try:
            return parse_every(value)
        except RecipeError as problem:
            raise RecipeError(f"{flag_of(name)} takes a number of steps or a time, got {value!r}: {problem}") from None

    def refuse_clock(self, processes: int) -> None:
        """Raises RecipeError if several processes are to evaluate or save by the clock, because their clocks differ."""
        if processes == 1:
            return
        for name in ("save_every", "eval_every"):
            every = self.often(name)
            if every is not None and every.is_by_clock:
                raise RecipeError(
                    f"{flag_of(name)} {getattr(self, name)} goes by the clock, and this run has {processes:,}"
                    " processes, each with a clock of its own: they have to evaluate and save at the same step. Give a"
                    " number of steps"
                )

    @property
    def kept(self) -> dict[str, Any]:
        """Options of evaluating, saving and logging that `plimsoll resume` reuses."""
        names = ("eval_every", "save_every", "log_every", "log_norms", "patience")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Session(TrainOptions):
    """Options of the training process, which reads recipe, plan and facts about the data from the run folder."""

    run: str = ""
    """Folder of the run; never empty."""
    budget_bytes: int
    """Memory budget of one device."""
    notes: tuple[str, ...] = ()
    """Sentences about this session for the log and the ledger, such as changes since the previous session."""
    lock: int | None = None
    """File descriptor that holds the run's lock. A process that plans the run again inherits the descriptor."""
