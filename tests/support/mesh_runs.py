"""Run by test_mesh in a process of its own with eight CPU devices: every recipe, on one of them and on all.

`python mesh_runs.py NAME...` prints, for each recipe, how far the parameters are apart, what each device holds, and how
often the compiled step sums over devices.
"""

import json
import math
import re
import sys
from collections import Counter
from functools import partial
from unittest import mock

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)  # as in conftest.py

from plimsoll.engine.program import lowered  # noqa: E402
from plimsoll.levers import offload, sharding  # noqa: E402
from plimsoll.models.pretrained.safetensors_folder import Tensor  # noqa: E402
from plimsoll.models.pretrained.weights import load  # noqa: E402
from plimsoll.planned import Plan  # noqa: E402
from plimsoll.training import initial_weights  # noqa: E402
from plimsoll.training.program import compiled, held_bytes, tree_bytes  # noqa: E402
from plimsoll.types import Levers, StepOptions  # noqa: E402
from small_tasks import relative_distance  # noqa: E402
from task_examples import OWN, RECIPES, random_batch  # noqa: E402

sharding.SMALLEST_SPLIT = offload.SMALLEST_MOVED = 256  # leaves of a test's size are split, and moved, too
CALM = {"control": {"learning_rate": 5e-4}}
"""Fields under which a recipe of a test's size is not chaotic: at its own rate of 2e-3, one device with its batch in
two micro-batches is after 30 steps 6e-5 from itself with the batch in one."""
EXAMPLES = 16
NARROW = {
    "finetune-nf4": ("finetune", {"lora_rank": 4}, {"frozen_bits": 4}),
    "finetune-int8": ("finetune", {"lora_rank": 4}, {"frozen_bits": 8}),
    "stories-8-bit": ("stories", {}, {"optimizer_bits": 8}),
    "stories-in-chunks": ("stories", {}, {"loss_chunk": 24}),
    "stories-by-layers": ("stories", {}, {"layerwise": 2, "remat": "block", "accumulation": 1}),
    "stories-offloaded": ("stories", {}, {"offload": "optimizer"}),
}
"""Names to a recipe, its fields and the levers of its plan."""


def plan(devices: int, fsdp: int, *, accumulation: int = 2, **levers) -> Plan:
    given = {"loss_chunk": 0, "remat": "none"} | levers
    if devices == 1:
        given["offload"] = "none"
    return Plan(
        chip="cpu",
        accumulation=accumulation,
        devices=devices,
        levers=Levers(
            micro_batch=EXAMPLES // accumulation, precision="float32", prefetch=0, async_save=False, fsdp=fsdp, **given
        ),
    )


def with_frozen_weights(state):
    """Draws what a run reads from files: without it no gradient reaches an adapter."""
    random = np.random.default_rng(3)

    def drawn(leaf):
        if np.issubdtype(leaf.dtype, np.integer):
            whole = np.iinfo(leaf.dtype)
            return jax.numpy.asarray(random.integers(whole.min, whole.max, leaf.shape, dtype=leaf.dtype, endpoint=True))
        return jax.numpy.asarray(0.1 * np.abs(random.standard_normal(leaf.shape)), leaf.dtype)

    frozen = jax.tree.map(drawn, state["params"].get("frozen", {}))
    return state | {"params": state["params"] | ({"frozen": frozen} if frozen else {})}


def live_bytes() -> Counter:
    """Returns the bytes of all that is on each device; an array and those of its shards are one buffer."""
    shards = [shard for leaf in jax.live_arrays() for shard in leaf.addressable_shards]
    buffers = {(shard.device.id, shard.data.unsafe_buffer_pointer()): shard.data.nbytes for shard in shards}
    held: Counter = Counter()
    for (device, _), size in buffers.items():
        held[device] += size
    return held


def begun_with_files(recipe, init, bits) -> dict:
    """Of a run that begins with a published model: the most bytes on a device meanwhile, and of its state."""
    others, state, most = live_bytes(), init(np.uint32(7)), 0
    share = max(held_bytes(state).values())

    def watched(function):
        def call(*given, **named):
            nonlocal most
            result = function(*given, **named)
            most = max(most, *(live_bytes() - others).values())
            return result

        return call

    with (
        mock.patch.object(Tensor, "rows", watched(Tensor.rows)),
        mock.patch.object(initial_weights, "copied", watched(initial_weights.copied)),
    ):
        load_weights = partial(recipe.model.load, spec=recipe.spec, data=None)
        found = initial_weights.with_initial(state, load_weights, None)["params"]["frozen"]["base"]
    both = zip(
        jax.tree.leaves(found),
        jax.tree.leaves(load(recipe.model.pretrained, recipe.model.shape, bits=bits)),
        strict=True,
    )
    return {
        "most": most,
        "share": share,
        "largest": max(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(found)),
        "same": all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in both),
    }


