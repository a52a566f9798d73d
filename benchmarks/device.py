"""Everything that needs a real accelerator, in one call, kept to a time: what was promised beside what a card does.

    python benchmarks/device.py --minutes 25 [--chip h100] [--out bench-out] [--only "exact" "medium, found"]
                                [--torch PYTHON]

The parts, by what they are worth; a part that would not end in time is left out (how long each takes was seen on an
H200 with 16 cores), one that fails is recorded with its reason, and the next one runs:

* versions, and `plimsoll doctor`: the card's rates beside its data sheet;
* exact: two equal runs, and one that is killed and continued, by their fingerprints;
* offload: gradients, weights and moments with parts on the host beside those without (offload_parity.py);
* plans of four recipes, every lever that a card has among them, each trained in a process of its own: peak and seconds
  of a step, promised and measured, MFU, how long planning took, and how long training waited for data;
* what a training process takes of the card outside its budget, by `nvidia-smi`;
* LoRA beside a model of Llama-3.2-1B's shape with random weights, in 4 and 16 bits, where the shared files are;
* the three precisions at 97.5M parameters, and a puzzle model at its published size;
* `transformers` with `torch.compile` at 97.5M and 350M parameters, where torch is installed (in the Python that
  `--torch` names): tokens a second and peak, beside plimsoll's own of the same shape.

The peak is the allocator's own (`memory_stats()`); the seconds of a step are the median of the logged lines behind the
first two, less what they waited for data. bench-out/device.json is written after every part; `python docs/results.py
--keep bench-out/device.json` keeps it, and makes its table.

Where JAX finds nothing but a CPU, everything is of a toy's size: that the program works, not what it is for.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers.environment import SIDE_PROGRAM
from training_process import ENVIRONMENT, MIB, PLIMSOLL, plan_words, trained, watch

from plimsoll.models.pretrained.find import known_configs

SHOWN = ("jax", "jaxlib", "optax", "orbax-checkpoint", "grain", "tokenizers", "h5py")
SECONDS = 420
"""For one command at most."""
ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "docs/examples/plain_jax.py"
BACKEND = "import jax; print(jax.default_backend())"

MEDIUM = {"width": 768, "layers": 12, "heads": 12, "vocab-size": 16_384, "seq-len": 1_024}
LARGE = {"width": 1_024, "layers": 24, "heads": 16, "vocab-size": 32_768, "seq-len": 1_024}
TOY = {"width": 32, "layers": 2, "heads": 2, "vocab-size": 512, "seq-len": 32}
PRECISIONS = {
    "float32": ["--precision", "float32"],
    "bfloat16 products": ["--precision", "bfloat16", "--activations", "float32"],
    "bfloat16 activations": ["--precision", "bfloat16", "--activations", "bfloat16"],
}


PINNED = ["--remat", "none", "--micro-batch"]
"""Of toys, whose plans are not what is looked at: with a number behind it, what makes their search short."""


class Failed(Exception):
    """A part's reason for having no result."""


TUNED = "meta-llama/llama-3.2-1b"
"""Model of the table whose shape is fine-tuned."""


@dataclass(frozen=True)
class Given:
    """Options of the command line, and the chip that was found here."""

    chip: str | None
    out: Path
    torch: str
    toy: bool
    ends: float
    """Of `time.monotonic`."""
    folder: Path
    """For data and runs, gone at the end."""

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    @property
    def on(self) -> list[str]:
        return ["--chip", self.chip] if self.chip else []

    def plimsoll(self, *words: Any) -> str:
        """Returns what the command printed."""
        return self.run([*PLIMSOLL, *map(str, words)])

    def run(self, command: list[str]) -> str:
        try:
            done = subprocess.run(
                command, env=ENVIRONMENT, capture_output=True, text=True, timeout=max(1.0, min(SECONDS, self.left))
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"took longer than {late.timeout:.0f} s") from None
        if done.returncode:
            raise Failed(done.stderr.strip()[-3000:] or f"ended with code {done.returncode}")
        return done.stdout


