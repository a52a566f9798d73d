"""Fine-tuning beside PEFT and transformers: LoRA on this CPU, the same model, rows and adapter, in turn.

    PYTHONPATH=src:benchmarks python benchmarks/finetune_beside_peft.py [--rounds 2] [--steps 6]

The model has SmolLM2-135M's shape and random weights in bfloat16 (random_model.py); rank 16 beside every linear layer,
4 rows of 512 tokens a step, each one document, so that the peer needs no mask. Ours is `plimsoll train finetune` with
the base in bfloat16 under the share of the peer's peak that is the goal; where that is refused, under what the refusal
advises, and that is said. The peer is given its better settings: `--peer-settings` tries others.

Each side is a process of its own, A B A B. Peaks are VmHWM of the process that trains. Prints a table and writes a file
into bench-out/ (--out).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measuring import ROOT, conditions, verdict, write
from peers.environment import PEFT, PEFT_FOLDER, SIDE_PROGRAM, peer_python
from random_model import made, shared, text_records
from text_vs_trainer import ours, run
from training_process import MIB

from plimsoll.models.pretrained.adapters import AdapterSettings, write_adapter
from plimsoll.models.pretrained.find import known_configs
from plimsoll.recipes.registry import preset

LIKE = "HuggingFaceTB/SmolLM2-135M"
GOAL_SPEED, GOAL_MEMORY, GOAL_LOSS = 1.5, 0.4, 0.001
IGNORED = -100
"""Label that torch does not count."""


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        inputs = Inputs(options, options.folder or Path(name))
        rounds = []
        for number in range(options.rounds):
            peer = inputs.peer(options.peer_settings)
            ours = inputs.ours(number, int(GOAL_MEMORY * peer["peak_resident_bytes"]))
            rounds.append({"peer": peer, "plimsoll": ours})
            print(line("peer", peer), line("plimsoll", ours), sep="\n", flush=True)
    result = summary(rounds)
    print(table(result))
    write(options.out, {"conditions": conditions(options), **result, "rounds": rounds})
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-environment", type=Path, default=PEFT_FOLDER)
    parser.add_argument("--folder", type=Path, help="keep models, rows and runs here")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/finetune_beside_peft.json")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=4, help="rows of a step")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--peer-settings", nargs="*", default=[], help="flags of peers/peft_side.py, without --")
    parser.add_argument("--numerics", default="mixed", help="ours")
    parser.add_argument("--pins", nargs="*", default=[], help="further options of `plimsoll train`, without --")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


class Inputs:
    """Folder of the model and the records that both sides are given."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.model = folder / "model"
        if not self.model.exists():
            made(self.model, known_configs()[LIKE.lower()])
        records = text_records(
            folder / "stories.jsonl",
            files=[shared() / "data/text/tinystories_train.txt"],
            characters=8 * options.seq_len,  # more tokens than a row has, so that each is filled by one document
        )
        self.recipe = preset(
            "finetune",
            pretrained=str(self.model),
            dataset_id=str(records),
            init_from=str(self._adapter()),
            seq_len=options.seq_len,
            batch_size=options.rows,
            steps=options.steps,
            warmup_steps=2,
            validation_tokens=1,
        )
        self.rows = self._rows()

    def _adapter(self) -> Path:
        """Writes PEFT's initial values: the first factor uniform, the second zero."""
        draw, rank = np.random.default_rng(1), 16
        kernels = {
            "query": (576, 576), "key": (576, 192), "value": (576, 192), "out": (576, 576), "gate": (576, 1536),
            "up": (576, 1536), "down": (1536, 576),
        }  # fmt: skip
        learned = {
            f"blocks/{name}/kernel": {
                "a": draw.uniform(-(inner**-0.5), inner**-0.5, (30, inner, rank)),
                "b": np.zeros((30, rank, columns)),
            }
            for name, (inner, columns) in kernels.items()
        }
        write_adapter(self.folder / "adapter", learned, AdapterSettings(rank=rank, alpha=32.0))
        return self.folder / "adapter"

    def _rows(self) -> Path:
        """Writes the rows of our first steps, and their learning rates, for the peer."""
        folder = self.folder / "rows"
        folder.mkdir(exist_ok=True)
        prepared = self.recipe.open(folder).prepare(lambda words: print(words, file=sys.stderr))
        (folder / "data.json").write_text(json.dumps({"facts": prepared.facts}))
        source = self.recipe.open(folder).source(prefetch=0)
        batches = [batch for batch, _ in zip(source, range(self.options.steps), strict=False)]
        alone = all((batch["segments"] == 1).all() for batch in batches)
        if not alone:
            sys.exit("error: a row holds several documents, or is not full: the peer would need a mask")
        rate = self.recipe.optimizer.schedule(self.options.steps)
        np.savez(
            folder / "rows.npz",
            input_ids=np.stack([batch["input_ids"] for batch in batches]),
            labels=np.stack([np.where(batch["learned"] > 0, batch["labels"], IGNORED) for batch in batches]),
            rates=[float(rate(step)) for step in range(self.options.steps)],
        )
        return folder / "rows.npz"

    def peer(self, settings: list[str]) -> dict[str, Any]:
        python = peer_python(self.options.peer_environment, PEFT)
        words = [f"--model={self.model}", f"--adapter={self.folder / 'adapter'}", f"--rows={self.rows}"]
        words += [f"--steps={self.options.steps}", f"--threads={self.options.threads}"]
        return run([str(python), SIDE_PROGRAM, "peers.peft_side", *words, *(f"--{word}" for word in settings)])

    def ours(self, number: int, memory: int) -> dict[str, Any]:
        recipe = self.recipe
        fields = ("pretrained", "dataset_id", "init_from", "seq_len", "batch_size", "steps", "warmup_steps")
        words = [f"--{name.replace('_', '-')}={recipe.options[name]}" for name in (*fields, "validation_tokens")]
        words += ["--frozen-bits=16", f"--numerics={self.options.numerics}"]
        words += [f"--{pin}" for pin in self.options.pins]
        tokens = self.options.rows * self.options.seq_len
        return ours(["finetune", *words], memory, self.folder / f"run{number}", tokens)


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns medians of each side, ours over the peer's, and the largest difference of a step's loss."""
    names = ("tokens_per_second", "step_seconds", "peak_resident_bytes", "first_loss", "final_loss")
    medians = {
        side: {name: statistics.median(one[side][name] for one in rounds) for name in names} for side in rounds[0]
    }
    ratios = {name: medians["plimsoll"][name] / medians["peer"][name] for name in names}
    off = max(
        abs(ours / theirs - 1)
        for one in rounds
        for ours, theirs in zip(one["plimsoll"]["losses"], one["peer"]["losses"], strict=True)
    )
    met = {
        "speed": ratios["tokens_per_second"] >= GOAL_SPEED,
        "memory": ratios["peak_resident_bytes"] <= GOAL_MEMORY,
        "loss": off <= GOAL_LOSS,
    }
    return {"medians": medians, "ratios": ratios, "largest_difference_of_losses": off, "met": met}


def line(side: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    speed, seconds = row["tokens_per_second"], row["step_seconds"]
    losses = f"losses {row['first_loss']:.4f} to {row['final_loss']:.4f}"
    peak = f"{row['peak_resident_bytes'] / MIB:7,.0f} MiB"
    return f"{side:9} {speed:7,.0f} tokens/s {seconds:7.2f} s a step {peak}  {losses}"


def table(result: dict[str, Any]) -> str:
    ratios, met = result["ratios"], {name: verdict(met=good) for name, good in result["met"].items()}
    return "\n".join(
        [
            *(line(side, row) for side, row in result["medians"].items()),
            f"speed {ratios['tokens_per_second']:.2f}x (goal, at least {GOAL_SPEED}: {met['speed']}), peak"
            f" {ratios['peak_resident_bytes']:.2f}x (at most {GOAL_MEMORY}: {met['memory']}), losses within"
            f" {result['largest_difference_of_losses']:.2%} (at most {GOAL_LOSS:.1%}: {met['loss']})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
