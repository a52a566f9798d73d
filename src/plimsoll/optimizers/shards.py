"""Updates of leaves that are split over devices: each device updates its own part.

XLA's partitioner would gather a leaf to cut pieces from it. Each block of 64 elements is on one device, so scales,
random numbers and results do not depend on the number of devices.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax.sharding import PartitionSpec

from plimsoll.levers.eight_bit import BLOCK
from plimsoll.levers.sharding import FSDP, in_mesh, leaf_spec


def on_own_part(function: Callable[[Any, Array], Any], changed: Any, read: Array) -> Any:
    """Applies `function(changed, read)` on every device to its own part of the arrays, which have one shape."""
    if not in_mesh():
        return function(changed, read)
    spec = leaf_spec(read.shape, fsdp=jax.sharding.get_abstract_mesh().shape[FSDP])
    return jax.shard_map(function, in_specs=(spec, spec), out_specs=spec, check_vma=False)(changed, read)


class Split(NamedTuple):
    """Split of a leaf into `parts` along an axis. `outer` is the size of earlier axes, `row` of this and later axes."""

    spec: PartitionSpec
    parts: int
    outer: int
    row: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> "Split":
        """Returns the split that levers/sharding.py gives a leaf of this shape.

        A leaf whose parts are not whole blocks of 64 counts as not split, and is gathered.
        """
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
        """Applies `function(changed, read, token)` on every device to its own part of the leaf and of its scales."""
        if self.parts == 1:
            return function(changed, read, token)
        size = self.outer * self.row
        scales = PartitionSpec(None, FSDP)

        def rows(x: Array) -> Array:  # flat scales become rows, so that each device has a part of each row
            return x if x.size == size else x.reshape(self.outer, self.row // BLOCK)

        changed_rows, read_rows = jax.tree.map(rows, (changed, read))
        specs = jax.tree.map(lambda x: self.spec if x.size == size else scales, (changed_rows, read_rows))
        sharded = jax.shard_map(
            function, in_specs=(*specs, PartitionSpec()), out_specs=(specs[0], PartitionSpec()), check_vma=False
        )
        new, token = sharded(changed_rows, read_rows, token)
        return jax.tree.map(lambda x, was: x.reshape(was.shape), new, changed), token

    def block_numbers(self, held: Array) -> Array:
        """Returns the indices of blocks in the whole leaf, from their indices `held` in the device's part."""
        if self.parts == 1:
            return held
        per_device = self.row // BLOCK // self.parts
        return held // per_device * (per_device * self.parts) + lax.axis_index(FSDP) * per_device + held % per_device
