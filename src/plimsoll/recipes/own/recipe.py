"""Recipes of users, for any JAX model: initial parameters, loss, data and optimizer.

    import optax, plimsoll

    recipe = plimsoll.recipe(init=init, loss=loss, data=data, optimizer=optax.adam(1e-3), batch_size=64, steps=500)

in a file my_recipe.py is trained by `plimsoll train my_recipe.py --memory 1GiB`. A class adds options:

    @dataclass(frozen=True, kw_only=True)
    class Spirals(plimsoll.OwnRecipe):
        width: int = 64
        def init(self, key): ...

docs/your-own.md walks through examples in plain JAX, Equinox and Flax.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, facts_of
from plimsoll.levers.registry import LEVERS
from plimsoll.optimizers.foreign import OfLength, optimizer_of
from plimsoll.optimizers.settings import Optimizer
from plimsoll.options import PositiveInt, Share
from plimsoll.recipes.own.user_code import as_recipe_error, failed, file_of, taken
from plimsoll.recipes.parts import Batch, Data, Hints, HostMemory, Length, Model, Needs, Prepared, Reading, Say, Uses
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.specs import ArraySpec
from plimsoll.types import COUNTED, STATE, Compute, Source, Task
from plimsoll.units import MIB

if TYPE_CHECKING:
    import optax

    from plimsoll.data.examples import ExampleSet

NOT_OF_A_LOSS = {"attention_chunk", "layerwise", "ema_bits"}
"""Levers that a user's loss cannot support: they need a built-in model, or a field of the recipe enables them."""
LOADER_BYTES = 10 * MIB
"""Host memory in bytes that Grain's code and thread take from the first batch on: 8.7 to 9.2 MiB with five recipes
(notes, "A recipe of the user's own")."""


