"""From typed words to values, by rows of options. Refusals are one paragraph.

What was typed is exactly what is in the answer: no default is added. Counts may be typed as 124M, and the names that
users of the published guides know are accepted too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from itertools import islice, takewhile
from typing import Annotated, Any, Generic, TypeVar

from plimsoll.cli.help import ALIASES, Page, page_of_recipe, print_help
from plimsoll.cli.main import COMMANDS, module_of_cli
from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.options import Argument, Json, Option, Options, Text, options_of, value_of
from plimsoll.recipes.flat import giving_way, rows
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registered import is_config_name

T = TypeVar("T")

Run = Annotated[str, Argument("RUN"), Text("Folder of the run, or its address in a bucket.")]
"""Run that a command looks at."""


@dataclass(frozen=True, kw_only=True)
class Printed(Options):
    """How an answer is printed."""

    json: Json = False


@dataclass(frozen=True, kw_only=True)
class OfRun(Printed):
    """The run that an answer is of."""

    run: Run


SAME = {"--data": "--dataset-id", "--dataset-id": "--data"}
"""Names of the option that names data: a recipe has one of them, and the other is accepted."""


@dataclass(frozen=True)
class Typed(Generic[T]):
    """What was typed after a command and a recipe."""

    name: str
    """Name of the recipe, of a file without its folder."""
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


def values_typed(page: Page, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the values that were typed, by option. Prints the help and exits where that is asked for.

    Args:
        page: Help of the command, with all its options.
        arguments: What was typed after the command.
    """
    print_help(page, arguments)
    return read_words(page.options, arguments, program=page.program)


def parse_with_recipe(options: type[T], arguments: Sequence[str], *, command: str) -> Typed[T]:
    """Returns what was typed after a command that takes a recipe first."""
    words, taken = without(without_aliases(arguments), {"--config": True, "--swap": True})
    names, words = take_names(words, taken.get("--config") or None, command=command)
    name = names[-1] if is_config_name(names[-1]) else "-".join(names)
    recipe = recipe_named(*names)
    swap = taken.get("--swap")
    if swap is not None:
        recipe = with_parts(recipe, swap)
    page = page_of_recipe(command, name, recipe, options, swap=swap)
    values = values_typed(page, words)
    from plimsoll.recipes.own.files import short_name

    return sorted_by_owner(options, values, name=short_name(name), recipe=recipe)


def sorted_by_owner(options: type[T], values: Mapping[str, Any], *, name: str, recipe: Recipe) -> Typed[T]:
    """Returns the values as options of the command, of the recipe, and levers.

    What the recipe itself has set gives way to an option that says the same in other words.

    Args:
        options: Class of the command's options.
        values: Values that were typed, by option.
        name: Name of the recipe.
        recipe: The recipe without what was typed.
    """
    of_command = {option.name: values[option.name] for option in options_of(options) if option.name in values}
    fields = {option.name: values[option.name] for option in rows(recipe) if option.name in values}
    pins = {
        lever: value
        for lever, value in values.items()
        if lever not in of_command and lever not in fields and value is not None
    }

    # An option whose largest value is searched counts as given.
    given = {**fields}
    if searched := of_command.get("largest"):
        option = searched.replace("-", "_")
        if option in fields:
            raise RecipeError(
                f"--{searched} {fields[option]} asks for one value, and --largest {searched} for the largest that fits:"
                " leave one of them out"
            )
        given[option] = searched
    blank, what_gave_way = giving_way(recipe, given)
    changed = blank.replace(**fields)
    # Sizes that contradict one another are refused now, not by the compile child.
    if not changed.data.spec_in_data:
        _ = changed.hints
    if what_gave_way:  # not on standard output, where --json stands alone
        print(f"of the recipe {name}, {what_gave_way}", file=sys.stderr)
    return Typed(
        name=name,
        recipe=changed,
        options=options(**of_command),
        pins=pins,
        given=fields,
    )


