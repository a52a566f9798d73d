"""The process that weighs what training imports, and then the functions of a plan: `python -m plimsoll.worker try`."""

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
    """Starts a trial process with the subject, as training is started on a CPU."""
    beside_a_card: Mapping[str, str] = os.environ | {"JAX_PLATFORMS": "cpu"}  # of which it takes no memory
    variables = environment.for_processes("cpu") if subject.chip is None else beside_a_card
    command = [sys.executable, "-m", "plimsoll.worker", "try", json.dumps(to_json(subject))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def last_line(process: subprocess.Popen[str], request: str) -> str:
    """Sends a request to a trial process, and returns the last line that it prints before it ends."""
    output, errors = process.communicate(request)
    if process.returncode:
        raise RuntimeError(f"a trial process failed: {errors.strip()[-300:]}")
    return output.splitlines()[-1]
