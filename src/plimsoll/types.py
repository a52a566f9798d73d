"""Types and protocols that all packages of plimsoll share. Imports no JAX, because recipes import this file.

A recipe defines the training problem. A plan defines how one step is computed. A ledger lists how many bytes that
takes. Plans and ledgers are in `planned.py`.
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
"""Label of a token that the loss does not count."""

IGNORED_LABEL = -100
"""Label of a puzzle's cell that the loss does not count, as in the code of Tiny Recursive Models
(https://arxiv.org/abs/2510.04871). On disk: `ignore_label_id`."""

COUNTED = "counted"
"""Key of booleans in a validation batch: True for an example that counts, False for padding of an incomplete batch."""

STATE = "state"
"""Key of a model's state besides its weights, like the statistics of batch norm.

The state is an entry of the parameters that no gradient reaches. A loss returns a metric with this key: a `LossSum` of
states (a pytree) summed over groups of examples, and the number of groups. The mean over the groups is the next
state."""

NORMS_AND_BIASES = frozenset({"scale", "bias", "norm", "eigenvalues"})
"""Words in the paths of small parameters, like a norm's scale, that get neither weight decay nor fewer stored bits."""

Params = Any
Carry = Any
Batch = Mapping[str, Any]
Numerics = Literal["exact", "mixed", "compressed"]
Remat = Literal["none", "dots", "block", "offload"]
Precision = Literal["float32", "tf32", "bfloat16", "float16"]
Activations = Literal["float32", "bfloat16"]
Offload = Literal["none", "frozen", "optimizer", "all"]
Passes = Literal[0, 1, 2]
"""Number of backward passes in a step that updates layer by layer; 0 for a step that holds the whole gradient."""
Norms = Literal["global", "layers"]
OptimizerBits = Literal[32, 16, 8]
WeightBits = Literal[32, 24, 16]
FrozenBits = Literal[32, 16, 8, 4]
EmaBits = Literal[32, 16]
EmbeddingBits = Literal[16, 8, 4]


class LossSum(NamedTuple):
    """A sum and its divisor. A step minimises `sum(total) / sum(weight)` over the effective batch.

    The division happens once, after all sums. So micro-batches with unequal token counts do not change the loss.
    """

    total: jax.Array
    weight: jax.Array


Metrics = dict[str, LossSum]


class Task(Protocol):
    """A model and its loss, as pure functions over pytrees."""

    def init(self, key: jax.Array) -> Params:
        """Returns the initial parameters, `{"trainable": ..., "frozen": ..., "tables": ..., "state": ...}`.

        All entries but the first may be absent. `ReadsTables` describes the tables, `STATE` the state.
        """
        ...

    def loss(
        self, params: Params, carry: Carry, batch: Batch, keys: jax.Array, *, train: bool
    ) -> tuple[LossSum, Carry, Metrics]:
        """Returns the loss, the next carry and the metrics, summed over the micro-batch.

        `keys` holds one PRNG key per example.
        """
        ...


@runtime_checkable
class Unrolls(Protocol):
    """Optional part of a task (model and loss): stacked weights whose micro-batch gradients are summed by layer.

    Unrolled layers have one gradient each. Stacking these for every micro-batch takes 10 to 20 % of a step on a CPU.
    Summed layer by layer, they are stacked once.
    """

    unrolled: tuple[str, ...]
    """Path of the stacked layers in `params["trainable"]`, as keys; () for none. `loss` also takes them as a list."""


@runtime_checkable
class ReadsInParts(Protocol):
    """Optional part of a task (model and loss): weights in fewer bits, which the loss decodes in parts.

    `opened` and `rows` of `levers.weight_bits` decode them. `levers.remat.scan_blocks` decodes the weights of layers.
    """

    @property
    def in_parts(self) -> tuple[str, ...]:
        """Names of the weights in `params["trainable"]` that the loss decodes in parts; empty for none."""
        ...


@runtime_checkable
class Stacks(Protocol):
    """Optional part of a task (model and loss): layers whose weights are stacked along a leading axis."""

    stacked: str
    """Key in `params["trainable"]` of the stacked layers, whose arrays have a leading axis of layers. With LoRA, keys
    are paths of adapted weights, and this is the first part of the paths."""


@runtime_checkable
class Layered(Protocol):
    """Optional part of a task (model and loss): the loss in three parts, for a step that updates layer by layer.

    Each layer is updated once its gradient is ready. `enter` computes the first layer's input, `block` is called for
    each layer, and `leave` computes the loss. None of the three receives a carry, frozen weights or random numbers.
    """

    stacked: str
    """Key in `params["trainable"]` of the layers, whose arrays have a leading axis of layers. `outer` has all else."""

    def enter(self, outer: Any, batch: Batch) -> jax.Array:
        """Returns the input of the first layer."""
        ...

    def block(self, layer: Any, hidden: jax.Array, batch: Batch, number: jax.Array) -> jax.Array:
        """Returns the output of a layer, which is the input of the next layer.

        Args:
            layer: Weights of the layer, without the axis of layers.
            hidden: Input of the layer.
            batch: The batch, for layers that read more of it, like positions and documents.
            number: int32 index of the layer, from 0.
        """
        ...

    def leave(self, outer: Any, hidden: jax.Array, batch: Batch) -> tuple[LossSum, Metrics]:
        """Returns the loss and the metrics of the last layer's output, summed over the batch."""
        ...


@runtime_checkable
class Carries(Protocol):
    """Optional part of a task (model and loss): a carry, which is state of each example that lasts from step to step.

    The carry belongs to the training state. `loss` takes the carry of a micro-batch and returns the next carry. Every
    leaf has a leading axis of examples. In an evaluation the carry is None, before and after.
    """

    def start(self, examples: int) -> Carry:
        """Returns the carry before the first step."""
        ...


@runtime_checkable
class ReadsTables(Protocol):
    """Optional part of a task (model and loss): tables in `params["tables"]`. Each example reads a row of each.

    The step gathers these rows, and computes gradients and updates for them alone (`optimizers/sign_sgd.py`). So no
    gradient has the size of a table. `loss` reads the rows, shaped (examples, columns), from `params["rows"]`, by the
    names of the tables. If `params` has no "rows", no gradient is needed, and `loss` reads the tables themselves.
    """

    def rows(self, carry: Carry, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns, by the name of each table, the int32 index of the row that each example reads."""
        ...


@runtime_checkable
class StoresFrozen(Protocol):
    """Optional part of a task (model and loss): a format of stored frozen weights. Default: `levers.frozen.stored`."""

    def stored(self, frozen: Any, bits: Literal[32, 16, 8, 4]) -> Any:
        """Returns the frozen weights, stored in `bits` bits per weight."""
        ...


class Source(Protocol):
    """Iterator over batches that can save its position as JSON, and restore it."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...
    def __next__(self) -> dict[str, np.ndarray]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TrainedRun(Protocol):
    """A run with a checkpoint, passed to commands that use a trained model. `inference/trained.py` implements it."""

    run: str
    """Folder of the run, as the user named it."""
    path: Path
    """Path of the run's folder."""
    recipe: Any
    prepared: Any
    plan: Any
    """Plan of the run, a `planned.Plan`. That type cannot be imported here, because planned.py imports this file."""
    step: int
    """Optimizer step of the checkpoint."""

    @property
    def task(self) -> Any:
        """Model and loss, with the numerics of the run's plan."""
        ...

    @property
    def data(self) -> Any:
        """Opened data of the run (`recipes.recipe.Opened`). Raises DataError if the data has changed since training."""
        ...

    def params(self, *, average: bool = True, given: bool = True) -> Params:
        """Returns the parameters as the loss reads them.

        Args:
            average: Whether to return the moving average of the weights (EMA), if the run keeps one.
            given: Whether to include frozen weights that the recipe reads from other files.
        """
        ...

    def means(self, *, average: bool = True, evaluate: Callable[..., Any] | None = None) -> dict[str, Any]:
        """Returns the mean metrics over the validation set, as the recipe reports them.

        Args:
            average: Whether to evaluate the average of the weights (EMA), if the run keeps one.
            evaluate: Function from parameters and a batch to sums of metrics by name; by default the run's compiled
                evaluation.
        """
        ...


class Levers(dict[str, Any]):
    """Dict from the names of levers (memory settings) to their values. It is hashable, so it must not be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The part of a plan that a model reads: platform, precision, rematerialisation and other memory settings."""

    platform: str = "cpu"
    levers: Levers = Levers()  # noqa: RUF009  (nobody changes it)
    """Maps the names of levers (memory settings) to values. The properties have defaults for names that are absent."""

    def lever(self, name: str, default: Any = None) -> Any:
        """Returns the value of a lever.

        Args:
            name: Name of the lever.
            default: Value for a lever that is not named, as in a `Compute` that was made by hand.

        Raises:
            KeyError: The lever is not named, and no default is given.
        """
        return self.levers[name] if default is None else self.levers.get(name, default)

    @property
    def precision(self) -> Precision:
        """Arithmetic of matmuls, whose sums are always float32. `float16` needs loss scaling (levers/loss_scale.py)."""
        return self.lever("precision", "float32")

    @property
    def activations(self) -> Activations:
        """Data type of the residual stream, and of activations that are stored for the backward pass."""
        return self.lever("activations", "float32")

    @property
    def remat(self) -> Remat:
        return self.lever("remat", "none")

    @property
    def loss_chunk(self) -> int:
        """Number of tokens per device whose logits are in memory at a time; 0 for all tokens of the micro-batch."""
        return self.lever("loss_chunk", 0)

    @property
    def attention_chunk(self) -> int:
        """Rows and columns of a block of attention scores; 0 for the fastest attention, which may hold all scores."""
        return self.lever("attention_chunk", 0)

    @property
    def deterministic(self) -> bool:
        """Whether a GPU adds in a fixed order, so that results are the same to the bit."""
        return self.lever("deterministic", True)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a training step that only the user sets. The search for a plan does not vary them."""

    norms: Norms = "global"
    """Gradient norms that a step reports: "global" for the whole gradient, "layers" also for layers and other parts."""
    donates: bool = True
    """Whether a step donates the old state's memory to the new state. With --debug-nans both states are kept."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Bits per stored number of weights and optimizer state: the part of a plan that an optimizer reads."""

    optimizer_bits: OptimizerBits = 32
    """Bits of each number in the optimizer's state, like a moment."""
    weight_bits: WeightBits = 32
    """Bits of each trainable weight. 24: bfloat16 with an 8-bit correction. 16: bfloat16, rounded stochastically."""
    frozen_bits: FrozenBits = 32
    """Bits of each frozen weight. 16: bfloat16. 8: int8. 4: NF4."""
    embedding_bits: EmbeddingBits = 16
    """Bits of a frozen embedding and output layer. 16: like `frozen_bits`, but at least 16. 8: int8. 4: NF4."""
    ema_bits: EmaBits = 32
    """Bits of the average of the weights (EMA). 16: bfloat16, rounded stochastically."""

    @property
    def updates_whole(self) -> bool:
        """True if trainable weights and optimizer state are float32, so that any optimizer works."""
        return (self.optimizer_bits, self.weight_bits) == (32, 32)

    def __post_init__(self) -> None:
        for name, may_be in STORABLE.items():
            if getattr(self, name) not in may_be:
                allowed = ", ".join(map(str, may_be))
                raise ValueError(f"{name} takes one of {allowed}, got {getattr(self, name)}")


STORABLE: Mapping[str, tuple[int, ...]] = {name: get_args(hint) for name, hint in get_type_hints(Storage).items()}
"""Maps fields of `Storage` to their allowed bits, largest first."""

WHOLE = Storage()
"""Storage of everything in float32."""
STORED = tuple(STORABLE)
