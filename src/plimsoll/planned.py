"""A plan, its bytes as predicted and as measured, and what else the planner found. Nothing here imports JAX."""

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
"""Whether a plan fits; uncertain only where nothing was compiled."""
Source = Literal["compiled", "estimated"]
OTHER = "other"
"""Component of a measured peak that none of the predicted ones accounts for."""
RUNNING = ("train", "evaluate", "save")
"""Phases whose bytes a plan decides about; to load, to start and to restore costs the same under every plan."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A value for every lever, and what it was made for. Frozen in the run at its start; flat in JSON."""

    chip: str
    accumulation: int
    """Micro-batches of a step."""
    devices: int = 1
    """Devices over which the batch is split."""
    levers: Levers
    """Levers without a value are off."""
    pinned: tuple[str, ...] = ()
    """Levers the user set; the others were found."""

    def __post_init__(self) -> None:
        unknown = self.levers.keys() - registry.LEVERS.keys()
        if unknown:
            raise TypeError(
                f"a plan has no lever {', '.join(sorted(unknown))}: the file or package of its recipe, which may have"
                " registered it, is not imported here"
            )
        complete = {name: self.levers.get(name, lever.plain) for name, lever in registry.LEVERS.items()}
        object.__setattr__(self, "levers", Levers(complete))

    def lever(self, name: str) -> Any:
        """Returns the value of a lever, also of one that was registered after this plan was made."""
        return self.levers.get(name, registry.LEVERS[name].plain)

    # Those that are read much.

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
        """Devices that share one copy of the state; the batch is split over all of them either way."""
        return self.levers["fsdp"]

    # What follows from them.

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
        """Returns what a model sees of this plan."""
        return Compute(platform=platform, levers=self.levers)

    def with_levers(self, **levers: Any) -> Plan:
        """Returns this plan with other values of some levers."""
        return replace(self, levers=Levers(self.levers | levers))

    def to_dict(self) -> dict[str, Any]:
        """Returns names and values as they stand in JSON."""
        own = values.fields_to_json(self)
        return {"chip": own.pop("chip"), **own.pop("levers"), **own}

    @classmethod
    def from_dict(cls, content: Any, path: str = "plan") -> Plan:
        """Returns the plan that `to_dict` made these values from; levers that were not there yet are off.

        Raises:
            TypeError: A name is no lever, a lever is missing, or a value is none that it can have.
        """
        names = {field.name for field in fields(cls)}
        levers = Levers({name: value for name, value in dict(content).items() if name not in names})
        plan = values.fields_from_json(cls, {**content, "levers": levers}, path)

        # Numbers have bounds, too.
        counts = {"accumulation": plan.accumulation, "devices": plan.devices}
        wrong = [name for name, value in plan.levers.items() if not registry.LEVERS[name].allows(value)]
        wrong += [name for name, count in counts.items() if count < 1]
        if wrong:
            name = wrong[0]
            raise TypeError(f"{path}.{name} is {(plan.levers | counts)[name]!r}")
        return plan


def plain_compute(**levers: Any) -> Compute:
    """Returns what a model sees where every other lever is off, those that were registered from outside among them."""
    return Compute(levers=Levers(registry.plain() | levers))


@dataclass(frozen=True, kw_only=True)
class Process:
    """What a process weighs that has loaded a run's functions and has no state yet."""

    resident_bytes: int
    """Resident set, with the heap trimmed."""
    loading_bytes: int
    """Its peak until then."""


@dataclass(frozen=True, kw_only=True)
class PeakBytes:
    """Predicted bytes by component, in the dearest phase; their sum is the predicted peak."""

    components: Mapping[str, int]
    phase: str
    """The phase of the run in which the peak falls: start, train, save or evaluate."""
    spare_bytes: int = 0
    """Bytes of the budget that stay free beside the predicted peak."""

    @property
    def predicted_peak_bytes(self) -> int:
        return sum(self.components.values())

    @property
    def needed_bytes(self) -> int:
        """The smallest budget that this plan is chosen for."""
        return self.predicted_peak_bytes + self.spare_bytes

    def to_dict(self) -> dict[str, Any]:
        return {"predicted_peak_bytes": self.predicted_peak_bytes, **values.fields_to_json(self)}


