"""transformers' and PEFT's side of finetune_parity.py: random models, losses of tuning, logits beside an adapter.

    PYTHON benchmarks/sides.py peers.parity_side make KIND CONFIG.json FOLDER
    PYTHON benchmarks/sides.py peers.parity_side tune MODEL ADAPTER ROWS.npz OUT.json
    PYTHON benchmarks/sides.py peers.parity_side logits MODEL IDS.npy OUT.npy [ADAPTER]

Each document goes through the model alone, so there is no mask that could be wrong. AdamW is torch's, in float32 with
eager attention; the clip is of the global norm. Imports nothing of plimsoll.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

EMPTY = 0
"""Segment of positions that no document fills."""


def make(kind: str, config: str, folder: str) -> None:
    """A model of random weights from a seed; norms are moved from where they begin, so that each counts."""
    torch.manual_seed(0)
    settings = CONFIG_MAPPING[kind](**json.loads(Path(config).read_text()))
    model = transformers.AutoModelForCausalLM.from_config(settings).float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    model.save_pretrained(folder)


def opened(folder: str) -> torch.nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    model.config.use_cache = False
    return model.eval()


def tune(model: str, adapter: str, rows: str, out: str) -> None:
    """Writes the loss of every step before its update, and of held-out rows without the adapter and after all steps."""
    tuned = peft.PeftModel.from_pretrained(opened(model), adapter, is_trainable=True).eval()
    learned = [weight for weight in tuned.parameters() if weight.requires_grad]
    rule = torch.optim.AdamW(learned, lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    with np.load(rows) as file:
        arrays = {name: file[name] for name in file.files}
    held_out = {name.removeprefix("held_out_"): rows for name, rows in arrays.items() if name.startswith("held_out_")}
    with torch.no_grad(), tuned.disable_adapter():
        base = mean_loss(tuned, held_out)
    losses = []
    for step, rate in enumerate(arrays["rates"].tolist()):
        batch = {name: arrays[name][step] for name in held_out}
        loss = mean_loss(tuned, batch)
        loss.backward()
        norm = torch.sqrt(sum((weight.grad.double() ** 2).sum() for weight in learned))
        for weight in learned:
            weight.grad.mul_(min(1.0, float(1 / norm)))
        rule.param_groups[0]["lr"] = rate
        rule.step()
        rule.zero_grad()
        losses.append(float(loss))
    with torch.no_grad():
        after = mean_loss(tuned, held_out)
    Path(out).write_text(json.dumps({"losses": losses, "base_loss": float(base), "loss": float(after)}))


def mean_loss(model: torch.nn.Module, rows: dict[str, np.ndarray]) -> torch.Tensor:
    """The mean over counted tokens, each document read alone and from position 0; summed in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(rows["input_ids"])):
        for segment in np.unique(rows["segments"][row]):
            counted = (rows["segments"][row] == segment) & (rows["counted"][row] > 0)
            if segment == EMPTY or not counted.any():
                continue
            at = np.flatnonzero(rows["segments"][row] == segment)
            ids, labels = (torch.from_numpy(rows[name][row][at].astype(np.int64)) for name in ("input_ids", "labels"))
            logits = model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).logits[0]
            nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            total = total + nll[torch.from_numpy(counted[at])].double().sum()
    return total / float((rows["counted"] > 0).sum())


def logits(model: str, ids: str, out: str, *adapter: str) -> None:
    """Writes logits of one row of ids. PEFT's warnings are errors: of names that it does not find it only warns."""
    read = opened(model)
    if adapter:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            read = peft.PeftModel.from_pretrained(read, adapter[0]).eval()
    tokens = torch.from_numpy(np.load(ids).astype(np.int64))[None]
    with torch.no_grad():
        found = read(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0]
    np.save(out, found.numpy())


def side() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    {"make": make, "tune": tune, "logits": logits}[sys.argv[1]](*sys.argv[2:])
