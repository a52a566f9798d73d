"""Offload: optimizer state and frozen weights lie in the host's memory, and are fetched to the device in pieces.

The optimizer state includes the EMA of the weights if it is kept in float32. An evaluation fetches all of it.

AdamW keeps 8 bytes for each weight and reads them once a step. In pinned host memory they cost the device only the
pieces in transfer: a layer of a stacked leaf, or as many rows as make `PIECE` elements. A loop fetches, changes and
sends back one piece at a time. Without the loop nothing would be saved: the compilers for GPUs and TPUs fetch all
complete leaves first (notes, "Offload"). Ren et al. 2021, ZeRO-Offload, https://arxiv.org/abs/2101.06840, section 4,
update on the host; here the device updates.

Price: the state crosses the link to the host twice a step. Leave it off if the state fits. On a CPU, whose memory is
the host's, plans refuse it. The results are those of an update without offload.

Frozen weights can be offloaded, too, if they are stacks of layers. Each dot fetches its kernel inside the loop over
layers (`levers.frozen.widened`), and again in the backward pass. Price: they cross the link twice a micro-batch.

The type of a traced array has its memory (`float32<host>`), so the same functions update a state on the device.
`memory_kinds` returns the memory of each leaf of a state, and `over_host_pieces` is the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from plimsoll.levers.records.offload import OFFLOADED
from plimsoll.levers.sharding import device_bytes
from plimsoll.types import Offload

DEVICE, HOST = "device", "pinned_host"
"""JAX's memory kinds. A device copies from pinned memory without the operating system."""
SMALLEST_MOVED = 2**14
"""Leaves with fewer elements stay on the device, like a step's number and the moments of a norm."""
STACKED = 3
"""Number of axes of a stack of matrices, whose first axis counts layers."""
PIECE = 2**22
"""Most elements of a piece, unless one row is larger: 16 MiB of float32, a quarter of a millisecond on PCIe 5."""


TILE = 8
"""Rows of a tile in a TPU's memory. A piece of a matrix must be whole tiles: libtpu 0.0.42 aborts on the last piece of
50,257 rows, but compiles 50,304."""


def memory_kinds(state: Any, offload: Offload) -> Any:
    """Returns DEVICE or HOST for every leaf of a state, whose leaves are arrays or shapes."""

    def kind(path: tuple, leaf: Any) -> str:
        return HOST if _part(path, leaf) in OFFLOADED[offload] else DEVICE

    return jax.tree_util.tree_map_with_path(kind, state)


def movable_bytes(state: Any, *, fsdp: int = 1) -> dict[str, int]:
    """Returns, by part of the state, the bytes of one device's share (1/`fsdp`) that can be placed on the host."""
    parts = dict.fromkeys(OFFLOADED["all"], 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if (part := _part(path, leaf)) is not None:
            parts[part] += device_bytes(leaf, fsdp=fsdp)
    return parts


def _part(path: tuple, leaf: Any) -> str | None:
    """Returns the name of the part of the state with which a leaf is moved; None if it always stays on the device.

    Of frozen weights, only stacks of layers are moved: any other matrix is read as a whole by a dot.
    """
    entry, *rest = (str(getattr(each, "key", each)) for each in path)
    if leaf.size < SMALLEST_MOVED:
        return None
    if entry == "params":
        return "frozen" if rest[:1] == ["frozen"] and leaf.ndim >= STACKED else None
    return entry if entry in OFFLOADED["optimizer"] and leaf.dtype == "float32" else None


def placed(state: Any, offload: Offload, mesh: Mesh | AbstractMesh, specs: Any = None) -> Any:
    """Returns a sharding with a memory kind for every leaf.

    Args:
        state: State of arrays or shapes.
        offload: Parts that lie on the host.
        mesh: Mesh. An abstract one (`mesh.abstract_mesh`, under `jax.set_mesh(mesh)`) keeps the memory kinds if the
            compiler's device has no memories, like NVIDIA's compiler without a card.
        specs: PartitionSpecs from `sharding.state_specs`; None if no leaf is split over devices.
    """
    kinds = memory_kinds(state, offload)
    specs = jax.tree.map(lambda _: PartitionSpec(), state) if specs is None else specs
    return jax.tree.map(lambda kind, spec: NamedSharding(mesh, spec, memory_kind=kind), kinds, specs)


def on_host(x: Any) -> bool:
    return jax.typeof(x).memory_space == jax.memory.Space.Host


def fetched(tree: Any) -> Any:
    """Returns the tree with every leaf on the device."""
    return jax.tree.map(lambda x: jax.device_put(x, jax.memory.Space.Device) if on_host(x) else x, tree)


def over_host_pieces(change: Callable[[Any, Any], Any], changed: Any, read: Any, *, piece: int = PIECE) -> Any:
    """Applies `change(changed, read)` to a few rows at a time, and returns the new `changed`.

    `changed` and `read` are pytrees of arrays with the same first axis, and `change` must treat every row alone. It
    receives rows on the device. Leaves of `changed` on the host are sent back piece by piece.
    """
    largest = max(jax.tree.leaves(changed), key=lambda leaf: leaf.size)
    rows = largest.shape[0]
    many = max(1, min(piece * rows // largest.size, rows // 2))  # two rounds at least: XLA removes a loop of one
    if largest.ndim < 3:  # rows of a matrix lie in tiles
        many = max(TILE, many // TILE * TILE)
    many = min(rows, many)

    def update_piece(start: Any, count: int, changed: Any) -> Any:
        def rows_of(x: Array) -> Array:
            cut = lax.dynamic_slice_in_dim(x, start, count)
            return jax.device_put(cut, jax.memory.Space.Device) if on_host(x) else cut

        def written(x: Array, new: Array) -> Array:
            new = jax.device_put(new, jax.memory.Space.Host) if on_host(x) else new
            return lax.dynamic_update_slice_in_dim(x, new, start, 0)

        return jax.tree.map(written, changed, change(jax.tree.map(rows_of, changed), jax.tree.map(rows_of, read)))

    pieces, left = divmod(rows, many)
    changed = lax.fori_loop(0, pieces, lambda i, changed: update_piece(i * many, many, changed), changed)
    return update_piece(rows - left, left, changed) if left else changed
