"""A training problem, put together from a model, its data, an optimizer, and the length of the run.

    recipe = Recipe(model=Eigen(width=256), data=Text(dataset_id="my-texts/"), optimizer=AdamW())

A recipe says what is trained. A plan decides how a step fits into memory; no option of a recipe does. A recipe
round-trips through JSON, and imports JAX only when its task is made, so that `--help` and error messages come at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.optimizers.foreign import optimizer_of
from plimsoll.optimizers.settings import Optimizer
from plimsoll.options import Named, Options, fields_of, flag_of
from plimsoll.recipes.parts import Batch, Data, Hints, Length, Model, Prepared, Reading, Say
from plimsoll.recipes.registered import names_of, require_fitting
from plimsoll.recipes.specs import Spec
from plimsoll.types import WHOLE, Compute, Source, Storage, Task

if TYPE_CHECKING:
    import optax

HELP = "`plimsoll train RECIPE --help`"
FROM_FILE = "file"
"""`Recipe.kind` of a recipe from a user's file or functions: some part has no registered name."""

KINDS = {
    "decoder+text": "stories",
    "trm+puzzles": "puzzles",
    "eigen+packed": "longcontext",
    "items+interactions": "recommend",
    "pretrained+chat": "finetune",
    "imitator+windows": "control",
}
"""`Recipe.kind` by "MODEL+DATA", for pairs that have a name of their own."""


