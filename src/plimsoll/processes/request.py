"""A question to a process that imports JAX: one JSON object there, one back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from plimsoll.errors import PlimsollError
from plimsoll.processes import environment


def ask(verb: str, question: Mapping[str, Any], *, under: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The worker's answer; what it refuses is refused here, in its words. Its standard error is ours.

    `under`: its environment; that of training on the CPU if it is not said, so that compiled steps are found.
    """
    command = [sys.executable, "-m", "plimsoll.worker", verb]
    done = subprocess.run(
        command,
        input=json.dumps(question),  # not an argument: a prompt may be longer than the system allows there
        env=environment.for_processes("cpu") if under is None else under,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if done.returncode < 0:
        raise PlimsollError(
            f"the process that was to {verb} was killed by signal {-done.returncode}: the machine may be out of memory"
            " (`plimsoll doctor` says what is available)"
        )
    if done.returncode:
        raise RuntimeError(f"the process that was to {verb} ended with code {done.returncode}: its error stands above")
    reply = json.loads(done.stdout)
    if "refused" in reply:
        raise _refusal(reply)
    return reply["answer"]


def _refusal(reply: Mapping[str, Any]) -> PlimsollError:
    refusal = PlimsollError(reply["refused"])
    refusal.exit_code = reply["exit_code"]
    return refusal
