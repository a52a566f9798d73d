"""The compiler in a separate process that takes requests as lines of JSON. Its memory is freed before training starts.

If the process crashes, is killed or takes too long, the planner starts another one. The plan in question counts as
one that does not compile, with the reason. Answers are cached on disk.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

from plimsoll.errors import PlimsollError
from plimsoll.planned import Plan
from plimsoll.planner.host import cores
from plimsoll.planner.space import same_step
from plimsoll.planner.types import (
    Analysis,
    ChildDied,
    Depth,
    DoesNotCompile,
    Preparation,
    Rates,
    Request,
    Static,
    Subject,
    Verb,
)
from plimsoll.types import WHOLE, Storage
from plimsoll.units import format_seconds
from plimsoll.values import from_json, to_json

LONGEST_ANSWER = 300.0
"""Default time limit of one answer, in seconds. The longest measured compile, of preset `arc-1` for a TPU, took 210 s
on a shared core."""


ANSWERS: Mapping[Verb, Any] = {
    "rates": Rates,
    "imports": int,
    "static": Static,
    "trace": Analysis,
    "analyse": Analysis,
    "prepare": Preparation,
    "measure": tuple[float, ...],
}
"""Maps the verb of a request to the type of its answer."""


@dataclasses.dataclass(frozen=True)
class CompileProcess:
    """Command and environment of a process that compiles the functions of one recipe for one chip."""

    subject: Subject
    environment: Mapping[str, str]
    python: str = sys.executable

    @property
    def command(self) -> list[str]:
        """Command line of the process. Its verb is "cross-compile" for a chip that is not in this machine."""
        is_here = self.subject.chip is None or self.subject.card is not None
        verb = "compile" if is_here else "cross-compile"
        return [self.python, "-m", "plimsoll.worker", verb, json.dumps(to_json(self.subject))]


class Answering(abc.ABC):
    """Base class of implementations of `planner.types.Compiler`. Each method makes a request for `answer`."""

    @abc.abstractmethod
    def answer(self, request: Request) -> Any:
        """Returns the answer to a request, of the type in `ANSWERS`."""

    def static(self, fsdp: int = 1, storage: Storage = WHOLE) -> Static:
        return self.answer(Request(verb="static", fsdp=fsdp, storage=storage))

    def rates(self) -> Rates:
        return self.answer(Request(verb="rates"))

    def imported_bytes(self) -> int:
        return self.answer(Request(verb="imports"))

    def trace(self, plan: Plan) -> Analysis:
        return self.answer(_about("trace", plan))

    def analyse(self, plan: Plan) -> Analysis:
        return self.answer(_about("analyse", plan))

    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        return self.answer(dataclasses.replace(_about("prepare", plan), depth=depth))

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        return list(self.answer(_about("measure", *plans)))


class Child(Answering):
    """A `planner.types.Compiler` in one process, which starts with the first request.

    A process without an answer after `longest` seconds is killed.
    """

    def __init__(self, process: CompileProcess, *, answers: Path, longest: float = LONGEST_ANSWER) -> None:
        self.compiles = 0
        self.seconds_saved = 0.0
        """Total seconds that the answers from the cache took when they were computed."""
        self.doing = "compiling" if process.subject.is_compiled else "estimating"
        self._command = process.command
        self._environment = dict(process.environment)
        self._subject = process.subject
        self._versions = [_libraries(), self._environment.get("XLA_FLAGS", "")]
        self._answers = answers
        self._longest = longest
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._is_busy = False
        self._is_stopped = False

    def stop(self) -> None:
        """Kills the process. A request that is under way raises ChildDied. Files that it writes stay intact."""
        self._is_stopped = True
        process = self._process
        if process is None:
            return
        is_answering = self._is_busy
        process.kill()
        process.wait()

        # A request that is under way closes the pipes itself, after it has read standard error.
        if not is_answering:
            self._close(process)

    def answer(self, request: Request) -> Any:
        """Returns the answer to a request from the cache, or else from the process, and then caches it."""
        path = self._path(request)
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # no file, or a damaged one
            kept = json.loads(path.read_text())
            answer = from_json(ANSWERS[request.verb], kept["answer"], "answer")
            with contextlib.suppress(OSError):  # the file may belong to another user
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # marks it as used (processes/cache.py)
            self.seconds_saved += kept["seconds"]
            return answer

        begin = time.monotonic()
        try:
            answer = self._ask(request)
        except ChildDied:
            if request.verb in ("analyse", "measure") or self._is_stopped:  # only the plans of the request fail
                raise
            answer = self._ask(request)  # all plans need this answer: try once more
        if request.verb == "analyse":
            self.compiles += 1

        # Cache the answer. A full or read-only disk does not matter.
        with contextlib.suppress(OSError):
            self._answers.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._answers, delete=False) as file:
                json.dump({"answer": to_json(answer), "seconds": time.monotonic() - begin}, file)
            os.replace(file.name, path)
        return answer

    def _path(self, request: Request) -> Path:
        """Returns the cache file of an answer. Its name is a digest of everything that the answer depends on."""
        subject: Any = self._subject
        versions = [*self._versions, software_digest()]

        # A chip's rates do not depend on the recipe. The bytes of imports depend on options only for a user's recipe.
        if request.verb == "rates":
            subject = [subject.chip, subject.card, subject.compiler]
            versions = self._versions
        if request.verb == "imports" and not subject.is_own:
            parts = {name: value for name, value in subject.recipe.items() if name != "fields"}
            subject = [parts, subject.imports]
        question = json.dumps(to_json([request, subject, versions]), sort_keys=True)
        digest = hashlib.sha256(question.encode()).hexdigest()
        return self._answers / f"{request.verb}-{digest[:24]}.json"

    def _ask(self, request: Request) -> Any:
        """Starts the process if necessary, sends the request, and returns the answer."""
        if self._is_stopped:
            raise ChildDied("the compile process was stopped")
        process = self._process or self._start()
        begin = time.monotonic()
        line = self._line(process, json.dumps(to_json(request)))

        # No whole line: the process ended, or was killed.
        if not line.endswith("\n"):
            is_late = time.monotonic() - begin >= self._longest
            raise ChildDied(self._why_it_ended(process, is_late=is_late))

        # The reply is an answer, an error for the user, or a failure to compile. For any other reply, kill the process.
        try:
            reply = json.loads(line)
            if "refused" in reply:
                raise PlimsollError(reply["refused"])
            if "failed" in reply:
                raise DoesNotCompile(reply["failed"])
            return from_json(ANSWERS[request.verb], reply["answer"], "answer")
        except (ValueError, LookupError, TypeError):
            process.kill()
            self._why_it_ended(process)
            raise DoesNotCompile(f"the compile process answered with {line.strip()[:300]!r}") from None

    def _line(self, process: subprocess.Popen[str], question: str) -> str:
        """Sends a question, and returns the process's line of reply; empty or incomplete if the process has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(self._longest, process.kill)
        watchdog.start()
        self._is_busy = True
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""
        finally:
            watchdog.cancel()
            self._is_busy = False

    def _start(self) -> subprocess.Popen[str]:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed when the child ends)
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self._process

    def _why_it_ended(self, process: subprocess.Popen[str], *, is_late: bool = False) -> str:
        """Waits for the end of the process. Returns a message with its exit code and last line of standard error."""
        code = process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if is_late:
            how = f"had no answer after {format_seconds(self._longest)} and was stopped"
        message = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
            message = f": {lines[-1][:300]}" if lines else ""
        self._close(process)
        return f"the compile process {how}{message}"

    def _close(self, process: subprocess.Popen[str]) -> None:
        """Closes the pipes of an ended process, because one search may start several processes."""
        self._process = None
        for stream in (process.stdin, process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # of a question that the process had not read
                if stream is not None:
                    stream.close()


class Pool(Answering):
    """A `planner.types.Compiler` of several processes that answer in parallel. Each starts with its first request.

    Only the first process times training steps.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self.workers = len(children)
        self.doing = children[0].doing
        self._children = children
        self._idle = queue.LifoQueue[Child]()
        self._statics: dict[Request, Static] = {}
        for child in reversed(children):
            self._idle.put(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.stop()

    @property
    def compiles(self) -> int:
        return sum(child.compiles for child in self._children)

    def clock(self) -> float:
        """Returns the monotonic time plus the seconds that cached answers took when they were computed.

        So a search that is repeated with cached answers reaches its time limit at the same question, with the same
        plan.
        """
        return time.monotonic() + sum(child.seconds_saved for child in self._children)

    def answer(self, request: Request) -> Any:
        """Returns the answer of the next idle process. Answers about the state's bytes are also cached in memory."""
        if request.verb == "measure":
            return self._children[0].answer(request)
        if request in self._statics:
            return self._statics[request]
        child = self._idle.get()
        try:
            answer = child.answer(request)
        finally:
            self._idle.put(child)
        if request.verb == "static":
            self._statics[request] = answer
        return answer


def _about(verb: Verb, *plans: Plan) -> Request:
    """Returns a request about plans, without settings that do not affect compiled functions."""
    return Request(verb=verb, plans=tuple(map(same_step, plans)))


@cache
def software_digest() -> str:
    """Returns a digest of everything that compiled functions depend on: libraries, this package, the processor."""
    return hashlib.sha256(f"{_libraries()} {code_digest()}".encode()).hexdigest()


@cache
def _libraries() -> str:
    """Returns a digest of Python's and the libraries' versions and the processor."""
    digest = hashlib.sha256(sys.version.encode())
    required = ("jax", "jaxlib", "optax", "orbax-checkpoint", "grain", "tokenizers", "numpy")
    optional = ("flax", "equinox")  # libraries of users' models
    for name in (*required, *(name for name in optional if importlib.util.find_spec(name))):
        digest.update(f"{name} {importlib.metadata.version(name)}".encode())
    digest.update(processor().encode())
    return digest.hexdigest()


@cache
def code_digest() -> str:
    """Returns the SHA-256 of this package's code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def processor() -> str:
    """Returns the model of the processor, and the number of cores that this process may use."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # only Linux has this file
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{cores()} cores of {model}"
