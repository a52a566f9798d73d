"""Help pages: `-h` fits a screen, `--help` lists all options, `--help GROUP` the options of one group."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from plimsoll.cli.options import Place, lever_rows
from plimsoll.errors import RecipeError, did_you_mean
from plimsoll.options import Option, options_of
from plimsoll.recipes.flat import rows
from plimsoll.recipes.registered import record_of

COLUMNS = 80
"""Width of a help text in characters."""
INDENT = 26
"""Column in which the texts of options begin."""
ON_A_SCREEN = 10
"""Number of options that `-h` shows for a command with a recipe."""
ALIASES: dict[str, list[str]] = {
    "--use-mixed-precision": ["--numerics", "mixed"],
    "--no-mixed-precision": ["--numerics", "exact"],
    "--use-8bit-optimizer": ["--optimizer-bits", "8"],
    "--no-streaming": ["--no-use-streaming"],
    "--output-dir": ["--run"],
    "--checkpoint-dir": ["--run"],
    "--preset": ["--config"],
    "--resume": [],  # the same command continues by itself
}
"""Map from options in published guides (docs/guide-*.md) to the equivalent options here."""
OFTEN = ("dataset_id", "data", "steps", "epochs", "batch_size", "seq_len", "learning_rate", "seed")
"""Options that `-h` shows after the options of recipe and command, if there is room."""
OFTEN_OF = {
    "plan": ("memory", "chip", "largest"),
    "train": ("memory", "run", "chip"),
    "ladder": ("memory", "rungs", "chip"),
    "config": (),
}
"""Options of each command that `-h` shows after the recipe's options."""
TITLES = {
    "often used": "",
    "options": "",
    "recipe": "fields of this recipe",
    "model": "the model to train",
    "data": "data for training and evaluation",
    "optimizer": "how weights are updated",
    "length": "number of steps, and examples of a step",
    "plan": "target of planning, and output",
    "ladder": "rungs to compare",
    "run": "folder of the run, its length and its output",
    "processes": "several processes, and schedulers that start them",
    "pretrained": "a published model instead of a run",
    "levers": "memory for time or precision. The planner chooses those you leave out",
}
"""Groups of options in the order of help pages, with descriptions."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Content of a command's help."""

    program: str
    """Words before the options, like `plimsoll train stories`."""
    options: Sequence[Option]
    example: str
    """Example as a complete command line."""
    about: str = ""
    """Paragraph before the options."""
    often: Sequence[str] = ()
    """Names of the options that come first; `-h` shows as many as fit."""
    notes: Sequence[str] = ()
    """Paragraphs at the end."""

    @property
    def usage(self) -> str:
        """First line of the help."""
        arguments = "".join(f" {option.metavar}" for option in self.options if option.is_argument)
        return f"usage: {self.program}{arguments} [options]"

    @property
    def groups(self) -> dict[str, list[Option]]:
        """Options by group, in the order of `TITLES`. Groups of users' own classes come last."""
        titles = dict.fromkeys([*TITLES, *(option.group for option in self.options)])
        groups = {title: [option for option in self.options if option.group == title] for title in titles}
        return {title: options for title, options in groups.items() if options}

    @property
    def first(self) -> list[Option]:
        """Often used options in order, at most `ON_A_SCREEN`."""
        by_name = {option.name: option for option in self.options}
        return [by_name[name] for name in dict.fromkeys(self.often) if name in by_name][:ON_A_SCREEN]


def page_of_recipe(command: str, name: str, recipe: Any, options: type, *, swap: str | None = None) -> Page:
    """Returns the help page of a command with a recipe. `swap` is the typed value of --swap, if any."""
    program = f"plimsoll {command} {name}" if swap is None else f"plimsoll {command} {name} --swap {swap}"
    preset = record_of(name)
    notes = [f"also accepted: {' '.join(ALIASES)} --config NAME_OR_FILE --swap data=NAME"]
    if command == "ladder":
        from plimsoll.api.rungs import names_of

        notes.insert(0, f"rungs: {', '.join(names_of(recipe))}")
    levers = lever_rows() if issubclass(options, Place) else ()
    example, often = (preset.example, preset.often) if preset else ("--memory 1GiB", ())
    if command == "config":
        example = "> mine.toml"
    of_command = OFTEN_OF[command]
    return Page(
        program=program,
        options=(*rows(recipe), *options_of(options), *levers),
        example=f"{program} {example}".rstrip(),
        often=(*often[: ON_A_SCREEN - len(of_command)], *of_command, *OFTEN),
        notes=notes,
    )


