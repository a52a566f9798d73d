"""Entry points of the processes that import JAX: `python -m plimsoll.worker VERB`.

* `compile` compiles steps for this machine's CPU, `card-compile` for its GPU, and `cross-compile` for an absent chip:
  requests of the planner, one per line of standard input, until that closes.
* `host` measures a process that has imported what training imports, and `rehearse` some steps of a plan.
* `train` trains. `plimsoll train` execs into it once the plan is made, so that its memory starts from zero.
* `again` plans again after a run went over its budget, and execs into `train`. `train` execs into it.
* `together` trains as one of several processes.
* The other verbs answer one request with one JSON object (`processes/request.py` sends it).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
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
    if verb in COMPILERS:
        return _compile(verb, json.loads(request[0]))
    if verb == "host":
        return _host(json.loads(request[0]))
    if verb == "rehearse":
        return _rehearse(json.loads(request[0]))
    if verb == "train":
        return _train(json.loads(request[0]))
    if verb == "again":
        from plimsoll.api.train import plan_again

        return plan_again(json.loads(request[0]))
    if verb == "together":
        from plimsoll.api.cluster import train_together

        release()  # until training begins, a signal ends this process: nothing is lost
        train_together(json.loads(request[0]))
    return _answer(verb)


def _train(options: dict[str, Any]) -> int:
    """Trains. Becomes the process that plans again if the run goes on with another plan, else returns the exit code."""
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
    if interruption.signal is not None:  # after the loop had ended: everything is saved
        return 128 + interruption.signal
    from plimsoll.processes.handover import Ready, become

    command = [sys.executable, "-m", "plimsoll.worker", "again", json.dumps(ending.again)]
    become(Ready(command, dict(os.environ), ending.again["lock"]))


def _import_jax() -> None:
    """Imports JAX, and gives back what its import has touched, a hundred MiB."""
    import jax  # noqa: F401

    from plimsoll.training import memory

    memory.trim()


def _end(words: str, code: int) -> NoReturn:
    """Prints an error and ends this process.

    Not by returning: threads of a save that failed are waited for, and a lost accelerator's driver may hang.
    """
    print(f"error: {words}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


NO_BACKEND = "Unable to initialize backend"
"""Words with which JAX's error begins where a device that was listed cannot be used now."""

COMPILERS = {
    "compile": ("plimsoll.engine.compile", "LocalCompiler"),
    "card-compile": ("plimsoll.engine.card_compile", "CardCompiler"),
    "cross-compile": ("plimsoll.engine.cross_compile", "CrossCompiler"),
}


def _compile(verb: str, about: dict[str, Any]) -> int:
    """Reads {"verb": ...} lines and writes {"answer": ...}, {"refused": why} or {"failed": why} lines.

    All other output goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from plimsoll.errors import PlimsollError

    module, name = COMPILERS[verb]
    compiler = None
    for line in sys.stdin:
        question = json.loads(line)
        started = time.perf_counter()
        try:
            compiler = compiler or getattr(importlib.import_module(module), name)(about)
            reply = {"answer": compiler.answer(**question), "seconds": time.perf_counter() - started}
        except PlimsollError as problem:
            reply = {"refused": str(problem)}
        except Exception as problem:
            reply = _failure(problem)
        answers.write(json.dumps(reply) + "\n")
    return 0


def _failure(problem: Exception) -> dict[str, str]:
    """Returns what to answer where a question raised this: in the user's own code it is their refusal, by its lines."""
    from plimsoll.recipes.own.user_code import calls_of, failed

    if calls_of(problem, Path.cwd()):
        return {"refused": str(failed(Path.cwd(), "the recipe's own code failed", problem))}
    return {"failed": f"{type(problem).__name__}: {str(problem)[:500]}"}


def _host(about: dict[str, Any]) -> int:
    """Measures the memory of this process with all imports of training on an accelerator, and prints it."""
    from plimsoll.engine.program import import_everything
    from plimsoll.recipes.saved import from_dict
    from plimsoll.training import memory

    import_everything(from_dict(about["recipe"]))
    peak = memory.peak_resident_bytes()
    memory.trim()
    print(json.dumps({"process_bytes": memory.resident_bytes(), "starting_bytes": peak}))
    return 0


def _rehearse(request: dict[str, Any]) -> int:
    """Does what training does before its first step, and prints what it took: to import, and then all of it.

    The plan comes in a line of standard input, once its functions are in the cache.
    """
    _import_jax()
    from plimsoll.engine.program import import_everything, rehearse
    from plimsoll.planner.child import plan_of
    from plimsoll.recipes.saved import from_dict
    from plimsoll.training import memory

    recipe = from_dict(request["recipe"])
    import_everything(recipe)
    memory.trim()
    print(memory.resident_bytes(), flush=True)
    plan = sys.stdin.readline()
    if not plan:
        return 1  # the planner is gone
    result = rehearse(recipe, plan_of(json.loads(plan)), steps=request["steps"])
    print(json.dumps(dataclasses.asdict(result)))
    return 0


ANSWERS = {
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
    """Reads the request from standard input, writes {"answer": ...} or what `PlimsollError.reply` returns."""
    from plimsoll.errors import PlimsollError

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # silently: whoever asked says it
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print is no part of the answer
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
        request: What the verb's function takes.
    """
    if verb not in ANSWERS:
        from plimsoll.inference import trained

        return trained.answer(verb, request)
    module, name = ANSWERS[verb]
    return getattr(importlib.import_module(module), name)(request)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
