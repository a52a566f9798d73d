"""Run by test_carry in a process of its own: four steps with a carry and a table, split over eight CPU devices."""

import json

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)  # as in conftest.py

from plimsoll.levers.sharding import CARRY, ROWS  # noqa: E402
from plimsoll.optimizers.adam_atan2 import AdamATan2  # noqa: E402
from plimsoll.optimizers.in_place import in_place  # noqa: E402
from plimsoll.planned import Plan  # noqa: E402
from plimsoll.recipes.puzzles.act import RecursiveSolver  # noqa: E402
from plimsoll.recipes.puzzles.model import Trm  # noqa: E402
from plimsoll.recipes.specs import PuzzleSpec  # noqa: E402
from plimsoll.training.program import Functions  # noqa: E402
from plimsoll.training.step import StepSpec, make_init, make_step  # noqa: E402
from plimsoll.types import Levers, StepOptions  # noqa: E402

MODEL = Trm(
    width=16, layers=1, high_cycles=1, low_cycles=1, puzzle_positions=1,
    halt_max_steps=3, halt_exploration=0.5, puzzle_learning_rate=1e-2,
)  # fmt: skip
SPEC = PuzzleSpec(arrays={}, vocab=5, length=7, identifiers=4096)
EXAMPLES, STEPS = 32, 4


def plan(fsdp: int) -> Plan:
    return Plan(
        chip="cpu",
        accumulation=2,
        levers=Levers(
            micro_batch=16, remat="none", loss_chunk=0, precision="float32", prefetch=0, async_save=False, fsdp=fsdp
        ),
    )


def batches():
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        tokens = random.integers(0, 5, (2, EXAMPLES, 7)).astype(np.int32)
        rows = random.integers(0, 4096, EXAMPLES).astype(np.int32)
        yield {"inputs": tokens[0], "labels": tokens[1], "puzzle_identifiers": rows}


def trained(step, state):
    for batch in batches():
        state, _ = step(state, batch)
    return state


def main() -> None:
    task = RecursiveSolver(MODEL, SPEC, plan(1).compute("cpu"))
    settings = AdamATan2(learning_rate=1e-3, warmup_steps=0, final_fraction=1.0, weight_decay=1.0)
    optimizer = in_place(settings.rule(STEPS), row_rule=MODEL.row_rule(settings, STEPS))
    init = make_init(task, optimizer, examples=EXAMPLES)
    alone = trained(jax.jit(make_step(task, optimizer, StepSpec(accumulation=2))), jax.jit(init)(np.uint32(0)))
    spec = {name: (rows.shape, str(rows.dtype)) for name, rows in next(batches()).items()}
    spread = Functions(task, optimizer, plan(8), StepOptions(), jax.devices())
    compiled = spread.step(spec)[0].compile()
    begun = jax.jit(init)(np.uint32(0))
    start = jax.tree.map(lambda leaf, shape: jax.device_put(leaf, shape.sharding), begun, spread.state)
    state = trained(lambda state, batch: compiled(state, spread.put(batch)), start)
    pairs = zip(jax.tree.leaves(alone), jax.tree.leaves(state), strict=True)
    found = {
        "difference": max(float(np.max(np.abs(np.float64(a) - np.float64(b)))) for a, b in pairs),
        "carry_by_rows": all(leaf.sharding.spec == ROWS for leaf in jax.tree.leaves(state[CARRY])),
        "table_shard": state["params"]["tables"]["puzzles"].addressable_shards[0].data.shape,
    }
    print(json.dumps(found))


main()
