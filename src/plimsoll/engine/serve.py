"""Main loop of the compile process, which answers requests of the planner (`planner.child`) about plans.

The planner itself imports neither models nor the trainer. Requests and replies are lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.engine.trial_process import last_line, started
from plimsoll.errors import PlimsollError
from plimsoll.planner.types import Request, Subject
from plimsoll.recipes.own.user_code import calls_of, failed
from plimsoll.values import from_json, to_json

if TYPE_CHECKING:
    from plimsoll.engine.answers import Answers


class Server:
    """Answers requests about one `Subject` (recipe, step and chip). JAX is imported at the first request."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def answer(self, request: Request) -> Any:
        """Returns the answer to a request, of the type in `planner.child.ANSWERS` for the request's verb."""
        if request.verb != "imports":
            return self.answers.answer(request)

        # Measure training's imports in a trial process on the CPU, without the memory of an accelerator's driver.
        with started(self.subject) as process:
            _ = self.answers
            return int(last_line(process, ""))

    @cached_property
    def answers(self) -> Answers:
        """Object that computes answers about plans. Creating it imports JAX."""
        from plimsoll.engine.answers import Answers

        return Answers(self.subject)


def serve(subject: str) -> int:
    """Answers one request per line of standard input, until it closes. Other output goes to standard error.

    A reply is {"answer": ...}, {"refused": reason} to tell the user, or {"failed": reason} to count the plan as failed.

    Args:
        subject: The `planner.types.Subject` of all requests, in JSON.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    server = Server(from_json(Subject, json.loads(subject), "subject"))
    for line in sys.stdin:
        try:
            request = from_json(Request, json.loads(line), "question")
            reply = {"answer": to_json(server.answer(request))}
        except PlimsollError as problem:
            reply = {"refused": str(problem)}
        except Exception as problem:
            reply = _failure(problem)
        replies.write(json.dumps(reply) + "\n")
    return 0


def _failure(problem: Exception) -> dict[str, str]:
    """Returns the reply to a request that raised an error: `refused` with source lines if user code raised it, else
    `failed`."""
    if calls_of(problem, Path.cwd()):
        return {"refused": str(failed(Path.cwd(), "the recipe's own code failed", problem))}
    return {"failed": f"{type(problem).__name__}: {str(problem)[:500]}"}
