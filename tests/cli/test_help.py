"""Help and the package itself answer at once: neither imports JAX, and each heavy package waits until it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.cli.main import COMMANDS, usage

SUPPORT = Path(__file__).parents[1] / "support"
STEP_BY_STEP = """
import contextlib, importlib, io, pathlib, pkgutil, sys

before = set(sys.modules)


def loaded():
    return {name.partition(".")[0] for name in sys.modules}


# The package alone is the standard library.
import plimsoll

dir(plimsoll)
new = {name.partition(".")[0] for name in set(sys.modules) - before} - {"plimsoll", "importlib"}
assert not new - set(sys.stdlib_module_names), new
assert [name for name in sys.modules if name.startswith("plimsoll.")] == []

# Help.
from plimsoll.cli.main import COMMANDS, main

heavy = {"jax", "jaxlib", "flax", "optax", "grain", "orbax", "datasets", "pyarrow", "tokenizers"}
assert not loaded() & (heavy | {"numpy", "argparse"})
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        assert main([name, "--help"]) == 0
    assert f"plimsoll {name}" in printed.getvalue(), name
    assert not loaded() & (heavy | {"numpy", "typeguard"}), (name, sorted(loaded()))

# What a training process imports for its log.
from plimsoll import report

names = [module.name for module in pkgutil.walk_packages(report.__path__, "plimsoll.report.")]
assert {"plimsoll.report.progress", "plimsoll.report.page.run"} <= set(names)
for name in names:
    importlib.import_module(name)
drawing = {"tqdm", "tensorboardX", "wandb", "matplotlib", "jinja2"}
assert not loaded() & (heavy | drawing | {"numpy"}), sorted(loaded())

# Recipes.
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset

for name in PRESETS:
    preset(name)
assert not loaded() & heavy, loaded() & heavy

# Planning and training: `train` becomes the training process, whose memory is the budget's business from then on.
import plimsoll.api.run, plimsoll.cli.train

preset("code").hints
with_jax = {"widened", "rematerialised", "Hdf5"}  # are called where a loss and its data are
assert all(getattr(plimsoll, name) is not None for name in set(plimsoll.__all__) - with_jax)
assert issubclass(plimsoll.BudgetError, plimsoll.PlimsollError)
assert plimsoll.preset("code").options["width"] == 128
assert "jax" not in loaded()

# Progress without a terminal, a tracker, and at last a picture.
shown = plimsoll.report.progress.Progress(10, stream=io.StringIO())
shown.update(1, {"loss": 1.0, "elapsed_seconds": 1.0})
shown.close()
assert not loaded() & {"jax", "tqdm", "tensorboardX"}
tracked = plimsoll.report.trackers.Tracked(folder=pathlib.Path(sys.argv[1]), name="x", config={})
plimsoll.report.trackers.open_tracker("tensorboard", tracked).close()
assert not loaded() & {"torch", "tensorflow", "jax", "matplotlib", "PIL"}
from report_examples import PLANNED

picture = plimsoll.report.picture
picture.save_picture(sys.argv[2], picture.figure_of(picture.waterfall(PLANNED)))
assert not {"matplotlib.pyplot", "jax"} & set(sys.modules)
"""


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    command = [sys.executable, "-c", STEP_BY_STEP, str(tmp_path), str(tmp_path / "plan.png")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_usage_names_every_command_and_where_to_start():
    assert all(f"plimsoll {name}" in usage() for name in COMMANDS)
    assert max(map(len, usage().splitlines())) <= 80
    assert all(words in usage() for words in ("Start here: plimsoll train code", "--version", "docs/index.md"))


LOADED = """
import contextlib, io, sys

before = set(sys.modules)
from plimsoll.cli.main import main

with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*sorted({*sys.modules} - before))
"""


def loaded_by(*words):
    """Returns the modules that a command has loaded, ours and packages of others."""
    command = [sys.executable, "-c", LOADED, *words]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=600, check=True)
    names = done.stdout.split()
    ours = {name for name in names if name.startswith("plimsoll.")}
    packages = {name.partition(".")[0] for name in names} - {"plimsoll", *sys.stdlib_module_names}
    return ours, packages


def test_the_usage_loads_two_modules():
    assert loaded_by("--help") == ({"plimsoll.cli", "plimsoll.cli.main", "plimsoll.errors"}, set())


def test_the_help_of_a_recipe_loads_options_and_no_other_recipe():
    ours, packages = loaded_by("train", "stories", "--help")
    assert packages == set()
    rooms = {name.split(".")[1] for name in ours}
    assert rooms <= {"cli", "data", "engine", "errors", "files", "levers", "models", "optimizers", "options", "planned",
                     "recipes", "training", "types", "units", "values"}  # fmt: skip
    of_training = {name for name in ours if name.startswith("plimsoll.training.")}
    assert of_training == {"plimsoll.training.schedule"}, "what `--eval-every` means, and nothing that imports JAX"
    recipes = {name for name in ours if name.startswith("plimsoll.recipes.")}
    assert not [name for name in recipes if name.split(".")[2] in ("finetune", "puzzles", "recommend", "control")
                and name.count(".") > 2]  # fmt: skip
    assert len(ours) <= 70


def test_a_name_that_is_not_there_is_an_attribute_error():
    import plimsoll

    with pytest.raises(AttributeError, match="plimsoll has no 'plna'") as refusal:
        _ = plimsoll.plna
    assert (refusal.value.name, refusal.value.obj) == ("plna", plimsoll)  # by which Python suggests another
