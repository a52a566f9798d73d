"""`plimsoll plan`: parse, search, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from plimsoll.cli.options import PlanOptions
from plimsoll.cli.parse import Typed, parse_with_recipe, say
from plimsoll.errors import BudgetError, RecipeError


def plan(arguments: list[str]) -> int:
    """Prints the fastest plan that fits, with its predicted bytes. Allocates nothing."""
    typed = parse_with_recipe(PlanOptions, arguments, command="plan")
    options = typed.options
    if options.price is not None and options.compare is None:
        raise RecipeError(
            "--price is for --compare, which says what the same costs on several chips: add it, or leave it out"
        )
    if options.largest is not None:
        _require_largest_alone(typed, options.largest)
    if options.compare is not None:
        return _compare(typed)
    from plimsoll.api.plan import plan as find_plan
    from plimsoll.report import tables

    if options.picture is not None:
        from plimsoll.report.picture import require_place

        require_place(options.picture)
    here = {"chip": options.chip, "mesh": options.mesh, "measure": options.measure, "smallest": options.floor}
    here["largest"] = options.largest
    try:
        planned = find_plan(typed.recipe, **here, **_budgets_and_levers(typed))
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
    floor = {"floor_bytes": planned.ledger.needed_bytes} if options.floor else {}
    print(json.dumps(planned.to_dict() | floor) if options.json else tables.plan_table(planned))
    more = [tables.buffers_table(planned)] if options.buffers else []
    more += [tables.frontier_table(planned)] if options.frontier else []
    for table in more:
        if not options.json:
            print("\n".join(["", table.title, *table.lines()]))
    if options.picture is not None:
        from plimsoll.report import picture

        chart = picture.frontier_chart(planned) if options.frontier else picture.waterfall(planned)
        picture.save_picture(options.picture, picture.figure_of(chart))
    return 0


def _compare(typed: Typed[PlanOptions]) -> int:
    options = typed.options
    assert options.compare is not None
    others = ("chip", "mesh", "measure", "buffers", "floor", "frontier", "picture")
    _require_alone(options, "compare", "several chips", others)
    from plimsoll.api.compare import chips_named, compared, prices_named
    from plimsoll.report.compared import compared_table

    chips = chips_named(options.compare)
    prices = prices_named(options.price, chips)
    rows = compared(typed.recipe, chips, prices=prices, **_budgets_and_levers(typed))
    print(json.dumps({"compared": [row.to_dict() for row in rows]}) if options.json else compared_table(rows))
    return 0 if any(row.planned is not None for row in rows) else 2


def _budgets_and_levers(typed: Typed[PlanOptions]) -> dict[str, Any]:
    """Returns the arguments of `api.plan.plan` that are the same for one chip and for several."""
    from plimsoll.recipes.own.files import short_name

    options = typed.options
    return {
        "name": short_name(typed.name),
        "memory": options.memory,
        "host_memory": options.host_memory,
        "within": options.within,
        "numerics": options.numerics,
        "pins": typed.pins,
        "say": say,
    }


def _require_largest_alone(typed: Typed[PlanOptions], option: str) -> None:
    """Raises RecipeError where the option is given a value, too, or where another kind of plan is asked for."""
    options, name = typed.options, option.replace("-", "_")
    if name in typed.given:
        raise RecipeError(
            f"--{option} {typed.given[name]} asks for one value, and --largest {option} for the largest that fits:"
            " leave one of them out"
        )
    _require_alone(
        options, "largest", "the largest value that fits one budget", ("compare", "floor", "frontier", "measure")
    )


def _require_alone(options: PlanOptions, option: str, what: str, others: Sequence[str]) -> None:
    """Raises RecipeError where another option asks for another kind of plan."""
    given = [f"--{name}" for name in others if getattr(options, name) not in (None, False)]
    if given:
        raise RecipeError(
            f"--{option} plans for {what}, and {', '.join(given)} asks for something else: leave out"
            f" {' and '.join(given)}, or --{option}"
        )
