"""Predicted against measured peak of whole training processes: how far the planner's bytes are from the kernel's.

    python benchmarks/prediction.py --seed 1 --count 100 [--runs 3] [--resume | --summary]
    python benchmarks/prediction.py --recipe all --data FOLDER --count 60
    python benchmarks/prediction.py --recipe control --data windows.h5 --count 30
    python benchmarks/prediction.py --recipe puzzles --data FOLDER_OF_SETS --count 30
    python benchmarks/prediction.py --recipe longcontext --data packed --count 30
    python benchmarks/prediction.py --recipe recommend --data folder --pretrained model --count 30
    python benchmarks/prediction.py --recipe finetune --data chats.jsonl --count 30

Configurations are drawn from CHOICES: the seed and the number say everything. Each is planned without a budget and with
none to speak of, which gives the unconstrained peak and the floor; a budget is drawn between 0.9 of the floor and 1.2
of the peak (`--near-floor`: from 64 MiB below the floor to 24 above it); then the command line plans and trains under
it, `--runs` times, each time in a process of its own with evaluations and two saves in it, and the largest `VmHWM`
counts. What is refused runs with the memory that the refusal advises.

`--recipe all` draws of every recipe in turn, with data from a folder that holds `windows.h5`, `sets`, `packed`,
`toys` and `records.jsonl`. Every second configuration is large then: with nothing recomputed and the whole batch
at once its peak is above LARGE_BYTES.

A row is written to bench-out/ as soon as it is there. Its bytes are `budget` as drawn, `memory` as given to the runs,
`predicted` by training, `predicted_alone` by `plan` for the same plan, `peaks` of each run, `floor` and
`unconstrained`; its `outcome` is `ran`, `refused` or `failed`. From what processes weighed in their trials the summary
fits the constants of layer 4 (planner/bytes.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training_process import ENVIRONMENT, MIB, PLIMSOLL, plan_words, prepared_copy, trained, watch

from plimsoll.levers.registry import LEVERS as LEVERS_BY_NAME
from plimsoll.planner.bytes import PREDICTED, TRIED

PLANNED_STEPS = 20_000
"""Length of the runs, of which `--steps` are taken: so long that a trial process is worth its time."""
PATIENCE = 3600
"""Seconds that a plan or a run may take."""
MOST_BYTES = 6 * 2**30
"""Budgets stay below it: the machine has other users."""
LARGE_BYTES = 3 * 2**30
"""Least activations and logits of a large configuration."""
NEAR_FLOOR = (-64, 24)
"""MiB beyond the floor of `plan` alone, which keeps 64 MiB free where `train` keeps 24."""
WORST_SHOWN = 10

PIN = 0.2
"""Chance of each lever to be pinned."""
STEP_FLOPS = 100e9
"""At most, of one step: about half a second on two cores."""
STEP_TOKENS = (512, 16_384)
LOGITS_BYTES = 512 * 2**20
"""At most, of the whole effective batch in float32."""
LARGE_TIMES = 12
"""Times the work, the tokens and the logits that a large configuration may have."""

Options = dict[str, Any]
Row = Mapping[str, Any]

COMMON: dict[str, Sequence[Any]] = {
    "gradient_accumulation_steps": (1, 1, 2, 4),
    "seed": range(1000),
    "numerics": ("exact", "mixed", "mixed", "compressed"),
    "ema_decay": (0.0, 0.0, 0.0, 0.99),
}
TEXT: dict[str, Sequence[Any]] = {
    "width": (32, 64, 96, 128, 192, 256, 320, 384, 512),
    "layers": (1, 2, 3, 4, 6, 8, 12),
    "vocab_size": (384, 512, 1024, 2048, 4096, 8192, 16384),
    "tied": (True, True, True, False),
    "seq_len": (32, 48, 64, 96, 128, 200, 256, 384, 512, 768, 1024, 1536, 2048, 3000, 4096),
    "batch_size": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    "shuffle_buffer_size": (0, 100, 1_000, 3_000, 10_000),
    "use_streaming": (True, True, True, True, True, False),
}
CHOICES: dict[str, dict[str, Sequence[Any]]] = {
    "stories": TEXT,
    "code": TEXT,
    "control": {
        "split": ("variant", "variant", "none"),
        "validation_rows": (4000,),
        "mix_chunks": (1, 4, 16, 16, 32),
        "width": (32, 64, 96, 128, 192),
        "layers": (1, 2, 4, 4, 6),
        "dropout": (0.0, 0.0, 0.1),
        "batch_size": (64, 128, 256, 512, 1024),
    },
    "sudoku-mlp": {
        "validation_examples": (200,),
        "variant": ("mlp", "attention"),
        "width": (32, 64, 96, 128, 192, 256),
        "layers": (1, 2, 2, 3),
        "high_cycles": (1, 2, 3),
        "low_cycles": (1, 2, 4, 6),
        "puzzle_positions": (1, 4, 16),
        "halt_max_steps": (2, 8, 16),
        "batch_size": (4, 16, 64, 128, 256, 512),
        "warmup_steps": (2,),
    },
    "longcontext": {
        "validation_tokens": (40_000,),
        "width": (64, 128, 192, 256, 384),
        "layers": (2, 4, 6),
        "states": (16, 32, 64, 128),
        "seq_len": (128, 512, 1024, 2048, 4096, 8192, 16384),
        "tied": (True, True, True, False),
        "attention_every": (0, 0, 2),
        "attention_window": (128, 256),
        "chunk_size": (64, 256, 256),
        "batch_size": (1, 2, 4, 8, 16, 32),
        "workers": (0, 0, 2),
    },
    "recommend": {
        "validation_users": (1000,),
        "width": (32, 64, 64, 128),
        "layers": (1, 2, 2, 4),
        "seq_len": (16, 32, 50),
        "softmax": ("two-level", "two-level", "full"),
        "dropout": (0.0, 0.2, 0.5),
        "batch_size": (32, 64, 128, 256, 512),
        "freeze": (True, True, True, False),
    },
    "finetune": {
        "validation_tokens": (20_000,),
        "seq_len": (64, 128, 256, 512, 1024, 2048),
        "lora_rank": (0, 4, 16, 16, 64),
        "lora_targets": ("all-linear", "all-linear", "q,v", "q,k,v,o"),
        "lora_dropout": (0.0, 0.0, 0.0, 0.0, 0.1),
        "batch_size": (1, 2, 4, 8, 16),
    },
}
MODELS: dict[str, Sequence[Any]] = {
    "model_type": ("llama", "llama", "qwen2"),
    "hidden_size": (128, 192, 256, 384, 576),
    "num_hidden_layers": (2, 4, 8, 12, 24),
    "num_key_value_heads": (1, 2),
    "intermediate_size": (256, 512, 1536),
    "vocab_size": (2048, 8192, 32768, 49152),
    "tie_word_embeddings": (True, True, False),
}
"""Settings of the models that `finetune` is around."""
LEVERS: dict[str, Sequence[Any]] = {
    "remat": ("none", "dots", "block"),
    "loss_chunk": (0, 64, 256, 1024),
    "attention_chunk": (0, 64, 256),
    "precision": ("float32", "bfloat16"),
    "prefetch": (0, 1, 2, 4, 8),
    "async_save": (True, False),
    "optimizer_bits": (32, 8),
    "weight_bits": (32, 24, 16),
    "ema_bits": (32, 16),
    "layerwise": (0, 2),
    "frozen_bits": (16, 8, 4, 4),
}
LACKING = {
    "stories": {"frozen_bits"},
    "code": {"frozen_bits"},
    "control": {"loss_chunk", "attention_chunk", "weight_bits", "layerwise", "frozen_bits"},
    "sudoku-mlp": {"loss_chunk", "attention_chunk", "weight_bits", "layerwise", "optimizer_bits", "frozen_bits"},
    "longcontext": {"attention_chunk", "frozen_bits"},
    "recommend": {"layerwise", "frozen_bits"},
    "finetune": {"layerwise", "ema_bits"},
}
"""Levers that a recipe does not have."""


PRESETS = {
    "text": ("stories", "stories", "code"),
    "puzzles": ("sudoku-mlp",),
    **{name: (name,) for name in ("control", "longcontext", "recommend", "finetune")},
    "all": ("stories", "code", "control", "sudoku-mlp", "longcontext", "recommend", "finetune"),
}
LARGE = ("stories", "code", "longcontext", "finetune")
"""Presets of which a step can be large."""
MADE = {
    "control": "windows.h5",
    "sudoku-mlp": "sets",
    "longcontext": "packed",
    "recommend": "toys",
    "finetune": "records.jsonl",
}
"""Names of what each preset reads, in the folder of `--recipe all`."""
SHARED = Path(os.environ.get("PLIMSOLL_SHARED", "../shared"))
TEXT_FILE = str(SHARED / "data/text/tinystories_train.txt")


class Failed(Exception):
    """Failure of a configuration that is neither planned nor refused."""


@dataclass(frozen=True)
class Configuration:
    """`options` and `pins` are flags of the command line and their values, without the budget."""

    preset: str
    options: Options
    pins: Options
    budget_at: float
    """From 0 to 1: where the budget lies between its lowest and its highest, on a logarithmic scale."""

    @property
    def label(self) -> str:
        options = self.options
        model = f"{options['width']}x{options['layers']}" if "width" in options else Path(options["pretrained"]).name
        return f"{self.preset} {model} {effective_batch(options)}x{options.get('seq_len', '')}"

    def words(self) -> list[str]:
        """Returns the words typed behind `plimsoll plan` or `plimsoll train`."""
        words = self.words_of_recipe()
        for name, value in self.pins.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return words

    def words_of_recipe(self) -> list[str]:
        """Returns them without the levers that are pinned."""
        words = [self.preset]
        for name, value in self.options.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        return words


def draw(given: argparse.Namespace, number: int) -> Configuration:
    """Returns a configuration that a user might ask for, at a size that trains in seconds."""
    dice = random.Random(f"{given.recipe}/{given.seed}/{number}")
    is_large = given.recipe == "all" and number % 2 == 1
    presets = PRESETS[given.recipe]
    preset = dice.choice(LARGE if is_large else presets)
    if given.recipe == "all" and not is_large:
        preset = presets[number // 2 % len(presets)]
    while True:
        options = {name: dice.choice(values) for name, values in (CHOICES[preset] | COMMON).items()}
        options |= data_of(given, preset, dice, options)
        if is_large_enough(options) if is_large else is_small_enough(options):
            break
    options.pop("vocab_size_of_data", None)

    # Levers, as a user would pin them.
    pins = {
        name: dice.choice(values)
        for name, values in LEVERS.items()
        if name not in LACKING[preset] and dice.random() < PIN
    }
    batch = effective_batch(options)
    if dice.random() < PIN:
        pins["micro_batch"] = dice.choice([size for size in range(1, batch + 1) if batch % size == 0])
    if is_large:
        pins |= {"micro_batch": batch, "remat": "none"}
        pins = {name: value for name, value in pins.items() if name not in ("layerwise", "loss_chunk")}
    return Configuration(preset, options, without_contradictions(options, pins), dice.random())


def data_of(given: argparse.Namespace, preset: str, dice: random.Random, options: Options) -> Options:
    """Returns the options that name data and models, and those that follow from drawn ones, which are dropped here."""
    more: Options = {}
    if "width" in options:
        more["heads"] = options["width"] // dice.choice((16, 32))
    data = given.data
    if given.recipe == "all" and preset in MADE:
        data = str(Path(given.data, MADE[preset]))
    if preset == "stories":
        more["dataset_id"] = TEXT_FILE if given.recipe == "all" else data
    elif preset == "finetune":
        more["dataset_id"] = data
    elif preset == "sudoku-mlp":
        folder, about = dice.choice(sorted(puzzle_sets(data).items()))
        more |= {"data": folder, "seq_len": about["seq_len"], "vocab_size": about["vocab_size"]}
        more["identifiers"] = about["num_puzzle_identifiers"]
    elif preset != "code":
        more["data"] = data

    if preset == "longcontext":
        meta = json.loads((Path(data) / "meta.json").read_text())
        more["vocab_size_of_data"] = meta["counts"]["vocab_size"]
        if not options["attention_every"]:
            options.pop("attention_window")
            more.pop("heads")
    if preset == "recommend":
        if given.pretrained and dice.random() < 0.5:
            more["pretrained"] = given.pretrained
            for name in ("width", "layers"):
                options.pop(name)
            more.pop("heads")
        else:
            options.pop("freeze")
    if preset == "finetune":
        more["pretrained"] = model_of(given, dice)
        options.pop("ema_decay")
        config = json.loads((Path(more["pretrained"]) / "config.json").read_text())
        keys = config["hidden_size"] // config["num_attention_heads"] * config["num_key_value_heads"]
        options["lora_rank"] = min(options["lora_rank"], keys // 2)
        if not options["lora_rank"]:
            options.pop("lora_targets")
            options.pop("lora_dropout")
    return more


def model_of(given: argparse.Namespace, dice: random.Random) -> str:
    """Returns the folder of a model that is drawn, and made where it is not there."""
    from random_model import made

    model = {name: dice.choice(values) for name, values in MODELS.items()}
    folder = Path(given.models, "-".join(str(value) for value in model.values()))
    if not folder.exists():
        heads = model["hidden_size"] // 64 * 2
        made(folder, model | {"num_attention_heads": heads, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})
    return str(folder)


def puzzle_sets(folder: str) -> dict[str, dict[str, Any]]:
    """Returns every set in the folder, and what it says of itself."""
    sets = {str(path.parents[1]): json.loads(path.read_text()) for path in Path(folder).glob("*/train/dataset.json")}
    return sets or sys.exit(f"--data {folder} holds no sets: make some with `plimsoll prepare sudoku --out FOLDER`")


def effective_batch(options: Options) -> int:
    return options["batch_size"] * options["gradient_accumulation_steps"]


@dataclass(frozen=True)
class Work:
    """Work of a step, by its larger products."""

    tokens: int
    flops: float
    logits_bytes: int
    activation_bytes: int
    """Logits with their gradient, and what blocks keep of every token."""


def work_of(options: Options) -> Work:
    """Returns the work of a step of a model that reads windows of tokens."""
    if "pretrained" in options and "lora_rank" in options:
        config = json.loads((Path(options["pretrained"]) / "config.json").read_text())
        options = options | {"width": config["hidden_size"], "layers": config["num_hidden_layers"]}
        options["vocab_size"] = config["vocab_size"]
    width = options["width"]
    blocks = options["layers"]
    vocab_size = options.get("vocab_size_of_data", options.get("vocab_size", 0))
    tokens = effective_batch(options) * options["seq_len"]
    kept = 16 * tokens * 4 * blocks * width
    if "low_cycles" in options:  # rounds before the last go forward only
        blocks *= (options["low_cycles"] + 1) * (options["high_cycles"] + 2) / 3
        return Work(tokens, 6 * tokens * blocks * 12 * width**2, 0, kept)
    per_token = 12 * blocks * width**2 + vocab_size * width + 2 * blocks * width * options["seq_len"]
    logits = 4 * tokens * vocab_size
    return Work(tokens, 6 * tokens * per_token, logits, kept + 3 * logits)


def is_small_enough(options: Options, times: int = 1) -> bool:
    """Returns whether a step trains in about half a second on two cores, or in so many times that."""
    if "seq_len" not in options or "validation_users" in options:
        return True
    work = work_of(options)
    if "low_cycles" in options:
        return work.flops <= times * STEP_FLOPS
    least, most = STEP_TOKENS
    is_short = least <= work.tokens <= times * most
    return is_short and work.flops <= times * STEP_FLOPS and work.logits_bytes <= times * LOGITS_BYTES


def is_large_enough(options: Options) -> bool:
    """Returns whether a step takes more than LARGE_BYTES, and less than a budget may be."""
    work = work_of(options)
    return LARGE_BYTES <= work.activation_bytes <= 2 * LARGE_BYTES and is_small_enough(options, LARGE_TIMES)


def without_contradictions(options: Options, pins: Options) -> Options:
    """Returns the pins without those that would be refused."""
    dropped = set()
    tokens = effective_batch(options) * options.get("seq_len", 0)
    if pins.get("attention_chunk", 0) >= options.get("seq_len", 0):
        dropped.add("attention_chunk")
    if pins.get("loss_chunk", 0) >= tokens:
        dropped.add("loss_chunk")
    if not options.get("ema_decay"):
        dropped.add("ema_bits")
    if pins.get("layerwise"):  # it takes the whole batch, and implies `block`
        dropped |= {"micro_batch", "remat"}
    if not options.get("lora_rank"):
        dropped.add("frozen_bits")
    return {name: value for name, value in pins.items() if name not in dropped}


class Measured:
    """One configuration, planned and run; `folder` is its own and empty."""

    def __init__(self, given: argparse.Namespace, configuration: Configuration, folder: Path) -> None:
        self.given = given
        self.configuration = configuration
        self.folder = folder
        half = str(max(1, given.steps // 2))
        self.session = ["--save-every", half, "--eval-every", half, "--quiet", "--within", "30s"]
        self.session += ["--max-steps", str(given.steps)]
        steps = ["--steps", str(PLANNED_STEPS)]
        self.words = [*configuration.words(), *steps]
        self.recipe = [*configuration.words_of_recipe(), *steps]

    def row(self) -> dict[str, Any]:
        """Returns what came of it under a budget that is drawn."""
        row: dict[str, Any] = {}
        try:
            row["unconstrained"] = self.planned(self.words, "1TiB")["predicted_peak_bytes"]
            row["floor"] = self.planned(self.words, "1MiB")["floor_bytes"]
        except Failed as problem:
            return row | {"outcome": "failed", "said": str(problem)}
        budget = self.budget(row["floor"], row["unconstrained"])
        row |= {"budget": budget, "memory": budget, "outcome": "ran"}
        said = self.run_all(row)
        if advised := re.search(r"no plan for .* fits in .*you could: --memory (\d+)([MG])iB", said, re.DOTALL):
            row |= {"outcome": "refused", "memory": int(advised[1]) * (MIB if advised[2] == "M" else 1024 * MIB)}
            said = self.run_all(row)
        if said and row["outcome"] == "ran":
            row["outcome"] = "failed"
        return row | ({"said": said[-1000:]} if said else {})

    def budget(self, floor: int, unconstrained: int) -> int:
        """Returns whole MiB, so that what is printed is what was asked for."""
        share = self.configuration.budget_at
        if self.given.near_floor:
            below, above = NEAR_FLOOR
            return round(floor / MIB + below + share * (above - below)) * MIB
        low, high = 0.9 * floor, max(floor, min(1.2 * unconstrained, MOST_BYTES))
        return round(math.exp(math.log(low) + share * math.log(high / low)) / MIB) * MIB

    def planned(self, words: list[str], memory: str) -> dict[str, Any]:
        """Returns what `plimsoll plan` alone says."""
        command = [*PLIMSOLL, "plan", *words, "--memory", memory, "--json"]
        try:
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"planning took longer than {PATIENCE} s") from None
        if not done.stdout.strip():
            raise Failed(done.stderr.strip())
        return json.loads(done.stdout)

    def run_all(self, row: dict[str, Any]) -> str:
        """Fills the row in; empty, or what the first run that did not end well said."""
        first = self.folder / f"{row['memory']}-0"
        runs = []
        for number in range(self.given.runs):
            run = prepared_copy(first, self.folder / f"{row['memory']}-{number}") if number else first
            command = [*PLIMSOLL, "train", *self.words, *self.session, "--memory", str(row["memory"])]
            ended = watch([*command, "--run", str(run)], seconds=PATIENCE)
            if ended.code:
                return ended.said or f"ended with code {ended.code}"
            runs.append(trained(run))
        largest = max(runs, key=lambda run: run.peak)
        alone = self.planned([*self.recipe, *pins_of(largest.planned["plan"])], "1TiB")
        row |= {
            "plan": plan_words(largest.planned["plan"]),
            "phase": largest.ledger["phase"],
            "phases": largest.ledger["predicted"]["phases"],
            "measured_phases": largest.ledger["measured"]["phases"],
            "components": largest.ledger["components"],
            "imported": largest.planned["imported_bytes"],
            "instructions": largest.planned["instructions"],
            "trial": largest.planned["trial"],
            "predicted": largest.predicted,
            "predicted_alone": alone["predicted_peak_bytes"],
            "peaks": [run.peak for run in runs],
        }
        return ""


def pins_of(plan: Mapping[str, Any]) -> list[str]:
    """Returns every lever of a plan as an option of `plimsoll plan`."""
    return [f"{lever.flag}={plan[name]}" for name, lever in LEVERS_BY_NAME.items()]


def error(row: Row, promise: str = "predicted") -> int:
    """Returns a promise minus what was measured: negative is the dangerous side."""
    return row[promise] - max(row["peaks"])


def share(row: Row, promise: str = "predicted") -> float:
    """Returns the error of a promise as a share of what was measured."""
    return abs(error(row, promise)) / max(row["peaks"])


def is_wrongly_refused(row: Row) -> bool:
    """Returns whether the measured peak and its margin were within the budget that was refused."""
    margin = TRIED if row["trial"] else PREDICTED
    return margin.needed_bytes(max(row["peaks"])) <= row["budget"]


def summary(rows: Sequence[Row]) -> str:
    """Returns errors, budgets that were held, refusals, and the rows that are furthest off."""
    seen = [row for row in rows if row.get("peaks")]
    lines = [f"{len(rows)} configurations, {len(seen)} of them measured"]
    if seen:
        lines += [promise_line(seen, "predicted", "train"), promise_line(seen, "predicted_alone", "plan alone")]
        refused = [row for row in seen if row["outcome"] == "refused"]
        lines += [
            f"over the budget: {sum(max(row['peaks']) > row['memory'] for row in seen)}",
            f"refused: {len(refused)}; wrongly: {sum(is_wrongly_refused(row) for row in refused)}",
            *fitted(seen),
        ]
        furthest = sorted(seen, key=share, reverse=True)
        lines += ["furthest off:", *(line(row) for row in furthest[:WORST_SHOWN])]
    lines += [line(row) for row in rows if row["outcome"] == "failed"]
    return "\n".join(lines)


def promise_line(rows: Sequence[Row], promise: str, verb: str) -> str:
    """Returns how far a promise is off."""
    errors = [error(row, promise) / MIB for row in rows]
    shares = [share(row, promise) for row in rows]
    median = statistics.median(abs(each) for each in errors)
    return (
        f"{verb}: median error {median:.1f} MiB, {statistics.median(shares):.1%}; worst {max(shares):.1%};"
        f" from {min(errors):+.1f} to {max(errors):+.1f} MiB; under-predicted {sum(each < 0 for each in errors)}"
    )


def fitted(rows: Sequence[Row]) -> list[str]:
    """Returns what processes weighed in trials, beyond their imports, as a line through the compiled instructions."""
    tried = [row for row in rows if row["trial"]]
    lines = []
    for name in ("resident_bytes", "loading_bytes") if len(tried) > 2 else ():
        counts = [row["instructions"] for row in tried]
        weights = [row["trial"][name] - row["imported"] for row in tried]
        slope, least = statistics.linear_regression(counts, weights)
        off = [(weight - least - slope * count) / MIB for count, weight in zip(counts, weights, strict=True)]
        lines.append(
            f"{name} of {len(tried)} trials: imports + {least / MIB:.1f} MiB + {slope / 1024:.2f} KiB an instruction,"
            f" {min(off):+.1f} to {max(off):+.1f} MiB"
        )
    return lines


def line(row: Row) -> str:
    """Returns a row of the table."""
    start = f"{row['number']:>4} {row['label']:34}"
    if not row.get("peaks"):
        return f"{start} {row['outcome']}: {row.get('said', '')[-200:]}"
    peak = max(row["peaks"])
    marks = "OVER THE BUDGET" if peak > row["memory"] else ""
    if row["outcome"] == "refused":
        marks += " WRONGLY REFUSED" if is_wrongly_refused(row) else " refused, run as advised"
    return (
        f"{start} {row['plan']:26} {row['phase']:8} budget {row['budget'] / MIB:6.0f} predicted"
        f" {row['predicted'] / MIB:7.1f} measured {peak / MIB:7.1f} error {error(row) / MIB:+6.1f} MiB"
        f" {error(row) / peak:+6.1%}  {marks}"
    ).rstrip()


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--recipe", choices=PRESETS, default="text")
    options.add_argument("--data", default=TEXT_FILE, help="what it reads; for all of them the folder with it")
    options.add_argument("--pretrained", help="model that half of the configurations of `recommend` are around")
    options.add_argument("--models", default="bench-out/models", help="where those of `finetune` are made")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--near-floor", action="store_true", help="budgets near what a refusal names")
    options.add_argument("--resume", action="store_true", help="keep the rows that are there, run what is missing")
    options.add_argument("--summary", action="store_true", help="run nothing: the figures of the rows that are there")
    return options.parse_args()


def main() -> None:
    given = arguments()
    name = f"prediction-{given.recipe}-{'near-floor-' if given.near_floor else ''}{given.seed}.jsonl"
    out = Path("bench-out", name)
    rows = [json.loads(text) for text in out.read_text().splitlines()] if out.exists() else []
    if rows and not (given.resume or given.summary):
        sys.exit(f"{out} holds {len(rows)} rows: --resume goes on behind them, --summary sums them up, or move it away")
    numbers = [] if given.summary else range(given.count)

    out.parent.mkdir(exist_ok=True)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    for number in numbers:
        if number in {row["number"] for row in rows}:
            continue
        configuration = draw(given, number)
        start = {"number": number, "label": configuration.label, "commit": commit}
        start["words"] = " ".join(configuration.words())
        with tempfile.TemporaryDirectory() as folder:
            rows.append(start | Measured(given, configuration, Path(folder)).row())
        print(line(rows[-1]), flush=True)
        with out.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main()
