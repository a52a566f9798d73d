"""The joint: a recipe and a budget become a plan, and a plan becomes a run.

`plan` and `train` are the library's two verbs. Neither imports JAX: compiling happens in a child, training in a
process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plimsoll import environment
from plimsoll.errors import BudgetError, PlimsollError, RecipeError, RunError
from plimsoll.planner import host
from plimsoll.planner.child import Child, processor
from plimsoll.planner.search import search
from plimsoll.planner.types import Problem
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.registry import differences, from_dict, preset
from plimsoll.training.folder import RunFolder
from plimsoll.types import Planned
from plimsoll.units import format_bytes, parse_bytes

Say = Callable[[str], None]
NUMERICS = ("exact", "mixed", "compressed")
PREFETCH = 2
UNKNOWN_STEPS = 10_000
"""Length of the schedule where nobody has said or counted it: changes no byte."""


def plan(
    recipe: Recipe | str,
    *,
    memory: str | int | None = None,
    chip: str = "cpu",
    numerics: str = "mixed",
    pins: Mapping[str, Any] | None = None,
    measure: bool = False,
    steps: int | None = None,
    say: Say = lambda text: None,
) -> Planned:
    """The fastest plan for `recipe` whose predicted peak is at most `memory`; allocates nothing unless `measure`.

    Raises BudgetError, with the smallest peak found and what would fit, if nothing does.
    """
    recipe = preset(recipe) if isinstance(recipe, str) else recipe
    problem = _problem(recipe, budget=budget_bytes(memory), chip=chip, numerics=numerics, pins=pins, measure=measure)
    about = {"recipe": recipe.to_dict(), "steps": steps or recipe.steps or UNKNOWN_STEPS}
    command = [sys.executable, "-m", "plimsoll.worker", "compile", json.dumps(about)]
    answers = environment.cache_folder() / "answers"
    with Child(command, environment.for_processes(chip), about=about, answers=answers) as compiler:
        return search(problem, compiler, say)


def budget_bytes(memory: str | int | None) -> int:
    """As asked for, or what is really available less a margin."""
    if memory is not None:
        return parse_bytes(memory)
    available = host.available_bytes()
    return available - host.margin_bytes(available)


def _problem(
    recipe: Recipe, *, budget: int, chip: str, numerics: str, pins: Mapping[str, Any] | None, measure: bool
) -> Problem:
    if chip != "cpu":
        raise RecipeError(f"there is no chip called {chip!r} yet: this version plans for cpu, the one it runs on")
    if numerics not in NUMERICS:
        raise RecipeError(f"--numerics {numerics!r} is not one of {', '.join(NUMERICS)}")
    pins = {name: value for name, value in (pins or {}).items() if value is not None}
    prefetch = pins.get("prefetch", PREFETCH)
    return Problem(
        recipe=recipe.kind,
        chip=chip,
        budget_bytes=budget,
        effective_batch=recipe.effective_batch,
        rate_per_example=recipe.rate_per_example,
        rate_unit=recipe.rate_unit,
        numerics=numerics,
        honoured=recipe.honoured,
        loss_chunks=recipe.loss_chunks,
        host_bytes={prefetch: recipe.host_bytes(prefetch=prefetch)},
        pins=pins,
        measure=measure,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `train` may be told besides the recipe."""

    memory: str | int | None = None
    numerics: str = "mixed"
    run: str | None = None
    plan: str | None = None
    replan: bool = False
    pins: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_steps: int | None = None
    max_seconds: float | None = None
    log_every: int = 10
    save_every: int | None = None
    eval_every: int | None = None
    quiet: bool = False
    tracker: str = "none"
    profile: int = 0
    profiler_port: int | None = None
    debug_nans: bool = False


