"""Compiles the real step for this machine, in the compile child, and reports its bytes, rates and times.

The planner knows neither models nor the trainer: it asks in words (planner/child.py), and this answers.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plimsoll.engine.program import lowered
from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan, plain_compute
from plimsoll.planner.child import plan_of
from plimsoll.planner.flops import dots
from plimsoll.planner.hlo.buffers import largest_temporaries
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.packed import packed_bytes
from plimsoll.planner.host import cores
from plimsoll.planner.types import Analysis, Rates, Static
from plimsoll.recipes.saved import from_dict
from plimsoll.training import memory, program
from plimsoll.training.loop import numbers_of
from plimsoll.training.step import make_init
from plimsoll.types import Precision, Storage

TIMED_ROUNDS = 5
"""Rounds of timing, at least; steps of 60 ms need more of them where others use the machine."""
TIMED_SECONDS = 2.0
"""Seconds of timing for each plan, at least, where several are compared."""
CALLS = 400
"""Calls of a step that does nothing, to measure what a call costs: a tenth of a second."""
TOUCHED = 64 * 2**20
"""Bytes whose pages are taken to measure what that costs: huge pages, as training's are (environment.py)."""


class LocalCompiler:
    """A recipe's compiler for the CPU it runs on.

    `about` holds `recipe` (as saved), `steps`, and `devices` where they are several.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self.recipe, self.steps = from_dict(about["recipe"]), about["steps"]
        self._devices: int = about.get("devices", 1)

    def answer(
        self,
        verb: str,
        plan: Mapping[str, Any] | None = None,
        plans: Sequence[Mapping[str, Any]] = (),
        fsdp: int = 1,
        storage: Mapping[str, Any] | None = None,
    ) -> Any:
        """Returns what a question of `planner.child` asks for, as JSON has it."""
        if verb == "rates":
            return dataclasses.asdict(self.rates())
        if verb == "static":
            return dataclasses.asdict(self.static(fsdp, Storage(**storage or {})))
        if verb == "measure":
            return {"seconds": self.measure([plan_of(plan) for plan in plans])}
        assert plan is not None
        if verb == "rehearse":
            return self.rehearse(plan)
        assert verb == "analyse"
        return dataclasses.asdict(self.analyse(plan_of(plan)))

    def rates(self) -> Rates:
        """Returns the measured rates of this machine."""
        return cpu_rates()

    def static(self, fsdp: int, storage: Storage) -> Static:
        state, devices = self.state(storage), self._devices
        carry = program.tree_bytes(state["carry"]) // devices  # split by examples, as the batch is
        trees = state["params"], state["optimizer"], state.get("ema", {}), state | {"carry": None}
        parameters, optimizer, ema, others = (sharding.device_bytes(tree, fsdp=fsdp) for tree in trees)
        batch = program.shapes(self.recipe.batch_spec(self.recipe.effective_batch))
        return Static(
            parameters=sum(leaf.size for leaf in jax.tree.leaves(state["params"])),
            parameter_bytes=parameters,
            optimizer_bytes=optimizer,
            ema_bytes=ema,
            carry_bytes=carry,
            other_bytes=others - parameters - optimizer - ema,
            largest_leaf_bytes=max(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
            batch_bytes=program.tree_bytes(batch) // devices,
            whole_state_bytes=program.tree_bytes(state),
            movable=offload.movable_bytes(state, fsdp=fsdp),
        )

    def state(self, storage: Storage, precision: Precision = "float32", *, examples: int | None = None) -> Any:
        """Returns shapes and dtypes of the state, with a carry of so many `examples` (default: of the effective batch).

        No other lever changes them, and float16 only adds three numbers.
        """
        init = make_init(
            self.recipe.task(plain_compute()),
            self.rule(storage),
            frozen_bits=storage.frozen_bits,
            precision=precision,
            examples=self.recipe.effective_batch if examples is None else examples,
        )
        return jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))

    def analyse(self, plan: Plan) -> Analysis:
        task = self.recipe.task(plan.compute(jax.default_backend()))
        devices = jax.devices()[: plan.devices] if plan.devices > 1 else None
        functions = program.Functions(task, self.rule(plan.storage), plan, devices)
        step, jaxpr = functions.step(self.recipe.batch_spec(self.recipe.effective_batch))
        counted, compiled = dots(jaxpr), program.compiled(step, deterministic=plan.deterministic)
        analysis = analysis_of(compiled, flops=counted.flops, dots=counted.number)
        if jax.default_backend() != "cpu":
            return analysis
        executable: Any = compiled.runtime_executable()
        (module,) = executable.hlo_modules()
        packed = packed_bytes(Module(module.as_serialized_hlo_module_proto()), cores=cores())
        return dataclasses.replace(analysis, temp_bytes=analysis.temp_bytes + packed)

    def rule(self, storage: Storage) -> optax.GradientTransformation:
        """Returns the optimizer of the run's length, with state and weights kept as `storage` says."""
        return self.recipe.update_rule(self.steps, storage)

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan on one random batch. Allocates one state, so only a child does it.

        The plans take turns, A B C A B C, so that other work on the machine affects all of them alike. The median
        counts.
        """
        executables = [program.compile_all(lowered(self.recipe, plan, steps=self.steps)) for plan in plans]
        states: dict[tuple[Storage, int], Any] = {}  # one for all plans with the same storage, passed on
        for plan, each in zip(plans, executables, strict=True):
            if (plan.storage, plan.fsdp) not in states:
                states[plan.storage, plan.fsdp] = each.init(np.uint32(0))
        random = np.random.default_rng(0)
        spec = self.recipe.batch_spec(self.recipe.effective_batch)
        batch = {name: random.integers(0, 2, shape).astype(dtype) for name, (shape, dtype) in spec.items()}
        seconds: list[list[float]] = [[] for _ in plans]
        least, start = TIMED_SECONDS * len(plans) if len(plans) > 1 else 0.0, time.perf_counter()
        for rounds in itertools.count():
            if rounds > TIMED_ROUNDS and time.perf_counter() - start > least:
                break
            for plan, each, taken in zip(plans, executables, seconds, strict=True):
                started, key = time.perf_counter(), (plan.storage, plan.fsdp)
                states[key], metrics = each.step(states[key], batch)
                jax.block_until_ready((states[key], metrics))
                taken.append(time.perf_counter() - started)
        return [statistics.median(taken[1:]) for taken in seconds]

    def rehearse(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the rehearsal in a process of its own.

        It imports while this process puts every executable into the cache, and then loads them.
        """
        request = json.dumps({**self._about, "plan": dict(plan)})
        command = [sys.executable, "-m", "plimsoll.worker", "rehearse", request]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                program.compile_all(lowered(self.recipe, plan_of(plan), steps=self.steps))
                memory.trim()
            except BaseException:
                process.kill()
                raise
            output, errors = process.communicate("compiled\n")
        if process.returncode:
            raise RuntimeError(f"the rehearsal failed: {errors.strip()[-300:]}")
        return json.loads(output.splitlines()[-1])


