"""The values and protocols at which the rooms meet. Nothing here imports JAX: recipes import this file.

A recipe says what to learn; a plan says how one step of it is computed; a ledger says what it costs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import jax
    import numpy as np

IGNORE = -1
"""The label of a token that is not counted."""

IGNORED_LABEL = -100
"""The same in puzzles, as their published code has it; on disk it is `ignore_label_id` of the data set."""

COUNTED = "counted"
"""Name of the booleans that say which rows of a validation batch count, where the last batch had to be filled up."""

NORMS_AND_BIASES = frozenset({"scale", "bias", "norm", "eigenvalues"})
"""Words on the path of a leaf that is few and matters much: neither decayed nor kept in fewer bits, stacked or not."""

Params = Any
Carry = Any
Batch = Mapping[str, Any]
Numerics = Literal["exact", "mixed", "compressed"]
Remat = Literal["none", "dots", "block", "offload"]
Precision = Literal["float32", "tf32", "bfloat16", "float16"]
Offload = Literal["none", "frozen", "optimizer", "all"]
OFFLOADED: Mapping[Offload, tuple[str, ...]] = {
    "none": (),
    "frozen": ("frozen",),
    "optimizer": ("optimizer", "ema"),
    "all": ("optimizer", "ema", "frozen"),
}
"""Parts of a state that lie in the host's memory."""
OFFLOAD_WORDS: Mapping[Offload, str] = {
    "none": "nothing",
    "frozen": "frozen weights",
    "optimizer": "optimizer state",
    "all": "optimizer state and frozen weights",
}


class LossSum(NamedTuple):
    """A sum and what it is to be divided by; the step minimises `sum(total) / sum(weight)` over the effective batch.

    Means of means are impossible with it, so micro-batches of unequal token counts do not change the loss.
    """

    total: jax.Array
    weight: jax.Array


Metrics = dict[str, LossSum]


class Task(Protocol):
    """The model and its loss, as pure functions over pytrees."""

    def init(self, key: jax.Array) -> Params:
        """`{"trainable": ..., "frozen": ..., "tables": ...}`; the last two may be absent (see `ReadsTables`)."""
        ...

    def loss(
        self, params: Params, carry: Carry, batch: Batch, keys: jax.Array, *, train: bool
    ) -> tuple[LossSum, Carry, Metrics]:
        """Sums over the micro-batch; `keys` holds one PRNG key per example."""
        ...


@runtime_checkable
class Unstacks(Protocol):
    """A task may have these two besides: the layout in which gradients are summed over micro-batches.

    Where layers are unrolled, the gradient of stacked weights would be put together for every micro-batch, which on a
    CPU costs 10 to 20 % of the step; summed layer by layer, it is put together once.
    """

    def unstack(self, trainable: Any) -> Any:
        """The same weights as `loss` takes them too, in parts."""
        ...

    def stack(self, gradient: Any) -> Any:
        """The other way round, for a gradient."""
        ...


@runtime_checkable
class ReadsInParts(Protocol):
    """A task may have this besides: what of its weights it reads in parts, through `opened` and `rows` of
    `levers.weight_bits` (`levers.remat.scan_blocks` opens what it is given)."""

    @property
    def in_parts(self) -> tuple[str, ...]:
        """Names in `params["trainable"]`; empty where it makes no difference."""
        ...


@runtime_checkable
class Layered(Protocol):
    """A task may have these besides: its loss in parts, for a step that updates a layer as soon as it has its gradient.

    The loss is `leave(outer, block(last, ... block(first, enter(outer, batch))), batch)`: without carry, frozen
    weights or random numbers, since none of the three is given them.
    """

    stacked: str
    """Entry of the trainable dictionary whose leaves have a leading axis of layers; the others are `outer`."""

    def enter(self, outer: Any, batch: Batch) -> jax.Array:
        """What the first layer reads."""
        ...

    def block(self, layer: Any, hidden: jax.Array) -> jax.Array:
        """One layer: its weights, without the axis of layers, and what it reads to what the next one reads."""
        ...

    def leave(self, outer: Any, hidden: jax.Array, batch: Batch) -> tuple[LossSum, Metrics]:
        """What the last layer wrote to the loss, summed over the batch."""
        ...


