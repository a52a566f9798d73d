"""Work of one device in a compiled step: its kernels, the bytes that it sends to others, and the time that it waits.

Instructions run in the order of the module's schedule. A transfer lasts from its `-start` to its `-done`. Transfers use
one link, one after another, while the kernels between `-start` and `-done` run. A device waits at a `-done` whose
transfer is not complete. The body of a loop counts once for each round, and no transfer lasts beyond a round. Of
branches, the longest counts. A collective is a ring: each of n devices sends (n-1)/n of the bytes that are gathered or
scattered, and twice that for a sum (Thakur et al. 2005, https://doi.org/10.1177/1094342005051521).
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
"""Bytes that each of n devices in a ring sends, as a multiple of (n-1)/n of the data, by collective."""
COLLECTIVES = (*RING, "collective-permute", "collective-broadcast")


@dataclass
class Work:
    """Work of a device in a computation, or in a whole step."""

    kernels: Counter[Kernel] = field(default_factory=Counter)
    """Number of runs of each kernel."""
    kernel_seconds: float = 0.0
    sent_bytes: float = 0.0
    sending_seconds: float = 0.0
    """Seconds of sending, from the rate of the device's links."""
    waited_seconds: float = 0.0
    """Seconds of sending in which no kernel runs."""

    @property
    def hidden_share(self) -> float:
        """Share of the sending time in which kernels run, from 0 to 1; 0 if nothing is sent."""
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
    """Returns the work of one device in one call of a scheduled module.

    Args:
        module: Module compiled for GPUs or TPUs.
        devices: Number of devices.
        seconds_of: Function from a kernel to its seconds; None to leave kernels out, as for a TPU.
        link_bytes: Bytes per second that a device sends to the others.
    """
    return _Walk(Reader(module), devices, seconds_of, link_bytes).of(module.entry)


@dataclass
class Link:
    """Transfers of a computation to other devices, one after another, with a clock in seconds."""

    now: float = 0.0
    free_at: float = 0.0
    """Time at which all transfers so far will be complete."""
    ends: dict[int, float] = field(default_factory=dict)
    """Time at which each transfer will be complete, by the id of the instruction that started it."""
    in_fusions: set[int] = field(default_factory=set)
    """Channels of collectives already counted, since a TPU's compiler spreads one collective over several fusions."""

    def begin(self, identity: int, seconds: float) -> None:
        self.free_at = max(self.free_at, self.now) + seconds
        self.ends[identity] = self.free_at

    def wait_until(self, end: float) -> float:
        """Moves the clock on to `end`, and returns the seconds waited."""
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
        """Adds the work of one instruction, and moves the link's clock on by its seconds."""
        opcode = instruction.opcode

        # The instruction sends. Unless it is a `-start`, the device waits until everything is sent.
        messages = self._messages(instruction, link)
        if messages:
            sent_bytes = sum(map(self._ring_bytes, messages))
            seconds = sent_bytes / self.link_bytes
            link.begin(instruction.id, seconds)
            work.sent_bytes += sent_bytes
            work.sending_seconds += seconds
            if not opcode.endswith("-start"):
                work.waited_seconds += link.wait_until(link.free_at)

        # The instruction waits for a transfer that a `-start` began.
        elif opcode.endswith("-done") and instruction.operand_ids[0] in link.ends:
            work.waited_seconds += link.wait_until(link.ends[instruction.operand_ids[0]])

        # The instruction runs a computation, or a kernel.
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
        """Returns the work of the computations that an instruction calls; for branches, that of the longest."""
        works = [self.of(called) for called in self.reader.module.scheduled_calls(instruction.id)]
        if instruction.opcode == "conditional":
            return max(works, key=lambda branch: branch.kernel_seconds + branch.waited_seconds)
        whole = Work()
        times = 1
        if instruction.opcode == "while":  # the body; the condition is negligible
            works = works[:1]
            times = self._rounds(instruction)
        for work in works:
            whole.add(work, times)
        return whole

    def _rounds(self, loop: Any) -> int:
        """Returns the number of rounds of a loop; 1 if it is unknown."""
        known = configuration(loop).get("known_trip_count")
        if known:
            return int(known["n"])

        # libtpu keeps no trip count. The loop's counter runs from 0 to the constant in the condition.
        module = self.reader.module
        _, condition = loop.called_computation_ids
        literals = [module.instructions[each].literal for each in module.bodies[condition]]
        constants = [limit for literal in literals for limit in literal.s32s]
        return constants[0] if len(constants) == 1 else 1

    def _messages(self, instruction: Any, link: Link) -> list[Any]:
        """Returns the collectives that an instruction or its computation starts, without those of earlier fusions."""
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
        """Returns the bytes that one device sends in a collective."""
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
        """Returns the number of devices in a collective's group; all devices of the module if it names no group."""
        groups = collective.collective_device_list.replica_groups
        if groups:
            return len(groups[0].replica_ids)
        over = collective.mesh_collective_device_list
        if over.axes:
            sizes = (axis.sub_axis.size or over.mesh.axes[axis.mesh_axis_index].size for axis in over.axes)
            return math.prod(sizes)
        return collective.iota_collective_device_list.num_devices_per_group or self.devices
