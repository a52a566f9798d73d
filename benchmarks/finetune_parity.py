"""Losses of fine-tuning beside PEFT and transformers, with windows shorter than a row and three plans each.

Part of finetune_beside_peft.py: `python benchmarks/finetune_beside_peft.py parity [--only gemma2]`.

Gemma 2 and Gemma 3 are the golden ones, Mistral, Qwen2 and Qwen3 random models from a seed, all with windows of 8 in
rows of 128 tokens, into which chats of 10 to 100 tokens are packed. Ours are the executables of a training process;
theirs reads every document alone. Compared are the loss of every step, `base_loss` and the held-out loss afterwards: at
most 1e-6 apart, relatively, over the same counted tokens.

Then a Gemma 3 that sees pictures is tuned, under the names of its tensors old and new, and exported: PEFT beside
`AutoModelForCausalLM`, and the merged folder alone, give the run's own logits within 1e-5 of the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measuring import verdict, write
from peers.environment import PEFT, SIDE_PROGRAM, peer_python
from random_model import END, shared, tokenizer
from safetensors.numpy import load_file, save_file
from training_process import plimsoll

from plimsoll.engine.program import load
from plimsoll.inference.trained import Trained
from plimsoll.models.pretrained.adapters import PATHS, AdapterSettings, write_adapter
from plimsoll.models.pretrained.config import read_config, sees_pictures
from plimsoll.planned import Plan
from plimsoll.recipes.finetune.recipe import Finetune
from plimsoll.training.loop import numbers_of, summed
from plimsoll.types import Compute

CLOSE, CLOSE_LOGITS = 1e-6, 1e-5
VOCAB, SEQ_LEN, STEPS, RANK = 300, 128, 6, 4
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": VOCAB - 1,
}  # fmt: skip
QWEN = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
MADE = {
    "mistral": {"head_dim": 16, "sliding_window": 8},
    "qwen2": QWEN,
    "qwen3": QWEN | {"head_dim": 16},
}
GOLDEN = ("gemma2", "gemma3")
PICTURES = {
    "text_config": SIZES | {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 32},
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 8, "model_type": "siglip_vision_model",
    },
    "mm_tokens_per_image": 4,
    "image_token_index": VOCAB - 2,
}  # fmt: skip
PLANS: Mapping[str, dict[str, Any]] = {
    "plain": {"micro_batch": 4, "remat": "none", "attention_chunk": 0, "loss_chunk": 0},
    "attention-chunk 64, remat": {"micro_batch": 4, "remat": "block", "attention_chunk": 64, "loss_chunk": 0},
    "micro-batch 1, loss-chunk, attention-chunk 16": {
        "micro_batch": 1, "remat": "none", "attention_chunk": 16, "loss_chunk": 48,
    },
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '<|endoftext|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def parity(options: argparse.Namespace) -> int:
    """Compares, and returns 1 where a goal is missed."""
    with tempfile.TemporaryDirectory() as name:
        work = Work(options, options.folder or Path(name))
        rows = [row for kind in (*MADE, *GOLDEN) if options.only in (None, kind) for row in work.family(kind)]
        pictures = [work.pictures(names) for names in ("new", "old") if options.only in (None, "pictures")]
    for row in pictures:
        print(row["model"], *(f"{form}: {off:.1e} of the largest logit" for form, off in row["off"].items()), sep="  ")
    worst = max((row["off"] for row in rows), default=0.0)
    worst_logits = max((off for row in pictures for off in row["off"].values()), default=0.0)
    met = worst <= CLOSE, worst_logits <= CLOSE_LOGITS
    print(f"losses within {worst:.1e} (goal, at most {CLOSE:.0e}: {verdict(met=met[0])})")
    print(f"logits within {worst_logits:.1e} (goal, at most {CLOSE_LOGITS:.0e}: {verdict(met=met[1])})")
    write(options.out, {"rows": rows, "pictures": pictures, "met": all(met)})
    return 0 if all(met) else 1


class Work:
    """Folder of models, chats and runs, and the interpreter of the peer."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        there = options.peer_environment / "bin/python"
        self.python = there if there.exists() else peer_python(options.peer_environment, PEFT)
        self.chats, self.held_out = (
            chats(folder / f"{name}.jsonl", seed) for name, seed in (("chats", 1), ("held", 2))
        )

    def family(self, kind: str) -> list[dict[str, Any]]:
        """Returns how far losses are from PEFT's, a row for each plan."""
        model = self.folder / kind
        if kind in GOLDEN:
            shutil.copytree(shared() / "golden/finetune" / f"{kind}_tiny", model)
        else:
            self.make(kind, SIZES | MADE[kind], model)
        add_chat_template(model)
        recipe = self.recipe(model)
        rows = rows_of(recipe, self.folder / f"{kind}-rows")
        theirs = self.folder / f"{kind}-theirs.json"
        self.peer("tune", model, recipe.init_from, rows, theirs)
        return [self.beside(kind, plan, recipe, json.loads(theirs.read_text())) for plan in PLANS]

    def beside(self, kind: str, plan: str, recipe: Finetune, theirs: dict[str, Any]) -> dict[str, Any]:
        name = f"{kind}-{list(PLANS).index(plan)}"
        ours = here(recipe, self.folder / name, PLANS[plan])
        pairs = {"base_loss": (ours["base_loss"], theirs["base_loss"]), "loss": (ours["loss"], theirs["loss"])}
        pairs |= {
            f"step {step}": pair for step, pair in enumerate(zip(ours["losses"], theirs["losses"], strict=True), 1)
        }
        off = {name: abs(one / other - 1) for name, (one, other) in pairs.items()}
        where = max(off, key=lambda name: off[name])
        print(
            f"{kind:8} {plan:46} base_loss {ours['base_loss']:.6f} ({off['base_loss']:.1e}), losses"
            f" {ours['losses'][0]:.6f} to {ours['losses'][-1]:.6f}, held out {ours['loss']:.6f}: largest"
            f" {off[where]:.1e} ({where})",
            flush=True,
        )
        return {"family": kind, "plan": plan, "off": off[where], "where": where, "ours": ours, "theirs": theirs}

    def pictures(self, names: str) -> dict[str, Any]:
        """Returns how far logits are from the run's: PEFT's beside the model, and those of the merged folder."""
        model = self.folder / f"pictures-{names}"
        self.make("gemma3", PICTURES, model)
        tensors = {in_form(name, names): tensor for name, tensor in load_file(model / "model.safetensors").items()}
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        add_chat_template(model)
        run = self.folder / f"pictures-{names}-run"
        recipe = self.recipe(model)
        self.train(recipe, run, "plain")
        adapter, merged = (self.folder / f"pictures-{names}-{form}" for form in ("adapter", "merged"))
        plimsoll("export", run, "--step=last", f"--adapter={adapter}", f"--merged={merged}")
        ids = self.folder / "ids.npy"
        np.save(ids, np.arange(60) * 7 % (VOCAB - 10))
        expected = logits_of(run, np.load(ids))
        off = {}
        for form, words in (("adapter", (model, adapter)), ("merged", (merged,)), ("base", (model,))):
            out = self.folder / f"{form}.npy"
            self.peer("logits", words[0], ids, out, *words[1:])
            off[form] = float(np.abs(np.load(out) - expected).max() / np.abs(expected).max())
        untuned = off.pop("base")
        assert untuned > 100 * CLOSE_LOGITS, "the adapter changes too little to show that it is applied"
        return {"model": f"gemma3 with pictures, {names} names", "off": off, "base_is_off": untuned}

    def recipe(self, model: Path) -> Finetune:
        adapter = self.folder / f"{model.name}-start"
        recipe = Finetune(
            pretrained=str(model),
            dataset_id=str(self.chats),
            validation_id=str(self.held_out),
            seq_len=SEQ_LEN,
            batch_size=4,
            steps=STEPS,
            warmup_steps=2,
            learning_rate=1e-3,
            lora_rank=RANK,
            init_from=str(adapter),
        )
        begun(adapter, recipe)
        return recipe

    def train(self, recipe: Finetune, run: Path, plan: str) -> None:
        fields = (
            "pretrained", "dataset_id", "validation_id", "seq_len", "batch_size", "steps", "warmup_steps",
            "learning_rate", "lora_rank", "init_from",
        )  # fmt: skip
        words = [f"--{name.replace('_', '-')}={getattr(recipe, name)}" for name in fields]
        how = ["--numerics=exact", "--memory=4GiB", "--log-every=1", "--quiet", f"--run={run}"]
        levers = [f"--{name.replace('_', '-')}={value}" for name, value in PLANS[plan].items()]
        plimsoll("train", "finetune", *words, *levers, *how)

    def make(self, kind: str, config: dict[str, Any], folder: Path) -> None:
        path = self.folder / f"{kind}.json"
        path.write_text(json.dumps(config))
        self.peer("make", kind, path, folder)

    def peer(self, *words: Any) -> None:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [str(self.python), SIDE_PROGRAM, "peers.parity_side", *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"error: {' '.join(command)}\n{done.stderr[-3000:]}")


