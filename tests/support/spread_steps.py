"""Run by test_sharding in a process of its own: eight CPU devices, three steps, the state split in several ways."""

import json

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)

from plimsoll.levers.attention import causal_attention  # noqa: E402
from plimsoll.levers.sharding import device_bytes, mesh_of  # noqa: E402
from plimsoll.planned import Plan  # noqa: E402
from plimsoll.recipes.registry import preset  # noqa: E402
from plimsoll.training.program import Functions  # noqa: E402
from plimsoll.training.step import StepSpec, make_init, make_step  # noqa: E402
from plimsoll.types import Levers, StepOptions  # noqa: E402

RECIPE = preset("stories").replace(
    width=256, layers=2, heads=4, vocab_size=1024, seq_len=32, batch_size=32, clip_norm=0.0
)
STEPS = 3


def plan(fsdp: int) -> Plan:
    return Plan(
        chip="cpu",
        accumulation=2,
        levers=Levers(
            micro_batch=16, remat="block", loss_chunk=0, precision="float32", prefetch=0, async_save=False, fsdp=fsdp
        ),
    )


def batches():
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        yield {
            name: random.integers(0, 1024, shape).astype(dtype)
            for name, (shape, dtype) in RECIPE.spec.batch(RECIPE.effective_batch).items()
        }


def trained(step, state):
    for batch in batches():
        state, _ = step(state, batch)
    return state


def main() -> None:
    task, optimizer = RECIPE.task(plan(1).compute("cpu")), RECIPE.update_rule(STEPS)
    init = make_init(task, optimizer)
    alone = trained(jax.jit(make_step(task, optimizer, StepSpec(accumulation=2))), jax.jit(init)(np.uint32(0)))
    found = {}
    for fsdp in (1, 4, 8):
        spread = Functions(task, optimizer, plan(fsdp), StepOptions(), jax.devices())
        step, _ = spread.step(RECIPE.spec.batch(RECIPE.effective_batch))
        compiled = step.compile()
        start = jax.tree.map(
            lambda leaf, shape: jax.device_put(leaf, shape.sharding), jax.jit(init)(np.uint32(0)), spread.state
        )
        state = trained(lambda state, batch: compiled(state, spread.put(batch)), start)  # noqa: B023
        pairs = zip(jax.tree.leaves(alone["params"]), jax.tree.leaves(state["params"]), strict=True)
        stats = compiled.memory_analysis()
        shards = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state)]
        found[str(fsdp)] = {
            "difference": max(
                float(np.linalg.norm(np.asarray(one) - np.asarray(other)) / np.linalg.norm(np.asarray(one)))
                for one, other in pairs
            ),
            "held_bytes": sum(shards),
            "predicted_bytes": device_bytes(alone, fsdp=fsdp),
            "whole_bytes": device_bytes(alone, fsdp=1),
            "argument_bytes": stats.argument_size_in_bytes,
            "temp_bytes": stats.temp_size_in_bytes,
        }
    found["attention"] = {str(examples): attention_apart(examples) for examples in (1, 6, 8, 16)}
    print(json.dumps(found))


def attention_apart(examples: int) -> float:
    """How far attention of so many examples is from that of one device, where eight may share them or not."""
    arrays = [jax.random.normal(jax.random.key(number), (examples, 2, 64, 16)) for number in range(3)]
    attend = jax.jit(lambda *arrays: causal_attention(*arrays, compute=plan(1).compute("cpu")))
    alone = np.asarray(attend(*arrays))
    with jax.set_mesh(mesh_of(jax.devices(), fsdp=4)):
        together = jax.jit(lambda *arrays: causal_attention(*arrays, compute=plan(1).compute("cpu")))(*arrays)
    return float(np.max(np.abs(np.asarray(together) - alone)))


main()
