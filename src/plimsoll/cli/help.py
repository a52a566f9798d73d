"""Help of a command: its options in named groups, the most used ones first, from the fields of its options' class.

tyro parses the options (`cli/parse.py`) and could print them, too. It takes 0.1 s longer, keeps the order of the
fields, and shows what only Python needs, like `{None}|STR` and `(default: None)`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from tyro._docstrings import get_field_docstring

COLUMNS = 80
"""Width of a help text."""
INDENT = 26
"""Column in which texts begin."""
MOST_USED = (
    "memory", "chip", "run", "largest", "pretrained", "dataset_id", "data", "steps", "epochs", "batch_size", "seq_len",
    "learning_rate", "target_params", "lora_rank", "max_minutes", "seed",
)  # fmt: skip
"""Options of which a command shows the first ten that it has, before the groups."""
GROUPS = {
    "data": {
        "chat_template", "data", "dataset_config", "dataset_id", "identifiers",
        "loss_on", "max_examples", "mix_chunks", "num_items", "seq_len", "shuffle", "shuffle_buffer_size",
        "skip_bad", "split", "stride", "text_column", "tokenizer", "truncate", "use_streaming", "validation_examples",
        "validation_id", "validation_rows", "validation_tokens", "validation_users", "vocab_size", "workers",
    },
    "optimizer": {
        "beta1", "beta2", "clip_norm", "default_warmup_steps", "ema_decay", "final_fraction", "learning_rate",
        "puzzle_learning_rate", "puzzle_weight_decay", "warmup_fraction", "warmup_steps", "weight_decay",
    },
    "run": {
        "batch_size", "default_epochs", "epochs", "eval_interval", "gradient_accumulation_steps", "seed", "steps",
    },
}  # fmt: skip
"""Fields of our recipes by their group; the others are of the model."""
TITLES = {
    "arguments": "",
    "most used": "",
    "options": "",
    "recipe": "fields of this recipe",
    "model": "what is trained",
    "data": "what it learns from, and what it is evaluated on",
    "optimizer": "how weights are updated",
    "run": "how long, where, and what is written about it",
    "plan": "what is planned for, and what is printed",
    "levers": "memory for time or precision. The planner chooses those you leave out",
}
"""Groups in the order in which they are shown, and a few words about each."""

NO_ARGUMENT: Any = tyro.conf.arg()
WITHOUT_COMMENTS = (tyro.conf.HelptextFromCommentsOff,)
"""Says that a field's text is its docstring, never a comment beside it."""


@dataclass(frozen=True)
class Option:
    """An option as its help shows it."""

    name: str
    group: str
    usage: str
    """Flags and kind of value, like `--steps INT`."""
    text: str


def help_text(options: type, *, program: str, example: str, recipe: Any = None) -> str:
    """Returns the help of a command.

    Args:
        options: Dataclass of its options.
        program: What is typed before them, like `plimsoll train stories`.
        example: A whole command that can be typed.
        recipe: Recipe whose fields are options, too.
    """
    if recipe is None:
        shown = options_shown(options)
    else:
        rest = "run" if "train" in program.split() else "plan"
        shown = _with_most_used(options_shown(options, recipe, group=rest))
    arguments = "".join(f" {option.usage}" for option in shown if option.group == "arguments")
    lines = [*_wrapped(f"usage: {program} [-h]{arguments} [options]", indent=0), "", f"Example: {example}"]
    for group, words in TITLES.items():
        members = [option for option in shown if option.group == group]
        if members:
            lines += ["", *_wrapped(f"{group}: {words}" if words else group, indent=0)]
            lines += [line for option in members for line in _lines(option)]
    return "\n".join(lines)


def options_shown(options: type, recipe: Any = None, *, group: str = "options") -> list[Option]:
    """Returns every option that the help of a command shows; those that are not the recipe's are in `group`."""
    defaults = None if recipe is None else options(recipe=recipe)
    return list(_options_of(options, defaults, group=group))


def _options_of(kind: type, defaults: Any, *, group: str) -> Iterator[Option]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, extras = _unwrapped(hints[field.name])
        if tyro.conf.Suppress in extras:
            continue
        default = _default(field) if defaults is None else getattr(defaults, field.name)
        if is_dataclass(default):
            yield from _options_of(type(default), default, group=field.name)
            continue
        argument = next((extra for extra in extras if hasattr(extra, "metavar")), NO_ARGUMENT)
        text = argument.help or get_field_docstring(kind, field.name, WITHOUT_COMMENTS) or ""
        if tyro.conf.Positional in extras:
            yield Option(field.name, "arguments", argument.metavar, text)
            continue
        where = _group(field.name, kind) if group == "recipe" else group
        usage = _usage(field.name, hint, default, argument.metavar)
        yield Option(field.name, where, usage, _with_default(field.name, text, default))


def _group(name: str, recipe: type) -> str:
    for group, names in GROUPS.items():
        if name in names:
            return group
    return "model" if recipe.__module__.startswith("plimsoll.") else "recipe"


def _with_most_used(options: list[Option]) -> list[Option]:
    by_name = {option.name: option for option in options if option.group not in ("arguments", "levers")}
    first = [by_name[name] for name in MOST_USED if name in by_name][:10]
    rest = [option for option in options if option not in first]
    return [replace(option, group="most used") for option in first] + rest


def _usage(name: str, hint: Any, default: Any, metavar: str | None) -> str:
    flag = name.replace("_", "-")
    if hint is bool and isinstance(default, bool):
        return f"--{flag}, --no-{flag}" if default else f"--{flag}"
    return f"--{flag} {metavar or _value(hint)}"


def _value(hint: Any) -> str:
    """Returns the kind of a value, like `INT` or `{exact,mixed}`; None, which nobody types, is left out."""
    hint, _ = _unwrapped(hint)
    if get_origin(hint) is Literal:
        return f"{{{','.join(map(str, get_args(hint)))}}}"
    if get_origin(hint) in (Union, UnionType):
        return "|".join(_value(part) for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return f"[{_value(get_args(hint)[0])} ...]"
    return {bool: "{True,False}", int: "INT", float: "FLOAT"}.get(hint, "STR")


def _with_default(name: str, text: str, default: Any) -> str:
    """Returns the text and the default; without it where the text says what leaving the option out means."""
    if default is MISSING:
        return f"{text} (required)"
    if default is None or default is False or default in ("", ()):
        return text
    shown = f"--{name.replace('_', '-')}" if default is True else str(default)
    if isinstance(default, int | float) and default is not True:
        shown = f"{default:,}" if abs(default) >= 10_000 else f"{default:g}"
    return f"{text} (default: {shown})"


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type without its annotations, and these."""
    return (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())


def _lines(option: Option) -> list[str]:
    usage = f"  {option.usage}"
    lines = _wrapped(option.text, indent=INDENT)
    if lines and len(usage) + 2 <= INDENT:
        return [usage.ljust(INDENT) + lines[0].lstrip(), *lines[1:]]
    return [*_wrapped(option.usage, indent=2), *lines]


def _wrapped(text: str, *, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(text, COLUMNS, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
