"""From typed words to values, by rows of options: argparse splits the words, and refusals are paragraphs.

What was typed is exactly what is in the answer: argparse knows no default. Counts may be typed as 124M, and the names
that users of the published guides know are accepted too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, NoReturn, TypeVar

from plimsoll.cli.help import Page, help_asked, page_of_recipe
from plimsoll.cli.main import COMMANDS, module_of_cli
from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.options import Argument, Json, Option, Options, Text, options_of, value_of
from plimsoll.recipes.flat import giving_way, require_one_side, set_by_recipe
from plimsoll.recipes.recipe import Recipe

if TYPE_CHECKING:
    import argparse

T = TypeVar("T")

Run = Annotated[str, Argument("RUN"), Text("Folder of the run, or its address in a bucket.")]
"""Run that a command looks at."""


@dataclass(frozen=True, kw_only=True)
class Printed(Options):
    """How an answer is printed."""

    json: Json = False


ALIASES: dict[str, list[str]] = {
    "--use-mixed-precision": ["--numerics", "mixed"],
    "--no-mixed-precision": ["--numerics", "exact"],
    "--use-8bit-optimizer": ["--optimizer-bits", "8"],
    "--no-streaming": ["--no-use-streaming"],
    "--output-dir": ["--run"],
    "--checkpoint-dir": ["--run"],
    "--resume": [],  # the same command continues by itself
}
"""Names of the published guides, and what they mean here."""
SAME = {"--data": "--dataset-id", "--dataset-id": "--data"}
"""Names of the option that names data: a recipe has one of them, and the other is accepted."""


@dataclass(frozen=True)
class Typed(Generic[T]):
    """What was typed after a command and a recipe."""

    name: str
    """Name of the recipe as it was typed."""
    recipe: Recipe
    options: T
    """Options of the command."""
    pins: Mapping[str, Any]
    """Levers, by name."""
    given: Mapping[str, Any]
    """Options of the recipe, by name."""


def parse(options: type[T], arguments: Sequence[str], *, command: str) -> T:
    """Returns the options of a command without a recipe."""
    page = Page(program=f"plimsoll {command}", options=options_of(options), example=COMMANDS[command].example)
    return options(**values_typed(page, arguments))


def values_typed(page: Page, arguments: Sequence[str], *, also_accepted: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the values that were typed, by option. Prints the help and exits where that is asked for.

    Args:
        page: Help of the command, with all its options.
        arguments: What was typed after the command.
        also_accepted: Names of options besides, for the help.
    """
    if text := help_asked(page, arguments, also_accepted):
        print(text)
        raise SystemExit(0)
    return typed(page.options, arguments, program=page.program)


def parse_with_recipe(options: type[T], arguments: Sequence[str], *, command: str) -> Typed[T]:
    """Returns what was typed after a command that takes a recipe first.

    What the recipe itself has set gives way to an option that says the same in other words.
    """
    name, recipe, words = take_recipe(arguments, command=command)
    page = page_of_recipe(command, name, recipe, options)
    values = values_typed(page, words, also_accepted=(*ALIASES, "--preset NAME", "--swap data=NAME"))

    # Options by whose they are.
    own = {option.name for option in options_of(options)}
    levers = {option.name for option in page.options if option.group == "levers"} - own
    fields = {option: value for option, value in values.items() if option not in own | levers}
    of_command = {option: value for option, value in values.items() if option in own}
    return Typed(
        name=name,
        recipe=changed_by_user(recipe, fields, name=name, searched=of_command.get("largest")),
        options=options(**of_command),
        pins={option: values[option] for option in levers & values.keys() if values[option] is not None},
        given=fields,
    )


def changed_by_user(recipe: Recipe, fields: Mapping[str, Any], *, name: str, searched: str | None = None) -> Recipe:
    """Returns the recipe with the options that were typed.

    Args:
        recipe: The recipe.
        fields: Options, by name.
        name: Name of the recipe, for refusals.
        searched: Option whose largest value is searched, which counts as given.
    """
    given = dict(fields) if searched is None else {**fields, searched.replace("-", "_"): searched}
    blank, what_gave_way = giving_way(recipe, given)
    try:
        changed = blank.replace(**fields)
        # Sizes that contradict one another are refused now, not by the compile child.
        if not changed.data.spec_in_data:
            _ = changed.hints
    except RecipeError as refusal:
        raise RecipeError(f"{refusal}{set_by_recipe(blank, str(refusal), given, name=name)}") from None
    require_one_side(recipe, given)
    if what_gave_way:  # not on standard output, where --json stands alone
        print(f"of the recipe {name}, {what_gave_way}", file=sys.stderr)
    return changed