@dataclass(frozen=True, kw_only=True)
class Recipe(metaclass=Named):
    """Training problem: a model, its data, an optimizer, and the length of the run.

    A model can be combined with any data whose examples it can read. `plimsoll.preset` returns a built-in recipe by
    name, and `plimsoll.recipe` builds one from your own functions.

    Example:
        >>> recipe = plimsoll.preset("code", steps=1_000)
        >>> recipe.effective_batch, recipe.replace(batch_size=8).effective_batch
        (64, 32)
        >>> from plimsoll.recipes.longcontext.model import Eigen
        >>> from plimsoll.recipes.text.data import Text
        >>> recipe = plimsoll.Recipe(model=Eigen(width=256), data=Text(seq_len=64), optimizer=plimsoll.AdamW())
        >>> recipe.kind, recipe.options["seq_len"]
        ('eigen+text', 64)
    """

    model: Model
    """The network and its loss."""
    data: Data
    """Source of the examples."""
    optimizer: Optimizer
    """Settings of the update rule; or any optax transformation, if the recipe is in a file."""
    length: Length = field(default_factory=Length)
    """Examples per step, and the length of the run."""
    origin: Any = None
    """`OwnRecipe` that made the parts, whose fields are then the options; None for other recipes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", optimizer_of(self.optimizer))
        for role, kind in {"model": Model, "data": Data, "length": Length}.items():
            part = getattr(self, role)
            if not isinstance(part, kind):
                got = f"the class {part.__name__}: call it" if isinstance(part, type) else f"a {type(part).__name__}"
                raise RecipeError(f"{role} of a recipe is a part like {kind.__name__}(), got {got}")
        require_fitting(self.model, self.data)
        names = [option.name for part in self.parts.values() for option in fields_of(type(part))]
        for name in names:
            if names.count(name) > 1:
                raise RecipeError(f"{flag_of(name)} is an option of two parts of this recipe: rename one")

    @property
    def parts(self) -> dict[str, Any]:
        """Objects whose fields are the options: model, data, optimizer and length; or the `origin`."""
        if self.origin is not None:
            return {"recipe": self.origin}
        return {"model": self.model, "data": self.data, "optimizer": self.optimizer, "length": self.length}

    @property
    def kind(self) -> str:
        """Name of this pair of model and data, like "stories"; by default "MODEL+DATA", like "eigen+text"."""
        if self.origin is not None:
            return names_of(self.parts)["recipe"] or FROM_FILE
        pair = f"{self.model.name}+{self.data.name}"
        return KINDS.get(pair, pair)

    @property
    def options(self) -> dict[str, Any]:
        """Values of the options of all parts, by name."""
        return {
            option.name: getattr(part, option.name) for part in self.parts.values() for option in fields_of(type(part))
        }

    def replace(self, **options: Any) -> Recipe:
        """Returns the recipe with other values of some options, or with other parts.

        Args:
            options: Values by the names of the options, like `steps=5`; or a part, like `optimizer=AdamW()`.

        Raises:
            RecipeError: The recipe has no such option, or refuses its value.
        """
        # Replaces parts first, then the options of each. `Recipe` refuses an object that is no part.
        parts = self._parts_with(options)
        known: list[str] = []
        for role, part in parts.items():
            names = [option.name for option in fields_of(type(part))] if isinstance(part, Options) else []
            own = {name: options.pop(name) for name in names if name in options}
            parts[role] = dataclasses.replace(part, **own) if own else part
            known += names
        if options:
            name = next(iter(options))
            hint = did_you_mean(name, known) or f"; it has {names_in_words(known, all_of_them=HELP)}"
            raise RecipeError(f"this recipe has no option {name}{hint}")
        return parts["recipe"].composed() if "recipe" in parts else dataclasses.replace(self, **parts)

    def _parts_with(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the parts by role, with those in `options` in place of the old ones, and removes them from `options`.

        `data` may name a part or an option: the value of a part is an `Options` object.
        """
        parts = self.parts
        for role in parts.keys() & options.keys():
            if isinstance(options[role], Options) or role not in self.options:
                parts[role] = options.pop(role)
        if "optimizer" in parts:
            parts["optimizer"] = optimizer_of(parts["optimizer"])
        return parts

    @property
    def effective_batch(self) -> int:
        """Examples per optimizer step, over all devices: `batch_size` times `gradient_accumulation_steps`.

        `batch_size` is a total over all devices, too. The planner splits this number into micro-batches.
        """
        return self.length.effective_batch

    @cached_property
    def spec(self) -> Spec:
        """Spec of the examples: their shapes and dtypes."""
        return self.data.spec(self.model.needs())

    @cached_property
    def hints(self) -> Hints:
        """Levers that model and optimizer support, and values worth trying."""
        hints = self.model.hints(self.spec)
        of_optimizer = [name for name in self.optimizer.levers if name != "layerwise"]  # the model must support it, too
        of_average = ["ema_bits"] if self.optimizer.ema_decay else []
        levers = (*hints.levers, *of_optimizer, *of_average)
        layerwise = 0
        if {"layerwise", "remat"} <= {*levers} and "layerwise" in self.optimizer.levers:
            layerwise = 2 if self.optimizer.needs_norm else 1
        return dataclasses.replace(
            hints,
            levers=levers,
            layerwise=layerwise,
            loss_rows=self.spec.tokens if hints.loss_rows is None else hints.loss_rows,
        )

    def task(self, compute: Compute) -> Task:
        """Returns the model and its loss as pure functions of parameters and a batch.

        Args:
            compute: Settings of the plan that the model follows, like `compute.precision` and `compute.remat`.

        Returns:
            A `types.Task`: an object with the methods `init` (initial parameters) and `loss`.
        """
        return self.model.task(self.spec, compute)

    def update_rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        """Returns the optimizer as an optax transformation, for weights and optimizer state in a given precision.

        If `ema_decay` is set, it also updates an exponential moving average (EMA) of the weights. If the model has
        tables, it also updates the table rows that a step reads.

        Args:
            steps: Optimizer steps of the whole run, for the learning-rate schedule.
            storage: Bits per stored number of the weights, the optimizer state and the EMA, like
                `types.Storage(optimizer_bits=8)`. By default all are float32.

        Raises:
            RecipeError: `storage` has fewer than 32 bits for weights or optimizer state, which the optimizer does not
                support.
        """
        if not storage.updates_whole and "optimizer_bits" not in self.optimizer.levers:
            raise RecipeError(
                f"--optimizer-bits {storage.optimizer_bits} --weight-bits {storage.weight_bits} need an optimizer that"
                " stores fewer bits, and that of this recipe does not: take plimsoll.AdamW(...), or leave both at 32"
            )
        from plimsoll.levers.ema import Average
        from plimsoll.optimizers.in_place import in_place

        average = None
        if self.optimizer.ema_decay:
            average = Average(self.optimizer.ema_decay, storage.ema_bits)
        rule = self.optimizer.rule(steps, storage)
        return in_place(rule, average=average, row_rule=self.model.row_rule(self.optimizer, steps))

    @property
    def reading(self) -> Reading:
        """Settings by which a run reads its data."""
        return Reading(needs=self.model.needs(), length=self.length)

    def open(self, folder: Path) -> Opened:
        """Opens the data of a run in `folder`. Raises RecipeError if no data is named."""
        self.data.refuse_missing()
        return Opened(self, dataclasses.replace(self.reading, folder=folder))


