"""Questions of the planner to a compile process, and the answers, which arrive as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from plimsoll.levers import lever
from plimsoll.levers.records.offload import OFFLOADED
from plimsoll.planned import Buffer, Plan, Process
from plimsoll.planner.chip_file import Chip
from plimsoll.types import WHOLE, Offload, StepOptions, Storage

Verb = Literal["rates", "imports", "static", "trace", "analyse", "prepare", "measure"]
Depth = Literal["trace", "compile", "try"]
"""Source of the bytes of initialisation, evaluation and the process: traces, compiled functions, or a trial process."""


@dataclass(frozen=True)
class Card:
    """One GPU or TPU device of this machine, as JAX reports it."""

    kind: str
    memory_bytes: int
    """Bytes of the device that JAX's allocator can give to one process."""
    devices: int = 1
    """Number of devices of this kind that JAX sees."""
    driver: str = ""
    """Version of NVIDIA's driver; empty if it is unknown."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Recipe, step and chip that the answers of a compile process are about."""

    recipe: Mapping[str, Any]
    """Recipe in the form in which it is saved as JSON."""
    steps: int
    """Length of the learning rate schedule, in optimizer steps."""
    step_options: StepOptions
    imports: tuple[str, ...] = ()
    """Names of the modules that are imported to read the recipe's data."""
    is_own: bool = False
    """Whether the recipe comes from a user's file, which opens its data as soon as the recipe is used."""
    devices: int = 1
    chip: Chip | None = None
    """Chip to plan for, with all its devices; None for the CPU of this machine."""
    card: Card | None = None
    """Accelerator of this machine that compiles and times the plans; None if the chip is not in this machine."""
    compiler: tuple[str, ...] = ()
    """Packages of the chip's compiler; empty for the CPU, and if no compiler is installed."""

    @property
    def platform(self) -> str:
        return "cpu" if self.chip is None else self.chip.platform

    @property
    def is_compiled(self) -> bool:
        """True if a compiler for the chip is installed. Otherwise bytes are estimated from the traced step."""
        return self.chip is None or bool(self.compiler)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A question to a compile process."""

    verb: Verb
    plans: tuple[Plan, ...] = ()
    """Plans in which settings that do not affect compiled functions have their default value."""
    fsdp: int = 1
    """Number of devices that share one copy of the state, for the verb `static`."""
    storage: Storage = WHOLE
    """Bits of stored weights and optimizer state, for the verb `static`."""
    depth: Depth = "trace"
    """Source of the bytes in the answer, for the verb `prepare`."""


@dataclass(frozen=True, kw_only=True)
class Static:
    """Bytes of one device's share of the training state, computed exactly from shapes."""

    parameters: int
    """Number of weights of the whole model, trainable and frozen."""
    parameter_bytes: int
    """Bytes of all weights, trainable and frozen."""
    optimizer_bytes: int
    other_bytes: int
    """Bytes of the step counter and the RNG key."""
    ema_bytes: int = 0
    """Bytes of the average of the weights (EMA)."""
    carry_bytes: int = 0
    """Bytes of the carry: a state of each example that lasts from step to step."""
    largest_leaf_bytes: int
    batch_bytes: int = 0
    """Bytes of one device's share of an effective batch."""
    whole_state_bytes: int = 0
    """Bytes of one whole copy of the state, on all devices that share it."""
    given_bytes: int = 0
    """Bytes of the frozen weights that checkpoints leave out, in one whole copy of the state."""
    initial_bytes: int = 0
    """Bytes held twice for a moment while a run reads initial weights from files: the largest array, and trainable
    weights in 16 bits, which are replaced once all files are read."""
    movable: Mapping[str, int] = field(default_factory=dict)
    """Maps parts of the state, like "optimizer", to the bytes that can be offloaded to the host's memory."""

    @property
    def state_bytes(self) -> int:
        return self.parameter_bytes + self.optimizer_bytes + self.ema_bytes + self.carry_bytes + self.other_bytes

    def on_host(self, offload: Offload) -> dict[str, int]:
        """Returns the bytes of one device's share that `offload` places on the host, by part."""
        return {part: self.movable.get(part, 0) for part in OFFLOADED[offload]}

    def host_bytes(self, offload: Offload) -> int:
        return sum(self.on_host(offload).values())


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The compiler's figures for the step of one plan. Bytes are those of one device, unless noted."""

    temp_bytes: int
    """Bytes of temporaries. On a CPU they include the buffers of matmul libraries (hlo/packed.py)."""
    argument_bytes: int = 0
    """Bytes of the state and the batch; 0 for a step that was only traced."""
    output_bytes: int = 0
    """Bytes of the step's outputs; 0 for a step that was only traced."""
    alias_bytes: int = 0
    """Bytes of outputs that reuse the memory of arguments."""
    instructions: int = 0
    """Number of instructions of the compiled step; for a traced step, the likely number."""
    is_filed: bool = False
    """Whether training reads the compiled functions from files, without tracing and lowering them."""
    flops: float
    """Floating-point operations of the matmuls of a whole step on all devices, those of rematerialisation included."""
    moved_bytes: float = 0.0
    """Bytes that matmuls read and write in a step, on all devices; 0 on a CPU, whose cache holds many of them."""
    dots: float = 0.0
    """Number of matmuls in a step on a CPU, each of which has an overhead; 0 on an accelerator."""
    kernels: float = 0.0
    """Number of kernels that one GPU runs in a step; 0 on other chips."""
    kernel_seconds: float = 0.0
    """Seconds of a GPU's kernels in a step, estimated from their shapes, without launches and transfers over links.
    The update and the sum of the gradients are included. 0 if the step was not compiled."""
    sent_bytes: float = 0.0
    """Bytes that one device sends to the others in a step, as compiled; 0 if the step was not compiled."""
    hidden_share: float = 0.0
    """Share, from 0 to 1, of the sending time in which kernels run, from the compiled step's schedule."""
    peak_bytes: int = 0
    """Peak bytes that the compiler reports on an accelerator, with arguments and without host memory; else 0."""
    host_temp_bytes: int = 0
    """Bytes of temporaries in the host's memory."""
    source: Literal["compiled", "estimated"] = "compiled"
    largest: tuple[Buffer, ...] = ()
    """Largest temporaries of the step."""

    @property
    def beyond_state_bytes(self) -> int:
        """Bytes of a step besides its arguments: temporaries, and outputs that reuse no argument's memory.

        On a TPU either this sum or the compiler's peak can be the larger one. The larger one counts.
        """
        summed = self.temp_bytes + self.output_bytes - self.alias_bytes
        return max(summed, self.peak_bytes - self.argument_bytes)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Bytes of a run besides its training step: of initialisation, evaluation, and the process itself."""

    init_temp_bytes: int
    """Bytes of temporaries of the run's initialisation."""
    evaluate_temp_bytes: int
    """Bytes of temporaries of the run's evaluation."""
    process: Process | None = None
    """Resident memory measured in a trial process; None if no trial process ran."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of a chip, measured on the chip or taken from its data sheet."""

    flops: Mapping[str, float]
    """Floating-point operations per second in matmuls, by precision."""
    copy_bytes: float
    """Bytes per second of moving data that does not fit the cache."""
    first_touch_bytes: float
    """Bytes per second of touching memory for the first time, which page faults limit; infinite on an accelerator."""
    loop_seconds: float
    """Seconds of overhead per micro-batch, besides its arithmetic."""
    source: str
    dot_seconds: float = 0.0
    """Seconds of overhead per matmul, with the operations around it, besides its arithmetic."""
    launch_seconds: float = 0.0
    """Seconds to launch a kernel; 0 where kernels are not counted."""
    call_seconds: float = 0.0
    """Seconds of overhead per step: the call from the training loop, and reading the step's metrics."""
    link_bytes: float = 0.0
    """Bytes per second that a device sends to the others."""
    host_link_bytes: float = 0.0
    """Bytes per second between a device and its host's memory; 0 if unknown."""


