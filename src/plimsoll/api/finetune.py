"""Fine-tuning in Python: `plimsoll.finetune` returns a job (model and data), with methods to plan, train and export."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plimsoll.api.keywords import read_request
from plimsoll.api.messages import Say
from plimsoll.api.plan import RecipePlan, plan
from plimsoll.api.run import Run, load, train
from plimsoll.api.use import Place
from plimsoll.recipes.recipe import Pinned

RUN = "runs/finetune"
"""Default folder of a fine-tuning run."""


@dataclass(frozen=True, kw_only=True)
class Tune(Pinned):
    """Fine-tuning job, as `plimsoll.finetune` returns it: plan it, train it, then export the trained model.

    Attributes:
        recipe: Recipe with model, data and optimizer. It has options like `recipe.model.lora_rank`.
        pins: Memory-saving options ("levers") with values that the planner must keep, like {"frozen_bits": 4}.
        run: Folder of the run that `train` starts or continues, and that `export` reads.

    Example:
        >>> tune = plimsoll.finetune("Llama-3.2-1B/", data="chats.jsonl")  # doctest: +SKIP
        >>> tune.plan(chip="rtx4090").ledger.predicted_peak_bytes  # doctest: +SKIP
        >>> run = tune.train(memory="20GiB")  # doctest: +SKIP
    """

    run: str = RUN
    """Folder of the run that `train` starts or continues, and that `export` reads."""

    def plan(self, **options: Any) -> RecipePlan:
        """Finds the fastest way to train within a memory budget, without downloading weights or allocating them.

        Args:
            options: Options of `plimsoll.plan`, like `chip="rtx4090"` or `memory="20GiB"`.

        Returns:
            The plan: predicted memory (`peak_bytes`), time per step (`step_seconds`) and a value for every
            memory-saving option (`levers`).

        Raises:
            BudgetError: No plan fits the memory.
        """
        return plan(self, **options)

    def train(
        self, *, memory: str | float | None = None, chip: str | None = None, say: Say | None = None, **options: Any
    ) -> Run:
        """Trains within a memory budget, in a separate process. If the run exists, continues from its last checkpoint.

        Args:
            memory: Memory budget per device, like "20GiB" or a number of bytes. By default the memory of the GPU or TPU
                that is free now, or on a CPU the machine's free memory less a safety margin.
            chip: Device to train on, by its name in `plimsoll chips`. By default the GPU or TPU that JAX finds, else
                the CPU.
            say: Function that is called with progress messages, each a string. By default they are printed, unless
                `quiet=True`.
            options: Other options of `plimsoll.train`, like `max_steps=100`.

        Returns:
            The run, with metrics, parameters and checkpoints.

        Raises:
            BudgetError: No plan fits the memory.
            PlimsollError: The request is invalid, or the training process fails.
        """
        options = {"run": self.run} | options
        return train(self, memory=memory, chip=chip, say=say, **options)

    def export(
        self,
        adapter: Place = None,
        *,
        merged: Place = None,
        step: str = "best",
    ) -> dict[str, Any]:
        """Exports the trained model to the formats of other programs. Name at least one folder.

        Args:
            adapter: New folder for the LoRA adapters alone, which `peft.PeftModel.from_pretrained` loads.
            merged: New folder for the complete model in the Hugging Face format, which `transformers` loads.
            step: Step number of a checkpoint, "last", or "best" (lowest validation loss).

        Returns:
            A dict with `run`, `step`, and an entry for each format written: `adapter` or `merged`. An entry is a dict
            like {"out": "/models/adapter", "parameters": 1300000, "bytes": 5200000}.

        Raises:
            CheckpointError: No checkpoint is saved yet.
            RecipeError: A folder exists already, or the model has no such format.
        """
        return load(self.run).export(merged, adapter=adapter, step=step)


def finetune(
    pretrained: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] = "",
    frozen_bits: Literal[32, 16, 8, 4] | None = None,
    pins: Mapping[str, Any] | None = None,
    run: str | os.PathLike[str] = RUN,
    **options: Any,
) -> Tune:
    """Describes a fine-tuning job for a pretrained language model, with LoRA by default. Loads no weights or data yet.

    Args:
        pretrained: Folder of a Llama, Mistral, Qwen or Gemma model, or its id on the Hugging Face hub.
        data: Training records: a .jsonl, .json or .parquet file, a folder of them, or a Hugging Face data set. Each
            record has `messages`, `prompt` and `completion`, or `text`. Not needed for planning.
        frozen_bits: Bits per pretrained weight, which LoRA leaves frozen: 16 is bfloat16, 8 int8, 4 NF4 (as in QLoRA).
            By default the planner chooses.
        pins: Other memory-saving options ("levers") to fix, by name, like {"micro_batch": 1}. The planner chooses the
            rest.
        run: Folder of the run, for checkpoints and logs.
        options: Options of the recipe, like `lora_rank=16`, `seq_len=4096`, `epochs=2`.

    Returns:
        The job. Call its methods `plan`, `train` and `export`, or pass it to `plimsoll.plan` or `plimsoll.train`.

    Raises:
        RecipeError: An option is unknown, or contradicts another.

    Example:
        >>> tune = plimsoll.finetune("Qwen/Qwen2.5-7B-Instruct", data="chats.jsonl", frozen_bits=4, seq_len=4096)
        >>> tune.recipe.model.lora_rank, tune.pins
        (16, {'frozen_bits': 4})
        >>> print(plimsoll.plan(tune, chip="rtx4090"))  # doctest: +SKIP
        >>> run = tune.train(memory="20GiB")  # doctest: +SKIP
        >>> tune.export("adapter/")  # doctest: +SKIP
    """
    fields = {"pretrained": os.fspath(pretrained), "data": os.fspath(data), **options}
    recipe = read_request("finetune", fields, verb="finetune").recipe
    levers = dict(pins or {}) if frozen_bits is None else {"frozen_bits": frozen_bits, **(pins or {})}
    return Tune(recipe=recipe, pins=levers, run=os.fspath(run))