@dataclass(frozen=True, kw_only=True)
class OwnRecipe(Length):
    """Base class for your own recipes: subclass it as a frozen dataclass with `init`, `loss`, `data` and `optimizer`.

    Fields of the subclass (numbers, strings, booleans or None) become command-line options. `plimsoll.recipe` builds a
    recipe from functions instead.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Spirals(plimsoll.OwnRecipe):
        ...     width: int = 64
        ...     def init(self, key): return {"w": jax.random.normal(key, (2, self.width))}
        ...     def loss(self, params, batch): return jnp.sum((batch["x"] @ params["w"]) ** 2), len(batch["x"])
        ...     def data(self): return {"x": np.ones((100, 2), np.float32)}
        ...     def optimizer(self, steps): return plimsoll.AdamW(learning_rate=1e-3)
        >>> Spirals(steps=10, width=8).composed().spec.batch(4)
        {'x': ((4, 2), 'float32')}
    """

    group = "recipe"
    supported: ClassVar[tuple[str, ...]] = ()
    """Levers (memory-saving options) that the loss supports, like "precision", "remat" or "loss_chunk"."""
    uses: ClassVar[Uses] = Uses()
    """Uses of the trained model: commands, the best checkpoint, the report."""
    in_no_file: ClassVar[bool] = False
    """True if its code is sent to other processes as a pickle (pickled.py), even if its class is in a file."""
    of_data: ClassVar[str] = ""
    """Hash of the training and validation data; empty if only the pickled functions identify the data."""
    batch_form: ClassVar[Any] = None
    """`functions.BatchForm` of the batch that `plimsoll.plan` was given; None for dicts of arrays."""
    loss_reduction: ClassVar[str] = "sum"
    """Result of the loss: "sum" for a sum and its weight, "mean" for a mean over examples."""

    ema_decay: Share = 0.0
    """Decay per step of an exponential moving average (EMA) of the weights, like 0.999. If set, evaluation and sampling
    use the EMA weights. 0 disables it."""
    norm_group: PositiveInt | None = None
    """Examples that a model with state, like batch norm, normalises together. By default the whole effective batch,
    which then goes through the model at once."""
    shuffle: bool = True
    """Shuffle the examples anew in every epoch. --no-shuffle keeps their order."""

    @abstractmethod
    def init(self, key: Any) -> Any:
        """Returns the initial parameters.

        Args:
            key: JAX random key.

        Returns:
            Any pytree of floating-point arrays, all of which are trained. Or a dict {"trainable": ..., "frozen": ...,
            "state": ...} of pytrees. Only "trainable" is trained; "frozen" and "state" may be left out.
        """

    @abstractmethod
    def loss(self, params: Any, batch: Any) -> Any:
        """Returns the loss of a batch as a sum over its examples and a weight; training minimises total / weight.

        A subclass may add parameters with these names: `keys` (one JAX random key per example), `train` (False during
        evaluation), `compute` (settings of the plan, like `compute.precision` and `compute.remat`), and `state` (that
        `init`, or the loss of the previous step, returned, like the statistics of batch norm).

        Args:
            params: Parameters, as `init` returns them.
            batch: Dict from name to array; the first axis of each array counts the examples.

        Returns:
            `(total, weight)`: two scalars, the summed loss and its divisor, like the number of examples. Or
            `(total, weight, metrics)`, with further such pairs by name, like {"accuracy": (correct, count)}. With
            `state` and in training `(total, weight, metrics, state)`: the loss is called for `norm_group` examples at a
            time, and the next state is the mean of the returned ones.
        """

    @abstractmethod
    def data(self) -> Any:
        """Returns the examples to train on.

        Several processes of a run call it, so open large files here without reading them.

        Returns:
            A dict of arrays whose first axis counts the examples, an object with `len()` and `[index]` whose items are
            dicts of arrays, or a `plimsoll.Hdf5`.
        """

    def validation_data(self) -> Any:
        """Returns the validation examples, in any form that `data` may return; None, the default, if there are none.

        Override it to evaluate during training and by `plimsoll evaluate`.
        """
        return None

    @abstractmethod
    def optimizer(self, steps: int) -> optax.GradientTransformation | Optimizer:
        """Returns the optimizer of a run.

        Args:
            steps: Optimizer steps of the whole run, for a learning-rate schedule.

        Returns:
            An optax transformation, or settings like `plimsoll.AdamW`, whose state can also be stored in 16 or 8 bits.
        """

    @property
    def normalised_together(self) -> int:
        """Number of examples that share statistics, like those of batch norm; 1 if the loss is a sum over examples."""
        if STATE not in taken(self.loss, called=self.called):
            if self.norm_group is not None:
                raise RecipeError(
                    f"--norm-group {self.norm_group} is of a model with state, and the loss of {self.called} takes no"
                    " `state`: leave it out"
                )
            return 1
        group = self.norm_group or self.effective_batch
        if self.effective_batch % group:
            raise RecipeError(
                f"--norm-group {group} does not divide the effective batch of {self.effective_batch} examples"
                " (--batch-size x --gradient-accumulation-steps): choose a divisor of it"
            )
        return group

    @property
    def called(self) -> str:
        """Name of the recipe in messages: its file, like "my_recipe.py", or its class name if it is not in a file."""
        return self._file.name if self._file else type(self).__name__

    @property
    def short_name(self) -> str:
        """Name in tables, and of the default run folder: that of its file, or "functions" if it is not in a file."""
        return self._file.stem if self._file else "functions"

    @property
    def hints(self) -> Hints:
        """Levers that the loss supports, and values worth trying. Override it to name loss chunks, for example."""
        return Hints(levers=self.supported, normalised_together=self.normalised_together)

    def composed(self) -> Recipe:
        """Returns the recipe that is planned and trained: these functions as its model, its data and its optimizer."""
        return Recipe(
            model=Functions(own=self),
            data=Examples(own=self),
            optimizer=OfLength(OptimizerOf(self), ema_decay=self.ema_decay),
            length=self,
            origin=self,
        )

    def require_sound(self) -> None:
        """Checks on the first two training examples that the loss is a sum over examples, and that it is finite.

        It initialises the parameters and runs the model on this process's device. A single example is not checked.

        Raises:
            RecipeError: The loss of both examples differs from the sum of their losses, or loss or gradient is not
                finite.
        """
        examples = self.sets[0]
        if len(examples) < 2:
            return
        from plimsoll.recipes.own.task import require_sound

        batch = next(iter(examples.counted(2)))
        batch.pop(COUNTED)
        require_sound(self, batch)

    @cached_property
    def sets(self) -> tuple[ExampleSet, ExampleSet | None]:
        """Training and validation examples (or None), opened together so that the planner measures their memory."""
        from plimsoll.data.examples import Examples, ExampleSet

        sets: list[ExampleSet] = []
        for name in ("data", "validation_data"):
            with self.guard(name):
                given = getattr(self, name)()
            if given is None and sets:
                return sets[0], None
            if not isinstance(given, ExampleSet):
                given = Examples(
                    given,
                    called=f"the {name.replace('_', ' ')} of {self.called}",
                    failure=partial(failed, self._home),
                )
            sets.append(given)
        examples, held_out = sets
        if held_out.spec != examples.spec:
            raise DataError(
                f"an example of {held_out.called} is {held_out.spec}, and of the training data {examples.spec}: the"
                " loss needs the same names, shapes and types"
            )
        return examples, held_out

    def guard(self, what: str) -> AbstractContextManager[None]:
        """Returns a context manager that turns exceptions raised by the user's own functions into RecipeError.

        Args:
            what: Name of the function that is called in the context, for the message, like "loss".
        """
        return as_recipe_error(f"{what} of {self.called} failed", self._home)

    @property
    def _home(self) -> Path:
        """Folder of the user's code."""
        return self._file.parent if self._file else Path.cwd()

    @property
    def _file(self) -> Path | None:
        """File of the user's code; None for a notebook or a prompt."""
        return file_of(sys.modules.get(type(self).__module__))


