"""What every recipe says: how many examples a step sees, how long it learns, from what, with which optimizer.

No field decides about memory. A recipe is a frozen dataclass that round-trips through JSON; it imports no JAX
(`task` and `optimizer` do, when they are called), so that `--help` and bad input answer at once.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args, get_origin

from plimsoll.errors import RecipeError
from plimsoll.optimizers.adamw import AdamW
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import COUNTED, WHOLE, Compute, Source, Storage, Task

if TYPE_CHECKING:
    import optax

    from plimsoll.planned import Plan, Planned

Count = Annotated[int, "count"]
"""A whole number that may be typed as 124M, 10k or 1.3B."""


def is_count(hint: Any) -> bool:
    """Returns whether a field's type is `Count`, or has it among others."""
    if get_origin(hint) is Annotated:
        return "count" in get_args(hint)[1:]
    return any(is_count(part) for part in get_args(hint)) if get_origin(hint) is not None else False


Say = Callable[[str], None]

FROM_FILE = "file"
"""Kind of every recipe that is not ours: known by the file it stands in."""

MOST_STEPS = MOST_EXAMPLES = 2**31 - 1
"""The number of a step, and that of an example in its batch, are int32 on the device."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Facts about the data, found before training: kept in the run as `data.json`."""

    steps: int
    """Optimizer steps of the whole run: the schedule's length."""
    steps_per_epoch: float | None
    """None where nobody has counted the set (a stream with `--steps`)."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Documents, tokens, how the text was split, ...: for people, and for the source to open itself again."""

    def __post_init__(self) -> None:
        if self.steps > MOST_STEPS:
            raise RecipeError(
                f"so many --epochs are {self.steps:,} steps, and a run has at most {MOST_STEPS:,}: lower --epochs, or"
                " give --steps"
            )


