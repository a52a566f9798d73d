"""Leaves of a state that cross between the first process of a run and the others, where only the first sees its folder.

The parts of a leaf go over connections of their own: nothing is compiled for them, and no process but the first one
holds more than its devices do.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import jax
import numpy as np

from plimsoll.levers.sharding import aligned_empty, unaligned_empty
from plimsoll.processes.connections import Connection, Port, breaking, connect
from plimsoll.training import distributed
from plimsoll.training.saved_arrays import Part, holders, part_of, size_of

_numbers = itertools.count()


class Crossing:
    """One save or one reading. All processes pass the same leaves in the same order; `close` it afterwards.

    Its connections are of its own: those that stay open, with nothing to send, are cut by firewalls.
    """

    def __init__(self) -> None:
        self._name = f"crossing-{next(_numbers)}"
        self._connections: dict[int, Connection] = {}
        """By the number of the other process."""

    def connect(self) -> None:
        """Connects all processes, which ask for it at once; else the first leaf that crosses does.

        Raises RunError where one is not reached.
        """
        if self._connections:
            return
        board, process = distributed.Board(), distributed.process()
        if process:
            self._connections = {0: connect(board.host, board.read(self._name), process)}
            board.write(f"{self._name}-{process}", True)
            return
        others = range(1, distributed.processes())
        with contextlib.closing(Port(len(others))) as port:
            board.write(self._name, port.address)
            for other in others:
                board.read(f"{self._name}-{other}")
            self._connections = port.accepted(others)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def on_first(self, leaf: Any) -> np.ndarray | None:
        """Returns the whole of an array on the first process, to which the others send what it lacks; None on those."""
        process = distributed.process()
        if isinstance(leaf, np.ndarray) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return None if process else np.asarray(leaf)
        held = {part_of(shard.index, leaf.shape): shard.data for shard in leaf.addressable_shards}
        whole = None if process else aligned_empty(leaf.shape, leaf.dtype)
        parts = [(part, min(processes)) for part, processes in holders(leaf)]
        if any(sender for _, sender in parts):
            self.connect()  # those that send nothing, too: the first waits for all
        for part, sender in parts:
            if whole is None:
                if sender == process:
                    self._send(0, np.asarray(held[part]))
            elif sender == 0:
                whole[_slices(part)] = held[part]
            else:
                self._receive(sender, whole[_slices(part)])
        return whole

    def from_first(self, values: np.ndarray | None, like: Any) -> jax.Array:
        """Returns the first process's array, bit for bit, with the shape and sharding of `like`.

        Args:
            values: The whole array in the first process, as it was read from a checkpoint, None in the others.
            like: What has its shape, dtype and sharding.

        Returns:
            The array, in memory of JAX's own, so that it can be donated.
        """
        self.connect()
        process, own = distributed.process(), dict[Part, np.ndarray]()
        for part, processes in holders(like):
            if values is not None:
                of_part = values[_slices(part)]
                for other in sorted(processes - {0}):
                    self._send(other, of_part)
                if process in processes:
                    own[part] = values if of_part.size == values.size else _unaligned(of_part)
            elif process in processes:
                own[part] = unaligned_empty(size_of(part), like.dtype)
                self._receive(0, own[part])

        def of(index: Any) -> np.ndarray:
            return own[part_of(index, like.shape)]

        return jax.block_until_ready(jax.make_array_from_callback(like.shape, like.sharding, of))

    def _send(self, process: int, values: np.ndarray) -> None:
        with breaking(process):
            self._connections[process].send(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def _receive(self, process: int, out: np.ndarray) -> None:
        received = out if out.flags.c_contiguous else np.empty_like(out, order="C")
        with breaking(process):
            self._connections[process].receive_into(received.reshape(-1).view(np.uint8).data)
        if received is not out:
            out[...] = received


def _unaligned(values: np.ndarray) -> np.ndarray:
    """Returns a copy that JAX copies, too: it would keep a whole array with a view of it."""
    copy = unaligned_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def _slices(part: Part) -> tuple[slice, ...]:
    return tuple(slice(*each) for each in part)