@dataclass(frozen=True, kw_only=True)
class HostLedger(PeakBytes):
    """Bytes of one host's process."""

    budget_bytes: int | None
    """None where nobody has said how much there is."""
    pinned_bytes: int = 0
    """Bytes that a step has pinned there: what is offloaded, and the inputs that wait for the backward pass."""

    @property
    def fits(self) -> bool:
        return self.budget_bytes is None or self.needed_bytes <= self.budget_bytes


@dataclass(frozen=True, kw_only=True)
class Ledger(PeakBytes):
    """Bytes of one device."""

    budget_bytes: int
    source: Source = "compiled"
    phases: Mapping[str, int] = field(default_factory=dict)
    """Predicted peak of every phase."""
    host: HostLedger | None = None
    """Ledger of each host beside its accelerators; None where the host is the device."""

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.budget_bytes and (self.host is None or self.host.fits)


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A plan that was considered and not chosen, and why."""

    plan: Plan
    predicted_peak_bytes: int
    step_seconds: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """A plan that no other beats, on the line of bytes against time."""

    plan: Plan
    needed_bytes: int
    """The smallest budget that it fits in."""
    step_seconds: float
    compiled: bool
    """False where its bytes are believed, from a traced step."""
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class TriedValue:
    """A value of an option for which a plan was looked for."""

    value: int
    needed_bytes: int | None = None
    """The smallest budget that it fits in; None where there is no plan of it."""
    fits: bool = False
    free: bool
    """Whether all levers were free, in time enough, and not those of the smallest plan of another value."""
    refused: str = ""
    """Why there is no plan of it."""
    step_seconds: float | None = None
    """Time of one optimizer step; None where there is no plan, or the chip's rate is unknown."""
    per_second: float | None = None
    """Tokens per second, or where a step has none its examples."""


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest value of an option that fits, and how it was found (api/planning/largest.py)."""

    option: str
    """Name of the option, with hyphens."""
    value: int
    next_value: int | None
    """One step larger; None where the option ends at the value."""
    next_needed_bytes: int | None
    """The smallest budget that this would fit in; None where nobody knows."""
    bounded_by: Literal["bytes", "option", "recipe", "time"]
    """What keeps it from being larger: the budget, where the option ends, a refusal of the recipe, or the time."""
    reason: str
    tried: tuple[TriedValue, ...] = ()
    """Values in the order in which they were tried."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A temporary of the compiled step, and where it comes from."""

    bytes: int
    shape: str
    """Like `float32[256,512]`."""
    what: str
    """The operation that makes it, in JAX's words."""
    place: str
    """File and line of the recipe's, the user's or our own source; empty where the compiler made it up."""


