"""Writes the pages of all options, all levers and the Python API: options.md, all-levers.md and api.md, from the code.

python docs/reference.py             writes the pages
python docs/reference.py --check     fails where a page is not what the code says
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

import plimsoll
from plimsoll.api.use import USES
from plimsoll.cli.help import shown_default
from plimsoll.cli.ladder import LadderOptions
from plimsoll.cli.options import PlanOptions
from plimsoll.engine.options import TrainOptions
from plimsoll.levers.registry import LEVERS
from plimsoll.optimizers.settings import Optimizer
from plimsoll.options import Option, options_of
from plimsoll.recipes.registered import BUILT_IN, PRESETS
from plimsoll.recipes.registry import preset
from plimsoll.recipes.verbs import resolved

DOCS = Path(__file__).parent
OPTIONS = """# All options

Written by `python docs/reference.py`. `plimsoll train RECIPE -h` prints those of one recipe that are used most,
`--help` all of them.
In Python an option is a keyword, with `_` for `-`: `plimsoll.train("code", batch_size=8)`.
"""
LEVERS_PAGE = """# All levers

Written by `python docs/reference.py`. What each saves and costs, with figures: [levers.md](levers.md).
A lever that is left out is chosen by the planner, as far as `--numerics` lets it: exact, mixed (exact and mixed), or
compressed (all). The planner never chooses `tf32`, `--deterministic`, `--embedding-bits` or moments in 16 bits.
In Python they are pins: `plimsoll.train("code", pins={"remat": "block"})`.
"""
ROLES = {
    "model": "What is trained",
    "data": "What it learns from",
    "optimizer": "How weights are updated",
    "length": "How long, and how much at a time",
}
API_PAGE = """# Python API

Every public name of `import plimsoll`, from its docstring, written by `python docs/reference.py`. Importing the package
imports nothing else; a name is loaded when it is first used. In the examples `np`, `jnp` and `optax` are imported as
usual. Sizes are bytes unless a name says otherwise. `plimsoll.__version__` is the version of the package, as text.
"""
API = {
    "Plan and train": {
        "plan": "",
        "RecipePlan": "fits peak_bytes step_seconds levers largest compare",
        "FunctionPlan": "train start step params",
        "train": "",
        "finetune": "",
        "Tune": "plan train export",
    },
    "Runs": {"load": "", "Run": "ledger metrics params evaluate sample solve rank export report fingerprint train"},
    "Recipes": {
        "preset": "",
        "recipe": "",
        "OwnRecipe": "init loss data validation_data optimizer",
        "Recipe": "options replace spec effective_batch",
    },
    "Optimizers": {"AdamW": "", "Muon": "", "Lion": "", "AdamATan2": "", "Rates": "schedule", "Optimizer": "rule"},
    "Data": {"loader": "", "Hdf5": "", "estimate_memory_usage": ""},
    "Inside a loss of your own": {"widened": "", "rematerialised": ""},
    "Errors": {
        "PlimsollError": "",
        "RecipeError": "",
        "DataError": "",
        "BudgetError": "",
        "RunError": "",
        "CheckpointError": "",
        "StoppedError": "",
    },
}
"""Headings of the page to public names, with the members that are shown."""
SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:", "Yields:")
"""Headings in a docstring, whose lines are indented."""
COMMANDS = {"plan": PlanOptions, "train": TrainOptions, "ladder": LadderOptions, **USES}


@dataclass
class Row:
    """An option, whoever has it, and its defaults."""

    option: Option
    owners: list[str] = field(default_factory=list)
    """Names of parts or commands, in their order."""
    defaults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """A default as it is shown, to the presets that have it."""


class Table:
    """Rows that are alike but for who has them, and for their defaults."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], Row] = {}

    def add(self, options: Iterable[Option], owner: str, preset_name: str) -> None:
        """Adds the options of a part or a command, with the defaults of a preset."""
        for option in options:
            row = self.rows.setdefault((option.name, option.metavar, option.text), Row(option))
            row.owners += [] if owner in row.owners else [owner]
            row.defaults[shown(option.default)].append(preset_name)

    def lines(self, owners: str) -> Iterator[str]:
        """Yields the lines of the table; `owners` is the heading of the second column, empty for none."""
        head = ["option", *([owners] if owners else []), "by default", "what it says"]
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        for row in self.rows.values():
            cells = [usage(row.option), *([", ".join(row.owners)] if owners else []), defaults(row), row.option.text]
            yield f"| {' | '.join(escaped(cell) for cell in cells)} |"


