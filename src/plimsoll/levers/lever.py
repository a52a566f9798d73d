"""The record of a lever: everything that the rest of the package needs to know about the lever.

A lever trades memory against time or precision. Its code and the formula of its bytes are in a file of `levers/`. Its
record is in `levers/records/`, which imports no JAX, so that help and refusals come at once. `levers/registry.py`
collects the records. They define the options of the command line and their help, the values that users may set (pins)
and those that the planner tries, the rungs of `plimsoll ladder`, which trains with one more lever at a time, the rows
of a plan's table, and a plan's numerics (exact, mixed, compressed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from plimsoll.errors import RecipeError
from plimsoll.types import Numerics

CLASSES: tuple[Numerics, ...] = ("exact", "mixed", "compressed")
"""Names for how far numerics change: exact leaves results unchanged, compressed changes them most."""


Values = Mapping[str, Any]
"""Maps the names of levers to their values."""
Text = str | Mapping[Any, str]
"""Template of a text, with `{value}` for the value; or a text for each value."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The part of a planning problem that levers read. `planner.types.Problem` adds the rest."""

    recipe: str
    chip: str
    platform: Literal["cpu", "cuda", "tpu"] = "cpu"
    devices: int = 1
    effective_batch: int
    normalised_together: int = 1
    """Examples that the model normalises together, as in batch norm. A device gets a multiple of it per micro-batch."""
    loss_rows: int | None = None
    """Number of rows of logits of each example; None if unknown."""
    numerics: str
    supported: tuple[str, ...]
    """Levers that the recipe's code supports (`Hints.levers`)."""
    loss_chunks: tuple[int, ...]
    loss_whole: bool = True
    """Whether the search also tries to compute all logits at once, before the chunk sizes in `loss_chunks`."""
    attention_chunks: tuple[int, ...] = ()
    mlp_chunks: tuple[int, ...] = ()
    layerwise: int = 0
    """Backward passes of a step that updates layer by layer; 0 if the recipe has no such step."""
    pins: Values = field(default_factory=dict)
    """Values of the levers that the user set."""


class Rates(Protocol):
    """Speeds of a chip that levers read. `planner.types.Rates` implements this protocol."""

    @property
    def flops(self) -> Mapping[str, float]: ...
    @property
    def host_link_bytes(self) -> float: ...


class LeftOut(Exception):
    """Raised with the reason why `plimsoll ladder` leaves out a rung (one lever) for a recipe."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A rung of `plimsoll ladder`: a run that sets one more lever than the run before."""

    name: str
    words: str
    """Description of the effect, with `{}` for the value."""
    value: Any
    """Value of the lever, or a function of the problem and earlier rungs' levers that returns it or raises LeftOut."""


@dataclass(frozen=True)
class Support:
    """Code that a recipe needs for a lever. A recipe that has this code lists its name in `Hints.levers`."""

    name: str
    owner: Literal["loss", "optimizer"] = "loss"
    lacking: str = ""
    """Message that refuses a user's value if a recipe, `{recipe}`, lacks this code; by default a general message."""
    no_rung: str = "the recipe's loss makes no use of this lever"
    """Reason that `plimsoll ladder` gives if a recipe lacks this code."""

    def refusal(self, recipe: str) -> str:
        """Returns the message that refuses a user's value which `recipe` does not support."""
        general = (
            "the {owner} of {recipe} makes no use of that lever. Leave it out, or let the recipe support it"
            " (docs/your-own.md)"
        )
        return (self.lacking or general).format(owner=self.owner, recipe=recipe)


