"""The pages of `plimsoll report` in a real browser: what it says, what it asks for, how they look, how long they take.

    apt-get install chromium
    python benchmarks/report_in_browser.py [--run RUN ...] [--chromium PROGRAM]

Without --run it trains a run of 30 steps. From it come four pages: the run, the same with 100,000 rows of metrics
(spikes, a NaN, and half a line at the end), both beside one another, and its plan. Each is opened by headless Chromium
at three widths, in light and in dark, and printed. It fails where the console says anything, where the browser asks
for anything but the page, where axe-core finds a violation (contrast, names, keyboard), where a page is wider than
its window, larger than 2 MB, slower than 2 s, or more than two sheets of paper. Pictures lie in bench-out/report/.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.environment import BROWSER, BROWSER_FOLDER, peer_python
from training_process import ENVIRONMENT, PLIMSOLL

from plimsoll.report.metrics import encode_row

TRAIN = shlex.split("train code --width 32 --layers 1 --heads 2 --seq-len 64 --steps 30 --log-every 1 --memory 600MiB")
LONG = 100_000
CHECKED = ("color-contrast", "document-title", "html-has-lang", "landmark-one-main", "svg-img-alt")
"""Rules that every page must have been held against, so that a checker that sees nothing is noticed."""
MOST_BYTES, MOST_MILLISECONDS, MOST_SHEETS = 2_000_000, 2000, 2


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--run", nargs="*", default=[], help="runs to make pages of; a new one if none is named")
    options.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chromium-browser"))
    asked = options.parse_args()
    if asked.chromium is None:
        print("there is no chromium here: `apt-get install chromium`, or name it with --chromium", file=sys.stderr)
        return 2
    pictures = Path("bench-out/report").absolute()
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(run).absolute() for run in asked.run] or [trained(Path(folder) / "short")]
        pages = made(runs, Path(folder), pictures)
    command = [
        peer_python(BROWSER_FOLDER, BROWSER),
        Path(__file__).parent / "peers/browser.py",
        asked.chromium,
        pictures,
    ]
    done = subprocess.run([*map(str, command), *map(str, pages)], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    (pictures.parent / "report-in-browser.json").write_text(json.dumps(found, indent=2))
    faults = [fault for page in found.items() for fault in shown(*page)]
    print("\n".join(["", *faults]) if faults else "\nnothing to complain of")
    return 1 if faults else 0


def plimsoll(*words: str | Path) -> None:
    subprocess.run([*PLIMSOLL, *map(str, words)], env=ENVIRONMENT, check=True, stdout=sys.stderr)


def trained(run: Path) -> Path:
    plimsoll(*TRAIN, "--run", run)
    return run


def made(runs: list[Path], folder: Path, pages: Path) -> list[Path]:
    long = lengthened(runs[0], folder / "long")
    asked = [[run] for run in [*runs, long]] + [[runs[0], long], ["--plan", runs[0] / "plan.json"]]
    names = [*(run.name for run in runs), "long", "compared", "plan"]
    found = []
    for name, words in zip(names, asked, strict=True):
        found.append(pages / f"{name}.html")
        plimsoll("report", *words, "--out", found[-1])
    return found


def lengthened(run: Path, copy: Path) -> Path:
    """The same run with 100,000 rows, as if it had been logged at every step, and killed in the middle of a line."""
    shutil.copytree(run, copy)
    with open(copy / "metrics.jsonl", "w") as file:
        for step in range(1, LONG + 1):
            file.write(encode_row(step, row(step)) + "\n")
            if step % 5000 == 0:
                file.write(
                    encode_row(step, {"validation_loss": loss(step) + 0.2, "elapsed_seconds": 0.1 * step}) + "\n"
                )
        file.write('{"step": 100001, "los')
    return copy


def loss(step: int) -> float:
    return 2 + 6 / (1 + step / 2000) + 0.2 * math.sin(step) * math.cos(7.3 * step)


def row(step: int) -> dict[str, float]:
    stalled, torn = step in (31_416, 77_777), step == 50_000
    return {
        "loss": math.nan if torn else loss(step) + (4 if stalled else 0),
        "gradient_norm": 0.5 + abs(math.sin(step)) / (1 + step / 30_000) + (20 if stalled else 0),
        "step_seconds": 3.0 if stalled else 0.1,
        "data_seconds": 2.5 if stalled else 0.001,
        "elapsed_seconds": 0.1 * step,
        "tokens_per_second": 1400.0 if stalled else 41_000 + 2000 * math.sin(step / 900),
        "resident_bytes": 2.0e8 + 2e7 * math.sin(step) ** 2,
        "peak_resident_bytes": 2.2e8,
    }


def shown(path: str, page: dict) -> list[str]:
    """A line on the screen, and what is wrong with it."""
    name = Path(path).name
    slowest = max(view["open_milliseconds"] for view in page["views"])
    said = f"{name:16} {page['bytes'] / 1000:7.0f} kB, opens in {slowest:5.0f} ms at most, {page['sheets']} sheets"
    print(said, flush=True)
    faults = []
    if page["bytes"] > MOST_BYTES or slowest > MOST_MILLISECONDS or page["sheets"] > MOST_SHEETS:
        faults.append(f"{name}: more than {MOST_BYTES} bytes, {MOST_MILLISECONDS} ms or {MOST_SHEETS} sheets")
    for view in page["views"]:
        where = f"{name} at {view['width']} in {view['scheme']}"
        faults += [f"{where}: {text}" for text in (*view["console"], *view["asked_elsewhere"], *view["violations"])]
        faults += [f"{where}: axe-core did not check {rule}" for rule in CHECKED if rule not in view["rules_passed"]]
        faults += [f"{where}: wider than its window"] if view["wider_than_the_window"] else []
        faults += (
            [] if view["first_focus"] == "To the content" else [f"{where}: Tab reaches {view['first_focus']!r} first"]
        )
    return faults


if __name__ == "__main__":
    sys.exit(main())
