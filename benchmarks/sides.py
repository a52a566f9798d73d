"""One side of a comparison, in a process and often a Python of its own: `PYTHON benchmarks/sides.py MODULE WORDS`.

MODULE is one of this folder with a function `side`: `peers.trainer`, `peers.optimizers`, `ours_text`, and others. The
programs start this; what a side is told and has to answer stands in its module.
"""

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module(sys.argv.pop(1)).side()
