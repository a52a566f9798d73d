"""From typed words to a dataclass: tyro does the parsing, its errors become one paragraph. Help is `cli/help.py`'s.

Counts may be typed as 124M; the names that users of the published guides know are kept as aliases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from plimsoll.cli.examples import example
from plimsoll.cli.help import COLUMNS, help_text
from plimsoll.errors import RecipeError
from plimsoll.options import COUNTED, notes_of
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.overrides import giving_way, require_one_side, set_by_recipe
from plimsoll.units import parse_count

T = TypeVar("T")
tyro._experimental_options["utf8_boxes"] = False  # errors between plain rules, in every terminal

Json = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="Print one JSON object and nothing else.")]
"""`--json` of every command that has it."""
Run = Annotated[
    tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN", help="Folder of the run, or its address in a bucket.")
]
"""Run that a command looks at."""

ALIASES: dict[str, list[str]] = {
    "--use-mixed-precision": ["--numerics", "mixed"],
    "--no-mixed-precision": ["--numerics", "exact"],
    "--use-8bit-optimizer": ["--optimizer-bits", "8"],
    "--no-streaming": ["--no-use-streaming"],
    "--output-dir": ["--run"],
    "--checkpoint-dir": ["--run"],
    "--resume": [],  # the same command continues by itself
}


def parse(
    options: type[T], arguments: list[str], *, program: str, recipe: Recipe | None = None, shown: str | None = None
) -> T:
    """Returns an `options`, with its `recipe` field filled from the recipe's own options, where there is one.

    What the recipe itself has set gives way to an option that says the same in other words. `shown` is the example of
    its help, where it is not the program's own.
    """
    if {"-h", "--help"} & {*arguments}:
        print(help_text(options, program=program, example=shown or example(program), recipe=recipe))
        raise SystemExit(0)
    if recipe is None:
        return _parsed(options, arguments, program=program)
    name, given = program.rpartition(" ")[2], _given(arguments)
    changed, what_gave_way = giving_way(recipe, given)
    try:
        parsed = _parsed(options, arguments, program=program, recipe=changed)
    except RecipeError as refusal:
        raise RecipeError(f"{refusal}{set_by_recipe(changed, str(refusal), given, name=name)}") from None
    require_one_side(recipe, given)
    if what_gave_way:  # not on standard output, where --json stands alone
        print(f"of the recipe {name}, {what_gave_way}", file=sys.stderr)
    return parsed


def _parsed(options: type[T], arguments: list[str], *, program: str, recipe: Recipe | None = None) -> T:
    default: dict[str, Any] = {} if recipe is None else {"default": options(recipe=recipe)}  # type: ignore[call-arg]
    hints = get_type_hints(type(recipe) if recipe is not None else options, include_extras=True)
    counts = {f"--{name.replace('_', '-')}" for name, hint in hints.items() if COUNTED in notes_of(hint)}
    words = _translated(arguments, counts)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed = tyro.cli(
                tyro.conf.OmitArgPrefixes[options],  # type: ignore[valid-type]
                prog=program,
                args=words,
                **default,
            )
    except SystemExit:
        raise RecipeError(_one_paragraph(errors.getvalue(), program)) from None
    # Sizes that contradict one another are said now, not by the compile child.
    getattr(getattr(parsed, "recipe", None), "shape", None)
    return parsed


def take_recipe(arguments: list[str], *, command: str) -> tuple[str, Recipe, list[str]]:
    """Returns the name that stands first (or behind --preset), its recipe, and the words after it."""
    from plimsoll.recipes.registry import presets

    words = list(arguments)
    if "--preset" in words[:-1]:
        at = words.index("--preset")
        name = words.pop(at + 1)
        words.pop(at)
        if words and not words[0].startswith("-"):
            name = f"{words.pop(0)}-{name}"  # `longcontext --preset nano`
        return name, _recipe(name), words
    if words[:1] in (["-h"], ["--help"]):
        known = f"RECIPE is one of {', '.join(presets())}, or a file of yours, like my_recipe.py."
        print(textwrap.fill(known, COLUMNS, break_on_hyphens=False))
        print("With the defaults of stories:\n")
        return "stories", _recipe("stories"), words
    if not words or words[0].startswith("-"):
        raise RecipeError(
            f"plimsoll {command} needs a recipe first: {', '.join(presets())}, like `plimsoll {command} code`, or a"
            " file of yours, like my_recipe.py"
        )
    return words[0], _recipe(words[0]), words[1:]


def parse_with_recipe(options: type[T], arguments: list[str], *, command: str) -> tuple[str, T]:
    """Returns the recipe's name as it was typed, and an `options` with the recipe and the options after it."""
    name, recipe, rest = take_recipe(arguments, command=command)
    return name, parse(options, rest, program=f"plimsoll {command} {name}", recipe=recipe)