@dataclass(frozen=True)
class OptimizerOf:
    """Function from a run's optimizer steps to the optimizer of a user's recipe. Equal recipes give equal objects."""

    own: OwnRecipe

    def __call__(self, steps: int) -> Any:
        with self.own.guard("optimizer"):
            optimizer = self.own.optimizer(steps)
        average = getattr(optimizer, "ema_decay", 0) or self.own.ema_decay
        if average != self.own.ema_decay:
            raise RecipeError(
                f"the optimizer of {self.own.called} has ema_decay={average:g}, and the average of the weights belongs"
                f" to the recipe: give ema_decay={average:g} there"
            )
        return optimizer


@dataclass(frozen=True, kw_only=True)
class Functions(Model):
    """Model part of a user's recipe: its `init` and `loss`."""

    name = "functions"
    reads = ArraySpec

    own: OwnRecipe = field(metadata={"option": False})

    @property
    def uses(self) -> Uses:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.own.uses

    def hints(self, spec: ArraySpec) -> Hints:
        return self.own.hints

    def task(self, spec: ArraySpec, compute: Compute) -> Task:
        from plimsoll.recipes.own.task import GivenTask

        return GivenTask(self.own, compute)


@dataclass(frozen=True, kw_only=True)
class Examples(Data):
    """Data part of a user's recipe."""

    name = "examples"
    gives = ArraySpec
    spec_in_data = True
    no_validation = "its recipe gives none. Add validation_data to it, and train anew"

    own: OwnRecipe = field(metadata={"option": False})

    @property
    def files(self) -> list[Path]:
        """Files that hold examples."""
        from plimsoll.data.hdf5.columns import Hdf5

        return [examples.path for examples in self.own.sets if isinstance(examples, Hdf5)]

    def spec(self, needs: Needs) -> ArraySpec:
        return ArraySpec(arrays=self.own.sets[0].spec, filled=True)

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        """Returns the bytes of prefetched batches, memory-mapped arrays and the chunks of `plimsoll.Hdf5`.

        Ordinary arrays that `data` returns are not included: the planner measures them with the rest of the process.
        """
        examples, held_out = self.own.sets
        held = examples.held_bytes(training=True)
        if held_out is not None:
            held += held_out.held_bytes(training=False)

        # Counts one batch more than for other data: the examples of a batch are in memory before they are stacked.
        return HostMemory(
            bytes=LOADER_BYTES + held + self.in_flight(reading, prefetch + 1),
            advice="a smaller `mix` of plimsoll.Hdf5" if self.files else "",
        )

    def facts(self) -> Facts:
        return facts_of(self.files)

    def prepare(self, reading: Reading, say: Say) -> Prepared:
        examples, held_out = self.own.sets

        # Functions of a notebook were checked in another process: a check here might start JAX on the accelerator.
        if not self.own.in_no_file:
            self.own.require_sound()
        facts = {"description": f"{len(examples):,} examples, {len(held_out or ()):,} for validation"}
        return reading.length.prepared_for(len(examples), data=examples.called, facts=facts)

    def source(self, reading: Reading, *, prefetch: int) -> Source:
        return self.own.sets[0].loader(
            batch_size=reading.batch_size,
            seed=reading.seed,
            shuffle=self.own.shuffle,
            prefetch=prefetch,
        )

    def validation(self, reading: Reading, *, examples: int) -> Iterable[Batch]:
        held_out = self.own.sets[1]
        return () if held_out is None else held_out.counted(examples)


