"""What one device does in a compiled step: the kernels it runs, what it sends to others, how long it waits for that.

In the order of the compiled module's schedule. What is sent goes from its `-start` to its `-done`, one after another
over one link, and the kernels between the two run meanwhile. Where the next kernel needs what is still under way, the
device waits. The body of a loop counts as often as it runs, and nothing is under way from one round to the next. Of
branches the longest counts. Bytes are those of a ring, per device: (n-1)/n of what n devices gather or scatter, twice
that of what they sum (Thakur et al. 2005, https://doi.org/10.1177/1094342005051521).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planner.hlo.kernels import Kernel, Reader, array_bytes, configuration
from plimsoll.planner.hlo.module import Module

RING = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
"""Collectives in which a device passes on what each of the others has, once or twice."""
COLLECTIVES = (*RING, "collective-permute", "collective-broadcast")


@dataclass
class Work:
    """What a device does in a computation, or in all of a step."""

    kernels: Counter[Kernel] = field(default_factory=Counter)
    """Kernels, and how often each runs."""
    kernel_seconds: float = 0.0
    sent_bytes: float = 0.0
    sending_seconds: float = 0.0
    """Seconds that it sends, by the rate of its links."""
    waited_seconds: float = 0.0
    """Part of them in which no kernel runs."""

    @property
    def hidden_share(self) -> float:
        """Part of the time of sending in which kernels run, 0 to 1; 0 where nothing is sent."""
        return 1 - self.waited_seconds / self.sending_seconds if self.sending_seconds else 0.0

    def add(self, other: Work, times: int = 1) -> None:
        for kernel, number in other.kernels.items():
            self.kernels[kernel] += times * number
        self.kernel_seconds += times * other.kernel_seconds
        self.sent_bytes += times * other.sent_bytes
        self.sending_seconds += times * other.sending_seconds
        self.waited_seconds += times * other.waited_seconds


def work_of(
    module: Module, *, devices: int = 1, seconds_of: Callable[[Kernel], float] | None = None, link_bytes: float = 1.0
) -> Work:
    """Returns what a device does in one call of a scheduled module.

    Args:
        module: As compiled for GPUs or TPUs.
        devices: Number of them.
        seconds_of: Function from a kernel to the seconds that it takes; None where kernels are not read, as of a TPU.
        link_bytes: Bytes that a device sends to the others in a second.
    """
    return _Walk(Reader(module), devices, seconds_of, link_bytes).of(module.entry)


@dataclass
class Link:
    """What a computation has under way to other devices, one message after another."""

    now: float = 0.0
    free_at: float = 0.0
    """When all that has begun will be sent."""
    ends: dict[int, float] = field(default_factory=dict)
    """Instructions that have begun to send, and when that will be done."""
    in_fusions: set[int] = field(default_factory=set)
    """Channels of the collectives in fusions that have run: a TPU's compiler spreads one over several."""

    def begin(self, identity: int, seconds: float) -> None:
        self.free_at = max(self.free_at, self.now) + seconds
        self.ends[identity] = self.free_at

    def wait_until(self, end: float) -> float:
        """Returns the seconds until then."""
        waited = max(0.0, end - self.now)
        self.now += waited
        return waited


@dataclass(frozen=True)
class _Walk:
    reader: Reader
    devices: int
    seconds_of: Callable[[Kernel], float] | None
    link_bytes: float

    def of(self, computation: int) -> Work:
        """Returns the work of a computation."""
        module = self.reader.module
        work, link = Work(), Link()
        for identity in module.schedule[computation]:
            self._run(module.instructions[identity], work, link)
        work.waited_seconds += link.wait_until(link.free_at)
        return work

    def _run(self, instruction: Any, work: Work, link: Link) -> None:
        """Adds the work of one instruction, and moves the link on by the time that it takes."""
        opcode = instruction.opcode

        # It sends, and waits for it unless it only begins.
        messages = self._messages(instruction, link)
        if messages:
            sent_bytes = sum(map(self._ring_bytes, messages))
            seconds = sent_bytes / self.link_bytes
            link.begin(instruction.id, seconds)
            work.sent_bytes += sent_bytes
            work.sending_seconds += seconds
            if not opcode.endswith("-start"):
                work.waited_seconds += link.wait_until(link.free_at)

        # It waits for what was begun.
        elif opcode.endswith("-done") and instruction.operand_ids[0] in link.ends:
            work.waited_seconds += link.wait_until(link.ends[instruction.operand_ids[0]])

        # It runs kernels.
        elif opcode in ("while", "call", "conditional", "async-start"):
            inner = self._called(instruction)
            work.add(inner)
            link.now += inner.kernel_seconds
        elif self.seconds_of is not None and (kernel := self.reader.kernel(instruction)):
            seconds = self.seconds_of(kernel)
            work.kernels[kernel] += 1
            work.kernel_seconds += seconds
            link.now += seconds

    def _called(self, instruction: Any) -> Work:
        """Returns the work of the computations that an instruction calls; of branches, of the longest."""
        works = [self.of(called) for called in self.reader.module.scheduled_calls(instruction.id)]
        if instruction.opcode == "conditional":
            return max(works, key=lambda branch: branch.kernel_seconds + branch.waited_seconds)
        whole = Work()
        times = 1
        if instruction.opcode == "while":  # its body, and a condition that is nothing beside it
            works = works[:1]
            times = self._rounds(instruction)
        for work in works:
            whole.add(work, times)
        return whole

    def _rounds(self, loop: Any) -> int:
        """Returns how often a loop runs, as far as the compiler knows; else 1."""
        known = configuration(loop).get("known_trip_count")
        if known:
            return int(known["n"])

        # Libtpu notes nothing: the counter goes from 0 to the constant in the condition.
        module = self.reader.module
        _, condition = loop.called_computation_ids
        literals = [module.instructions[each].literal for each in module.bodies[condition]]
        constants = [limit for literal in literals for limit in literal.s32s]
        return constants[0] if len(constants) == 1 else 1

    def _messages(self, instruction: Any, link: Link) -> list[Any]:
        """Returns the collectives that an instruction is, begins, or has inside, less those that have begun."""
        module = self.reader.module
        inside = [instruction]
        if instruction.opcode in ("async-start", "fusion"):
            bodies = [module.bodies[called] for called in instruction.called_computation_ids]
            inside = [module.instructions[identity] for body in bodies for identity in body]
        messages = [each for each in inside if each.opcode.removesuffix("-start") in COLLECTIVES]
        if instruction.opcode == "fusion":
            messages = [each for each in messages if each.channel_id not in link.in_fusions]
            link.in_fusions.update(each.channel_id for each in messages)
        return messages

    def _ring_bytes(self, collective: Any) -> float:
        """Returns the bytes that a device sends in a collective."""
        kind = collective.opcode.removesuffix("-start")
        operands = [self.reader.module.instructions[operand] for operand in collective.operand_ids]
        whole = float(sum(array_bytes(operand.shape) for operand in operands))
        if kind not in RING:
            return whole
        devices = self._together(collective)
        if kind == "all-gather":
            whole *= devices
        return RING[kind] * whole * (devices - 1) / devices

    def _together(self, collective: Any) -> int:
        """Returns how many devices take part in a collective; all of the module where it does not say."""
        groups = collective.collective_device_list.replica_groups
        if groups:
            return len(groups[0].replica_ids)
        over = collective.mesh_collective_device_list
        if over.axes:
            sizes = (axis.sub_axis.size or over.mesh.axes[axis.mesh_axis_index].size for axis in over.axes)
            return math.prod(sizes)
        return collective.iota_collective_device_list.num_devices_per_group or self.devices
