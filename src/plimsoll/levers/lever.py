"""The record of a lever: everything that the rest of the package has to know of it, in one place.

A lever trades memory against time or precision. Its code and the formula of its bytes stand in a file of `levers/`;
its record stands in `levers/records/`, which imports no JAX, so that options, refusals and tables can be made from it
at once. `levers/registry.py` collects the records. Made from them are the options of the command line and their help,
what a pinned value may be, the values that the planner tries, the rungs of a ladder, the rows of a plan's table, and
the class of a plan's numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from plimsoll.errors import RecipeError
from plimsoll.types import Numerics

CLASSES: tuple[Numerics, ...] = ("exact", "mixed", "compressed")
"""Classes of numerics, from the one that leaves the numbers alone to the one that touches them most."""


Values = Mapping[str, Any]
"""Names of levers to their values."""
Text = str | Mapping[Any, str]
"""Text about a value, for which `{value}` stands; or the text for each value."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A planning problem as far as levers know it; `planner.types.Problem` has the rest of it."""

    recipe: str
    chip: str
    platform: Literal["cpu", "cuda", "tpu"] = "cpu"
    devices: int = 1
    effective_batch: int
    normalised_together: int = 1
    """Examples of which every device has a multiple in a micro-batch, because the model normalises them together."""
    loss_rows: int | None = None
    """Rows of logits that an example has; None where that is not known."""
    numerics: str
    supported: tuple[str, ...]
    """Levers that the recipe's code makes use of (`Hints.levers`)."""
    loss_chunks: tuple[int, ...]
    loss_whole: bool = True
    """True where all logits at once are tried before those."""
    attention_chunks: tuple[int, ...] = ()
    mlp_chunks: tuple[int, ...] = ()
    layerwise: int = 0
    """Backward passes of a step that updates layer by layer; 0 where the recipe has no such step."""
    pins: Values = field(default_factory=dict)
    """Levers the user set."""


class Rates(Protocol):
    """A chip's rates as far as levers know them: `planner.types.Rates` are such."""

    @property
    def flops(self) -> Mapping[str, float]: ...
    @property
    def host_link_bytes(self) -> float: ...


class LeftOut(Exception):
    """The reason why a recipe's ladder has no such rung."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A step of the ladder on which a lever is pulled."""

    name: str
    words: str
    """Description of its effect; `{}` stands for the value."""
    value: Any
    """Value of the lever; or a function of the problem and of the levers so far that returns it, or raises LeftOut."""


@dataclass(frozen=True)
class Support:
    """A name in `Hints.levers`: the recipe's own code has to do something for the lever."""

    name: str
    owner: Literal["loss", "optimizer"] = "loss"
    lacking: str = ""
    """Refusal of a pin where it is missing, with `{recipe}` for the recipe's name; by default a general one."""
    no_rung: str = "the recipe's loss makes no use of this lever"
    """Reason that the ladder gives where it is missing."""

    def refusal(self, recipe: str) -> str:
        """Returns why a value that needs this would change nothing for `recipe`."""
        general = (
            "the {owner} of {recipe} makes no use of that lever. Leave it out, or let the recipe support it"
            " (docs/your-own.md)"
        )
        return (self.lacking or general).format(owner=self.owner, recipe=recipe)


