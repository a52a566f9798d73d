"""Plans, the ledgers of their predicted and measured bytes, and the other results of planning. Imports no JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from plimsoll import values
from plimsoll.levers import registry
from plimsoll.types import STORED, Compute, Levers, Numerics, Offload, Precision, StepOptions, Storage
from plimsoll.units import format_bytes

Verdict = Literal["fits", "does not fit", "uncertain"]
"""Whether a plan fits its budget. Only a plan that was not compiled can be "uncertain"."""
Source = Literal["compiled", "estimated"]
OTHER = "other"
"""Name of the component for measured bytes beyond all predicted components."""
RUNNING = ("train", "evaluate", "save")
"""Phases whose predictions get a margin after a run exceeded its budget. Loading, starting and restoring get none."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A value for every lever (memory setting), with chip and number of devices. Its JSON is one flat object."""

    chip: str
    accumulation: int
    """Number of micro-batches in an optimizer step."""
    devices: int = 1
    """Number of devices over which the batch is split."""
    levers: Levers
    """Maps the names of levers to their values. A lever that is not named is off."""
    pinned: tuple[str, ...] = ()
    """Names of the levers that the user set. The search chose the others."""

    def __post_init__(self) -> None:
        unknown = self.levers.keys() - registry.LEVERS.keys()
        if unknown:
            raise TypeError(
                f"a plan has no lever {', '.join(sorted(unknown))}: the file or package of its recipe may have"
                " registered it, and is not imported here"
            )
        complete = {name: self.levers.get(name, lever.plain) for name, lever in registry.LEVERS.items()}
        object.__setattr__(self, "levers", Levers(complete))

    def lever(self, name: str) -> Any:
        """Returns the value of a lever; its default for a lever that was registered after this plan was made."""
        return self.levers.get(name, registry.LEVERS[name].plain)

    # Properties for the levers that much code reads.

    @property
    def micro_batch(self) -> int:
        return self.levers["micro_batch"]

    @property
    def precision(self) -> Precision:
        return self.levers["precision"]

    @property
    def offload(self) -> Offload:
        return self.levers["offload"]

    @property
    def deterministic(self) -> bool:
        return self.levers["deterministic"]

    @property
    def fsdp(self) -> int:
        """Number of devices over which one copy of the training state is split. The batch is split over all devices."""
        return self.levers["fsdp"]

    # Values derived from the levers.

    @property
    def numerics(self) -> Numerics:
        return registry.numerics(self.levers)

    @property
    def effective_batch(self) -> int:
        return self.micro_batch * self.accumulation

    @property
    def storage(self) -> Storage:
        return Storage(**{name: self.levers[name] for name in STORED})

    def compute(self, platform: str) -> Compute:
        """Returns the settings of this plan that a model reads, for a platform like "cpu"."""
        return Compute(platform=platform, levers=self.levers)

    def with_levers(self, **levers: Any) -> Plan:
        """Returns a copy of the plan with new values for some levers."""
        return replace(self, levers=Levers(self.levers | levers))

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as a JSON object: names of fields and of levers to their values."""
        own = values.fields_to_json(self)
        return {"chip": own.pop("chip"), **own.pop("levers"), **own}

    @classmethod
    def from_dict(cls, content: Any, path: str = "plan") -> Plan:
        """Returns the plan of a JSON object that `to_dict` returned. Levers that the object lacks are off.

        Raises:
            TypeError: A name is no lever, or a lever cannot have its value.
        """
        names = {field.name for field in fields(cls)}
        levers = Levers({name: value for name, value in dict(content).items() if name not in names})
        plan = values.fields_from_json(cls, {**content, "levers": levers}, path)

        # Check the ranges of numbers, which types do not express.
        counts = {"accumulation": plan.accumulation, "devices": plan.devices}
        wrong = [name for name, value in plan.levers.items() if not registry.LEVERS[name].allows(value)]
        wrong += [name for name, count in counts.items() if count < 1]
        if wrong:
            name = wrong[0]
            raise TypeError(f"{path}.{name} is {(plan.levers | counts)[name]!r}")
        return plan


def plain_compute(**levers: Any) -> Compute:
    """Returns a `Compute` with these levers. All other levers are off, also those registered by other packages."""
    return Compute(levers=Levers(registry.plain() | levers))


@dataclass(frozen=True, kw_only=True)
class Process:
    """Resident memory of a training process that has loaded its compiled functions but no training state yet."""

    resident_bytes: int
    """Bytes of the process's resident set once its functions are loaded, with the heap trimmed."""
    loading_bytes: int
    """Peak bytes of the process's resident set while it loads its functions."""


