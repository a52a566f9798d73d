"""Progress messages during planning, printed after some seconds without another message."""

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
"""Seconds without a message after which a progress message is printed."""

DOING: Mapping[Verb, str] = {
    "static": "computing the bytes of the state, in a process that imports JAX",
    "rates": "measuring the speed of this machine",
    "imports": "measuring the memory of a process that imports training's modules",
    "trace": "tracing",
    "measure": "timing",
}
"""Beginnings of progress messages, by kind of request to a compile process. That of `analyse` is `Pool.doing`."""
PREPARING: Mapping[Depth, str] = {
    "trace": "tracing the evaluation of",
    "compile": "compiling the evaluation of",
    "try": "measuring a trial process of",
}
"""Beginnings of progress messages for the request `prepare`, by method to find memory outside the training step."""


class SpokenPool(Pool):
    """Pool of compile processes that prints a progress message after each SILENCE seconds without another message."""

    def __init__(self, children: Sequence[Child], say: Say) -> None:
        super().__init__(children)
        self._say = say
        self._last = time.monotonic()
        self._asked: list[tuple[str, float]] = []
        """Progress words and start time of each unanswered request, the oldest first."""
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
        """Prints a message, and restarts the wait for the next progress message."""
        self._last = time.monotonic()
        self._say(text)

    def _speak(self) -> None:
        while not self._over.wait(max(0.1, self._last + SILENCE - time.monotonic())):
            now = time.monotonic()
            if now - self._last < SILENCE:
                continue
            for what, since in self._asked[:1]:  # a copy, because other threads remove answered requests
                self.say(f"{what}, {now - since:.0f} s so far")

    def answer(self, request: Request) -> Any:
        """Returns the answer to a request. While it waits, progress messages may name the request."""
        asked = self._words(request), time.monotonic()
        self._asked.append(asked)
        try:
            return super().answer(request)
        finally:
            self._asked.remove(asked)

    def _words(self, request: Request) -> str:
        """Returns the progress message for a request, with its plan if it has any."""
        doing = PREPARING[request.depth] if request.verb == "prepare" else DOING.get(request.verb, self.doing)
        if not request.plans:
            return doing
        plan = request.plans[-1]
        return f"{doing} micro-batch {plan.micro_batch}, {in_words(plan.levers)}"
