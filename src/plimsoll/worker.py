"""Entry points of the processes that import JAX: `python -m plimsoll.worker VERB`.

* `compile` compiles steps for this machine's CPU or GPU, and `cross-compile` for an absent chip. Both answer requests
  of the planner, one per line of standard input, until standard input closes.
* `try` measures its own resident memory after training's imports, and with a plan also after loading its functions.
* `train` trains. `plimsoll train` execs into `train` after planning, so that planning's memory is released.
* `again` plans again after a run exceeded its budget. `train` execs into `again`, and `again` execs into `train`.
* `together` trains as one of several processes.
* The other verbs answer one request with one JSON object (`processes/request.py` sends the request).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any, NoReturn

from plimsoll.processes.environment import hide_plugins
from plimsoll.processes.interruption import Interruption, hold, release


def main(arguments: list[str]) -> int:
    """Runs one verb, and returns the exit code.

    Args:
        arguments: The verb, and for most verbs a request as JSON.
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu" and arguments[:1] != ["cross-compile"]:
        hide_plugins()
    verb, *request = arguments
    if verb in ("compile", "cross-compile"):
        from plimsoll.engine.serve import serve

        return serve(request[0])
    if verb == "try":
        return _try(request[0])
    if verb == "train":
        return _train(json.loads(request[0]))
    if verb == "again":
        from plimsoll.api.train import plan_again

        return plan_again(json.loads(request[0]))
    if verb == "together":
        from plimsoll.api.cluster import train_together

        release()  # until training begins, a signal ends this process at once, and nothing is lost
        train_together(json.loads(request[0]))
    return _answer(verb)


def _train(options: dict[str, Any]) -> int:
    """Trains, and returns the exit code. If the run continues with another plan, execs into `again` instead."""
    with Interruption() as interruption:
        release()
        _import_jax()
        from plimsoll.engine.session import train_here
        from plimsoll.errors import PlimsollError, ended_by_disk, ended_by_memory

        try:
            ending = train_here(options, interruption)
        except PlimsollError as problem:
            _end(str(problem), problem.exit_code)
        except OSError as problem:
            _end(ended_by_disk(problem), 3)
        except MemoryError as problem:
            _end(ended_by_memory(problem), 3)
        except RuntimeError as problem:
            if not str(problem).startswith(NO_BACKEND):
                raise
            said = " ".join(str(problem).partition(" (set JAX_PLATFORMS")[0].split())[:400]
            advice = "`plimsoll doctor` says whether it can be used, and what was saved is whole"
            _end(f"JAX lost the accelerator before training began: {said}. {advice}", 2)
        if ending.again is None:
            return ending.code
        hold()
    if interruption.signal is not None:  # a signal after the loop: everything is saved
        return 128 + interruption.signal
    from plimsoll.processes.handover import Ready, become

    command = [sys.executable, "-m", "plimsoll.worker", "again", json.dumps(ending.again)]
    become(Ready(command, dict(os.environ), ending.again["lock"]))


def _import_jax() -> None:
    """Imports JAX, and releases about 100 MiB of memory that only the import needed."""
    import jax  # noqa: F401

    from plimsoll.training import memory

    memory.trim()


def _end(words: str, code: int) -> NoReturn:
    """Prints an error, and ends this process at once by `os._exit`.

    A regular exit would wait for the threads of a failed save, and might hang in the driver of a lost accelerator.
    """
    print(f"error: {words}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


NO_BACKEND = "Unable to initialize backend"
"""Beginning of JAX's error message about a device that is listed but cannot be used."""


def _try(subject: str) -> int:
    """Measures the resident memory of this process after training's imports, and after loading a plan's functions.

    Prints the bytes after the imports. Then it reads a plan from a line of standard input, and prints a
    `planned.Process` as JSON. The plan's functions must be in the compilation cache. Without a plan, only imports are
    measured.

    Args:
        subject: A `planner.types.Subject` as JSON.
    """
    _import_jax()
    from plimsoll.engine.program import import_everything, try_out
    from plimsoll.planned import Plan
    from plimsoll.planner.types import Subject
    from plimsoll.recipes.saved import from_dict
    from plimsoll.training import memory
    from plimsoll.values import from_json, to_json

    # Import what training imports, in the same order.
    about = from_json(Subject, json.loads(subject), "subject")
    recipe = from_dict(about.recipe)
    import_everything(recipe)
    _ = recipe.spec  # opens the data of a user's own recipe
    memory.trim()
    print(memory.resident_bytes())

    line = sys.stdin.readline()
    if line:
        plan = from_json(Plan, json.loads(line), "plan")
        weight = try_out(recipe, plan, about.step_options, steps=about.steps)
        print(json.dumps(to_json(weight)))
    return 0


ANSWERS = {  # verb to module and function
    "evaluate": ("plimsoll.inference.evaluate", "evaluate"),
    "evaluate_text": ("plimsoll.inference.pretrained", "evaluate_text"),
    "sample_text": ("plimsoll.inference.pretrained", "sample_text"),
    "show": ("plimsoll.inference.showcase", "show"),
    "fingerprint": ("plimsoll.inference.evaluate", "prove"),
    "prepare": ("plimsoll.recipes.registry", "make_data"),
    "prepare_run": ("plimsoll.api.cluster", "prepare_here"),
    "require_sound": ("plimsoll.recipes.own.functions", "require_sound"),
    "doctor": ("plimsoll.engine.machine", "examine"),
    "accelerators": ("plimsoll.engine.machine", "accelerators"),
}


def _answer(verb: str) -> int:
    """Reads a request from standard input, and writes {"answer": ...} or the reply of a PlimsollError as JSON."""
    from plimsoll.errors import PlimsollError

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a message: the parent process prints one
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # output of libraries must not mix with the answer
        try:
            reply = {"answer": answer(verb, request)}
        except PlimsollError as problem:
            reply = problem.reply()
        json.dump(reply, answers)
    return 0


def answer(verb: str, request: dict[str, Any]) -> Any:
    """Returns the answer to a request.

    Args:
        verb: Key of `ANSWERS`, or a verb of the run's recipe (`Uses.verbs`).
        request: Argument of the verb's function.
    """
    if verb not in ANSWERS:
        from plimsoll.inference import trained

        return trained.answer(verb, request)
    module, name = ANSWERS[verb]
    return getattr(importlib.import_module(module), name)(request)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