@dataclass(frozen=True, kw_only=True)
class PeakBytes:
    """Predicted bytes of the phase with the highest peak, by component. The sum of the components is the peak."""

    components: Mapping[str, int]
    phase: str
    """Phase of the run with the highest peak, like "train" or "save"."""
    spare_bytes: int = 0
    """Bytes of the budget that must stay free beside the predicted peak."""

    @property
    def predicted_peak_bytes(self) -> int:
        return sum(self.components.values())

    @property
    def needed_bytes(self) -> int:
        """Smallest budget in bytes that the plan fits: the predicted peak and the spare bytes."""
        return self.predicted_peak_bytes + self.spare_bytes

    def to_dict(self) -> dict[str, Any]:
        return {"predicted_peak_bytes": self.predicted_peak_bytes, **values.fields_to_json(self)}


@dataclass(frozen=True, kw_only=True)
class HostLedger(PeakBytes):
    """Predicted bytes of host memory for the training process on one host with accelerators."""

    budget_bytes: int | None
    """Bytes of host memory that the process may use; None if neither the user nor the chip's figures limit them."""
    pinned_bytes: int = 0
    """Bytes of pinned host memory in a step: offloaded state, and activations offloaded until the backward pass."""

    @property
    def fits(self) -> bool:
        return self.budget_bytes is None or self.needed_bytes <= self.budget_bytes


@dataclass(frozen=True, kw_only=True)
class Ledger(PeakBytes):
    """Predicted bytes of one accelerator, or of the process on a CPU."""

    budget_bytes: int
    source: Source = "compiled"
    phases: Mapping[str, int] = field(default_factory=dict)
    """Predicted peak bytes by phase."""
    host: HostLedger | None = None
    """Predicted bytes of host memory for each host; None on a CPU, where the host is the device."""

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.budget_bytes and (self.host is None or self.host.fits)


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A plan that was compared and not chosen, with the reason."""

    plan: Plan
    predicted_peak_bytes: int
    step_seconds: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """A plan on the frontier: no other plan needs both fewer bytes and less time."""

    plan: Plan
    needed_bytes: int
    """Smallest budget in bytes that the plan fits."""
    step_seconds: float
    compiled: bool
    """False if the bytes are estimated from a traced step that was not compiled."""
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class TriedValue:
    """One value of an option, tried in the search for the largest value that fits the budget."""

    value: int
    needed_bytes: int | None = None
    """Smallest budget in bytes that the value's plan fits; None if the value has no plan."""
    fits: bool = False
    free: bool
    """True if the search chose all levers freely and ended in time; False if it took levers of another value's plan."""
    refused: str = ""
    """Reason why the value has no plan; empty if it has one."""
    step_seconds: float | None = None
    """Seconds of one optimizer step; None if there is no plan, or the chip's rate is unknown."""
    per_second: float | None = None
    """Tokens per second, or examples per second for a recipe without tokens."""


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest value of an option that fits the budget, and the values that were tried (api/planning/largest.py)."""

    option: str
    """Name of the option, with hyphens."""
    value: int
    next_value: int | None
    """Value one step larger than `value`; None if `value` is the option's maximum."""
    next_needed_bytes: int | None
    """Smallest budget in bytes that `next_value` would fit; None if it is unknown."""
    bounded_by: Literal["bytes", "option", "recipe", "time"]
    """Limit of `value`: the budget, the option's maximum, values that the recipe refuses, or the planning time."""
    reason: str
    tried: tuple[TriedValue, ...] = ()
    """All values that were tried, in the order of trial."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A temporary buffer of the compiled step, with its source line."""

    bytes: int
    shape: str
    """Type and sizes, like `float32[256,512]`."""
    what: str
    """JAX's name of the operation that computes the buffer."""
    place: str
    """File and line of Python that the operation comes from; empty for an operation that the compiler added."""


