"""The peers' own environments: torch and what runs on it, away from plimsoll's dependencies.

The programs make them in the checkout: `.venv-peer-trainer` (transformers), `.venv-peer-peft`,
`.venv-peer-optimizers`, `.venv-peer-trm`. A finished environment is left alone, a half-made one is completed. About a
minute and 1 GB where pip finds torch's CPU build; without one in reach, pip takes the default build and several GB of
CUDA libraries with it.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-peer-trainer"
TORCH = "torch==2.13.0"
REQUIREMENTS = (TORCH, "transformers", "accelerate")
OPTIMIZERS_FOLDER = ROOT / ".venv-peer-optimizers"
OPTIMIZERS = (TORCH, "bitsandbytes==0.50.2", "torchao==0.18.0", "numpy")
TRM_FOLDER = ROOT / ".venv-peer-trm"
TRM = (TORCH, "numpy")
PEFT_FOLDER = ROOT / ".venv-peer-peft"
PEFT = (TORCH, "transformers==5.24.0", "peft==0.21.2")
SIDE_PROGRAM = str(ROOT / "benchmarks/sides.py")
"""Starts one side of a comparison in an environment."""


def peer_python(folder: Path = FOLDER, requirements: Sequence[str] = REQUIREMENTS) -> Path:
    """The interpreter of the peer's environment, which is made first if it is not there."""
    python, finished = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(requirements)
    if finished.is_file() and finished.read_text() == wanted:
        return python
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(folder))
        (folder / ".gitignore").write_text("*\n")
    # torch alone and first: asked for together, pip may weigh newer builds and download them to look inside.
    if TORCH in requirements:
        _run(str(python), "-m", "pip", "install", TORCH)
    _run(str(python), "-m", "pip", "install", *requirements)
    finished.write_text(wanted)  # last, so that an interrupted install is taken up again
    return python


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)  # standard output is for the interpreter's path
