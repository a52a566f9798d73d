"""Command `plimsoll plan`: searches for a plan that fits the memory budget, and prints it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from plimsoll.cli.options import PlanOptions
from plimsoll.cli.parse import parse_with_recipe, print_answer, say
from plimsoll.errors import BudgetError

if TYPE_CHECKING:
    from plimsoll.api.planning.question import Question


def plan(arguments: list[str]) -> int:
    """Prints the fastest plan that fits, with its predicted bytes. Allocates arrays only with --measure."""
    typed = parse_with_recipe(PlanOptions, arguments, command="plan")
    options = typed.options
    from plimsoll.api.planning.ask import ask
    from plimsoll.api.planning.question import Question
    from plimsoll.report import picture, tables

    question = Question(
        recipe=typed.recipe,
        name=typed.name,
        memory=options.memory,
        host_memory=options.host_memory,
        chip=options.chip,
        mesh=options.mesh,
        numerics=options.numerics,
        pins=typed.pins,
        step_options=options.step_options,
        within=options.within,
        measure=options.measure,
    )
    if options.compare is not None:
        return _compare(question, options, options.compare)
    if options.picture is not None:
        picture.require_place(options.picture)
    try:
        planned = ask(question, say, smallest=options.floor, largest=options.largest)
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

    # Print the plan and the requested tables, and draw the picture.
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


def _compare(question: Question, options: PlanOptions, names: str) -> int:
    """Prints a table of plans for several chips. Returns the exit code."""
    from plimsoll.api.planning.compare import chips_named, compare, prices_named
    from plimsoll.report.compared import compared_table

    chips = chips_named(names)
    rows = compare(question, chips, prices_named(options.price, chips), say)
    print_answer(options, {"compared": [row.to_dict() for row in rows]}, lambda _: compared_table(rows))
    return 0 if any(row.planned is not None for row in rows) else 2