@dataclass(frozen=True, kw_only=True)
class EstimateBand:
    """Range in which a compiler's peak bytes would lie, for a plan that was not compiled (planner/estimated.py)."""

    plans: int
    """Number of earlier plans whose estimates were compared with a compiler. The range comes from their errors."""
    lowest_peak_bytes: int
    highest_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Disk space of the checkpoints that a run keeps (training/disk.py)."""

    checkpoint_bytes: int
    """Bytes of one checkpoint."""
    kept_at_once: int
    """Largest number of checkpoints on disk at one time."""
    bytes: int
    """Bytes of all checkpoints on disk at one time."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Result of a search: the plan with its predicted bytes and step time, and the plans that it was compared with."""

    plan: Plan
    ledger: Ledger
    recipe: str
    parameters: int
    step_seconds: float | None
    """Seconds of one optimizer step; None if the chip's rate is unknown."""
    step_seconds_source: Literal["measured", "kernels", "roofline"]
    """Source of `step_seconds`: a clock, the sum of the compiled step's kernels, or the chip's rates alone."""
    step_seconds_range: tuple[float, float] | None = None
    """Lowest and highest likely seconds of a step, from the errors of earlier estimates; None if the step was timed."""
    step_flops: float
    chip_flops: float
    """Peak floating-point operations per second of the chip, in the plan's precision."""
    tokens_per_step: int | None
    examples_per_step: int
    compiles: int
    devices: int
    reason: str
    hosts: int = 1
    """Number of training processes: one on each host."""
    alternatives: tuple[Alternative, ...] = ()
    frontier: tuple[Point, ...] = ()
    """Plans that no other plan beats in both bytes and time, the smallest first."""
    temporary_bytes: int = 0
    """Bytes of a step's temporaries on one device."""
    imported_bytes: int = 0
    """Resident memory of a process after training's imports, in bytes."""
    instructions: int = 0
    """Number of instructions of the compiled step. The resident memory of compiled code is predicted from it."""
    trial: Process | None = None
    """Measured resident memory of a trial process of this plan; None if no trial process ran."""
    largest_buffers: tuple[Buffer, ...] = ()
    """Largest temporaries of the step; empty if the compiler does not report them."""
    left_out: tuple[str, ...] = ()
    """Plans that failed to compile or run, each with its reason."""
    sent_bytes: int = 0
    """Bytes that each device sends in a step, from the step compiled for several devices; 0 if none was compiled."""
    margin_bytes: int = 0
    """Part of the predicted bytes that is a margin, added after this run exceeded its budget."""
    estimate_band: EstimateBand | None = None
    """Range in which a compiler's peak bytes would lie; None if the plan was compiled."""
    disk: Disk | None = None
    """Disk space of a run's checkpoints; None before `find_plan` adds it."""
    without_cudnn: str = ""
    """Reason why attention on a GPU does not use cuDNN; empty if it does, or without attention or a GPU."""
    could_grow: tuple[str, ...] = ()
    """Options of the recipe that `plan --largest` can maximise, with hyphens."""
    step_options: StepOptions = field(default_factory=StepOptions)
    """Options of the training step that the user set."""
    largest_found: Largest | None = None
    """Result of the search for an option's largest value; None if no such search was requested."""

    @property
    def fits(self) -> bool:
        """True if the predicted peak is within the budget, on the device and on its host."""
        return self.ledger.fits

    @property
    def peak_bytes(self) -> int:
        """Predicted peak in bytes: of the process on a CPU, else of one device."""
        return self.ledger.predicted_peak_bytes

    @property
    def levers(self) -> Levers:
        """Dict from the name of each lever (memory-saving option) to its value in the plan.

        Levers that are off are included: {"micro_batch": 4, "remat": "block", ...}.
        """
        return self.plan.levers

    @property
    def verdict(self) -> Verdict:
        band = self.estimate_band
        if band is None:
            return "fits" if self.fits else "does not fit"
        budget = self.ledger.budget_bytes
        if band.highest_peak_bytes <= budget:
            return "fits"
        return "does not fit" if band.lowest_peak_bytes > budget else "uncertain"

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `plan --json` prints. The ledger's values are at its top level."""
        own = {field.name: getattr(self, field.name) for field in fields(Planned)}
        del own["ledger"]
        largest = own.pop("largest_found")
        derived = {"fits": self.fits, "verdict": self.verdict, "numerics": self.plan.numerics}
        if largest is not None:
            derived |= {"largest": largest.value, "largest_search": largest}
        return values.to_json(derived | self.ledger.to_dict() | own)

    @classmethod
    def from_dict(cls, content: Any, path: str = "plan.json") -> Planned:
        """Returns the result of a search from the object that `to_dict` returned, or from a run's plan.json.

        Raises:
            TypeError: A value is missing or has another type, or the file that registers a lever is not imported.
        """
        apart = {"ledger": content, "largest_found": dict(content).get("largest_search")}
        planned = values.fields_from_json(cls, {**content, **apart}, path)
        plan = planned.plan
        if plan.effective_batch != planned.examples_per_step:
            raise TypeError(
                f"{path}.examples_per_step is {planned.examples_per_step}, but micro_batch {plan.micro_batch} x"
                f" accumulation {plan.accumulation} is {plan.effective_batch}"
            )
        return planned


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """An event in which a run exceeded its budget, or an allocator refused memory to a step."""

    step: int
    """Step of the checkpoint from which training continues; 0 for the beginning."""
    what: Literal["resident set", "allocator"]
    budget_bytes: int
    predicted_bytes: int
    """Highest predicted peak in bytes of training, evaluation and saving, without margins for earlier overruns."""
    measured_bytes: int
    """Peak bytes of the resident set; on an accelerator, peak bytes in use by its allocator."""
    said: str = ""
    """First line of the allocator's error message; empty if no allocation failed and the resident set
    exceeded the budget."""

    @property
    def excess_bytes(self) -> int:
        """Bytes needed beyond the prediction.

        The measured peak leaves out an allocation that was refused. That allocation would have exceeded the budget, so
        at least the budget was needed.
        """
        return max(self.measured_bytes, self.budget_bytes) - self.predicted_bytes

    def words(self) -> str:
        """Returns the clause about the overrun for the log and the ledger. It does not name the step."""
        budget = f"{format_bytes(self.predicted_bytes)} were predicted, the budget is {format_bytes(self.budget_bytes)}"
        if self.what == "allocator":
            return f"the allocator refused ({self.said}) with {format_bytes(self.measured_bytes)} in use; {budget}"
        return f"the resident set reached {format_bytes(self.measured_bytes)}; {budget}"

    def to_dict(self) -> dict[str, Any]:
        return {**values.fields_to_json(self), "excess_bytes": self.excess_bytes, "words": self.words()}


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peak bytes of a run, and of each of its phases."""

    peak_bytes: int
    phases: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Component:
    """Bytes of a component of memory, predicted and measured."""

    predicted: int
    measured: int | None = None
    """Measured bytes; None if the component was not measured."""


@dataclass(frozen=True, kw_only=True)
class SessionBytes(Peaks):
    """Measured bytes of one session, which is one process of a run."""

    components: Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True)
class PerDevice:
    """Split of the training state over several devices, with the bytes of one device's share."""

    devices: int
    data: int
    fsdp: int
    whole_state_bytes: int
    state_bytes: Component