@dataclass(frozen=True)
class Part:
    name: str
    seconds: float
    """Expected on a card: what is left has to be as much."""
    result: Callable[[Given], Any]
    for_toys: bool = True
    """Whether it is run where there is only a CPU."""


def code(shape: Mapping[str, int], batch: int) -> list[str]:
    words = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    return ["code", *words, "--batch-size", str(batch), "--gradient-accumulation-steps", "1"]


def parts(*, toy: bool) -> list[Part]:
    """Returns all parts, what is worth most first."""
    shape, batch = (TOY, 8) if toy else (MEDIUM, 64)
    medium = [*code(shape, batch), *([*PINNED, "8", "--loss-chunk", "0"] if toy else [])]
    plan = lambda name, words, seconds=65.0, **more: Part(name, seconds, partial(planned, words=words), **more)  # noqa: E731
    peer = lambda name, shape, **more: Part(name, 75.0, partial(peered, shape=shape, batch=batch), **more)  # noqa: E731
    small = [*medium, "--precision", "float32"] if toy else ["code"]
    return [
        Part("versions", 5.0, versions),
        Part("doctor", 45.0, doctor),
        Part("exact", 110.0, partial(exact, words=small)),
        Part("offload", 120.0, offload),
        plan("small, found", small),
        plan("medium, found", medium, for_toys=False),
        peer("torch.compile, 97.5M", shape),
        *(
            plan(f"precision, {name}", [*medium, *words], for_toys=name != "float32")
            for name, words in PRECISIONS.items()
        ),
        Part("puzzles at their published size", 90.0, puzzles),
        Part("longcontext", 90.0, longcontext),
        Part("longcontext-small-32k", 150.0, partial(longcontext, preset="longcontext-small-32k"), for_toys=False),
        plan("own recipe", [str(OWN), *(["--batch-size", "256", *PINNED, "256"] if toy else ["--batch-size", "4096"])]),
        plan("small, exact numbers", [*small, "--numerics", "exact"], for_toys=False),
        plan("medium, 2 GiB", [*medium, "--memory", "2GiB"], for_toys=False),
        plan("medium, 4 GiB", [*medium, "--memory", "4GiB"], for_toys=False),
        plan("medium, remat block", [*medium, "--remat", "block"], for_toys=False),
        plan("medium, loss chunk", [*medium, "--loss-chunk", "8192"], for_toys=False),
        plan("medium, 8-bit state", [*medium, "--optimizer-bits", "8"], for_toys=False),
        plan("medium, state on the host", [*medium, "--offload", "optimizer"], for_toys=False),
        plan("medium, layer by layer", [*code(shape, 16), "--layerwise", "2"], for_toys=False),
        Part("beside the budget", 60.0, beside, for_toys=False),
        Part("finetune 1.2B, NF4", 100.0, partial(tuned, bits="4")),
        Part("finetune 1.2B, 16 bits", 100.0, partial(tuned, bits="16"), for_toys=False),
        plan("350M, found", code(LARGE, 32), 100.0, for_toys=False),
        peer("torch.compile, 350M", LARGE, for_toys=False),
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=25.0)
    options.add_argument("--chip", help="as `plimsoll chips` calls it; by default what `plimsoll train` takes")
    options.add_argument("--out", type=Path, default=Path("bench-out"))
    options.add_argument("--only", nargs="*", help="names of parts to run")
    options.add_argument("--torch", default=sys.executable, help="a Python with torch and transformers")
    words = options.parse_args()
    started = time.monotonic()
    backend = subprocess.run([sys.executable, "-c", BACKEND], capture_output=True, text=True).stdout.strip()
    toy = backend == "cpu" or words.chip == "cpu"
    known = parts(toy=toy)
    if unknown := set(words.only or ()) - {part.name for part in known}:
        sys.exit(f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(part.name for part in known)}")
    result: dict[str, Any] = {"conditions": conditions(backend, minutes=words.minutes), "parts": {}}
    words.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        given = Given(words.chip, words.out, words.torch, toy, started + 60 * words.minutes, Path(folder))
        for part in known:
            if (words.only and part.name not in words.only) or (toy and not part.for_toys):
                continue
            result["parts"][part.name] = answer = answered(part, given)
            (words.out / "device.json").write_text(json.dumps(result, indent=1))
            print(f"{part.name:32} {line(answer)}", flush=True)
    print(f"{words.out / 'device.json'}: {time.monotonic() - started:.0f} s")


