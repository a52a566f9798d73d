"""Starts trial processes (`python -m plimsoll.worker try`), which measure their memory after training's imports.

A trial process that gets a plan also measures its memory after loading the plan's compiled functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from plimsoll.planner.types import Subject
from plimsoll.processes import environment
from plimsoll.values import to_json


def started(subject: Subject) -> subprocess.Popen[str]:
    """Starts a trial process on the CPU, for the recipe of a `Subject`."""
    beside_a_card: Mapping[str, str] = os.environ | {"JAX_PLATFORMS": "cpu"}  # takes no memory of the accelerator
    variables = environment.for_processes("cpu") if subject.chip is None else beside_a_card
    command = [sys.executable, "-m", "plimsoll.worker", "try", json.dumps(to_json(subject))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def last_line(process: subprocess.Popen[str], request: str) -> str:
    """Sends `request` (a plan as JSON, or nothing) to a trial process. Returns the last line that it prints."""
    output, errors = process.communicate(request)
    if process.returncode:
        raise RuntimeError(f"a trial process failed: {errors.strip()[-300:]}")
    return output.splitlines()[-1]