@dataclass(frozen=True, kw_only=True)
class Lever:
    """A choice of the planner that changes what a step costs, and not what is learned beyond its numerics."""

    name: str
    """Field of a plan. The option is the name with hyphens."""
    type: Any
    """A Literal of its values from the fastest to the smallest; or int, or bool."""
    least: int = 0
    """Smallest value of an int."""
    help: str
    """Text of its option in `plan --help` and `train --help`."""
    plain: Any
    """Value as if memory were free, where a ladder begins; None for the whole effective batch."""
    touches: Numerics = "exact"
    """Class of numerics of every value but the plain one."""
    compiled: bool = True
    """False where no compiled function depends on it."""
    supports: tuple[Support, ...] = ()
    """What a recipe has to support for a value other than the plain one; empty where every recipe can."""
    needs: Callable[[Any], Sequence[str]] | None = None
    """From a value to the names in `supports` that it needs; by default the first, for all but the plain value."""

    by_itself: bool = False
    """True where the planner chooses it by other means than its combinations: micro-batch, prefetch, saving."""
    by_user: bool = False
    """True where only the user gives it another value than the plain one: the search tries none."""
    chained: bool = False
    """True where it is pulled after the levers that are chained before it, and keeps those at their last value."""
    worth_trying: Callable[[Problem, Rates], Sequence[Any]] | None = None
    """Values that the search tries where nothing is pinned, from the fastest to the smallest; by default all."""
    refused: Callable[[Problem, Rates, Any], str | None] | None = None
    """Why a value is impossible for a problem, as the end of a sentence that begins with `--option value`."""
    goes_with: Callable[[Values, Mapping[str, Sequence[Any]]], bool] | None = None
    """Whether a combination of levers makes sense, given all values that are tried of each."""

    same_step: Callable[[Problem, Any, Any, int], bool] | None = None
    """From two values and the examples of a micro-batch to whether they make the same step; by default no two do."""
    sets_apart: Collection[str] = ()
    """Platforms for whose compilers how far a trace is off with one value says nothing of another's."""

    may_gain: Callable[[Any, Problem], float] | None = None
    """Share of a step's time that a value may come down to beyond what rates can tell; by default 1. Where plans are
    timed, the search tries it for that."""

    rungs: tuple[Rung, ...] = ()
    """Its steps of the ladder; empty where a ladder cannot show it."""
    words: Text | None = None
    """Few words for a value in progress lines and refusals; by default its name and the value."""
    plain_words: str = ""
    """The same of the plain value, by default nothing."""
    label: str = ""
    """First column of its row in a plan's table."""
    row: Text = "{value}"
    """Text of that row; `{plan}` stands for the plan."""
    plain_row: str = ""
    """The same of the plain value, by default nothing: the row is left out."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def values(self) -> tuple[Any, ...]:
        """All values from the fastest to the smallest; empty where any whole number will do."""
        return (True, False) if self.type is bool else get_args(self.type)

    def allows(self, value: Any) -> bool:
        """Returns whether `value` is one of its values: True is no number here, although Python says so."""
        if self.values:
            return any(type(value) is type(known) and value == known for known in self.values)
        return isinstance(value, int) and not isinstance(value, bool) and value >= self.least

    @property
    def allowed(self) -> str:
        """Its values, in words."""
        if self.values:
            return "one of " + ", ".join(map(repr, self.values))
        return f"a whole number (int), {self.least} or more"

    def missing(self, value: Any, supported: Collection[str]) -> Support | None:
        """Returns what `value` needs first that is not supported; None where all is."""
        if self.needs is not None:
            needed = self.needs(value)
        else:
            needed = [self.supports[0].name] if self.supports and value != self.plain else []
        return next((each for each in self.supports if each.name in needed and each.name not in supported), None)

    def numerics(self, value: Any) -> Numerics:
        return "exact" if value == self.plain else self.touches

    def tried(self, problem: Problem, rates: Rates) -> list[Any]:
        """Returns the values to search: the pinned one alone, else those that are worth trying and possible.

        Raises:
            RecipeError: The pinned value is impossible.
        """
        if self.name in problem.pins:
            pinned = problem.pins[self.name]
            reason = self.refused(problem, rates, pinned) if self.refused is not None else None
            if reason is not None:
                raise RecipeError(f"{self.flag} {pinned} {reason}")
            return [pinned]
        values = self.values if self.worth_trying is None else self.worth_trying(problem, rates)
        values = [self.plain] if self.by_user else values
        possible = [
            value
            for value in values
            if CLASSES.index(self.numerics(value)) <= CLASSES.index(problem.numerics)  # type: ignore[arg-type]
            and self.missing(value, problem.supported) is None
            and (self.refused is None or self.refused(problem, rates, value) is None)
        ]
        return possible or [self.plain]

    def hope(self, value: Any, problem: Problem) -> float:
        return 1.0 if self.may_gain is None else self.may_gain(value, problem)

    def described(self, value: Any) -> str:
        """Returns few words for `value`; empty where it is not worth saying."""
        words = f"{self.name.replace('_', ' ')} {{value}}" if self.words is None else self.words
        return _text(self.plain_words if value == self.plain else words, value)

    def table_row(self, value: Any, plan: Any) -> tuple[str, str] | None:
        """Returns label and text of its row in a plan's table; None where it is left out."""
        text = _text(self.plain_row if value == self.plain else self.row, value, plan)
        return (self.label or self.name.replace("_", " "), text) if text else None


def _text(text: Text, value: Any, plan: Any = None) -> str:
    template = text if isinstance(text, str) else text[value]
    return template.format(value=value, plan=plan)