def print_help(page: Page, words: Sequence[str]) -> None:
    """Prints the help and exits if the typed words contain -h or --help.

    Raises:
        RecipeError: The group after --help does not exist.
    """
    if "-h" in words:
        print(short_help(page))
        raise SystemExit(0)
    if "--help" not in words:
        return
    place = words.index("--help") + 1
    group = words[place] if place < len(words) else ""
    if not page.often or not group or group.startswith("-"):
        print(long_help(page))
    elif group in page.groups:
        print("\n".join([page.usage, *_group_lines(group, page.groups[group])]))
    else:
        hint = did_you_mean(group, page.groups) or ":"
        raise RecipeError(f"{page.program} has no group of options {group!r}{hint} there are {', '.join(page.groups)}")
    raise SystemExit(0)


def short_help(page: Page) -> str:
    """Returns usage, example, the most used options on a line each, and the names of all groups."""
    lines = [*_wrapped(page.usage), "Example:", page.example, *_wrapped(page.about), ""]
    if not page.often:
        lines += [_one_line(option) for option in page.options]
        return "\n".join([*lines, "", f"`{page.program} --help` says more about each."])
    groups = ", ".join(f"{group} ({len(options)})" for group, options in page.groups.items())
    lines += [_one_line(option) for option in page.first]
    lines += ["", *_wrapped(f"groups: {groups}")]
    last = [*page.groups][-1]
    lines += _wrapped(f"--help GROUP lists a group, like `{page.program} --help {last}`; --help lists everything.")
    return "\n".join(lines)


def long_help(page: Page) -> str:
    """Returns usage, example, and every option, with the most used options first."""
    lines = [*_wrapped(page.usage), "", "Example:", page.example, *_wrapped(page.about)]
    often = page.first
    if often:
        lines += _group_lines("often used", often)
    for group, options in page.groups.items():
        rest = [option for option in options if option not in often]
        lines += _group_lines(group, rest) if rest else []
    for note in page.notes:
        lines += ["", *_wrapped(note)]
    return "\n".join(lines)


def _group_lines(group: str, options: Iterable[Option]) -> Iterator[str]:
    words = TITLES.get(group, "")
    yield ""
    yield from _wrapped(f"{group}: {words}" if words else group)
    for option in options:
        yield from _lines(option)


def _lines(option: Option) -> list[str]:
    usage = f"  {usage_of(option)}"
    if len(usage) + 2 > INDENT:
        return [*_wrapped(usage_of(option), indent=2), *_wrapped(text_of(option), indent=INDENT)]
    return _wrapped(text_of(option), label=usage, indent=INDENT) or [usage]


def _one_line(option: Option) -> str:
    """Returns an option on one line, with its first sentence cut to fit."""
    usage = f"  {usage_of(option)}"
    if len(usage) + 2 > INDENT:
        usage = f"  {option.flag}"
    sentence = option.text.partition(". ")[0].removesuffix(".")
    return usage.ljust(INDENT) + textwrap.shorten(sentence, COLUMNS - INDENT, placeholder=" ...")


def usage_of(option: Option) -> str:
    """Returns the usage of an option, like `--steps N` or `--tied, --no-tied`, or of an argument, like `RUN`."""
    if option.is_argument:
        return option.metavar
    if not option.is_switch:
        return f"{option.flag} {option.metavar}"
    return f"{option.flag}, --no-{option.flag[2:]}" if option.default is True else option.flag


def text_of(option: Option) -> str:
    """Returns the text of an option with its default, if the default can be shown as a value."""
    if option.default is MISSING:
        return f"{option.text} (required)"
    shown = option.flag if option.default is True else shown_default(option.default)
    return f"{option.text} (default: {shown})" if shown else option.text


def shown_default(default: Any) -> str:
    """Returns a default as text; empty for None, False and empty values."""
    if default is None or default is False or default in ("", ()):
        return ""
    if isinstance(default, int | float) and default is not True:
        return f"{default:,}" if abs(default) >= 10_000 else f"{default:g}"
    return str(default)


def _wrapped(text: str, *, label: str = "", indent: int = 0) -> list[str]:
    first, further = label.ljust(indent), " " * indent
    return textwrap.wrap(text, COLUMNS, initial_indent=first, subsequent_indent=further, break_on_hyphens=False)
