"""The house measured: rooms, circles and arrows, lengths of functions and files, first words of docstrings.

    python benchmarks/house.py [--json]

Reads the source of the package and the table of rooms in tests/test_architecture.py. Imports count wherever they stand:
at the top of a file, in a function, or for type checkers alone. Prints a Markdown table with the goals beside it; the
exit code is 1 where a structural goal is missed: a circle, an arrow that the table does not allow, more than 14 rooms,
or more than 6 loose modules. The other goals are directions, and missing one is no failure.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/plimsoll"
TABLE = ROOT / "tests/test_architecture.py"

SHORT_FUNCTION, SHORT_FILE = 4, 60
"""Lines, at most, or below."""
NO_BEGINNING = {
    *("of", "and", "by", "as", "with", "in", "for", "to", "from", "but", "or", "at", "on", "until", "beside", "than"),
    *("so", "if", "those", "that", "less", "what", "where", "whether", "how", "who", "which", "when"),
}
"""First words of a docstring that leave out what it is about."""


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    path: Path

    @property
    def name(self) -> str:
        parts = (PACKAGE.name, *self.path.relative_to(PACKAGE).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        return self.path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text("utf-8"))

    @cached_property
    def lines(self) -> int:
        return len(self.path.read_text("utf-8").splitlines())

    def imported(self) -> Iterator[str]:
        """Absolute names, of modules or of what is in them."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


class Table(NamedTuple):
    """Table of tests/test_architecture.py: each room's imports from the ground up, and those of loose modules."""

    rooms: dict[str, set[str]]
    loose: dict[str, set[str]]
    ground: set[str]


def table_of_rooms() -> Table:
    literals = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(TABLE.read_text("utf-8")).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("MAY_IMPORT", "LOOSE", "GROUND")
    }
    return Table(literals["MAY_IMPORT"], literals["LOOSE"], literals["GROUND"])


def modules() -> list[Module]:
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def arrows(house: Sequence[Module]) -> dict[str, set[str]]:
    """Returns the modules that each module imports, those of its own room included."""
    known = {module.name for module in house}

    def owner(name: str) -> str:
        return name if name in known else name.rpartition(".")[0]

    return {
        module.name: ({owner(name) for name in module.imported()} & known) - {module.name, PACKAGE.name}
        for module in house
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach one another."""
    import numpy as np
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    names = sorted(graph)
    reaches = np.array([[other in graph[name] for other in names] for name in names])
    count, label = connected_components(csr_matrix(reaches), connection="strong")
    groups = [[name for name, at in zip(names, label, strict=True) if at == number] for number in range(count)]
    return [group for group in groups if len(group) > 1]


def forbidden_arrows(house: Sequence[Module], graph: Mapping[str, set[str]], table: Table) -> list[str]:
    """Arrows between rooms that the table does not have; those that run up are among them, since it has none."""
    rooms = {module.name: module.room for module in house}
    found = set()
    for name, others in graph.items():
        room = rooms[name]
        allowed = table.loose[room] if room in table.loose else table.rooms.get(room, set()) | table.ground | {room}
        found |= {f"{name} -> {other}" for other in others if rooms[other] not in allowed and rooms[other] != room}
    return sorted(found)


def floors(table: Table) -> list[list[str]]:
    """Rooms in floors, from the top: each floor imports only those below it."""
    height: dict[str, int] = {}
    for room, others in table.rooms.items():
        height[room] = 1 + max((height[other] for other in others), default=-1)
    return [[room for room in table.rooms if height[room] == at] for at in range(max(height.values()), -1, -1)]


def first_line(room: str) -> str:
    """Returns the first line of a room's or loose module's docstring."""
    path = PACKAGE / room / "__init__.py"
    tree = ast.parse((path if path.exists() else PACKAGE / f"{room}.py").read_text("utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


class Row(NamedTuple):
    name: str
    value: float
    goal: float
    structural: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.goal


def measured() -> tuple[list[Row], list[str]]:
    """The rows of the table, and what breaks a structural goal, by name."""
    house, table = modules(), table_of_rooms()
    graph = arrows(house)
    importers = {name: {other for other, names in graph.items() if name in names} for name in graph}
    lines = sum(module.lines for module in house)
    nodes = [node for module in house for node in ast.walk(module.tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)
    documented = [
        text
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (text := ast.get_docstring(node))
    ]
    headless = sum(text.split(maxsplit=1)[0].strip("`.,:;").lower() in NO_BEGINNING for text in documented)
    short = sum(length <= SHORT_FUNCTION for length in lengths)
    rooms = {module.room for module in house if module.path.parent != PACKAGE}
    loose = {module.room for module in house if module.path.parent == PACKAGE} - {"__init__"}
    circular, forbidden = circles(graph), forbidden_arrows(house, graph, table)
    small = [
        module.name
        for module in house
        if module.lines < SHORT_FILE and module.path.stem != "__init__" and len(importers[module.name]) == 1
    ]
    asked_what_it_is = sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and ast.unparse(node.args[0]).rpartition(".")[2] == "recipe"
        and ast.unparse(node.args[1]) not in ("str", "dict")  # a name, or what a file holds
        for module in house
        if module.room != "recipes"
        for node in ast.walk(module.tree)
    )
    rows = [
        Row("rooms", len(rooms), 14, structural=True),
        Row("loose modules", len(loose), 6, structural=True),
        Row("circles of imports", len(circular), 0, structural=True),
        Row("arrows between rooms that are not allowed", len(forbidden), 0, structural=True),
        Row("`isinstance(recipe, ...)` outside recipes", asked_what_it_is, 0),
        Row("lines", lines, 34_000),
        Row("lines of the longest file", max(module.lines for module in house), 507),
        Row(f"files under {SHORT_FILE} lines that one other file imports", len(small), 0),
        Row("functions per 1,000 lines", round(1000 * len(functions) / lines, 1), 55),
        Row(f"functions of at most {SHORT_FUNCTION} lines, %", _percent(short, lengths), 30),
        Row("lines of a function, median", lengths[len(lengths) // 2], 8),
        Row("lines of a function, 9 of 10 at most", lengths[len(lengths) * 9 // 10], 30),
        Row("lines of the longest function", lengths[-1], 105),
        Row("docstrings that begin with a preposition or the like, %", _percent(headless, documented), 5),
    ]
    return rows, [*(" <-> ".join(group) for group in circular), *forbidden]


def _percent(part: int, whole: Sequence[object]) -> float:
    return round(100 * part / max(1, len(whole)), 1)


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| | measured | goal, at most | |", "|---|--:|--:|---|"]
    lines += [f"| {row.name} | {row.value:,} | {row.goal:,} | {'' if row.met else 'missed'} |" for row in rows]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object instead of the table")
    options = parser.parse_args(arguments)
    rows, broken = measured()
    if options.json:
        print(json.dumps({row.name: row.value for row in rows}, indent=1))
    else:
        print(markdown(rows))
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if any(row.structural and not row.met for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
