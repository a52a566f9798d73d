"""Whether this process is the kernel of a notebook."""

from __future__ import annotations

import sys


def is_here() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
