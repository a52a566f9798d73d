"""Answers the questions of `planner.child` in the compile child.

The planner knows neither models nor the trainer. It asks in lines of JSON, and this answers.
"""

from __future__ import annotations

import json
import os
import sys
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
    """Answers about one subject. It imports JAX with the first question, beside the process that weighs imports."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._answers: Answers | None = None

    def answer(self, request: Request) -> Any:
        """Returns the answer to a question: of the type that `planner.child.ANSWERS` has for its verb."""
        if request.verb != "imports":
            return self.answers().answer(request)

        # Weighed without an accelerator, whose driver's own memory cannot be known here.
        with started(self.subject) as process:
            self.answers()
            return int(last_line(process, ""))

    def answers(self) -> Answers:
        """Returns what answers about plans."""
        from plimsoll.engine.answers import Answers

        if self._answers is None:
            self._answers = Answers(self.subject)
        return self._answers


def serve(subject: str) -> int:
    """Answers a question of each line of standard input, until that closes. All other output goes to standard error.

    Replies are {"answer": ...}, {"refused": why} for the user, or {"failed": why} for the search.

    Args:
        subject: What the answers are about, in JSON.
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
    """Returns the reply where a question raised this: in the user's own code it is their refusal, by its lines."""
    if calls_of(problem, Path.cwd()):
        return {"refused": str(failed(Path.cwd(), "the recipe's own code failed", problem))}
    return {"failed": f"{type(problem).__name__}: {str(problem)[:500]}"}
