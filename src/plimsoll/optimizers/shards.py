"""Where a leaf is split over devices, each updates what it holds, in its own blocks.

The partitioner does not know that: it would gather the leaf to cut pieces from it. A block of 64 elements lies on one
device, so scales, random numbers and results do not depend on how many there are.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax.sharding import PartitionSpec

from plimsoll.levers.eight_bit import BLOCK
from plimsoll.levers.sharding import FSDP, in_mesh, leaf_spec


class Split(NamedTuple):
    """How a leaf lies: along one axis in `parts`, seen as (outer, row) with `row` elements from that axis on."""

    spec: PartitionSpec
    parts: int
    outer: int
    row: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> "Split":
        """As levers/sharding.py splits it. Shards that are not whole blocks count as not split: they are gathered."""
        whole = cls(PartitionSpec(), 1, 1, math.prod(shape))
        if not in_mesh():
            return whole
        parts = jax.sharding.get_abstract_mesh().shape[FSDP]
        spec = leaf_spec(shape, fsdp=parts)
        if FSDP not in spec:
            return whole
        axis = tuple(spec).index(FSDP)
        row = math.prod(shape[axis:])
        return whole if row // parts % BLOCK else cls(spec, parts, math.prod(shape[:axis]), row)

    def over_shards(
        self, function: Callable[[Any, Any, Array], tuple[Any, Array]], changed: Any, read: Any, token: Array
    ) -> tuple[Any, Array]:
        """`function(changed, read, token)` on every device, with its own part of the leaf and of the scales."""
        if self.parts == 1:
            return function(changed, read, token)
        size = self.outer * self.row
        scales = PartitionSpec(None, FSDP)

        def rows(x: Array) -> Array:  # the flat scales, so that each device's are a part of each row
            return x if x.size == size else x.reshape(self.outer, self.row // BLOCK)

        changed_rows, read_rows = jax.tree.map(rows, (changed, read))
        specs = jax.tree.map(lambda x: self.spec if x.size == size else scales, (changed_rows, read_rows))
        spread = jax.shard_map(
            function, in_specs=(*specs, PartitionSpec()), out_specs=(specs[0], PartitionSpec()), check_vma=False
        )
        new, token = spread(changed_rows, read_rows, token)
        return jax.tree.map(lambda x, was: x.reshape(was.shape), new, changed), token

    def block_numbers(self, held: Array) -> Array:
        """Of blocks as a device counts what it holds, their numbers in the whole leaf."""
        if self.parts == 1:
            return held
        here = self.row // BLOCK // self.parts
        return held // here * (here * self.parts) + lax.axis_index(FSDP) * here + held % here
