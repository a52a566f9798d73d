"""Types the plimsoll commands of the pages, each as a process, with data sets and runs made small.

    make pages                                        every command of README.md and docs/*.md
    make pages PAGES="--pages stories.md report.md"   those of two pages
    make pages PAGES="--sample 25 --seed 1"           25 of them, drawn

Each page has a scratch folder with the files that pages name, made by the makers of the tests. What a command writes
is removed before it runs. A run that it needs and that is not there is trained first, by the command of its page.
SMALL and SHORT say how commands are cut, CODES which ones end with another code than 0, and ELSEWHERE which ones
cannot run here, and why. What is only mentioned, like `evaluate RUN`, is not typed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from page_commands import PAGES, ROOT, commands
from page_files import furnish
from plain_code import PLAIN_CODE

Words = tuple[str, ...]

SMALL = {
    "--batch-size": "8",
    "--count": "200",
    "--heads": "2",
    "--k-core": "2",
    "--layers": "2",
    "--lora-rank": "8",
    "--max-examples": "300",
    "--micro-batch": "8",
    "--num-aug": "2",
    "--samples": "2000",
    "--seq-len": "32",
    "--states": "8",
    "--stride": "16",
    "--subsample-size": "10",
    "--target-params": "60k",
    "--tokens": "8",
    "--vocab-size": "300",
    "--width": "32",
}
"""Values that replace those of a page."""

SHORT = {
    "plan": "--within 1s",
    "train": "--within 1s --max-steps 4",
    "resume": "--within 1s --max-steps 4",
    "ladder": "--rung-steps 3 --rungs micro-batch",
    "ladder finetune": "--rung-steps 3 --rungs packed",
    "sample": "--tokens 8",
}
"""What is added by command, or by command and recipe, unless it is there."""

TEXT = "--dataset-id my-texts/ --vocab-size 300 --seq-len 32 --batch-size 8"
PINNED = "--batch-size 8 --micro-batch 8 --remat none --precision float32"
SMALL_RECIPES = {
    "plan stories": TEXT,
    "train stories": f"{TEXT} {PINNED} --loss-chunk 0",
    "ladder stories": TEXT,
    "plan code": TEXT,
    "train code": f"{TEXT} {PINNED} --loss-chunk 0",
    "ladder code": TEXT,
    "ladder control": "--width 32 --batch-size 8",
    "ladder recommend": "--batch-size 8",
    "ladder longcontext-nano": "--width 32 --layers 2 --states 8 --seq-len 32",
    "train sudoku-4x4": f"--data data/sudoku-4x4 --width 32 --heads 1 {PINNED}",
    "plan longcontext": "--width 32 --layers 2 --states 8",
    "plan longcontext-small-32k": "--width 32 --layers 2 --states 8",
    "plan sudoku-mlp": "--width 32",
    "config sudoku-mlp": "--width 32",
    "train sudoku-mlp": f"--width 32 {PINNED}",
    "train longcontext": f"--data packed/ --width 32 --layers 2 --states 8 --seq-len 32 {PINNED} --loss-chunk 0",
    "train recommend": PINNED,
    "train recommend-gemma-2b": "--batch-size 8 --gradient-accumulation-steps 1",
    "train recommend-llama-3.2-1b": "--batch-size 8 --gradient-accumulation-steps 1",
    "config control": "--width 32 --batch-size 8",
    "config longcontext-small-32k": "--width 32 --layers 2 --states 8 --seq-len 32 --batch-size 8",
    "train longcontext-small-32k": f"--width 32 --layers 2 --states 8 --seq-len 32 {PINNED} --loss-chunk 0",
    "config recommend-tpu-optimized": "--pretrained ./gemma-2b",
    "train control": f"--data windows.h5 --width 32 {PINNED}",
    "train finetune": f"--seq-len 128 {PINNED} --loss-chunk 0",
}
"""What is added to commands of these recipes, unless it is there."""

RUNS = {
    "adapter/": "export runs/tuned --adapter adapter/",
    "packed/": "prepare longcontext --dataset-id my-texts/ --out packed/",
    "plan.json": "plan stories --json",
    "runs/compared": "train sudoku-4x4 --run runs/compared/sudoku-4x4",
    "runs/control": "train control --data windows.h5",
    "runs/demo": "train code --memory 768MiB --run runs/demo",
    "runs/four": "train sudoku-4x4 --run runs/four",
    "runs/recommend": "train recommend --data data/",
    "runs/stories": "train stories --dataset-id my-texts/ --run runs/stories",
    "runs/wider": "train code --memory 768MiB --run runs/wider",
}
"""Commands that make what a page reads and none of its own commands writes."""

CODES = {"plan code --memory 200MiB": 2}

ELSEWHERE = {
    r"chips --install": "downloads a compiler of gigabytes",
    r"(s3|gs)://": "needs a bucket",
    r"--dataset-config": "needs the hub",
    r"--coordinator": "needs two processes that meet",
    r"--on (slurm|ray)(?!.*--no-submit)": "needs a scheduler",
    r"^train .*--chip (h|tpu|rtx)": "trains on devices that are not here",
    r"^train code --memory 8GiB --run runs/on-the-card": "trains on a card",
    r"--mesh": "needs several devices",
    r"^plan finetune .*--offload optimizer": "needs adapters worth moving, which those of the tiny model are not",
}
"""Patterns of commands that cannot run here, and why."""

WHOLE = re.compile(r"^plan .*--chip tpu-v4-64\b")
"""Form of plans that need their own sizes: a batch for 32 devices."""

MENTION = re.compile(r"\b(RUN|DIR|FILE|PUZZLE|NAME)\b|\.\.\.$|tpu\|cuda|^prepare \w+$|^ladder finetune$")
"""Forms of commands with a blank to fill in, and names of commands that need more."""

PATIENCE = 300
"""Seconds that a command may take; then its code is 124."""


@dataclass(frozen=True)
class Command:
    page: str
    words: Words

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def reason(self) -> str | None:
        """Why it cannot run here."""
        reasons = [reason for pattern, reason in ELSEWHERE.items() if re.search(pattern, str(self))]
        return reasons[0] if reasons else None


def shortened(words: Words) -> list[str]:
    """Returns the words of a command with small sizes, few steps and little time."""
    verb, *rest = words
    small = list(words)

    if WHOLE.search(shlex.join(words)):
        return small

    # Values of the page.
    for position, option in enumerate(small[:-1]):
        small[position + 1] = SMALL.get(option, small[position + 1])

    # Options that are added.
    by_recipe = f"{verb} {rest[0]}" if rest else verb
    added = shlex.split(SMALL_RECIPES.get(by_recipe, "")) + shlex.split(SHORT.get(by_recipe, SHORT.get(verb, "")))
    there = {f"--{value}" for option, value in pairwise(words) if option == "--largest"}
    there |= {"--data"} if "--dataset-id" in words else set()
    for option, value in zip(added[::2], added[1::2], strict=True):
        if option not in small and option not in there:
            small += [option, value]
    return small


def outputs(words: Words) -> list[str]:
    """Returns the paths that a command writes."""
    options = ("--run", "--output-dir", "--out", "--adapter", "--merged")
    places = [value for option, value in pairwise(words) if option in options]
    if words[0] == "config":
        places = ["mine.toml"]
    if words[0] == "train" and not places:
        places = [f"runs/{Path(words[1]).stem}"]
    return places


class Scratch:
    """A folder in which the commands of a page are typed."""

    def __init__(self, place: Path, page: str) -> None:
        self.place = place
        self.makers: dict[str, Words] = {}
        for command in typed(page):
            for output in outputs(command.words) if command.reason is None else []:
                self.makers.setdefault(output, command.words)
        for output, text in RUNS.items():
            self.makers.setdefault(output, tuple(shlex.split(text)))
        furnish(place)

        # What the page itself makes is not there before.
        for path in (place / output for output in self.makers):
            if path.is_file():
                path.unlink()

    def run(self, words: Words) -> subprocess.CompletedProcess[str]:
        """Runs a command after those that make what it reads, and returns how it ended."""
        written = outputs(words)
        for path in set(words) & set(self.makers) - set(written):
            if not (self.place / path).exists():
                self.run(self.makers[path])
        for path in written:
            shutil.rmtree(self.place / path, ignore_errors=True)
            if (self.place / path).is_file():
                (self.place / path).unlink()

        paths = [str(ROOT / "src"), str(self.place / "site")]
        environment = {
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HUB_OFFLINE": "1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": PLAIN_CODE,
        }
        command = [sys.executable, "-m", "plimsoll.cli.main", *shortened(words)]
        ended = subprocess.run(
            ["timeout", str(PATIENCE), *command],
            env=os.environ | environment,
            cwd=self.place,
            capture_output=True,
            text=True,
        )
        if words[0] == "plan" and "--json" in words:
            (self.place / "plan.json").write_text(ended.stdout)
        if words[0] == "config":
            (self.place / "mine.toml").write_text(ended.stdout)
        return ended


def typed(page: str) -> list[Command]:
    """Returns the commands of a page that are whole, each once."""
    (path,) = [path for path in PAGES if path.name == page]
    whole = [tuple(words) for words in commands(path) if len(words) > 1]
    return [Command(page, words) for words in dict.fromkeys(whole) if not MENTION.search(" ".join(words))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", nargs="+", help="names of pages, like stories.md; all by default")
    parser.add_argument("--sample", type=int, help="number of commands that are drawn; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    options = parser.parse_args()

    # What to type.
    pages = [path.name for path in PAGES if not options.pages or path.name in options.pages]
    found = [command for page in pages for command in typed(page)]
    possible = [command for command in found if command.reason is None]
    for command in found:
        if command.reason is not None:
            print(f"{command.page:20} not run: {command.reason}: plimsoll {command}")
    if options.sample is not None:
        drawn = random.Random(options.seed).sample(range(len(possible)), min(options.sample, len(possible)))
        possible = [possible[position] for position in sorted(drawn)]
        print(f"{len(possible)} commands are drawn with --seed {options.seed}")

    # The table, and the words of what failed.
    failures = 0
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        os.environ.setdefault("PLIMSOLL_CACHE", f"{folder}/cache")
        for page in dict.fromkeys(command.page for command in possible):
            place = Path(folder, page)
            place.mkdir()
            scratch = Scratch(place, page)
            for command in (command for command in possible if command.page == page):
                began = time.monotonic()
                ended = scratch.run(command.words)
                seconds = time.monotonic() - began
                expected = CODES.get(str(command), 0)
                print(f"{page:20} code {ended.returncode} {seconds:6.1f} s  plimsoll {command}", flush=True)
                if ended.returncode != expected:
                    failures += 1
                    print(f"    expected code {expected} of: plimsoll {shlex.join(shortened(command.words))}")
                    print("    " + "\n    ".join(ended.stderr.splitlines()[-6:]), flush=True)
    print(f"{len(possible)} commands, {failures} of them ended otherwise than their page says")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
