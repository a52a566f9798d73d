"""What is being done while planning, where nothing else is said for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.api.messages import Say
from plimsoll.levers.registry import in_words
from plimsoll.planner.child import Child, Pool
from plimsoll.planner.types import Depth, Request, Verb

SILENCE = 2.5
"""Seconds without a line after which what is being done is said."""

DOING: Mapping[Verb, str] = {
    "static": "computing the bytes of the state, in a process that imports JAX",
    "rates": "measuring the speed of this machine",
    "imports": "weighing a process that imports what training imports",
    "trace": "tracing",
    "measure": "timing",
}
"""What is being done, but for `analyse`: it is done by a compiler, or estimated."""
PREPARING: Mapping[Depth, str] = {
    "trace": "tracing the evaluation of",
    "compile": "compiling the evaluation of",
    "try": "weighing a trial process of",
}
"""What `prepare` does."""


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
            if now - self._last < SILENCE:
                continue
            for what, since in self._asked[:1]:  # a copy: others remove what was answered
                self.say(f"{what}, {now - since:.0f} s so far")

    def answer(self, request: Request) -> Any:
        """Returns the answer to a request, which is spoken of meanwhile."""
        asked = self._words(request), time.monotonic()
        self._asked.append(asked)
        try:
            return super().answer(request)
        finally:
            self._asked.remove(asked)

    def _words(self, request: Request) -> str:
        """Returns what is being done, with the plan that it is done with."""
        doing = PREPARING[request.depth] if request.verb == "prepare" else DOING.get(request.verb, self.doing)
        if not request.plans:
            return doing
        plan = request.plans[-1]
        return f"{doing} micro-batch {plan.micro_batch}, {in_words(plan.levers)}"
