"""The judge: runs every kind of recipe and command at two checkouts, and compares what they compute.

    PYTHONPATH=src:benchmarks python benchmarks/refactor.py BEFORE_SRC AFTER_SRC [--only WORD] [--before-python PATH]

A change that only moves, renames or removes code leaves every row "same". BEFORE_SRC and AFTER_SRC are the `src`
folders of two checkouts (`git worktree add`). Texts are written once; each side prepares its own data sets from them.

Of a run, compared are the losses of its 20 steps, its fingerprint, and what commands say of it afterwards: `evaluate`,
`sample`, and the SHA-256 of every file of an `export`. Of a plan, compared are its levers and the bytes of its
components: the first side searches, the second is given the same levers and compiles the step anew. Predicted and
measured peaks are printed only: they differ by what a process weighs on the day.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from random_model import made

ROOT = Path(__file__).resolve().parents[1]

# Pinned, so that both sides train with the same plan.
LEVERS = "--micro-batch 4 --remat none --precision float32 --prefetch 1 --async-save False"
TRAINED = f"{LEVERS} --save-every 10 --steps 20 --memory 2GiB --quiet --log-every 1"

SAMPLE = "sample {run} --tokens 24 --seed 1"
EVALUATE = "evaluate {run} --json"
TEXT = (EVALUATE, SAMPLE, "export {run} --merged {out}")

SMALL_TEXT = "--width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 8 --shuffle-buffer-size 16"
FINETUNE = "finetune --pretrained {model} --dataset-id {chats} --seq-len 128 --batch-size 8 --learning-rate 0.01"


@dataclass(frozen=True)
class Run:
    """Options of `train` beside TRAINED, and the commands that look at the run afterwards."""

    options: str
    commands: tuple[str, ...]


RUNS = {
    "stories": Run(
        f"stories --dataset-id {{text}} {SMALL_TEXT} --loss-chunk 0 --ema-decay 0.9 --ema-bits 32",
        (*TEXT, "evaluate {run} --raw --json"),
    ),
    "stories, 8-bit and 16-bit weights": Run(
        f"stories --dataset-id {{text}} {SMALL_TEXT} --width 64 --loss-chunk 16 --optimizer-bits 8 --weight-bits 16",
        TEXT,
    ),
    "code": Run(
        "code --width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 64 --batch-size 8 --loss-chunk 0"
        " --max-examples 200",
        TEXT,
    ),
    "longcontext": Run(
        "longcontext --data {packed} --width 32 --layers 2 --states 8 --seq-len 64 --batch-size 8 --loss-chunk 32",
        (EVALUATE, SAMPLE),
    ),
    "control": Run("control --data {control} --batch-size 8", (EVALUATE,)),
    "puzzles": Run(
        "sudoku-4x4 --data {sudoku} --width 32 --heads 1 --batch-size 8 --warmup-steps 2 --validation-examples 20",
        (EVALUATE, "solve {run} '21.. .3.. .4.2 ...3' --json"),
    ),
    "recommend": Run(
        "recommend-debug --data {interactions} --batch-size 8 --loss-chunk 32",
        (EVALUATE, "rank {run} --history 1,2,3 --json"),
    ),
    "finetune, adapters": Run(
        f"{FINETUNE} --lora-rank 4 --lora-dropout 0.1 --frozen-bits 16 --loss-chunk 0 --attention-chunk 0",
        (EVALUATE, SAMPLE, "export {run} --adapter {out}/adapter --merged {out}/merged"),
    ),
    "finetune, adapters over 4 bits": Run(
        f"{FINETUNE} --lora-rank 4 --frozen-bits 4 --loss-chunk 64 --attention-chunk 64",
        (EVALUATE, "export {run} --adapter {out}/adapter --merged {out}/merged"),
    ),
    "finetune, the whole model": Run(
        f"{FINETUNE} --lora-rank 0 --loss-chunk 0 --attention-chunk 0",
        (EVALUATE, SAMPLE, "export {run} --merged {out}"),
    ),
    "a file": Run("{examples}/plain_jax.py", (EVALUATE,)),
}

FUNCTIONS = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, optax
import plimsoll

draw = np.random.default_rng(0)
data = {"x": draw.standard_normal((256, 8), np.float32), "y": draw.standard_normal((256, 4), np.float32)}


def init(key):
    return {"kernel": 0.1 * jax.random.normal(key, (8, 4)), "bias": jnp.zeros(4)}


def loss(params, batch):
    error = jnp.tanh(batch["x"] @ params["kernel"]) + params["bias"] - batch["y"]
    return jnp.sum(error**2), error.size


batch = {name: jax.ShapeDtypeStruct((32, *array.shape[1:]), array.dtype) for name, array in data.items()}
shapes = jax.eval_shape(init, jax.random.key(0))
plan = plimsoll.plan(loss, shapes, batch, optimizer=optax.adamw(1e-2), memory="2GiB", pins={"micro_batch": 8})
if __name__ == "__main__":
    run = plan.train(init, data, steps=20, run=sys.argv[1], log_every=1)
"""
"""A loss and an optimizer of a user's own, planned and trained in Python."""