def with_spec(recipe: Recipe, spec: Spec) -> Recipe:
    """Returns the recipe with this spec of its examples, so that a trained model can be built without the data."""
    copy = dataclasses.replace(recipe)
    object.__setattr__(copy, "spec", spec)  # sets the cached property of a frozen dataclass
    return copy


@dataclass(frozen=True)
class Opened:
    """Data and initial weights of a run, opened in its folder."""

    recipe: Recipe
    reading: Reading

    def prepare(self, say: Say) -> Prepared:
        """Does the one-time work before training, and returns the content of data.json.

        Args:
            say: Function that is called with progress messages, each a string.

        Raises:
            DataError: The data cannot be read, or has too few examples.
        """
        # Checks weights first: tokenising text can take minutes.
        recipe = self.recipe
        weights = recipe.model.check(recipe.spec, say)

        # Counts and tokenises the data, and holds a part out for validation.
        files = recipe.data.facts()
        prepared = recipe.data.prepare(self.reading, say)
        if prepared.steps_per_epoch is not None:
            epochs = prepared.steps / prepared.steps_per_epoch
            say(f"data: {prepared.facts['description']}; {prepared.steps:,} steps are {epochs:.3g} epochs")
        return dataclasses.replace(prepared, spec=recipe.spec, weights=weights, files=files.to_json())

    def require_same(self, prepared: Prepared, *, training: bool) -> None:
        """Raises DataError if weights or data have changed since the run began, as far as a partial read shows.

        Args:
            prepared: Result of `prepare` when the run began.
            training: True to check files that only training reads, too.
        """
        self.recipe.model.require_same(prepared.weights)
        self.recipe.data.require_same(prepared, self.reading, training=training)

    def load(self, params: Any) -> Any:
        """Returns `params` with the weights that a run begins with (`Model.load`)."""
        return self.recipe.model.load(params, self.recipe.spec, self.recipe.data)

    def load_frozen(self, frozen: Any) -> Any:
        """Returns `frozen` with the weights that checkpoints leave out (`Model.load_frozen`)."""
        return self.recipe.model.load_frozen(frozen, self.recipe.spec, self.recipe.data)

    def source(self, *, prefetch: int) -> Source:
        """Returns an endless iterator over training batches, starting with the first one (`Data.source`)."""
        return self.recipe.data.source(self.reading, prefetch=prefetch)

    def validation(self, *, examples: int) -> Iterable[Batch]:
        """Returns the validation batches in order, of `examples` each; empty if there is no validation set."""
        return self.recipe.data.validation(self.reading, examples=examples)


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """Recipe together with fixed memory-saving options; `plan`, `train` and `loader` take it in place of a recipe."""

    recipe: Recipe
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Memory-saving options ("levers") with the values that the planner must keep, by name. The argument `pins` of
    `plimsoll.plan` and `plimsoll.train` takes precedence over these."""
