"""Entry points of the processes that import JAX: `python -m plimsoll.worker compile|drydock|...|train|again|VERB`.

`compile` answers the planner's questions from standard input until it closes, `drydock` those for a chip that is not
here; `train` is what `plimsoll train` becomes, by exec, once the plan is made: a fresh process whose resident set is
the budget's business. `again` is what that process becomes where it went over the budget: it plans with what was
learned, and becomes `train` again. The other verbs answer one question with one JSON object: `processes/request.py`
asks.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from plimsoll.processes.interruption import Interruption, hold, release


def main(arguments: list[str]) -> int:
    if os.environ.get("JAX_PLATFORMS") == "cpu" and arguments[:1] != ["drydock"]:
        sys.modules["jax_plugins"] = None  # type: ignore[assignment]  # a plug-in costs a CPU run 90-320 MiB
    if arguments[:1] in (["compile"], ["drydock"]):
        return _compile(arguments[0], json.loads(arguments[1]))
    if arguments[:1] == ["host"]:
        return _host(json.loads(arguments[1]))
    if arguments[:1] == ["rehearse"]:
        return _rehearse(json.loads(arguments[1]))
    if arguments[:1] == ["again"]:
        from plimsoll.api.replan import plan_again

        return plan_again(json.loads(arguments[1]))
    if arguments[:1] == ["together"]:
        from plimsoll.api.cluster import train_together
        from plimsoll.processes.supervise import end_with

        question = json.loads(arguments[1])
        with Interruption() as interruption:
            release()
            end_with(question["watched_by"])
            train_together(question, interruption)
    if arguments[:1] != ["train"]:
        return _answer(arguments[0])
    with Interruption() as interruption:
        release()
        code, again = _train(json.loads(arguments[1]), interruption)
        if again is not None:
            hold()
    if again is None:
        return code
    if interruption.signal is not None:  # after the loop had ended: everything is saved
        return 128 + interruption.signal
    from plimsoll.processes.handover import Ready, become

    command = [sys.executable, "-m", "plimsoll.worker", "again", json.dumps(again)]
    become(Ready(command, dict(os.environ), again["lock"]))
    raise AssertionError("exec returned")


def _train(options: dict[str, Any], interruption: Interruption) -> tuple[int, Mapping[str, Any] | None]:
    """Returns the exit code, and what the process that plans again has to know if the run goes on with another plan."""
    from plimsoll.engine.session import train_here
    from plimsoll.errors import PlimsollError

    try:
        ending = train_here(options, interruption)
    except PlimsollError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code, None
    except OSError as problem:  # of a disk, mostly: what was saved is whole
        print(f"error: training stopped: {problem}. Run the same command again to continue", file=sys.stderr)
        return 3, None
    return ending.code, ending.again


WORKSHOPS = {
    "compile": ("plimsoll.engine.compile", "Workshop"),
    "drydock": ("plimsoll.engine.cross_compile", "Drydock"),
}


def _compile(verb: str, about: dict[str, Any]) -> int:
    """Reads {"verb": ...} lines, writes {"answer": ...} or {"failed": why} lines; all other output is an error's."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from plimsoll.errors import PlimsollError

    module, name = WORKSHOPS[verb]
    workshop = None
    for line in sys.stdin:
        question = json.loads(line)
        started = time.perf_counter()
        try:
            workshop = workshop or getattr(importlib.import_module(module), name)(about)
            reply = {"answer": workshop.answer(**question), "seconds": time.perf_counter() - started}
        except PlimsollError as problem:
            reply = {"refused": str(problem)}
        except Exception as problem:
            reply = {"failed": f"{type(problem).__name__}: {str(problem)[:500]}"}
        answers.write(json.dumps(reply) + "\n")
    return 0


def _host(about: dict[str, Any]) -> int:
    """Weighs a process that imports what training on an accelerator imports."""
    from plimsoll.engine.program import import_everything
    from plimsoll.recipes.saved import from_dict
    from plimsoll.training import memory

    import_everything(from_dict(about["recipe"]))
    peak = memory.peak_resident_bytes()
    memory.trim()
    print(json.dumps({"process_bytes": memory.resident_bytes(), "starting_bytes": peak}))
    return 0


def _rehearse(asked: dict[str, Any]) -> int:
    from plimsoll.engine.program import import_everything, rehearse
    from plimsoll.planner.child import plan_of
    from plimsoll.recipes.saved import from_dict

    recipe = from_dict(asked["recipe"])
    import_everything(recipe)
    if not sys.stdin.readline():  # until the cache has what is loaded next
        return 1  # whoever asked is gone
    found = rehearse(recipe, plan_of(asked["plan"]), steps=asked["steps"])
    print(json.dumps(dataclasses.asdict(found)))
    return 0


ANSWERS = {
    "evaluate": ("plimsoll.inference.evaluate", "evaluate"),
    "evaluate_text": ("plimsoll.inference.pretrained", "evaluate_text"),
    "sample_text": ("plimsoll.inference.pretrained", "sample_text"),
    "show": ("plimsoll.inference.showcase", "show"),
    "fingerprint": ("plimsoll.inference.evaluate", "prove"),
    "prepare": ("plimsoll.recipes.registry", "make_data"),
    "rechunk": ("plimsoll.data.hdf5.rechunk", "answer"),
    "doctor": ("plimsoll.engine.machine", "examine"),
    "accelerators": ("plimsoll.engine.machine", "accelerators"),
}


def _answer(verb: str) -> int:
    """Reads the question from standard input, writes {"answer": ...} or {"refused": why, "exit_code": n}.

    A verb that is not in `ANSWERS` is one of the run's recipe.
    """
    from plimsoll.errors import PlimsollError

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # silently: whoever asked says it
    asked = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print is no part of the answer
        module, name = ANSWERS.get(verb, ("plimsoll.inference.verbs", "answer"))
        try:
            function = getattr(importlib.import_module(module), name)
            reply = {"answer": function(asked) if verb in ANSWERS else function(verb, asked)}
        except PlimsollError as problem:
            reply = {"refused": str(problem), "exit_code": problem.exit_code}
        json.dump(reply, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