@dataclass(frozen=True, kw_only=True)
class RunHost(HostLedger):
    """Predicted bytes of host memory for a host with accelerators, with the measured peak of the process."""

    measured_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class EndedEarly:
    """End of a run before its last step, because evaluations stopped improving."""

    step: int
    patience: int
    """Number of evaluations without improvement after which the run ended."""


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """Predicted and measured bytes of one device in a run, by component. Content of ledger.json."""

    budget_bytes: int
    phase: str
    """Phase with the highest predicted peak."""
    source: Source
    predicted: Peaks
    measured: Peaks | None = None
    """Highest peaks of all sessions; None before the first session has ended."""
    components: Mapping[str, Component]
    """Bytes by component. Measured bytes are those of the session with the highest peak."""
    session: SessionBytes | None = None
    """Measured bytes of the latest session; None before the first session has ended."""
    per_device: PerDevice | None = None
    host: RunHost | None = None
    resumed_from_step: int | None = None
    ended_early: EndedEarly | None = None
    overruns: tuple[Overrun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def predicted_bytes(self) -> int:
        """Predicted peak in bytes."""
        return self.predicted.peak_bytes

    @property
    def measured_bytes(self) -> int | None:
        """Highest measured peak of all sessions, in bytes; None before the first session has ended."""
        return self.measured and self.measured.peak_bytes

    def largest_first(self) -> list[tuple[str, Component]]:
        """Returns pairs of a component's name and its bytes, in falling order of predicted bytes."""
        return sorted(self.components.items(), key=lambda item: -item[1].predicted)

    @classmethod
    def of_plan(cls, planned: Planned) -> Self:
        """Returns the ledger of a run that has no session yet."""
        ledger = planned.ledger
        return cls(
            budget_bytes=ledger.budget_bytes,
            phase=ledger.phase,
            source=ledger.source,
            predicted=Peaks(peak_bytes=ledger.predicted_peak_bytes, phases=ledger.phases),
            components={name: Component(predicted=size) for name, size in ledger.components.items()},
        )

    def merged(self, session: SessionBytes, earlier: RunLedger | None) -> RunLedger:
        """Returns this ledger with the measured bytes of a session and of earlier sessions.

        Args:
            session: Measured bytes of the session.
            earlier: Ledger of the earlier sessions; None if there are none, or they were on other hardware.
        """
        # Take the highest peak of each phase, and the components of the session with the highest peak.
        phases = Counter(session.phases)
        components = session.components
        peaks = [session.peak_bytes]
        if earlier is not None and earlier.measured is not None:
            phases |= Counter(earlier.measured.phases)
            peaks.append(earlier.measured.peak_bytes)
            if earlier.measured.peak_bytes > session.peak_bytes:
                components = {name: component.measured for name, component in earlier.components.items()}

        # Count bytes beyond all components as the component OTHER, so that components add up to the peak.
        peak = max(*peaks, *phases.values())
        measured = {name: size for name, size in components.items() if name != OTHER}
        rest = peak - sum(size or 0 for size in measured.values())
        if rest > 0:
            measured[OTHER] = rest

        plain = Component(predicted=0)
        names = dict.fromkeys([*self.components, *measured])
        both = {name: replace(self.components.get(name, plain), measured=measured.get(name)) for name in names}
        return replace(self, measured=Peaks(peak_bytes=peak, phases=dict(phases)), components=both, session=session)