def escaped(text: str) -> str:
    """Returns a text as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def usage(option: Option) -> str:
    """Returns an option as it is typed."""
    return f"`{option.metavar}`" if option.is_argument else f"`{f'{option.flag} {option.metavar}'.rstrip()}`"


def shown(default: Any) -> str:
    """Returns a default as it is shown; empty where the text says what leaving the option out means."""
    return "required" if default is MISSING else shown_default(default)


def defaults(row: Row) -> str:
    """Returns the defaults of an option: the commonest, then the others with the presets that have them."""
    ordered = sorted(row.defaults.items(), key=lambda item: -len(item[1]))
    words = [f"{value or 'none'} ({', '.join(presets)})" for value, presets in ordered[1:]]
    return "; ".join(word for word in [ordered[0][0], *words] if word)


def options_page() -> str:
    """Returns the page of all options."""
    tables = {role: Table() for role in ROLES}
    for name in PRESETS:
        recipe = preset(name)
        for role, part in recipe.parts.items():
            tables[role].add(options_of(part), getattr(part, "name", ""), name)
    for name, reference in BUILT_IN.parts["optimizer"].items():
        kind: type[Optimizer] = resolved(reference)
        tables["optimizer"].add(options_of(kind), name, name)
    lines = [OPTIONS]
    for role, title in ROLES.items():
        lines += [f"## {title}", "", *tables[role].lines("" if role == "length" else role), ""]

    of_commands = Table()
    for command, options in COMMANDS.items():
        of_commands.add(options_of(options), command, command)
    return "\n".join([*lines, "## Of commands", "", *of_commands.lines("command"), ""])


def levers_page() -> str:
    """Returns the page of all levers."""
    head = ["lever", "values", "if memory were free", "numerics", "needs of a recipe", "what it does"]
    lines = [LEVERS_PAGE, f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for lever in LEVERS.values():
        values = ", ".join(map(str, lever.values)) or f"{lever.least} and more"
        needs = ", ".join(f"`{support.name}` of the {support.owner}" for support in lever.supports)
        plain = "the whole batch" if lever.plain is None else str(lever.plain)
        cells = [f"`{lever.flag}`", values, plain, lever.touches, needs, lever.help]
        lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    return "\n".join([*lines, ""])


def api_page() -> str:
    """Returns the page of the Python API."""
    lines = [API_PAGE]
    for title, names in API.items():
        lines += [f"## {title}", ""]
        for name, members in names.items():
            public = getattr(plimsoll, name)
            lines += entry(public, f"plimsoll.{name}", "###")
            for member in members.split():
                lines += entry(inspect.getattr_static(public, member), f"{name}.{member}", "####")
    return "\n".join(lines)


def entry(thing: Any, name: str, heading: str) -> list[str]:
    """Returns the lines of a public name: its signature, and its docstring in Markdown."""
    lines = [f"{heading} {name}", ""]
    if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, Exception)):
        lines += ["```text", signature(thing, name), "```", ""]
    return [*lines, *markdown(inspect.getdoc(thing) or ""), ""]


def signature(thing: Any, name: str) -> str:
    """Returns how a function or class is called, an argument a line where there are many."""
    given = {name: one for name, one in inspect.signature(thing).parameters.items() if name not in ("self", "say")}
    parameters = [
        str(one).partition(":")[0] if one.default is inspect.Parameter.empty else f"{name}={one.default!r}"
        for name, one in given.items()
    ]
    line = f"{name}({', '.join(parameters)})"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(parameters) + ",\n)"


def markdown(docstring: str) -> list[str]:
    """Returns a docstring of Google's style as Markdown."""
    lines = []
    for block in re.split(r"\n(?=\S+:\n)", docstring):
        head, _, rest = block.partition("\n")
        body = textwrap.dedent(rest)
        if head == "Example:":
            code = re.sub(r"  # doctest: .*", "", body.strip())
            lines += ["```pycon", code, "```"]
        elif head in SECTIONS:
            items = re.sub(r"\n {4,}", " ", body.strip())
            items = re.sub(r"^(\*{0,2}[\w, ]+): ", r"* `\1`: ", items, flags=re.MULTILINE)
            lines += [f"**{head[:-1]}**", "", *items.splitlines(), ""]
        else:
            lines += [block.strip(), ""]
    return lines


PAGES = {"api.md": api_page, "options.md": options_page, "all-levers.md": levers_page}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the pages with the code, and write nothing")
    options = parser.parse_args()
    stale = (
        [name for name, page in PAGES.items() if (DOCS / name).read_text("utf-8") != page()] if options.check else []
    )
    if stale:
        print(f"{', '.join(stale)}: not what the code says: python docs/reference.py", file=sys.stderr)
        return 1
    if not options.check:
        for name, page in PAGES.items():
            (DOCS / name).write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
