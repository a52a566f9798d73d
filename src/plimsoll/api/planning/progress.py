"""What is being done while planning, where nothing else is said for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from plimsoll.api.messages import Say
from plimsoll.levers.registry import in_words
from plimsoll.planned import Plan
from plimsoll.planner.child import Child, Pool
from plimsoll.planner.types import Analysis, Depth, Preparation, Rates, Static
from plimsoll.types import WHOLE, Storage

SILENCE = 2.5
"""Seconds without a line after which what is being done is said."""


PREPARING: Mapping[Depth, str] = {
    "trace": "tracing the evaluation of",
    "compile": "compiling the evaluation of",
    "try": "weighing a trial process of",
}


class SpokenPool(Pool):
    """Compile processes that say what they are doing, each SILENCE seconds in which nothing else is said."""

    def __init__(self, children: Sequence[Child], say: Say) -> None:
        super().__init__(children)
        self._say = say
        self._last = time.monotonic()
        self._asked: list[tuple[str, float]] = []
        """What is being done, each since when; what began first stands first."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> SpokenPool:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        super().__exit__()
        self._thread.join()

    def say(self, text: str) -> None:
        """Says something, after which it may be silent for a while."""
        self._last = time.monotonic()
        self._say(text)

    def _speak(self) -> None:
        while not self._over.wait(max(0.1, self._last + SILENCE - time.monotonic())):
            now = time.monotonic()
            if self._asked and now - self._last >= SILENCE:
                what, since = self._asked[0]
                self.say(f"{what}, {now - since:.0f} s so far")

    @contextmanager
    def _doing(self, what: str) -> Generator[None]:
        asked = what, time.monotonic()
        self._asked.append(asked)
        try:
            yield
        finally:
            self._asked.remove(asked)

    def static(self, fsdp: int = 1, storage: Storage = WHOLE) -> Static:
        with self._doing("computing the bytes of the state, in a process that imports JAX"):
            return super().static(fsdp, storage)

    def rates(self) -> Rates:
        with self._doing("measuring the speed of this machine"):
            return super().rates()

    def trace(self, plan: Plan) -> Analysis:
        with self._doing(f"tracing {_words(plan)}"):
            return super().trace(plan)

    def analyse(self, plan: Plan) -> Analysis:
        with self._doing(f"{self.doing} {_words(plan)}"):
            return super().analyse(plan)

    def imported_bytes(self) -> int:
        with self._doing("weighing a process that imports what training imports"):
            return super().imported_bytes()

    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        with self._doing(f"{PREPARING[depth]} {_words(plan)}"):
            return super().prepare(plan, depth)

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        with self._doing(f"timing {_words(plans[-1])}"):
            return super().measure(plans)


def _words(plan: Plan) -> str:
    return f"micro-batch {plan.micro_batch}, {in_words(plan.levers)}"
