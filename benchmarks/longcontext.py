"""What a token costs in a window of 32,768 beside one of 2,048: recurrences, and causal attention of the same width.

    python benchmarks/longcontext.py [--lengths 2048 32768] [--rounds 5] [--precision float32] [--sides ours attention]

One process; the compiled training step (forward, backward, clip, AdamW) of `longcontext` and of `stories` with the same
width, layers and vocabulary. Every step has the same tokens, in as many windows as they make; sides and lengths are
taken in turn. Medians and the best of all rounds, microseconds a token, the ratio to the shortest length, and the bytes
of the step's temporaries, as XLA counts them: of the same tokens, and of one window alone, whose growth is the slope of
memory in the length. A table, and bench-out/longcontext.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from text_vs_trainer import conditions

from plimsoll.planned import Plan
from plimsoll.recipes.longcontext.recipe import LongContext
from plimsoll.recipes.text.recipe import Text
from plimsoll.training.program import Program, compiled, lower

ROOT = Path(__file__).resolve().parents[1]
ATTENTION_CHUNK = 256


class Timed:
    """A side at one length: its step, compiled, and what it is called with."""

    def __init__(self, side: str, length: int, options: Any) -> None:
        self.side, self.length, self.tokens = side, length, options.tokens
        recipe, plan, program = lowered(side, length, options, examples=options.tokens // length)
        self.step = compiled(program.step)
        self.temporaries = self.step.memory_analysis().temp_size_in_bytes
        _, _, alone = lowered(side, length, options, examples=1)
        self.of_one_window = compiled(alone.step).memory_analysis().temp_size_in_bytes
        self.parameters = recipe.shape.parameters()
        self._init, self.seconds = program.init, []
        random = np.random.default_rng(0)
        self.batch = {
            name: random.integers(0, options.vocab, shape).astype(dtype)
            for name, (shape, dtype) in recipe.batch_spec(plan.micro_batch).items()
        }

    def start(self) -> None:
        self.state = jax.block_until_ready(compiled(self._init)(np.uint32(0)))

    def once(self) -> float:
        began = time.monotonic()
        self.state, report = self.step(self.state, self.batch)
        jax.block_until_ready(report)
        return time.monotonic() - began


def lowered(side: str, length: int, options: Any, *, examples: int) -> tuple[LongContext | Text, Plan, Program]:
    shared: dict[str, Any] = {
        "width": options.width, "layers": options.layers, "vocab_size": options.vocab, "seq_len": length,
        "batch_size": examples, "steps": 1000,
    }  # fmt: skip
    if side == "ours":
        recipe = LongContext(**shared, states=options.states, chunk_size=options.chunk_size, form=options.form)
    else:
        recipe = Text(**shared, heads=max(1, options.width // 64))
    plan = Plan(
        chip="cpu", micro_batch=examples, accumulation=1, remat=options.remat, loss_chunk=options.loss_chunk,
        attention_chunk=ATTENTION_CHUNK, precision=options.precision, prefetch=0, async_save=False,
    )  # fmt: skip
    program = lower(
        recipe.task(plan.compute("cpu")),
        recipe.update_rule(1000),
        plan,
        batch=recipe.batch_spec(examples),
        evaluation_batch=recipe.evaluation_spec(examples),
    )
    return recipe, plan, program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 32768])
    parser.add_argument("--tokens", type=int, default=32768, help="of a step; a multiple of every length")
    parser.add_argument("--sides", nargs="+", choices=("ours", "attention"), default=["ours", "attention"])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--states", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--form", default="auto")
    parser.add_argument("--remat", choices=("none", "dots", "block"), default="block")
    parser.add_argument("--loss-chunk", type=int, default=2048)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/longcontext.json")
    options = parser.parse_args()
    if wrong := [length for length in options.lengths if options.tokens % length]:
        parser.error(f"--tokens {options.tokens} is no multiple of {wrong[0]}")
    timed: list[Timed] = [Timed(side, length, options) for side in options.sides for length in options.lengths]
    for each in timed:
        each.start()
        each.once()  # the first touches every page
    for _ in range(options.rounds):  # A B C A B C
        for each in timed:
            each.seconds.append(each.once())
    rows = [row(each, timed) for each in timed]
    print(table(rows))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"conditions": conditions(options), "rows": rows}, indent=1))
    return 0


def row(each: Timed, timed: list[Timed]) -> dict[str, Any]:
    shortest = min((one for one in timed if one.side == each.side), key=lambda one: one.length)
    return {
        "side": each.side,
        "length": each.length,
        "parameters": each.parameters,
        "seconds": each.seconds,
        "microseconds_per_token": 1e6 * statistics.median(each.seconds) / each.tokens,
        "best_microseconds_per_token": 1e6 * min(each.seconds) / each.tokens,
        "ratio": statistics.median(each.seconds) / statistics.median(shortest.seconds),
        "best_ratio": min(each.seconds) / min(shortest.seconds),
        "temporary_bytes": each.temporaries,
        "temporary_bytes_of_one_window": each.of_one_window,
    }


def table(rows: list[dict[str, Any]]) -> str:
    head = ("window", "us/token", "best", "ratio", "best", "temporaries", "of one window")
    lines = [" " * 10 + "".join(name.rjust(width) for name, width in zip(head, (8, 10, 8, 8, 8, 14, 16), strict=True))]
    for one in rows:
        lines.append(
            f"{one['side']:10}{one['length']:8,}{one['microseconds_per_token']:10.2f}"
            f"{one['best_microseconds_per_token']:8.2f}{one['ratio']:8.2f}{one['best_ratio']:8.2f}"
            f"{one['temporary_bytes'] / 2**20:10.1f} MiB"
            f"{one['temporary_bytes_of_one_window'] / 2**20:12.1f} MiB"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
