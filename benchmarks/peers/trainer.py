"""`transformers.Trainer` on a Llama of our shape: the peer that the text benchmark runs beside plimsoll.

    .venv-peer-trainer/bin/python benchmarks/sides.py peers.trainer --tokens T.npy --order O.npy --config C.json

The model and the Trainer are the library's own. The subclass below only keeps each step's loss, a callback
only reads the clock, and the collator hands over `shift_labels`, so that all `seq_len` tokens of a window are
predicted; with plain `labels` the library would predict one fewer. Imports nothing of plimsoll.
"""

import json
import platform
import tempfile
import time

import numpy as np
import torch
import transformers
from peers import contract
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Windows(Dataset):
    """The windows of the text in the order they are to be trained on."""

    def __init__(self, tokens: np.ndarray, order: np.ndarray, *, seq_len: int) -> None:
        self.tokens, self.order, self.seq_len = tokens, order.reshape(-1), seq_len

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> torch.Tensor:
        start = int(self.order[index]) * self.seq_len
        return torch.from_numpy(self.tokens[start : start + self.seq_len + 1].astype(np.int64))


def collate(windows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inputs and the tokens they predict, already shifted; `labels` only makes the model compute a loss."""
    batch = torch.stack(windows)
    targets = batch[:, 1:].contiguous()
    return {"input_ids": batch[:, :-1].contiguous(), "labels": targets, "shift_labels": targets}


class RecordingTrainer(Trainer):
    """Keeps the loss of every step; the library only reports means over the steps between two log lines."""

    def __init__(self, *args, decay: str, **options) -> None:
        super().__init__(*args, **options)
        self.decay, self.micro_losses = decay, []

    def training_step(self, *args, **options) -> torch.Tensor:
        loss = super().training_step(*args, **options)
        self.micro_losses.append(loss.item())
        return loss

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        return [name for name, value in model.named_parameters() if self.decay == "all" or value.ndim >= 2]

    def step_losses(self) -> list[float]:
        """A micro-batch's loss is its sum over the tokens of the effective batch: they add up."""
        return np.reshape(self.micro_losses, (-1, self.args.gradient_accumulation_steps)).sum(1).tolist()


class StepClock(TrainerCallback):
    """Seconds from the end of one step to the end of the next."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *args, **options) -> None:
        self.ends.append(time.perf_counter())

    def on_step_end(self, *args, **options) -> None:
        self.ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return np.diff(self.ends).tolist()


def make_model(config: dict, weights: np.lib.npyio.NpzFile | None) -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["layers"],
            num_attention_heads=config["heads"],
            max_position_embeddings=config["seq_len"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
            tie_word_embeddings=config["tie_embeddings"],
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    if weights is not None:
        parameters = dict(model.named_parameters())  # a tied head is not among them
        if parameters.keys() != set(weights.files):
            unmatched = sorted(parameters.keys() ^ set(weights.files))
            raise SystemExit(f"--weights does not fit the model; on one side only: {', '.join(unmatched)}")
        with torch.no_grad():
            for name, value in parameters.items():
                value.copy_(torch.from_numpy(weights[name]))
    return model


def training_arguments(options, *, folder: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": options.floor},
        warmup_steps=options.warmup,
        optim=options.optim,
        adam_beta1=options.beta1,
        adam_beta2=options.beta2,
        adam_epsilon=options.epsilon,
        weight_decay=options.weight_decay,
        max_grad_norm=options.clip,
        bf16=options.bf16,
        use_cpu=True,
        train_sampling_strategy="sequential",  # the order is the data set's own
        remove_unused_columns=False,  # or it would drop shift_labels
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def side() -> None:
    parser = contract.arguments(__doc__)
    parser.add_argument("--optim", default="adamw_torch_fused", help="Trainer's name of the AdamW implementation")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    config, order = json.loads(options.config.read_text()), np.load(options.order)
    if order.shape != (options.steps, options.batch_size * options.accumulation):
        raise SystemExit(
            f"--order has shape {order.shape}, but --steps, --batch-size and --accumulation make it"
            f" ({options.steps}, {options.batch_size * options.accumulation})"
        )
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = RecordingTrainer(
            model=make_model(config, np.load(options.weights) if options.weights else None),
            args=training_arguments(options, folder=folder),
            train_dataset=Windows(np.load(options.tokens), order, seq_len=config["seq_len"]),
            data_collator=collate,
            callbacks=[clock],
            decay=options.decay,
        )
        trainer.remove_callback(transformers.PrinterCallback)  # standard output is for the result
        trainer.train()
    print(
        contract.result_line(
            losses=trainer.step_losses(),
            step_seconds=clock.seconds(),
            tokens_per_step=order.shape[1] * config["seq_len"],
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        )
    )
