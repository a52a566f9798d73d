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
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from plimsoll.api import compare, launch
from plimsoll.api.keywords import options_of, require_options, with_fields
from plimsoll.api.notebook import ShownPlan
from plimsoll.api.plan import UNKNOWN_STEPS, Say, named, printing, unpinned
from plimsoll.api.plan import plan as plan_recipe
from plimsoll.api.run import Run
from plimsoll.errors import RecipeError, unknown_attribute
from plimsoll.planner import chips
from plimsoll.processes.request import ask
from plimsoll.recipes.base import Pinned, Recipe
from plimsoll.recipes.overrides import giving_way, overridden
from plimsoll.recipes.own.files import short_name
from plimsoll.recipes.own.functions import Given, Reduction, given
from plimsoll.recipes.own.recipe import OwnRecipe
from plimsoll.recipes.saved import to_dict
from plimsoll.report.compared import ComparedChip, compared_table
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import is_address

if TYPE_CHECKING:
    from plimsoll.engine.own_loop import OwnLoop

OF_TRAINING = ("memory", "chip", "mesh", "numerics", "within", "pins")
"""Options of a plan that training by it has, too."""
OF_ONE_PLAN = ("chip", "card", "memory", "measure", "largest", "smallest", "prepared", "host_memory")
"""Options of a plan that do not hold for the plans of other chips."""


class Comparison(list[ComparedChip]):
    """Chips with their plans, or why there are none: a table where it is shown."""

    def __repr__(self) -> str:
        return compared_table(self)

    def _repr_html_(self) -> str:
        from plimsoll.report.page.markup import element

        return element("pre", compared_table(self))


@dataclass(frozen=True, kw_only=True, repr=False)
class RecipePlan(ShownPlan):
    """Plan of a recipe, as `plimsoll.plan` returns it. Prints as its table, in a notebook with a picture.

    Its attributes are `fits`, `peak_bytes`, `step_seconds`, `levers`, and `ledger` with the bytes by part.

    Example:
        >>> plan = plimsoll.plan("code", memory="768MiB")  # doctest: +SKIP
        >>> plan.fits, plan.peak_bytes, plan.step_seconds, plan.levers["micro_batch"]  # doctest: +SKIP
        >>> plan.largest("seq_len").largest_found.value  # doctest: +SKIP
    """

    of: Recipe = field(compare=False)
    """The recipe that was planned."""
    options: Mapping[str, Any] = field(compare=False)
    """Options of `plimsoll.plan` by which it was planned."""
    by_name: bool = field(compare=False, default=False)
    """Whether a preset's name was planned, whose own options give way."""

    def largest(self, option: str, **options: Any) -> Self:
        """Returns the plan of the largest value of an option that fits; `largest_found.value` is that value.

        Args:
            option: `batch_size`, `seq_len`, `lora_rank` or `target_params`, as far as the recipe has it.
            options: Of `plimsoll.plan`, where they are to differ from this plan's.

        Raises:
            BudgetError: Not even the least value fits.
            RecipeError: The recipe has no such option.

        Example:
            >>> plan.largest("batch_size").largest_found.value
        """
        how = {name: value for name, value in self.options.items() if name not in ("measure", "smallest")}
        recipe = _without_what_gives_way(self.of, option) if self.by_name else self.of
        return _planned(self, recipe, {**how, **options, "largest": option})

    def compare(self, *others: str, prices: Mapping[str, float] | None = None, **options: Any) -> Comparison:
        """Returns this plan beside the plans for other chips, each with all of its memory.

        Args:
            others: Names of chips, as `plimsoll chips` lists them.
            prices: Prices per hour by the chips' names.
            options: Of `plimsoll.plan`; `memory` is then the budget of each of them.

        Raises:
            RecipeError: A name is no chip.

        Example:
            >>> plan.compare("rtx4090", "tpu-v5e-8")
        """
        if not others:
            raise RecipeError('compare needs chips to compare with, like plan.compare("rtx4090", "tpu-v5e-8")')
        how = {name: value for name, value in self.options.items() if name not in OF_ONE_PLAN}
        require_options(options, options_of(plan_recipe), verb="a plan's compare")
        how: dict[str, Any] = {"say": printing(quiet=True), **how, "name": self.recipe, **options}
        rows = compare.compared(self.of, others, prices=prices or {}, **how)
        here, chip = None if self.plan.chip == "cpu" else chips.chip(self.plan.chip).memory_bytes, self.plan.chip
        own = ComparedChip(
            chip=chip,
            rate_unit=self.of.rate_unit,
            planned=self,
            memory_bytes=here,
            price_per_hour=(prices or {}).get(chip),
        )
        return Comparison([own, *rows])

    if not TYPE_CHECKING:  # to a type checker a plan has its attributes and nothing else

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise unknown_attribute("a plan", name, dir(self))