STORIES = "stories --width 128 --layers 4 --heads 4 --vocab-size 4096 --seq-len 128 --batch-size 32 --steps 100"
PLANS = (
    "code --memory 768MiB",
    f"{STORIES} --memory 700MiB",
    f"{STORIES} --memory 500MiB --numerics compressed",
    "control --data {control} --memory 600MiB",
    "control --data {control} --memory 500MiB --batch-size 512",
    "sudoku-4x4 --memory 500MiB --width 64 --heads 2",
    "sudoku-6x6 --memory 600MiB --width 64 --heads 2 --numerics exact",
    "recommend-debug --memory 600MiB",
    "longcontext --memory 700MiB --vocab-size 4096 --width 64 --layers 2 --seq-len 512",
    "code --chip h200",
)

# Levers that ask for nothing: a plan that has them is pinned without them.
OFF = {"remat": "none", "offload": "none", "loss_chunk": 0, "attention_chunk": 0, "layerwise": 0, "fsdp": 1}
OFF |= {f"{name}_bits": 32 for name in ("optimizer", "weight", "frozen", "ema")}
NO_LEVERS = ("chip", "accumulation", "devices", "pinned")


@dataclass(frozen=True)
class Side:
    """A checkout, and the folder in which its commands write."""

    source: Path
    python: str
    folder: Path
    data: Mapping[str, Path]

    def called(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Returns what `python WORDS` printed."""
        environment = os.environ | {
            "PYTHONPATH": str(self.source),
            "PLIMSOLL_CACHE": str(self.folder / "cache"),
            "PLIMSOLL_CALIBRATION": "off",
            "JAX_PLATFORMS": "cpu",
        }
        return subprocess.run(
            [self.python, *words], env=environment, cwd=self.folder, capture_output=True, text=True, check=False
        )

    def command(self, words: str, **places: Path) -> subprocess.CompletedProcess[str]:
        """Returns what `plimsoll WORDS` printed; names in braces are those of the data, and of `places`."""
        filled = words.format(**self.data, **places)
        return self.called("-m", "plimsoll.cli.main", *shlex.split(filled))

    def answer(self, words: str, **places: Path) -> str:
        """Returns what `plimsoll WORDS` printed, and ends the program if that failed."""
        return _succeeded(self.command(words, **places))

    def results_of(self, name: str) -> dict[str, Any]:
        """Trains the run of this name, and returns all that has to be the same."""
        return self.trained(name, RUNS[name]) if name in RUNS else self.trained_functions()

    def trained(self, name: str, run: Run) -> dict[str, Any]:
        """Trains, and returns all that has to be the same, by name."""
        folder = self.folder / "runs" / _plain(name)
        self.answer(f"train {run.options} {_levers_of(run)} --run {{run}}", run=folder)
        results = self._results(folder)
        for number, words in enumerate(run.commands):
            out = self.folder / "out" / f"{_plain(name)}-{number}"
            printed = self.answer(words, run=folder, out=out)
            results[words.split()[0] + f" {number}"] = self._without_paths(printed)
            results |= {f"{number} {file}": digest for file, digest in _digests(out)}
        return results

    def trained_functions(self) -> dict[str, Any]:
        """Trains FUNCTIONS, and returns all that has to be the same."""
        script = self.folder / "functions.py"
        script.write_text(FUNCTIONS)
        folder = self.folder / "runs" / "functions"
        _succeeded(self.called(str(script), str(folder)))
        return self._results(folder)

    def planned(self, words: str) -> dict[str, Any]:
        """Returns the plan, or the error of a request that cannot be planned; that no plan fits is an answer."""
        done = self.command(f"plan {words} --json")
        if done.stdout:
            answer = json.loads(done.stdout)
        else:
            answer = {"refused": done.stderr.strip() or f"ended with {done.returncode}"}
        names = ("fits", "plan", "components", "predicted_peak_bytes", "floor_bytes", "refused")
        return {name: answer.get(name) for name in names}

    def _results(self, run: Path) -> dict[str, Any]:
        ledger = json.loads((run / "ledger.json").read_text())
        rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
        answer = json.loads(self.answer("fingerprint {run} --json", run=run))
        return {
            "fingerprint": answer["fingerprint"],
            "losses": [row["loss"] for row in rows if "loss" in row],
            "bytes": (ledger["predicted"]["peak_bytes"], ledger["measured"]["peak_bytes"]),
        }

    def _without_paths(self, printed: str) -> str:
        return printed.replace(str(self.folder), "")


def written_data(folder: Path) -> dict[str, Path]:
    """Writes one small text, log and model for both sides, and returns their places."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(120)]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(20, 80)))

    text = folder / "text.txt"
    text.write_text("\n\n".join(sentence() for _ in range(400)))

    log = folder / "log.csv"
    rows = (f"{user},{draw.randint(1, 60)},5,{time}" for user in range(80) for time in range(12))
    log.write_text("userId,movieId,rating,timestamp\n" + "\n".join(rows) + "\n")

    chats = folder / "chats.jsonl"
    records = ({"prompt": sentence()[:60], "completion": sentence()[:100]} for _ in range(200))
    chats.write_text("".join(json.dumps(record) + "\n" for record in records))

    places = {"text": text, "chats": chats, "log": log, "examples": ROOT / "docs/examples"}
    return places | {"model": made(folder / "model", _model())}


def prepared(side: Side) -> Side:
    """Returns the side with data sets of its own."""
    places = {name: side.folder / name for name in ("packed", "sudoku", "interactions")}
    places |= {"control": side.folder / "windows.h5"}
    maker = replace(side, data={**side.data, **places})
    maker.answer("prepare longcontext --dataset-id {text} --vocab-size 300 --out {packed}")
    maker.answer("prepare control --samples 2000 --out {control}")
    maker.answer("prepare sudoku --size 4 --num-aug 1 --subsample-size 40 --out {sudoku}")
    maker.answer("prepare recommend --interactions {log} --out {interactions}")
    return maker


def _model() -> dict[str, Any]:
    """Returns the settings of a small Qwen3, whose windows are shorter than a row."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 1,
    }


def _levers_of(run: Run) -> str:
    """Returns TRAINED, but for levers that the recipe does not have."""
    return TRAINED.replace("--remat none ", "") if run.options.endswith(".py") else TRAINED


def _plain(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _succeeded(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise SystemExit(f"{shlex.join(done.args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield str(file.relative_to(folder)), hashlib.sha256(file.read_bytes()).hexdigest()


def pinned(plan: Mapping[str, Any] | None) -> str:
    """Returns the options that pin the levers of a plan which are not at the value that asks nothing."""
    levers = {name: value for name, value in (plan or {}).items() if name not in NO_LEVERS and OFF.get(name) != value}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in levers.items())


def without_weight(planned: Mapping[str, Any]) -> Any:
    """Returns what must be equal of two plans: not what the process itself weighs, which differs by the day."""
    parts = {name: size for name, size in (planned["components"] or {}).items() if "process" not in name}
    levers = {name: value for name, value in (planned["plan"] or {}).items() if name != "pinned"}
    return planned["fits"], levers, parts


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the names of results that are not the same; peaks in bytes may differ."""
    names = sorted((before.keys() | after.keys()) - {"bytes"})
    return [name for name in names if before.get(name) != after.get(name)]


def compare_runs(before: Side, after: Side, only: str) -> int:
    """Prints a row for each run, and returns how many are different."""
    print("| run, 20 steps | results | not the same | predicted before, after | measured before, after |")
    print("|---|--:|---|--:|--:|")
    different = 0
    for name in [*RUNS, "functions"]:
        if only not in name:
            continue
        one = before.results_of(name)
        two = after.results_of(name)
        names = differences(one, two)
        different += bool(names)
        pairs = zip(one["bytes"], two["bytes"], strict=True)
        sizes = " | ".join(f"{left / 2**20:.1f}, {right / 2**20:.1f} MiB" for left, right in pairs)
        print(f"| {name} | {len(one) - 1} | {', '.join(names) or 'none'} | {sizes} |", flush=True)
    return different


def compare_plans(before: Side, after: Side, only: str) -> int:
    """Prints a row for each plan, and returns how many are different."""
    print("\n| plan | plan and its components | predicted before, after |\n|---|---|--:|")
    different = 0
    for words in PLANS:
        if only not in words:
            continue
        one = before.planned(words)
        two = after.planned(f"{words} {pinned(one['plan'])}")
        refusals = [plan["refused"] for plan in (one, two) if plan["refused"]]
        same = not refusals and without_weight(one) == without_weight(two)
        different += not same

        verdict = "same" if same else f"DIFFERENT {one} {two}"
        if refusals:  # nothing was compared, whether one side refused or both
            verdict = f"REFUSED {'; '.join(refusals)}"
        peaks = [(plan["predicted_peak_bytes"] or plan["floor_bytes"] or 0) / 2**20 for plan in (one, two)]
        print(f"| `{words}` | {verdict} | {peaks[0]:.1f}, {peaks[1]:.1f} MiB |", flush=True)
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", help="part of a run's name or a plan's words")
    parser.add_argument("--before-python", default=sys.executable)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for name in ("before", "after"):
            (folder / name).mkdir()
        data = written_data(folder)
        before = prepared(Side(options.before.resolve(), options.before_python, folder / "before", data))
        after = prepared(Side(options.after.resolve(), sys.executable, folder / "after", data))
        different = compare_runs(before, after, options.only) + compare_plans(before, after, options.only)
    print(f"\n{different} different")
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
