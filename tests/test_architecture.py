"""The rooms of the house, read from the source: who may import whom, no circles, and what stays light."""

import ast
import graphlib
import re
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/plimsoll"
GROUND = {"errors", "units", "options", "types", "values", "planned"}
"""What every room may import that it does not stand on: `planned` stands on `levers`."""
MAY_IMPORT = {
    "processes": set(),
    "files": {"processes"},
    "levers": set(),
    "optimizers": {"levers"},
    "data": {"files", "processes"},
    "models": {"levers"},
    "planner": {"levers"},
    "report": {"levers"},
    "recipes": {"models", "data", "files", "optimizers", "levers", "report"},
    "training": {"levers", "optimizers", "processes", "files"},
    "engine": {"levers", "optimizers", "planner", "processes", "recipes", "report", "files", "training"},
    "inference": {"data", "engine", "files", "levers", "models", "recipes", "report", "training"},
    "api": {"engine", "inference", "levers", "planner", "processes", "recipes", "report", "files", "training"},
    "cli": {"api", "data", "engine", "levers", "planner", "processes", "recipes", "report", "files"},
}
"""The rooms, from the ground up, and what each may import besides the ground: at the top of a file, in a function, or
for types alone."""
LOOSE = {
    "errors": set(),
    "units": {"errors"},
    "options": {"errors", "units"},
    "types": set(),
    "values": set(),
    "planned": {"levers", "types", "units", "values"},
    "worker": {
        "api",
        "engine",
        "errors",
        "inference",
        "planned",
        "planner",
        "processes",
        "recipes",
        "training",
        "values",
    },
    "__init__": {"api", "data", "errors", "levers", "optimizers", "recipes", "files"},
}
"""The same of the modules that stand in no room."""


def name_of(path):
    return str(path.relative_to(SOURCE))


def dotted(path):
    parts = ["plimsoll", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules():
    return sorted(SOURCE.rglob("*.py"))


def imports(tree, *, top_level_only=False):
    """Absolute names of what is imported, for type checkers too unless it is of the top level alone."""
    for node in ast.iter_child_nodes(tree):
        if top_level_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(node, top_level_only=top_level_only)


@cache
def tree_of(path):
    return ast.parse(path.read_text("utf-8"))


@cache
def imports_of(path):
    return frozenset(imports(tree_of(path)))


def rooms_of(names):
    """The rooms and loose modules of ours that are imported."""
    return {[*name.split("."), "__init__"][1] for name in names if name.split(".")[0] == "plimsoll"}


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def forbidden(room, names):
    if room in LOOSE:
        return rooms_of(names) - LOOSE[room]
    stands_on_it = {module for module in GROUND if room in LOOSE[module]}
    return rooms_of(names) - MAY_IMPORT[room] - {room} - (GROUND - stands_on_it)


def test_every_room_and_loose_module_is_in_the_table():
    assert {room_of(path) for path in modules()} == set(MAY_IMPORT) | set(LOOSE)
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(MAY_IMPORT)


def test_no_arrow_of_the_table_runs_up():
    floors = list(MAY_IMPORT)
    for room, others in MAY_IMPORT.items():
        assert all(floors.index(other) < floors.index(room) for other in others), room


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_its_room_may(path):
    assert forbidden(room_of(path), imports_of(path)) == set()


@pytest.mark.parametrize("room", [*MAY_IMPORT, *LOOSE])
def test_what_the_table_allows_is_used(room):
    used = {name for path in modules() if room_of(path) == room for name in imports_of(path)}
    assert (MAY_IMPORT | LOOSE)[room] - rooms_of(used) == set()


def test_no_modules_import_one_another_in_a_circle():
    known = {dotted(path): path for path in modules()}
    arrows = {}
    for module, path in known.items():
        names = imports_of(path)
        arrows[module] = {
            name if name in known else name.rpartition(".")[0] for name in names if name.startswith("plimsoll.")
        } & known.keys() - {module}
    order = list(graphlib.TopologicalSorter(arrows).static_order())  # its CycleError names the circle
    assert set(order) == set(known)


def test_the_rule_notices_a_forbidden_arrow_wherever_it_stands():
    inside = "def train():\n    from plimsoll.planner import search\n"
    assert forbidden("training", set(imports(ast.parse(inside)))) == {"planner"}
    of_types = "if TYPE_CHECKING:\n    from plimsoll.models.decoder import Decoder\n"
    assert forbidden("planner", set(imports(ast.parse(of_types)))) == {"models"}
    assert forbidden("levers", {"plimsoll.types", "jax"}) == set()
    assert forbidden("levers", {"plimsoll.planned"}) == {"planned"}
    assert forbidden("errors", {"plimsoll.units"}) == {"units"}
    assert forbidden("api", {"plimsoll"}) == {"__init__"}


def test_the_page_of_the_house_is_this_table():
    page = (SOURCE.parents[1] / "docs/house.md").read_text("utf-8")
    for room, others in (MAY_IMPORT | LOOSE).items():
        path = SOURCE / room / "__init__.py"
        tree = tree_of(path if path.exists() else SOURCE / f"{room}.py")
        purpose = (ast.get_docstring(tree) or "").partition("\n")[0].replace("|", "\\|")
        allowed = ", ".join(f"`{other}`" for other in sorted(others)) or "none"
        assert f"| `{room}` | {purpose} | {allowed} |" in page
    floors = {room: int(floor) for floor, room in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}
    assert floors.keys() == MAY_IMPORT.keys()
    for room, others in MAY_IMPORT.items():
        assert all(floors[other] < floors[room] for other in others), room


HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "tokenizers", "datasets", "pyarrow"}


LIGHT = {
    "recipe.py",
    "parts.py",
    "specs.py",
    "flat.py",
    "registered.py",
    "registry.py",
    "saved.py",
    "model.py",
    "data.py",
}
"""Files of recipes that are loaded before it is known whether anything is trained."""


def answers_at_once(path):
    """Whether the command line loads this file to parse, list or print: recipes build their models only later."""
    in_recipes = room_of(path) == "recipes" and path.name in LIGHT
    return in_recipes or room_of(path) in {"cli", "report", "types", "errors", "units", "options"}


@pytest.mark.parametrize("path", [path for path in modules() if answers_at_once(path)], ids=name_of)
def test_what_answers_at_once_imports_nothing_heavy(path):
    names = {name.split(".")[0] for name in imports(tree_of(path), top_level_only=True)}
    assert names & HEAVY == set()
