"""The values and protocols at which the rooms meet. Nothing here imports JAX: recipes import this file.

A recipe says what to learn; a plan says how one step of it is computed; a ledger says what it costs. The last two
stand in `planned.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args, get_type_hints, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    import jax
    import numpy as np

IGNORE = -1
"""The label of a token that is not counted."""

IGNORED_LABEL = -100
"""The same in puzzles, as their published code has it; on disk it is `ignore_label_id` of the data set."""

COUNTED = "counted"
"""Name of the booleans that say which rows of a validation batch count, where the last batch had to be filled up."""

STATE = "state"
"""Name of what a model keeps from step to step besides its weights, like the statistics of batch norm: an entry of the
parameters that no gradient reaches. A loss returns it as the metric of that name: a `LossSum` of a pytree and a number
of groups of examples, whose mean is the next state."""

NORMS_AND_BIASES = frozenset({"scale", "bias", "norm", "eigenvalues"})
"""Words on the path of a leaf that is few and matters much: neither decayed nor kept in fewer bits, stacked or not."""

Params = Any
Carry = Any
Batch = Mapping[str, Any]
Numerics = Literal["exact", "mixed", "compressed"]
Remat = Literal["none", "dots", "block", "offload"]
Precision = Literal["float32", "tf32", "bfloat16", "float16"]
Activations = Literal["float32", "bfloat16"]
Offload = Literal["none", "frozen", "optimizer", "all"]
Passes = Literal[0, 1, 2]
"""Backward passes of a step that updates layer by layer; 0 for a step that holds the whole gradient."""
Norms = Literal["global", "layers"]
OptimizerBits = Literal[32, 16, 8]
WeightBits = Literal[32, 24, 16]
FrozenBits = Literal[32, 16, 8, 4]
EmaBits = Literal[32, 16]
EmbeddingBits = Literal[16, 8, 4]


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
        """Returns `{"trainable": ..., "frozen": ..., "tables": ..., "state": ...}`; all but the first may be absent
        (`ReadsTables`, `STATE`)."""
        ...

    def loss(
        self, params: Params, carry: Carry, batch: Batch, keys: jax.Array, *, train: bool
    ) -> tuple[LossSum, Carry, Metrics]:
        """Returns sums over the micro-batch; `keys` holds one PRNG key per example."""
        ...


@runtime_checkable
class Unrolls(Protocol):
    """A task may have this besides: weights whose gradients are summed over micro-batches layer by layer.

    Where layers are unrolled, the gradient of stacked weights would be put together for every micro-batch, which on a
    CPU costs 10 to 20 % of the step; summed layer by layer, it is put together once.
    """

    unrolled: tuple[str, ...]
    """Path of the stacked layers in `params["trainable"]`; `loss` takes a list of layers there, too. Empty for none."""


@runtime_checkable
class ReadsInParts(Protocol):
    """A task may have this besides: what of its weights it reads in parts, through `opened` and `rows` of
    `levers.weight_bits` (`levers.remat.scan_blocks` opens what it is given)."""

    @property
    def in_parts(self) -> tuple[str, ...]:
        """Names in `params["trainable"]`; empty where it makes no difference."""
        ...


@runtime_checkable
class Stacks(Protocol):
    """A task may have this besides: layers whose weights are stacked along a first axis."""

    stacked: str
    """Entry of the trainable dictionary whose leaves have a leading axis of layers; or where names are paths, as of
    LoRA's adapters, the first part of theirs."""


@runtime_checkable
class Layered(Protocol):
    """A task may have these besides: its loss in parts, for a step that updates a layer as soon as it has its gradient.

    The loss is `leave(outer, x, batch)` of what `block` makes of `enter(outer, batch)`, layer after layer: without
    carry, frozen weights or random numbers, since none of the three is given them.
    """

    stacked: str
    """Entry of the trainable dictionary whose leaves have a leading axis of layers; the others are `outer`."""

    def enter(self, outer: Any, batch: Batch) -> jax.Array:
        """Returns what the first layer reads."""
        ...

    def block(self, layer: Any, hidden: jax.Array, batch: Batch, number: jax.Array) -> jax.Array:
        """Returns what the next layer reads.

        Args:
            layer: Weights of a layer, without the axis of layers.
            hidden: Input of the layer.
            batch: The batch, for what layers read of it besides: positions, documents.
            number: int32 number of the layer, from 0.
        """
        ...

    def leave(self, outer: Any, hidden: jax.Array, batch: Batch) -> tuple[LossSum, Metrics]:
        """Returns the loss of what the last layer wrote, summed over the batch."""
        ...


@runtime_checkable
class Carries(Protocol):
    """A task may have this besides: what its examples carry from step to step. A part of the training state.

    `loss` takes the carry of its micro-batch and returns the next one; every leaf has a leading axis of examples. An
    evaluation has none: `loss` is given None, and returns it.
    """

    def start(self, examples: int) -> Carry:
        """Returns the carry before the first step."""
        ...


