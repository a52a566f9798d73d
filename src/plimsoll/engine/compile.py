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
from functools import cached_property, partial
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plimsoll.engine.executables import compiler_of
from plimsoll.engine.program import load
from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan, plain_compute
from plimsoll.planner import liveness
from plimsoll.planner.child import plan_of
from plimsoll.planner.flops import dots
from plimsoll.planner.hlo.buffers import largest_temporaries
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.packed import packed_bytes
from plimsoll.planner.host import cores
from plimsoll.planner.types import Analysis, Rates, Static
from plimsoll.processes import environment
from plimsoll.recipes.saved import from_dict
from plimsoll.training import memory, program
from plimsoll.training.initial_weights import twice_at_first
from plimsoll.training.reports import numbers_of
from plimsoll.training.step import make_init, make_step
from plimsoll.types import Precision, Storage

TIMED_ROUNDS = 4
"""Rounds of timing, where the order is not clear before."""
FEWEST_ROUNDS = 2
"""Rounds after which an order may be clear."""
APART = 0.85
"""Share of another plan's least time below which all of a plan's times are clearly less."""
TIMED_SECONDS = 1.0
"""Seconds of timing for each plan, where the order is not clear before: short steps need more rounds where others use
the machine."""
LONGEST_SECONDS = 4.0
"""Seconds of timing for each plan after which no further round begins."""
CALLS = 400
"""Calls of a step that does nothing, to measure what a call costs: a tenth of a second."""
TOUCHED = 64 * 2**20
"""Bytes whose pages are taken to measure what that costs: huge pages, as training's are (environment.py)."""

KEPT_TRACES = 4
"""Traced steps that are kept, of some MiB each."""