def words_without(words: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Returns the words of a command line without some options.

    Args:
        words: As they were typed.
        options: Flags to leave out; whether a value follows.
    """
    rest, kept = iter(words), []
    for word in rest:
        flag, equals, _ = word.partition("=")
        flag = flag.replace("_", "-")
        if flag not in options:
            kept.append(word)
        elif options[flag] and not equals:
            next(rest, None)
    return kept


def _given(words: list[str]) -> dict[str, str | None]:
    """Returns the options that were typed, by field, each with the word after it. --largest gives the one it names."""
    given = {}
    for word, following in zip_longest(words, words[1:]):
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            given[flag[2:].replace("-", "_")] = value if equals else following
    if largest := given.get("largest"):
        given[largest.replace("-", "_")] = largest
    return given


def _recipe(name: str) -> Recipe:
    from plimsoll.recipes.own.files import is_file_name
    from plimsoll.recipes.registry import preset

    if is_file_name(name):
        from plimsoll.processes.environment import keep_jax_off_the_chip

        keep_jax_off_the_chip()
    return preset(name)


def _translated(arguments: list[str], counts: set[str]) -> list[str]:
    # Aliases, and --steps=3 as two words. A value may have an equals sign in it: `--prompt "x = 1"`.
    words: list[str] = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag in ALIASES or flag in counts:
            words += ALIASES.get(flag, [flag])
            words += [value] if equals else []
        else:
            words.append(word)

    # Counts. A negative one is for the recipe to refuse: it knows why.
    for at, count in enumerate(words[1:], 1):
        flag = words[at - 1]
        if flag in counts and re.fullmatch(r"--.*|-?[0-9]+|None", count, re.DOTALL) is None:
            try:
                words[at] = str(parse_count(count))
            except RecipeError as problem:
                raise RecipeError(f"{flag}: {problem}") from None
    return words


def _one_paragraph(boxed: str, program: str) -> str:
    """Returns tyro's error, which it draws in a box above help texts, in our words and on one line."""
    _, problem, *rest_of_box = [" ".join(part.split()) for part in re.split(r"-{8,}", boxed)]
    rest = " ".join(rest_of_box)
    more = f"`{program} --help` lists the options"
    if match := re.match(r"Unrecognized options?: (.*)", problem):
        unknown = [word for word in match[1].split(", ") if word.startswith("-")]
        if not unknown:
            return f"nothing more is expected after the options and arguments given, got {match[1]!r}; {more}"
        near = list(dict.fromkeys(re.findall(r"(?<!similar to )(--[a-z][a-z0-9-]+)(?= [A-Z{\[])", rest)))[:3]
        hint = f": did you mean {' or '.join(near)}?" if near else ";"
        return f"there is no option {' or '.join(unknown)}{hint} {more}"
    if match := re.match(r"Error parsing (--\S+): .*?(?:from \[|: )('[^']*'|\"[^\"]*\")", problem):
        kind = re.search(rf"{match[1]} (?:\{{None\}}\|)?(\w+)", rest)
        wanted = {"INT": "a whole number", "FLOAT": "a number"}.get(kind[1] if kind else "", "another kind of value")
        return f"{match[1]} takes {wanted}, got {match[2]}; {more}"
    if match := re.match(r"Missing value for argument '(\S+)'", problem):
        return f"{match[1].split('|')[0]} needs a value after it; {more}"
    if match := re.match(r"invalid choice (.*) for argument '(\S+)'. Expected one of \((.*)\)", problem):
        choices = sorted(set(re.findall(r"'([^']*)'", match[3])) - {"None"})  # a set there: its order changes
        return f"{match[2]} takes one of {', '.join(choices)}, got {match[1]}"
    if match := re.match(r"Missing from (.*?): (--\S+ \S+|\S+) (?:The |An? )?(.*?)\.? \(required\)", problem):
        meaning = match[3] if match[3][1:2].isupper() else f"{match[3][0].lower()}{match[3][1:]}"  # CSV
        return f"{match[1]} needs {match[2].split()[0]}, the {meaning}; {more}"
    return f"{problem}; {more}"


def request_of(options: Any) -> dict[str, Any]:
    """Returns the options as a request to a worker, in which --json means nothing."""
    return {name: value for name, value in dataclasses.asdict(options).items() if name != "json"}


def print_answer(options: Any, answer: Any, text: Callable[[Any], str]) -> int:
    """Prints an answer by `text`, or as JSON where `options` ask for that. Returns the exit code."""
    print(json.dumps(answer) if options.json else text(answer))
    return 0


def say(text: str) -> None:
    """Prints what is done now, beside the output."""
    print(f"  {text} ...", file=sys.stderr)