def take_recipe(arguments: Sequence[str], *, command: str) -> tuple[str, Recipe, list[str]]:
    """Returns the name that stands first, its recipe with the parts that --swap exchanges, and the words after it."""
    words, parts = list(arguments), ""
    if "--swap" in words[:-1]:
        at = words.index("--swap")
        parts = words.pop(at + 1)
        words.pop(at)
    name, recipe, words = _named_first(words, command=command)
    return name, with_parts(recipe, parts) if parts else recipe, words


def with_parts(recipe: Recipe, parts: str) -> Recipe:
    """Returns the recipe with other parts, which are typed like data=text,optimizer=adamw."""
    from plimsoll.recipes.registry import swapped

    names: dict[str, str] = {}
    for word in parts.split(","):
        role, equals, name = word.partition("=")
        if not equals:
            raise RecipeError(f"--swap takes parts by name, like data=text,optimizer=adamw, got {word!r}")
        names[role] = name
    return swapped(recipe, names)


def _named_first(words: list[str], *, command: str) -> tuple[str, Recipe, list[str]]:
    """Returns the name that stands first (or behind --preset), its recipe, and the words after it."""
    if "--preset" in words[:-1]:
        at = words.index("--preset")
        name = words.pop(at + 1)
        words.pop(at)
        if words and not words[0].startswith("-"):
            name = f"{words.pop(0)}-{name}"  # `longcontext --preset nano`
        return name, recipe_named(name), words
    if words[:1] in (["-h"], ["--help"]):
        print("RECIPE is one of `plimsoll recipes`, or a file of yours, like my_recipe.py.")
        print("With the defaults of stories:\n")
        return "stories", recipe_named("stories"), words
    if not words or words[0].startswith("-"):
        from plimsoll.recipes.registered import presets

        raise RecipeError(
            f"plimsoll {command} needs a recipe first, like `plimsoll {command} code`: {names_in_words(presets())}"
            " (`plimsoll recipes` lists them), or a file of yours, like my_recipe.py"
        )
    return words[0], recipe_named(words[0]), words[1:]


def recipe_named(name: str) -> Recipe:
    """Returns a recipe by its name, or from a file, whose code must not take the accelerator."""
    from plimsoll.recipes.registered import PRESETS
    from plimsoll.recipes.registry import preset

    if name in PRESETS:
        return preset(name)
    from plimsoll.processes.environment import keep_jax_off_the_chip
    from plimsoll.recipes.own.files import is_file_name

    if is_file_name(name):
        keep_jax_off_the_chip()
    return preset(name)


def typed(options: Sequence[Option], words: Sequence[str], *, program: str) -> dict[str, Any]:
    """Returns the values that were typed, by option; an option that was left out is not in it.

    Args:
        options: All options of the command.
        words: What was typed after `program`.
        program: Like `plimsoll train stories`.

    Raises:
        RecipeError: A word is no option or value, or one is missing.
    """
    help_line = f"`{program} --help` lists the options"
    try:
        namespace, rest = _parser_of(options).parse_known_intermixed_args(joined(words, options))
    except RecipeError as problem:
        raise RecipeError(f"{problem}; {help_line}") from None
    if rest:
        raise RecipeError(f"{unknown(rest, options, program=program)} {help_line}")
    for option in options:
        if option.default is MISSING and option.name not in namespace:
            meaning = option.text if option.text[1:2].isupper() else f"{option.text[:1].lower()}{option.text[1:]}"
            word = option.metavar if option.is_argument else option.flag
            raise RecipeError(f"{program} needs {word}: {meaning} {help_line}")
    return vars(namespace)


