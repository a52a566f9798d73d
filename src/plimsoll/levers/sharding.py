"""Sharding: splits the batch over all devices, and with `fsdp` the state over groups of devices.

Devices form a mesh of `data` x `fsdp`. Every device works on its own rows of the batch. With `fsdp` 1 each device holds
the whole state, and only gradients are summed. With `fsdp` n a device holds an nth of parameters, gradients and
optimizer state, and a layer's weights are gathered while they are needed: fewer bytes for more traffic. Rajbhandari et
al. 2019, https://arxiv.org/abs/1910.02054 (stage 3); the partitioner: Xu et al. 2021,
https://arxiv.org/abs/2105.04663.

Leave `fsdp` at 1 if the state fits: gathering weights takes time. Outside a mesh these functions change nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from plimsoll.levers.eight_bit import BLOCK
from plimsoll.units import MIB

DATA, FSDP = "data", "fsdp"
ROWS = PartitionSpec((DATA, FSDP))
"""Split of the first axis over all devices."""
CARRY = "carry"
"""Entry of the training state that each example carries from step to step. Its leaves have a first axis of examples."""
SMALLEST_SPLIT = 2**16
"""Leaves with fewer elements are not split: splitting a norm's scale saves nothing and costs a transfer."""
ALIKE = 4
"""Largest ratio of two axes that count as similar in size, like width and hidden width of a layer. The number of
layers and the rank of an adapter are much smaller."""
ALIGNED = 64
"""Alignment in bytes that JAX on a CPU needs to use memory without a copy."""
TOGETHER_BYTES = 4 * MIB
"""Most bytes of leaves that one collective call sums. Between processes on CPUs each sum has up to 4 ms of overhead: an
idle thread of Gloo polls, and holds its core until the kernel's next tick (notes, 2026-11-27)."""


def mesh_of(devices: Sequence[Any], *, fsdp: int) -> Mesh:
    """Returns a mesh in which every group of `fsdp` neighbouring devices shares one copy of the state."""
    return Mesh(np.asarray(devices).reshape(-1, fsdp), (DATA, FSDP))


