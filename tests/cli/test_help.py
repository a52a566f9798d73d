"""Help and the package itself answer at once: neither imports JAX."""

import os
import subprocess
import sys

import pytest

from plimsoll.cli.main import COMMANDS, usage

HEAVY = {"jax", "jaxlib", "grain", "orbax", "datasets", "pyarrow", "tokenizers", "numpy", "typeguard"}


def python(program):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600, check=False
    )


HELP = """
import contextlib, io, sys
from plimsoll.cli.main import COMMANDS, main
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        assert main([name, "--help"]) == 0
    assert f"plimsoll {{name}}" in printed.getvalue(), name
    assert not {heavy!r} & set(sys.modules), (name, {heavy!r} & set(sys.modules))
"""


def test_the_help_of_every_command_imports_no_jax():
    done = python(HELP.format(heavy=HEAVY))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_usage_names_every_command():
    assert all(f"plimsoll {name}" in usage() for name in COMMANDS)


def test_importing_the_package_imports_nothing_else():
    done = python(
        "import sys; before = set(sys.modules); import plimsoll; dir(plimsoll)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - {'plimsoll', 'importlib'}\n"
        "assert not new - set(sys.stdlib_module_names), new\n"
        "assert [name for name in sys.modules if name.startswith('plimsoll.')] == []\n"
    )
    assert done.returncode == 0, done.stderr


def test_planning_and_training_are_reached_without_jax():
    done = python(
        "import sys, plimsoll\n"
        "with_jax = {'widened', 'rematerialised', 'Hdf5'}  # are called where a loss and its data are\n"
        "assert all(getattr(plimsoll, name) is not None for name in set(plimsoll.__all__) - with_jax)\n"
        "assert issubclass(plimsoll.BudgetError, plimsoll.PlimsollError)\n"
        "assert plimsoll.preset('code').width == 128\n"
        "assert 'jax' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_an_attribute_error():
    import plimsoll

    with pytest.raises(AttributeError, match="plimsoll has no 'plna': did you mean plan"):
        _ = plimsoll.plna
