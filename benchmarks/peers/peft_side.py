"""PEFT's LoRA on a `transformers` model: the peer that finetune_beside_peft.py runs beside plimsoll.

    PYTHON benchmarks/sides.py peers.peft_side --model FOLDER --adapter FOLDER --rows ROWS.npz --steps 6

The base is loaded in bfloat16 and the adapter in float32, as PEFT's `autocast_adapter_dtype` and the libraries' own
examples have them; AdamW is torch's fused one. Rows are whole documents of one length, so that no mask is needed.
Labels come shifted. Imports nothing of plimsoll.
"""

import argparse
import platform
import time
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from peers import contract


def side() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    model = tuned_model(options)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    rule = torch.optim.AdamW(learned, lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)
    with np.load(options.rows) as file:
        rows = {name: torch.from_numpy(file[name].astype(np.int64)) for name in ("input_ids", "labels")}
        rates = file["rates"].tolist()
    losses, seconds = [], []
    for step in range(options.steps):
        started = time.perf_counter()
        for group in rule.param_groups:
            group["lr"] = rates[step]
        losses.append(one_step(model, rule, learned, {name: of_all[step] for name, of_all in rows.items()}, options))
        seconds.append(time.perf_counter() - started)
    print(
        contract.result_line(
            losses=losses,
            step_seconds=seconds,
            tokens_per_step=rows["input_ids"][0].numel(),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "peft": peft.__version__,
            },
        )
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--adapter", type=Path, required=True, help="PEFT folder to begin with")
    parser.add_argument(
        "--rows", type=Path, required=True, help="npz: input_ids and labels of (steps, rows, tokens), rates"
    )
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, default=4, help="rows of one forward pass")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--checkpointing", action="store_true", help="transformers' gradient checkpointing")
    parser.add_argument("--autocast", action="store_true", help="products of the adapter in bfloat16, too")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def tuned_model(options: argparse.Namespace) -> torch.nn.Module:
    base = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.bfloat16, attn_implementation=options.attention
    )
    base.config.use_cache = False
    if options.checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()
    model = peft.PeftModel.from_pretrained(base, options.adapter, is_trainable=True)
    return model.train()


def one_step(model, rule, learned, batch, options) -> float:
    """The mean loss of the counted tokens, before the update."""
    counted = (batch["labels"] != -100).sum()
    total = 0.0
    for start in range(0, len(batch["input_ids"]), options.micro_batch):
        part = {name: rows[start : start + options.micro_batch] for name, rows in batch.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):
            found = model(
                input_ids=part["input_ids"],
                labels=part["labels"],
                shift_labels=part["labels"],
                num_items_in_batch=counted,
            )
        found.loss.backward()
        total += found.loss.item()
    torch.nn.utils.clip_grad_norm_(learned, 1.0)
    rule.step()
    rule.zero_grad(set_to_none=True)
    return total
