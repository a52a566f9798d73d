"""What stands beside a figure: the conditions it was taken under, and the word of its goal, which all.py looks for."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def verdict(*, met: bool) -> str:
    return "met" if met else "missed"


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what the figures depend on beyond the configuration."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit,
        "options": {name: str(value) for name, value in vars(options).items()},
    }


def write(out: Path, result: Mapping[str, Any]) -> None:
    """Writes a result file, into a folder that is made where it is not there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1))


def busy_seconds() -> float:
    """CPU seconds of the whole machine (Linux)."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