@runtime_checkable
class Carries(Protocol):
    """A task may have this besides: what its examples carry from step to step. A part of the training state.

    `loss` takes the carry of its micro-batch and returns the next one; every leaf has a leading axis of examples. An
    evaluation has none: `loss` is given None, and returns it.
    """

    def start(self, examples: int) -> Carry:
        """The carry before the first step."""
        ...


@runtime_checkable
class ReadsTables(Protocol):
    """A task may have this besides: `params["tables"]`, by name, of which an example reads one row.

    The step gathers those rows, differentiates for them, and updates them alone (`optimizers/sign_sgd.py`): there is
    no gradient of a table's size. `loss` finds them in `params["rows"]`, by the same names, (examples, columns); where
    they are not there, nobody wants their gradient, and it takes them from the tables.
    """

    def rows(self, carry: Carry, batch: Batch) -> Mapping[str, jax.Array]:
        """Of every table, the int32 row that each example reads."""
        ...


@runtime_checkable
class StoresFrozen(Protocol):
    """A task may have this besides: the form in which its frozen weights are kept in so many bits.

    Otherwise it is that of `levers.frozen.stored`.
    """

    def stored(self, frozen: Any, bits: Literal[32, 16, 8, 4]) -> Any: ...


class Source(Protocol):
    """Where batches come from, with a position that fits into JSON."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...
    def __next__(self) -> dict[str, np.ndarray]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TrainedRun(Protocol):
    """A run that has a checkpoint, as the verbs of a recipe get it (`inference/trained.py` makes one)."""

    run: str
    """The folder, as it was named."""
    recipe: Any
    prepared: Any
    plan: Plan
    step: int
    """Of the checkpoint."""

    def params(self, *, average: bool = True) -> Params:
        """Returns the parameters: the average of the weights where one is kept, unless `average` is False."""
        ...

    def means(self, *, average: bool = True, evaluate: Callable[..., Any] | None = None) -> dict[str, Any]:
        """Returns the means over the held-out set, as the recipe reports them.

        Args:
            average: As in `params`.
            evaluate: From parameters and a batch to sums by name; by default the run's own executable.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How a task is to be computed: the part of a plan that a model sees."""

    precision: Precision = "float32"
    """Arithmetic of the dots; weights and sums are float32 either way. `float16` needs levers/loss_scale.py."""
    remat: Remat = "none"
    loss_chunk: int = 0
    """Tokens whose logits exist at a time; 0 for all of the micro-batch."""
    attention_chunk: int = 0
    """Queries, and keys, of a block of attention's scores; 0 for the fastest form where scores may be held whole."""
    platform: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How weights and optimizer state are kept between steps: the part of a plan that an optimizer sees."""

    optimizer_bits: Literal[32, 8] = 32
    """Of each number an optimizer keeps per weight."""
    weight_bits: Literal[32, 24, 16] = 32
    """24: bfloat16 with a correction of 8 bits; 16: bfloat16, rounded stochastically."""
    frozen_bits: Literal[32, 16, 8, 4] = 32
    """Of weights that are not learned: bfloat16, int8 or NF4."""
    ema_bits: Literal[32, 16] = 32
    """Of the average of the weights, where a recipe keeps one: bfloat16, rounded stochastically."""

    def __post_init__(self) -> None:
        for name, may_be in STORABLE.items():
            if getattr(self, name) not in may_be:
                there = ", ".join(map(str, may_be))
                raise ValueError(f"{name} takes one of {there}, got {getattr(self, name)}")


STORABLE = {
    "optimizer_bits": (32, 8),
    "weight_bits": (32, 24, 16),
    "frozen_bits": (32, 16, 8, 4),
    "ema_bits": (32, 16),
}

WHOLE = Storage()
"""Float32 throughout."""
STORED = tuple(STORABLE)

RUNNING = ("train", "evaluate", "save")
"""Phases whose bytes a plan decides about; to load, to start and to restore costs the same under every plan."""

LEVERS = (
    "micro_batch",
    "remat",
    "loss_chunk",
    "attention_chunk",
    "precision",
    "optimizer_bits",
    "weight_bits",
    "frozen_bits",
    "ema_bits",
    "layerwise",
    "offload",
    "fsdp",
    "prefetch",
    "async_save",
)
"""Fields of a plan that are chosen; the others follow from them and from the recipe."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A value for every lever. Frozen in the run at its start; JSON."""

    chip: str
    micro_batch: int
    accumulation: int
    remat: Remat
    loss_chunk: int
    precision: Precision
    prefetch: int
    async_save: bool
    """Save while training goes on: costs a second copy of the state while it lasts."""
    attention_chunk: int = 0
    optimizer_bits: Literal[32, 8] = 32
    weight_bits: Literal[32, 24, 16] = 32
    frozen_bits: Literal[32, 16, 8, 4] = 32
    ema_bits: Literal[32, 16] = 32
    """These four: see `Storage`."""
    layerwise: Literal[0, 1, 2] = 0
    """Backward passes of a step that updates layer by layer and never holds the whole gradient; 0 for a step that
    does. Two where the recipe clips to a global norm: it must be known before the first update."""
    offload: Offload = "none"
    """What lies in the host's memory beside an accelerator: the optimizer's state, frozen weights, or both."""
    fsdp: int = 1
    """Devices that share one copy of the state; the batch is split over all of them either way."""
    devices: int = 1
    """Over which the batch is split: no lever, it says what the plan was made for."""
    pinned: tuple[str, ...] = ()
    """Levers the user set; the others were found."""

    @property
    def numerics(self) -> Numerics:
        if self.storage != Storage():
            return "compressed"
        return "exact" if self.precision == "float32" else "mixed"

    @property
    def effective_batch(self) -> int:
        return self.micro_batch * self.accumulation

    @property
    def storage(self) -> Storage:
        return Storage(**{name: getattr(self, name) for name in STORED})

    def compute(self, platform: str) -> Compute:
        return Compute(
            precision=self.precision,
            remat=self.remat,
            loss_chunk=self.loss_chunk,
            attention_chunk=self.attention_chunk,
            platform=platform,
        )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"pinned": list(self.pinned)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        return cls(**{**values, "pinned": tuple(values.get("pinned", ()))})


