"""A compiler that answers by formula: bytes and seconds are known, so what the search should find is too."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from plimsoll.levers.lever import CLASSES
from plimsoll.planned import Plan, Planned, Process
from plimsoll.planner.bytes import LOADED, PlanBytes
from plimsoll.planner.deadline import Deadline
from plimsoll.planner.evidence import ALIKE
from plimsoll.planner.objectives import NEAR
from plimsoll.planner.search import Desk, find_fastest
from plimsoll.planner.space import combinations, smaller
from plimsoll.planner.speed import step_seconds
from plimsoll.planner.types import (
    Analysis,
    Depth,
    DoesNotCompile,
    Preparation,
    Problem,
    Rates,
    Static,
)
from plimsoll.types import WHOLE, Storage
from plimsoll.units import MIB

STATIC = Static(
    parameters=5 * MIB // 2,
    parameter_bytes=10 * MIB,
    optimizer_bytes=20 * MIB,
    other_bytes=0,
    largest_leaf_bytes=4 * MIB,
)
PROCESS = 100 * MIB
"""Weight of a process whose functions are loaded."""
TRIAL = Preparation(
    init_temp_bytes=7 * MIB,
    evaluate_temp_bytes=9 * MIB,
    process=Process(resident_bytes=PROCESS, loading_bytes=PROCESS + 10 * MIB),
)
KEPT = {"none": 40, "dots": 24, "block": 16}
"""MiB that one example keeps, by remat."""
WORK = {"none": 3.0, "dots": 3.4, "block": 4.0}
"""Forward passes' worth of dots, by remat."""


def activation_bytes(plan: Plan) -> int:
    """Linear in the micro-batch: what is kept, and the logits unless the loss is chunked."""
    width = 2 if plan.precision == "float32" else 1
    logits = 0 if plan.lever("loss_chunk") else 6
    return round((KEPT[plan.lever("remat")] * width / 2 + logits) * plan.micro_batch * MIB)


@dataclass
class FakeCompiler:
    bf16_speed: float = 2.0
    loop_seconds: float = 1e-3
    fails: Any = lambda plan: False
    cannot_run: Any = lambda plan: False
    temporaries: Any = lambda plan: 20 * MIB + activation_bytes(plan)  # a step dearer than a save
    seconds: dict = field(default_factory=dict)
    """Of micro-batch and remat, perhaps of the loss chunk; without any entry an example costs a millisecond."""
    compiles: int = 0
    workers: int = 1
    doing: str = "compiling"
    traced: Any = lambda plan: 1.0
    """Temporaries of a traced plan over those of the compiled one."""
    asked: list = field(default_factory=list)

    def static(self, fsdp: int = 1, storage: Storage = WHOLE) -> Static:
        kept = storage
        whole = replace(
            STATIC,
            parameter_bytes=STATIC.parameter_bytes * min(16, kept.weight_bits) // 32
            if kept.weight_bits < 32
            else STATIC.parameter_bytes,
            optimizer_bytes=STATIC.optimizer_bytes * kept.optimizer_bits // 32
            + (STATIC.parameters if kept.weight_bits == 24 else 0),
        )
        return replace(
            whole,
            parameter_bytes=whole.parameter_bytes // fsdp,
            optimizer_bytes=whole.optimizer_bytes // fsdp,
            whole_state_bytes=whole.state_bytes,
        )

    def rates(self) -> Rates:
        flops = {"float32": 1e9, "bfloat16": self.bf16_speed * 1e9}
        return Rates(
            flops=flops,
            copy_bytes=1e15,
            first_touch_bytes=1e15,
            loop_seconds=self.loop_seconds,
            link_bytes=1e12,
            source="made up",
        )

    def trace(self, plan: Plan) -> Analysis:
        said, asked, fails = self.compiles, list(self.asked), self.fails
        self.fails = lambda plan: False
        try:
            found = self.analyse(plan)
        except DoesNotCompile:  # what compiles or not, a trace shows nothing of it
            found = FakeCompiler.analyse(self, plan)
        finally:
            self.compiles, self.asked, self.fails = said, asked, fails
        gradient = 0 if plan.lever("layerwise") else STATIC.parameter_bytes
        temporaries = gradient + round((found.temp_bytes - gradient) * self.traced(plan))
        return replace(found, temp_bytes=temporaries, kernels=0.0, kernel_seconds=0.0, source="estimated")

    def analyse(self, plan: Plan) -> Analysis:
        self.compiles += 1
        self.asked.append(("analyse", plan))
        if self.fails(plan):
            raise DoesNotCompile("RESOURCE_EXHAUSTED: out of memory")
        work = WORK[plan.lever("remat")] * (7 / 4 if plan.lever("layerwise") == 2 else 1) + (
            0.3 if plan.lever("loss_chunk") else 0.0
        )
        gradient = 0 if plan.lever("layerwise") else STATIC.parameter_bytes
        static = self.static(plan.fsdp, plan.storage)
        held = static.state_bytes - static.host_bytes(plan.offload)
        return Analysis(
            argument_bytes=held,
            output_bytes=held,
            alias_bytes=held,
            temp_bytes=gradient + self.temporaries(plan),
            flops=work * 1e7 * plan.effective_batch,
        )

    def imported_bytes(self) -> int:
        return PROCESS - LOADED.least_bytes

    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        self.asked.append(("prepare", plan))
        process = Process(resident_bytes=PROCESS, loading_bytes=PROCESS) if depth == "try" else None
        return Preparation(init_temp_bytes=0, evaluate_temp_bytes=0, process=process)

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        self.asked += [("measure", plan) for plan in plans]
        if any(self.cannot_run(plan) for plan in plans):
            raise DoesNotCompile("the compile process was killed by signal 9")
        return [self._took(plan) for plan in plans]

    def _took(self, plan: Plan) -> float:
        levers = (plan.micro_batch, plan.lever("remat"), plan.lever("loss_chunk"))
        other = 99.0 if self.seconds else 1e-3 * plan.effective_batch
        return self.seconds.get(levers) or self.seconds.get(levers[:2], other)


