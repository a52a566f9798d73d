"""What the compile child answers for a chip that is not here: the real step, split over its devices.

Where the chip's compiler is installed (`plimsoll chips --install`), the step is compiled for its topology and the
compiler asked. Where it is not, `planner.liveness` measures the traced step, and the plan says `estimated`.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from plimsoll.engine.compile import Workshop
from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan
from plimsoll.planner import chips, liveness, topology
from plimsoll.planner.child import plan_of
from plimsoll.planner.flops import dot_bytes, dot_flops
from plimsoll.planner.hlo.buffers import largest_temporaries
from plimsoll.planner.types import Analysis, Rates
from plimsoll.training import memory, program
from plimsoll.training.spread import Spread
from plimsoll.training.step import evaluated, make_evaluate, make_init, make_step

BACKEND = {"cuda": "gpu", "tpu": "tpu"}
"""The name a chip's platform has in JAX."""


class Drydock(Workshop):
    """One recipe's questions for one chip. `about` has its `chip` besides, and whether it is `compiled` for."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__(about)
        self.chip = chips.Chip(**about["chip"])
        self._devices = self.chip.devices
        self.compiled = about["compiled"]
        self.devices = topology.devices(self.chip) if self.compiled else []

    def rates(self) -> Rates:
        return chips.rates(self.chip)

    def analyse(self, plan: Plan) -> Analysis:
        if not self.compiled:
            return self.estimated(plan)
        lowered, jaxpr = self._spread(plan).step(self._batch(self.recipe.effective_batch))
        compiled = lowered.compile()
        stats, largest = compiled.memory_analysis(), largest_temporaries(compiled)
        assert stats is not None
        memory.trim()
        return Analysis(
            argument_bytes=stats.argument_size_in_bytes,
            output_bytes=stats.output_size_in_bytes,
            alias_bytes=stats.alias_size_in_bytes,
            temp_bytes=stats.temp_size_in_bytes,
            peak_bytes=stats.peak_memory_in_bytes - stats.host_argument_size_in_bytes - stats.host_temp_size_in_bytes,
            host_temp_bytes=stats.host_temp_size_in_bytes,
            flops=self._flops(plan),
            moved_bytes=dot_bytes(jaxpr),
            largest=tuple(largest),
        )

    def rehearse(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """The host's process is weighed without its accelerator; evaluation is compiled for the chip.

        Starting needs less than a step does: its temporaries are estimated, since compiling them for a TPU takes as
        long as the step.
        """
        asked = plan_of(plan)
        how: dict[str, Any] = {"frozen_bits": asked.frozen_bits, "precision": asked.precision}
        init = make_init(self._task(asked), self._rule(asked.storage), **how, examples=self._examples)
        return self._host() | {
            "init_temp_bytes": self._starting(asked, liveness.temporary_bytes(jax.jit(init).trace(_SEED).jaxpr)),
            "evaluate_temp_bytes": self._evaluation(asked),
        }

    def _starting(self, plan: Plan, traced: int) -> int:
        """A state that is offloaded is made on the device: what of it is there at a time, the compiler says."""
        if plan.offload == "none":
            return traced
        if not self.compiled:
            return traced + self.static(plan.fsdp, plan.storage).host_bytes(plan.offload)
        stats = self._spread(plan).init().compile().memory_analysis()
        assert stats is not None
        return stats.temp_size_in_bytes

    def _evaluation(self, plan: Plan) -> int:
        batch = self._batch(plan.micro_batch)
        if not self.compiled:
            evaluate = jax.jit(make_evaluate(self._task(plan)))
            return liveness.temporary_bytes(
                evaluate.trace(evaluated(self.state(plan.storage, plan.precision)), self._share(batch)).jaxpr
            )
        stats = self._spread(plan).evaluate(batch).compile().memory_analysis()
        assert stats is not None
        return stats.temp_size_in_bytes

    def _host(self) -> dict[str, int]:
        """Of a process that imports what training imports; what a driver adds to it is not to be had here."""
        request = json.dumps(self._about)
        command = [sys.executable, "-m", "plimsoll.worker", "host", request]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"the host's process failed: {answer.stderr.strip()[-300:]}")
        return json.loads(answer.stdout.splitlines()[-1])

    def estimated(self, plan: Plan) -> Analysis:
        """One device's share of the work, traced; what `fsdp` splits of the gradient is taken off."""
        devices, state = self.chip.devices, self.state(plan.storage, plan.precision, examples=self._examples)
        if plan.offload != "none":  # in the types, so that it is streamed and not counted
            lies = offload.placed(state, plan.offload, AbstractMesh((1,), ("device",)))
            state = sharding.with_shardings(state, lies)
        task, rule = self._task(plan), self._rule(plan.storage)
        share = self._share(self._batch(self.recipe.effective_batch))
        step = make_step(task, rule, accumulation=plan.accumulation, layerwise=plan.layerwise)
        jaxpr = jax.jit(step, donate_argnums=0).trace(state, share).jaxpr
        whole = program.tree_bytes(state["params"]["trainable"])
        split = whole - whole // plan.fsdp
        static = self.static(plan.fsdp, plan.storage)
        held = static.state_bytes - static.host_bytes(plan.offload)
        return Analysis(
            argument_bytes=held,
            output_bytes=held,
            alias_bytes=held,
            temp_bytes=max(0, liveness.temporary_bytes(jaxpr) - split),
            flops=self._flops(plan),
            moved_bytes=dot_bytes(jaxpr) * devices,
            host_temp_bytes=liveness.kept_on_host_bytes(jaxpr),
            source="estimated",
        )

    def _flops(self, plan: Plan) -> float:
        """Of the whole step, in its plain form: a chip's own attention kernel shows no dots, and a CPU has no TF32."""
        task = self.recipe.task(dataclasses.replace(plan.compute("cpu"), precision="float32"))
        step = make_step(task, self._rule(plan.storage), accumulation=plan.accumulation, layerwise=plan.layerwise)
        batch = program.shapes(self._batch(self.recipe.effective_batch))
        return dot_flops(jax.jit(step).trace(self.state(plan.storage, plan.precision), batch).jaxpr)

    @property
    def _examples(self) -> int:
        """One device's share of an effective batch."""
        return self.recipe.effective_batch // self.chip.devices

    def _task(self, plan: Plan) -> Any:
        return self.recipe.task(plan.compute(BACKEND[self.chip.platform]))

    def _spread(self, plan: Plan) -> Spread:
        return Spread(self.devices, self._task(plan), self._rule(plan.storage), plan)

    def _batch(self, examples: int) -> program.BatchSpec:
        return self.recipe.batch_spec(examples)

    def _share(self, batch: program.BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        """One device's rows of it."""
        return {
            name: jax.ShapeDtypeStruct((spec.shape[0] // self.chip.devices, *spec.shape[1:]), spec.dtype)
            for name, spec in program.shapes(batch).items()
        }


_SEED = jax.ShapeDtypeStruct((), jnp.uint32)