@dataclass(frozen=True, kw_only=True)
class HostLedger:
    """Bytes of one host's process, by component, in its dearest phase."""

    budget_bytes: int | None
    """None where nobody has said how much there is."""
    predicted: Mapping[str, int]
    phase: str

    @property
    def predicted_peak_bytes(self) -> int:
        return sum(self.predicted.values())

    @property
    def fits(self) -> bool:
        return self.budget_bytes is None or self.predicted_peak_bytes <= self.budget_bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget_bytes": self.budget_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "phase": self.phase,
            "components": dict(self.predicted),
        }


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Bytes of one device by component, predicted and, once the run has been seen, measured."""

    budget_bytes: int
    predicted: Mapping[str, int]
    """Component to bytes at the peak; their sum is the predicted peak."""
    phase: str
    """The phase of the run in which the peak falls: start, train, save or evaluate."""
    source: Literal["compiled", "estimated"] = "compiled"
    phases: Mapping[str, int] = field(default_factory=dict)
    """Predicted peak of every phase."""
    host: HostLedger | None = None
    """Of each host beside its accelerators; None where the host is the device."""
    learned: Mapping[str, int] = field(default_factory=dict)
    """What of each phase was learned from earlier runs, and not computed; negative where they had needed less."""
    spare_bytes: int = 0
    """Left free beside the predicted peak: what peaks of one plan differ by from run to run."""

    @property
    def predicted_peak_bytes(self) -> int:
        return sum(self.predicted.values())

    @property
    def needed_bytes(self) -> int:
        """The smallest budget that this plan is chosen for."""
        return self.predicted_peak_bytes + self.spare_bytes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.budget_bytes and (self.host is None or self.host.fits)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A plan that was considered and not chosen, and why."""

    plan: Plan
    peak_bytes: int
    step_seconds: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The same step on another number of devices, by the rates of the chip."""

    devices: int
    sent_bytes: int
    """By each device in a step, to the others."""
    step_seconds: float
    efficiency: float
    """The time of one device over the time of all of them together."""


@dataclass(frozen=True, kw_only=True)
class OtherBudget:
    """The best of the plans that were looked at, had the budget been another."""

    budget_bytes: int
    plan: Plan | None
    """None where none of them fits."""
    peak_bytes: int | None
    step_ratio: float | None
    """Its time per step over the chosen plan's, both by the chip's rates."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A temporary of the compiled step, and where it comes from."""

    bytes: int
    shape: str
    """Like `float32[256,512]`."""
    what: str
    """The operation that makes it, in JAX's words."""
    place: str
    """File and line of the recipe's, the user's or our own source; empty where the compiler made it up."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What the planner found: the plan, the bytes it expects, how long a step takes, and what else it saw."""

    plan: Plan
    ledger: Ledger
    recipe: str
    parameters: int
    step_seconds: float | None
    """Of one optimizer step; None where the chip's rate is unknown."""
    step_seconds_source: Literal["measured", "roofline"]
    step_flops: float
    chip_flops: float
    """Floating-point operations per second of the chip, in the plan's precision."""
    tokens_per_step: int | None
    examples_per_step: int
    compiles: int
    devices: int
    reason: str
    hosts: int = 1
    """Processes that the devices belong to."""
    alternatives: tuple[Alternative, ...] = ()
    other_budgets: tuple[OtherBudget, ...] = ()
    """A smaller one and a larger one."""
    largest_buffers: tuple[Buffer, ...] = ()
    """Of the step's temporaries, the largest; empty where the compiler does not say."""
    left_out: tuple[str, ...] = ()
    """What does not compile here, with the reason: plans like it were not considered."""
    scaling: tuple[Scaled, ...] = ()
    """On 1 to 32 devices, where the chip's links have a rate."""
    margin_bytes: int = 0
    """Of the run's own overruns, in `ledger.learned`."""
    error_band: Mapping[str, int] | None = None
    """Of earlier predictions of this kind (planner/calibration.py); None where none are kept."""
    estimate_band: Mapping[str, Any] | None = None
    """Of a plan that no compiler has seen (planner/estimate_band.py); None of one that was compiled."""
    disk: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the checkpoints that the run keeps (training/disk.py)."""

    def to_dict(self) -> dict[str, Any]:
        """The object `plan --json` prints."""
        return {
            "fits": True,
            "recipe": self.recipe,
            "parameters": self.parameters,
            "budget_bytes": self.ledger.budget_bytes,
            "predicted_peak_bytes": self.ledger.predicted_peak_bytes,
            "spare_bytes": self.ledger.spare_bytes,
            "plan": self.plan.to_dict(),
            "numerics": self.plan.numerics,
            "components": dict(self.ledger.predicted),
            "phase": self.ledger.phase,
            "phases": dict(self.ledger.phases),
            "host": self.ledger.host.to_dict() if self.ledger.host is not None else None,
            "learned": dict(self.ledger.learned),
            "margin_bytes": self.margin_bytes,
            "error_band": None if self.error_band is None else dict(self.error_band),
            "estimate_band": None if self.estimate_band is None else dict(self.estimate_band),
            "disk": dict(self.disk),
            "step_seconds": self.step_seconds,
            "step_seconds_source": self.step_seconds_source,
            "step_flops": self.step_flops,
            "chip_flops": self.chip_flops,
            "tokens_per_step": self.tokens_per_step,
            "examples_per_step": self.examples_per_step,
            "source": self.ledger.source,
            "devices": self.devices,
            "hosts": self.hosts,
            "compiles": self.compiles,
            "reason": self.reason,
            "alternatives": [
                {
                    "plan": other.plan.to_dict(),
                    "predicted_peak_bytes": other.peak_bytes,
                    "step_seconds": other.step_seconds,
                    "reason": other.reason,
                }
                for other in self.alternatives
            ],
            "scaling": [dataclasses.asdict(one) for one in self.scaling],
            "other_budgets": [
                {
                    "budget_bytes": other.budget_bytes,
                    "plan": None if other.plan is None else other.plan.to_dict(),
                    "predicted_peak_bytes": other.peak_bytes,
                    "step_ratio": other.step_ratio,
                }
                for other in self.other_budgets
            ],
            "left_out": list(self.left_out),
            "largest_buffers": [dataclasses.asdict(buffer) for buffer in self.largest_buffers],
        }
