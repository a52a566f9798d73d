"""What a run calls besides its step, and what its process weighs: traced, compiled, or tried in a process of its own.

A trial does all that training does before its first step, but for the state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from plimsoll.engine.backends.card import Card
from plimsoll.engine.backends.cpu import Cpu
from plimsoll.engine.backends.topology import Topology
from plimsoll.engine.program import load, temp_bytes
from plimsoll.engine.steps import RecipeSteps
from plimsoll.planned import Plan, Process
from plimsoll.planner.types import Depth, Preparation, Subject
from plimsoll.processes import environment
from plimsoll.training import memory
from plimsoll.values import from_json, to_json


def imported_bytes(subject: Subject) -> int:
    """Returns the weight of a process that has imported what training imports.

    It is weighed without an accelerator, whose driver's own memory cannot be known here.
    """
    process = _start("imports", subject)
    output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a process that imports what training imports failed: {errors.strip()[-300:]}")
    return int(output.splitlines()[-1])


class Preparations:
    """Runs of a recipe's plans, prepared."""

    def __init__(self, subject: Subject, steps: RecipeSteps, backend: Cpu | Card | Topology) -> None:
        self._subject = subject
        self._steps = steps
        self._backend = backend

    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        """Returns what a run of the plan takes besides its step."""
        if depth == "trace" or not self._subject.is_compiled:
            return self._trace(plan)
        if not isinstance(self._backend, Cpu):
            return self._compile_for_chip(plan, self._backend)
        return self._try(plan) if depth == "try" else self._compile(plan)

    def _trace(self, plan: Plan) -> Preparation:
        """Returns what is alive in how a run begins, and in its evaluation."""
        init_bytes = self._backend.traced_bytes(self._steps.init_share(plan))
        if not self._subject.is_compiled:  # a state that is offloaded is made on the device
            init_bytes += self._steps.static(plan.fsdp, plan.storage).host_bytes(plan.offload)
        evaluation = self._steps.evaluation_share(plan)
        evaluate_bytes = self._backend.traced_bytes(evaluation)
        return Preparation(init_temp_bytes=init_bytes, evaluate_temp_bytes=evaluate_bytes)

    def _compile_for_chip(self, plan: Plan, backend: Card | Topology) -> Preparation:
        """Returns the temporaries of the compiled evaluation, and those of how a run begins.

        That is compiled for a TPU as long as a step is, and needs less: it is traced, unless it makes offloaded state.
        """
        evaluation = self._steps.lowered_evaluation(plan)
        evaluate_bytes = temp_bytes(backend.compile(evaluation, deterministic=plan.deterministic))
        if plan.offload == "none":
            init_bytes = backend.traced_bytes(self._steps.init_share(plan))
        else:
            init = self._steps.functions(plan).init()
            init_bytes = temp_bytes(backend.compile(init, deterministic=plan.deterministic))
        return Preparation(init_temp_bytes=init_bytes, evaluate_temp_bytes=evaluate_bytes)

    def _compile(self, plan: Plan) -> Preparation:
        """Puts into the cache what training loads, and returns its temporaries."""
        subject = self._subject
        executables = load(self._steps.recipe, plan, subject.step_options, steps=subject.steps)
        init_bytes = temp_bytes(executables.init)
        evaluate_bytes = temp_bytes(executables.evaluate)
        del executables
        memory.trim()
        return Preparation(init_temp_bytes=init_bytes, evaluate_temp_bytes=evaluate_bytes)

    def _try(self, plan: Plan) -> Preparation:
        """Returns what a trial process of the plan weighs: it imports while this one compiles what it loads then."""
        process = _start("try", self._subject)
        with process:
            try:
                preparation = self._compile(plan)
            except BaseException:
                process.kill()
                raise
            output, errors = process.communicate(json.dumps(to_json(plan)) + "\n")
        if process.returncode:
            raise RuntimeError(f"a trial run of the plan failed: {errors.strip()[-300:]}")
        weight = from_json(Process, json.loads(output.splitlines()[-1]), "trial")
        return replace(preparation, process=weight)


def _start(verb: str, subject: Subject) -> subprocess.Popen[str]:
    """Starts a process of the worker with the subject, as training is started on a CPU."""
    beside_a_card: Mapping[str, str] = os.environ | {"JAX_PLATFORMS": "cpu"}  # of which it takes no memory
    variables = environment.for_processes("cpu") if subject.chip is None else beside_a_card
    command = [sys.executable, "-m", "plimsoll.worker", verb, json.dumps(to_json(subject))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
