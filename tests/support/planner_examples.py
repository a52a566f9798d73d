"""A compiler that answers by formula: bytes and seconds are known, so what the search should find is too."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plimsoll.planned import Plan
from plimsoll.planner.types import Analysis, DoesNotCompile, Problem, Rates, Rehearsal, Static
from plimsoll.types import Storage
from plimsoll.units import MIB

STATIC = Static(
    parameters=5 * MIB // 2,
    parameter_bytes=10 * MIB,
    optimizer_bytes=20 * MIB,
    other_bytes=0,
    largest_leaf_bytes=4 * MIB,
)
REHEARSAL = Rehearsal(
    process_bytes=100 * MIB, starting_bytes=110 * MIB, init_temp_bytes=7 * MIB, evaluate_temp_bytes=9 * MIB
)
PROCESS = 100 * MIB
UNLIKELY = 1.15
"""Times as slow, at most, that a plan may be because a faster one was too unlikely to fit to be asked about."""
KEPT = {"none": 40, "dots": 24, "block": 16}
"""MiB that one example keeps, by remat."""
WORK = {"none": 3.0, "dots": 3.4, "block": 4.0}
"""Forward passes' worth of dots, by remat."""


def activation_bytes(plan: Plan) -> int:
    """Linear in the micro-batch: what is kept, and the logits unless the loss is chunked."""
    width = 2 if plan.precision == "float32" else 1
    logits = 0 if plan.loss_chunk else 6
    return round((KEPT[plan.remat] * width / 2 + logits) * plan.micro_batch * MIB)


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

    def static(self, fsdp: int = 1, storage: Storage | None = None) -> Static:
        kept = storage or Storage()
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
        gradient = 0 if plan.layerwise else STATIC.parameter_bytes
        temporaries = gradient + round((found.temp_bytes - gradient) * self.traced(plan))
        return replace(found, temp_bytes=temporaries, kernels=0.0, kernel_seconds=0.0, source="estimated")

    def analyse(self, plan: Plan) -> Analysis:
        self.compiles += 1
        self.asked.append(("analyse", plan))
        if self.fails(plan):
            raise DoesNotCompile("RESOURCE_EXHAUSTED: out of memory")
        work = WORK[plan.remat] * (7 / 4 if plan.layerwise == 2 else 1) + (0.3 if plan.loss_chunk else 0.0)
        gradient = 0 if plan.layerwise else STATIC.parameter_bytes
        static = self.static(plan.fsdp, plan.storage)
        held = static.state_bytes - static.host_bytes(plan.offload)
        return Analysis(
            argument_bytes=held,
            output_bytes=held,
            alias_bytes=held,
            temp_bytes=gradient + self.temporaries(plan),
            flops=work * 1e7 * plan.effective_batch,
        )

    def rehearse(self, plan: Plan) -> Rehearsal:
        self.asked.append(("rehearse", plan))
        return Rehearsal(process_bytes=PROCESS, starting_bytes=PROCESS, init_temp_bytes=0, evaluate_temp_bytes=0)

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        self.asked += [("measure", plan) for plan in plans]
        if any(self.cannot_run(plan) for plan in plans):
            raise DoesNotCompile("the compile process was killed by signal 9")
        return [self._took(plan) for plan in plans]

    def _took(self, plan: Plan) -> float:
        levers = (plan.micro_batch, plan.remat, plan.loss_chunk)
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
    return Plan(**values | changes)


def analysis(temp):
    """Of a step whose only argument is the state of `STATIC`, `temp` bytes of temporaries beside it."""
    size = STATIC.state_bytes
    return Analysis(argument_bytes=size, output_bytes=size, alias_bytes=size, temp_bytes=temp, flops=1e9)
