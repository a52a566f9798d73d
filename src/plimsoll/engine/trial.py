"""Memory that training takes besides its step: for initialization, for evaluation, and for the process itself.

Temporaries come from jaxprs or from compiled functions. A trial process measures its own resident memory: it does
everything that training does before its first step, but allocates no training state.
"""

from __future__ import annotations

import json
from dataclasses import replace

from plimsoll.engine.backends.card import Card
from plimsoll.engine.backends.cpu import Cpu
from plimsoll.engine.backends.topology import Topology
from plimsoll.engine.program import load, temp_bytes
from plimsoll.engine.steps import RecipeSteps
from plimsoll.engine.trial_process import last_line, started
from plimsoll.planned import Plan, Process
from plimsoll.planner.types import Depth, Preparation
from plimsoll.training import memory
from plimsoll.values import from_json, to_json


def prepare(steps: RecipeSteps, backend: Cpu | Card | Topology, plan: Plan, depth: Depth) -> Preparation:
    """Returns the memory that training under a plan takes besides its step.

    Args:
        steps: The recipe's functions.
        backend: Compiler of the chip.
        plan: The plan.
        depth: `trace` reads jaxprs, `compile` compiles, `try` also runs a trial process, on a CPU only.
    """
    if depth == "trace" or not steps.subject.is_compiled:
        return _traced(steps, backend, plan)
    if not isinstance(backend, Cpu):
        return _compiled_for_chip(steps, backend, plan)
    return _tried(steps, plan) if depth == "try" else _compiled(steps, plan)


def _traced(steps: RecipeSteps, backend: Cpu | Card | Topology, plan: Plan) -> Preparation:
    """Estimates the temporaries of initialization and evaluation from their jaxprs."""
    init_bytes = backend.traced_bytes(steps.init_share(plan))
    if not steps.subject.is_compiled:  # an offloaded state is created on the device first
        init_bytes += steps.static(plan.fsdp, plan.storage).host_bytes(plan.offload)
    evaluate_bytes = backend.traced_bytes(steps.evaluation_share(plan))
    return Preparation(init_temp_bytes=init_bytes, evaluate_temp_bytes=evaluate_bytes)


def _compiled_for_chip(steps: RecipeSteps, backend: Card | Topology, plan: Plan) -> Preparation:
    """Returns the bytes of temporaries of evaluation, which is compiled, and of initialization.

    Initialization is compiled only if the plan offloads state, else traced. It needs less memory than a step, but
    compiling it for a TPU would take as long as compiling a step.
    """
    evaluation = backend.compile(steps.lowered_evaluation(plan), deterministic=plan.deterministic)
    if plan.offload == "none":
        init_bytes = backend.traced_bytes(steps.init_share(plan))
    else:
        init_bytes = temp_bytes(backend.compile(steps.functions(plan).init(), deterministic=plan.deterministic))
    return Preparation(init_temp_bytes=init_bytes, evaluate_temp_bytes=temp_bytes(evaluation))


def _compiled(steps: RecipeSteps, plan: Plan) -> Preparation:
    """Compiles the plan's functions into the cache that training uses. Returns the bytes of their temporaries."""
    executables = load(steps.recipe, plan, steps.subject.step_options, steps=steps.subject.steps)
    preparation = Preparation(
        init_temp_bytes=temp_bytes(executables.init), evaluate_temp_bytes=temp_bytes(executables.evaluate)
    )
    del executables
    memory.trim()
    return preparation


def _tried(steps: RecipeSteps, plan: Plan) -> Preparation:
    """Compiles the plan's functions, and measures the memory of a trial process that loads them.

    The trial process imports its modules while this process compiles.
    """
    with started(steps.subject) as process:
        try:
            preparation = _compiled(steps, plan)
        except BaseException:
            process.kill()
            raise
        line = last_line(process, json.dumps(to_json(plan)) + "\n")
    return replace(preparation, process=from_json(Process, json.loads(line), "trial"))