def take_names(words: Sequence[str], config: str | None, *, command: str) -> tuple[list[str], list[str]]:
    """Returns the names of the recipe, of which one stands first, and the words after it.

    A preset or a TOML file may also be named by --config. A recipe and --config together name a preset, like
    `longcontext --config small_32k`, or the recipe that the options of a file are for.
    """
    rest = [*words]
    names = [] if config is None else [config if is_config_name(config) else config.replace("_", "-")]
    if rest and not rest[0].startswith("-"):
        names.insert(0, rest.pop(0))
    elif not names and {"-h", "--help"} & {*rest}:
        print("RECIPE is one of `plimsoll recipes`, or a file of yours, like my_recipe.py.")
        print("With the defaults of stories:\n")
        names = ["stories"]
    if not names:
        from plimsoll.recipes.registered import presets

        raise RecipeError(
            f"plimsoll {command} needs a recipe first, like `plimsoll {command} code`: {names_in_words(presets())}"
            " (`plimsoll recipes` lists them), or a file of yours, like my_recipe.py"
        )
    return names, rest


def with_parts(recipe: Recipe, swap: str) -> Recipe:
    """Returns a recipe with other parts, typed like data=text,optimizer=adamw."""
    from plimsoll.recipes.registry import swapped

    parts: dict[str, str] = {}
    for word in swap.split(","):
        role, _, part = word.partition("=")
        if role in parts:
            raise RecipeError(f"--swap {swap} names two parts for {role}: leave one of them out")
        parts[role] = part
    return swapped(recipe, parts)


def recipe_named(*names: str) -> Recipe:
    """Returns a recipe by its name, or from a file, whose code must not take the accelerator.

    Args:
        names: Name of a recipe or a file, or the parts of a preset's name; or a recipe and a TOML file of its options.
    """
    from plimsoll.recipes.registry import preset, read_config

    name = "-".join(names)
    if ".py" in name:
        from plimsoll.processes.environment import keep_jax_off_the_chip

        keep_jax_off_the_chip()
    *base, last = names
    return read_config(last, *base) if base and is_config_name(last) else preset(name)


def read_words(options: Sequence[Option], words: Sequence[str], *, program: str) -> dict[str, Any]:
    """Returns the values that were typed, by option; an option that was left out is not in it.

    Args:
        options: All options of the command.
        words: What was typed after `program`: `--prompt -x`, `--batch_size=8`, `--output-dir runs/a`.
        program: Like `plimsoll train stories`.

    Raises:
        RecipeError: A word is no option or value, or one is missing.
    """
    help_line = f"`{program} --help` lists the options"
    by_flag = flags_of(options)
    arguments = [option for option in options if option.is_argument]
    values: dict[str, Any] = {}
    typed: dict[str, str] = {}
    rest = without_aliases(words)
    while rest:
        word = rest.pop(0)
        flag, equals, text = split_word(word)
        texts = [text] if equals else []

        # The option that the word names, or the argument that it is.
        option = by_flag.get(flag)
        if option is None:
            if word.startswith("-") or not arguments:
                what = flag if word.startswith("-") else word
                raise RecipeError(f"{unknown(what, options, program=program)} {help_line}")
            option = arguments.pop(0)
            texts = [word]
        other = typed.setdefault(option.name, flag)
        if other != flag and flag in SAME.keys() | SAME.values():
            raise RecipeError(f"{flag} and {other} are the same option here: give one of them. {help_line}")

        # Its value may begin with a hyphen, and is no option.
        if not texts and not option.is_switch:
            following = takewhile(lambda text: split_word(text)[0] not in by_flag, rest)
            texts = [*following] if option.is_list else [*islice(following, 1)]
            del rest[: len(texts)]
        values[option.name] = value_typed(option, flag, texts)

    missing = [option for option in options if option.default is MISSING and option.name not in values]
    if missing:
        name = missing[0].metavar if missing[0].is_argument else missing[0].flag
        raise RecipeError(f"{program} needs {name}. {missing[0].text} {help_line}")
    return values


