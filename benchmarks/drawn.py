"""Configurations drawn at random: what a user might ask for, at sizes that train in seconds.

The seed and the number say everything: `draw(1, 17)` is the same configuration on every machine and in every Python.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WIDTHS = (32, 64, 96, 128, 192, 256, 320, 384, 512)
LAYERS = (1, 2, 3, 4, 6, 8, 12)
VOCABULARIES = (384, 512, 1024, 2048, 4096, 8192, 16384)
LENGTHS = (32, 48, 64, 96, 128, 200, 256, 384, 512, 768, 1024, 1536, 2048, 3000, 4096)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
ACCUMULATIONS = (1, 2, 4, 8)
BUFFERS = (0, 100, 1_000, 3_000, 10_000)
PIN = 0.2
"""Chance of each lever to be pinned."""

STEP_FLOPS = 100e9
"""At most, of one step: about half a second on two cores."""
STEP_TOKENS = 512, 16_384
LOGITS_BYTES = 512 * 2**20
"""At most, of the whole effective batch in float32."""


@dataclass(frozen=True)
class Configuration:
    """`options` are flags of the command line and their values, without the budget."""

    preset: str
    options: Mapping[str, Any]
    pins: Mapping[str, Any]
    budget_at: float
    """From 0 to 1: where the budget lies between its lowest and its highest, on a logarithmic scale."""

    def words(self) -> list[str]:
        """Returns the words typed behind `plimsoll plan` or `plimsoll train`."""
        words = [self.preset]
        for name, value in {**self.options, **self.pins}.items():
            flag = name.replace("_", "-")
            is_switch = isinstance(value, bool) and name not in self.pins
            words += [f"--{'' if value else 'no-'}{flag}"] if is_switch else [f"--{flag}", str(value)]
        return words


def draw(seed: int, number: int, *, text: str) -> Configuration:
    """`code` reads Python's own source, or `text` as `stories` does."""
    dice = random.Random(f"{seed}/{number}")
    sizes = _sizes(dice)
    preset = dice.choice(("stories", "stories", "code"))
    data: dict[str, Any] = {} if preset == "code" and dice.random() < 0.5 else {"dataset_id": text}
    if data and dice.random() < 0.15:
        data |= {"use_streaming": False}
    options = {
        **data,
        **sizes,
        "shuffle_buffer_size": dice.choice(BUFFERS),
        "seed": dice.randrange(1000),
        "numerics": dice.choice(("exact", "mixed", "mixed", "compressed")),
        "ema_decay": dice.choice((0.0, 0.0, 0.0, 0.99)),
    }
    return Configuration(preset, options, _pins(dice, options), dice.random())


def draw_control(seed: int, number: int, *, windows: str) -> Configuration:
    """The recipe `control` on a file of windows."""
    dice = random.Random(f"control/{seed}/{number}")
    width = dice.choice((32, 64, 96, 128, 192))
    options = {
        "data": windows,
        "split": dice.choice(("variant", "variant", "trajectory", "none")),
        "validation_rows": 4000,
        "mix_chunks": dice.choice((1, 4, 16, 16, 32)),
        "width": width,
        "layers": dice.choice((1, 2, 4, 4, 6)),
        "heads": width // dice.choice((16, 32)),
        "dropout": dice.choice((0.0, 0.0, 0.1)),
        "batch_size": dice.choice((64, 128, 256, 512, 1024)),
        "gradient_accumulation_steps": dice.choice((1, 1, 2, 4)),
        "seed": dice.randrange(1000),
        "numerics": dice.choice(("exact", "mixed", "mixed", "compressed")),
        "ema_decay": dice.choice((0.0, 0.0, 0.0, 0.99)),
    }
    pins = _pins(dice, options)
    for lever in ("loss_chunk", "attention_chunk", "weight_bits", "layerwise"):  # not of this recipe
        pins.pop(lever, None)
    return Configuration("control", options, pins, dice.random())


def draw_puzzles(seed: int, number: int, *, sets: Mapping[str, Mapping[str, Any]]) -> Configuration:
    """A recipe of puzzles on one of `sets`: folder to what its train/dataset.json says."""
    dice = random.Random(f"puzzles/{seed}/{number}")
    folder, about = dice.choice(sorted(sets.items()))
    while True:
        width = dice.choice((32, 64, 96, 128, 192, 256))
        options = {
            "data": folder,
            "seq_len": about["seq_len"],
            "vocab_size": about["vocab_size"],
            "identifiers": about["num_puzzle_identifiers"],
            "validation_examples": 200,
            "variant": dice.choice(("mlp", "attention")),
            "width": width,
            "heads": width // dice.choice((16, 32)),
            "layers": dice.choice((1, 2, 2, 3)),
            "high_cycles": dice.choice((1, 2, 3)),
            "low_cycles": dice.choice((1, 2, 4, 6)),
            "puzzle_positions": dice.choice((1, 4, 16)),
            "halt_max_steps": dice.choice((2, 8, 16)),
            "batch_size": dice.choice((4, 16, 64, 128, 256, 512)),
            "gradient_accumulation_steps": dice.choice((1, 1, 2)),
            "warmup_steps": 2,
            "seed": dice.randrange(1000),
            "numerics": dice.choice(("exact", "mixed", "mixed", "compressed")),
            "ema_decay": dice.choice((0.0, 0.99, 0.999)),
        }
        if _puzzle_flops(options) <= STEP_FLOPS:
            break
    pins = _pins(dice, options)
    others = ("loss_chunk", "weight_bits", "layerwise", "optimizer_bits")  # not of these recipes
    for lever in (*others, *(("attention_chunk",) if options["variant"] == "mlp" else ())):
        pins.pop(lever, None)
    return Configuration("sudoku-mlp", options, pins, dice.random())