def leaf_spec(shape: Sequence[int], *, fsdp: int) -> PartitionSpec:
    """Returns the split of a leaf: along the largest axis that `fsdp` divides; none for a small leaf.

    Among axes of similar size it prefers one whose parts are whole quantisation blocks. Otherwise the leaf would be
    gathered for its update (optimizers/shards.py).
    """
    if fsdp == 1 or int(np.prod(shape)) < SMALLEST_SPLIT:
        return PartitionSpec()
    axes = [axis for axis, size in enumerate(shape) if size % fsdp == 0]
    if not axes:
        return PartitionSpec()
    alike = [axis for axis in axes if ALIKE * shape[axis] >= max(shape[axis] for axis in axes)]
    best = max(alike, key=lambda axis: (math.prod(shape[axis:]) // fsdp % BLOCK == 0, shape[axis], axis))
    return PartitionSpec(*(FSDP if axis == best else None for axis in range(len(shape))))


def state_specs(tree: Any, *, fsdp: int) -> Any:
    """Returns a PartitionSpec for every leaf (array or shape) of a state. Its entry CARRY is split by examples."""

    def spec(path: tuple, leaf: Any) -> PartitionSpec:
        carried = bool(path) and getattr(path[0], "key", None) == CARRY
        return ROWS if carried else leaf_spec(leaf.shape, fsdp=fsdp)

    return jax.tree_util.tree_map_with_path(spec, tree)


def shardings(mesh: Mesh, specs: Any) -> Any:
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


def with_shardings(shapes: Any, placed: Any) -> Any:
    """Returns `shapes` with the shardings `placed`, as arguments for lowering a function."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, placed
    )


def device_bytes(shapes: Any, *, fsdp: int) -> int:
    """Returns the bytes of a tree on one device. The tree must not include CARRY."""
    held = 0
    for leaf in jax.tree.leaves(shapes):
        split = fsdp if FSDP in leaf_spec(leaf.shape, fsdp=fsdp) else 1
        held += leaf.size * leaf.dtype.itemsize // split
    return held


def aligned_empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns an uninitialised array, aligned so that JAX on a CPU uses its memory without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED
    return room[start : start + size].view(dtype).reshape(shape)


def on_devices(values: np.ndarray, sharding: Sharding) -> Array:
    """Copies an array to devices, split by `sharding`. Processes do not communicate."""

    def part(index: Any) -> np.ndarray:
        piece = values[index]
        return piece if piece.size == values.size else piece.copy()  # a view would keep all of `values` in memory

    return jax.make_array_from_callback(values.shape, sharding, part)


def gathered(leaf: Any) -> Any:
    """Returns the complete array in this process. If it is split over processes, all of them must call this."""
    if isinstance(leaf, np.ndarray) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    from jax.experimental import multihost_utils  # imported here to save memory in a process that trains alone

    return multihost_utils.process_allgather(leaf, tiled=True)


def by_rows(x: Array, *, axis: int = 0) -> Array:
    """Keeps `x` split by examples, so that the partitioner gathers weights and not activations."""
    if not in_mesh():
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * axis, *rows_spec()))


def rows_spec() -> PartitionSpec:
    """Returns the split of an axis of examples: over all devices; inside `each_copy`, over those sharing one copy."""
    return PartitionSpec(FSDP) if DATA in jax.sharding.get_abstract_mesh().manual_axes else ROWS


def on_every_device(tree: Any) -> Any:
    """Gathers split arrays now, so that the partitioner does not gather a larger array that is computed from them."""
    if not in_mesh():
        return tree
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, PartitionSpec()), tree)


def row_parts() -> int:
    """Returns the number of devices over which `rows_spec` splits an axis of examples; 1 outside a mesh."""
    if not in_mesh():
        return 1
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[name] for name in _names(rows_spec()))


def _names(spec: PartitionSpec) -> list[str]:
    """Returns the names of the mesh axes in a spec."""
    return [name for names in spec for name in (names if isinstance(names, tuple) else (names,))]


def on_own_rows(function: Callable[..., Any], arguments: int, *, alike: int = 0) -> Callable[..., Any]:
    """Returns `function`, changed so that each device applies it to its own examples.

    The partitioner cannot split a chip's kernel, nor a branch that depends on the examples.

    Args:
        function: Function from arrays to an array, all with a first axis of examples.
        arguments: Number of these arguments.
        alike: Number of further arguments: arrays that are the same on all devices.
    """
    if not in_mesh():
        return function
    rows = rows_spec()
    specs = (rows,) * arguments + (PartitionSpec(),) * alike
    return jax.shard_map(function, axis_names=set(_names(rows)), in_specs=specs, out_specs=rows, check_vma=False)


def each_copy(function: Callable[[Any, Any], tuple[Any, Any]], whole: Any, split: Any) -> tuple[Any, Any]:
    """Applies `function(whole, split)` in each group of devices that shares a copy of the state, to its examples.

    Examples are the second axis of `split` and of the second result. The first result must be equal in all copies:
    `function` calls `over_copies` to sum over them.

    This guarantees that a loop over micro-batches sends nothing between copies, whatever the partitioner would choose.
    """
    if not in_mesh() or jax.sharding.get_abstract_mesh().shape[DATA] == 1:
        return function(whole, split)
    everything, rows = PartitionSpec(), PartitionSpec(None, DATA)
    spread = jax.shard_map(
        function, axis_names={DATA}, in_specs=(everything, rows), out_specs=(everything, rows), check_vma=False
    )
    return spread(whole, split)


def over_copies(tree: Any, *, in_few: bool = False) -> Any:
    """Returns the sum over the copies of the state. To be called inside `each_copy`; elsewhere returns the tree.

    Args:
        tree: Each copy's summand.
        in_few: Whether to sum leaves in groups of up to 4 MiB. Ignored if `fsdp` splits leaves.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if DATA not in mesh.manual_axes:
        return tree
    if not in_few or mesh.shape[FSDP] > 1:
        return jax.lax.psum(tree, DATA)
    leaves, form = jax.tree.flatten(tree)
    summed = list(leaves)
    for group in _sent_together(leaves):
        sums = jax.lax.psum(jnp.concatenate([leaves[at].reshape(-1) for at in group]), DATA)
        ends = np.cumsum([leaves[at].size for at in group])[:-1]
        for at, part in zip(group, jnp.split(sums, ends), strict=True):
            summed[at] = part.reshape(leaves[at].shape)
    return jax.tree.unflatten(form, summed)


def _sent_together(leaves: Sequence[Array]) -> list[list[int]]:
    """Returns groups of indices of leaves. A group has one dtype, and at most TOGETHER_BYTES unless it is one leaf."""
    groups: list[list[int]] = []
    latest: dict[Any, tuple[list[int], int]] = {}
    for number, leaf in enumerate(leaves):
        size = leaf.size * leaf.dtype.itemsize
        group, held = latest.get(leaf.dtype, ([], 0))
        if not group or held + size > TOGETHER_BYTES:
            group, held = [], 0
            groups.append(group)
        group.append(number)
        latest[leaf.dtype] = (group, held + size)
    return groups


def in_micro_batches(x: Array, accumulation: int) -> Array:
    """Splits (examples, ...) into (micro-batches, examples, ...).

    In a mesh each micro-batch takes some examples of every device, so that no example moves. Sums over micro-batches
    stay the same.
    """
    if not in_mesh():
        return x.reshape(accumulation, -1, *x.shape[1:])
    devices = jax.sharding.get_abstract_mesh().size
    of_devices = x.reshape(devices, accumulation, -1, *x.shape[1:])
    return by_rows(of_devices.swapaxes(0, 1).reshape(accumulation, -1, *x.shape[1:]), axis=1)


def joined(x: Array) -> Array:
    """Reverses `in_micro_batches`."""
    if not in_mesh():
        return x.reshape(-1, *x.shape[2:])
    devices = jax.sharding.get_abstract_mesh().size
    of_devices = x.reshape(x.shape[0], devices, -1, *x.shape[2:])
    return by_rows(of_devices.swapaxes(0, 1).reshape(-1, *x.shape[2:]))


def like_state(tree: Any) -> Any:
    """Constrains gradients and their sums to the same sharding as the parameters."""
    if not in_mesh():
        return tree
    fsdp = jax.sharding.get_abstract_mesh().shape[FSDP]
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, leaf_spec(leaf.shape, fsdp=fsdp)), tree)


def in_mesh() -> bool:
    """Returns True if the partitioner splits the traced code over devices; False inside `on_own_rows`."""
    mesh = jax.sharding.get_abstract_mesh()
    return FSDP in mesh.axis_names and FSDP not in mesh.manual_axes