@dataclass(frozen=True)
class OwnRung:
    """A rung of a recipe's own ladder, instead of those that levers' records name."""

    name: str
    words: str
    """Description of what it adds."""
    levers: Mapping[str, Any]
    """Levers that are new; those of the rungs before are kept."""
    fields: Mapping[str, Any]
    """Fields of the recipe that differ on it."""
    host: bool = False
    """True if it needs a host beside an accelerator: on a CPU it is left out."""


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """Training problem: model, data and optimizer as a frozen dataclass, whose fields are options.

    `plimsoll.preset` returns one by its name; `plimsoll.recipe` makes one of functions.

    Example:
        >>> recipe = plimsoll.preset("code", steps=1_000)
        >>> recipe.effective_batch, isinstance(recipe, plimsoll.Recipe)
        (64, True)
    """

    kind: ClassVar[str] = FROM_FILE
    rate_unit: ClassVar[str] = "examples"
    """What throughput counts: tokens or examples."""

    verbs: ClassVar[Mapping[str, Verb]] = {}
    """Commands that use a run: `evaluate`, `sample`, `export`, `solve`, `rank`. Every recipe is evaluated, by the means
    over its held-out set unless it says otherwise here; the other commands refuse runs without their verb."""
    shown: ClassVar[tuple[Shown, ...]] = ()
    """Parts of a report that the trained model makes."""

    without_validation: ClassVar[str] = "its data set was too small for one. Train on some hundred documents or more"
    """Why there may be no held-out set, and what to do."""

    validates_with_fillers: ClassVar[bool] = False
    """Whether the last batch of `validation` is filled up: then each says by `types.COUNTED` which examples count."""

    supported: ClassVar[tuple[str, ...]] = ()
    """Levers its task makes use of (precision, remat, loss_chunk), its optimizer (optimizer_bits, weight_bits,
    offload), and both (layerwise, which needs remat); `remat_offload` where its blocks go through `levers.remat`."""
    loss_chunks: ClassVar[tuple[int, ...]] = ()
    """Chunks of the loss worth trying, in tokens, besides all at once."""
    loss_whole: ClassVar[bool] = True
    """Whether all at once is worth trying. It can be pinned either way."""

    @property
    def attention_chunks(self) -> tuple[int, ...]:
        """Blocks of attention worth trying, in positions, besides the fastest form."""
        return ()

    @property
    def mlp_chunks(self) -> tuple[int, ...]:
        """Chunks of the feed-forward part worth trying, in positions, besides all at once."""
        return ()

    @property
    def ladder(self) -> tuple[OwnRung, ...]:
        """Rungs of `plimsoll ladder` in an order of the recipe's own; empty for those of the levers' records."""
        return ()

    @property
    def head_columns(self) -> int | None:
        """Width of a head of attention; None where nothing attends, or where it is not known here."""
        return None

    @property
    def layerwise_passes(self) -> int:
        """Passes over the layers of a step that updates layer by layer; 0 for an optimizer that has no such step.

        `supported` says that the task has one (`types.Layered`). Two under a clip to a global norm, which must be known
        before the first update.
        """
        optimizer = self.optimizer(1) if {"layerwise", "remat"} <= {*self.supported_levers} else None
        if not isinstance(optimizer, AdamW):
            return 0
        return 1 if optimizer.clip_norm is None else 2

    gives_way: ClassVar[Mapping[str, Mapping[str, Any]]] = {"steps": {"epochs": None}, "epochs": {"steps": None}}
    """Options that say the same as others in other words: an option, then the fields that give way to it where a user
    gives it and the recipe itself had set them, each with the value that says nothing (recipes/overrides.py)."""

    best_by: ClassVar[str] = "loss"
    """Metric of an evaluation by which a checkpoint is the best: the lowest loss, or the most of anything else."""

    batch_size: int = 32
    """Examples per optimizer step. The plan splits them into micro-batches that fit the memory; the result is the
    same."""
    gradient_accumulation_steps: int = 1
    """Multiplies --batch-size, as in other trainers. --micro-batch fixes how many examples go through at a time."""
    steps: Count | None = None
    """Optimizer steps of the whole run, over which the learning rate is scheduled. By default --epochs decides."""
    epochs: float | None = None
    """Passes over the data, instead of --steps. By default the recipe's own number."""
    seed: int = 42
    """Seed for the initial parameters, the order of the data, and dropout."""
    ema_decay: float = 0.0
    """Decay per step of an exponential moving average (EMA) of the weights, like 0.999. If set, evaluation and sampling
    use the EMA weights. 0 disables it."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise RecipeError(f"--{name.replace('_', '-')} must be 1 or more, got {getattr(self, name)}")
        if self.effective_batch > MOST_EXAMPLES:
            raise RecipeError(
                f"an effective batch of {self.effective_batch:,} examples (--batch-size x"
                f" --gradient-accumulation-steps) is more than {MOST_EXAMPLES:,}: the number of an example is an int32"
                " on the device. Take a smaller one"
            )
        if self.steps is not None and not 1 <= self.steps <= MOST_STEPS:
            raise RecipeError(f"--steps must be from 1 to {MOST_STEPS:,}, got {self.steps:,}")
        if not 0 <= self.seed < 2**63:
            raise RecipeError(f"--seed must be a whole number from 0 to 2^63 - 1, got {self.seed}")
        if not 0 <= self.ema_decay < 1:
            raise RecipeError(f"--ema-decay must be from 0 (none is kept) to below 1, got {self.ema_decay:g}")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise RecipeError(f"--epochs must be above 0 and finite, got {self.epochs:g}")
        if self.steps is not None and self.epochs is not None:
            raise RecipeError(
                f"--steps {self.steps} and --epochs {self.epochs:g} both set the length of the run: give one of them"
                " (--max-steps only stops early)"
            )

    @property
    def supported_levers(self) -> tuple[str, ...]:
        """Levers in `supported`, and those that the recipe's fields bring in."""
        return (*self.supported, "ema_bits") if self.ema_decay else self.supported

    @property
    def effective_batch(self) -> int:
        """Examples per optimizer step."""
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def rate_per_example(self) -> int:
        """Tokens (or examples) that one example counts for."""
        return 1

    def most(self, option: str) -> tuple[int, str] | None:
        """Returns the largest value that an option can have, and what it is in a few words; None where nothing is
        known that ends it.

        Args:
            option: Field that `plan --largest` asks about.
        """
        return (MOST_EXAMPLES, "the most examples that a step counts") if option == "batch_size" else None

    @property
    def same_for_all_sizes(self) -> dict[str, Any]:
        """Fields without which losses of two sizes cannot be compared, with their values at this size."""
        return {}

    @property
    def data_tokens(self) -> float | None:
        """Number of tokens in the training data, about, without reading it; None where it is not known."""
        return None

    @property
    def held_out_tokens(self) -> float:
        """Most tokens that an evaluation reads; 0 where that is not known before the data is prepared."""
        return 0

    def state_by_formula(self, storage: Storage) -> dict[str, Any] | None:
        """Returns the fields of `planner.types.Static` of one device with the whole state, without JAX; None where
        nobody has written them down. `temporaries` is for recipes that have them."""
        return None

    def temporaries(self, plan: Plan) -> tuple[float, float, float]:
        """Returns the bytes that a step on one GPU needs beyond its state by formula: least, likeliest and most."""
        raise NotImplementedError

    def remarks(self, planned: Planned) -> tuple[tuple[str, str], ...]:
        """Returns what there is to say of a plan besides its bytes: a name and a sentence each."""
        return ()

    @property
    def loss_rows(self) -> int | None:
        """Rows of logits that an example has, which a loss in chunks cuts; None where that is not known."""
        return self.rate_per_example if self.rate_unit == "tokens" else None

    @abstractmethod
    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns the shape and dtype of each array in a batch of `examples`, by name."""

    def evaluation_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns the same of a batch that `validation` yields."""
        counted = {COUNTED: ((examples,), "bool")} if self.validates_with_fillers else {}
        return self.batch_spec(examples) | counted

    @abstractmethod
    def task(self, compute: Compute) -> Task: ...

    @abstractmethod
    def optimizer(self, steps: int) -> optax.GradientTransformation | AdamW:
        """Returns the optimizer of a run of so many steps. Settings of AdamW may keep their state in fewer bits."""

    def update_rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        """Returns the optimizer with weights and state kept as `storage` says, and with the average of the weights
        where the recipe keeps one."""
        optimizer = self.optimizer(steps)
        if isinstance(optimizer, AdamW):
            from plimsoll.optimizers.adamw8 import build

            rule = build(optimizer, steps, storage)
        elif storage.updates_whole:
            rule = optimizer
        else:
            raise RecipeError(
                f"--optimizer-bits {storage.optimizer_bits} --weight-bits {storage.weight_bits} need an optimizer that"
                f" has such a form, and that of this recipe is a {type(optimizer).__name__}: return"
                " plimsoll.AdamW(...), or leave both at 32"
            )
        if not self.ema_decay:
            return rule
        from plimsoll.levers.ema import Average
        from plimsoll.optimizers.in_place import in_place

        return in_place(rule, average=Average(self.ema_decay, storage.ema_bits))

    def begin(self, params: Any) -> Any:
        """Returns the parameters that a run starts from, given those that were initialised for it: the same, or
        others of their shapes."""
        return params

    @property
    def frozen_is_given(self) -> bool:
        """True where all frozen weights are read from what the recipe names: checkpoints leave them out then."""
        return False

    def given_frozen(self, frozen: Any) -> Any:
        """Returns the frozen weights that a run has, in the form of those that were initialised for it.

        Called where `frozen_is_given`, before a checkpoint is used. What it is given may be deleted.
        """
        return frozen

    @property
    def begins_with(self) -> str:
        """Name of the source of the weights that `begin` returns, for people."""
        return "--init-from"

    @property
    def evaluation_options(self) -> tuple[str, ...]:
        """Supported options of `plimsoll evaluate`, out of closed_loop, keep_seen, submission and raw."""
        return ("raw",) if self.ema_decay else ()

    @abstractmethod
    def prepare(self, folder: Path, say: Say) -> Prepared:
        """Prepares a run once, before training: tokenizer, counting, validation set. What is made is kept in
        `folder`."""

    @abstractmethod
    def source(self, folder: Path, *, prefetch: int) -> Source:
        """Returns batches of `effective_batch` examples, from the beginning."""

    @abstractmethod
    def validation(self, folder: Path, *, examples: int) -> Iterable[dict[str, Any]]:
        """Returns batches of `examples` that are never trained on; empty where there are none."""

    def reported(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns what `evaluate` reports of the means over the held-out set."""
        return dict(metrics)

    def exhibits(self, metrics: Mapping[str, float], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns what a report shows of the last evaluation's means, besides curves. Reads no data.

        Args:
            metrics: Means by name.
            facts: Facts of the run (`Prepared.facts`).

        Returns:
            Dictionaries as `report/page/exhibits.py` draws them.
        """
        return []

    def schedule(self, steps: int) -> Callable[[Any], Any] | None:
        """Returns the function from a step's number to its learning rate, in a run of `steps`; None if there is
        none."""
        optimizer = self.optimizer(steps)
        return optimizer.schedule(steps) if isinstance(optimizer, AdamW) else None

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        """Returns whether the first `taken` steps learn the same in runs of `steps` and of `longer`; False where that
        is not known."""
        optimizer, other = self.optimizer(steps), self.optimizer(longer)
        if not isinstance(optimizer, AdamW):  # an object that was given knows nothing of the length
            return optimizer is other or steps == longer
        return optimizer == other and optimizer.same_beginning(steps, longer, taken=taken)

    @abstractmethod
    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        """Returns the most that the source holds in host memory, by component; an estimate while nothing is
        prepared."""

    def host_bytes_beside_accelerator(self, prepared: Prepared | None) -> int:
        """Returns what the source holds besides `host_bytes` where an accelerator leaves it the host's cores."""
        return 0

    def data_advice(self) -> str:
        """Returns what makes `host_bytes` less, for a refusal; empty if nothing does."""
        return ""

    def data_changed(self, prepared: Prepared) -> str | None:
        """Returns a note about data that was touched since it was prepared, or None.

        Raises:
            DataError: It is other data, as far as that can be noticed.
        """
        return None

    def training_data_changed(self, prepared: Prepared) -> str | None:
        """Returns what `data_changed` does, before training, which may read more than an evaluation."""
        return self.data_changed(prepared)

    def without_data(self, prepared: Prepared) -> Self:
        """Returns the recipe of the same model without its data; what was known of the data is in `prepared`."""
        return self

    def imports(self) -> tuple[str, ...]:
        """Returns modules that the source brings into the training process."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A recipe with levers that keep a value, where `plan`, `train` and `loader` take a recipe."""

    recipe: Recipe
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Levers by name, as `pins` of `plimsoll.plan` has them; what that names itself comes before."""


@dataclass(frozen=True, kw_only=True)
class AdamWRecipe(Recipe):
    """A recipe whose optimizer is AdamW, with its settings as options; subclasses have defaults of their own."""

    learning_rate: float = 5e-4
    """Peak learning rate, reached at the end of warm-up."""
    warmup_steps: int = 100
    """Optimizer steps over which the learning rate rises from 0 to its peak."""
    weight_decay: float = 0.01
    """AdamW's weight decay, multiplied by the learning rate; applied to matrices and embeddings, not to norms."""
    beta2: float = 0.999
    """AdamW's decay rate of the second moment."""
    clip_norm: float = 1.0
    """Largest global norm of a step's gradient; larger ones are scaled down to it. 0 for no clipping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.adamw  # its own checks

    @property
    def adamw(self) -> AdamW:
        return AdamW(
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            beta2=self.beta2,
            clip_norm=self.clip_norm or None,
        )

    def optimizer(self, steps: int) -> AdamW:
        return self.adamw
