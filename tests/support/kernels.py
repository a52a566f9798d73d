"""Cells in a real kernel, in order, as Jupyter runs them."""

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def book_of(*cells):
    """Returns a notebook with these cells."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def read_book(path, *, without=()):
    """Returns a notebook from its file, without the cells that have one of these tags."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    book.cells = [cell for cell in book.cells if not {*without} & {*cell.metadata.get("tags", ())}]
    return book


class Kernel(nbclient.NotebookClient):
    """A kernel of this Python that runs a notebook's cells in a folder, and keeps its own files there, too."""

    def __init__(self, book, folder):
        where = Path(folder)
        os.environ["JUPYTER_RUNTIME_DIR"] = str(where / "jupyter")  # of the file with its ports; read by the client
        super().__init__(book, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(where)}})
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "IPYTHONDIR": str(where / "ipython"),
        }

    def run(self):
        """Runs all cells and returns the notebook with what they showed. Raises CellExecutionError for the first that
        fails, and DeadKernelError where the kernel ends."""
        return self.execute(env=self.environment)

    @property
    def process_id(self):
        return self.km.provisioner.process.pid


def run_book(book, folder):
    """Returns the notebook, run in a kernel of its own, with what its cells showed."""
    return Kernel(book, folder).run()


def shown(cell, kind="text/plain"):
    """Returns what a cell showed, in this order: what it printed, pictures and the like, the value of its last line."""
    printed = [output.text for output in cell.outputs if output.output_type == "stream"]
    values = [output for output in cell.outputs if kind in output.get("data", {})]
    values.sort(key=lambda output: output.output_type == "execute_result")
    return "\n".join([*printed, *(output.data[kind] for output in values)])
