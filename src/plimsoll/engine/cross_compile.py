"""Compiles the real step for a chip that is not here, split over its devices, and reports its bytes.

Where the chip's compiler is installed (`plimsoll chips --install`), the step is compiled for its topology. Where it is
not, `planner.liveness` measures the traced step, and the plan says `estimated`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from plimsoll.engine import unassembled
from plimsoll.engine.compile import LocalCompiler, analysis_of
from plimsoll.engine.program import temp_bytes
from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan
from plimsoll.planner import chips, liveness, topology
from plimsoll.planner.child import plan_of
from plimsoll.planner.flops import dot_flops, dots
from plimsoll.planner.hlo.kernels import kernels
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.sent import sent, sent_bytes
from plimsoll.planner.kernel_seconds import kernel_seconds, seconds_of
from plimsoll.planner.speed import KERNELS_OF_A_MICRO_BATCH
from plimsoll.planner.types import Analysis, Rates
from plimsoll.training import program
from plimsoll.training.step import evaluated, make_evaluate, make_init
from plimsoll.units import MIB


def cublas_workspace(capability: str) -> int:
    """Returns the bytes that XLA gives each of cuBLAS's products to work in, by CUDA compute capability like `9.0a`.

    Seen in compiled steps: `int8[33554432]` for an h100, `int8[4194304]` for an a100-40 (notes, "What beliefs are
    off by").
    """
    return 32 * MIB if int(capability.partition(".")[0]) >= 9 else 4 * MIB


class CrossCompiler(LocalCompiler):
    """A recipe's compiler for one chip.

    `about` holds the `chip` besides what LocalCompiler needs, and whether its compiler is installed (`compiled`).
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__(about)
        self.chip = chips.Chip(**about["chip"])
        self._devices, self._backend = self.chip.devices, chips.BACKEND[self.chip.platform]
        self.examples = self.recipe.effective_batch // self.chip.devices
        """One device's share of an effective batch."""
        capability = self.chip.compiler.get("compute_capability") if self.chip.platform == "cuda" else None
        self.workspace = 0 if capability is None else cublas_workspace(capability)
        """Bytes that a product takes besides its operands and its result."""
        self.options: program.Options = {}
        """Options of the compiler besides those of training."""
        self.compiled = about["compiled"]
        self.devices = self.placed() if self.compiled else []

    def placed(self) -> Sequence[Any]:
        """Returns the chip's devices, as its compiler takes them. What is compiled for them is never run."""
        if self.chip.platform == "cuda":
            self._folder = tempfile.TemporaryDirectory(prefix="plimsoll-")
            self.options = unassembled.options(Path(self._folder.name))
        return topology.devices(self.chip)

    def rates(self) -> Rates:
        """Returns the chip's rates from the catalogue."""
        return chips.rates(self.chip)

    def analyse(self, plan: Plan) -> Analysis:
        if not self.compiled:
            return self.estimated(plan)
        self.warm_up()
        lowered, jaxpr = self.functions(plan).step(self.recipe.spec.batch(self.recipe.effective_batch))
        with ThreadPoolExecutor(1) as beside:
            compiling = beside.submit(self.executable, lowered, plan)
            flops, moved = self._flops(plan), dots(jaxpr).moved_bytes
            compiled = compiling.result()
        stats = compiled.memory_analysis()
        assert stats is not None
        return analysis_of(
            compiled,
            **self._of_schedule(compiled),
            peak_bytes=stats.peak_memory_in_bytes - stats.host_argument_size_in_bytes - stats.host_temp_size_in_bytes,
            host_temp_bytes=stats.host_temp_size_in_bytes,
            flops=flops,
            moved_bytes=moved,
        )

    def _of_schedule(self, compiled: jax.stages.Compiled) -> dict[str, float]:
        """Returns what the kernels of a step say, and what is sent beside them; of one for TPUs only what is sent."""
        if not self.chip.kernels and (self.chip.platform != "tpu" or self.chip.devices == 1):
            return {}
        executable: Any = compiled.runtime_executable()
        (serialized,) = executable.hlo_modules()
        module = Module(serialized.as_serialized_hlo_module_proto())

        # Of TPUs: the time of their kernels is not known.
        if not self.chip.kernels:
            return {"sent_bytes": sent_bytes(module, devices=self.chip.devices)}

        # Of one GPU, and of several.
        counted = kernels(module)
        figures: dict[str, float] = {
            "kernels": sum(counted.values()),
            "kernel_seconds": kernel_seconds(counted, self.chip),
        }
        if self.chip.devices > 1 and self.chip.link_bandwidth:
            whole = sent(
                module,
                devices=self.chip.devices,
                seconds_of=partial(seconds_of, chip=self.chip),
                link_bytes=self.chip.link_bandwidth,
            )
            figures["sent_bytes"] = whole.sent_bytes
            figures["hidden_share"] = whole.hidden_share
        return figures

    def rehearse(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what starting and evaluating take.

        The host's process is weighed without its accelerator: a driver's own memory cannot be known here. Starting
        needs less than a step does: its temporaries are estimated, since compiling them for a TPU takes as long as the
        step. But a state that is offloaded is made on the device, and the compiler says how much of it is there at a
        time. Evaluation is compiled for the chip.
        """
        full = plan_of(plan)
        options: dict[str, Any] = {"frozen_bits": full.lever("frozen_bits"), "precision": full.precision}
        init = make_init(self._task(full), self.rule(full.storage), **options, examples=self.examples)
        starting = liveness.temporary_bytes(jax.jit(init).trace(jax.ShapeDtypeStruct((), jnp.uint32)).jaxpr)
        batch = self.recipe.spec.batch(full.micro_batch)
        if self.compiled:
            functions = self.functions(full)
            if full.offload != "none":
                starting = temp_bytes(self.executable(functions.init(), full))
            evaluating = temp_bytes(self.executable(functions.evaluate(batch), full))
        else:
            starting += self.static(full.fsdp, full.storage).host_bytes(full.offload)
            params = evaluated(self.state(full.storage, full.precision))
            traced = jax.jit(make_evaluate(self._task(full))).trace(params, self.share(batch))
            evaluating = liveness.temporary_bytes(traced.jaxpr, workspace=self.workspace)
        return self._host | {"init_temp_bytes": starting, "evaluate_temp_bytes": evaluating}

    @cached_property
    def _host(self) -> dict[str, int]:
        """The bytes of the host's process, which imports the same under every plan: weighed once, in 3 s."""
        self.warm_up()
        assert self._next is not None
        output, errors = self._next.communicate()
        if self._next.returncode:
            raise RuntimeError(f"the host's process failed: {errors.strip()[-300:]}")
        return json.loads(output.splitlines()[-1])

    @cached_property
    def imported_bytes(self) -> int:
        """Not asked for: a process of the host counts in no budget but the host's, and is weighed for that."""
        return 0

    def warm_up(self) -> None:
        """Starts the process that is weighed as the host's, while this one compiles."""
        if self._next is None:
            pipe = subprocess.PIPE
            command = [sys.executable, "-m", "plimsoll.worker", "host", json.dumps(self._about)]
            on_cpu = os.environ | {"JAX_PLATFORMS": "cpu"}  # whatever is imported, it takes no memory of a card
            self._next = subprocess.Popen(command, env=on_cpu, stdout=pipe, stderr=pipe, text=True)

    def trace(self, plan: Plan) -> Analysis:
        """Returns what the traced step says; where a compile follows, without the dots in a kernel of its own."""
        return self.estimated(plan, all_dots=not self.compiled)

    def estimated(self, plan: Plan, *, all_dots: bool = True) -> Analysis:
        """Returns one device's share of the work, traced, less what `fsdp` splits of the gradient."""
        devices, state = self.chip.devices, self.state(plan.storage, plan.precision, examples=self.examples)
        if plan.offload != "none":  # in the types, so that it is streamed and not counted
            shardings = offload.placed(
                state, plan.offload, AbstractMesh((1,), ("device",), axis_types=(AxisType.Auto,))
            )
            state = sharding.with_shardings(state, shardings)
        share = self.share(self.recipe.spec.batch(self.recipe.effective_batch))
        jaxpr = self.traced(plan, self._task(plan), state, share)
        whole = program.tree_bytes(state["params"]["trainable"])
        split = whole - whole // plan.fsdp
        static = self.static(plan.fsdp, plan.storage)
        held = static.state_bytes - static.host_bytes(plan.offload)
        counted = dots(jaxpr)
        return Analysis(
            argument_bytes=held,
            output_bytes=held,
            alias_bytes=held,
            temp_bytes=max(0, liveness.temporary_bytes(jaxpr, workspace=self.workspace) - split),
            flops=self._flops(plan) if all_dots else counted.flops * devices,
            moved_bytes=counted.moved_bytes * devices,
            kernels=KERNELS_OF_A_MICRO_BATCH * plan.accumulation if self.chip.kernels else 0.0,
            host_temp_bytes=liveness.kept_on_host_bytes(jaxpr),
            source="estimated",
        )

    def _flops(self, plan: Plan) -> float:
        """Counts the whole step in its plain form: a chip's attention kernel shows no dots, and a CPU has no TF32."""
        task = self.recipe.task(plan.with_levers(precision="float32").compute("cpu"))
        batch = program.shapes(self.recipe.spec.batch(self.recipe.effective_batch))
        return dot_flops(self.traced(plan, task, self.state(plan.storage, plan.precision), batch))

    def _task(self, plan: Plan) -> Any:
        return self.recipe.task(plan.compute(self._backend))

    def executable(self, lowered: jax.stages.Lowered, plan: Plan) -> jax.stages.Compiled:
        """Compiles a function of the plan for the chip, with the bytes that it takes in the process that trains."""
        return program.compiled(lowered, platform=self._backend, deterministic=plan.deterministic, more=self.options)

    def functions(self, plan: Plan) -> program.Functions:
        """Returns the plan's functions over the chip's devices."""
        return program.Functions(self._task(plan), self.rule(plan.storage), plan, self.devices)