SomePlan = TypeVar("SomePlan", bound=RecipePlan)


@dataclass(frozen=True, kw_only=True, repr=False)
class FunctionPlan(RecipePlan):
    """Plan of a loss of your own, as `plimsoll.plan` returns it: it trains, or has a step for a loop of your own.

    Example:
        >>> plan = plimsoll.plan(loss, params, batch, optimizer=optax.adamw(3e-4), memory="8GiB")  # doctest: +SKIP
        >>> run = plan.train(init, data, steps=1000, run="runs/mine", patience=3)  # doctest: +SKIP
        >>> state, step = plan.start(init), plan.step  # doctest: +SKIP
        >>> state, metrics = step(state, batch)  # doctest: +SKIP
    """

    given: Given = field(compare=False)
    """The functions and shapes that were planned for."""

    def start(self, init: Callable[[Any], Any], *, seed: int | None = None) -> Any:
        """Returns the state before the first step, on this process's device: parameters, optimizer's state, step, key.

        Args:
            init: Function of a PRNG key to the parameters.
            seed: Seed of the key; by default the recipe's, 42.

        Raises:
            RecipeError: `init` makes other parameters than were planned for, or JAX runs on another chip here.
        """
        return self._loop.start(self.given.recipe(init), self.of.seed if seed is None else seed)

    @property
    def step(self) -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
        """Function of state and batch to the next state and a dict of metrics: `state, metrics = step(state, batch)`.

        It is jitted, its state is donated, and the batch is split as planned. A batch of another shape is refused.

        Raises:
            RecipeError: JAX runs on another chip here.
        """
        return self._loop.step

    def params(self, state: Any) -> Any:
        """Returns the parameters in a state of `start` or `step`, as the loss reads them."""
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
        """Trains in a process of its own inside the budget, or continues the run, and returns it.

        It plans once more, with the data and with `init`, which the plan did not know.

        Args:
            init: Function of a PRNG key to the parameters.
            data: Arrays in the pytree of the batch, whose first axis counts all examples; an object with `len()` and
                `[index]`; or a function that returns one of these. Its order is drawn by the seed, anew in each epoch.
            steps: Optimizer steps of the whole run.
            run: Folder of the run, new or to be continued; by default runs/NAME.
            validation_data: Examples that are never trained on, like `data`.
            options: Of `plimsoll.train`: `max_steps`, `patience`, `log_every`, `eval_every`, `on_log`, `quiet`, ...

        Raises:
            RecipeError: The loss is no sum (or mean) over examples, or the run is one of other functions or data.
            BudgetError: With the data, no plan fits the memory.
            PlimsollError: Training is refused or fails. What was saved is whole.
            KeyboardInterrupt: It was interrupted, after it has saved: the same call continues.
        """
        if validation_data is None and options.get("patience") is not None:
            raise RecipeError("patience counts evaluations, and there is nothing to evaluate on: give validation_data=")
        length = {} if steps is None else {"steps": steps}
        recipe = self.given.recipe(init, data, validation_data, **length)
        if recipe.steps is None and recipe.epochs is None:
            raise RecipeError("nothing says how long to train: give train steps=")
        place = f"runs/{self.recipe}" if run is None else os.fspath(run)
        if is_address(place) or not RunFolder(place).has("plan.json"):
            ask("require_sound", {"recipe": to_dict(recipe)})
        how: dict[str, Any] = {name: self.options[name] for name in OF_TRAINING if name in self.options}
        how |= {"name": self.recipe, **options}
        return launch.train(recipe, run=place, **how)

    @cached_property
    def _loop(self) -> OwnLoop:
        from plimsoll.engine.own_loop import OwnLoop

        assert isinstance(self.of, OwnRecipe)
        if self.given.lacks_length:
            raise RecipeError(
                "plimsoll.AdamW has a schedule over the whole run: say how long it is, plimsoll.plan(..., steps=1000)"
            )
        platform, steps = chips.chip(self.plan.chip).platform, self.of.steps or UNKNOWN_STEPS
        return OwnLoop(self.of, self.plan, self.given.form, platform=platform, steps=steps)


