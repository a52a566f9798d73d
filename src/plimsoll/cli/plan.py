"""`plimsoll plan`: parse, search, print."""

from __future__ import annotations

import json
import sys

from plimsoll.cli.parse import parse, take_recipe
from plimsoll.errors import BudgetError
from plimsoll.recipes.files import short_name


def plan(arguments: list[str]) -> int:
    """Prints the fastest plan that fits, with its predicted bytes. Allocates nothing."""
    from plimsoll.cli.options import PlanOptions

    name, recipe, rest = take_recipe(arguments, command="plan")
    options = parse(PlanOptions, rest, program=f"plimsoll plan {name}", recipe=recipe)
    from plimsoll import report, run

    try:
        found = run.plan(
            options.recipe,
            name=short_name(name),
            memory=options.memory,
            host_memory=options.host_memory,
            chip=options.chip,
            numerics=options.levers.numerics,
            pins=options.levers.pins(),
            measure=options.measure,
            say=lambda text: print(f"  {text} ...", file=sys.stderr),
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
    if options.picture is not None:
        report.plan_picture(found, options.picture)
    print(json.dumps(found.to_dict()) if options.json else report.plan_table(found))
    if options.buffers and not options.json:
        print(f"\n{report.buffers_table(found)}")
    return 0