def flags_of(options: Sequence[Option]) -> dict[str, Option]:
    """Returns the options by what is typed, the names that other recipes have for the same among them."""
    by_flag = {form: option for option in options for form in forms_of(option)}
    same = {flag: by_flag[other] for flag, other in SAME.items() if other in by_flag}
    return same | by_flag


def value_typed(option: Option, flag: str, texts: Sequence[str]) -> Any:
    """Returns the value of an option that was typed with these texts after it."""
    if option.is_switch:
        if texts:
            raise RecipeError(f"{flag} takes no value, got {texts[0]!r}")
        return flag == option.flag
    if not texts:
        raise RecipeError(f"{flag}: expected one argument, {option.metavar}: {option.text}")
    read = [value_of(option, text) for text in texts]
    return read if option.is_list else read[0]


def without_aliases(words: Sequence[str]) -> list[str]:
    """Returns the words with our options for those of the published guides."""
    ours: list[str] = []
    for word in words:
        flag, equals, value = split_word(word)
        ours += [*ALIASES[flag], *([value] if equals else [])] if flag in ALIASES else [word]
    return ours


def forms_of(option: Option) -> list[str]:
    """Returns an option as it is typed: of a switch both forms, of an argument none."""
    if option.is_argument:
        return []
    return [option.flag, f"--no-{option.flag[2:]}"] if option.is_switch else [option.flag]


def split_word(word: str) -> tuple[str, str, str]:
    """Returns a word's flag, with hyphens for underscores; the equals sign, if it has one; and what follows it."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-"), equals, value


def unknown(word: str, options: Sequence[Option], *, program: str) -> str:
    """Returns why a word is refused that is no option, with the option that was meant, or the recipes that have it.

    Args:
        word: A flag, or a word beyond the arguments.
        options: All options of the command.
        program: What was typed before them, like `plimsoll train stories`.
    """
    if not word.startswith("-"):
        return f"nothing more is expected after the options and arguments given, got {word!r}:"
    _, command, *recipe = program.split(" ", 2)
    known = [form for option in options for form in forms_of(option)]
    if COMMANDS[command].takes_recipe:
        known += ALIASES
        from plimsoll.recipes.registry import recipes_with

        others = recipes_with(word[2:].replace("-", "_"))
        if others and " ".join(recipe) not in others:  # unless its parts were exchanged
            return f"the recipe {' '.join(recipe)} has no option {word}, which is one of {names_in_words(others)}:"
    return f"there is no option {word}{did_you_mean(word, known, most=2, like=0.7) or ':'}"


def options_of_command(command: str) -> Sequence[Option]:
    """Returns the options that are a command's own: those of `runs` are `RunsOptions` in its module."""
    name = COMMANDS[command].module
    module = module_of_cli(name)
    if name == "verbs":
        return module.rows_of(command)
    return options_of(getattr(module, f"{command.capitalize()}Options"))


def without(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], dict[str, str]]:
    """Returns the words of a command line without some options, and the values of these.

    Args:
        words: As they were typed.
        options: Flags to take out; whether a value follows.
    """
    rest, kept, taken = iter(words), [], {}
    for word in rest:
        flag, equals, value = split_word(word)
        if flag not in options:
            kept.append(word)
        elif options[flag] and not equals:
            taken[flag] = next(rest, "")
        else:
            taken[flag] = value
    return kept, taken


def print_answer(options: Any, answer: Any, text: Callable[[Any], str]) -> int:
    """Prints an answer by `text`, or as JSON where `options` ask for that. Returns the exit code."""
    print(json.dumps(answer) if options.json else text(answer))
    return 0


def say(text: str) -> None:
    """Prints what is done now, beside the output."""
    print(f"  {text} ...", file=sys.stderr)
