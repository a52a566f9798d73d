"""The arrows of DESIGN.md's table, read from the source: who may import whom, and what stays light."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/plimsoll"
GROUND = {"errors", "units", "tree", "types"}
MAY_IMPORT = {
    "errors": set(),
    "units": {"errors"},
    "tree": set(),
    "types": set(),
    "levers": set(),
    "optimizers": {"levers"},
    "data": set(),
    "builders": {"data"},
    "models": {"levers"},
    "planner": {"levers", "optimizers"},
    "training": {"levers", "optimizers", "data"},
    "report": set(),
    "recipes": {"models", "data", "optimizers"},
    "cli": {
        "run",
        "together",
        "watching",
        "session_options",
        "report",
        "recipes",
        "environment",
        "ask",
        "data",
        "builders",
        "planner",
        "training",
        "compilers",
        "settings",
        "ladder",
        "puzzle_question",
        "history_question",
        "reporting",
        "comparing",
        "bucket",
    },
}
"""Besides the ground (errors, units, tree, types), which every room may import. The command line parses recipes,
and looks at data sets, limits and run folders; it must not import JAX, which another test holds."""
JOINT = {
    "run", "session", "session_line", "session_log", "session_options", "worker", "workshop", "drydock", "compilers",
    "environment", "ask", "here", "driving", "batches", "examine", "inference", "settings", "ladder", "rungs",
    "pins", "puzzle_text", "puzzle_question", "history_question", "recommending", "solving", "voting", "pretrained",
    "exporting", "mesh", "together", "watching", "bucket",
    "comparing", "notebook", "provenance", "repeating", "reporting", "showing",
}  # fmt: skip
"""Modules that bring the rooms together, and may import all of them but the command line."""


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree, *, top_level_only=False):
    """Absolute names of what is imported; imports for type checkers alone are no arrows."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(node, top_level_only=top_level_only)


def modules():
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def name_of(path):
    return str(path.relative_to(SOURCE))


def forbidden(room, names):
    ours = {name.split(".")[1] for name in names if name.startswith("plimsoll.")}
    if room in JOINT:
        return ours & {"cli"}
    return ours - MAY_IMPORT[room] - {room} - (GROUND if room not in GROUND else set())


def test_there_is_something_to_read():
    assert len(modules()) > 40
    assert {room_of(path) for path in modules()} >= {"levers", "models", "planner", "training", "recipes", "cli"}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_its_room_may(path):
    room = room_of(path)
    assert room in MAY_IMPORT or room in JOINT, f"{room} is not in DESIGN.md's table"
    assert forbidden(room, set(imports(ast.parse(path.read_text())))) == set()


def test_the_rule_notices_a_forbidden_arrow_wherever_it_stands():
    inside = "def train():\n    from plimsoll.planner import search\n"
    assert forbidden("training", set(imports(ast.parse(inside)))) == {"planner"}
    assert forbidden("planner", {"plimsoll.models.decoder"}) == {"models"}
    assert forbidden("levers", {"plimsoll.types", "jax"}) == set()
    assert forbidden("errors", {"plimsoll.units"}) == {"units"}
    assert list(imports(ast.parse("if TYPE_CHECKING:\n    import jax\n"))) == []


HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "tokenizers", "datasets", "pyarrow"}


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if room_of(path) in {"recipes", "cli", "report", "run", "types", "errors", "units"}],
    ids=name_of,
)
def test_what_answers_at_once_imports_nothing_heavy(path):
    names = {name.split(".")[0] for name in imports(ast.parse(path.read_text()), top_level_only=True)}
    assert names & HEAVY == set()


def loaded_after(statement):
    program = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_command_line_starts_without_jax_numpy_or_tyro():
    assert not loaded_after("import plimsoll.cli.main") & (HEAVY | {"numpy", "tyro", "rich"})


def test_planning_and_preparing_stay_free_of_jax():
    """`train` becomes the training process by exec, and its memory is the budget's business from then on."""
    statement = "import plimsoll.api.train, plimsoll.cli.train, plimsoll.recipes.text.code as c; c.code().shape"
    assert "jax" not in loaded_after(statement)