def recipe_of(given: Any) -> Recipe:
    """Returns the given recipe; for an `OwnRecipe`, its `composed` recipe."""
    return given.composed() if isinstance(given, OwnRecipe) else given


def recipe(
    *,
    init: Callable[..., Any],
    loss: Callable[..., Any],
    data: Callable[[], Any],
    optimizer: optax.GradientTransformation | Optimizer | Callable[[int], optax.GradientTransformation | Optimizer],
    validation_data: Callable[[], Any] | None = None,
    supported: Sequence[str] = (),
    **options: Any,
) -> Recipe:
    """Returns a recipe (a training problem) made from your own functions, for any JAX model.

    Args:
        init: Function of a JAX random key that returns the initial parameters: any pytree of arrays.
        loss: Function of parameters and a batch that returns `(total, weight)`: the sum of the loss over the batch's
            examples, and its divisor. See `OwnRecipe.loss`.
        data: Function that returns the examples to train on: a dict of arrays, an object with `len()` and `[index]`
            whose items are dicts of arrays, or a `plimsoll.Hdf5`.
        optimizer: An optax transformation, a `plimsoll.AdamW`, or a function of the number of steps that returns one.
        validation_data: Function that returns the validation examples, like `data`. By default there are none.
        supported: Memory-saving options that your functions support, like "precision", "remat" or "loss_chunk". The
            planner leaves the others off, unless they work with any function. docs/your-own.md lists the names.
        options: Options of the recipe: `batch_size`, `steps` or `epochs`, `seed`, ... The command line overrides them.

    Returns:
        The recipe, which `plimsoll.plan` and `plimsoll.train` take. If it is in a file, the command `plimsoll train
        my_recipe.py` trains it, too.

    Raises:
        RecipeError: An argument is not a function, or an option or a name in `supported` is unknown.

    Example:
        >>> recipe = plimsoll.recipe(
        ...     init=lambda key: {"w": jnp.zeros(3)},
        ...     loss=lambda params, batch: (jnp.sum((batch["x"] @ params["w"] - batch["y"]) ** 2), len(batch["y"])),
        ...     data=lambda: {"x": np.ones((100, 3), np.float32), "y": np.ones(100, np.float32)},
        ...     optimizer=plimsoll.AdamW(learning_rate=1e-2),
        ...     batch_size=10,
        ...     steps=50,
        ... )
        >>> recipe.spec.batch(10)
        {'x': ((10, 3), 'float32'), 'y': ((10,), 'float32')}
    """
    functions = {"init": init, "loss": loss, "data": data}
    if validation_data is not None:
        functions["validation_data"] = validation_data
    module = sys._getframe(1).f_globals["__name__"]  # the caller's module
    return class_of(functions, optimizer, supported, __module__=module)(**options).composed()


def class_of(functions: Mapping[str, Any], optimizer: Any, supported: Sequence[str], **members: Any) -> type[OwnRecipe]:
    """Returns a subclass of `OwnRecipe` with these functions as methods, so replacing fields keeps them.

    Raises:
        RecipeError: An argument is not a function, or a name in `supported` is unknown.
    """
    for name, function in functions.items():
        if not callable(function):
            raise RecipeError(f"plimsoll.recipe: {name} must be a function, got a {type(function).__name__}")
    of_loss = [support.name for lever in LEVERS.values() for support in lever.supports if support.owner == "loss"]
    may_support = [name for name in of_loss if name not in NOT_OF_A_LOSS]
    if unknown := sorted(set(supported) - set(may_support)):
        raise RecipeError(f"plimsoll.recipe: supported may name {', '.join(may_support)}, got {', '.join(unknown)}")

    # `optimizer` is an optimizer, or a function from the number of steps to one.
    is_by_length = isinstance(optimizer_of(optimizer), OfLength)
    make_optimizer: Any = optimizer if is_by_length else lambda _steps: optimizer
    members |= {name: staticmethod(function) for name, function in functions.items()}
    members["optimizer"] = lambda self, steps: make_optimizer(steps)
    members["supported"] = tuple(supported)
    return type("OwnRecipe", (OwnRecipe,), members)