def problem(budget: int, **changes: Any) -> Problem:
    values: dict[str, Any] = {
        "recipe": "toy",
        "chip": "cpu",
        "budget_bytes": budget,
        "effective_batch": 16,
        "rate_per_example": 128,
        "rate_unit": "tokens",
        "loss_rows": 128,
        "numerics": "mixed",
        "supported": ("precision", "remat", "loss_chunk", "layerwise"),
        "loss_chunks": (256,),
        "host_bytes": {2: {"data": 3 * MIB}},
    }
    return Problem(**values | changes)


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "chip": "cpu",
        "micro_batch": 4,
        "accumulation": 4,
        "remat": "none",
        "loss_chunk": 0,
        "precision": "float32",
        "prefetch": 2,
        "async_save": False,
    }
    return Plan.from_dict(values | changes)


def analysis(temp):
    """Of a step whose only argument is the state of `STATIC`, `temp` bytes of temporaries beside it."""
    size = STATIC.state_bytes
    return Analysis(argument_bytes=size, output_bytes=size, alias_bytes=size, temp_bytes=temp, flops=1e9)


ABLE = ("precision", "remat", "loss_chunk", "optimizer_bits", "weight_bits", "layerwise", "activations")
"""Levers of a problem with a large space."""


@dataclass
class Card(FakeCompiler):
    """A compiler whose clock says what its rates say, times a factor of the levers. Its answers take time."""

    slower: tuple[float, ...] = (1.0,)
    now: float = 0.0
    compile_seconds: float = 5.0
    traces: int = 0

    def clock(self) -> float:
        return self.now

    def trace(self, plan: Plan) -> Analysis:
        now = self.now + 0.1
        self.traces += 1
        found = super().trace(plan)
        self.now = now
        return found

    def analyse(self, plan: Plan) -> Analysis:
        self.now += self.compile_seconds
        return super().analyse(plan)

    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        self.now += 2
        return super().prepare(plan, depth)

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        self.now += 3
        return super().measure(plans)

    def _took(self, plan: Plan) -> float:
        analysis = FakeCompiler.analyse(FakeCompiler(), plan)
        static = self.static(plan.fsdp, plan.storage)
        return step_seconds(plan, analysis, static, self.rates()) * self.slower[place_of(plan) % len(self.slower)]


def place_of(plan: Plan) -> int:
    """One number for each value of the levers that change what a step keeps."""
    remat = ("none", "dots", "block").index(plan.lever("remat"))
    return (
        remat * 4
        + (plan.lever("loss_chunk") > 0) * 2
        + (plan.precision == "float32")
        + (7 if plan.lever("layerwise") else 0)
    )


def off_by(low: float, apart: Sequence[float]) -> Any:
    """Temporaries of a trace over those of what is compiled: `low`, and more by up to ALIKE, with the levers."""
    return lambda plan: low * (1 + ALIKE * apart[place_of(plan) % len(apart)])


class Swept(NamedTuple):
    """A candidate of a space, as it is in truth."""

    step: Plan
    needed_bytes: int
    cost: float
    """Seconds of a step, weighed by the class of numerics."""


def sweep(about: Problem, compiler: Card) -> list[Swept]:
    """Every candidate of the space."""
    static_of = cache(compiler.static)
    rows = []
    for combination in combinations(about, compiler.rates(), static_of):
        for candidate in combination.candidates:
            plan = candidate.plan
            static = static_of(plan.fsdp, plan.storage)
            answer = FakeCompiler.analyse(FakeCompiler(), plan)
            needed = min(need_of(each, about, answer, static) for each in smaller(plan, about))
            by_rates = step_seconds(plan, answer, static, compiler.rates())
            seconds = compiler._took(plan) if about.measure else by_rates
            rows.append(Swept(candidate.step, needed, seconds * NEAR ** CLASSES.index(plan.numerics)))
    return rows


def need_of(plan: Plan, about: Problem, analysis: Analysis, static: Static) -> int:
    """The smallest budget of a plan that was prepared."""
    compiler = FakeCompiler()
    plan_bytes = PlanBytes(
        plan=plan,
        problem=about,
        static=static,
        analysis=analysis,
        imported_bytes=compiler.imported_bytes(),
        preparation=compiler.prepare(plan, about.prepares),
    )
    return plan_bytes.ledger().needed_bytes


def search(about: Problem, compiler: FakeCompiler, **deadline: Any) -> Planned:
    """The fastest plan, with as much time as there is unless a deadline says otherwise."""
    return find_fastest(about, Desk(compiler, deadline=Deadline(**deadline)))
