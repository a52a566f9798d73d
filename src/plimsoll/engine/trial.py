"""Processes that are weighed while plans are compiled: what a process that trains takes besides its state.

For this CPU it is a trial of a plan: all that training does before its first step, but for the state. For an
accelerator it is the host's process, which imports what training imports and is given no plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cached_property
from threading import Thread

from plimsoll.engine.backends.card import Card
from plimsoll.engine.backends.cpu import Cpu
from plimsoll.engine.backends.topology import Topology
from plimsoll.engine.program import HostWeight, load, temp_bytes
from plimsoll.engine.steps import RecipeSteps
from plimsoll.planned import Plan
from plimsoll.planner import liveness
from plimsoll.planner.types import Rehearsal, Subject
from plimsoll.processes import environment
from plimsoll.values import from_json, to_json


class CpuTrial:
    """The process of the next trial on this CPU, which imports while this one traces and compiles."""

    def __init__(self, subject: Subject, steps: RecipeSteps, backend: Cpu) -> None:
        self._subject = subject
        self._steps = steps
        self._backend = backend
        self._process: subprocess.Popen[str] | None = None
        self._compiling_init: Thread | None = None

    def begin(self) -> subprocess.Popen[str]:
        """Starts the process, and returns it."""
        if self._process is None:
            self._process = _started("rehearse", self._subject, environment.for_processes("cpu"))
        return self._process

    @cached_property
    def imported_bytes(self) -> int:
        """Resident bytes of a process after the imports of training: the first line that a trial prints."""
        process = self.begin()
        assert process.stdout is not None
        return int(process.stdout.readline() or 0)  # a process that failed says why when it is run

    def compile_init(self, plan: Plan) -> None:
        """Begins to compile how a run begins, beside the traces, which keep one core busy: the same for most plans."""
        if self._compiling_init is None:
            init = self._steps.functions(plan).init()
            options = {"deterministic": plan.deterministic}
            self._compiling_init = Thread(target=self._backend.compile, args=(init,), kwargs=options)
            self._compiling_init.start()

    def run(self, plan: Plan) -> Rehearsal:
        """Tries the plan in the process, which loads what this one has put into the cache."""
        process, self._process = self.begin(), None
        with process:
            try:
                self._fill_cache(plan)
            except BaseException:
                process.kill()
                raise
            output, errors = process.communicate(json.dumps(to_json(plan)) + "\n")
        if process.returncode:
            raise RuntimeError(f"a trial run of the plan failed: {errors.strip()[-300:]}")
        return from_json(Rehearsal, json.loads(output.splitlines()[-1]), "trial")

    def _fill_cache(self, plan: Plan) -> None:
        """Puts into the cache what a run of the plan loads."""
        if self._compiling_init is not None:
            self._compiling_init.join()
        load(self._steps.recipe, plan, self._subject.step_options, steps=self._subject.steps)


class HostTrial:
    """The process of the host beside an accelerator.

    It is weighed without its accelerator: a driver's own memory cannot be known here.
    """

    imported_bytes = 0
    """Not asked for: a process of the host counts in no budget but the host's."""

    def __init__(self, subject: Subject, steps: RecipeSteps, backend: Card | Topology) -> None:
        self._subject = subject
        self._steps = steps
        self._backend = backend
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> subprocess.Popen[str]:
        """Starts the process, which is weighed while this one compiles, and returns it."""
        if self._process is None:
            on_cpu = os.environ | {"JAX_PLATFORMS": "cpu"}  # whatever is imported, it takes no memory of a card
            self._process = _started("host", self._subject, on_cpu)
        return self._process

    def run(self, plan: Plan) -> Rehearsal:
        """Returns the weight of the host's process, and what starting and evaluating take on the chip."""
        return Rehearsal(
            process_bytes=self._host.process_bytes,
            starting_bytes=self._host.starting_bytes,
            init_temp_bytes=self._init_bytes(plan),
            evaluate_temp_bytes=self._evaluation_bytes(plan),
        )

    def _init_bytes(self, plan: Plan) -> int:
        """Returns the temporaries of how a run begins.

        They are estimated: compiling them for a TPU takes as long as the step, which needs more. But a state that is
        offloaded is made on the device, and the compiler says how much of it is there at a time.
        """
        if self._subject.is_compiled and plan.offload != "none":
            init = self._steps.functions(plan).init()
            return temp_bytes(self._backend.compile(init, deterministic=plan.deterministic))
        estimated = liveness.temporary_bytes(self._steps.init_share(plan), inlined=liveness.CALLS)
        if self._subject.is_compiled:
            return estimated
        return estimated + self._steps.static(plan.fsdp, plan.storage).host_bytes(plan.offload)

    def _evaluation_bytes(self, plan: Plan) -> int:
        if not self._subject.is_compiled:
            share = self._steps.evaluation_share(plan)
            workspace = self._backend.workspace
            return liveness.temporary_bytes(share, workspace=workspace, inlined=liveness.CALLS)
        evaluation = self._steps.lowered_evaluation(plan)
        return temp_bytes(self._backend.compile(evaluation, deterministic=plan.deterministic))

    @cached_property
    def _host(self) -> HostWeight:
        """The bytes of the host's process, which imports the same under every plan: weighed once, in 3 s."""
        process = self.begin()
        output, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the host's process failed: {errors.strip()[-300:]}")
        return from_json(HostWeight, json.loads(output.splitlines()[-1]), "host")


def _started(verb: str, subject: Subject, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Returns a process of the worker that was started with the subject."""
    command = [sys.executable, "-m", "plimsoll.worker", verb, json.dumps(to_json(subject))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=dict(environ), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