def answered(part: Part, given: Given) -> dict[str, Any]:
    """Returns `result` and `seconds`, or `failed` with the reason, or `left_out` where there is no time for it."""
    least = min(part.seconds, 5.0) if given.toy else part.seconds
    if given.left < least:
        return {"left_out": f"{max(0.0, given.left):.0f} s were left, and it takes about {part.seconds:.0f}"}
    begun = time.monotonic()
    try:
        return {"result": part.result(given), "seconds": time.monotonic() - begun}
    except Failed as problem:
        return {"failed": str(problem), "seconds": time.monotonic() - begun}
    except Exception as problem:  # whatever a part meets, the next one runs
        return {"failed": f"{type(problem).__name__}: {problem}", "seconds": time.monotonic() - begun}


def conditions(backend: str, *, minutes: float) -> dict[str, Any]:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip(),
        "backend": backend,
        "cores": os.cpu_count(),
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "minutes": minutes,
    }


def versions(_: Given) -> dict[str, Any]:
    there = {package.metadata["Name"].lower(): package.version for package in importlib.metadata.distributions()}
    plugins = {name: version for name, version in there.items() if name.startswith("jax-cuda") or name == "libtpu"}
    return {"versions": {name: there.get(name) for name in SHOWN}, "plugins": plugins}