def analysis_of(step: jax.stages.Compiled, **counted: Any) -> Analysis:
    """Returns the bytes of a compiled step, beside the fields of `Analysis` that are `counted` in its jaxpr."""
    stats, largest = step.memory_analysis(), largest_temporaries(step)
    assert stats is not None
    memory.trim()
    return Analysis(
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
        temp_bytes=stats.temp_size_in_bytes,
        largest=tuple(largest),
        **counted,
    )


def cpu_rates() -> Rates:
    """Measures dots, small dots, copies, page faults and calls of this machine: about two seconds."""
    from plimsoll.levers.precision import dot

    rows, inner, cols = 1024, 512, 1024
    random = np.random.default_rng(0)
    x, kernel = (random.standard_normal(shape, np.float32) for shape in ((rows, inner), (inner, cols)))
    work = 2.0 * rows * inner * cols
    dots = {
        precision: _ready(jax.jit(partial(dot, precision=precision, platform="cpu")), x, kernel)
        for precision in ("float32", "bfloat16")
    }
    flops = {precision: work / seconds for precision, seconds in _seconds(dots).items()}
    large = np.ones(16 * 2**20, np.float32)
    copied = 2 * large.nbytes / _seconds({"copy": _ready(jax.jit(lambda a: a + 1), large)})["copy"]
    first_touch = TOUCHED / _seconds({"touch": lambda: np.ones(TOUCHED, np.uint8)}, rounds=8)["touch"]
    return Rates(
        flops=flops,
        copy_bytes=copied,
        link_bytes=copied,  # between devices that are parts of it
        first_touch_bytes=first_touch,
        loop_seconds=0.0,
        dot_seconds=_dot_seconds(flops["float32"]),
        call_seconds=_call_seconds(),
        source="measured here",
    )


def _dot_seconds(flops: float) -> float:
    """Returns what a small dot costs besides its arithmetic, from the gradient of blocks that are little else."""
    rows, width, layers = 128, 128, 8
    random = np.random.default_rng(0)
    kernels = list(random.standard_normal((layers, 2, width, width), np.float32) / math.sqrt(width))

    def loss(kernels: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
            x = x + jax.nn.silu(normed @ kernel[0]) @ kernel[1]
        return jnp.sum(x * x)

    gradient = _ready(jax.jit(jax.grad(loss)), kernels, random.standard_normal((rows, width), np.float32))
    count = 3 * 2 * layers - 1  # nobody needs the gradient of the first one's input
    each = _seconds({"gradient": gradient})["gradient"] / count
    return max(0.0, each - 2 * rows * width * width / flops)


def _call_seconds() -> float:
    """Returns what a step costs besides its work: its call with arrays of NumPy, and its numbers read.

    The state is that of three small layers under Adam: an argument costs 2 us or so.
    """
    state: list[Any] = [jnp.zeros(8) for _ in range(3 * 2 * 3 + 2)]
    batch = {"x": np.ones((64, 8), np.float32), "y": np.ones(64, np.float32)}

    def step(state: list[jax.Array], batch: Mapping[str, jax.Array]) -> tuple[list[jax.Array], dict[str, jax.Array]]:
        loss, weight = jnp.sum(batch["x"]), jnp.sum(batch["y"])
        return [leaf + 1 for leaf in state], {"loss": loss, "weight": weight, "gradient_norm": loss}

    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()

    def call() -> None:
        nonlocal state
        state, report = compiled(state, batch)
        numbers_of(report)

    return _seconds({"call": call}, rounds=CALLS)["call"]


def _ready(function: Any, *arguments: Any) -> Callable[[], Any]:
    on_device = [jax.device_put(argument) for argument in arguments]
    compiled = function.lower(*on_device).compile()
    return lambda: jax.block_until_ready(compiled(*on_device))


def _seconds(calls: Mapping[str, Callable[[], Any]], rounds: int = 24) -> dict[str, float]:
    """Returns the seconds of one call of each, in turn, so that other work on the machine affects all of them alike.

    The lower quartile: the median when others take the cores, without the clock's own mistakes at the bottom.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: sorted(seconds)[rounds // 4] for name, seconds in times.items()}
