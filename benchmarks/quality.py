"""What each recipe learns: trained to its end by its defaults, and looked at by its own evaluation.

    PYTHONPATH=src:benchmarks python benchmarks/quality.py recommend --interactions FILE [--pretrained FOLDER]
    PYTHONPATH=src:benchmarks python benchmarks/quality.py control --data windows.h5 [--run FOLDER] [-- --epochs 2]
    PYTHONPATH=src:benchmarks python benchmarks/quality.py stories --text STORIES.txt --checkpoint FOLDER
    PYTHONPATH=src:benchmarks python benchmarks/quality.py finetune [--seconds 60] [--only lora-8 scratch]
    PYTHONPATH=src:benchmarks python benchmarks/quality.py longcontext [--minutes 6] [--seq-len 1024]

`recommend` prepares the file, trains each row with `--memory 1GiB`, and ranks every item of the catalogue for every
user's test item, beside the four baselines that learn nothing.

`control` trains with `--memory 512MiB` and the words after `--`; a run that is finished is only evaluated. Held-out
variants are evaluated, and driven for 10 s each.

`stories`: every twentieth story from --first on is held out, the tokenizer and the model come from the others. Bits a
byte of the held-out stories compare it with a published checkpoint that has another tokenizer. The options were found
in a few trainings that were scored on other stories; the run stays in bench-out/small-stories-FIRST/.

`finetune`: the 656K Llama of TinyStories on Python's own library, 8 rows of 256 tokens a step: adapters, the whole
model, and training from scratch, each for the same processor time. The loss is that of every tenth file (nats a token),
by learning rate; the base's is that of the untouched model.

`longcontext` and `code` (the transformer) read the same documents with the same tokenizer and hold out the same ones.
The first has the sizes given here, the second as many layers, and the width that comes nearest to its parameters. Each
trains for as many steps as fit into the minutes of the machine's cores.

Writes a file into bench-out/ (--out), of `recommend` after each row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import ROOT, conditions, verdict, write
from training_process import plimsoll, trained

OUT = {
    "recommend": "recommend_quality",
    "control": "control_quality",
    "stories": "small_stories",
    "finetune": "finetune_quality",
    "longcontext": "longcontext_language",
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = options.add_subparsers(dest="kind", required=True)
    each = {name: kinds.add_parser(name) for name in OUT}
    for name, of_kind in each.items():
        of_kind.add_argument("--out", type=Path, default=ROOT / f"bench-out/{OUT[name]}.json")
        of_kind.add_argument("--folder", type=Path, help="to keep data and runs; default one that is removed")
    each["recommend"].add_argument("--interactions", required=True, type=Path)
    each["recommend"].add_argument("--pretrained", default="", help="a Llama's or a Gemma's folder; else no such rows")
    each["recommend"].add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    each["control"].add_argument("--data", type=Path, required=True, help="made by `plimsoll prepare control`")
    each["control"].add_argument("--run", type=Path, help="to keep the run; default one that is removed")
    each["control"].add_argument("words", nargs="*", help="more options of `plimsoll train control`, after --")
    each["stories"].add_argument("--text", type=Path, required=True, help=f"stories, with {SEPARATOR} between them")
    each["stories"].add_argument("--checkpoint", type=Path, required=True, help="folder of the published model")
    each["stories"].add_argument("--options", default=STORIES)
    each["stories"].add_argument("--first", type=int, default=FIRST, choices=range(HELD_OUT), help="held-out story")
    each["finetune"].add_argument("--seconds", type=float, default=60, help="processor time of the steps of a run")
    each["finetune"].add_argument("--memory", default="450MiB")
    each["finetune"].add_argument("--files", type=int, default=400, help="of Python's library, the first by name")
    each["finetune"].add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    each["longcontext"].add_argument("--minutes", type=float, default=6.0, help="of all cores, for each side")
    each["longcontext"].add_argument("--text", default="python:standard-library")
    each["longcontext"].add_argument("--documents", default="600")
    each["longcontext"].add_argument("--vocab-size", default="4096")
    each["longcontext"].add_argument("--seq-len", default="1024")
    each["longcontext"].add_argument("--width", type=int, default=128)
    each["longcontext"].add_argument("--layers", type=int, default=4)
    each["longcontext"].add_argument("--batch-size", default="8")
    each["longcontext"].add_argument("--learning-rate", default="2e-3")
    given = options.parse_args()
    judge = {"recommend": recommend, "control": control, "stories": stories}
    judge |= {"finetune": finetune, "longcontext": longcontext}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return judge[given.kind](given, folder)


# recommend

ROWS: Mapping[str, Sequence[str]] = {
    "defaults": (),
    "frozen": ("--pretrained", "{pretrained}"),
}
"""Words after `plimsoll train recommend`."""


def recommend(given: argparse.Namespace, folder: Path) -> int:
    data = folder / "data"
    if not data.exists():
        plimsoll("prepare", "recommend", "--interactions", given.interactions, "--out", data)
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    found |= {"conditions": conditions(given), "interactions": given.interactions.name}
    found.setdefault("rows", {})
    for name in given.only:
        words = [word.format(pretrained=given.pretrained) for word in ROWS[name]]
        if "" in words:
            continue
        row = ranked(data, words, folder / name.replace(" ", "-").replace(",", ""))
        found["rows"][name] = {"words": list(ROWS[name])} | row
        write(given.out, found)
        print(f"{name}: {row['seconds'] / 60:.1f} min, {json.dumps(row['test'])}", flush=True)
    return 0


def ranked(data: Path, words: Sequence[str], run: Path) -> dict[str, Any]:
    """Returns what a run learned; seconds are those of the whole command, planning and evaluations included."""
    begun, load = time.monotonic(), os.getloadavg()[0]
    plimsoll("train", "recommend", "--data", data, "--memory", "1GiB", "--quiet", *words, "--run", run)
    seconds = time.monotonic() - begun
    told = json.loads(plimsoll("evaluate", run, "--json"))
    over = trained(run)
    steps = max(row["step"] for row in over.rows if "loss" in row)
    memory = {"predicted_bytes": over.predicted, "peak_bytes": over.peak, "plan": over.planned["plan"]}
    return {"seconds": seconds, "load_before": load, "steps": steps} | memory | told


# control

R2_GOAL, COST_GOAL, SYSTEMS_GOAL = 0.9, 1.1, 30
"""Mean R^2 of the families; and so many of 35 systems cost at most so many times what the optimal controller does."""


def control(given: argparse.Namespace, folder: Path) -> int:
    run, load = given.run or folder / "run", os.getloadavg()[0]
    if not is_finished(run):
        words = ["--data", given.data, "--memory", "512MiB", "--quiet", *given.words]
        plimsoll("train", "control", *words, "--run", run)
    found = {"words": given.words, "load_before": load} | driven(run)
    write(given.out, found)
    cheap = sum(cost is not None and cost <= COST_GOAL for cost in found["cost"].values())
    learned, cheap_enough = found["macro_r2"] >= R2_GOAL, cheap >= SYSTEMS_GOAL
    print(f"{found['seconds'] / 60:.1f} min, {found['steps']:,} steps")
    print(f"mean R^2 of the families {found['macro_r2']:.3f} (goal: at least {R2_GOAL}: {verdict(met=learned)})")
    print(
        f"at most {COST_GOAL} x the optimal cost: {cheap} of {len(found['cost'])} systems"
        f" (goal: {SYSTEMS_GOAL}: {verdict(met=cheap_enough)})"
    )
    return 0 if learned and cheap_enough else 1


def is_finished(run: Path) -> bool:
    """Returns whether the run has reached its last step."""
    if not (run / "ledger.json").exists():
        return False
    over = trained(run)
    return max(row["step"] for row in over.rows) >= json.loads((run / "data.json").read_text())["steps"]


def driven(run: Path) -> dict[str, Any]:
    over, first = trained(run), json.loads((run / "sessions.json").read_text())[0]
    told = json.loads(plimsoll("evaluate", run, "--closed-loop", "--json"))
    families = told["closed_loop"]["families"]
    return {
        "conditions": {"commit": first["commit"], "cpu": first["processor"], "cores": first["cores"]},
        "parameters": over.planned["parameters"],
        "plan": over.planned["plan"],
        "predicted_bytes": over.predicted,
        "peak_bytes": over.peak,
        "seconds": max(row["elapsed_seconds"] for row in over.rows),
        "steps": max(row["step"] for row in over.rows),
        "step": told["step"],
        "loss": told["loss"],
        "macro_r2": told["macro_r2"],
        "r2": told["r2"],
        "cost": {name: family["cost_ratio"] for name, family in families.items()},
        "lost": {name: family["lost"] for name, family in families.items() if family["lost"]},
        "seconds_driven": told["closed_loop"]["seconds"],
    }


# stories

HELD_OUT = 20
FIRST = 10
"""By default stories 10, 30, 50, ... are held out, by which no setting was scored before the one below was chosen."""
SEPARATOR = "<|endoftext|>"
STORIES = (
    "--width 128 --layers 2 --heads 8 --vocab-size 2048 --seq-len 512 --batch-size 8 --micro-batch 4 --epochs 22"
    " --learning-rate 4e-3 --weight-decay 1.4 --ema-decay 0.995 --memory 1GiB --quiet"
)
MOST_MINUTES = 90
FACTS = ("loss", "bits_per_byte", "tokens", "documents", "seq_len")


def stories(given: argparse.Namespace, _: Path) -> int:
    folder = ROOT / f"bench-out/small-stories-{given.first}"
    folder.mkdir(parents=True, exist_ok=True)
    whole = [story for story in given.text.read_text("utf-8").split(SEPARATOR) if story.strip()]
    held_out, learned, run, exported = (folder / name for name in ("held-out.txt", "learned.txt", "run", "exported"))
    unseen = whole[given.first :: HELD_OUT]
    held_out.write_text(SEPARATOR.join(unseen), "utf-8")
    others = (story for at, story in enumerate(whole) if at % HELD_OUT != given.first)
    learned.write_text(SEPARATOR.join(others), "utf-8")
    plimsoll("train", "stories", "--dataset-id", learned, *shlex.split(given.options), "--run", run)
    if not exported.exists():
        plimsoll("export", run, "--out", exported)
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
        "held_out": {name: {fact: loss[fact] for fact in FACTS} for name, loss in losses.items()},
    }
    write(given.out, found)
    bits = {name: loss["bits_per_byte"] for name, loss in losses.items()}
    met = bits["ours"] < bits["published"] and minutes <= MOST_MINUTES
    print(
        f"{over.planned['parameters']:,} parameters, {minutes:.0f} minutes (goal {MOST_MINUTES}):"
        f" {bits['ours']:.4f} bits a byte of {len(unseen)} held-out stories, the published checkpoint"
        f" {bits['published']:.4f}: {verdict(met=met)}"
    )
    return 0 if met else 1


# finetune and longcontext: what a step costs, so that sides train for the same processor time

SHORT = 4, 10, 40
"""Steps after which the run stops that says what a step costs: after planning, and twice more."""


def cost_of_a_step(words: Sequence[Any], run: Path) -> float:
    """Returns the processor seconds of a step, from a run that is planned once and then continued twice."""
    took = [processor_seconds_of(words, run, 1000, "--max-steps", steps) for steps in SHORT]
    _, few, more = SHORT
    return (took[2] - took[1]) / (more - few - (few - SHORT[0]))


def processor_seconds_of(words: Sequence[Any], run: Path, steps: int, *options: Any) -> float:
    """Trains, and returns the processor seconds of every process of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    plimsoll("train", *words, "--steps", steps, "--eval-every", 0, "--quiet", "--run", run, *options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def last_validation_loss(run: Path) -> float:
    return next(row["validation_loss"] for row in reversed(trained(run).rows) if "validation_loss" in row)


@dataclass(frozen=True)
class Way:
    """A way to a model of the text. `words` are its options, `rates` the learning rates that are tried."""

    words: tuple[str, ...]
    rates: tuple[float, ...]
    random: bool = False
    """Whether it begins with random weights instead of the published ones."""


WAYS = {
    "lora-8": Way(("--lora-rank=8",), (2e-3, 5e-3, 1e-2)),
    "whole": Way(("--lora-rank=0",), (1e-3, 2e-3, 5e-3)),
    "scratch": Way(("--lora-rank=0",), (1e-3, 2e-3, 5e-3), random=True),
}


def finetune(given: argparse.Namespace, folder: Path) -> int:
    from random_model import made, shared

    published = shared() / "data/weights/hf_tinystories_656K"
    config = json.loads((published / "config.json").read_text())
    random = made(folder / "random", config, speaks_as=published)
    records, held_out = folder / "python.jsonl", folder / "held-out.jsonl"
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: given.files]
    texts = [json.dumps({"text": file.read_text("utf-8", errors="ignore")}) + "\n" for file in library]
    held_out.write_text("".join(texts[::10]))
    records.write_text("".join(text for number, text in enumerate(texts) if number % 10))
    data = ["--dataset-id", records, "--validation-id", held_out, "--seq-len", 256, "--batch-size", 8]
    rows = []
    for name in given.only:
        way = WAYS[name]
        words = ["finetune", "--pretrained", random if way.random else published, *data, "--memory", given.memory]
        rows.append({"way": name} | tuned(name, way, [*words, *way.words], folder, given.seconds))
    write(given.out, {"conditions": conditions(given), "rows": rows})
    for row in rows:
        losses = ", ".join(f"{rate}: {loss:.3f}" for rate, loss in row["losses"].items())
        base = f"  base {row['base_loss']:.3f}" if "base_loss" in row else ""
        print(f"{row['way']:10}{row['steps']:>8,} steps  validation loss by learning rate {losses}{base}")
    return 0


