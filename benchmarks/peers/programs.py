"""Programs that wait for their turn, so that timings are taken A B A B though each side has a process of its own.

One line of JSON on standard input is a question, one on standard output its answer. Standard library only.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Program:
    """A side in its own process, seen from the benchmark."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **asked: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: {self.name} ended with code {self.process.wait()} when asked to {asked['do']}")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def respond(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Answers, in that process, until standard input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # a library that prints must not answer for us
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def resident_bytes(field: str) -> int:
    """`VmRSS` or `VmHWM` of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
