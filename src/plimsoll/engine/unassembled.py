"""Compiling for an NVIDIA GPU that is absent, without generating machine code.

XLA decides on buffers and kernels before it generates code. LLVM's passes and NVIDIA's assembler, which runs for every
kernel, take half of the compile time. Here a script that returns code without instructions replaces the assembler, and
LLVM optimizes nothing. Bytes and kernels of 12 compiled steps stayed the same (notes, "A rehearsal beside its
compiles"). Functions that training runs are never compiled like this.
"""

from __future__ import annotations

import os
import shlex
from importlib import metadata
from pathlib import Path

NOTHING = ".version 8.0\n.target sm_75\n.address_size 64\n"
"""PTX module (NVIDIA's assembly language) without a function."""
SCRIPT = """#!/bin/sh
# Stands in for ptxas: writes code without instructions, which ptxas assembles once for each architecture.
while [ $# -gt 0 ]; do
    case "$1" in
        --version) exec {assembler} --version ;;
        -arch=*) architecture=${{1#-arch=}} ;;
        -o) shift; result=$1 ;;
    esac
    shift
done
code={folder}/$architecture
if [ ! -f "$code" ]; then
    {assembler} {folder}/nothing.ptx -arch="$architecture" -o "$code.$$" && mv "$code.$$" "$code" || exit 1
fi
exec cat "$code" > "$result"
"""


def options(folder: Path) -> dict[str, str | bool]:
    """Returns compiler options for a GPU that skip machine code.

    Args:
        folder: Empty folder, for the script that replaces the assembler. It must exist while anything is compiled.
    """
    assembler = _assembler()
    toolkit, ours = assembler.parents[1], folder / "bin"
    ours.mkdir()
    for each in (*assembler.parent.iterdir(), toolkit / "nvvm"):
        if each != assembler:
            (folder / each.relative_to(toolkit)).symlink_to(each)
    (folder / "nothing.ptx").write_text(NOTHING)
    script = ours / assembler.name
    script.write_text(SCRIPT.format(assembler=shlex.quote(str(assembler)), folder=shlex.quote(str(folder))))
    script.chmod(0o700)
    return {"xla_gpu_cuda_data_dir": os.fspath(folder), "xla_backend_optimization_level": "0"}


def _assembler() -> Path:
    """Returns the path of NVIDIA's assembler `ptxas`, in the package that JAX's GPU compiler depends on."""
    for name in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):  # CUDA 13 and 12 have different names
        for package in metadata.distributions(name=name):
            for file in package.files or ():
                if file.name == "ptxas":
                    return Path(str(package.locate_file(file))).resolve()
    raise metadata.PackageNotFoundError("nvidia-cuda-nvcc")
