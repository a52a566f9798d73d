"""Offload: optimizer state, or frozen weights, lie in the host's memory, and are on the device a piece at a time.

So does the average of the weights, where one is kept in float32; an evaluation fetches it whole.

AdamW keeps 8 bytes for each weight and reads them once a step. In pinned host memory they cost the device nothing but
the pieces that are on their way: a layer of a stacked leaf, or as many rows as make `PIECE` elements. Each is fetched,
changed and sent back inside a loop. Without the loop it would be for nothing: given whole leaves to fetch, the
compilers for GPUs and TPUs fetch all of them first (notes, "Offload"). Ren et al. 2021, ZeRO-Offload,
https://arxiv.org/abs/2101.06840, section 4; there the update itself is made on the host, here on the device.

Price: the state over the link to the host twice a step, down and up. Leave it off where the state fits, and on a CPU,
where the host's memory is the device's: it is refused there. The numbers are those of the whole update.

Frozen weights can lie there, too: stacks of layers, of which each dot fetches its own kernel (`levers.frozen.widened`),
inside the loop over layers and again in the backward pass. Price: all of them over the link twice a micro-batch.

What lies where is in the types (`float32<host>`): a function of arrays sees it, and a state that lies on the device is
updated as ever. `memory_kinds` says it for a state, of whatever leaves it has; `over_host_pieces` is the loop.
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
"""JAX's memory kinds. Pinned: a device copies from it without asking the operating system."""
SMALLEST_MOVED = 2**14
"""Elements below which a leaf stays on the device: a step's number, a norm's moments."""
STACKED = 3
"""Axes of a stack of matrices: the first is that of layers."""
PIECE = 2**22
"""Elements of a piece, at most, where a row is not larger: 16 MiB of float32, a quarter of a millisecond of PCIe 5."""


TILE = 8
"""Rows that lie together on a TPU. Its compiler (libtpu 0.0.42) aborts on a piece of a matrix that is not whole tiles:
on the last one of 50,257 rows, not of 50,304."""


def memory_kinds(state: Any, offload: Offload) -> Any:
    """Returns DEVICE or HOST for every leaf of a state, of arrays or of shapes."""

    def kind(path: tuple, leaf: Any) -> str:
        return HOST if _part(path, leaf) in OFFLOADED[offload] else DEVICE

    return jax.tree_util.tree_map_with_path(kind, state)


def movable_bytes(state: Any, *, fsdp: int = 1) -> dict[str, int]:
    """Returns the bytes of one device's share of each part in `OFFLOADED` that can be placed on the host."""
    parts = dict.fromkeys(OFFLOADED["all"], 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if (part := _part(path, leaf)) is not None:
            parts[part] += device_bytes(leaf, fsdp=fsdp)
    return parts


def _part(path: tuple, leaf: Any) -> str | None:
    """Returns the part of the state that a leaf may be moved with; None where it stays on the device.

    Of frozen weights, stacks of layers: other matrices are read whole, and would be on the device as a whole.
    """
    entry, *rest = (str(getattr(each, "key", each)) for each in path)
    if leaf.size < SMALLEST_MOVED:
        return None
    if entry == "params":
        return "frozen" if rest[:1] == ["frozen"] and leaf.ndim >= STACKED else None
    return entry if entry in OFFLOADED["optimizer"] and leaf.dtype == "float32" else None


def placed(state: Any, offload: Offload, mesh: Mesh | AbstractMesh, specs: Any = None) -> Any:
    """Returns a sharding with its memory kind for every leaf; `specs` as `sharding.state_specs` makes them, else whole.

    On an abstract mesh (`mesh.abstract_mesh`, under `jax.set_mesh(mesh)`) the kinds survive where a compiler's device
    has no memories of its own to name: NVIDIA's, without a card.
    """
    kinds = memory_kinds(state, offload)
    specs = jax.tree.map(lambda _: PartitionSpec(), state) if specs is None else specs
    return jax.tree.map(lambda kind, spec: NamedSharding(mesh, spec, memory_kind=kind), kinds, specs)


def on_host(x: Any) -> bool:
    return jax.typeof(x).memory_space == jax.memory.Space.Host


def fetched(tree: Any) -> Any:
    """Returns the tree with all of it on the device."""
    return jax.tree.map(lambda x: jax.device_put(x, jax.memory.Space.Device) if on_host(x) else x, tree)


def over_host_pieces(change: Callable[[Any, Any], Any], changed: Any, read: Any, *, piece: int = PIECE) -> Any:
    """Applies `change(changed, read)` to an equal number of rows of all of them at a time, and writes over `changed`.

    `changed` and `read` are pytrees of arrays with the same first axis; `change` must not look beyond a row. It sees
    them on the device. What of `changed` lies on the host goes back there, and is never on the device as a whole.
    """
    largest = max(jax.tree.leaves(changed), key=lambda leaf: leaf.size)
    rows = largest.shape[0]
    many = max(1, min(piece * rows // largest.size, rows // 2))  # a loop of one round is none, and leaves run together
    if largest.ndim < 3:  # its rows are not layers but lie in tiles
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
