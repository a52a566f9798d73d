"""Programs under benchmarks/ as modules, for tests of what is in them."""

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@contextmanager
def program(name):
    """Loads benchmarks/NAME.py for a while."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # its dataclasses look for their module there
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules[name]
