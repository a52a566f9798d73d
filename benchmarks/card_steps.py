"""Steps that were timed on an H100, compiled without one: their kernels, and what the model of a step's time says.

Part of device.py: `python benchmarks/device.py --offline [--only "97.5M, 8 x 32" ...] [--record | --rates]`.

The steps are a decoder written by hand below, of 97.5M parameters in eight forms, and plans of plimsoll's own recipes.
The card's figures stand beside them, with their source. The decoder is compiled for `h100` (`plimsoll chips --install
cuda`), in a process of the compile environment, deterministic and without Triton's products, as training is. Prints
estimated beside measured times. docs/chips.md has the table.

`--rates` plans the recipes' steps by the card's rates alone, as where no compiler is installed.

Recipes compile to other kernels than at the commit whose steps were timed, so theirs are read from the record,
tests/planner/h100_steps.json, from which tests/planner/test_kernel_seconds.py holds the model against the card without
a compiler. `--record` compiles all of them and writes it anew: only with new times.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peers.environment import SIDE_PROGRAM

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

RECORD = ROOT / "tests/planner/h100_steps.json"
SOURCE = "one NVIDIA H100 80GB HBM3, driver 580.159, jax 0.11.2, 2026-11-23, plimsoll at 73c06b3; medians of six"
OPTIONS: dict[str, Any] = {
    "xla_gpu_deterministic_ops": True,
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_autotune_level": 0,
}

VOCABULARY, WIDTH, LAYERS, HEADS, INNER, LENGTH = 16_384, 768, 12, 12, 2_048, 1_024
HAND: dict[str, tuple[dict[str, Any], float]] = {
    # name: form of the decoder by hand, tokens per second of the card
    "float32, plain attention, 16": ({"activations": "float32", "attention": "plain"}, 156_549),
    "bfloat16, plain attention, 16": ({"attention": "plain"}, 233_920),
    "float32, cuDNN, 16": ({"activations": "float32"}, 279_181),
    "bfloat16, cuDNN, scan over layers, 16": ({"scan": True}, 349_219),
    "bfloat16, cuDNN, 16": ({}, 509_310),
    "bfloat16, cuDNN, 16 x 4": ({"accumulation": 4}, 529_739),
    "bfloat16, cuDNN, 64": ({"rows": 64}, 582_452),
    "bfloat16, cuDNN, 64, loss in chunks of 8,192": ({"rows": 64, "chunk": 8_192}, 256_042),
}
MEDIUM = {"width": 768, "layers": 12, "heads": 12, "vocab_size": 16_384, "seq_len": 1_024}
OWN: dict[str, tuple[str, dict[str, Any], dict[str, Any], float]] = {
    # name: preset, its fields, levers of the plan, seconds of a step on the card
    "code 128 x 4, 64 x 1": ("code", {}, {"micro_batch": 64, "accumulation": 1}, 11.5e-3),
    "code 128 x 4, 256 x 1": (
        "code",
        {"batch_size": 256, "gradient_accumulation_steps": 1},
        {"micro_batch": 256, "accumulation": 1},
        13.1e-3,
    ),
    "97.5M, 8 x 32": (
        "code",
        {**MEDIUM, "batch_size": 256, "gradient_accumulation_steps": 1},
        {"micro_batch": 8, "accumulation": 32},
        1.004,
    ),
    "97.5M, 16 x 16": (
        "code",
        {**MEDIUM, "batch_size": 256, "gradient_accumulation_steps": 1},
        {"micro_batch": 16, "accumulation": 16},
        256 * 1_024 / 369_000,
    ),
    "sudoku-mlp, 16 x 48": ("sudoku-mlp", {}, {"micro_batch": 16, "accumulation": 48}, 0.450),
    "longcontext-nano, 32,768 long, 1 x 4": (
        "longcontext-nano",
        {"seq_len": 32_768, "batch_size": 4, "vocab_size": 8_192},
        {"micro_batch": 1, "accumulation": 4, "loss_chunk": 2_048},
        4 * 32_768 / 1.045e6,  # 0.9 to 1.19M tokens a second
    ),
}


def by_hand(
    *,
    rows: int = 16,
    accumulation: int = 1,
    activations: str = "bfloat16",
    attention: str = "cudnn",
    scan: bool = False,
    chunk: int = 0,
) -> Any:
    """Returns the traced step of a decoder with RMSNorm, rotary positions and SwiGLU, clipped, by AdamW."""
    import jax
    import jax.numpy as jnp
    import optax

    kind, head = jnp.dtype(activations), WIDTH // HEADS
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "gate": (WIDTH, INNER), "up": (WIDTH, INNER)}
    shapes |= {"down": (INNER, WIDTH), "before": (WIDTH,), "between": (WIDTH,)}
    block = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    if scan:
        blocks: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((LAYERS, *leaf.shape), leaf.dtype), block)
    else:
        blocks = [block] * LAYERS
    params = {"embedding": jax.ShapeDtypeStruct((VOCABULARY, WIDTH), jnp.float32), "blocks": blocks}
    params["last"] = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(6e-4))
    state = params, jax.eval_shape(optimizer.init, params)

    def dot(x: Any, kernel: Any) -> Any:
        return jnp.dot(x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), preferred_element_type=kind)

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6) * scale).astype(kind)

    def turned(x: Any) -> Any:
        angles = jnp.arange(LENGTH)[:, None] * 10_000.0 ** (-jnp.arange(head // 2) / (head // 2))
        cos, sin = (f(angles)[:, None].astype(kind) for f in (jnp.cos, jnp.sin))
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)

    def attended(query: Any, key: Any, value: Any) -> Any:
        if attention == "cudnn":
            query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
            return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn").astype(kind)
        query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
        scores = jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=jnp.float32) * head**-0.5
        seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(jnp.bfloat16)
        return jnp.einsum("bnts,bsnh->btnh", weights, value, preferred_element_type=kind)

    def layer(x: Any, block: Any) -> Any:
        qkv = dot(norm(x, block["before"]), block["qkv"]).reshape(*x.shape[:2], 3, HEADS, head)
        query, key, value = turned(qkv[:, :, 0]), turned(qkv[:, :, 1]), qkv[:, :, 2]
        x = x + dot(attended(query, key, value).reshape(x.shape), block["out"])
        normed = norm(x, block["between"])
        return x + dot(jax.nn.silu(dot(normed, block["gate"])) * dot(normed, block["up"]), block["down"])

    def entropy(hidden: Any, embedding: Any, labels: Any) -> Any:
        logits = jnp.dot(hidden.astype(jnp.bfloat16), embedding.T, preferred_element_type=jnp.float32)
        return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embedding"].astype(kind)[tokens]
        if scan:
            x, _ = jax.lax.scan(lambda x, block: (layer(x, block), None), x, params["blocks"])
        else:
            for block in params["blocks"]:
                x = layer(x, block)
        hidden = norm(x, params["last"]).reshape(-1, WIDTH)
        embedding, labels = params["embedding"].astype(jnp.bfloat16), jnp.roll(tokens, -1, axis=1).reshape(-1)
        if not chunk:
            return entropy(hidden, embedding, labels) / labels.size
        parts = hidden.reshape(-1, chunk, WIDTH), labels.reshape(-1, chunk)
        add = jax.checkpoint(lambda total, part: (total + entropy(part[0], embedding, part[1]), None))
        return jax.lax.scan(add, 0.0, parts)[0] / labels.size

    def step(state: Any, tokens: Any) -> Any:
        params, moments = state
        gradient = jax.value_and_grad(loss)
        if accumulation == 1:
            value, grads = gradient(params, tokens)
        else:
            zeros = 0.0, jax.tree.map(jnp.zeros_like, params)
            add = lambda total, part: (jax.tree.map(jnp.add, total, gradient(params, part)), None)  # noqa: E731
            (value, grads), _ = jax.lax.scan(add, zeros, tokens.reshape(accumulation, rows, LENGTH))
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return partial(_lowered, step, state, jax.ShapeDtypeStruct((rows * accumulation, LENGTH), jnp.int32))


def _lowered(step: Any, state: Any, tokens: Any, device: Any) -> Any:
    import jax

    here = jax.sharding.SingleDeviceSharding(device)
    placed = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)  # noqa: E731
    return jax.jit(step, donate_argnums=0).lower(jax.tree.map(placed, state), placed(tokens))


def own(preset: str, changes: dict[str, Any], levers: dict[str, Any]) -> Any:
    """Returns the lowered step of one of plimsoll's recipes, in bfloat16 products, under a plan with these levers."""
    from plimsoll.engine.cross_compile import CrossCompiler
    from plimsoll.planned import Plan
    from plimsoll.planner.chips import chip
    from plimsoll.recipes import registry
    from plimsoll.recipes.saved import to_dict

    recipe = dataclasses.replace(registry.preset(preset), **changes)
    about = {"recipe": to_dict(recipe), "steps": 60, "chip": dataclasses.asdict(chip("h100")), "compiled": True}
    compiler = CrossCompiler(about)
    plain = {"chip": "h100", "remat": "none", "loss_chunk": 0, "precision": "bfloat16", "prefetch": 0}
    plan = Plan.from_dict({**plain, "async_save": False, **levers})
    return compiler.functions(plan).step(recipe.batch_spec(recipe.effective_batch))[0]


