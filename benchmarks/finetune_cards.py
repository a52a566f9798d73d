"""Fine-tuning on cards that are not here: the tables of docs/results.md, bytes by the card's own compiler.

    python benchmarks/finetune_cards.py published [--only t4 torchtune litgpt]
    python benchmarks/finetune_cards.py context [--model llama-3.1-8b] [--tokens 4096 8192 ...] [--variant plain host]
    python benchmarks/finetune_cards.py sweep [--chip t4 rtx3090] [--tokens 4096 ...] [--rivals 4]

Nothing runs and no weight is read: every row is a `plimsoll plan finetune ... --json`, compiled for the card (after
`plimsoll chips --install cuda`; without it the bytes are estimates, and `source` says so).

`published`: what others have published, beside our plans for the same.

* `t4`: PEFT on a T4 with 14,000 MiB (NF4, r 16 on q,k,v,o, 1,024 long) runs out of memory at these batches. Each is
  planned twice, as the search likes it, and with the whole batch at once, as it was tried.
* `torchtune`: its table for Llama-3.2-3B (A100, batch 2 packed x 4,096), cumulative. Ours is `ladder finetune --chip`.
* `litgpt`: its table for an A10G (512 long, r 32 on q and v). The published peak is our budget: the plan is the fastest
  that the search finds under it, for an rtx3090, whose compute capability is the A10G's; what of its rows does not fit
  under the published peak is planned for the whole card.

`context`: the longest context of QLoRA: NF4, rank 32 on all seven kernels, one row, block inputs in the host's memory,
feed-forward part and loss in chunks; VARIANTS are other levers besides. For every length the bytes of the device and of
the host and the time of a step; then a line through the last three lengths, and the tokens that fit in 8, 24 and 80 GB
by interpolation. GB is 10^9 bytes.

`sweep`: whether the chosen plan is the fastest, by its own estimate: Qwen2.5-7B in NF4 on cards with and without an
attention kernel of their own. Every combination of levers is traced; of those that may fit, RIVALS that are the fastest
by their trace are compiled. Goal: each chosen step takes at most 1.1 times the fastest of them.

Writes bench-out/finetune_published.json, finetune_context.json or finetune_sweep.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from measuring import ROOT, conditions, write
from training_process import ENVIRONMENT, PLIMSOLL

from plimsoll.api.messages import quiet
from plimsoll.api.planning.find import compilers, find_plan, problem_of
from plimsoll.api.planning.place import place_of
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Plan
from plimsoll.planner.between import interpolated
from plimsoll.planner.estimated import estimates_compared
from plimsoll.planner.space import combinations
from plimsoll.planner.speed import step_seconds
from plimsoll.planner.types import Analysis
from plimsoll.recipes.registry import preset

GB, MB = 1e9, 1e6

T4 = {
    "meta-llama/Llama-3.2-1B": 6,
    "meta-llama/Llama-3.2-3B": 5,
    "Qwen/Qwen2.5-Coder-1.5B": 5,
    "Qwen/Qwen2.5-7B": 2,
}
"""Model to the batch at which PEFT runs out of memory."""
TORCHTUNE = {
    "packed": 51.0,
    "loss-chunk": 42.9,
    "remat": 24.9,
    "layerwise": 23.1,
    "offload": 21.8,
    "optimizer-8": 17.6,
    "lora": 8.5,
    "qlora": 4.6,
}
"""Rung to published GiB. The first is that of the compiled step, which needed 60.0 before it was."""
LITGPT = (
    ("meta-llama/Llama-3.2-1B", "lora", 1, 4.49),
    ("meta-llama/Llama-3.2-1B", "qlora", 2, 5.53),
    ("meta-llama/Llama-3.2-1B", "full", 4, 8.70),
    ("meta-llama/Llama-3.2-3B", "lora", 1, 9.67),
    ("meta-llama/Llama-3.2-3B", "qlora", 2, 10.30),
    ("meta-llama/Llama-3.2-3B", "full", 4, 16.51),
)
"""Model, method, micro-batch, published GB."""
METHODS = {
    "lora": "--lora-rank 32 --lora-targets q,v --frozen-bits 16",
    "qlora": "--lora-rank 32 --lora-targets q,v --frozen-bits 4",
    "full": "--lora-rank 0 --weight-bits 16",
}

MODELS = {
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "gemma-2-9b": "google/gemma-2-9b",
}
LENGTHS = (4_096, 8_192, 16_384, 65_536, 131_072, 262_144)
CARDS = (8, 24, 80)
VARIANTS = {
    "plain": "--remat offload",
    "host": "--remat offload --offload optimizer",
    "no-host": "--remat block",
}
QLORA = "--frozen-bits 4 --lora-rank 32 --batch-size 1 --precision bfloat16 --activations bfloat16 --loss-chunk 512"
GOAL = (7.0, 0.072)
"""GB, and MB a token, that no length from 4,096 on should lie above."""


def answer(verb: str, words: str) -> dict[str, Any] | str:
    """Returns what `plimsoll VERB finetune --json` prints; where it refuses, its words."""
    command = [*PLIMSOLL, verb, "finetune", *shlex.split(words), "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    return done.stderr if done.returncode else json.loads(done.stdout)


def plan(words: str) -> dict[str, Any]:
    """Returns what a row keeps of a plan. Raises SystemExit with the words of a refusal."""
    planned = answer("plan", words)
    if isinstance(planned, str):
        raise SystemExit(f"plimsoll plan finetune {words}\n{planned}")
    names = ("plan", "parameters", "predicted_peak_bytes", "phase", "source", "components", "step_seconds")
    host = planned["host"]
    row = {name: planned[name] for name in names} | {"host_bytes": host and host["predicted_peak_bytes"]}
    print(f"{words}\n    {planned['predicted_peak_bytes'] / GB:.2f} GB, {planned['step_seconds']:.2f} s", flush=True)
    return row


def t4() -> list[dict[str, Any]]:
    rows = []
    for model, batch in T4.items():
        words = f"--pretrained {model} --seq-len 1024 --batch-size {batch} --lora-rank 16 --lora-targets q,k,v,o"
        words += " --frozen-bits 4 --numerics compressed --chip t4 --memory 14000MiB"
        for pin in ("", f" --micro-batch {batch}"):
            rows.append({"model": model, "batch": batch, "at_once": bool(pin)} | plan(words + pin))
    return rows


def torchtune() -> list[dict[str, Any]]:
    words = "--chip a100-80 --pretrained meta-llama/Llama-3.2-3B --seq-len 4096 --batch-size 2 --lora-rank 64"
    ladder = answer("ladder", f"{words} --lora-targets q,v,o,gate,up,down --clip-norm 0")
    if isinstance(ladder, str):
        raise SystemExit(ladder)
    return [rung | {"published_gib": TORCHTUNE[rung["name"]]} for rung in ladder["rungs"]]


def litgpt() -> list[dict[str, Any]]:
    rows = []
    for model, method, batch, published in LITGPT:
        words = f"--pretrained {model} --seq-len 512 --batch-size {batch} --micro-batch {batch} --clip-norm 0"
        words += f" {METHODS[method]} --numerics compressed --chip rtx3090"
        within = f"{words} --memory {int(published * GB)}"
        refused = isinstance(answer("plan", within), str)
        row = {"model": model, "method": method, "micro_batch": batch, "published_gb": published, "over": refused}
        rows.append(row | plan(f"{words} --floor" if refused else within))
    return rows


PUBLISHED = {"t4": t4, "torchtune": torchtune, "litgpt": litgpt}


def context(options: argparse.Namespace) -> dict[str, Any]:
    """Returns of each model and variant the rows by length, and the line through them."""
    results: dict[str, Any] = {}
    for model, variant in itertools.product(options.model, options.variant):
        rows = []
        for length in options.tokens:
            words = f"--pretrained {MODELS[model]} --chip {options.chip} --seq-len {length} {QLORA}"
            row = plan(f"{words} --mlp-chunk {min(2_048, length // 8)} {VARIANTS[variant]}")
            rows.append({"tokens": length, "device_bytes": row["predicted_peak_bytes"]} | row)
        line = fitted(rows)
        results.setdefault(model, {})[variant] = {"rows": rows} | line
        above = [row["tokens"] for row in rows if row["device_bytes"] > GOAL[0] * GB + GOAL[1] * MB * row["tokens"]]
        print(f"{model}, {variant}: {line}; above {GOAL[0]} GB + {GOAL[1]} MB a token at {above or 'no length'}")
    return {"chip": options.chip, "shapes": results}


def fitted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a line through device bytes, and the tokens that fit on each card."""
    if len(rows) < 2:
        return {}
    tokens = np.array([row["tokens"] for row in rows], float)
    used = np.array([row["device_bytes"] for row in rows], float)
    slope, start = np.polyfit(tokens[-3:], used[-3:], 1)
    reached = {card: tokens_within(tokens, used, card * GB) for card in CARDS}
    return {"bytes": float(start), "bytes_per_token": float(slope), "tokens": reached}


