"""Parses the words of a command line into values of options. Errors are one paragraph.

Results have only options that the user typed, no defaults. Counts may be typed as 124M, and option names of published
guides are accepted, too.
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
"""Type of an argument that names a run."""


@dataclass(frozen=True, kw_only=True)
class Printed(Options):
    """Options of commands that print an answer."""

    json: Json = False


@dataclass(frozen=True, kw_only=True)
class OfRun(Printed):
    """Options of commands that print an answer about a run."""

    run: Run


SAME = {"--data": "--dataset-id", "--dataset-id": "--data"}
"""Two names of the option for data. A recipe has one of them, and the other one is accepted, too."""


@dataclass(frozen=True)
class Typed(Generic[T]):
    """Parsed words after a command that takes a recipe."""

    name: str
    """Name of the recipe. For a file, without its folder."""
    recipe: Recipe
    options: T
    """Options of the command."""
    pins: Mapping[str, Any]
    """Typed values of levers (memory-saving options), by name."""
    given: Mapping[str, Any]
    """Typed options of the recipe, by name."""


def parse(options: type[T], arguments: Sequence[str], *, command: str) -> T:
    """Parses the arguments of a command that takes no recipe. Returns its options."""
    page = Page(program=f"plimsoll {command}", options=options_of(options), example=COMMANDS[command].example)
    return options(**values_typed(page, arguments))


def values_typed(page: Page, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the typed values, by option name. Prints the help and exits if the words contain -h or --help.

    Args:
        page: Help of the command, with all options.
        arguments: Words after the command.
    """
    print_help(page, arguments)
    return read_words(page.options, arguments, program=page.program)


def parse_with_recipe(options: type[T], arguments: Sequence[str], *, command: str) -> Typed[T]:
    """Parses the words after a command that takes a recipe first."""
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
    """Sorts typed values into options of the command, options of the recipe, and memory-saving options.

    A typed option resets options of the preset that conflict with it.

    Args:
        options: Class of the command's options.
        values: Typed values, by option name.
        name: Name of the recipe.
        recipe: Recipe before the typed options are applied.
    """
    of_command = {option.name: values[option.name] for option in options_of(options) if option.name in values}
    fields = {option.name: values[option.name] for option in rows(recipe) if option.name in values}
    pins = {
        lever: value
        for lever, value in values.items()
        if lever not in of_command and lever not in fields and value is not None
    }

    # The option that --largest names counts as typed, so it resets options that conflict with it.
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
    # Raise an error for conflicting sizes before a compile process starts, unless sizes depend on the data.
    if not changed.data.spec_in_data:
        _ = changed.hints
    if what_gave_way:  # standard output is only for the answer, like JSON
        print(f"of the recipe {name}, {what_gave_way}", file=sys.stderr)
    return Typed(
        name=name,
        recipe=changed,
        options=options(**of_command),
        pins=pins,
        given=fields,
    )


def take_names(words: Sequence[str], config: str | None, *, command: str) -> tuple[list[str], list[str]]:
    """Returns the names of the recipe, and the words after them.

    A recipe is named by the first word, by --config, or by both. Together they name a preset, like `longcontext
    --config small_32k`, or a recipe and a file with its options.
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
    """Returns a recipe with another model, data or optimizer, as typed in `swap`, like data=text,optimizer=adamw."""
    from plimsoll.recipes.registry import swapped

    parts: dict[str, str] = {}
    for word in swap.split(","):
        role, _, part = word.partition("=")
        if role in parts:
            raise RecipeError(f"--swap {swap} names two parts for {role}: leave one of them out")
        parts[role] = part
    return swapped(recipe, parts)


def recipe_named(*names: str) -> Recipe:
    """Returns a recipe by its name, or from a file. JAX code in a file runs on the CPU.

    Args:
        names: Name of a recipe or a file; or a preset's name in several words; or a recipe and a TOML file of options.
    """
    from plimsoll.recipes.registry import preset, read_config

    name = "-".join(names)
    if ".py" in name:
        from plimsoll.processes.environment import keep_jax_off_the_chip

        keep_jax_off_the_chip()
    *base, last = names
    return read_config(last, *base) if base and is_config_name(last) else preset(name)


def read_words(options: Sequence[Option], words: Sequence[str], *, program: str) -> dict[str, Any]:
    """Returns the typed values, by option name. Options that were not typed are missing.

    Args:
        options: All options of the command.
        words: Words after `program`, like `--prompt -x`, `--batch_size=8`, `--output-dir runs/a`.
        program: Words before the options, like `plimsoll train stories`.

    Raises:
        RecipeError: A word is no option or value, or a required option or a value is missing.
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

        # Find the option that the word names, or the argument whose value it is.
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

        # A value may begin with a hyphen, but must not be the name of an option.
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
    """Returns options by every form in which they can be typed, like --no-tied. The option for data has two names."""
    by_flag = {form: option for option in options for form in forms_of(option)}
    same = {flag: by_flag[other] for flag, other in SAME.items() if other in by_flag}
    return same | by_flag


