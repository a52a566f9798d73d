"""What a device sends to the others in a compiled step, and on GPUs for how long kernels run beside it.

By the compiled module's schedule: what is sent goes from its `-start` to its `-done`, one after another over one link,
and the kernels between the two run meanwhile. Where the next kernel needs what is still under way, the device waits.
The body of a loop counts as often as the compiler knows it to run, and nothing is under way from one round to the next.
Bytes are those of a ring, per device: (n-1)/n of what n devices gather or scatter, twice that of what they sum (Thakur
et al. 2005, https://doi.org/10.1177/1094342005051521).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from plimsoll.planner.hlo.kernels import FREE, SENT, Kernel, Reader, array_bytes, trips
from plimsoll.planner.hlo.module import Module

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Bytes that one device sends in a step, and the seconds of it."""

    sent_bytes: float = 0.0
    seconds: float = 0.0
    """Seconds that it sends, by the rate of its links."""
    waited_seconds: float = 0.0
    """Part of them in which no kernel runs."""
    kernel_seconds: float = 0.0
    """Seconds of the kernels, those beside it and all others."""

    @property
    def hidden_share(self) -> float:
        """Part of the time of sending in which kernels run, 0 to 1; 0 where nothing is sent."""
        return 1 - self.waited_seconds / self.seconds if self.seconds else 0.0

    def and_then(self, other: Sent, times: int = 1) -> Sent:
        return Sent(
            sent_bytes=self.sent_bytes + times * other.sent_bytes,
            seconds=self.seconds + times * other.seconds,
            waited_seconds=self.waited_seconds + times * other.waited_seconds,
            kernel_seconds=self.kernel_seconds + times * other.kernel_seconds,
        )


def sent(module: Module, *, devices: int, seconds_of: Callable[[Kernel], float], link_bytes: float) -> Sent:
    """Returns what a device sends in one call of a scheduled module.

    Args:
        module: As compiled for several GPUs.
        devices: Number of them.
        seconds_of: Function from a kernel to the seconds that it takes.
        link_bytes: Bytes that a device sends to the others in a second.
    """
    return _Walk(Reader(module), devices, seconds_of, link_bytes).of(module.entry)


def sent_bytes(module: Module, *, devices: int) -> float:
    """Returns the bytes that a device sends in one call of a module that was scheduled for TPUs.

    What the compiler has put into one fusion with a collective (`async_collective_fusion`) lies in several fusions, and
    is sent once.
    """
    return _bytes_of(_Walk(Reader(module), devices, lambda _kernel: 0.0, 1.0), module.entry)


def _bytes_of(walk: _Walk, computation: int) -> float:
    module = walk.reader.module
    total = 0.0
    in_fusions: dict[int, float] = {}
    """Bytes of collectives inside fusions, by their channel."""
    for identity in module.schedule[computation]:
        instruction = module.instructions[identity]
        if (carried := walk.collective(instruction)) is not None:
            total += carried
        elif instruction.opcode == "fusion":
            for body in instruction.called_computation_ids:
                for inside in map(module.instructions.__getitem__, module.bodies[body]):
                    if (carried := walk.collective(inside)) is not None:
                        in_fusions[inside.channel_id or inside.id] = carried
        elif instruction.opcode in ("while", "call", "conditional") and (called := module.scheduled_calls(identity)):
            # Of branches, the first: they differ in what is computed.
            rounds = _rounds(module, instruction) if instruction.opcode == "while" else 1
            total += rounds * _bytes_of(walk, called[0])
    return total + sum(in_fusions.values())


def _rounds(module: Module, loop: Any) -> int:
    """Returns how often a loop runs: where the compiler has noted nothing, its counter goes from 0 to a constant."""
    if (known := trips(loop)) > 1 or len(loop.called_computation_ids) < 2:
        return known
    condition = (module.instructions[each] for each in module.bodies[loop.called_computation_ids[1]])
    constants = [limit for each in condition if each.opcode == "constant" for limit in each.literal.s32s]
    return constants[0] if len(constants) == 1 else 1