def tokens_within(tokens: np.ndarray, used: np.ndarray, limit: float) -> int:
    """Returns where a piecewise line through the points, extended at both ends, reaches `limit`."""
    at = min(max(1, int((used < limit).sum())), len(used) - 1)
    slope = (used[at] - used[at - 1]) / (tokens[at] - tokens[at - 1])
    return max(0, int(tokens[at - 1] + (limit - used[at - 1]) / slope))


SWEPT = {
    "t4": (2_048, 4_096, 32_768),
    "rtx3090": (2_048, 8_192, 32_768),
    "rtx4090": (4_096, 16_384, 32_768),
    "a100-40": (2_048, 8_192, 32_768),
}
"""Chip to the lengths whose chosen plan is compared with all others."""
SWEEP_GOAL = 1.1


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """Returns a row for each question: the chosen step beside the fastest that was compiled."""
    rows = []
    for chip in options.chip:
        for tokens in options.tokens or SWEPT[chip]:
            recipe = preset("finetune").replace(pretrained=MODELS["qwen2.5-7b"], seq_len=tokens)
            pins = {"frozen_bits": 4}
            question = Question(recipe=recipe, name="finetune", chip=chip, pins=pins, within=options.within)
            row = {"chip": chip, "tokens": tokens} | compared(question, rivals=options.rivals)
            rows.append(row)
            print(
                f"{chip} {tokens:6}: chosen {row['chosen_seconds']:.1f} s, fastest {row['fastest_seconds']:.1f} s"
                f" ({row['traced']} traced, {row['compiled']} compiled): {row['ratio']:.3f}",
                flush=True,
            )
    worst = max(row["ratio"] for row in rows)
    print(f"slower than the fastest by {worst - 1:.1%} at worst (goal {SWEEP_GOAL - 1:.0%})")
    return {"rows": rows}


