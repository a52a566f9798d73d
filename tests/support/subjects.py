"""Subjects of compile processes: a recipe, for this CPU or for a chip."""

from plimsoll.planner.chips import chip
from plimsoll.planner.types import Subject
from plimsoll.recipes.saved import to_dict
from plimsoll.types import StepOptions


def subject_of(recipe, name="cpu", *, is_compiled=True, **changes):
    """Returns what a compile process answers about; `is_compiled` says whether the chip's compiler is installed."""
    of_chip = {} if name == "cpu" else {"chip": chip(name), "devices": chip(name).devices}
    compiler = ("jax",) if is_compiled and name != "cpu" else ()
    fields = {"recipe": to_dict(recipe), "steps": 10, "step_options": StepOptions(), "compiler": compiler} | of_chip
    return Subject(**(fields | changes))