class Link:
    """What is under way to other devices, one message after another."""

    def __init__(self) -> None:
        self.under_way: deque[list[Any]] = deque()
        """Instructions that have begun to send, each with the seconds that it still needs."""

    def begin(self, identity: int, seconds: float) -> None:
        self.under_way.append([identity, seconds])

    def run_beside(self, seconds: float) -> None:
        """Lets kernels run for so long."""
        while self.under_way and seconds > 0:
            first = self.under_way[0]
            taken = min(seconds, first[1])
            first[1] -= taken
            seconds -= taken
            if first[1] <= 0:
                self.under_way.popleft()

    def wait_for(self, identity: int) -> float:
        """Returns the seconds until an instruction's message has been sent, and what was before it."""
        waited = 0.0
        while any(message[0] == identity for message in self.under_way):
            waited += self.under_way.popleft()[1]
        return waited

    def wait_for_all(self) -> float:
        return sum(seconds for _, seconds in self.under_way)


@dataclass(frozen=True)
class _Walk:
    reader: Reader
    devices: int
    seconds_of: Callable[[Kernel], float]
    link_bytes: float

    def of(self, computation: int) -> Sent:
        """Returns what is sent in a computation, in the order in which its instructions run."""
        module = self.reader.module
        link = Link()
        whole = Sent()
        for identity in module.schedule[computation]:
            whole = whole.and_then(self._step(module.instructions[identity], link))
        return whole.and_then(Sent(waited_seconds=link.wait_for_all()))

    def _step(self, instruction: Any, link: Link) -> Sent:
        """Returns what one instruction adds, and moves the link on by the time that it takes."""
        opcode = instruction.opcode

        # It sends, and waits for it unless it only begins.
        carried = self.collective(instruction)
        if carried is not None:
            seconds = carried / self.link_bytes
            link.begin(instruction.id, seconds)
            waited = 0.0 if opcode.endswith("-start") else link.wait_for(instruction.id)
            return Sent(sent_bytes=carried, seconds=seconds, waited_seconds=waited)

        # It waits for what was begun.
        if opcode.endswith("-done") and instruction.operand_ids:
            return Sent(waited_seconds=link.wait_for(instruction.operand_ids[0]))

        # It runs kernels.
        if opcode in ("while", "call", "conditional", "async-start"):
            inner = self._called(instruction)
            link.run_beside(inner.kernel_seconds)
            return inner
        if opcode in FREE or opcode.startswith(SENT):
            return Sent()
        kernel = self.reader.kernel(instruction)
        seconds = self.seconds_of(kernel) if kernel else 0.0
        link.run_beside(seconds)
        return Sent(kernel_seconds=seconds)

    def _called(self, instruction: Any) -> Sent:
        """Returns what is sent in the computations that an instruction calls; of branches, in the longest."""
        each = [self.of(called) for called in self.reader.module.scheduled_calls(instruction.id)]
        if instruction.opcode == "while":
            return Sent().and_then(each[0], times=trips(instruction)) if each else Sent()
        if instruction.opcode == "conditional":
            return max(each, key=lambda branch: branch.kernel_seconds + branch.waited_seconds, default=Sent())
        return reduce(Sent.and_then, each, Sent())

    def collective(self, instruction: Any) -> float | None:
        """Returns the bytes that a device sends in a collective, or in one that it starts; None of any other."""
        opcode = instruction.opcode
        if opcode == "async-start":
            bodies = (self.reader.module.bodies[called] for called in instruction.called_computation_ids)
            inside = (self.reader.module.instructions[identity] for body in bodies for identity in body)
            return next((found for each in inside if (found := self.collective(each)) is not None), None)
        kind = opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            return None
        devices = self._together(instruction)
        given = sum(array_bytes(self.reader.module.instructions[operand].shape) for operand in instruction.operand_ids)
        if kind in ("collective-permute", "collective-broadcast"):
            return float(given)
        share = (devices - 1) / devices
        whole = given * devices if kind == "all-gather" else given
        return (2 if kind == "all-reduce" else 1) * share * whole

    def _together(self, instruction: Any) -> int:
        """Returns how many devices take part in a collective; all of the module where it does not say."""
        if groups := instruction.collective_device_list.replica_groups:
            return len(groups[0].replica_ids)
        over = instruction.mesh_collective_device_list
        if over.axes:
            sizes = (axis.sub_axis.size or over.mesh.axes[axis.mesh_axis_index].size for axis in over.axes)
            return math.prod(sizes)
        return instruction.iota_collective_device_list.num_devices_per_group or self.devices
