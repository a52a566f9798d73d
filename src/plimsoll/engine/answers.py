"""Answers to the planner: bytes, FLOPs and times of a recipe's plans on one chip, from a process that imports JAX."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from plimsoll.engine.backends.card import Card
from plimsoll.engine.backends.cpu import Cpu
from plimsoll.engine.backends.topology import Topology
from plimsoll.engine.steps import RecipeSteps
from plimsoll.engine.trial import prepare
from plimsoll.planned import Plan
from plimsoll.planner.flops import dot_flops, dots, likely_instructions
from plimsoll.planner.types import Analysis, Request, Subject
from plimsoll.recipes.saved import from_dict


class Answers:
    """Computes answers to the planner's requests about the plans of one recipe on one chip."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.backend: Cpu | Card | Topology
        recipe = from_dict(subject.recipe)
        if subject.chip is None:
            self.backend = Cpu(subject.devices)
        else:
            self.backend = Topology(subject) if subject.card is None else Card(subject)
        self.steps = RecipeSteps(recipe, subject, self.backend.devices)

    def answer(self, request: Request) -> Any:
        """Returns the answer to a request, of the type in `planner.child.ANSWERS` for the request's verb."""
        # Answer requests about no plan, or about several plans.
        if request.verb == "rates":
            return self.backend.rates()
        if request.verb == "measure":
            assert not isinstance(self.backend, Topology), "a chip that is not here is not timed"
            return self.backend.time(self.steps, request.plans)
        if request.verb == "static":
            return self.steps.static(request.fsdp, request.storage)

        # Answer requests about a single plan.
        (plan,) = request.plans
        if request.verb == "trace":
            return self.trace(plan)
        if request.verb == "analyse":
            return self.analyse(plan)
        return prepare(self.steps, self.backend, plan, request.depth)

    def trace(self, plan: Plan) -> Analysis:
        """Estimates the bytes and FLOPs of a plan's training step from the step's jaxpr, without compiling."""
        estimate = self.backend.estimate(self.steps.share(plan), micro_batches=plan.accumulation)
        file = self.steps.file(plan, "step")
        estimate = dataclasses.replace(estimate, is_filed=file is not None)

        # The jaxpr of one accelerator has the whole gradient: subtract the part that FSDP puts on other devices.
        if self.subject.chip is not None:
            gradient = self.steps.gradient_bytes(plan)
            elsewhere = gradient - gradient // plan.fsdp
            estimate = dataclasses.replace(estimate, temp_bytes=max(0, estimate.temp_bytes - elsewhere))

        # Without a compiler, count FLOPs of a step without attention kernels, which hide their matmuls from the jaxpr.
        if not self.subject.is_compiled:
            estimate = dataclasses.replace(estimate, flops=dot_flops(self.steps.plain(plan)))

        # A step that does not donate the old state has the new state as additional output.
        if not self.subject.step_options.donates:
            static = self.steps.static(plan.fsdp, plan.storage)
            new_state = static.state_bytes - static.host_bytes(plan.offload)
            estimate = dataclasses.replace(estimate, output_bytes=new_state)
        return estimate

    def analyse(self, plan: Plan) -> Analysis:
        """Compiles a plan's training step. Returns its bytes and FLOPs; without a compiler, the estimate of `trace`."""
        if not self.subject.is_compiled:
            return self.trace(plan)
        lowered, jaxpr = self.steps.lowered(plan)
        file = self.steps.file(plan, "step")
        with ThreadPoolExecutor(1) as beside:
            compiling = beside.submit(self.backend.compile, lowered, deterministic=plan.deterministic, file=file)
            counted = dots(jaxpr)
            if not self.backend.counts_every_dot:
                counted = counted._replace(flops=dot_flops(self.steps.plain(plan)))
            step = compiling.result()
        analysis = self.backend.analysis(step, counted)

        # Compilers of accelerators report no number of instructions: estimate it from the jaxpr.
        instructions = analysis.instructions or likely_instructions(jaxpr)
        return dataclasses.replace(analysis, instructions=instructions, is_filed=file is not None)