def draw_longcontext(seed: int, number: int, *, packed: str, vocab_size: int) -> Configuration:
    """The recipe `longcontext` on a folder of packed text of `vocab_size`."""
    dice = random.Random(f"longcontext/{seed}/{number}")
    while True:
        width = dice.choice((64, 128, 192, 256, 384))
        attends = dice.random() < 0.3
        options = {
            "data": packed,
            "validation_tokens": 40_000,
            "width": width,
            "layers": dice.choice((2, 4, 6) if attends else (1, 2, 4, 6)),
            "states": dice.choice((16, 32, 64, 128)),
            "seq_len": dice.choice((128, 512, 1024, 2048, 4096, 8192, 16384)),
            "tied": dice.random() < 0.75,
            "attention_every": 2 if attends else 0,
            "attention_window": dice.choice((128, 256)) if attends else 0,
            "chunk_size": dice.choice((64, 256, 256)),
            "batch_size": dice.choice((1, 2, 4, 8, 16, 32)),
            "gradient_accumulation_steps": dice.choice((1, 1, 2, 4)),
            "workers": dice.choice((0, 0, 2)),
            "seed": dice.randrange(1000),
            "numerics": dice.choice(("exact", "mixed", "mixed", "compressed")),
            "ema_decay": dice.choice((0.0, 0.0, 0.0, 0.99)),
        }
        if _small_enough(options | {"vocab_size": vocab_size}, examples=effective_batch(options)):
            break
    pins = _pins(dice, options)
    pins.pop("attention_chunk", None)  # not of a window; and of these recipes only where layers attend
    if pins.get("loss_chunk", 0) >= effective_batch(options) * options["seq_len"]:  # it would change nothing
        pins.pop("loss_chunk")
    return Configuration("longcontext", options, pins, dice.random())