def _parser_of(options: Sequence[Option]) -> argparse.ArgumentParser:
    """Returns a parser of words that `joined` made, which leaves out what was not typed."""
    import argparse  # not at the top: help answers without it

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise RecipeError(message.removeprefix("argument "))

    parser = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for option in options:
        value = partial(value_of, option)
        if option.is_argument:
            parser.add_argument(option.name, nargs="?", type=value)
        elif option.is_switch:
            parser.add_argument(option.flag, action=argparse.BooleanOptionalAction)
        elif option.is_list:
            parser.add_argument(option.flag, nargs="+", type=value)
        else:
            parser.add_argument(option.flag, type=value)
    return parser


def joined(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Returns the words with our own names of options, and each value behind an equals sign.

    A value may begin with a hyphen.

    Args:
        words: As they were typed: `--prompt -x`, `--batch_size=8`, `--output-dir runs/a`.
        options: All options of the command.
    """
    # Names that may stand in a line.
    with_value = {option.flag for option in options if not (option.is_argument or option.is_switch or option.is_list)}
    flags = {form for option in options for form in (option.flag, f"--no-{option.flag[2:]}")} | ALIASES.keys()

    # Words one after another; what follows a name is its value, if it is no name itself.
    rest, joined_words = list(words), []
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag not in flags and SAME.get(flag) in flags:
            flag = SAME[flag]
        if not word.startswith("--"):
            joined_words.append(word)
        elif flag in ALIASES:
            rest = [*ALIASES[flag], *([value] if equals else []), *rest]
        elif equals:
            joined_words.append(f"{flag}={value}")
        elif flag in with_value and rest and rest[0].partition("=")[0].replace("_", "-") not in flags:
            joined_words.append(f"{flag}={rest.pop(0)}")
        else:
            joined_words.append(flag)
    return joined_words


def unknown(rest: Sequence[str], options: Sequence[Option], *, program: str) -> str:
    """Returns why words are refused that no option takes, with the option that was meant, or the recipes that have it.

    Args:
        rest: The words.
        options: All options of the command.
        program: What was typed before them, like `plimsoll train stories`.
    """
    flags = [word.partition("=")[0] for word in rest if word.startswith("-")]
    if not flags:
        return f"nothing more is expected after the options and arguments given, got {' '.join(rest)!r}:"
    flag = flags[0]
    _, command, *recipe = program.split(" ", 2)
    known = [form for option in options if not option.is_argument for form in forms_of(option)]
    if COMMANDS[command].takes_recipe:
        known += ALIASES
        from plimsoll.recipes.registry import recipes_with

        others = recipes_with(flag[2:].replace("-", "_"))
        if others and " ".join(recipe) not in others:  # unless its parts were exchanged
            return f"the recipe {' '.join(recipe)} has no option {flag}, which is one of {names_in_words(others)}:"
    near = did_you_mean(flag, known, most=2, like=0.7)
    if not near and (others := commands_with(flag)):
        return f"there is no option {flag} of {command}, which is one of {names_in_words(others)}:"
    return f"there is no option {flag}{near or ':'}"


def forms_of(option: Option) -> list[str]:
    """Returns an option as it is typed: of a switch both forms."""
    return [option.flag, f"--no-{option.flag[2:]}"] if option.is_switch else [option.flag]


def commands_with(flag: str) -> list[str]:
    """Returns the names of the commands that have an option of their own."""
    rows = {command: options_of_command(command) for command in COMMANDS if command != "prepare"}
    return [command for command, options in rows.items() if flag in (option.flag for option in options)]


def options_of_command(command: str) -> Sequence[Option]:
    """Returns the options that are a command's own: those of `runs` are `RunsOptions` in its module."""
    from plimsoll.cli import options

    if COMMANDS[command].module == "verbs":
        return module_of_cli("verbs").rows_of(command)
    kind = f"{command.capitalize()}Options"
    module = options if COMMANDS[command].takes_recipe else module_of_cli(COMMANDS[command].module)
    return options_of(getattr(module, kind))


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


def print_answer(options: Any, answer: Any, text: Callable[[Any], str]) -> int:
    """Prints an answer by `text`, or as JSON where `options` ask for that. Returns the exit code."""
    print(json.dumps(answer) if options.json else text(answer))
    return 0


def say(text: str) -> None:
    """Prints what is done now, beside the output."""
    print(f"  {text} ...", file=sys.stderr)
