"""NF4 codes beside those of bitsandbytes, for its block size of 64.

    python benchmarks/nf4_codes.py [--python .venv-peer-optimizers/bin/python] [--rows 4096] [--cols 1024]

Draws kernels (normal, heavy-tailed, in bfloat16, half zeros with whole groups of them), packs them with
`levers.frozen.packed` and by bitsandbytes on its CPU, in an interpreter of its own that has it (`--python`), and counts
the codes that differ. Beside them stands the root mean square of what each rounded off: bitsandbytes keeps the largest
of a block in float32, and plimsoll in bfloat16.

Prints a line for each kernel; says why and ends with 0 where that interpreter has no bitsandbytes. Writes one JSON to
bench-out/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PEER = """
import sys, numpy, torch, bitsandbytes.functional as F
kernels = numpy.load(sys.argv[1])
out = {}
for name in kernels.files:
    weight = torch.from_numpy(kernels[name].T.copy())  # (out, in): a block is 64 inputs of one output
    packed, state = F.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    both = packed.reshape(-1)
    codes = torch.stack([both >> 4, both & 15], dim=-1).reshape(weight.shape)
    out["codes " + name] = codes.numpy().T
    out["wide " + name] = F.dequantize_4bit(packed, state).float().numpy().T
numpy.savez(sys.argv[2], **out)
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--python", type=Path, default=ROOT / ".venv-peer-optimizers/bin/python")
    options.add_argument("--rows", type=int, default=4096, help="inputs of each kernel, a multiple of 64")
    options.add_argument("--cols", type=int, default=1024)
    given = options.parse_args()
    if reason := without_peer(given.python):
        print(f"skipped: {reason}")
        return
    drawn = kernels(given.rows, given.cols)
    theirs = of_bitsandbytes(drawn, given.python)
    rows = [{"kernel": name, **compared(kernel, theirs, name)} for name, kernel in drawn.items()]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "nf4_codes.json").write_text(json.dumps({"rows": rows}, indent=1))
    if any(row["codes_that_differ"] for row in rows):
        sys.exit("some codes are not those of bitsandbytes")


def without_peer(python: Path) -> str:
    """Returns why bitsandbytes cannot be asked; empty if it can."""
    if not python.exists():
        return f"there is no {python}; PYTHONPATH=benchmarks python benchmarks/optimizers.py makes it, or give --python"
    found = subprocess.run([python, "-c", "import bitsandbytes"], capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else f"{python} has no bitsandbytes: {found.stderr.strip()[-200:]}"


def kernels(rows: int, cols: int) -> dict[str, np.ndarray]:
    """Returns kernels of (inputs, outputs) in float32."""
    draw = np.random.default_rng(0)
    normal = draw.standard_normal((rows, cols), np.float32)
    zeros = normal.copy()
    zeros[::2] = 0
    zeros[:128] = 0
    rounded = (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return {"normal": normal, "heavy": normal**3, "bfloat16": rounded, "small": 1e-6 * normal, "zeros": zeros}


def of_bitsandbytes(drawn: dict[str, np.ndarray], python: Path) -> dict[str, np.ndarray]:
    """Returns its codes, a byte each, and the numbers that they stand for."""
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "given.npz", Path(folder) / "answer.npz"
        np.savez(given, **drawn)  # type: ignore[arg-type]
        subprocess.run([python, "-c", PEER, str(given), str(answer)], check=True)
        with np.load(answer) as found:
            return {name: found[name] for name in found.files}


def compared(kernel: np.ndarray, theirs: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    import jax

    from plimsoll.levers.frozen import packed, widened

    ours = jax.jit(packed, static_argnums=1)(kernel, 4)
    pairs = np.asarray(ours.codes)
    codes = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(kernel.shape)
    wide = np.asarray(jax.jit(widened)(ours))
    error, their_error = (float(np.sqrt(np.mean((x - kernel) ** 2))) for x in (wide, theirs[f"wide {name}"]))
    return {
        "codes": codes.size,
        "codes_that_differ": int((codes != theirs[f"codes {name}"]).sum()),
        "error": error,
        "their_error": their_error,
    }


if __name__ == "__main__":
    main()