def doctor(given: Given) -> Any:
    """Returns what it says; that it is not ready is an answer too."""
    done = subprocess.run(
        [*PLIMSOLL, "doctor", *given.on, "--json"], env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise Failed(done.stderr.strip()[-3000:] or f"ended with code {done.returncode}") from None


def exact(given: Given, words: list[str]) -> dict[str, Any]:
    """Returns the fingerprints of two equal runs and of one that was killed at a save in the middle."""
    steps = 60
    session = ["--steps", str(steps), "--save-every", str(steps // 4), "--quiet", *given.on]
    runs = {name: given.folder / f"exact-{name}" for name in ("one", "two", "killed")}
    train = {name: [*PLIMSOLL, "train", *words, *session, "--run", str(run)] for name, run in runs.items()}
    for name in ("one", "two"):
        given.run(train[name])
    with subprocess.Popen(
        train["killed"], env=ENVIRONMENT, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        ends = time.monotonic() + min(SECONDS, given.left)
        while process.poll() is None and time.monotonic() < ends and not saved(runs["killed"]):
            time.sleep(0.02)
        killed = process.poll() is None
        if killed:
            os.killpg(process.pid, signal.SIGKILL)
    given.run(train["killed"])
    prints = {name: json.loads(given.plimsoll("fingerprint", run, "--json")) for name, run in runs.items()}
    equal = len({each["fingerprint"] for each in prints.values()}) == 1
    return {"equal": equal, "killed_before_its_end": killed, "fingerprints": prints}


def offload(given: Given) -> dict[str, Any]:
    """Returns how far steps with parts on the host are from plain ones. Raises Failed where that is no rounding."""
    answer = json.loads(
        given.run([sys.executable, SIDE_PROGRAM, "offload_parity", *(["--toy"] if given.toy else [])]).splitlines()[-1]
    )
    far = {name: found for name, found in answer["distances"].items() if not found["distance"] < answer["limit"]}
    if far:
        listed = ", ".join(f"{name} by {found['distance']:.2g} in {found['leaf']}" for name, found in far.items())
        raise Failed(f"parts on the host change what is computed: {listed}")
    largest = max(found["distance"] for found in answer["distances"].values())
    return {"equal": True, "largest distance": largest, "distances": answer["distances"]}


def saved(run: Path) -> bool:
    return any(run.glob("checkpoints/step-*/manifest.json"))


def planned(given: Given, words: list[str]) -> dict[str, Any]:
    """Returns a run's promises beside what it took."""
    steps, every = (8, 1) if given.toy else (40, 5)  # a line for each step would be waited for
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        run = Path(folder) / "run"
        session = ["--steps", str(steps), "--log-every", str(every), "--run", str(run), "--quiet", *given.on]
        if "--eval-every" not in words:
            session += ["--save-every", str(steps // 2), "--eval-every", str(steps // 2)]
        begun, asked = time.monotonic(), time.time()
        ended = watch([*PLIMSOLL, "train", *words, *session], seconds=max(1.0, min(SECONDS, given.left)))
        if ended.code:
            raise Failed(ended.said[-3000:] or f"ended with code {ended.code}")
        over, whole = trained(run), time.monotonic() - begun
        planning = (run / "plan.json").stat().st_mtime - asked
    rows = [row for row in over.rows if "step_seconds" in row]
    timed = rows[2:] or rows
    seconds = statistics.median(row["step_seconds"] - row["data_seconds"] for row in timed)
    counted = over.planned["tokens_per_step"] or over.planned["examples_per_step"]
    flops, peak = over.planned["step_flops"], over.planned["chip_flops"]
    return {
        "plan": over.planned["plan"],
        "words": plan_words(over.planned["plan"]),
        "source": over.planned["source"],
        "parameters": over.planned["parameters"],
        "budget_bytes": over.ledger["budget_bytes"],
        "predicted_bytes": over.predicted,
        "measured_bytes": over.peak,
        "phases": {side: over.ledger[side]["phases"] for side in ("predicted", "measured")},
        "overruns": over.ledger["overruns"],
        "step_seconds": {
            "promised": over.planned["step_seconds"],
            "range": over.planned.get("step_seconds_range"),
            "source": over.planned["step_seconds_source"],
            "measured": seconds,
        },
        "per_second": counted / seconds,
        "unit": "tokens" if over.planned["tokens_per_step"] else "examples",
        "mfu": flops / seconds / peak if peak else None,
        "waited": sum(row["data_seconds"] for row in timed) / sum(row["step_seconds"] for row in timed),
        "planning_seconds": planning,
        "planning_and_training_seconds": whole,
        **{name: over.planned[name] for name in ("compiles", "left_out", "without_cudnn")},
        "others": [
            {
                "words": plan_words(other["plan"]),
                "bytes": other["predicted_peak_bytes"],
                "seconds": other["step_seconds"],
            }
            for other in over.planned["alternatives"]
        ],
        "loss": [rows[0]["loss"], rows[-1]["loss"]],
    }


def beside(given: Given) -> dict[str, Any]:
    """Returns the most that `nvidia-smi` says is used while a plan trains, and what of it is beside the budget."""
    before, most, over = used_bytes(), 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.3):
            most = max(most, used_bytes())

    looks = threading.Thread(target=look)
    looks.start()
    try:
        run = planned(given, [*code(MEDIUM, 64), "--memory", "4GiB"])
    finally:
        over.set()
        looks.join()
    named = {"used_before_bytes": before, "used_bytes": most, "budget_bytes": run["budget_bytes"]}
    return {**named, "beside_bytes": most - before - run["budget_bytes"], "peak_bytes": run["measured_bytes"]}


def used_bytes() -> int:
    """Returns what is used of the first card, as its driver counts."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]) * MIB


def tuned(given: Given, bits: str) -> dict[str, Any]:
    """Returns the run of an adapter beside a model with random weights, on Python's own source."""
    from random_model import made, text_records

    model, records = given.folder / "model", given.folder / "records.jsonl"
    config = dict(known_configs()[TUNED])
    length = 4_096
    if given.toy:
        config |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
        config |= {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}
        length = 128
    if not model.exists():
        made(model, config)
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: 10 if given.toy else 100]
        text_records(records, files=sources, characters=8 * length)
    pinned = [*PINNED, "4", "--loss-chunk", "0"] if given.toy else []
    shape = ["--seq-len", str(length), "--batch-size", "4", "--frozen-bits", bits, *pinned]
    return planned(given, ["finetune", "--pretrained", str(model), "--dataset-id", str(records), *shape])


def puzzles(given: Given) -> dict[str, Any]:
    """Returns the run of a puzzle model, on Sudokus that are made here."""
    data = given.folder / "sudoku"
    made = ["--size", "4", "--subsample-size", "50"] if given.toy else ["--subsample-size", "1000", "--num-aug", "20"]
    given.plimsoll("prepare", "sudoku", *made, "--test-size", "50", "--out", data)
    small = ["--width", "32", "--heads", "2", "--batch-size", "16", *PINNED, "16"] if given.toy else []
    recipe = "sudoku-4x4" if given.toy else "sudoku-mlp"
    return planned(given, [recipe, "--data", str(data), *small, "--eval-every", "1000"])


def longcontext(given: Given, preset: str = "longcontext-nano") -> dict[str, Any]:
    """Returns the run of a long-context model, on Python's own source, packed here.

    A preset of the guide keeps its own batch of 4 windows in 4 micro-steps.
    """
    data, text = given.folder / "packed", given.folder / "python.jsonl"
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: 40 if given.toy else None]
    texts = (source.read_text("utf-8", errors="replace") for source in sources)
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    words = ["--dataset-id", text, "--vocab-size", 512 if given.toy else 8_192]
    if not data.exists():
        given.plimsoll("prepare", "longcontext", *words, "--out", data)
    small = ["--width", "32", "--layers", "2", "--states", "8", *PINNED, "4", "--loss-chunk", "0"]
    length, shape = ("256", small) if given.toy else ("32768", [])
    words = [preset, "--data", str(data), "--seq-len", length, *shape, "--batch-size", "4"]
    return planned(given, [*words, "--eval-every", "1000"])


def peered(given: Given, shape: Mapping[str, int], batch: int) -> Any:
    """Returns what `transformers` and `torch.compile` make of a shape; their figures are the peer's own."""
    asked = json.dumps({**{name.replace("-", "_"): value for name, value in shape.items()}, "batch": batch})
    return json.loads(given.run([given.torch, SIDE_PROGRAM, "peers.compiled_llama", asked]).splitlines()[-1])


def line(answer: Mapping[str, Any]) -> str:
    """Returns an answer in a line."""
    for word in ("failed", "left_out"):
        if word in answer:
            return f"{word.replace('_', ' ')}: {(answer[word].splitlines() or [''])[-1][:160]}"
    result = answer["result"]
    if "predicted_bytes" not in result:
        return (
            ", ".join(f"{name} {value}" for name, value in result.items() if isinstance(value, str | int | float))[:160]
            or "done"
        )
    predicted, peak, times = result["predicted_bytes"], result["measured_bytes"], result["step_seconds"]
    promised = "unknown" if times["promised"] is None else f"{times['promised'] * 1e3:.1f}"
    return (
        f"{result['words']:26} predicted {predicted / MIB:9.1f} measured {peak / MIB:9.1f} MiB"
        f" {(predicted - peak) / peak:+6.1%}  step {promised} -> {times['measured'] * 1e3:.1f} ms"
        f"  MFU {result['mfu'] or 0.0:.1%}  waited {result['waited']:.1%}  {result['per_second']:,.0f}"
        f" {result['unit']}/s{'  WENT OVER' if result['overruns'] else ''}"
    )


if __name__ == "__main__":
    main()
