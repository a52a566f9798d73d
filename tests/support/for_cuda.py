"""Programs that NVIDIA's compiler runs in its own environment, without a card."""

import json
import subprocess

import pytest

from plimsoll.processes import toolchains
from plimsoll.processes.environment import for_processes


def answer_for_cuda(program):
    """Returns what a program prints last, as JSON; skips the test where the compiler is not installed."""
    python = toolchains.python_for("cuda")
    if python is None:
        pytest.skip(f"the cuda compiler: {toolchains.missing('cuda')} (`plimsoll chips --install cuda`)")
    done = subprocess.run([python, "-c", program], env=for_processes("cuda"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
