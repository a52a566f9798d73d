"""What the processes of a run say, and do not say, on a machine that has JAX's plug-in for a card."""

import os
import subprocess
import sys

import pytest

from plimsoll.processes.environment import for_processes

NOT_HIDDEN = "import sys; sys.modules['jax_plugins'] = None; import jax; jax.devices()"
OWN_FILE = "from plimsoll.processes.environment import keep_jax_off_the_chip as keep; keep(); import jax; jax.devices()"


@pytest.fixture
def with_plugin(tmp_path):
    """Environment of a CPU's process on such a machine: a package of no modules names the entry point."""
    package = tmp_path / "jax_cuda13_plugin-0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-cuda13-plugin\nVersion: 0.1\n")
    (package / "entry_points.txt").write_text("[jax_plugins]\nxla_cuda13 = jax_plugins.xla_cuda13\n")
    base = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return for_processes("cpu", base)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["-c", NOT_HIDDEN], "Plugin module jax_plugins.xla_cuda13 does not exist"),
        (["-m", "plimsoll.worker", "accelerators"], ""),
        (["-c", OWN_FILE], ""),
    ],
    ids=["as-jax-does", "worker", "own-file"],
)
def test_a_plugin_that_is_hidden_is_not_said_to_be_missing(with_plugin, command, says):
    done = subprocess.run(
        [sys.executable, *command], input="{}", env=with_plugin, capture_output=True, text=True, check=True
    )
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)