def draw_recommend(seed: int, number: int, *, data: str, pretrained: str | None) -> Configuration:
    """The recipe `recommend` on a prepared folder; where a pretrained model is named, half of them stand on it."""
    dice = random.Random(f"recommend/{seed}/{number}")
    stands = pretrained is not None and dice.random() < 0.5
    width = dice.choice((32, 64, 64, 128))
    plain = {"width": width, "layers": dice.choice((1, 2, 2, 4)), "heads": width // dice.choice((16, 32))}
    options = {
        "data": data,
        "validation_users": 1000,
        **({"pretrained": pretrained, "freeze": dice.random() < 0.8} if stands else plain),
        "seq_len": dice.choice((16, 32, 50)),
        "softmax": dice.choice(("two-level", "two-level", "full")),
        "dropout": dice.choice((0.0, 0.2, 0.5)),
        "batch_size": dice.choice((32, 64, 128, 256, 512)),
        "gradient_accumulation_steps": dice.choice((1, 1, 2)),
        "seed": dice.randrange(1000),
        "numerics": dice.choice(("exact", "mixed", "mixed", "compressed")),
        "ema_decay": dice.choice((0.0, 0.0, 0.0, 0.99)),
    }
    pins = _pins(dice, options)
    pins.pop("layerwise", None)  # not of this recipe
    if pins.get("loss_chunk") == 0:
        pins["loss_chunk"] = 32
    if pins.get("loss_chunk", 0) >= effective_batch(options) * options["seq_len"]:
        pins.pop("loss_chunk")
    return Configuration("recommend", options, pins, dice.random())


def draw_finetune(seed: int, number: int, *, records: str, models: str) -> tuple[Configuration, dict[str, Any]]:
    """Returns the recipe `finetune` on a file of records, and the settings of the model that it is around.

    The model's folder, named by its sizes, is in `models`. What lies on the host is left out: a CPU refuses it.
    """
    dice = random.Random(f"finetune/{seed}/{number}")
    while True:
        width = dice.choice((64, 128, 192, 256, 384, 576))
        heads = width // dice.choice([size for size in (32, 64) if width % size == 0])
        model: dict[str, Any] = {
            "model_type": dice.choice(("llama", "llama", "qwen2")),
            "hidden_size": width,
            "num_hidden_layers": dice.choice((2, 4, 8, 12, 24)),
            "num_attention_heads": heads,
            "num_key_value_heads": heads // dice.choice([share for share in (1, 2, 3) if heads % share == 0]),
            "intermediate_size": 64 * max(2, round(width * dice.choice((8 / 3, 4)) / 64)),
            "vocab_size": dice.choice((2048, 8192, 32768, 49152)),
            "max_position_embeddings": 4096,
            "tie_word_embeddings": dice.random() < 0.6,
            "rms_norm_eps": 1e-5,
        }
        rank = dice.choice((0, 4, 16, 16, 64))
        options: dict[str, Any] = {
            "pretrained": f"{models}/{model_name(model)}",
            "dataset_id": records,
            "validation_tokens": 20_000,
            "seq_len": dice.choice((64, 128, 256, 512, 1024, 2048)),
            "lora_rank": rank,
            **({"lora_targets": dice.choice(("all-linear", "all-linear", "q,v", "q,k,v,o"))} if rank else {}),
            **({"lora_dropout": 0.1} if rank and dice.random() < 0.2 else {}),
            "batch_size": dice.choice((1, 2, 4, 8, 16)),
            "gradient_accumulation_steps": dice.choice((1, 1, 2, 4)),
            "seed": dice.randrange(1000),
            "numerics": dice.choice(("exact", "mixed", "mixed", "compressed")),
            "ema_decay": 0.0,
        }
        sizes = {"width": width, "layers": model["num_hidden_layers"], "vocab_size": model["vocab_size"]}
        narrowest = width // heads * model["num_key_value_heads"]
        if rank <= narrowest and _small_enough(options | sizes, examples=effective_batch(options)):
            break
    pins = _pins(dice, options)
    pins.pop("layerwise", None)  # not of this recipe
    if rank and dice.random() < 2 * PIN:
        pins["frozen_bits"] = dice.choice((16, 8, 4, 4))
    if options["seq_len"] > 256 and pins.get("remat", "block") == "block" and dice.random() < PIN:
        pins["mlp_chunk"] = options["seq_len"] // 4
    options.pop("ema_decay")
    return Configuration("finetune", options, pins, dice.random()), model


def model_name(model: Mapping[str, Any]) -> str:
    """Returns a folder's name for the model of these settings."""
    heads = f"{model['num_attention_heads']}of{model['num_key_value_heads']}"
    sizes = f"{model['hidden_size']}x{model['num_hidden_layers']}-{heads}-{model['intermediate_size']}"
    return f"{model['model_type']}-{sizes}-v{model['vocab_size']}{'' if model['tie_word_embeddings'] else '-head'}"


def _puzzle_flops(options: Mapping[str, Any]) -> float:
    """Returns about the arithmetic of a step's larger dots: rounds before the last go forward only."""
    tokens = effective_batch(options) * (options["seq_len"] + options["puzzle_positions"])
    blocks = options["layers"] * (options["low_cycles"] + 1) * (options["high_cycles"] + 2)
    return 2 * tokens * blocks * 12 * options["width"] ** 2


def effective_batch(options: Mapping[str, Any]) -> int:
    return options["batch_size"] * options["gradient_accumulation_steps"]


def _sizes(dice: random.Random) -> dict[str, Any]:
    """A model and a length, drawn until some batch of it is small enough; then one of those batches."""
    while True:
        width = dice.choice(WIDTHS)
        model = {
            "width": width,
            "layers": dice.choice(LAYERS),
            "heads": width // dice.choice([size for size in (16, 32, 64) if width % size == 0]),
            "vocab_size": dice.choice(VOCABULARIES),
            "tied": dice.random() < 0.75,
            "seq_len": dice.choice(LENGTHS),
        }
        batches = [
            {"batch_size": batch, "gradient_accumulation_steps": times}
            for batch in BATCHES
            for times in ACCUMULATIONS
            if _small_enough(model, examples=batch * times)
        ]
        if batches:
            return model | dice.choice(batches)


def _small_enough(model: Mapping[str, Any], *, examples: int) -> bool:
    width, layers, vocab, length = (model[name] for name in ("width", "layers", "vocab_size", "seq_len"))
    tokens = length * examples
    dots = 12 * layers * width**2 + vocab * width
    attention = 2 * layers * width * length
    least, most = STEP_TOKENS
    return (
        least <= tokens <= most and 6 * tokens * (dots + attention) <= STEP_FLOPS and 4 * tokens * vocab <= LOGITS_BYTES
    )


def _pins(dice: random.Random, options: Mapping[str, Any]) -> dict[str, Any]:
    """A few levers, as a user would pin them, and no two that contradict each other."""
    effective = effective_batch(options)
    choices: dict[str, tuple[Any, ...]] = {
        "micro_batch": tuple(n for n in range(1, effective + 1) if effective % n == 0),
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
    }
    pins = {name: dice.choice(values) for name, values in choices.items() if dice.random() < PIN}
    if pins.get("attention_chunk", 0) >= options.get("seq_len", 0) or pins.get("loss_chunk", 0) >= (
        effective * options.get("seq_len", 0)
    ):  # refused where they would change nothing
        pins = {name: value for name, value in pins.items() if name not in ("attention_chunk", "loss_chunk")}
    if not options["ema_decay"]:
        pins.pop("ema_bits", None)
    if pins.get("layerwise"):  # it takes the whole batch, and implies `block`
        pins = {name: value for name, value in pins.items() if name not in ("micro_batch", "remat")}
    return pins