class LocalCompiler:
    """A recipe's compiler for the CPU it runs on.

    `about` holds `recipe` (as saved), `steps`, and `devices` where they are several.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self.recipe, self.steps = from_dict(about["recipe"]), about["steps"]
        self._compiled = compiler_of(self.recipe)
        self._devices: int = about.get("devices", 1)
        self._steps: dict[Plan, tuple[Any, Any]] = {}
        self._next: subprocess.Popen[str] | None = None
        """The process of the next rehearsal."""
        self._traced: dict[Plan, jax.stages.Traced] = {}
        """The last steps that were traced, KEPT_TRACES at most: one that is compiled next is not traced again."""
        self._compiling_init: Thread | None = None

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
            self.warm_up()
            static = self.static(fsdp, Storage(**storage or {}))
            return dataclasses.asdict(dataclasses.replace(static, imported_bytes=self.imported_bytes))
        if verb == "measure":
            return {"seconds": self.measure([plan_of(plan) for plan in plans])}
        assert plan is not None
        if verb == "rehearse":
            return self.rehearse(plan)
        if verb == "trace":
            return dataclasses.asdict(self.trace(plan_of(plan)))
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
        batch = program.shapes(self.recipe.spec.batch(self.recipe.effective_batch))
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
            given_bytes=program.tree_bytes(state["params"]["frozen"]) if self.recipe.hints.frozen_given else 0,
            initial_bytes=twice_at_first(state["params"]) if self.recipe.hints.begins_with else 0,
            movable=offload.movable_bytes(state, fsdp=fsdp),
        )

    def state(self, storage: Storage, precision: Precision = "float32", *, examples: int | None = None) -> Any:
        """Returns shapes and dtypes of the state, with a carry of so many `examples` (default: of the effective batch).

        No other lever changes them, and float16 only adds three numbers.
        """
        init = make_init(
            self.recipe.task(plain_compute(embedding_bits=storage.embedding_bits)),
            self.rule(storage),
            frozen_bits=storage.frozen_bits,
            precision=precision,
            examples=self.recipe.effective_batch if examples is None else examples,
        )
        return jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))

    def analyse(self, plan: Plan) -> Analysis:
        self.warm_up()
        if (traced := self._traced.pop(plan, None)) is not None:
            step, jaxpr = traced.lower(), traced.jaxpr
        else:
            step, jaxpr = self.functions(plan).step(self.recipe.spec.batch(self.recipe.effective_batch))
        counted, compiled = dots(jaxpr), self._compiled(step, deterministic=plan.deterministic)
        analysis = analysis_of(compiled, flops=counted.flops, dots=counted.number)
        if jax.default_backend() != "cpu":
            return analysis
        executable: Any = compiled.runtime_executable()
        (module,) = executable.hlo_modules()
        packed = packed_bytes(Module(module.as_serialized_hlo_module_proto()), cores=cores())
        return dataclasses.replace(analysis, temp_bytes=analysis.temp_bytes + packed)

    def trace(self, plan: Plan) -> Analysis:
        """Returns what the traced step says of its bytes and its work."""
        self.warm_up()
        self._compile_init(plan)
        batch = self.recipe.spec.batch(self.recipe.effective_batch)
        if self._devices == 1:
            traced = self.functions(plan).traced(batch)
            self._traced = dict([*self._traced.items()][1 - KEPT_TRACES :]) | {plan: traced}
            jaxpr = traced.jaxpr
        else:
            task = self.recipe.task(plan.compute(jax.default_backend()))
            state = self.state(plan.storage, plan.precision, examples=self.recipe.effective_batch // self._devices)
            jaxpr = self.traced(plan, task, state, self.share(batch))
        counted = dots(jaxpr)
        return Analysis(
            argument_bytes=0,
            output_bytes=0,
            alias_bytes=0,
            temp_bytes=liveness.temporary_bytes(jaxpr),
            flops=counted.flops * self._devices,
            dots=counted.number,
            source="estimated",
        )

    def traced(self, plan: Plan, task: Any, state: Any, batch: Any) -> Any:
        """Returns the jaxpr of a step for state and batch of these shapes."""
        step = make_step(task, self.rule(plan.storage), **program.of_plan(plan))
        return jax.jit(step, donate_argnums=0).trace(state, batch).jaxpr

    def share(self, batch: program.BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of one device's rows of a batch."""
        return {
            name: jax.ShapeDtypeStruct((spec.shape[0] // self._devices, *spec.shape[1:]), spec.dtype)
            for name, spec in program.shapes(batch).items()
        }

    def rule(self, storage: Storage) -> optax.GradientTransformation:
        """Returns the optimizer of the run's length, with state and weights kept as `storage` says."""
        return self.recipe.update_rule(self.steps, storage)

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan on one random batch. Allocates one state, so only a child does it.

        The plans take turns, A B A B, so that other work on the machine affects all of them alike, until their order is
        clear or the time is over; never are there two states. The median counts.
        """
        spec = self.recipe.spec.batch(self.recipe.effective_batch)
        random = np.random.default_rng(0)
        batch = {name: random.integers(0, 2, shape).astype(dtype) for name, (shape, dtype) in spec.items()}
        every = [self._loaded(plan) for plan in plans]
        held: dict[Any, Any] = {}
        seconds: list[list[float]] = [[] for _ in plans]
        start = time.perf_counter()
        while not _clear(seconds, time.perf_counter() - start):
            for plan, (init, step), taken in zip(plans, every, seconds, strict=True):
                kept = plan.storage, plan.fsdp, plan.precision == "float16"
                if kept not in held:
                    held.clear()
                    held[kept] = init(np.uint32(0))
                started = time.perf_counter()
                held[kept], metrics = step(held[kept], batch)
                jax.block_until_ready((held[kept], metrics))
                taken.append(time.perf_counter() - started)
        return [statistics.median(taken[1:] or taken) for taken in seconds]

    def _loaded(self, plan: Plan) -> tuple[Any, Any]:
        """Returns how a plan begins and its step, compiled; the last few stay, for one is timed beside several."""
        if plan not in self._steps:
            functions = self.functions(plan)
            spec = self.recipe.spec.batch(self.recipe.effective_batch)
            lowered = functions.init(), functions.step(spec)[0]
            init, step = (self._compiled(each, deterministic=plan.deterministic) for each in lowered)
            memory.trim()
            put = program.Fed(step, functions.put) if plan.devices > 1 else step
            self._steps = dict([*self._steps.items()][-1:]) | {plan: (init, put)}
        return self._steps[plan]

    def functions(self, plan: Plan) -> program.Functions:
        """Returns the plan's functions, over several devices if it has them."""
        devices = jax.devices()[: plan.devices] if plan.devices > 1 else None
        return program.Functions(
            self.recipe.task(plan.compute(jax.default_backend())), self.rule(plan.storage), plan, devices
        )

    @cached_property
    def imported_bytes(self) -> int:
        """Resident bytes of a process after the imports of training: the first line that a rehearsal prints."""
        self.warm_up()
        assert self._next is not None
        assert self._next.stdout is not None
        return int(self._next.stdout.readline() or 0)  # a process that failed says why when it is rehearsed

    def warm_up(self) -> None:
        """Starts the process of the next rehearsal, which imports while this one traces and compiles."""
        if self._next is None:
            pipe = subprocess.PIPE
            command = [sys.executable, "-m", "plimsoll.worker", "rehearse", json.dumps(self._about)]
            as_training = environment.for_processes("cpu")
            self._next = subprocess.Popen(command, env=as_training, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def _compile_init(self, plan: Plan) -> None:
        """Compiles how a run begins, beside the traces, which keep one core busy: the same for most plans."""
        if self._compiling_init is None:
            init, deterministic = self.functions(plan).init(), plan.deterministic
            self._compiling_init = Thread(target=self._compiled, args=(init,), kwargs={"deterministic": deterministic})
            self._compiling_init.start()

    def _fill_cache(self, plan: Plan) -> None:
        """Puts into the cache what a run of the plan loads."""
        if self._compiling_init is not None:
            self._compiling_init.join()
        load(self.recipe, plan, steps=self.steps)

    def rehearse(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the rehearsal in a process of its own, which loads what this one has put into the cache."""
        self.warm_up()
        process, self._next = self._next, None
        assert process is not None
        assert process.stdin is not None
        with process:
            try:
                self._fill_cache(plan_of(plan))
            except BaseException:
                process.kill()
                raise
            output, errors = process.communicate(json.dumps(dict(plan)) + "\n")
        if process.returncode:
            raise RuntimeError(f"a trial run of the plan failed: {errors.strip()[-300:]}")
        return json.loads(output.splitlines()[-1])


def _clear(seconds: Sequence[Sequence[float]], elapsed: float) -> bool:
    """Returns whether plans were timed enough: each round's first is their loading."""
    rounds = len(seconds[-1])
    if rounds == 0:
        return False
    if elapsed > LONGEST_SECONDS * len(seconds):
        return True
    timed = sorted((min(taken[1:], default=0.0), max(taken[1:], default=0.0)) for taken in seconds)
    apart = all(slowest < APART * fastest for (_, slowest), (fastest, _) in itertools.pairwise(timed))
    if len(seconds) > 1 and apart and rounds > FEWEST_ROUNDS:
        return True
    return rounds > TIMED_ROUNDS and elapsed > TIMED_SECONDS * len(seconds)


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


def _seconds(calls: Mapping[str, Callable[[], Any]], rounds: int = 12) -> dict[str, float]:
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
