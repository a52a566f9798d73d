"""`plimsoll plan`: parse, search, print."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from plimsoll.cli.parse import parse, take_recipe
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.recipes.own.files import short_name

if TYPE_CHECKING:
    from plimsoll.cli.options import PlanOptions


def plan(arguments: list[str]) -> int:
    """Prints the fastest plan that fits, with its predicted bytes. Allocates nothing."""
    from plimsoll.cli.options import PlanOptions

    name, recipe, rest = take_recipe(arguments, command="plan")
    options = parse(PlanOptions, rest, program=f"plimsoll plan {name}", recipe=recipe)
    if options.settings:
        return _settings(name, options)
    if options.compare is not None:
        return _compare(name, options)
    if options.price is not None:
        raise RecipeError(
            "--price is for --compare, which says what the same costs on several chips: add it, or leave it out"
        )
    from plimsoll import report
    from plimsoll.api.plan import plan as find_plan

    if options.picture is not None:
        report.require_picture(options.picture)
    try:
        found = find_plan(
            options.recipe,
            name=short_name(name),
            memory=options.memory,
            host_memory=options.host_memory,
            chip=options.chip,
            mesh=options.mesh,
            numerics=options.levers.numerics,
            pins=options.levers.pins(),
            measure=options.measure,
            say=_progress,
        )
    except BudgetError as problem:
        if options.json:
            refusal = {
                "fits": False,
                "budget_bytes": problem.budget_bytes,
                "floor_bytes": problem.floor_bytes,
                "reason": str(problem),
            }
            print(json.dumps(refusal))
        raise
    print(json.dumps(found.to_dict()) if options.json else report.plan_table(found))
    if options.buffers and not options.json:
        print(f"\n{report.buffers_table(found)}")
    if options.picture is not None:
        report.plan_picture(found, options.picture)
    return 0


def _settings(name: str, options: PlanOptions) -> int:
    from plimsoll import report
    from plimsoll.api.compare import settings

    _require_alone(options)
    found = settings(
        options.recipe, name=name, numerics=options.levers.numerics, pins=options.levers.pins(), say=_progress
    )
    if options.json:
        print(json.dumps([one.to_dict() for one in found]))
    else:
        rows = [(one.machine, one.budget_bytes, one.planned, one.why_not) for one in found]
        print(report.settings_table(rows))
    return 0


def _compare(name: str, options: PlanOptions) -> int:
    assert options.compare is not None
    _require_several(options)
    from plimsoll import report
    from plimsoll.api.compare import chips_named, compared, prices_named

    names = chips_named(options.compare)
    prices = prices_named(options.price, names)
    if options.picture is not None:
        report.require_picture(options.picture)
    found = compared(
        options.recipe,
        names,
        name=short_name(name),
        prices=prices,
        memory=options.memory,
        host_memory=options.host_memory,
        numerics=options.levers.numerics,
        pins=options.levers.pins(),
        say=_progress,
    )
    print(json.dumps({"compared": [row.to_dict() for row in found]}) if options.json else report.compared_table(found))
    if options.picture is not None:
        report.compared_picture(found, options.picture)
    return 0 if any(row.planned is not None for row in found) else 2


def _require_several(options: PlanOptions) -> None:
    of_one = {"--chip": options.chip != "cpu", "--measure": options.measure, "--buffers": options.buffers}
    if given := [flag for flag, there in of_one.items() if there]:
        raise RecipeError(
            f"--compare plans for several chips, and {', '.join(given)} asks for one: leave out {' and '.join(given)},"
            " or --compare"
        )


def _require_alone(options: PlanOptions) -> None:
    """Raises RecipeError where an option for one plan is given with --settings, which makes several."""
    of_one = {
        "--compare": options.compare is not None,
        "--memory": options.memory is not None,
        "--host-memory": options.host_memory is not None,
        "--chip": options.chip != "cpu",
        "--mesh": options.mesh is not None,
        "--measure": options.measure,
        "--buffers": options.buffers,
        "--picture": options.picture is not None,
    }
    if given := [flag for flag, there in of_one.items() if there]:
        raise RecipeError(
            f"--settings plans for machines of its own, and {', '.join(given)} asks for one plan: leave out"
            f" {' and '.join(given)}, or --settings"
        )


def _progress(text: str) -> None:
    print(f"  {text} ...", file=sys.stderr)