@runtime_checkable
class ReadsTables(Protocol):
    """A task may have this besides: `params["tables"]`, by name, of which an example reads one row.

    The step gathers those rows, differentiates for them, and updates them alone (`optimizers/sign_sgd.py`): there is
    no gradient of a table's size. `loss` finds them in `params["rows"]`, by the same names, (examples, columns); where
    they are not there, nobody wants their gradient, and it takes them from the tables.
    """

    def rows(self, carry: Carry, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the int32 row that each example reads, of every table."""
        ...


@runtime_checkable
class StoresFrozen(Protocol):
    """A task may have this besides: the form in which its frozen weights are kept in so many bits.

    Otherwise it is that of `levers.frozen.stored`.
    """

    def stored(self, frozen: Any, bits: Literal[32, 16, 8, 4]) -> Any: ...


class Source(Protocol):
    """Source of batches, with a position that fits into JSON."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...
    def __next__(self) -> dict[str, np.ndarray]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TrainedRun(Protocol):
    """A run that has a checkpoint, as the verbs of a recipe get it (`inference/trained.py` makes one)."""

    run: str
    """The folder, as it was named."""
    path: Path
    """The folder."""
    recipe: Any
    prepared: Any
    plan: Any
    """Its `planned.Plan`, which stands above this file."""
    step: int
    """Of the checkpoint."""

    @property
    def task(self) -> Any:
        """Model and loss, in the arithmetic of the plan."""
        ...

    @property
    def data(self) -> Any:
        """Opened data of the run (`recipes.recipe.Opened`). Raises DataError where it is not the run's any more."""
        ...

    def params(self, *, average: bool = True, given: bool = True) -> Params:
        """Returns the parameters as the loss reads them: the average of the weights where one is kept, unless `average`
        is False.

        Without `given`, frozen weights that the recipe reads from elsewhere are left out.
        """
        ...

    def means(self, *, average: bool = True, evaluate: Callable[..., Any] | None = None) -> dict[str, Any]:
        """Returns the means over the held-out set, as the recipe reports them.

        Args:
            average: As in `params`.
            evaluate: From parameters and a batch to sums by name; by default the run's own executable.
        """
        ...


class Levers(dict[str, Any]):
    """Names of levers to their values. It has a hash, since nobody changes one that was made."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Arithmetic and recomputation of a task: a plan as a model sees it."""

    platform: str = "cpu"
    levers: Levers = Levers()  # noqa: RUF009  (nobody changes it)
    """Levers that are not named are off."""

    def lever(self, name: str, default: Any = None) -> Any:
        """Returns the value of a lever.

        Args:
            name: Of the lever.
            default: Value of a `Compute` that was made by hand and does not name the lever.

        Raises:
            KeyError: The lever is not named, and no default is given.
        """
        return self.levers[name] if default is None else self.levers.get(name, default)

    @property
    def precision(self) -> Precision:
        """Arithmetic of the dots; weights and sums are float32 either way. `float16` needs levers/loss_scale.py."""
        return self.lever("precision", "float32")

    @property
    def activations(self) -> Activations:
        """Type of the residual stream and of what is kept for the backward pass."""
        return self.lever("activations", "float32")

    @property
    def remat(self) -> Remat:
        return self.lever("remat", "none")

    @property
    def loss_chunk(self) -> int:
        """Tokens of each device whose logits exist at a time; 0 for all of the micro-batch."""
        return self.lever("loss_chunk", 0)

    @property
    def attention_chunk(self) -> int:
        """Queries, and keys, of a block of attention's scores; 0 for the fastest form where scores may be whole."""
        return self.lever("attention_chunk", 0)

    @property
    def deterministic(self) -> bool:
        """Whether a GPU's kernels add in one order."""
        return self.lever("deterministic", True)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What the user sets about a step, and no search tries."""

    norms: Norms = "global"
    """Norms of the gradient that a step reports: of the whole, or also of each layer and of each other part."""
    donates: bool = True
    """Whether a step takes the memory of the state before it; --debug-nans keeps both."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Form of weights and optimizer state between steps: the part of a plan that an optimizer sees."""

    optimizer_bits: OptimizerBits = 32
    """Of each number an optimizer keeps per weight."""
    weight_bits: WeightBits = 32
    """24: bfloat16 with a correction of 8 bits; 16: bfloat16, rounded stochastically."""
    frozen_bits: FrozenBits = 32
    """Of weights that are not learned: bfloat16, int8 or NF4."""
    embedding_bits: EmbeddingBits = 16
    """Of a frozen embedding and output layer: int8 or NF4; 16 as `frozen_bits` says, and no fewer."""
    ema_bits: EmaBits = 32
    """Of the average of the weights, where a recipe keeps one: bfloat16, rounded stochastically."""

    @property
    def updates_whole(self) -> bool:
        """True where learned weights and the optimizer's state are float32, so that any optimizer will do."""
        return (self.optimizer_bits, self.weight_bits) == (32, 32)

    def __post_init__(self) -> None:
        for name, may_be in STORABLE.items():
            if getattr(self, name) not in may_be:
                allowed = ", ".join(map(str, may_be))
                raise ValueError(f"{name} takes one of {allowed}, got {getattr(self, name)}")


STORABLE: Mapping[str, tuple[int, ...]] = {name: get_args(hint) for name, hint in get_type_hints(Storage).items()}
"""Number of bits to the values it may have, from the largest."""

WHOLE = Storage()
"""Float32 throughout."""
STORED = tuple(STORABLE)
