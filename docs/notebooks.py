"""Runs the notebooks of docs/examples and keeps what their cells showed, without counts and times of the kernel.

    python docs/notebooks.py [quickstart will_it_fit finetune_t4]

Cells with the tag `install` or `card` are not run: they need the network, or a card.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs/examples"
NOT_RUN = {"install", "card"}
"""Tags of cells that are not run."""

sys.path.insert(0, str(ROOT / "tests/support"))


def keep_outputs(path: Path) -> None:
    """Runs a notebook in a folder of its own and writes it back with its outputs."""
    from kernels import read_book, run_book

    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        ran = run_book(read_book(path, without=NOT_RUN), folder)
    outputs = {cell["id"]: kept(cell.outputs, folder) for cell in ran.cells if cell.cell_type == "code"}
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = outputs.get(cell["id"], [])
            cell.execution_count = None
            cell.metadata.pop("execution", None)
    nbformat.write(book, path)


def kept(outputs: list[nbformat.NotebookNode], folder: str) -> list[nbformat.NotebookNode]:
    """Returns outputs without counts and without the folder's path. What was printed in parts is one output."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if "execution_count" in output:
            output.execution_count = None
        if output.output_type == "stream":
            output.text = output.text.replace(f"{folder}/", "")
        elif text := output.get("data", {}).get("text/plain"):
            output.data["text/plain"] = text.replace(f"{folder}/", "")
        if found and output.output_type == "stream" and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))
    parser.add_argument("notebooks", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; by default all")
    names = parser.parse_args().notebooks or known
    if unknown := {*names} - {*known}:
        parser.error(f"there is no notebook {', '.join(sorted(unknown))}")
    for name in names:
        keep_outputs(EXAMPLES / f"{name}.ipynb")
        print(f"kept: {name}")


if __name__ == "__main__":
    main()
