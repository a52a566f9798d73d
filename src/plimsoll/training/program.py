"""The executables of a run: init, step, evaluate. They are lowered from shapes, so compiling allocates no arrays.

The planner's child process compiles all three into the persistent cache. The training process lowers the same functions
and loads them from the cache: compiling even one of them would need more memory than a small model.
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
"""XLA's compiler options by name."""

COUNTED: Options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""Compiler options for a CPU that make XLA's memory analysis count all temporaries.

By default XLA passes whole groups of operations to a library, whose temporaries it does not count: 164 MiB with windows
of 3,000 tokens. With this option only single matmuls go to the library. Drop it when `memory_analysis` counts the
groups' buffers (notes, "What the compiler does not count")."""

LAST_WRONG_RULE = (0, 11, 0)
"""Newest release of jaxlib in which the slice annotator's bug (`passes_left_out`) was seen. 0.10.2 has it, too."""


def passes_left_out(jaxlib_version: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the names of the XLA passes that are disabled for steps on a GPU.

    Rematerialization: near the GPU's memory limit this pass would change bytes and time of a step without a message.
    The plan decides what is recomputed (`levers/remat.py`).

    The slice annotator: for a slice in a loop it computes the address as offset + iteration x stride, so that the
    driver copies the slice without reading its index. In releases up to `LAST_WRONG_RULE` the pass uses this rule also
    for slices in host memory whose index is not the loop counter. A backward pass, or pieces of several rows, would
    then read and write the wrong rows (openxla/xla#46231; notes, "Offload that cards computed wrongly"). Without the
    pass, kernels read indices.
    """
    if jaxlib_version <= LAST_WRONG_RULE:
        return ("rematerialization", "dynamic-slice-annotator")
    return ("rematerialization",)


AS_PLANNED: Options = {"xla_disable_hlo_passes": ",".join(passes_left_out(jaxlib.version.__version_info__))}
"""Compiler options for every step on a GPU, which disable the passes of `passes_left_out`."""

IN_ANY_ORDER: Options = {"xla_gpu_deterministic_ops": False, "xla_gpu_exclude_nondeterministic_ops": False}
"""Compiler options for a non-deterministic step on a GPU. They override a user's XLA_FLAGS that ask for determinism,
under which attention would have no kernel (levers/cudnn_calls.py)."""

DETERMINISTIC: Options = {"xla_gpu_deterministic_ops": True, "xla_gpu_enable_triton_gemm": False}
"""Compiler options for a GPU that make two runs bit-identical (levers/records/deterministic.py).

The first option fixes the order of sums and of the gradient in cuDNN's attention, and switches off the autotuning of
matmul kernels. Triton's matmuls then have no configuration and do not compile, so the second option switches them
off (notes, "On a card")."""

BatchSpec = Mapping[str, tuple[tuple[int, ...], str]]
"""Map from the name of a batch's array to its shape and dtype."""


@dataclass(frozen=True)
class Program:
    """The lowered functions of a run, before they are compiled."""

    init: jax.stages.Lowered
    step: jax.stages.Lowered
    evaluate: jax.stages.Lowered
    state: Any
    """Shapes and dtypes of the state."""
    deterministic: bool = True
    """True if the functions are to be compiled so that two runs are bit-identical."""
    put: Callable[[Batch], Any] | None = None
    """Function that splits a batch of NumPy arrays over several devices; None for a single device."""


@dataclass(frozen=True)
class Executables:
    """The compiled functions of a run."""

    init: jax.stages.Compiled
    step: Callable[[Any, Any], tuple[Any, Report]]
    """Compiled training step. It donates the state."""
    evaluate: jax.stages.Compiled | Fed
    """Compiled evaluation of one batch."""
    state: Any
    """Shapes and dtypes of the state, with shardings if the state is offloaded or split over devices."""
    put: Callable[[Batch], Any] = jax.device_put
    """Function that copies a batch of NumPy arrays to the devices with the step's sharding."""
    in_heap: bool = False
    """True if malloc's heap has all temporaries of a CPU step: their sum is below `memory.SMALLEST_MAPPED`."""


@dataclass(frozen=True)
class Fed:
    """An executable for several devices that is called with a batch of NumPy arrays, and splits it over the devices."""

    executable: jax.stages.Compiled
    put: Callable[[Batch], Any]

    def __call__(self, state: Any, batch: Batch) -> Any:
        return self.executable(state, self.put(batch))

    def memory_analysis(self) -> Any:
        return self.executable.memory_analysis()


@dataclass(frozen=True)
class Placement:
    """Shardings of a function's arguments; None for JAX's default on a single device."""

    state: Any = None
    batch: NamedSharding | None = None
    whole: NamedSharding | None = None
    """Sharding of replicated arrays, like metrics and the seed."""


class Functions:
    """The functions of one plan, for a single device or several. A function is traced when it is requested.

    The batch is split by rows over all devices, the state over `plan.fsdp` devices. Functions are traced and lowered
    from shapes with shardings, so the devices need not be in this machine.
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
        """The step as a Python function, not jitted."""

        # Shardings of state and batch.
        self.state = jax.eval_shape(self._init, jax.ShapeDtypeStruct((), jnp.uint32))
        self.mesh = None if devices is None else sharding.mesh_of(devices, fsdp=plan.fsdp)
        self._in_mesh = nullcontext if self.mesh is None else partial(jax.set_mesh, self.mesh)
        self._placement = self._place()
        if self._placement.state is not None:
            self.state = sharding.with_shardings(self.state, self._placement.state)

    def _place(self) -> Placement:
        """Returns the shardings of the functions' arguments."""
        plan = self._plan

        # A single device.
        if self.mesh is None and plan.offload == "none":
            return Placement()
        if self.mesh is None:
            device = Mesh(np.asarray(jax.devices()[:1]), ("device",))
            return Placement(offload.placed(self.state, plan.offload, device))

        # Several devices. With offload, all arguments need a memory kind, which only an abstract mesh keeps.
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
        """Returns the state's shapes with shardings on the devices of this machine instead of an abstract mesh."""
        if self.mesh is None or self._plan.offload == "none":
            return self.state
        specs = sharding.state_specs(self.state, fsdp=self._plan.fsdp)
        kinds = offload.placed(self.state, self._plan.offload, self.mesh, specs)
        return sharding.with_shardings(self.state, kinds)

    def init(self) -> jax.stages.Lowered:
        """Returns the lowered function that initializes the state from a seed."""
        seed = jax.ShapeDtypeStruct((), jnp.uint32, sharding=self._placement.whole)
        with self._in_mesh():
            return jax.jit(self._init, out_shardings=self._placement.state).lower(seed)

    def step(self, batch: BatchSpec) -> tuple[jax.stages.Lowered, Any]:
        """Returns the lowered train step and its jaxpr."""
        traced = self.traced(batch)
        with self._in_mesh():
            return traced.lower(), traced.jaxpr

    def traced(self, batch: BatchSpec) -> jax.stages.Traced:
        """Returns the traced train step. It keeps the state's shardings, and donates the state if `options.donates`."""
        donated = (0,) if self._donates else ()
        placement = self._placement
        with self._in_mesh():
            step = jax.jit(self.take_step, donate_argnums=donated, out_shardings=(placement.state, placement.whole))
            return step.trace(self.state, shapes(batch, placement.batch))

    def evaluate(self, batch: BatchSpec) -> jax.stages.Lowered:
        """Returns the lowered evaluation of a batch."""
        with self._in_mesh():
            evaluate = jax.jit(make_evaluate(self._task), out_shardings=self._placement.whole)
            return evaluate.lower(evaluated(self.state), shapes(batch, self._placement.batch))

    def program(self, *, batch: BatchSpec, evaluation_batch: BatchSpec) -> Program:
        """Returns all lowered functions of a run, for batches of the given shapes."""
        return Program(
            init=self.init(),
            step=self.step(batch)[0],
            evaluate=self.evaluate(evaluation_batch),
            state=self.placed(),
            deterministic=self._plan.deterministic,
            put=None if self.mesh is None else self.put,
        )

    def put(self, batch: Batch) -> dict[str, jax.Array]:
        """Splits a batch of NumPy arrays by rows over the devices of the mesh.

        Every process reads the whole batch, and copies the rows of its own devices. A batch that is already on the
        devices is returned unchanged.
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
    """Compiles the functions of a run, or loads them from the cache.

    Args:
        program: The lowered functions.
        compile: Compiles a function, given its name and the lowered function; `compiled` if left out.
    """
    compile = compile or (lambda _, lowered: compiled(lowered, deterministic=program.deterministic))
    init = compile("init", program.init)
    memory.trim()  # loading a function leaves tens of MiB in the heap
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
    """Wraps compiled functions for the training loop.

    Args:
        init: Compiled initialization.
        evaluate: Compiled evaluation.
        step: Compiled training step.
        state: Shapes of the state.
        put: Function that splits a batch over several devices; None for a single device.
    """
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
    """Compiles a lowered function with the options that planning and training share, so that planned bytes are exact.

    Args:
        lowered: Lowered function of a run.
        platform: JAX's name of the target backend: cpu, gpu or tpu; this process's backend if left out.
        deterministic: The plan's lever `deterministic`: True makes two runs on a GPU bit-identical.
        more: Further compiler options, for an executable that is analysed but never run.
    """
    options = {"cpu": COUNTED, "gpu": AS_PLANNED | (DETERMINISTIC if deterministic else IN_ANY_ORDER)}
    return lowered.compile(compiler_options=options.get(platform or jax.default_backend(), {}) | (more or {}) or None)


def shapes(spec: BatchSpec, rows: NamedSharding | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of a batch.

    Args:
        spec: Names, shapes and dtypes of the batch's arrays.
        rows: Sharding of the rows over several devices.
    """
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows) for name, (shape, dtype) in spec.items()}


def held_bytes(tree: Any) -> dict[int, int]:
    """Returns the bytes of a tree of arrays on each device of this process, by device id."""
    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return held


def tree_bytes(tree: Any) -> int:
    """Returns the total bytes of a tree of arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
