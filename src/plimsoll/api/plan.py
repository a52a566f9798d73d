"""`plimsoll.plan`: plans a recipe or a user's loss function, and returns an object with methods for further planning.

The plan of a loss function can also train in a separate process, or return a step for the user's own training loop.
Planning a recipe imports no JAX. A loss function is traced in this process, without a device.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from plimsoll.api import run as runs
from plimsoll.api.keywords import options_of, read_request, require_options
from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning.ask import ask
from plimsoll.api.planning.compare import compare
from plimsoll.api.planning.find import UNKNOWN_STEPS
from plimsoll.api.planning.question import Question
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.bucket import is_address
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Largest, Ledger, Plan, Planned, Verdict
from plimsoll.planner import chips
from plimsoll.processes.request import ask as ask_worker
from plimsoll.recipes.flat import giving_way, overridden
from plimsoll.recipes.own.recipe import OwnRecipe, recipe_of
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.recipes.saved import to_dict
from plimsoll.report.compared import ComparedChip, compared_table
from plimsoll.report.tables import plan_table
from plimsoll.types import StepOptions

if TYPE_CHECKING:
    from plimsoll.engine.own_loop import OwnLoop
    from plimsoll.recipes.own.functions import Given, Reduction

OF_QUESTION = ("memory", "host_memory", "chip", "mesh", "numerics", "within", "measure")
"""Options of `plan` that become fields of the planning request (`Question`)."""
OF_TRAINING = ("memory", "chip", "mesh", "numerics", "within", "pins")
"""Fields of a planning request that `FunctionPlan.train` passes on to training."""


class Comparison(list[ComparedChip]):
    """List of chips, each with its plan or the reason why it has none. Prints as a table."""

    def __repr__(self) -> str:
        return compared_table(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class RecipePlan:
    """Plan that `plimsoll.plan` returns for a recipe: how a training step is computed within a memory budget.

    It prints as a table. `fits` is True if the predicted peak, `peak_bytes`, is within the budget. `step_seconds` is
    the predicted time of an optimizer step. `levers` has the value of each memory-saving option by name, and `ledger`
    the predicted bytes by part. Do not construct a plan yourself.

    Example:
        >>> plan = plimsoll.plan("code", memory="768MiB")  # doctest: +SKIP
        >>> plan.fits, plan.peak_bytes, plan.step_seconds, plan.levers["micro_batch"]  # doctest: +SKIP
        >>> plan.largest("seq_len")  # doctest: +SKIP
    """

    planned: Planned
    """Full result of planning."""
    question: Question = field(compare=False)
    """Planning request: recipe, chip, budget, time limit and fixed memory-saving options."""
    by_name: bool = field(compare=False, default=False)
    """Whether the recipe was given by name. If so, `largest` may reset options that conflict with the maximised one."""
    say: Say = field(compare=False, default=quiet)
    """Function that is called with progress messages."""

    def __repr__(self) -> str:
        return plan_table(self.planned)

    @property
    def fits(self) -> bool:
        """True if the predicted peak is within the budget, on the device and on its host."""
        return self.planned.fits

    @property
    def verdict(self) -> Verdict:
        """Whether the plan fits: "fits", "does not fit", or "uncertain" if the budget is within an estimate's error."""
        return self.planned.verdict

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory in bytes: of the process on a CPU, else of one device."""
        return self.planned.peak_bytes

    @property
    def step_seconds(self) -> float | None:
        """Predicted seconds of one optimizer step; None if the chip's rate is unknown."""
        return self.planned.step_seconds

    @property
    def levers(self) -> dict[str, Any]:
        """Dict from the name of each lever (memory-saving option) to its value in the plan.

        Levers that are off are included: {"micro_batch": 4, "remat": "block", ...}.
        """
        return self.planned.levers

    @property
    def ledger(self) -> Ledger:
        """Predicted memory of one device in bytes, by part, like parameters and optimizer state."""
        return self.planned.ledger

    @property
    def plan(self) -> Plan:
        """Values of all levers (memory-saving options), with the chip and the number of devices."""
        return self.planned.plan

    @property
    def largest_found(self) -> Largest | None:
        """Result of the search for an option's largest value; None if no such search was requested."""
        return self.planned.largest_found

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `plan --json` prints."""
        return self.planned.to_dict()

    def largest(self, option: str, **options: Any) -> LargestValue[Self]:
        """Returns the largest value of an option that fits into memory, with its plan.

        Args:
            option: "batch_size", "seq_len", "lora_rank" or "target_params", if the recipe has it.
            options: Options of `plimsoll.plan` that differ from those of this plan, like `memory="12GiB"`.

        Returns:
            An integer. Its attribute `plan` is the plan with that value. `plan.largest_found` has the values tried.

        Raises:
            BudgetError: Not even the smallest value fits.
            RecipeError: The recipe has no such option.

        Example:
            >>> rows = plan.largest("batch_size")
            >>> print(rows, rows.plan)
        """
        recipe = self.question.recipe
        if self.by_name:
            recipe = _without_what_gives_way(recipe, option)
        question = self._changed(options, verb="a plan's largest", recipe=recipe, measure=False)
        planned = ask(question, options.get("say", self.say), largest=option)
        return LargestValue(self._of_found(planned, question))

    def compare(self, *others: str, prices: Mapping[str, float] | None = None, **options: Any) -> Comparison:
        """Plans the same recipe for other chips, each with all of its memory, and returns a table that compares them.

        Args:
            others: Names of chips, as `plimsoll chips` lists them.
            prices: Price per hour by name of the chip, to compare costs, like {"h100": 2.5}.
            options: Further options of `plimsoll.plan`. `memory` sets the budget on each of the other chips.

        Returns:
            A list with this plan first, which prints as a table.

        Raises:
            RecipeError: A name is not that of a chip.

        Example:
            >>> plan.compare("rtx4090", "tpu-v5e-8")
        """
        if not others:
            raise RecipeError('compare needs chips to compare with, like plan.compare("rtx4090", "tpu-v5e-8")')
        elsewhere = {"memory": None, "host_memory": None, "mesh": None, "measure": False}
        question = self._changed(options, verb="a plan's compare", others=["prices"], **elsewhere)
        price_of = prices or {}
        rows = compare(question, others, price_of, options.get("say", self.say))
        chip = self.plan.chip
        own = ComparedChip(
            chip=chip,
            rate_unit=question.recipe.spec.rate_unit,
            planned=self.planned,
            price_per_hour=price_of.get(chip),
        )
        return Comparison([own, *rows])

    def _changed(
        self, options: Mapping[str, Any], *, verb: str, others: tuple[str, ...] | list[str] = (), **fields: Any
    ) -> Question:
        """Returns this plan's request with some fields replaced. The user's `options` override `fields`."""
        known = (*OF_QUESTION, "pins")
        require_options(options, [*others, "say", *known], verb=verb)
        chosen = {name: value for name, value in options.items() if name in known}
        return replace(self.question, **fields | chosen)

    def _of_found(self, planned: Planned, question: Question) -> Self:
        """Returns a copy of this plan with the result of a search for a largest value, and the value in its recipe."""
        assert planned.largest_found is not None
        value = {planned.largest_found.option.replace("-", "_"): planned.largest_found.value}
        question = replace(question, recipe=overridden(question.recipe, value))
        return replace(self, planned=planned, question=question)


SomePlan = TypeVar("SomePlan", bound=RecipePlan)


class LargestValue(int, Generic[SomePlan]):
    """Largest value of an option that fits into memory: an integer with the attribute `plan`."""

    plan: SomePlan
    """Plan of the recipe with this largest value."""

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
    """Loss function, shapes and optimizer of the plan."""

    def start(self, init: Callable[[Any], Any], *, seed: int | None = None) -> Any:
        """Returns the initial training state (parameters, optimizer state, step, random key) on this process's device.

        Args:
            init: Function of a JAX random key that returns the parameters.
            seed: Seed of the random key. By default the seed that was planned with, 42 unless you set it.

        Raises:
            RecipeError: `init` returns other shapes than were planned for, or JAX runs on another kind of chip here.
        """
        return self._loop.start(self.given.recipe(init), self.question.recipe.length.seed if seed is None else seed)

    @property
    def step(self) -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
        """Training step for your own loop: `state, metrics = step(state, batch)`.

        The step is jitted, and accumulates gradients over micro-batches as planned. It donates the state, so do not use
        the old state again. `metrics` is a dict of scalars, like {"loss": ...}. A batch of another shape raises an
        error.

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
    ) -> runs.Run:
        """Trains within the budget, in a separate process. If the run exists, continues from its last checkpoint.

        It first plans again, because `init` and the data were not known to this plan.

        Args:
            init: Function of a JAX random key that returns the parameters.
            data: Arrays in the same pytree as the batch, whose first axis counts all examples; an object with `len()`
                and `[index]`; or a function that returns one of these. It is shuffled anew in each epoch.
            steps: Optimizer steps of the whole run. Its length can also be given as `epochs`.
            run: Folder of the run, for checkpoints and logs. By default runs/NAME.
            validation_data: Examples for evaluation only, in the form of `data`. By default there are none.
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
        name = self.question.name
        folder = os.fspath(run) if run else f"runs/{name}"
        if is_address(folder) or not RunFolder(folder).has("plan.json"):
            ask_worker("require_sound", {"recipe": to_dict(recipe)})
        how: dict[str, Any] = {option: getattr(self.question, option) for option in OF_TRAINING}
        how |= {"log_norms": self.question.step_options.norms, "name": name, **options}
        return runs.train(recipe, run=folder, **how)

    def _of_found(self, planned: Planned, question: Question) -> Self:
        found = super()._of_found(planned, question)
        assert planned.largest_found is not None
        value = {planned.largest_found.option.replace("-", "_"): planned.largest_found.value}
        return replace(found, given=replace(self.given, fields={**self.given.fields, **value}))

    @cached_property
    def _loop(self) -> OwnLoop:
        from plimsoll.engine.own_loop import OwnLoop

        recipe = self.question.recipe
        steps = recipe.length.steps
        if steps is None and recipe.optimizer.schedule(UNKNOWN_STEPS) is not None:
            raise RecipeError(
                "plimsoll.AdamW has a schedule over the whole run: say how long it is, plimsoll.plan(..., steps=1000)"
            )
        platform = chips.chip(self.plan.chip).platform
        return OwnLoop(recipe, self.planned, self.given.form, platform=platform, steps=steps or UNKNOWN_STEPS)


@overload
def plan(recipe: Recipe | Pinned | str, *, say: Say = ..., **options: Any) -> RecipePlan: ...


@overload
def plan(
    recipe: Callable[..., Any], params: Any, batch: Any, *, optimizer: Any, say: Say = ..., **options: Any
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
    say: Say = quiet,
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
    # Sort the options: kind of search (`wanted`), fields of the request (`asked`), arguments of a loss (`of_loss`).
    options |= {"memory": memory, "chip": chip, "numerics": numerics}
    wanted = {option: options.pop(option) for option in ("smallest", "largest") if option in options}
    asked = {option: options.pop(option) for option in OF_QUESTION if option in options}
    asked["step_options"] = StepOptions(norms=options.pop("log_norms", "global"))
    of_loss = {"params": params, "batch": batch}
    functions = None
    kind: Any = recipe_of(recipe)
    if isinstance(kind, Recipe | Pinned | str):
        unwanted = [name for name, value in of_loss.items() if value is not None]
        if unwanted:
            raise RecipeError(f"{', '.join(unwanted)} belong to a loss of your own, and a recipe has them already")
        if optimizer is not None:
            options["optimizer"] = optimizer
    else:
        functions = _functions(kind, options, {**of_loss, "optimizer": optimizer, "reduction": reduction})
        kind, options = functions.recipe(), {}

    # Find the plan.
    request = read_request(kind, options, verb="plan", options=OPTIONS, name=name, pins=pins)
    whole, by_name = request.recipe, isinstance(recipe, str)
    if by_name and wanted.get("largest"):
        whole = _without_what_gives_way(whole, wanted["largest"])
    question = Question(recipe=whole, name=request.name, pins=request.pins, **asked)
    planned = ask(question, say, **wanted)
    if functions is not None:
        return FunctionPlan(planned=planned, question=question, given=functions, say=say)
    return RecipePlan(planned=planned, question=question, by_name=by_name, say=say)


OPTIONS = [*options_of(plan), *OF_QUESTION, "log_norms", "smallest", "largest"]
"""Names of the options of `plan`."""


def _functions(loss: Any, options: Mapping[str, Any], of_loss: Mapping[str, Any]) -> Given:
    """Returns a user's loss function with its shapes and optimizer. Raises RecipeError for unsuitable arguments."""
    if not callable(loss):
        raise RecipeError(
            f"plimsoll.plan takes a recipe, a name, or a loss function, got a {type(loss).__name__}: plan(loss, params,"
            " batch, optimizer=...)"
        )
    from plimsoll.recipes.own.functions import given  # imports JAX

    fields = [each.name for each in dataclasses.fields(OwnRecipe)]
    require_options(options, [*OPTIONS, "supported", *fields], verb="plimsoll.plan of a loss")
    return given(loss, **of_loss, **options)


def _without_what_gives_way(recipe: Recipe, largest: str) -> Recipe:
    """Resets options of the recipe that conflict with `largest`, the option to maximise. Returns the recipe."""
    return giving_way(recipe, {largest.replace("-", "_"): "the largest"})[0]
