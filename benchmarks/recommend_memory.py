"""What a frozen Gemma 2B or Llama 3.2 1B takes in `recommend`, planned lever by lever for chips that are not here.

    python benchmarks/recommend_memory.py [--chips tpu-v4-64 h200 l4] [--presets recommend-gemma-2b] [--items 10k]

No weights are needed to plan. A chip whose compiler is installed is compiled for, the others are estimated, and the
table says which. One line per row of levers, and bench-out/recommend_memory.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from training_process import ENVIRONMENT, PLIMSOLL

PLAIN = ("--micro-batch", "32", "--remat", "none", "--precision", "float32", "--frozen-bits", "32")
ROWS: dict[str, tuple[str, ...]] = {
    "default: float32, nothing recomputed": PLAIN,
    "+ blocks recomputed": (*PLAIN, "--remat", "block"),
    "+ bfloat16 arithmetic": (*PLAIN, "--remat", "block", "--precision", "bfloat16"),
    "+ frozen in bfloat16": (*PLAIN, "--remat", "block", "--precision", "bfloat16", "--frozen-bits", "16"),
    "+ frozen in int8": (*PLAIN, "--remat", "block", "--precision", "bfloat16", "--frozen-bits", "8"),
    "+ frozen in NF4": (*PLAIN, "--remat", "block", "--precision", "bfloat16", "--frozen-bits", "4"),
    "+ one device's least micro-batch, 8-bit moments": (
        *(*PLAIN, "--remat", "block", "--precision", "bfloat16", "--frozen-bits", "4", "--optimizer-bits", "8"),
        *("--loss-chunk", "32", "--micro-batch", "{least}"),
    ),
}
"""Words that come again replace what was said before them."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--chips", nargs="*", default=["tpu-v4-64", "h200", "l4"])
    options.add_argument("--presets", nargs="*", default=["recommend-gemma-2b", "recommend-llama-3.2-1b"])
    options.add_argument("--items", default="10k")
    given = options.parse_args()
    out = Path("bench-out/recommend_memory.json")
    out.parent.mkdir(exist_ok=True)
    found: list[dict[str, Any]] = []
    for preset in given.presets:
        for chip in given.chips:
            for name, words in ROWS.items():
                row = {"preset": preset, "chip": chip, "row": name} | planned(preset, chip, words, given.items)
                found.append(row)
                print(line(row), flush=True)
                out.write_text(json.dumps(found, indent=1))


def planned(preset: str, chip: str, words: tuple[str, ...], items: str) -> dict[str, Any]:
    """Plans for one device. What does not fit is said with what it would need."""
    devices = 32 if chip == "tpu-v4-64" else 1
    said = dict(zip(words[::2], words[1::2], strict=True))
    said["--micro-batch"] = said["--micro-batch"].format(least=devices)
    levers = [word for pair in said.items() for word in pair]
    command = [*PLIMSOLL, "plan", preset, "--chip", chip, "--num-items", items, *levers, "--json"]
    done = subprocess.run(command, check=False, env=ENVIRONMENT, capture_output=True, text=True)
    if not done.stdout.strip():
        return {"failed": done.stderr.strip()[-500:]}
    plan = json.loads(done.stdout)
    if not plan["fits"]:
        return {"fits": False, "floor_bytes": plan["floor_bytes"], "reason": plan["reason"]}
    kept = ("predicted_peak_bytes", "budget_bytes", "components", "phase", "step_seconds", "source")
    return {"fits": True, "plan": plan["plan"], **{name: plan[name] for name in kept if name in plan}}


def line(row: dict[str, Any]) -> str:
    head = f"{row['preset']:24} {row['chip']:10} {row['row']:48}"
    if "failed" in row:
        return f"{head} failed: {row['failed'][:160]}"
    if not row["fits"]:
        return f"{head} does not fit: {(row['floor_bytes'] or 0) / 2**30:8.2f} GiB are needed"
    return f"{head} {row['predicted_peak_bytes'] / 2**30:8.2f} GiB of {row['budget_bytes'] / 2**30:.1f}"


if __name__ == "__main__":
    main()
