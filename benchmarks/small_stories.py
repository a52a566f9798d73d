"""A small model of stories, trained here on one text alone, beside a published checkpoint of the same size.

    PYTHONPATH=src:benchmarks python benchmarks/small_stories.py --text STORIES.txt --checkpoint FOLDER

Every twentieth story from --first on is held out: the tokenizer and the model come from the others, and of these one in
a hundred decides which checkpoint is the best. Bits a byte of the held-out stories compare models with different
tokenizers. What the model is trained with is below. It was found in a few trainings, of which four were scored on every
twentieth story from the first on (docs/log.md, "A model of 640K"): by default others are held out. Writes
bench-out/small_stories.json; the run stays in bench-out/small-stories-FIRST/.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from goals import verdict
from peers.environment import ROOT
from text_vs_trainer import conditions
from training_process import plimsoll, trained

HELD_OUT = 20
FIRST = 10
"""By default stories 10, 30, 50, ... are held out, by which no setting was scored before the one below was chosen."""
SEPARATOR = "<|endoftext|>"
OPTIONS = (
    "--width 128 --layers 2 --heads 8 --vocab-size 2048 --seq-len 512 --batch-size 8 --micro-batch 4 --epochs 22"
    " --learning-rate 4e-3 --weight-decay 1.4 --ema-decay 0.995 --memory 1GiB --quiet"
)
MOST_MINUTES = 90
FACTS = ("loss", "bits_per_byte", "tokens", "documents", "seq_len")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--text", type=Path, required=True, help=f"stories, with {SEPARATOR} between them")
    options.add_argument("--checkpoint", type=Path, required=True, help="folder of the published model")
    options.add_argument("--options", default=OPTIONS)
    options.add_argument("--first", type=int, default=FIRST, choices=range(HELD_OUT), help="held-out story")
    given = options.parse_args()
    folder = ROOT / f"bench-out/small-stories-{given.first}"
    folder.mkdir(parents=True, exist_ok=True)
    stories = [story for story in given.text.read_text("utf-8").split(SEPARATOR) if story.strip()]
    held_out, learned, run, exported = (folder / name for name in ("held-out.txt", "learned.txt", "run", "exported"))
    unseen = stories[given.first :: HELD_OUT]
    held_out.write_text(SEPARATOR.join(unseen), "utf-8")
    others = (story for at, story in enumerate(stories) if at % HELD_OUT != given.first)
    learned.write_text(SEPARATOR.join(others), "utf-8")
    plimsoll("train", "stories", "--dataset-id", learned, *shlex.split(given.options), "--run", run)
    if not exported.exists():
        plimsoll("export", run, "--merged", exported)
    over = trained(run)
    losses = {
        name: json.loads(plimsoll("evaluate", "--pretrained", model, "--text", held_out, "--json"))
        for name, model in (("ours", exported), ("published", given.checkpoint))
    }
    minutes = max(row["elapsed_seconds"] for row in over.rows) / 60
    found = {
        "conditions": conditions(argparse.Namespace(options=given.options, first=given.first)),
        "text": given.text.name,
        "checkpoint": given.checkpoint.name,
        "parameters": over.planned["parameters"],
        "minutes": minutes,
        "predicted_bytes": over.predicted,
        "peak_bytes": over.peak,
        "held_out": {name: {fact: each[fact] for fact in FACTS} for name, each in losses.items()},
    }
    out = ROOT / "bench-out/small_stories.json"
    out.write_text(json.dumps(found, indent=1))
    bits = {name: each["bits_per_byte"] for name, each in found["held_out"].items()}
    met = bits["ours"] < bits["published"] and minutes <= MOST_MINUTES
    print(
        f"{over.planned['parameters']:,} parameters, {minutes:.0f} minutes (goal {MOST_MINUTES}):"
        f" {bits['ours']:.4f} bits a byte of {len(unseen)} held-out stories, the published checkpoint"
        f" {bits['published']:.4f}: {verdict(met=met)}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