def compared(question: Question, *, rivals: int) -> dict[str, Any]:
    """Returns the chosen plan of a question beside the fastest of its rivals."""
    place = place_of(question)
    chosen = find_plan(question, place)
    traced = by_trace(question)
    others = [plan for _, plan in traced if levers_of(plan) != levers_of(chosen.plan)]
    planned = [chosen]
    for plan in others[:rivals]:
        pinned = replace(question, pins=levers_of(plan))
        try:
            planned.append(find_plan(pinned, place))
        except BudgetError:
            print(f"    does not fit: {pinned.pins}")
    seconds = [each.step_seconds or math.inf for each in planned]
    fastest = planned[seconds.index(min(seconds))]
    return {
        "chosen": chosen.plan.to_dict(),
        "chosen_seconds": seconds[0],
        "fastest": fastest.plan.to_dict(),
        "fastest_seconds": min(seconds),
        "ratio": seconds[0] / min(seconds),
        "traced": len(traced),
        "compiled": 1 + len(others[:rivals]),
    }


def levers_of(plan: Plan) -> dict[str, Any]:
    """Returns the levers that the compiled step depends on, and its micro-batch."""
    return {name: value for name, value in plan.levers.items() if LEVERS[name].compiled}


def by_trace(question: Question) -> list[tuple[float, Plan]]:
    """Returns every plan that may fit as far as its trace says, the fastest first by the card's rates."""
    place = place_of(question)
    problem = problem_of(question, place, None)
    _, (least, _) = estimates_compared(problem.devices)
    traced = []
    with compilers(question, place, None, quiet) as compiler:
        rates, static_of = compiler.rates(), cache(compiler.static)

        def fits(plan: Plan, analysis: Analysis) -> bool:
            needed = static_of(plan.fsdp, plan.storage).state_bytes + least * analysis.beyond_state_bytes
            return needed <= problem.budget_bytes

        for combination in combinations(problem, rates, static_of):
            # Where the smallest micro-batch does not fit, no larger one does.
            small, *large = sorted({min(combination.plans), max(combination.plans)})
            answers = {small: compiler.trace(combination.plans[small])}
            if not fits(combination.plans[small], answers[small]):
                continue
            answers |= {micro: compiler.trace(combination.plans[micro]) for micro in large}

            for micro, plan in combination.plans.items():
                analysis = interpolated(micro, answers)
                if fits(plan, analysis):
                    static = static_of(plan.fsdp, plan.storage)
                    traced.append((step_seconds(plan, analysis, static, rates), plan))
    return sorted(traced, key=lambda found: found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("published").add_argument("--only", nargs="*", choices=PUBLISHED, default=list(PUBLISHED))
    of_context = kinds.add_parser("context")
    of_context.add_argument("--model", nargs="*", choices=MODELS, default=["llama-3.1-8b"])
    of_context.add_argument("--tokens", type=int, nargs="*", default=LENGTHS)
    of_context.add_argument("--chip", default="h100", help="a GPU, as `plimsoll chips` calls it")
    of_context.add_argument("--variant", nargs="*", choices=VARIANTS, default=["plain", "host"])
    of_sweep = kinds.add_parser("sweep")
    of_sweep.add_argument("--chip", nargs="*", choices=SWEPT, default=list(SWEPT))
    of_sweep.add_argument("--tokens", type=int, nargs="*", help="lengths; by default those of SWEPT")
    of_sweep.add_argument("--within", default="10min", help="time for each plan: a busy machine is no part of this")
    of_sweep.add_argument("--rivals", type=int, default=4, help="other plans that are compiled, at most")
    options = parser.parse_args()
    makers = {"context": context, "sweep": sweep}
    maker = makers.get(options.kind)
    result = {name: PUBLISHED[name]() for name in options.only} if maker is None else maker(options)
    write(ROOT / f"bench-out/finetune_{options.kind}.json", {"conditions": conditions(options)} | result)


if __name__ == "__main__":
    main()