@overload
def plan(
    recipe: Recipe | Pinned | str,
    *,
    memory: str | int | None = None,
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
    memory: str | int | None = None,
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
    memory: str | int | None = None,
    chip: str | None = None,
    numerics: str = "mixed",
    pins: Mapping[str, Any] | None = None,
    name: str | None = None,
    say: Say = lambda text: None,
    **options: Any,
) -> RecipePlan:
    """Returns the fastest plan whose predicted peak fits `memory`: of a recipe, or of a loss of one's own.

    Nothing is allocated on a device: parameters and a batch may be shapes.

    Args:
        recipe: A recipe, the name of a preset or of a file with one; or a loss: a function of parameters and a batch
            that returns (sum over the examples, weight), or with `reduction="mean"` the mean over equal examples.
        params: Of a loss: the parameters or their shapes, like `jax.eval_shape(init, jax.random.key(0))`.
        batch: Of a loss: a pytree of arrays or shapes, the first axis of each counting the examples of a step.
        optimizer: Of a loss: any optax transformation, or `plimsoll.AdamW(...)`, whose state can be kept in 8 bits.
        reduction: Of a loss: "sum" or "mean".
        memory: Budget of a device, like "8GiB"; by default what is available, or what the chip has.
        chip: Name of a chip, here or not, as `plimsoll chips` lists them; by default the one that is here.
        numerics: Class of numerics up to which is searched: exact, mixed or compressed.
        pins: Levers that keep a value, by name.
        name: What to call the recipe.
        say: Called with what is being done.
        options: Further options (`host_memory`, `mesh`, `measure`, `within`, `smallest`, `largest`), and fields of the
            recipe (`steps`, `seed`, `batch_size`, ...); of a loss `supported` too, as `plimsoll.recipe` has it.

    Returns:
        RecipePlan, of a loss FunctionPlan.

    Raises:
        BudgetError: Nothing fits; with the smallest peak that was found.
        RecipeError: An option is unknown, or a function is refused.
        DataError: The leaves of the batch disagree about the number of examples.

    Example:
        >>> plimsoll.plan("stories", memory="2GiB", chip="h200")  # doctest: +SKIP
        >>> plimsoll.plan(loss, params, batch, optimizer=optax.adamw(3e-4), memory="8GiB")  # doctest: +SKIP
    """
    asked: dict[str, Any] = {"memory": memory, "chip": chip, "numerics": numerics, "pins": pins, "say": say}
    asked |= {option: options.pop(option) for option in options_of(plan_recipe) if option in options}
    if isinstance(recipe, Recipe | Pinned | str):
        of_a_loss = {"params": params, "batch": batch, "optimizer": optimizer}
        if unwanted := [each for each, value in of_a_loss.items() if value is not None]:
            raise RecipeError(f"{', '.join(unwanted)} belong to a loss of your own, and a recipe has them already")
        by_name = isinstance(recipe, str)
        known = [*options_of(plan), *options_of(plan_recipe)]
        changed, asked["pins"] = unpinned(with_fields(recipe, options, verb="plan", options=known), pins)
        name, whole = named(changed, name or (short_name(recipe) if by_name else None))
        if by_name and "largest" in asked:
            whole = _without_what_gives_way(whole, asked["largest"])
        planned = plan_recipe(whole, name=name, **asked)
        return RecipePlan(**vars(planned), of=whole, options=asked, by_name=by_name)
    if not callable(recipe):
        raise RecipeError(
            f"plimsoll.plan takes a recipe, a name, or a loss function, got a {type(recipe).__name__}: plan(loss,"
            " params, batch, optimizer=...)"
        )
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