@dataclass(frozen=True, kw_only=True)
class Lever:
    """A choice of the planner that changes memory, time or numerics of a step, but not the training problem."""

    name: str
    """Name of the lever in a plan. The command-line option is this name with hyphens."""
    type: Any
    """A Literal of the values from the fastest to the smallest in memory; or int, or bool."""
    least: int = 0
    """Smallest value, if `type` is int."""
    help: str
    """Text of the option in `plan --help` and `train --help`."""
    plain: Any
    """Value for unlimited memory, with which `plimsoll ladder` begins; None for the whole effective batch."""
    touches: Numerics = "exact"
    """Numerics (exact, mixed or compressed) of every value but `plain`, which is exact."""
    compiled: bool = True
    """False if no compiled function depends on the lever."""
    supports: tuple[Support, ...] = ()
    """Code that a recipe needs for values other than `plain` (off); empty if every recipe has it."""
    needs: Callable[[Any], Sequence[str]] | None = None
    """Returns the names in `supports` that a value needs; by default the first name, and none for `plain`."""

    by_itself: bool = False
    """True if the planner does not combine the lever with others: micro-batch, prefetch, saving."""
    by_user: bool = False
    """True if only the user sets the lever. The search then tries only `plain` (off)."""
    chained: bool = False
    """True for levers that the search changes in turn: each only after all before it have their smallest value."""
    worth_trying: Callable[[Problem, Rates], Sequence[Any]] | None = None
    """Values that the search tries unless the user set one, from fastest to smallest in memory; by default all."""
    refused: Callable[[Problem, Rates, Any], str | None] | None = None
    """Returns the reason why a value is impossible, as the end of a sentence after `--option value`; or None."""
    goes_with: Callable[[Values, Mapping[str, Sequence[Any]]], bool] | None = None
    """Returns False for a useless combination of levers. The second argument has the values that the search tries, by
    lever."""

    same_step: Callable[[Problem, Any, Any, int], bool] | None = None
    """Returns True if two values make the same step with a micro-batch of this size. By default no two do."""
    sets_apart: Collection[str] = ()
    """Platforms on which the error of bytes that are estimated from a trace depends on the value."""

    may_gain: Callable[[Any, Problem], float] | None = None
    """Smallest ratio of measured to predicted time that a value may reach; by default 1. If plans are timed, the search
    also tries values whose ratio is below 1."""

    rungs: tuple[Rung, ...] = ()
    """Rungs (steps of the comparison that `plimsoll ladder` makes) that set this lever; empty if no rung does."""
    words: Text | None = None
    """Short text for a value in progress lines and refusals; by default the lever's name and the value."""
    plain_words: str = ""
    """Short text for the value `plain` (off), by default empty."""
    label: str = ""
    """First column of the lever's row in a plan's table."""
    row: Text = "{value}"
    """Text of the lever in the table of a plan: a format string of `value`, the lever's, and `plan`, the whole plan."""
    plain_row: str = ""
    """Second column for the value `plain` (off). If empty, the table has no row for that value."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def values(self) -> tuple[Any, ...]:
        """All values from the fastest to the smallest in memory; empty for an int."""
        return (True, False) if self.type is bool else get_args(self.type)

    def allows(self, value: Any) -> bool:
        """Returns True if the lever can have this value. A bool does not count as an int."""
        if self.values:
            return any(type(value) is type(known) and value == known for known in self.values)
        return isinstance(value, int) and not isinstance(value, bool) and value >= self.least

    @property
    def allowed(self) -> str:
        """The possible values, in words."""
        if self.values:
            return "one of " + ", ".join(map(repr, self.values))
        return f"a whole number (int), {self.least} or more"

    def missing(self, value: Any, supported: Collection[str]) -> Support | None:
        """Returns the first item of `supports` that `value` needs and `supported` lacks, or None."""
        if self.needs is not None:
            needed = self.needs(value)
        else:
            needed = [self.supports[0].name] if self.supports and value != self.plain else []
        return next((each for each in self.supports if each.name in needed and each.name not in supported), None)

    def numerics(self, value: Any) -> Numerics:
        return "exact" if value == self.plain else self.touches

    def tried(self, problem: Problem, rates: Rates) -> list[Any]:
        """Returns the values to search: only the user's value (the pin), or all that are possible and worth trying.

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
        """Returns a short text for `value`; empty if it needs no mention."""
        words = f"{self.name.replace('_', ' ')} {{value}}" if self.words is None else self.words
        return _text(self.plain_words if value == self.plain else words, value)

    def table_row(self, value: Any, plan: Any) -> tuple[str, str] | None:
        """Returns both columns of the lever's row in a plan's table; None for no row."""
        text = _text(self.plain_row if value == self.plain else self.row, value, plan)
        return (self.label or self.name.replace("_", " "), text) if text else None


def _text(text: Text, value: Any, plan: Any = None) -> str:
    template = text if isinstance(text, str) else text[value]
    return template.format(value=value, plan=plan)