def prepare_run(recipe: Recipe, options: TrainOptions, say: Say) -> tuple[list[str], dict[str, str]]:
    """Everything up to training: folder, data, plan. Returns the training process's command and environment."""
    folder = RunFolder(options.run or default_run(recipe))
    folder.create()
    folder.lock()
    if folder.exists():
        _require_same(folder, recipe)
    else:
        folder.write("recipe.json", recipe.to_dict())
    if folder.has("data.json"):
        prepared = Prepared(**folder.read("data.json"))
    else:
        prepared = recipe.prepare(folder.path, say)
        folder.write("data.json", dataclasses.asdict(prepared))
    budget = _settle_plan(folder, recipe, options, prepared, say)
    session = {
        "run": str(folder.path),
        "budget_bytes": budget,
        **{
            name: getattr(options, name)
            for name in (
                "max_steps", "max_seconds", "log_every", "save_every", "eval_every",
                "quiet", "tracker", "profile", "profiler_port", "debug_nans",
            )
        },
    }  # fmt: skip
    command = [sys.executable, "-m", "plimsoll.worker", "train", json.dumps(session)]
    return command, environment.for_processes("cpu")


def default_run(recipe: Recipe) -> str:
    return f"runs/{recipe.kind}"


def _require_same(folder: RunFolder, recipe: Recipe) -> None:
    theirs = from_dict(folder.read("recipe.json"))
    changed = differences(theirs, recipe)
    if changed:
        words = "; ".join(
            f"--{name.replace('_', '-')} is {before!r} there and {now!r} here"
            for name, (before, now) in changed.items()
        )
        raise RunError(
            f"{folder.path} is a run of another recipe: {words}. Use the same options to continue it, or name another"
            " --run"
        )


def _settle_plan(folder: RunFolder, recipe: Recipe, options: TrainOptions, prepared: Prepared, say: Say) -> int:
    """A started run keeps its plan; a lower budget than it needs asks for --replan."""
    from plimsoll.report import plan_table

    if folder.has("plan.json") and not options.replan:
        planned = folder.read("plan.json")
        budget = planned["budget_bytes"] if options.memory is None else budget_bytes(options.memory)
        if planned["predicted_peak_bytes"] > budget:
            raise BudgetError(
                f"the plan of {folder.path} needs {format_bytes(planned['predicted_peak_bytes'])}, and --memory allows"
                f" {format_bytes(budget)}: add --replan to look for a smaller plan that continues this run",
                budget_bytes=budget,
                floor_bytes=planned["predicted_peak_bytes"],
            )
        return budget
    if options.plan is not None:
        planned = _from_file(options.plan, recipe)
        budget = planned["budget_bytes"] if options.memory is None else budget_bytes(options.memory)
        folder.write("plan.json", planned | {"budget_bytes": budget})
        return budget
    found = plan(
        recipe,
        memory=options.memory,
        numerics=options.numerics,
        pins=options.pins,
        measure=True,
        steps=prepared.steps,
        say=say,
    )
    say(plan_table(found))
    folder.write("plan.json", found.to_dict())
    return found.ledger.budget_bytes


def _from_file(path: str, recipe: Recipe) -> dict[str, Any]:
    try:
        planned = json.loads(Path(path).read_text())
        micro, times = planned["plan"]["micro_batch"], planned["plan"]["accumulation"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise RecipeError(
            f"--plan {path} is not a plan ({problem}): write one with `plimsoll plan ... --json > plan.json`, or take"
            " a run's plan.json"
        ) from None
    if micro * times != recipe.effective_batch:
        raise RecipeError(
            f"--plan {path} splits {micro * times} examples a step ({micro} x {times}), and the recipe's effective"
            f" batch is {recipe.effective_batch}: plan again, or change --batch-size"
        )
    return planned


def train(recipe: Recipe | str, *, say: Say = print, **options: Any) -> RunFolder:
    """Plans, then trains in a process of its own; the run folder. Raises PlimsollError if it was refused or stopped."""
    recipe = preset(recipe) if isinstance(recipe, str) else recipe
    given = TrainOptions(**options)
    command, variables = prepare_run(recipe, given, say)
    code = subprocess.run(command, env=variables, check=False, close_fds=False).returncode
    if code:
        raise PlimsollError(f"training ended with code {code}: its own message says why")
    return RunFolder(given.run or default_run(recipe))


def become(command: list[str], variables: dict[str, str]) -> None:
    """Turns this process into that one: same PID, a resident set that starts from nothing. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, variables)


__all__ = ["TrainOptions", "become", "budget_bytes", "plan", "prepare_run", "processor", "train"]
