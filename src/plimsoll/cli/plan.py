"""`plimsoll plan`: parse, search, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plimsoll.cli.parse import parse_with_recipe, say
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.recipes.own.files import short_name

if TYPE_CHECKING:
    from plimsoll.cli.options import PlanOptions


def plan(arguments: list[str]) -> int:
    """Prints the fastest plan that fits, with its predicted bytes. Allocates nothing."""
    from plimsoll.cli.options import PlanOptions

    name, options = parse_with_recipe(PlanOptions, arguments, command="plan")
    if options.price is not None and options.compare is None:
        raise RecipeError(
            "--price is for --compare, which says what the same costs on several chips: add it, or leave it out"
        )
    if options.largest is not None:
        _require_largest_alone(options, options.largest, arguments)
    if options.compare is not None:
        return _compare(name, options)
    from plimsoll.api.plan import plan as find_plan
    from plimsoll.report import tables

    if options.picture is not None:
        from plimsoll.report.picture import require_place

        require_place(options.picture)
    here = {"chip": options.chip, "mesh": options.mesh, "measure": options.measure, "smallest": options.floor}
    here["largest"] = options.largest
    try:
        planned = find_plan(options.recipe, **here, **_budgets_and_levers(name, options))
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


def _compare(name: str, options: PlanOptions) -> int:
    assert options.compare is not None
    _require_compare_alone(options)
    from plimsoll.api.compare import chips_named, compared, prices_named
    from plimsoll.report.compared import compared_table

    chips = chips_named(options.compare)
    prices = prices_named(options.price, chips)
    rows = compared(options.recipe, chips, prices=prices, **_budgets_and_levers(name, options))
    print(json.dumps({"compared": [row.to_dict() for row in rows]}) if options.json else compared_table(rows))
    return 0 if any(row.planned is not None for row in rows) else 2


def _budgets_and_levers(name: str, options: PlanOptions) -> dict[str, Any]:
    """Returns the arguments of `api.plan.plan` that are the same for one chip and for several."""
    return {
        "name": short_name(name),
        "memory": options.memory,
        "host_memory": options.host_memory,
        "within": options.within,
        "numerics": options.levers.numerics,
        "pins": options.levers.pins(),
        "say": say,
    }


def _require_largest_alone(options: PlanOptions, option: str, arguments: Sequence[str]) -> None:
    """Raises RecipeError where the option is given a value, too, or where another kind of plan is asked for."""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == f"--{option}":
            raise RecipeError(
                f"{name} {value if equals else after} asks for one value, and --largest {option} for the largest that"
                " fits: leave one of them out"
            )
    others = [f"--{name}" for name in ("compare", "floor", "frontier", "measure") if getattr(options, name)]
    if others:
        raise RecipeError(
            f"--largest {option} plans for the largest value that fits one budget, and {', '.join(others)} asks for"
            f" something else: leave out {' and '.join(others)}, or --largest"
        )


def _require_compare_alone(options: PlanOptions) -> None:
    """Raises RecipeError where an option for one plan is given, too."""
    names = ("chip", "mesh", "measure", "buffers", "floor", "frontier", "picture")
    if others := [f"--{name}" for name in names if getattr(options, name) not in (None, False)]:
        raise RecipeError(
            f"--compare plans for several chips, and {', '.join(others)} asks for one plan: leave out"
            f" {' and '.join(others)}, or --compare"
        )