class Compiler(Protocol):
    """Source of the answers to the planner's questions. A plan that cannot be compiled raises `DoesNotCompile`."""

    workers: int
    """Number of questions that the compiler answers at the same time."""

    @property
    def compiles(self) -> int: ...

    doing: str
    """Progress word for `analyse`: "compiling", or "estimating" if no compiler is installed."""

    def static(self, fsdp: int = 1, storage: Storage = WHOLE) -> Static: ...
    def trace(self, plan: Plan) -> Analysis:
        """Returns an estimate of a step's bytes and FLOPs, from its trace."""
        ...

    def analyse(self, plan: Plan) -> Analysis: ...
    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        """Returns the bytes of initialisation, evaluation and the process. Compiled functions are kept for training."""
        ...

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan. The plans are timed in turn."""
        ...

    def rates(self) -> Rates: ...
    def imported_bytes(self) -> int:
        """Returns the resident memory of a process after training's imports, in bytes."""
        ...


class DoesNotCompile(Exception):
    """Failure of the compiler, or of its process, on one plan. The search continues with other plans."""


class ChildDied(DoesNotCompile):
    """A compile process ended before its answer. Another process may answer the same question."""


@dataclass(frozen=True, kw_only=True)
class Problem(lever.Problem):
    """Facts that the search needs about the recipe, the chip and the budget. It needs no model and no data."""

    hosts: int = 1
    budget_bytes: int
    """Budget of one device, in bytes."""
    memory_bytes: int | None = None
    """Largest number of bytes of an accelerator that a run can use; None on a CPU."""
    host_budget_bytes: int | None = None
    """Budget for the memory of one host with accelerators, in bytes; None for no limit."""
    rate_per_example: int
    """Number of units of throughput (`rate_unit`) in one example, like tokens."""
    rate_unit: str
    host_bytes: Mapping[int, Mapping[str, int]]
    """Bytes of the data on the host, by number of prefetched batches and by component."""
    data_advice: str = ""
    """Advice to the user that reduces the bytes of the data."""
    pinned_by: str | None = None
    """Option that set levers for the user, like `--plan FILE`; None if the user set each by its own option."""
    margin_bytes: int = 0
    """Bytes added to the predictions for training, evaluation and saving, after this run exceeded earlier ones."""
    measure: bool = False
    """Whether to time the best few plans on this machine's chip."""
    prepares: Depth = "trace"
    """Source of the bytes of the chosen plan's initialisation, evaluation and process."""
    steps: int | None = None
    """Optimizer steps of the run that follows, so that planning takes no longer than it saves; None without a run."""
