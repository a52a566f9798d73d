"""Requests to a worker process that imports JAX: one JSON object is sent, and one is returned."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from plimsoll.errors import PlimsollError, raise_refusal
from plimsoll.processes import environment


def ask(
    verb: str,
    question: Mapping[str, Any],
    *,
    under: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Runs a worker process for one request, and returns its answer. The worker inherits standard error.

    Args:
        verb: Key of `worker.ANSWERS`.
        question: Argument of the verb's function, serializable as JSON.
        under: Environment of the worker; by default the one for training on the CPU, so that cached compiled steps are
            found.
        seconds: Time limit after which the worker is killed; None for no limit.

    Raises:
        PlimsollError: The worker raised a PlimsollError, was killed, or exceeded the time limit.
        RuntimeError: The worker failed with another error, which is on standard error.
    """
    command = [sys.executable, "-m", "plimsoll.worker", verb]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question),  # not as an argument, whose length is limited: a prompt may be long
            env=environment.for_processes("cpu") if under is None else under,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise PlimsollError(f"the worker process for {verb!r} did not answer in {seconds:g} s and was killed") from None
    if done.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if done.returncode < 0:
        raise PlimsollError(
            f"the worker process for {verb!r} was killed by signal {-done.returncode}: the machine may be out of memory"
            " (`plimsoll doctor` prints the available memory)"
        )
    if done.returncode:
        raise RuntimeError(f"the worker process for {verb!r} ended with code {done.returncode}: see its error above")
    reply = json.loads(done.stdout)
    raise_refusal(reply)
    return reply["answer"]