def sums(compiled) -> dict:
    """Of the step, by where they are: all-reduces and reduce-scatters in a loop over micro-batches, and outside."""
    counted, inside, bodies = {"loop": [], "once": []}, "", set()
    text = compiled.as_text()
    for called in re.findall(r"(?:body|condition)=%?([\w.-]+)", text):
        bodies.add(called)
    for line in text.splitlines():
        if line and not line[0].isspace() and "{" in line:
            inside = line.removeprefix("ENTRY ").split()[0].lstrip("%")
        if found := re.search(r"= (.*?) (?:all-reduce|reduce-scatter)(?:-start)?\(", line):
            shapes = [
                [int(size) for size in sizes.split(",") if size] for sizes in re.findall(r"\[([\d,]*)\]", found[1])
            ]
            elements = sum(math.prod(shape) for shape in shapes)
            counted["loop" if inside in bodies else "once"].append([elements, _parties(line)])
    return counted


def _parties(line: str) -> int:
    """Devices that one sum is over."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(listed[1].split(","))
    if tiled := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(tiled[1])
    sizes, axes = re.search(r"replica_groups=mesh\[([^]]*)\].*?\{([^}]*)\}", line).groups()
    size_of = dict(size.split("=") for size in sizes.split(","))
    return math.prod(int(size_of[axis]) for axis in axes.split(","))


def main(names) -> None:
    found = {}
    for name in names:
        base, fields, levers = NARROW.get(name, (name, CALM.get(name, {}), {}))
        recipe = {**RECIPES, **OWN}[base]().replace(batch_size=EXAMPLES, gradient_accumulation_steps=1, **fields)
        steps = 1 if recipe.kind == "puzzles" else 30
        batches = [random_batch(recipe, EXAMPLES, seed=seed) for seed in range(steps)]
        plans = [plan(devices, fsdp, **levers) for devices, fsdp in ((1, 1), (8, 2))]
        whole, spread = (lowered(recipe, each, StepOptions(), steps=steps) for each in plans)
        bits = levers.get("frozen_bits")
        from_files = begun_with_files(recipe, compiled(spread.init), bits) if bits else None
        begun = compiled(whole.init)(np.uint32(7))
        begun = with_frozen_weights(begun) if name in NARROW else begun
        split = jax.tree.map(lambda leaf, like: jax.device_put(np.asarray(leaf), like.sharding), begun, spread.state)
        alone, together = compiled(whole.step), compiled(spread.step)
        for batch in batches:
            begun, _ = alone(begun, batch)
            split, report = together(split, spread.put(batch))
        sharded = [leaf for leaf in jax.tree.leaves(split) if not leaf.sharding.is_fully_replicated]
        found[name] = {
            "distance": relative_distance(split["params"]["trainable"], begun["params"]["trainable"]),
            "gathered": sorted(set(re.findall(r"= (\w+)\[\S* all-gather\(", together.as_text()))),
            "on_host": sum(leaf.nbytes for leaf in jax.tree.leaves(split) if leaf.sharding.memory_kind == offload.HOST),
            "gradient": float(report["gradient_norm"]),
            "finite": bool(np.isfinite(float(report["gradient_norm"]))),
            "held": sorted(held_bytes(split).values()),
            "whole": tree_bytes(split),
            "split": sum(leaf.nbytes for leaf in sharded if leaf.sharding.spec != sharding.ROWS),
            "by_rows": sum(leaf.nbytes for leaf in sharded if leaf.sharding.spec == sharding.ROWS),
            "sums": sums(together),
            "from_files": from_files,
            "split_parameters": sum(
                leaf.size
                for leaf in jax.tree.leaves(split["params"]["trainable"])
                if not leaf.sharding.is_fully_replicated
            ),
        }
    print(json.dumps(found))


main(sys.argv[1:])