def compiled(name: str) -> dict[str, Any]:
    """Compiles a step, in the compile environment, and returns its temporary bytes and its kernels as plain values."""
    from plimsoll.planner import topology
    from plimsoll.planner.chips import chip
    from plimsoll.planner.hlo.kernels import kernels
    from plimsoll.planner.hlo.module import Module

    lowered = by_hand(**HAND[name][0])(topology.devices(chip("h100"))[0]) if name in HAND else own(*OWN[name][:3])
    executable = lowered.compile(compiler_options=OPTIONS)
    (module,) = executable.runtime_executable().hlo_modules()
    counted = kernels(Module(module.as_serialized_hlo_module_proto()))
    rows = [
        [times, kernel.moved_bytes, kernel.product and dataclasses.astuple(kernel.product)]
        for kernel, times in sorted(counted.items(), key=lambda item: -item[1] * item[0].moved_bytes)
    ]
    return {"temporary_bytes": executable.memory_analysis().temp_size_in_bytes, "kernels": rows}


def in_the_environment(name: str) -> dict[str, Any]:
    """Returns the answer of `compiled` from a process of the compile environment."""
    from plimsoll.processes import toolchains
    from plimsoll.processes.environment import for_processes

    python = toolchains.python_for("cuda")
    if python is None:
        sys.exit(f"NVIDIA's compiler is {toolchains.missing('cuda')}: `plimsoll chips --install cuda`")
    variables = for_processes("cuda") | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([python, SIDE_PROGRAM, "card_steps", name], env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} does not compile: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def by_rates(names: Iterable[str]) -> None:
    """Prints what a plan without a compiler says of steps, beside what the card took."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"PLIMSOLL_COMPILERS": folder, "PLIMSOLL_CACHE": folder}
        import plimsoll

        for name in names:
            preset, changes, levers, measured = OWN[name]
            pins = {lever: value for lever, value in levers.items() if lever != "accumulation"}
            planned = plimsoll.plan(plimsoll.preset(preset, **changes), chip="h100", pins=pins)
            assert planned is not None
            assert planned.step_seconds_source == "roofline"
            seconds = planned.step_seconds or 0.0
            print(f"{name:46} {1e3 * seconds:8.1f} ms, measured {1e3 * measured:8.1f}: {seconds / measured:.2f}")


def side() -> None:
    """Compiles one step, in the compile environment, and prints what is in it."""
    print(json.dumps(compiled(sys.argv[1])))


def show_all(only: Sequence[str] | None, *, record: bool, rates: bool) -> None:
    known = OWN if rates else HAND | OWN
    if unknown := set(only or ()) - known.keys():
        sys.exit(f"no step is called {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    if rates:
        by_rates(only or known)
    else:
        show(only or list(known), record=record)


def show(names: Sequence[str], *, record: bool) -> None:
    """Prints estimated beside measured times, and writes the record anew where that is asked for."""
    from plimsoll.planner.chips import chip
    from plimsoll.planner.hlo.kernels import Kernel, Product
    from plimsoll.planner.kernel_seconds import kernel_seconds

    card, steps = chip("h100"), {}
    recorded = json.loads(RECORD.read_text())["steps"]
    for name in names:
        answer = in_the_environment(name) if record or name in HAND else recorded[name]
        seconds = OWN[name][3] if name in OWN else _tokens(**HAND[name][0]) / HAND[name][1]
        steps[name] = {**answer, "measured_seconds": seconds, "called_by_training": name in OWN}
        counted = {
            Kernel(moved_bytes=moved, product=product and _product(Product, product)): times
            for times, moved, product in answer["kernels"]
        }
        launches = sum(counted.values())
        estimated = kernel_seconds(counted, card) + launches * card.kernels["launch_seconds"]
        estimated += card.kernels["call_seconds"] if name in OWN else 0.0
        print(
            f"{name:46} {launches:7,} kernels  {answer['temporary_bytes'] / 2**20:9,.0f} MiB"
            f"  estimated {1e3 * estimated:8.1f} ms, measured {1e3 * seconds:8.1f}: {estimated / seconds:.2f}",
            flush=True,
        )
    if record:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(step)}" for name, step in (recorded | steps).items())
        source = f'"source": {json.dumps(SOURCE)},\n"options": {json.dumps(OPTIONS)}'
        RECORD.write_text(f'{{{source},\n"steps": {{\n{lines}\n}}}}\n')


def _tokens(*, rows: int = 16, accumulation: int = 1, **_: Any) -> int:
    return rows * accumulation * LENGTH


def _product(product: Any, values: list[Any]) -> Any:
    return product(**dict(zip((field.name for field in dataclasses.fields(product)), values, strict=True)))
