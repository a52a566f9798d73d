"""The executables of a run: init, step, evaluate. They are lowered from shapes: compiling allocates nothing.

The planner compiles them in a child, into the persistent cache; the training process lowers the same functions and
loads what it finds there. All of them, because one cold compile costs more memory than a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan
from plimsoll.training import memory
from plimsoll.training.step import Report, StepSpec, evaluated, make_evaluate, make_init, make_step
from plimsoll.types import Batch, StepOptions, Task

Options = dict[str, str | bool]

COUNTED: Options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""Compiler options for a CPU, with which the compiler counts all that a step allocates.

XLA hands whole groups of operations to a library, which allocates its temporaries uncounted: 164 MiB more than was
predicted with windows of 3,000 tokens. Single dots are still given to it. May go when the groups' buffers are in
`memory_analysis` (notes, "What the compiler does not count")."""

LAST_WRONG_RULE = (0, 11, 0)
"""Last release of jaxlib whose rules for slices (`passes_left_out`) may be wrong; 0.10.2 and 0.11.0 were seen to be."""


def passes_left_out(jaxlib_version: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the compiler's passes that a step for a GPU is compiled without, by their names in XLA.

    Rematerialization: near the card's memory it would change bytes and time of a step without a word. What is
    recomputed is the plan's (`levers/remat.py`).

    The annotator of slices: of a slice in a loop it notes a rule, offset + round x stride, by which the driver copies
    it and reads no index. Until `LAST_WRONG_RULE` the rule of a slice on the host is that of the loop's counter, also
    where the index is another one: a backward pass, or pieces of several rows, would read and write elsewhere
    (openxla/xla#46231; notes, "Offload that cards computed wrongly"). Without rules kernels read each index.
    """
    if jaxlib_version <= LAST_WRONG_RULE:
        return ("rematerialization", "dynamic-slice-annotator")
    return ("rematerialization",)


AS_PLANNED: Options = {"xla_disable_hlo_passes": ",".join(passes_left_out(jaxlib.version.__version_info__))}
"""Compiler options for a GPU, with which a step is what was planned, and is right."""

IN_ANY_ORDER: Options = {"xla_gpu_deterministic_ops": False, "xla_gpu_exclude_nondeterministic_ops": False}
"""Compiler options for a GPU without that: a user's XLA_FLAGS may ask for it, and attention would find no kernel
(levers/cudnn_calls.py)."""

DETERMINISTIC: Options = {"xla_gpu_deterministic_ops": True, "xla_gpu_enable_triton_gemm": False}
"""Compiler options for a GPU, with which two runs are equal to the last bit (levers/records/deterministic.py).

The first makes sums, and the gradient of cuDNN's attention, be taken in the same order every time, and no product be
chosen by a clock. It needs the second: Triton's products have no configuration then, and do not compile (notes,
"On a card")."""

BatchSpec = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Program:
    """The functions of a run, lowered and not yet compiled. `state` holds shapes."""

    init: jax.stages.Lowered
    step: jax.stages.Lowered
    evaluate: jax.stages.Lowered
    state: Any
    deterministic: bool = True
    """True if they are compiled so that two runs are equal to the last bit."""
    put: Callable[[Batch], Any] | None = None
    """Splits a batch of NumPy arrays over several devices; None on one."""


@dataclass(frozen=True)
class Executables:
    """The compiled functions of a run."""

    init: jax.stages.Compiled
    step: Callable[[Any, Any], tuple[Any, Report]]
    """Compiled, its state donated."""
    evaluate: jax.stages.Compiled | Fed
    state: Any
    """Shapes and dtypes of the state; and shardings where it is offloaded or split over devices."""
    put: Callable[[Batch], Any] = jax.device_put
    """Puts a batch of NumPy arrays where the step expects it."""
    in_heap: bool = False
    """True if a step on a CPU allocates less than the smallest buffer that is mapped (`memory.SMALLEST_MAPPED`)."""


@dataclass(frozen=True)
class Fed:
    """An executable that splits its second argument, a batch of NumPy arrays, over the devices first."""

    executable: jax.stages.Compiled
    put: Callable[[Batch], Any]

    def __call__(self, state: Any, batch: Batch) -> Any:
        return self.executable(state, self.put(batch))

    def memory_analysis(self) -> Any:
        return self.executable.memory_analysis()


@dataclass(frozen=True)
class Placement:
    """Shardings of arguments; None where they are left to JAX, on the only device."""

    state: Any = None
    batch: NamedSharding | None = None
    whole: NamedSharding | None = None
    """Of what every device has."""


class Functions:
    """One plan's functions, on one device or over `devices`; each is traced when it is requested.

    The batch is split by rows, the state over `plan.fsdp` devices. They are traced and lowered from shapes with
    shardings, so it works for devices that are not here.
    """

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        plan: Plan,
        options: StepOptions,
        devices: Sequence[Any] | None = None,
    ) -> None:
        self._task = task
        self._plan = plan
        self._donates = options.donates
        self._init = make_init(
            task,
            optimizer,
            frozen_bits=plan.lever("frozen_bits"),
            precision=plan.precision,
            examples=plan.effective_batch,
        )
        self.take_step = make_step(task, optimizer, StepSpec.of(plan, options))
        """The step as it is written, for one device."""

        # Where state and batch lie.
        self.state = jax.eval_shape(self._init, jax.ShapeDtypeStruct((), jnp.uint32))
        self.mesh = None if devices is None else sharding.mesh_of(devices, fsdp=plan.fsdp)
        self._in_mesh = nullcontext if self.mesh is None else partial(jax.set_mesh, self.mesh)
        self._placement = self._place()
        if self._placement.state is not None:
            self.state = sharding.with_shardings(self.state, self._placement.state)

    def _place(self) -> Placement:
        """Returns where arguments lie."""
        plan = self._plan

        # The only device.
        if self.mesh is None and plan.offload == "none":
            return Placement()
        if self.mesh is None:
            device = Mesh(np.asarray(jax.devices()[:1]), ("device",))
            return Placement(offload.placed(self.state, plan.offload, device))

        # Several. Where memory kinds matter, all arguments name theirs, and on a mesh that keeps them.
        specs = sharding.state_specs(self.state, fsdp=plan.fsdp)
        mesh: Any = self.mesh
        kind = None
        if plan.offload == "none":
            state = sharding.shardings(mesh, specs)
        else:
            mesh, kind = mesh.abstract_mesh, offload.DEVICE
            state = offload.placed(self.state, plan.offload, mesh, specs)
        rows = NamedSharding(mesh, sharding.ROWS, memory_kind=kind)
        return Placement(state, rows, NamedSharding(mesh, PartitionSpec(), memory_kind=kind))

    def placed(self) -> Any:
        """Returns the state's shapes as arrays on devices that are here have them: on no abstract mesh."""
        if self.mesh is None or self._plan.offload == "none":
            return self.state
        specs = sharding.state_specs(self.state, fsdp=self._plan.fsdp)
        kinds = offload.placed(self.state, self._plan.offload, self.mesh, specs)
        return sharding.with_shardings(self.state, kinds)

    def init(self) -> jax.stages.Lowered:
        """Returns how a run begins, lowered."""
        seed = jax.ShapeDtypeStruct((), jnp.uint32, sharding=self._placement.whole)
        with self._in_mesh():
            return jax.jit(self._init, out_shardings=self._placement.state).lower(seed)

    def step(self, batch: BatchSpec) -> tuple[jax.stages.Lowered, Any]:
        """Returns the lowered train step and its jaxpr."""
        traced = self.traced(batch)
        with self._in_mesh():
            return traced.lower(), traced.jaxpr

    def traced(self, batch: BatchSpec) -> jax.stages.Traced:
        """Returns the traced train step. The state keeps its shardings, and is donated unless the user keeps both."""
        donated = (0,) if self._donates else ()
        placement = self._placement
        with self._in_mesh():
            step = jax.jit(self.take_step, donate_argnums=donated, out_shardings=(placement.state, placement.whole))
            return step.trace(self.state, shapes(batch, placement.batch))

    def evaluate(self, batch: BatchSpec) -> jax.stages.Lowered:
        """Returns the evaluation of a batch, lowered."""
        with self._in_mesh():
            evaluate = jax.jit(make_evaluate(self._task), out_shardings=self._placement.whole)
            return evaluate.lower(evaluated(self.state), shapes(batch, self._placement.batch))

    def program(self, *, batch: BatchSpec, evaluation_batch: BatchSpec) -> Program:
        """Returns all functions of a run, lowered for batches of these shapes."""
        return Program(
            init=self.init(),
            step=self.step(batch)[0],
            evaluate=self.evaluate(evaluation_batch),
            state=self.placed(),
            deterministic=self._plan.deterministic,
            put=None if self.mesh is None else self.put,
        )

    def put(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns a batch of NumPy arrays, split by rows over the devices of a mesh.

        Every process reads the whole batch and takes the rows of its own devices from it: none twice, none lost,
        however many processes there are. What is on the devices already stays as it is.
        """
        assert self.mesh is not None
        if any(isinstance(values, jax.Array) for values in batch.values()):
            return dict(batch)
        rows = NamedSharding(self.mesh, sharding.ROWS)
        return {
            name: jax.make_array_from_callback(values.shape, rows, values.__getitem__) for name, values in batch.items()
        }


def compile_all(
    program: Program, compile: Callable[[str, jax.stages.Lowered], jax.stages.Compiled] | None = None
) -> Executables:
    """Compiles the functions, or loads them from the cache; by `compiled` where nothing else is named."""
    compile = compile or (lambda _, lowered: compiled(lowered, deterministic=program.deterministic))
    init = compile("init", program.init)
    memory.trim()  # loading one leaves tens of MiB that the next would come on top of
    evaluate = compile("evaluate", program.evaluate)
    memory.trim()
    step = compile("step", program.step)
    return executables(init=init, evaluate=evaluate, step=step, state=program.state, put=program.put)


def executables(
    *,
    init: jax.stages.Compiled,
    evaluate: jax.stages.Compiled,
    step: jax.stages.Compiled,
    state: Any,
    put: Callable[[Batch], Any] | None = None,
) -> Executables:
    """Returns the compiled functions as the loop calls them; `put` splits a batch over several devices."""
    stats = step.memory_analysis() if jax.default_backend() == "cpu" else None
    in_heap = stats is not None and stats.temp_size_in_bytes < memory.SMALLEST_MAPPED
    if put is None:
        return Executables(init=init, step=step, evaluate=evaluate, state=state, in_heap=in_heap)
    fed = {"step": Fed(step, put), "evaluate": Fed(evaluate, put)}
    return Executables(init=init, **fed, state=state, put=put, in_heap=in_heap)


def compiled(
    lowered: jax.stages.Lowered,
    *,
    platform: str | None = None,
    deterministic: bool = True,
    more: Options | None = None,
) -> jax.stages.Compiled:
    """Compiles such that the compiler's bytes are the bytes it will take: whoever plans and whoever trains does it.

    Args:
        lowered: A function of a run, lowered.
        platform: JAX's name of the backend it was lowered for: cpu, gpu or tpu; this process's own if left out.
        deterministic: The plan's lever of that name: on a GPU, two runs are equal to the last bit.
        more: Further options, where the result is not run.
    """
    options = {"cpu": COUNTED, "gpu": AS_PLANNED | (DETERMINISTIC if deterministic else IN_ANY_ORDER)}
    return lowered.compile(compiler_options=options.get(platform or jax.default_backend(), {}) | (more or {}) or None)


def shapes(spec: BatchSpec, rows: NamedSharding | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch, and how its rows are split over devices."""
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows) for name, (shape, dtype) in spec.items()}


def held_bytes(tree: Any) -> dict[int, int]:
    """Returns the bytes that each device of this process really holds of the arrays, by its number."""
    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return held


def tree_bytes(tree: Any) -> int:
    """Returns the bytes of arrays or of shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
