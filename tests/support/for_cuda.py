"""Programs that the compilers of absent chips run in their own environments."""

import json
import subprocess

import pytest

from plimsoll.processes import toolchains
from plimsoll.processes.environment import for_processes


def answer_for_cuda(program, *arguments, platform="cuda"):
    """Returns what a program prints last, as JSON; skips the test where the compiler is not installed."""
    python = toolchains.python_for(platform)
    if python is None:
        pytest.skip(f"the {platform} compiler: {toolchains.missing(platform)} (`plimsoll chips --install {platform}`)")
    command = [python, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=for_processes(platform), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
