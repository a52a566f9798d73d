"""Detects notebooks."""

from __future__ import annotations

import sys


def is_here() -> bool:
    """Returns True if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
