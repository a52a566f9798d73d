"""What is being done while planning, where an answer does not come at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.api.messages import Say
from plimsoll.levers.registry import in_words
from plimsoll.planner.child import Child, Pool
from plimsoll.planner.types import Depth, Request, Verb

SILENCE = 2.5
"""Seconds without an answer after which what is being done is said."""

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
    """Compile processes that say what they are doing, where that takes longer than SILENCE."""

    def __init__(self, children: Sequence[Child], say: Say) -> None:
        super().__init__(children)
        self.say = say

    def answer(self, request: Request) -> Any:
        """Returns the answer to a request, which is spoken of if it does not come at once."""
        timer = threading.Timer(SILENCE, self.say, [self._words(request)])
        timer.daemon = True
        timer.start()
        try:
            return super().answer(request)
        finally:
            timer.cancel()

    def _words(self, request: Request) -> str:
        """Returns what is being done, with the plan that it is done with."""
        doing = PREPARING[request.depth] if request.verb == "prepare" else DOING.get(request.verb, self.doing)
        if not request.plans:
            return doing
        plan = request.plans[-1]
        return f"{doing} micro-batch {plan.micro_batch}, {in_words(plan.levers)}"