def tuned(name: str, way: Way, words: list[Any], folder: Path, seconds: float) -> dict[str, Any]:
    """Returns the row of a way: steps, processor seconds, and the losses by learning rate."""
    a_step = cost_of_a_step([*words, "--learning-rate", way.rates[0]], folder / f"{name}-probe")
    steps, losses = max(1, round(seconds / a_step)), {}
    for rate in way.rates:
        run = folder / f"{name}-{rate:g}"
        processor_seconds_of([*words, "--learning-rate", rate], run, steps)
        losses[f"{rate:g}"] = last_validation_loss(run)
        print(f"{name} at {rate:g}: {losses[f'{rate:g}']:.4f} after {steps} steps", flush=True)
    over = trained(run)
    row = {"steps": steps, "processor_seconds_a_step": a_step, "losses": losses, "peak_bytes": over.peak}
    row |= {"parameters": over.planned["parameters"], "predicted_bytes": over.predicted}
    if "--lora-rank=0" not in way.words:
        row["base_loss"] = json.loads(plimsoll("evaluate", run, "--json"))["base_loss"]
    return row


def longcontext(given: argparse.Namespace, folder: Path) -> int:
    packed = folder / "packed"
    text = ["--dataset-id", given.text, "--max-examples", given.documents]
    if not packed.exists():
        plimsoll("prepare", "longcontext", *text, "--vocab-size", given.vocab_size, "--out", packed)
    common: list[Any] = ["--seq-len", given.seq_len, "--batch-size", given.batch_size]
    common += ["--learning-rate", given.learning_rate, "--gradient-accumulation-steps", 1, "--memory", "2GiB"]
    ours = ["longcontext", "--data", packed, "--width", given.width, "--layers", given.layers, *common]
    wanted = parameters(ours)
    theirs: list[Any] = ["code", *text, "--tokenizer", packed / "tokenizer.json", "--layers", given.layers, *common]
    widths = {width: parameters([*theirs, *sized(width)]) for width in range(64, 3 * given.width, 32)}
    nearest = min(widths, key=lambda width: abs(widths[width] - wanted))
    rows = []
    for name, words in {"longcontext": ours, "transformer": [*theirs, *sized(nearest)]}.items():
        per_step = cost_of_a_step(words, folder / f"{name}-short")
        steps = int(60 * given.minutes * len(os.sched_getaffinity(0)) / per_step)
        run = folder / f"{name}-whole"
        row = {"model": name, "parameters": parameters(words), "cpu_seconds_per_step": per_step, "steps": steps}
        row |= {"cpu_seconds": processor_seconds_of(words, run, steps), "validation_loss": last_validation_loss(run)}
        rows.append(row)
        print(json.dumps(rows[-1]), flush=True)
    write(given.out, {"conditions": conditions(given), "rows": rows})
    return 0


def sized(width: int) -> list[Any]:
    return ["--width", width, "--heads", width // 32]


def parameters(words: list[Any]) -> int:
    planned = plimsoll("plan", *words, "--micro-batch", 1, "--remat", "block", "--precision", "float32", "--json")
    return json.loads(planned)["parameters"]


if __name__ == "__main__":
    sys.exit(main())
