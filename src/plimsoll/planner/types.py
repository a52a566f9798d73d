"""Questions of the planner, and their answers, which come from a child process as JSON."""

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
"""How well it is known what a run calls besides its step: traced, compiled, or tried in a process of its own."""


@dataclass(frozen=True)
class Card:
    """A GPU of this machine, or its TPU chips, as JAX sees one of them."""

    kind: str
    memory_bytes: int
    """Bytes that its allocator can give one process."""
    devices: int = 1
    """Devices of this kind that JAX sees."""
    driver: str = ""
    """Version of NVIDIA's driver; empty where nobody says."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a compile process is started for: all that its answers depend on beside a question."""

    recipe: Mapping[str, Any]
    """The recipe, as it is saved."""
    steps: int
    """Length of the schedule."""
    step_options: StepOptions
    imports: tuple[str, ...] = ()
    """Modules that reading its data imports."""
    is_own: bool = False
    """Whether the recipe stands in a user's file, and opens its data as soon as it is used."""
    devices: int = 1
    chip: Chip | None = None
    """Chip that is planned for, with all its devices; None for the CPU of this machine."""
    card: Card | None = None
    """The chip, where it is in this machine, and compiles and times its plans itself."""
    compiler: tuple[str, ...] = ()
    """Packages of the chip's compiler; empty where none is installed, and of the CPU."""

    @property
    def platform(self) -> str:
        return "cpu" if self.chip is None else self.chip.platform

    @property
    def is_compiled(self) -> bool:
        """True where there is a compiler; without it the traced step answers."""
        return self.chip is None or bool(self.compiler)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A question to a compile process. Of the plans only what changes a compiled function differs from plain."""

    verb: Verb
    plans: tuple[Plan, ...] = ()
    fsdp: int = 1
    """Of `static`."""
    storage: Storage = WHOLE
    """Of `static`."""
    depth: Depth = "trace"
    """Of `prepare`."""


@dataclass(frozen=True, kw_only=True)
class Static:
    """Exact bytes of one device's share of the state, from shapes alone; `fsdp` and the storage change them."""

    parameters: int
    """Number of weights, trainable and frozen."""
    parameter_bytes: int
    optimizer_bytes: int
    other_bytes: int
    """Step, RNG."""
    ema_bytes: int = 0
    """Bytes of the average of the weights."""
    carry_bytes: int = 0
    """Bytes that a task carries from step to step."""
    largest_leaf_bytes: int
    batch_bytes: int = 0
    """One device's share of an effective batch."""
    whole_state_bytes: int = 0
    """State of all devices that share one copy."""
    given_bytes: int = 0
    """Frozen weights of such a state that checkpoints leave out."""
    initial_bytes: int = 0
    """What a copy of the state has twice for a moment where a run begins with weights from files: the largest array of
    them, and learned weights in 16 bits, which are replaced when all are read."""
    movable: Mapping[str, int] = field(default_factory=dict)
    """Bytes that `offload` can put into the host's memory, by the parts in `OFFLOADED`. Frozen weights are in
    `parameter_bytes`."""

    @property
    def state_bytes(self) -> int:
        return self.parameter_bytes + self.optimizer_bytes + self.ema_bytes + self.carry_bytes + self.other_bytes

    def on_host(self, offload: Offload) -> dict[str, int]:
        """Returns the bytes that are placed on the host, by part, of one device's share."""
        return {part: self.movable.get(part, 0) for part in OFFLOADED[offload]}

    def host_bytes(self, offload: Offload) -> int:
        return sum(self.on_host(offload).values())


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Answer of the compiler about the step of one plan, in bytes of one device."""

    temp_bytes: int
    """Temporaries as compiled; on a CPU also what its libraries pack (hlo/packed.py)."""
    argument_bytes: int = 0
    """Bytes of the state and the batch; 0, as those of outputs, of a step that was only traced."""
    output_bytes: int = 0
    alias_bytes: int = 0
    """Outputs that take the place of arguments."""
    instructions: int = 0
    """Instructions of the compiled step: what its code weighs. Of a traced one as many as it may become."""
    is_filed: bool = False
    """Whether training reads the compiled functions from files, without tracing and lowering them."""
    flops: float
    """Operations of the whole step on all devices, counted from its dots; rematerialisation included."""
    moved_bytes: float = 0.0
    """Bytes that the dots of the step read and write, on all devices; 0 on a CPU, whose cache keeps much of them."""
    dots: float = 0.0
    """Number of dots on a CPU: each costs something to start, however small it is. 0 on an accelerator."""
    kernels: float = 0.0
    """Kernels that one GPU runs in a step; 0 on other chips."""
    kernel_seconds: float = 0.0
    """Their time on it, each at the rate of its own shape, without what starting them costs; 0 where no compiler has
    seen the step. It has the update and the sum of the gradients in it, and nothing that goes over a link."""
    sent_bytes: float = 0.0
    """Bytes that one device sends to the others in a step, as compiled; 0 where no compiler has seen it."""
    hidden_share: float = 0.0
    """Part of the time of sending them in which kernels run, by the compiled step's schedule."""
    peak_bytes: int = 0
    """The compiler's own peak, where it says one that means something: on accelerators, arguments included, without
    the host's memory."""
    host_temp_bytes: int = 0
    """Temporaries that a step keeps in the host's memory."""
    source: Literal["compiled", "estimated"] = "compiled"
    largest: tuple[Buffer, ...] = ()
    """The largest temporaries."""

    @property
    def beyond_state_bytes(self) -> int:
        """Returns what a step needs besides its arguments: temporaries, and outputs that reuse no argument.

        On a TPU neither this sum nor the compiler's own peak bounds the other, so the larger counts.
        """
        summed = self.temp_bytes + self.output_bytes - self.alias_bytes
        return max(summed, self.peak_bytes - self.argument_bytes)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a run of a plan takes besides its step."""

    init_temp_bytes: int
    """Temporaries of how it begins."""
    evaluate_temp_bytes: int
    """Temporaries of its evaluation."""
    process: Process | None = None
    """Weight of a trial process; None where there was none."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of a chip, measured on it or from its data sheet."""

    flops: Mapping[str, float]
    """Precision to floating-point operations per second in dots."""
    copy_bytes: float
    """Bytes per second, moving data that does not fit the cache."""
    first_touch_bytes: float
    """Bytes per second of memory touched for the first time (page faults; on an accelerator, never the limit)."""
    loop_seconds: float
    """Cost of one more micro-batch besides its arithmetic."""
    source: str
    dot_seconds: float = 0.0
    """Cost of a dot, and of the operations around it, besides its arithmetic."""
    launch_seconds: float = 0.0
    """Cost of a kernel besides its work; 0 where kernels are not counted."""
    call_seconds: float = 0.0
    """Cost of a step besides its work or its kernels: the call from the training loop, and its numbers read."""
    link_bytes: float = 0.0
    """Bytes per second that a device sends to the others."""
    host_link_bytes: float = 0.0
    """Bytes per second between a device and its host's memory; 0 where nobody says."""


