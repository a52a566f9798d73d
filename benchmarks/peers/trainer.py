"""`transformers.Trainer` on a Llama of our shape: the peer that the text benchmark runs beside plimsoll.

    .venv-peer-trainer/bin/python benchmarks/sides.py peers.trainer --tokens T.npy --config C.json

The model and the Trainer are the library's own. The subclass below only keeps each step's loss, a callback
only reads the clock, and the collator hands over `shift_labels`, so that all `seq_len` tokens of a window are
predicted; with plain `labels` the library would predict one fewer. Imports nothing of plimsoll.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from peers import contract
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Windows(Dataset):
    """Windows of `seq_len + 1` tokens that overlap by one."""

    def __init__(self, tokens: np.ndarray, seq_len: int) -> None:
        self.tokens = tokens
        self.seq_len = seq_len

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_len

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self.seq_len
        return torch.from_numpy(self.tokens[start : start + self.seq_len + 1].astype(np.int64))


def collate(windows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns inputs and the tokens they predict, already shifted; `labels` only makes the model compute a loss."""
    batch = torch.stack(windows)
    targets = batch[:, 1:].contiguous()
    return {"input_ids": batch[:, :-1].contiguous(), "labels": targets, "shift_labels": targets}


class RecordingTrainer(Trainer):
    """Keeps the loss of every step; the library only reports means over the steps between two log lines."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.micro_losses: list[float] = []

    def training_step(self, *args, **options) -> torch.Tensor:
        loss = super().training_step(*args, **options)
        self.micro_losses.append(loss.item())
        return loss

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        return [name for name, value in model.named_parameters() if value.ndim >= 2]

    def step_losses(self) -> list[float]:
        """A micro-batch's loss is its sum over the tokens of the effective batch: they add up."""
        return np.reshape(self.micro_losses, (-1, self.args.gradient_accumulation_steps)).sum(1).tolist()


class StepClock(TrainerCallback):
    """Times from the end of one step to the end of the next."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *args, **options) -> None:
        self.ends.append(time.perf_counter())

    def on_step_end(self, *args, **options) -> None:
        self.ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return np.diff(self.ends).tolist()


def make_model(config: dict) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config["vocab_size"],
            hidden_size=config["width"],
            intermediate_size=config["inner"],
            num_hidden_layers=config["layers"],
            num_attention_heads=config["heads"],
            max_position_embeddings=config["seq_len"],
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def training_arguments(config: dict, options: argparse.Namespace, folder: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        max_steps=config["steps"],
        per_device_train_batch_size=config["batch_size"],
        gradient_accumulation_steps=config["accumulation"],
        learning_rate=config["learning_rate"],
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=config["warmup_steps"],
        optim=options.optim,
        adam_beta2=config["beta2"],
        weight_decay=config["weight_decay"],
        max_grad_norm=config["clip_norm"],
        bf16=config["bf16"],
        seed=config["seed"],
        use_cpu=True,
        remove_unused_columns=False,  # or it would drop shift_labels
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def side() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=Path, required=True, help="npy, int32 (tokens,): the text")
    parser.add_argument("--config", type=Path, required=True, help="JSON of text_vs_trainer.py")
    parser.add_argument("--optim", default="adamw_torch_fused", help="Trainer's name of the AdamW implementation")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = json.loads(options.config.read_text())
    torch.manual_seed(config["seed"])

    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = RecordingTrainer(
            model=make_model(config),
            args=training_arguments(config, options, folder),
            train_dataset=Windows(np.load(options.tokens), config["seq_len"]),
            data_collator=collate,
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)  # standard output is for the result
        trainer.train()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    print(
        contract.result_line(
            losses=trainer.step_losses(),
            step_seconds=clock.seconds(),
            tokens_per_step=config["batch_size"] * config["accumulation"] * config["seq_len"],
            versions=versions | {"transformers": transformers.__version__},
        )
    )
