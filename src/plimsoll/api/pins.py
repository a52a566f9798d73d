"""Levers that the user sets, one by one or by `--plan FILE`: what is no value, or would change nothing, is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.planner import offloading
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.saved import name_of
from plimsoll.types import LEVERS, OFFLOADED, Plan


def levers_of(path: str, recipe: Recipe, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Every lever as the file has it; its bytes are predicted anew, for this recipe."""
    advice = "write one with `plimsoll plan ... --json > plan.json`, or take a run's plan.json"
    try:
        planned = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise RecipeError(f"--plan {path} cannot be read ({problem}): {advice}") from None
    if isinstance(planned, dict) and planned.get("fits") is False:
        raise RecipeError(f"--plan {path} is a refusal, nothing had fitted its budget: plan with a larger --memory")
    chosen = planned.get("plan") if isinstance(planned, dict) else None
    if not isinstance(chosen, dict) or not {*LEVERS, "accumulation"} <= chosen.keys() | LEFT_ALONE.keys():
        said = ", ".join(name for name in LEVERS if name not in LEFT_ALONE)
        raise RecipeError(f"--plan {path} is not a plan, it does not say {said}: {advice}")
    levers = LEFT_ALONE | {name: chosen[name] for name in LEVERS if name in chosen}
    micro, times = levers["micro_batch"], chosen["accumulation"]
    wrong = [name for name, allowed in LEVER_VALUES.items() if not allowed(levers[name])]
    if wrong:
        raise RecipeError(f"--plan {path} says {wrong[0]} {levers[wrong[0]]!r}, which is no value of it: {advice}")
    if micro * times != recipe.effective_batch:
        raise RecipeError(
            f"--plan {path} splits {micro * times} examples a step ({micro} x {times}), and the recipe's effective"
            f" batch is {recipe.effective_batch}: plan again, or change --batch-size"
        )
    other = [name for name, value in pins.items() if levers[name] != value]
    if other:
        raise RecipeError(
            f"--{other[0].replace('_', '-')} {pins[other[0]]} and --plan {path} with {levers[other[0]]} contradict each"
            " other: give one of them"
        )
    return levers


def require_levers(pins: Mapping[str, Any]) -> None:
    for name, value in pins.items():
        if not LEVER_VALUES[name](value):
            raise RecipeError(
                f"--{name.replace('_', '-')} cannot be {value!r}: `plimsoll plan --help` says what it can"
            )


LEFT_ALONE: dict[str, Any] = {
    one.name: one.default
    for one in dataclasses.fields(Plan)
    if one.name in LEVERS and one.default is not dataclasses.MISSING
}
"""Levers that older plans do not name, at the value they had then."""

OFF: dict[str, Any] = {
    "remat": "none",
    "loss_chunk": 0,
    "attention_chunk": 0,
    "precision": "float32",
    "optimizer_bits": 32,
    "weight_bits": 32,
    "frozen_bits": 32,
    "ema_bits": 32,
    "layerwise": 0,
    "offload": "none",
}
"""Levers that a task or its optimizer must make use of, at the value that asks nothing of it."""


def require_supported(recipe: Recipe, pins: Mapping[str, Any]) -> None:
    for name, off in OFF.items():
        value = pins.get(name, off)
        asked = offloading.supports(value) if name == "offload" else [name]
        if value != off and (unused := set(asked) - set(recipe.supported_levers)):
            if name == "ema_bits":
                raise RecipeError(
                    f"--ema-bits {pins[name]} would change nothing: {name_of(recipe)} keeps no average of its weights."
                    " Leave it out, or give --ema-decay"
                )
            whose = "optimizer" if unused & {"optimizer_bits", "weight_bits", "offload"} else "loss"
            raise RecipeError(
                f"--{name.replace('_', '-')} {pins[name]} would change nothing: the {whose} of {name_of(recipe)} makes"
                " no use of that lever. Leave it out, or let the recipe support it (docs/your-own.md)"
            )

    if recipe.rate_unit == "tokens":
        length = recipe.rate_per_example
        for name, most, of in (
            ("loss_chunk", recipe.effective_batch * length, "an effective batch has"),
            ("attention_chunk", length, "a window has"),
        ):
            if pins.get(name, 0) >= most:
                raise RecipeError(
                    f"--{name.replace('_', '-')} {pins[name]:,} would change nothing: {of} {most:,} tokens. Leave it"
                    " out, or make it smaller"
                )
    if pins.get("remat") == "offload" and "remat_offload" not in recipe.supported:
        raise RecipeError(
            f"--remat offload would change nothing: the loss of {name_of(recipe)} does not say what is to lie on the"
            " host. Use --remat block"
        )


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


LEVER_VALUES: dict[str, Callable[[Any], bool]] = {
    "micro_batch": _whole(1),
    "remat": lambda value: value in ("none", "dots", "block", "offload"),
    "loss_chunk": _whole(0),
    "attention_chunk": _whole(0),
    "precision": lambda value: value in ("float32", "tf32", "bfloat16", "float16"),
    "optimizer_bits": lambda value: value in (32, 8) and not isinstance(value, bool),
    "weight_bits": lambda value: value in (32, 24, 16) and not isinstance(value, bool),
    "frozen_bits": lambda value: value in (32, 16, 8, 4) and not isinstance(value, bool),
    "ema_bits": lambda value: value in (32, 16) and not isinstance(value, bool),
    "layerwise": lambda value: value in (0, 1, 2) and not isinstance(value, bool),
    "offload": lambda value: value in OFFLOADED,
    "fsdp": _whole(1),
    "prefetch": _whole(0),
    "async_save": lambda value: isinstance(value, bool),
}