def value_typed(option: Option, flag: str, texts: Sequence[str]) -> Any:
    """Returns the value of a typed option from the texts after it."""
    if option.is_switch:
        if texts:
            raise RecipeError(f"{flag} takes no value, got {texts[0]!r}")
        return flag == option.flag
    if not texts:
        raise RecipeError(f"{flag}: expected one argument, {option.metavar}: {option.text}")
    read = [value_of(option, text) for text in texts]
    return read if option.is_list else read[0]


def without_aliases(words: Sequence[str]) -> list[str]:
    """Returns the words, with options of published guides (docs/guide-*.md) replaced by the equivalent options here."""
    ours: list[str] = []
    for word in words:
        flag, equals, value = split_word(word)
        ours += [*ALIASES[flag], *([value] if equals else [])] if flag in ALIASES else [word]
    return ours


def forms_of(option: Option) -> list[str]:
    """Returns the forms in which an option can be typed: two for a switch, none for an argument."""
    if option.is_argument:
        return []
    return [option.flag, f"--no-{option.flag[2:]}"] if option.is_switch else [option.flag]


def split_word(word: str) -> tuple[str, str, str]:
    """Splits a word into flag (with hyphens for underscores), equals sign and value. The last two may be empty."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-"), equals, value


def unknown(word: str, options: Sequence[Option], *, program: str) -> str:
    """Returns the error message for an unknown word, with similar options, or the recipes that have this option.

    Args:
        word: A flag, or a word after the last argument.
        options: All options of the command.
        program: Words before the options, like `plimsoll train stories`.
    """
    if not word.startswith("-"):
        return f"nothing more is expected after the options and arguments given, got {word!r}:"
    _, command, *recipe = program.split(" ", 2)
    known = [form for option in options for form in forms_of(option)]
    if COMMANDS[command].takes_recipe:
        known += ALIASES
        from plimsoll.recipes.registry import recipes_with

        others = recipes_with(word[2:].replace("-", "_"))
        if others and " ".join(recipe) not in others:  # with --swap, the recipe itself may be among them
            return f"the recipe {' '.join(recipe)} has no option {word}, which is one of {names_in_words(others)}:"
    return f"there is no option {word}{did_you_mean(word, known, most=2, like=0.7) or ':'}"


def options_of_command(command: str) -> Sequence[Option]:
    """Returns a command's own options, like `RunsOptions` in the module of `runs`."""
    name = COMMANDS[command].module
    module = module_of_cli(name)
    if name == "verbs":
        return module.rows_of(command)
    return options_of(getattr(module, f"{command.capitalize()}Options"))


def without(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], dict[str, str]]:
    """Removes some options from the words of a command line. Returns the other words, and the removed options' values.

    Args:
        words: Words of the command line.
        options: Flags to remove, and for each whether a value follows.
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
    """Prints an answer as `text` formats it, or as JSON with --json. Returns the exit code."""
    print(json.dumps(answer) if options.json else text(answer))
    return 0


def say(text: str) -> None:
    """Prints progress to standard error."""
    print(f"  {text} ...", file=sys.stderr)
