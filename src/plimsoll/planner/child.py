"""The compiler in a process of its own, with requests in JSON lines: its memory is gone when training starts.

A child that crashes, is killed or takes too long costs one plan, not the planner: it is started again, and the plan
counts as not compiling here, with the reason. Answers are kept on disk, so the same question costs nothing twice.
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from plimsoll.errors import PlimsollError
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Plan
from plimsoll.planner.host import cores
from plimsoll.planner.types import Analysis, ChildDied, DoesNotCompile, Rates, Rehearsal, Static
from plimsoll.types import Storage
from plimsoll.units import format_seconds
from plimsoll.values import from_json

Answer = TypeVar("Answer")

LONGEST_ANSWER = 300.0
"""Seconds after which an answer counts as failed, by default. The longest compile that was seen, that of `arc-1` for a
TPU, took 210 s of a shared core."""


class Child:
    """A `planner.types.Compiler`. `command` starts the process; its answers depend on `about`.

    One that has no answer after `longest` seconds is stopped.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        about: Mapping[str, Any],
        answers: Path,
        longest: float = LONGEST_ANSWER,
    ) -> None:
        self._command, self._environment = list(command), dict(environment)
        versions = [software_digest(), about.get("compiler"), self._environment.get("XLA_FLAGS", "")]
        self._about = json.dumps([about, versions], sort_keys=True)
        self._chip = json.dumps([about.get("chip"), about.get("card"), versions], sort_keys=True)
        self._answers, self._longest = answers, longest
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._busy = self._stopped = False
        self.compiles, self.seconds_saved = 0, 0.0
        self.doing = "compiling" if about.get("compiled", True) else "estimating"

    def stop(self) -> None:
        """Ends the process, at once if it is busy: whoever asked it is told so."""
        self._stopped, process = True, self._process
        if process is None:
            return
        if self._busy:  # who asked reads its last words, and closes the pipes
            process.kill()
            process.wait()
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._close(process)

    def static(self, fsdp: int = 1, storage: Storage | None = None) -> Static:
        answer = self._cached("static", {"fsdp": fsdp, "storage": dataclasses.asdict(storage or Storage())})
        return from_json(Static, answer, "static")

    def rates(self) -> Rates:
        """Returns the rates of the chip: the same for every recipe."""
        return from_json(Rates, self._cached("rates", {}, about=self._chip), "rates")

    def analyse(self, plan: Plan) -> Analysis:
        answer = self._cached("analyse", {"plan": compiled_levers(plan)}, compiles=1)
        return from_json(Analysis, answer, "analyse")

    def trace(self, plan: Plan) -> Analysis:
        return from_json(Analysis, self._cached("trace", {"plan": compiled_levers(plan)}), "trace")

    def rehearse(self, plan: Plan) -> Rehearsal:
        return from_json(Rehearsal, self._cached("rehearse", {"plan": compiled_levers(plan)}), "rehearse")

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        return self._cached("measure", {"plans": [compiled_levers(plan) for plan in plans]})["seconds"]

    def _cached(self, verb: str, arguments: Mapping[str, Any], *, about: str | None = None, compiles: int = 0) -> Any:
        question = json.dumps([verb, arguments, about or self._about], sort_keys=True)
        path = self._answers / f"{verb}-{hashlib.sha256(question.encode()).hexdigest()[:24]}.json"
        with contextlib.suppress(OSError, ValueError):  # not there, or damaged: ask
            earlier = json.loads(path.read_text())
            with contextlib.suppress(OSError):  # another user's
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # used now (processes/cache.py)
            self.seconds_saved += earlier["seconds"]
            return earlier["answer"]
        started = time.monotonic()
        try:
            answer = self._ask(verb, arguments)
        except ChildDied:
            if compiles or verb == "measure" or self._stopped:  # costs one plan, or those that were timed together
                raise
            answer = self._ask(verb, arguments)  # all plans need this one
        self.compiles += compiles
        with contextlib.suppress(OSError):  # full, or not to be written to: a plan needs the answer, not its file
            self._answers.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._answers, delete=False) as file:
                json.dump({"answer": answer, "seconds": time.monotonic() - started}, file)
            os.replace(file.name, path)
        return answer

    def _ask(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        if self._stopped:
            raise ChildDied("the compile process was stopped")
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        begin = time.monotonic()
        watchdog = threading.Timer(self._longest, process.kill)
        watchdog.start()
        self._busy = True
        try:
            process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()  # what libraries print goes to standard error
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
            self._busy = False
        if not line.endswith("\n"):  # it ended, or was killed, before it had answered
            too_slow = time.monotonic() - begin >= self._longest
            raise ChildDied(self._why_it_ended(process, too_slow=too_slow))
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not answer.keys() & {"answer", "failed", "refused"}:
            process.kill()
            self._why_it_ended(process)
            raise DoesNotCompile(f"the compile process answered with {line.strip()[:300]!r}")
        if "refused" in answer:
            raise PlimsollError(answer["refused"])
        if "failed" in answer:
            raise DoesNotCompile(answer["failed"])
        return answer["answer"]

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

    def _why_it_ended(self, process: subprocess.Popen[str], *, too_slow: bool = False) -> str:
        """Waits for the end of the process, and returns it in words with the last line of its standard error."""
        code = process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if too_slow:
            how = f"had no answer after {format_seconds(self._longest)} and was stopped"
        message = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
            message = f": {lines[-1][:300]}" if lines else ""
        self._close(process)
        return f"the compile process {how}{message}"

    def _close(self, process: subprocess.Popen[str]) -> None:
        """Closes the pipes: a search may outlive several children."""
        self._process = None
        for stream in (process.stdin, process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # a question nobody read
                if stream is not None:
                    stream.close()


class Pool:
    """A `planner.types.Compiler` of several children, which answer side by side; each starts when it is first needed.

    Plans are timed by the first one alone.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self.workers, self.doing = len(children), children[0].doing
        self._children, self._idle = children, queue.LifoQueue[Child]()
        self._statics: dict[tuple[int, Storage], Static] = {}
        for child in reversed(children):
            self._idle.put(child)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.stop()

    @property
    def compiles(self) -> int:
        return sum(child.compiles for child in self._children)

    def clock(self) -> float:
        """Returns a time in seconds in which answers that were kept take as long as when they were given.

        So a search whose time is limited ends where it did before, with the same plan, at once.
        """
        return time.monotonic() + sum(child.seconds_saved for child in self._children)

    def static(self, fsdp: int = 1, storage: Storage | None = None) -> Static:
        """Returns the bytes of the state; what was said before at once, though every child may be at work."""
        key = fsdp, storage or Storage()
        if key not in self._statics:
            self._statics[key] = self._one(lambda child: child.static(fsdp, storage))
        return self._statics[key]

    def rates(self) -> Rates:
        return self._one(Child.rates)

    def trace(self, plan: Plan) -> Analysis:
        return self._one(lambda child: child.trace(plan))

    def analyse(self, plan: Plan) -> Analysis:
        return self._one(lambda child: child.analyse(plan))

    def rehearse(self, plan: Plan) -> Rehearsal:
        return self._one(lambda child: child.rehearse(plan))

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        return self._children[0].measure(plans)

    def _one(self, ask: Callable[[Child], Answer]) -> Answer:
        child = self._idle.get()
        try:
            return ask(child)
        finally:
            self._idle.put(child)


def compiled_levers(plan: Plan) -> dict[str, Any]:
    """Returns what the compiler reads of a plan: neither when a checkpoint is written nor the prefetch depth."""
    left_out = {"pinned", *(name for name, lever in LEVERS.items() if not lever.compiled)}
    return {name: value for name, value in plan.to_dict().items() if name not in left_out}


def plan_of(computed: Mapping[str, Any]) -> Plan:
    """Returns the plan of such levers, in the child."""
    return Plan.from_dict({name: lever.plain for name, lever in LEVERS.items() if not lever.compiled} | dict(computed))


@cache
def software_digest() -> str:
    """Returns a digest of what an answer depends on: libraries, our own source, the processor."""
    digest = hashlib.sha256(sys.version.encode())
    required = ("jax", "jaxlib", "optax", "orbax-checkpoint", "grain", "tokenizers", "numpy")
    optional = ("flax", "equinox")  # models of users may be made of these
    for name in (*required, *(name for name in optional if importlib.util.find_spec(name))):
        digest.update(f"{name} {importlib.metadata.version(name)}".encode())
    digest.update(code_digest().encode())
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
    """Returns model and number of the cores this process may use."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # no Linux
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{cores()} cores of {model}"
