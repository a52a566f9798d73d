"""`plimsoll plan`: parse, search, print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from plimsoll.cli.options import PlanOptions
from plimsoll.cli.parse import parse_with_recipe, print_answer, say
from plimsoll.errors import BudgetError
from plimsoll.recipes.recipe import Recipe


def plan(arguments: list[str]) -> int:
    """Prints the fastest plan that fits, with its predicted bytes. Allocates nothing."""
    typed = parse_with_recipe(PlanOptions, arguments, command="plan")
    options = typed.options
    shared: dict[str, Any] = {
        "name": typed.name,
        "memory": options.memory,
        "host_memory": options.host_memory,
        "within": options.within,
        "numerics": options.numerics,
        "pins": typed.pins,
        "say": say,
    }
    if options.compare is not None:
        return _compare(typed.recipe, options, options.compare, shared)
    from plimsoll.api.plan import plan as find_plan
    from plimsoll.report import picture, tables

    if options.picture is not None:
        picture.require_place(options.picture)
    try:
        planned = find_plan(
            typed.recipe,
            chip=options.chip,
            mesh=options.mesh,
            measure=options.measure,
            smallest=options.floor,
            largest=options.largest,
            **shared,
        )
    except BudgetError as problem:
        if options.json:
            refusal = {
                "fits": False,
                "verdict": problem.verdict,
                "budget_bytes": problem.budget_bytes,
                "floor_bytes": problem.floor_bytes,
                "reason": str(problem),
            }
            print(json.dumps(refusal))
        raise

    # The plan, and what was asked for besides.
    floor = {"floor_bytes": planned.ledger.needed_bytes} if options.floor else {}
    print_answer(options, planned.to_dict() | floor, lambda _: tables.plan_table(planned))
    wanted = {tables.buffers_table: options.buffers, tables.frontier_table: options.frontier}
    for table_of, is_wanted in wanted.items():
        if is_wanted and not options.json:
            table = table_of(planned)
            print("\n".join(["", table.title, *table.lines()]))
    if options.picture is not None:
        chart = picture.frontier_chart(planned) if options.frontier else picture.waterfall(planned)
        picture.save_picture(options.picture, picture.figure_of(chart))
    return 0


def _compare(recipe: Recipe, options: PlanOptions, names: str, shared: Mapping[str, Any]) -> int:
    """Prints a plan for each of several chips. `shared` are the arguments of `plan` that are the same for all."""
    from plimsoll.api.compare import chips_named, compared, prices_named
    from plimsoll.report.compared import compared_table

    chips = chips_named(names)
    prices = prices_named(options.price, chips)
    rows = compared(recipe, chips, prices=prices, **shared)
    print_answer(options, {"compared": [row.to_dict() for row in rows]}, lambda _: compared_table(rows))
    return 0 if any(row.planned is not None for row in rows) else 2
