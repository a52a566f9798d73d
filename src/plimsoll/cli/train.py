"""`plimsoll train`: parse, prepare and plan here, then turn into the training process."""

from __future__ import annotations

from plimsoll.cli.parse import parse, take_recipe
from plimsoll.recipes.files import short_name
from plimsoll.units import parse_seconds


def train(arguments: list[str]) -> int:
    """Plans, then trains; the same command again continues. Does not return where training starts."""
    from plimsoll.cli.options import TrainOptions

    name, recipe, rest = take_recipe(arguments, command="train")
    options = parse(TrainOptions, rest, program=f"plimsoll train {name}", recipe=recipe)
    from plimsoll import run
    from plimsoll.session_options import session_options

    given = run.TrainOptions(
        memory=options.memory,
        chip=options.chip,
        numerics=options.levers.numerics,
        run=options.run or f"runs/{short_name(name)}",
        name=short_name(name),
        plan=options.plan,
        replan=options.replan,
        pins=options.levers.pins(),
        max_seconds=_minutes(options.max_minutes),
        **session_options(options),
    )
    quietly = (lambda text: None) if options.quiet else (lambda text: print(text, flush=True))
    run.become(run.prepare_run(options.recipe, given, quietly))
    raise AssertionError("exec returned")


def _minutes(text: str | None) -> float | None:
    if text is None:
        return None
    bare = text.replace(".", "", 1).isdigit()
    return float(text) * 60 if bare else parse_seconds(text)