class Compiler(Protocol):
    """Answers from a child process. A plan that does not compile here raises `DoesNotCompile`."""

    workers: int
    """Questions that it answers at once."""

    @property
    def compiles(self) -> int: ...

    doing: str
    """Word for what `analyse` does: compiling, or estimating where there is no compiler."""

    def static(self, fsdp: int = 1, storage: Storage = WHOLE) -> Static: ...
    def trace(self, plan: Plan) -> Analysis:
        """Returns what can be told of a step without compiling it."""
        ...

    def analyse(self, plan: Plan) -> Analysis: ...
    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        """Returns what a run of the plan takes besides its step. Compiled, its functions are ready for training."""
        ...

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        """Returns the seconds per step of each plan, timed in turn."""
        ...

    def rates(self) -> Rates: ...
    def imported_bytes(self) -> int:
        """Returns the weight of a process that has imported what training imports."""
        ...


class DoesNotCompile(Exception):
    """The compiler, or the child it ran in, failed on this plan. A data point, not an error of ours."""


class ChildDied(DoesNotCompile):
    """The child ended, or was ended, before it had answered: it may answer when it is asked again."""


@dataclass(frozen=True, kw_only=True)
class Problem(lever.Problem):
    """Everything the search needs to know; no model, no data."""

    hosts: int = 1
    budget_bytes: int
    """Budget of one device."""
    memory_bytes: int | None = None
    """Bytes that a run can use of an accelerator's device, at most; None on a CPU."""
    host_budget_bytes: int | None = None
    """Budget of one host beside its accelerators; None for no limit."""
    rate_per_example: int
    rate_unit: str
    host_bytes: Mapping[int, Mapping[str, int]]
    """Prefetch depth to host components and their bytes."""
    data_advice: str = ""
    """Advice that makes the bytes of the data less."""
    pinned_by: str | None = None
    """Source of the pins, where the user did not type them one by one: `--plan FILE`."""
    margin_bytes: int = 0
    """Bytes added to the phases in RUNNING: what this run, which went over its budget, needs beyond a prediction."""
    measure: bool = False
    """Time the best few on the chip at hand."""
    prepares: Depth = "trace"
    """How well it is to be known what the chosen plan takes besides its step."""
    steps: int | None = None
    """Steps of the run that is about to begin, so that planning takes no longer than it can save; None of another."""