def here(recipe: Finetune, folder: Path, levers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a run with these levers would log and evaluate, computed in this process."""
    folder.mkdir()
    prepared = recipe.prepare(folder, lambda _: None)
    (folder / "data.json").write_text(json.dumps({"facts": prepared.facts}))
    accumulation = recipe.effective_batch // levers["micro_batch"]
    fixed = {"chip": "cpu", "precision": "float32", "prefetch": 1, "async_save": False, "accumulation": accumulation}
    plan = Plan(**fixed, **levers)
    executables = load(recipe, plan, steps=STEPS)
    state = executables.init(np.uint32(0))
    state |= {"params": recipe.begin(state["params"])}
    source, losses = recipe.source(folder, prefetch=0), []
    for _ in range(STEPS):
        state, report = executables.step(state, executables.put(next(source)))
        losses.append(numbers_of(report)["loss"])

    base: Any = recipe.task(plan.compute("cpu")).task
    key = jax.random.key(0)  # of dropout, which it does not have

    @jax.jit
    def of_base(params: Any, batch: Any) -> Any:
        return {"loss": base.loss({"trainable": params["frozen"]["base"]}, None, batch, key, train=False)[0]}

    def held_out(evaluate: Any) -> float:
        batches = iter(recipe.validation(folder, examples=plan.micro_batch))
        return summed(batches, evaluate, state["params"])["validation_loss"]

    return {"losses": losses, "base_loss": held_out(of_base), "loss": held_out(executables.evaluate)}


def chats(path: Path, seed: int) -> Path:
    """Writes conversations of one to three exchanges, of words from a seed."""
    draw = random.Random(seed)
    words = ["the", "ship", "sea", "line", "load", "water", "deck", "mark", "keel", "over", "is", "was", "and", "so"]

    def said(most: int) -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(1, most)))

    records = [
        {
            "messages": [
                {"role": role, "content": said(6)} for _ in range(draw.randint(1, 3)) for role in ("user", "assistant")
            ]
        }
        for _ in range(60)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def add_chat_template(folder: Path) -> None:
    """Adds a tokenizer with a chat template."""
    tokenizer(VOCAB).save(str(folder / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


def begun(folder: Path, recipe: Finetune) -> None:
    """Writes an adapter that changes something from the beginning, with the names of its model."""
    draw, shape, learned = np.random.default_rng(1), recipe.shape, {}
    for path, published in PATHS.items():
        out, inner = shape.tensors()[f"model.layers.0.{published}.weight"]
        sides = {"a": (shape.layers, inner, RANK), "b": (shape.layers, RANK, out)}
        learned[path] = {name: 0.1 * draw.standard_normal(side, np.float32) for name, side in sides.items()}
    pictures = sees_pictures(read_config(recipe.pretrained)[0])
    write_adapter(folder, learned, AdapterSettings(rank=RANK, alpha=2.0 * RANK), pictures=pictures)


def rows_of(recipe: Finetune, folder: Path) -> Path:
    """Writes the rows of our steps, of the held-out records, and the learning rates."""
    folder.mkdir()
    prepared = recipe.prepare(folder, lambda words: print(words, file=sys.stderr))
    (folder / "data.json").write_text(json.dumps({"facts": prepared.facts}))
    names = ("input_ids", "labels", "counted", "segments")
    batches = [batch for batch, _ in zip(recipe.source(folder, prefetch=0), range(STEPS), strict=False)]
    held_out = list(recipe.validation(folder, examples=4))
    rate = recipe.optimizer(STEPS).schedule(STEPS)
    arrays = {name: np.stack([batch[name] for batch in batches]) for name in names}
    arrays |= {f"held_out_{name}": np.concatenate([batch[name] for batch in held_out]) for name in names}
    padded = float((arrays["segments"][..., -1] == 0).mean())
    assert padded > 0.5, f"only {padded:.0%} of the rows end in padding"
    np.savez(folder / "rows.npz", rates=[float(rate(step)) for step in range(STEPS)], **arrays)
    return folder / "rows.npz"


def logits_of(run: Path, ids: np.ndarray) -> np.ndarray:
    """Returns the logits of a run's last checkpoint."""
    opened = Trained(str(run), step="last")
    task: Any = opened.recipe.task(Compute())
    model, weights = task.task.model, task.adapted(opened.params())
    return np.asarray(
        jax.jit(lambda w, i: model.logits(w, model.hidden(w, i)[0]))(weights, jnp.asarray(ids[None], jnp.int32))
    )


def in_form(name: str, names: str) -> str:
    """Returns the name of a tensor of a Gemma 3 with pictures as newer or older versions of transformers write it."""
    text = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
    if "vision_tower" in name or "multi_modal_projector" in name:
        return f"model.{text}" if names == "new" else text
    if text.startswith("lm_head"):
        return text if names == "new" else f"language_model.{text}"
    return f"model.language_model.{text}" if names == "new" else f"language_model.model.{text}"
