"""A plan, the bytes it is predicted to take, and what else the planner found. Nothing here imports JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.levers import registry
from plimsoll.types import (
    STORED,
    Compute,
    EmaBits,
    FrozenBits,
    Numerics,
    Offload,
    OptimizerBits,
    Passes,
    Precision,
    Remat,
    Storage,
    WeightBits,
)

Verdict = Literal["fits", "does not fit", "uncertain"]
"""Whether a plan fits; uncertain only where nothing was compiled."""
RUNNING = ("train", "evaluate", "save")
"""Phases whose bytes a plan decides about; to load, to start and to restore costs the same under every plan."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A value for every lever. Frozen in the run at its start; JSON."""

    chip: str
    micro_batch: int
    accumulation: int
    remat: Remat
    loss_chunk: int
    precision: Precision
    prefetch: int
    async_save: bool
    """Save while training goes on: costs a second copy of the state while it lasts."""
    attention_chunk: int = 0
    optimizer_bits: OptimizerBits = 32
    weight_bits: WeightBits = 32
    frozen_bits: FrozenBits = 32
    ema_bits: EmaBits = 32
    """These four: see `Storage`."""
    layerwise: Passes = 0
    """Backward passes of a step that updates layer by layer and never holds the whole gradient; 0 for a step that
    does. Two where the recipe clips to a global norm: it must be known before the first update."""
    offload: Offload = "none"
    """Parts of the state in the host's memory beside an accelerator: the optimizer's, frozen weights, or both."""
    deterministic: bool = True
    """On an NVIDIA GPU: compile so that two runs are equal to the last bit. Other compilers have no such choice."""
    fsdp: int = 1
    """Devices that share one copy of the state; the batch is split over all of them either way."""
    devices: int = 1
    """Devices over which the batch is split. No lever: what the plan was made for."""
    pinned: tuple[str, ...] = ()
    """Levers the user set; the others were found."""
    further: tuple[tuple[str, Any], ...] = ()
    """Levers without a field here (`levers.registry.register`), by name; attributes of the plan like the others."""

    def __post_init__(self) -> None:
        given = dict(self.further)
        known = {name: lever for name, lever in registry.LEVERS.items() if name not in self.__dataclass_fields__}
        if unknown := given.keys() - known.keys():
            raise TypeError(
                f"a plan has no lever {', '.join(sorted(unknown))}: the file or package of its recipe, which may have"
                " registered it, is not imported here"
            )
        complete = tuple((name, given.get(name, lever.plain)) for name, lever in known.items())
        object.__setattr__(self, "further", complete)

    if not TYPE_CHECKING:  # to a type checker a plan has its fields and nothing else

        def __getattr__(self, name: str) -> Any:
            for lever, value in self.__dict__.get("further", ()):
                if lever == name:
                    return value
            if name in registry.LEVERS and name not in self.__dataclass_fields__:  # registered after this plan was made
                return registry.LEVERS[name].plain
            raise AttributeError(f"a plan has no {name!r}")

    @property
    def levers(self) -> dict[str, Any]:
        """Names of all levers to their values."""
        return {name: getattr(self, name) for name in registry.LEVERS}

    @property
    def numerics(self) -> Numerics:
        return registry.numerics(self.levers)

    @property
    def effective_batch(self) -> int:
        return self.micro_batch * self.accumulation

    @property
    def storage(self) -> Storage:
        return Storage(**{name: getattr(self, name) for name in STORED})

    def compute(self, platform: str) -> Compute:
        """Returns what a model sees of this plan."""
        return Compute(
            precision=self.precision,
            remat=self.remat,
            loss_chunk=self.loss_chunk,
            attention_chunk=self.attention_chunk,
            platform=platform,
            deterministic=self.deterministic,
            further=self.further,
        )

    def with_levers(self, **levers: Any) -> Plan:
        """Returns this plan with other values of some levers."""
        return Plan.from_dict(self.to_dict() | levers)

    def to_dict(self) -> dict[str, Any]:
        """Returns names and values as they stand in JSON, levers without a field of their own among them."""
        values = dataclasses.asdict(self) | {"pinned": list(self.pinned)}
        del values["further"]
        return values | dict(self.further)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Returns the plan that `to_dict` made these values from; levers that were not there yet are off.

        Raises:
            TypeError: A name is no lever, or a lever is missing.
        """
        names = cls.__dataclass_fields__.keys() - {"further"}
        further = tuple((name, value) for name, value in values.items() if name not in names)
        own = {name: value for name, value in values.items() if name in names}
        return cls(**{**own, "pinned": tuple(own.get("pinned", ())), "further": further})

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Plan:
        """Returns the plan that a file holds, as `from_dict`, after a look at each value.

        Raises:
            TypeError: A name is no lever, a lever is missing, or a value is none that it can have.
        """
        plan = cls.from_dict(values)
        wrong = [f"{name} {value!r}" for name, value in plan.levers.items() if not registry.LEVERS[name].allows(value)]
        counts = {"accumulation": plan.accumulation, "devices": plan.devices}
        wrong += [f"{name} {value!r}" for name, value in counts.items() if type(value) is not int or value < 1]
        wrong += [f"chip {plan.chip!r}"] if not isinstance(plan.chip, str) else []
        if wrong:
            raise TypeError(f"a plan cannot have {wrong[0]}")
        return plan


def plain_compute(**levers: Any) -> Compute:
    """Returns what a model sees where every other lever is off, those that were registered from outside among them."""
    return Compute(further=tuple((registry.plain() | levers).items()))


@dataclass(frozen=True, kw_only=True)
class HostLedger:
    """Bytes of one host's process, by component, in its dearest phase."""

    budget_bytes: int | None
    """None where nobody has said how much there is."""
    predicted: Mapping[str, int]
    phase: str
    pinned_bytes: int = 0
    """Bytes that a step has pinned there: what is offloaded, and the inputs that wait for the backward pass."""

    @property
    def predicted_peak_bytes(self) -> int:
        return sum(self.predicted.values())

    @property
    def fits(self) -> bool:
        return self.budget_bytes is None or self.predicted_peak_bytes <= self.budget_bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget_bytes": self.budget_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "phase": self.phase,
            "pinned_bytes": self.pinned_bytes,
            "components": dict(self.predicted),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> HostLedger:
        return cls(
            budget_bytes=facts["budget_bytes"],
            predicted=facts["components"],
            phase=facts["phase"],
            pinned_bytes=facts["pinned_bytes"],
        )


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Bytes of one device by component, predicted and, once the run has been seen, measured."""

    budget_bytes: int
    predicted: Mapping[str, int]
    """Component to bytes at the peak; their sum is the predicted peak."""
    phase: str
    """The phase of the run in which the peak falls: start, train, save or evaluate."""
    source: Literal["compiled", "estimated"] = "compiled"
    phases: Mapping[str, int] = field(default_factory=dict)
    """Predicted peak of every phase."""
    host: HostLedger | None = None
    """Ledger of each host beside its accelerators; None where the host is the device."""
    spare_bytes: int = 0
    """Bytes of the budget that stay free beside the predicted peak."""

    @property
    def predicted_peak_bytes(self) -> int:
        return sum(self.predicted.values())

    @property
    def needed_bytes(self) -> int:
        """The smallest budget that this plan is chosen for."""
        return self.predicted_peak_bytes + self.spare_bytes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.budget_bytes and (self.host is None or self.host.fits)

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget_bytes": self.budget_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "spare_bytes": self.spare_bytes,
            "components": dict(self.predicted),
            "phase": self.phase,
            "phases": dict(self.phases),
            "host": None if self.host is None else self.host.to_dict(),
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Ledger:
        return cls(
            budget_bytes=facts["budget_bytes"],
            predicted=facts["components"],
            phase=facts["phase"],
            source=facts["source"],
            phases=facts["phases"],
            host=None if facts["host"] is None else HostLedger.from_dict(facts["host"]),
            spare_bytes=facts["spare_bytes"],
        )


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


def verdict_of(low_bytes: int, high_bytes: int, budget_bytes: int) -> Verdict:
    """Returns what an interval of bytes says of a budget."""
    if high_bytes <= budget_bytes:
        return "fits"
    return "does not fit" if low_bytes > budget_bytes else "uncertain"


@dataclass(frozen=True, kw_only=True)
class TriedValue:
    """A value of an option for which a plan was looked for."""

    value: int
    needed_bytes: int | None
    """The smallest budget that it fits in; None where there is no plan of it."""
    fits: bool
    free: bool
    """Whether all levers were free, and not those of the smallest plan of another value."""
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
    largest_buffers: tuple[Buffer, ...] = ()
    """The largest of the step's temporaries; empty where the compiler does not say."""
    left_out: tuple[str, ...] = ()
    """Plans that do not compile or run here, with the reason: others like them were not considered."""
    sent_bytes: int = 0
    """Bytes that each device sends in a step, by the compiled step; 0 where no compiler for several has seen it."""
    margin_bytes: int = 0
    """Margin for the run's own overruns, in the prediction."""
    estimate_band: Mapping[str, Any] | None = None
    """Range of a plan that no compiler has seen (planner/estimate.py); None of one that was compiled."""
    disk: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the checkpoints that the run keeps (training/disk.py)."""
    without_cudnn: str = ""
    """Why attention on a GPU is not cuDNN's; empty where it is, where nothing attends, and on other chips."""
    could_grow: tuple[str, ...] = ()
    """Options of the recipe whose largest value that fits can be looked for, with hyphens."""
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
    def levers(self) -> dict[str, Any]:
        """Dict from the name of each lever (memory-saving option) to the value that the plan chose for it.

        Like {"micro_batch": 4, "remat": "block", ...}; levers that are off are in it, too.
        """
        return self.plan.levers

    @property
    def verdict(self) -> Verdict:
        if self.estimate_band is None:
            return "fits" if self.ledger.fits else "does not fit"
        lowest, highest = (self.estimate_band[f"{end}_peak_bytes"] for end in ("lowest", "highest"))
        return verdict_of(lowest, highest, self.ledger.budget_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `plan --json` prints."""
        largest: dict[str, Any] = {}
        if self.largest_found is not None:
            largest = {"largest": self.largest_found.value, "largest_search": dataclasses.asdict(self.largest_found)}

        # The ledger's values stand beside the plan's own.
        apart = ("ledger", "largest_found")
        own = {name: in_json(getattr(self, name)) for name in Planned.__dataclass_fields__ if name not in apart}
        return {
            "fits": self.ledger.fits,
            "verdict": self.verdict,
            **largest,
            **self.ledger.to_dict(),
            "numerics": self.plan.numerics,
            **own,
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Planned:
        """Returns the plan that `to_dict` made these values from, as a run's plan.json holds them.

        Raises:
            LookupError, TypeError: A value is missing, or a lever is registered by a file that is not imported here.
        """

        def with_plan(part: Mapping[str, Any]) -> dict[str, Any]:
            return {**part, "plan": Plan.from_dict(part["plan"])}

        plain = {name: value for name, value in facts.items() if name in cls.__dataclass_fields__}
        read = {
            "plan": Plan.from_dict(facts["plan"]),
            "ledger": Ledger.from_dict(facts),
            "alternatives": tuple(Alternative(**with_plan(part)) for part in facts["alternatives"]),
            "frontier": tuple(Point(**with_plan(part)) for part in facts["frontier"]),
            "largest_buffers": tuple(Buffer(**part) for part in facts["largest_buffers"]),
            "left_out": tuple(facts["left_out"]),
            "could_grow": tuple(facts["could_grow"]),
        }
        return cls(**plain | read)


def in_json(value: Any) -> Any:
    """Returns a value as it stands in JSON: dataclasses by the names of their fields, a plan by its levers."""
    if isinstance(value, Plan):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {field.name: in_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [in_json(part) for part in value]
    return dict(value) if isinstance(value, Mapping) else value
