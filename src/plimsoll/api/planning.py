"""`plimsoll.plan`: the plan of a recipe, or of a user's own functions, as an object that answers further questions.

A plan of a loss gives back a step for a loop of one's own, or trains in a process of its own. Nothing here imports JAX
where a recipe is planned; where functions are, they are traced in this process, which starts no device.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload

from plimsoll.api import compare, launch
from plimsoll.api.keywords import options_of, read_request, require_options
from plimsoll.api.notebook import ShownPlan
from plimsoll.api.plan import UNKNOWN_STEPS, Say, printing
from plimsoll.api.plan import plan as plan_recipe
from plimsoll.api.run import Run
from plimsoll.errors import DataError, RecipeError, as_paragraph, unknown_attribute
from plimsoll.files.bucket import is_address
from plimsoll.files.run_folder import RunFolder
from plimsoll.planner import chips
from plimsoll.processes.request import ask
from plimsoll.recipes.flat import giving_way, overridden
from plimsoll.recipes.own.recipe import OwnRecipe, recipe_of
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.recipes.saved import to_dict
from plimsoll.report.compared import ComparedChip, compared_table

if TYPE_CHECKING:
    from plimsoll.engine.own_loop import OwnLoop
    from plimsoll.recipes.own.functions import Given, Reduction

OF_TRAINING = ("memory", "chip", "mesh", "numerics", "within", "pins")
"""Options of a plan that training by it has, too."""
OF_ONE_PLAN = ("chip", "card", "memory", "measure", "largest", "smallest", "prepared", "host_memory")
"""Options of a plan that do not hold for the plans of other chips."""


class Comparison(list[ComparedChip]):
    """List of chips, each with its plan or the reason why there is none. Prints as a table."""

    def __repr__(self) -> str:
        return compared_table(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class RecipePlan(ShownPlan):
    """Plan that `plimsoll.plan` returns for a recipe: how a training step is computed within a memory budget.

    It prints as a table, and is not meant to be constructed by hand. `fits` says whether the predicted peak,
    `peak_bytes`, is within the budget. `step_seconds` are the predicted seconds per optimizer step. `levers` has the
    value of each memory-saving option by name, and `ledger` the predicted bytes by part.

    Example:
        >>> plan = plimsoll.plan("code", memory="768MiB")  # doctest: +SKIP
        >>> plan.fits, plan.peak_bytes, plan.step_seconds, plan.levers["micro_batch"]  # doctest: +SKIP
        >>> plan.largest("seq_len")  # doctest: +SKIP
    """

    of: Recipe = field(compare=False)
    """The recipe that was planned."""
    options: Mapping[str, Any] = field(compare=False)
    """Options of `plimsoll.plan` that it was planned with."""
    by_name: bool = field(compare=False, default=False)
    """Whether the recipe was named as a preset, so that `largest` may reset options that conflict with its own."""

    def largest(self, option: str, **options: Any) -> LargestValue[Self]:
        """Returns the largest value of an option that fits into memory, with its plan.

        Args:
            option: "batch_size", "seq_len", "lora_rank" or "target_params", if the recipe has it.
            options: Options of `plimsoll.plan` that differ from those of this plan, like `memory="12GiB"`.

        Returns:
            An integer. Its attribute `plan` is the plan with that value, whose `largest_found` says how it was found.

        Raises:
            BudgetError: Not even the smallest value fits.
            RecipeError: The recipe has no such option.

        Example:
            >>> rows = plan.largest("batch_size")
            >>> print(rows, rows.plan)
        """
        how = {name: value for name, value in self.options.items() if name not in ("measure", "smallest")}
        recipe = _without_what_gives_way(self.of, option) if self.by_name else self.of
        return LargestValue(_planned(self, recipe, {**how, **options, "largest": option}))

    def compare(self, *others: str, prices: Mapping[str, float] | None = None, **options: Any) -> Comparison:
        """Plans the same recipe for other chips, each with all of its memory, and returns a table that compares them.

        Args:
            others: Names of chips, as `plimsoll chips` lists them.
            prices: Price per hour by name of the chip, to compare costs, like {"h100": 2.5}.
            options: Further options of `plimsoll.plan`. `memory` is then the budget on each of the chips.

        Returns:
            A list with this plan first, which prints as a table.

        Raises:
            RecipeError: A name is not that of a chip.

        Example:
            >>> plan.compare("rtx4090", "tpu-v5e-8")
        """
        if not others:
            raise RecipeError('compare needs chips to compare with, like plan.compare("rtx4090", "tpu-v5e-8")')
        how = {name: value for name, value in self.options.items() if name not in OF_ONE_PLAN}
        require_options(options, ["prices", *options_of(plan_recipe)], verb="a plan's compare")
        how: dict[str, Any] = {"say": printing(quiet=True), **how, "name": self.recipe, **options}
        rows = compare.compared(self.of, others, prices=prices or {}, **how)
        chip = self.plan.chip
        own = ComparedChip(
            chip=chip,
            rate_unit=self.of.spec.rate_unit,
            planned=self,
            price_per_hour=(prices or {}).get(chip),
        )
        return Comparison([own, *rows])

    if not TYPE_CHECKING:  # to a type checker a plan has its attributes and nothing else

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if name in ("train", "start", "step"):  # which the plan of a loss has
                message = f"the plan of a recipe has no {name!r}: plimsoll.train(recipe, memory=...) trains the recipe"
                raise as_paragraph(AttributeError(message))
            raise unknown_attribute("a plan", name, dir(self))


SomePlan = TypeVar("SomePlan", bound=RecipePlan)


class LargestValue(int, Generic[SomePlan]):
    """Largest value of an option that fits into memory: a number, beside its plan."""

    plan: SomePlan
    """Plan with that value."""

    def __new__(cls, plan: SomePlan) -> Self:
        assert plan.largest_found is not None
        value = super().__new__(cls, plan.largest_found.value)
        value.plan = plan
        return value


@dataclass(frozen=True, kw_only=True, repr=False)
class FunctionPlan(RecipePlan):
    """Plan of your own loss function: trains in a separate process, or returns the step for your own training loop.

    Example:
        >>> plan = plimsoll.plan(loss, params, batch, optimizer=optax.adamw(3e-4), memory="8GiB")  # doctest: +SKIP
        >>> run = plan.train(init, data, steps=1000, run="runs/mine", patience=3)  # doctest: +SKIP
        >>> state, step = plan.start(init), plan.step  # doctest: +SKIP
        >>> state, metrics = step(state, batch)  # doctest: +SKIP
    """

    given: Given = field(compare=False)
    """The functions and shapes that were planned for."""

    def start(self, init: Callable[[Any], Any], *, seed: int | None = None) -> Any:
        """Returns the initial training state (parameters, optimizer state, step, random key) on this process's device.

        Args:
            init: Function of a JAX random key that returns the parameters.
            seed: Seed of the random key. By default the seed that was planned with, 42 unless you set it.

        Raises:
            RecipeError: `init` returns other shapes than were planned for, or JAX runs on another kind of chip here.
        """
        return self._loop.start(self.given.recipe(init), self.of.length.seed if seed is None else seed)

    @property
    def step(self) -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
        """Training step for your own loop: `state, metrics = step(state, batch)`.

        It is jitted, accumulates gradients over micro-batches as planned, and donates the state, so do not use the old
        one again. `metrics` is a dict of scalars, like {"loss": ...}. A batch of another shape raises an error.

        Raises:
            RecipeError: JAX runs on another kind of chip here.
        """
        return self._loop.step

    def params(self, state: Any) -> Any:
        """Returns the parameters, as the loss reads them, from a training state.

        Args:
            state: State that `start` or `step` returned.
        """
        return self._loop.params(state)

    def train(
        self,
        init: Callable[[Any], Any],
        data: Any,
        *,
        steps: int | None = None,
        run: str | os.PathLike[str] | None = None,
        validation_data: Any = None,
        **options: Any,
    ) -> Run:
        """Trains within the budget, in a separate process. If the run exists, continues from its last checkpoint.

        It plans again first, since this plan did not know `init` and the data.

        Args:
            init: Function of a JAX random key that returns the parameters.
            data: Arrays in the same pytree as the batch, whose first axis counts all examples; an object with `len()`
                and `[index]`; or a function that returns one of these. It is shuffled anew in each epoch.
            steps: Optimizer steps of the whole run. Its length can also be given as `epochs`.
            run: Folder of the run, for checkpoints and logs. By default runs/NAME.
            validation_data: Examples that are never trained on, in the form of `data`. By default there are none.
            options: Options of `plimsoll.train`: `max_steps`, `patience`, `log_every`, `eval_every`, `on_log`, ...

        Returns:
            The run, with metrics, parameters and checkpoints.

        Raises:
            RecipeError: The loss is not a sum (or mean) over examples, or the run has other functions or data.
            BudgetError: With the data, no plan fits the memory.
            PlimsollError: The request is invalid, or the training process fails. Saved checkpoints stay intact.
            KeyboardInterrupt: Training was interrupted. It has saved a checkpoint, and the same call continues.
        """
        if data is None:
            raise DataError("train needs examples, and data is None: give arrays in the pytree of the batch")
        if validation_data is None and options.get("patience") is not None:
            raise RecipeError("patience counts evaluations, and there is nothing to evaluate on: give validation_data=")
        length = {"steps": steps, "epochs": options.pop("epochs", None)}
        length = {name: value for name, value in length.items() if value is not None}
        recipe = self.given.recipe(init, data, validation_data, **length)
        if recipe.length.steps is None and recipe.length.epochs is None:
            raise RecipeError("nothing says how long to train: give train steps=, or epochs=")
        place = os.fspath(run) if run else f"runs/{self.recipe}"
        if is_address(place) or not RunFolder(place).has("plan.json"):
            ask("require_sound", {"recipe": to_dict(recipe)})
        how: dict[str, Any] = {name: self.options[name] for name in OF_TRAINING if name in self.options}
        how |= {"name": self.recipe, **options}
        return launch.train(recipe, run=place, **how)

    @cached_property
    def _loop(self) -> OwnLoop:
        from plimsoll.engine.own_loop import OwnLoop

        steps = self.of.length.steps
        if steps is None and self.of.optimizer.schedule(UNKNOWN_STEPS) is not None:
            raise RecipeError(
                "plimsoll.AdamW has a schedule over the whole run: say how long it is, plimsoll.plan(..., steps=1000)"
            )
        platform = chips.chip(self.plan.chip).platform
        return OwnLoop(self.of, self.plan, self.given.form, platform=platform, steps=steps or UNKNOWN_STEPS)


@overload
def plan(
    recipe: Recipe | Pinned | str,
    *,
    memory: str | float | None = None,
    chip: str | None = None,
    numerics: str = "mixed",
    pins: Mapping[str, Any] | None = None,
    name: str | None = None,
    say: Say = ...,
    **options: Any,
) -> RecipePlan: ...


@overload
def plan(
    recipe: Callable[..., Any],
    params: Any,
    batch: Any,
    *,
    optimizer: Any,
    reduction: Reduction = "sum",
    memory: str | float | None = None,
    chip: str | None = None,
    numerics: str = "mixed",
    pins: Mapping[str, Any] | None = None,
    name: str | None = None,
    say: Say = ...,
    **options: Any,
) -> FunctionPlan: ...


def plan(
    recipe: Recipe | Pinned | str | Callable[..., Any],
    params: Any = None,
    batch: Any = None,
    *,
    optimizer: Any = None,
    reduction: Reduction = "sum",
    memory: str | float | None = None,
    chip: str | None = None,
    numerics: str = "mixed",
    pins: Mapping[str, Any] | None = None,
    name: str | None = None,
    say: Say = lambda text: None,
    **options: Any,
) -> RecipePlan:
    """Finds the fastest way to train a recipe, or your own loss function, within a memory budget.

    It predicts the peak memory and speed of many plans, which differ in micro-batch size, rematerialisation, precision
    and other options. Nothing is allocated on a device, and the chip need not be in this machine.

    Args:
        recipe: A recipe (training problem), the name of a preset like "code", or the path of a Python file with a
            recipe. Or a loss function `loss(params, batch)`, described by the next four arguments.
        params: The loss function's parameters or their shapes, like `jax.eval_shape(init, jax.random.key(0))`.
        batch: The loss function's batch for one optimizer step: a pytree of arrays or shapes, whose first axis counts
            the examples.
        optimizer: Optimizer of the loss function: an optax transformation, or `plimsoll.AdamW(...)`, whose state can
            also be stored in 16 or 8 bits.
        reduction: "sum" if the loss function returns (sum over the examples, weight to divide by); "mean" if it returns
            the mean over the examples.
        memory: Memory budget per device: bytes, or text like "8GiB". By default the free memory of this machine's chip,
            or all memory of a chip that is not here.
        chip: Name of the chip to plan for, as `plimsoll chips` lists them. By default this machine's GPU or TPU, else
            its CPU.
        numerics: How far a plan may change the arithmetic. "exact": float32 throughout. "mixed": matrix products in
            bfloat16. "compressed": also fewer bits for weights and optimizer state.
        pins: Memory-saving options ("levers") to fix, by name, like {"micro_batch": 8}. The planner chooses the rest.
        name: Name of the recipe in messages and in the printed table.
        say: Function that is called with progress messages, each a string. By default they are dropped.
        options: Fields of the recipe (`steps`, `batch_size`, ...), and `host_memory`, `mesh`, `measure` and `within` as
            `plimsoll plan --help` describes them. `smallest=True` finds the plan that needs least memory, and
            `largest="seq_len"` the largest value of an option. A loss function also has `supported`, as in
            `plimsoll.recipe`.

    Returns:
        The plan, which prints as a table. Among its attributes are `peak_bytes`, `step_seconds` and `levers` (a value
        for each memory-saving option). The plan of a loss function also has `train`, `start` and `step`.

    Raises:
        BudgetError: No plan fits the memory. Its `floor_bytes` is the smallest budget that would.
        RecipeError: An option is unknown, or the loss function, parameters or optimizer are unsuitable.
        DataError: The arrays of the batch have different numbers of examples.

    Example:
        >>> plimsoll.plan("stories", memory="2GiB", chip="h200")  # doctest: +SKIP
        >>> plimsoll.plan(loss, params, batch, optimizer=optax.adamw(3e-4), memory="8GiB")  # doctest: +SKIP
    """
    recipe = cast(Any, recipe_of(recipe))
    asked: dict[str, Any] = {"memory": memory, "chip": chip, "numerics": numerics, "pins": pins, "say": say}
    asked |= {option: options.pop(option) for option in options_of(plan_recipe) if option in options}
    if isinstance(recipe, Recipe | Pinned | str):
        if optimizer is not None:
            options["optimizer"] = optimizer
        of_a_loss = {"params": params, "batch": batch}
        if unwanted := [each for each, value in of_a_loss.items() if value is not None]:
            raise RecipeError(f"{', '.join(unwanted)} belong to a loss of your own, and a recipe has them already")
        by_name = isinstance(recipe, str)
        known = [*options_of(plan), *options_of(plan_recipe)]
        request = read_request(recipe, options, verb="plan", options=known, name=name, pins=pins)
        asked["pins"], whole = request.pins, request.recipe
        if by_name and asked.get("largest"):
            whole = _without_what_gives_way(whole, asked["largest"])
        planned = plan_recipe(whole, name=request.name, **asked)
        return RecipePlan(**vars(planned), of=whole, options=asked, by_name=by_name)
    if not callable(recipe):
        raise RecipeError(
            f"plimsoll.plan takes a recipe, a name, or a loss function, got a {type(recipe).__name__}: plan(loss,"
            " params, batch, optimizer=...)"
        )
    from plimsoll.recipes.own.functions import given  # imports JAX

    fields = [each.name for each in dataclasses.fields(OwnRecipe)]
    known = [*options_of(plan), *options_of(plan_recipe), "supported", *fields]
    require_options(options, known, verb="plimsoll.plan of a loss")
    functions = given(recipe, params, batch, optimizer=optimizer, reduction=reduction, **options)
    of = functions.recipe()
    planned = plan_recipe(of, name=name, **asked)
    return FunctionPlan(**vars(planned), of=of, options=asked, given=functions)


def _without_what_gives_way(recipe: Recipe, largest: str) -> Recipe:
    """Returns the recipe without what gives way to the option whose largest value is looked for."""
    return giving_way(recipe, {largest.replace("-", "_"): "the largest"})[0]


def _planned(before: SomePlan, recipe: Recipe, options: Mapping[str, Any]) -> SomePlan:
    """Returns another plan of the same kind as the one before."""
    require_options(options, options_of(plan_recipe), verb="a plan's largest")
    planned = plan_recipe(recipe, name=before.recipe, **options)
    asked = {name: value for name, value in options.items() if name != "largest"}
    found = planned.largest_found
    changed = {} if found is None else {found.option.replace("-", "_"): found.value}
    whole = overridden(recipe, changed)
    own: dict[str, Any] = {}
    if isinstance(before, FunctionPlan):
        own = {"given": replace(before.given, fields={**before.given.fields, **changed})}
    return type(before)(**vars(planned), of=whole, options=asked, **own)