@dataclass(frozen=True, kw_only=True)
class EstimateBand:
    """Range of the compiler's bytes for a plan that no compiler has seen (planner/estimated.py)."""

    plans: int
    """Number of plans that were also compiled, by which the range is known."""
    lowest_peak_bytes: int
    highest_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Bytes of the checkpoints that a run keeps (training/disk.py)."""

    checkpoint_bytes: int
    """Of one."""
    kept_at_once: int
    """Number of checkpoints, at most."""
    bytes: int
    """Of them all."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Result of a search: the plan, the bytes it expects, how long a step takes, and what else was seen."""

    plan: Plan
    ledger: Ledger
    recipe: str
    parameters: int
    step_seconds: float | None
    """Time of one optimizer step; None where the chip's rate is unknown."""
    step_seconds_source: Literal["measured", "kernels", "roofline"]
    """Source of that time: a clock, the compiled step's kernels added up, or the chip's rates alone."""
    step_seconds_range: tuple[float, float] | None = None
    """Least and most that an estimate may be in truth, by the steps that were measured; None of one that was timed."""
    step_flops: float
    chip_flops: float
    """Floating-point operations per second of the chip, in the plan's precision."""
    tokens_per_step: int | None
    examples_per_step: int
    compiles: int
    devices: int
    reason: str
    hosts: int = 1
    """Processes that the devices belong to."""
    alternatives: tuple[Alternative, ...] = ()
    frontier: tuple[Point, ...] = ()
    """Plans that nothing beats in bytes and in time, the smallest first."""
    temporary_bytes: int = 0
    """Temporaries of a step on one device; 0 where the compiler does not say."""
    imported_bytes: int = 0
    """Weight of a process that has imported what training imports."""
    instructions: int = 0
    """Instructions of the compiled step: with the imports, what a process weighs that was not weighed."""
    trial: Process | None = None
    """Weight of a trial process of this plan; None where there was none."""
    largest_buffers: tuple[Buffer, ...] = ()
    """The largest of the step's temporaries; empty where the compiler does not say."""
    left_out: tuple[str, ...] = ()
    """Plans that do not compile or run here, with the reason: others like them were not considered."""
    sent_bytes: int = 0
    """Bytes that each device sends in a step, by the compiled step; 0 where no compiler for several has seen it."""
    margin_bytes: int = 0
    """Margin for the run's own overruns, in the prediction."""
    estimate_band: EstimateBand | None = None
    """Range of its bytes; None of a plan that was compiled."""
    disk: Disk | None = None
    """None where nothing is to be trained."""
    without_cudnn: str = ""
    """Why attention on a GPU is not cuDNN's; empty where it is, where nothing attends, and on other chips."""
    could_grow: tuple[str, ...] = ()
    """Options of the recipe whose largest value that fits can be looked for, with hyphens."""
    step_options: StepOptions = field(default_factory=StepOptions)
    """What the user set about the step."""
    largest_found: Largest | None = None
    """The value that was looked for; None where none was."""

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
        """Dict from the name of each lever (memory-saving option) to the value that the plan chose for it.

        Like {"micro_batch": 4, "remat": "block", ...}; levers that are off are in it, too.
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
        """Returns the object that `plan --json` prints: the ledger's values stand beside the plan's own."""
        own = {field.name: getattr(self, field.name) for field in fields(Planned)}
        del own["ledger"]
        largest = own.pop("largest_found")
        derived = {"fits": self.fits, "verdict": self.verdict, "numerics": self.plan.numerics}
        if largest is not None:
            derived |= {"largest": largest.value, "largest_search": largest}
        return values.to_json(derived | self.ledger.to_dict() | own)

    @classmethod
    def from_dict(cls, content: Any, path: str = "plan.json") -> Planned:
        """Returns the plan that `to_dict` made this object from, as a run's plan.json holds it.

        Raises:
            TypeError: A value is missing or of another type, or a lever is registered by a file that is not imported
                here.
        """
        apart = {"ledger": content, "largest_found": dict(content).get("largest_search")}
        planned = values.fields_from_json(cls, {**content, **apart}, path)
        plan = planned.plan
        if plan.effective_batch != planned.examples_per_step:
            raise TypeError(
                f"{path}.examples_per_step is {planned.examples_per_step}, and micro_batch {plan.micro_batch} and"
                f" accumulation {plan.accumulation} make {plan.effective_batch}"
            )
        return planned


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """One time that the budget was exceeded, or that an allocator refused what a step needed."""

    step: int
    """Step of the checkpoint from which training continues; 0 for the beginning."""
    what: Literal["resident set", "allocator"]
    budget_bytes: int
    predicted_bytes: int
    """Predicted peak of the phases in RUNNING, without an earlier margin."""
    measured_bytes: int
    """Peak resident set; on an accelerator, the most its allocator had given out."""
    said: str = ""
    """First line of the allocator's refusal."""

    @property
    def excess_bytes(self) -> int:
        """Bytes that the prediction lacked: no measured peak holds a refused allocation, but it was over the budget."""
        return max(self.measured_bytes, self.budget_bytes) - self.predicted_bytes

    def words(self) -> str:
        """Returns the overrun for the log and the ledger, without its step."""
        budget = f"{format_bytes(self.predicted_bytes)} were predicted, the budget is {format_bytes(self.budget_bytes)}"
        if self.what == "allocator":
            return f"the allocator refused ({self.said}) with {format_bytes(self.measured_bytes)} in use; {budget}"
        return f"the resident set reached {format_bytes(self.measured_bytes)}; {budget}"

    def to_dict(self) -> dict[str, Any]:
        return {**values.fields_to_json(self), "excess_bytes": self.excess_bytes, "words": self.words()}


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Highest bytes of a run, and of each phase."""

    peak_bytes: int
    phases: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Component:
    """Bytes of a component, predicted and measured."""

    predicted: int
    measured: int | None = None
    """None where it was not measured."""


@dataclass(frozen=True, kw_only=True)
class SessionBytes(Peaks):
    """Measured bytes of one session."""

    components: Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True)
class PerDevice:
    """Shares of the state that each of several devices has."""

    devices: int
    data: int
    fsdp: int
    whole_state_bytes: int
    state_bytes: Component


@dataclass(frozen=True, kw_only=True)
class RunHost(HostLedger):
    """Ledger of the host beside its accelerators, and the peak of the process there."""

    measured_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class EndedEarly:
    """End of a run without a better evaluation."""

    step: int
    patience: int
    """Number of evaluations."""


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """Bytes of one device in a run, by component: predicted, and measured in its sessions. Content of ledger.json."""

    budget_bytes: int
    phase: str
    """Phase of the predicted peak."""
    source: Source
    predicted: Peaks
    measured: Peaks | None = None
    """Highest of all sessions; None before the first has ended."""
    components: Mapping[str, Component]
    """Measured in the session with the highest peak."""
    session: SessionBytes | None = None
    """The last session."""
    per_device: PerDevice | None = None
    host: RunHost | None = None
    resumed_from_step: int | None = None
    ended_early: EndedEarly | None = None
    overruns: tuple[Overrun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def predicted_bytes(self) -> int:
        """Predicted peak."""
        return self.predicted.peak_bytes

    @property
    def measured_bytes(self) -> int | None:
        """Measured peak of all sessions; None before the first has ended."""
        return self.measured and self.measured.peak_bytes

    def largest_first(self) -> list[tuple[str, Component]]:
        """Returns the components by name, the largest predicted one first."""
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
        """Returns this ledger of a plan with the bytes of a session and of those before.

        Args:
            session: Bytes of the session.
            earlier: Ledger of the sessions before; None if there are none, or they were on other hardware.
        """
        # The highest peak of each phase, and the components of the session with the highest.
        phases = Counter(session.phases)
        components = session.components
        peaks = [session.peak_bytes]
        if earlier is not None and earlier.measured is not None:
            phases |= Counter(earlier.measured.phases)
            peaks.append(earlier.measured.peak_bytes)
            if earlier.measured.peak_bytes > session.peak_bytes:
                components = {name: component.measured for name, component in earlier.components.items()}

        # What no component accounts for, so that they add up to the peak.
        peak = max(*peaks, *phases.values())
        measured = {name: size for name, size in components.items() if name != OTHER}
        rest = peak - sum(size or 0 for size in measured.values())
        if rest > 0:
            measured[OTHER] = rest

        plain = Component(predicted=0)
        names = dict.fromkeys([*self.components, *measured])
        both = {name: replace(self.components.get(name, plain), measured=measured.get(name)) for name in names}
        return replace(self, measured=Peaks(peak_bytes=peak, phases=dict(phases)), components=both, session=session)
